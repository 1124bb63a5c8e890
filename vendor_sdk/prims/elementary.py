"""Elementary functions in terms of others: decompositions of pointwise and comparison prims.

Halves are computed in float32 and rounded once at the end, integers in the default floating dtype, as torch does it.
"""

# mypy: disable-error-code="no-any-return"
# (torch.ops is untyped: every operator call is an Any.)

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def number(like: Tensor, value: float | int | bool) -> Tensor:
    """``value`` as a 0-d tensor that promotes with ``like`` as the Python number itself would."""
    result: Tensor = aten.full.default([], value, dtype=torch.result_type(like, value), device=like.device)
    return result


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Calls ``function`` on operands in the floating dtype it should compute in, and rounds its result to the promoted one."""

    @functools.wraps(function)
    def wide(*operands: Tensor) -> Tensor:
        dtype = promoted(*operands)
        computing = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        return cast(function(*(cast(operand, computing) for operand in operands)), dtype)

    return wide


def promoted(*operands: Tensor) -> torch.dtype:
    """The floating dtype of a result: promotion over the operands, integers becoming the default floating dtype."""
    dtype = operands[0].dtype if len(operands) == 1 else torch.result_type(*operands)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """``value`` in ``dtype``; itself where it has that dtype."""
    if value.dtype == dtype:
        return value
    result: Tensor = aten._to_copy.default(value, dtype=dtype)
    return result


def _negative(x: Tensor) -> Tensor:
    return aten.lt.Tensor(x, number(x, 0))


def _magnitude_sign(magnitude: Tensor, x: Tensor) -> Tensor:
    """``magnitude`` (not negative) with the sign of ``x``, signed zeros included."""
    return aten.where.self(aten.signbit.default(x), aten.neg.default(magnitude), magnitude)


def absolute(x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return aten.maximum.default(x, aten.neg.default(x)) if x.dtype.is_signed else aten.mul.Tensor(x, 1)
    return aten.where.self(aten.signbit.default(x), aten.neg.default(x), x)


@widened
def acos(x: Tensor) -> Tensor:
    return aten.atan2.default(_sine_of(x), x)


@widened
def asin(x: Tensor) -> Tensor:
    return aten.atan2.default(x, _sine_of(x))


def _sine_of(cosine: Tensor) -> Tensor:
    """``sqrt(1 - c**2)``, factored so that it stays accurate near ``|c| = 1``."""
    return aten.sqrt.default(aten.mul.Tensor(aten.sub.Tensor(1, cosine), aten.add.Tensor(cosine, 1)))


@widened
def acosh(x: Tensor) -> Tensor:
    t = aten.sub.Tensor(x, 1)
    root = aten.sqrt.default(aten.mul.Tensor(t, aten.add.Tensor(t, 2)))
    below = aten.lt.Tensor(x, number(x, 1.0))
    return aten.where.self(below, number(x, math.nan), _or_large(aten.log1p.default(aten.add.Tensor(t, root)), x))


def _or_large(result: Tensor, a: Tensor) -> Tensor:
    """``log(2 a)``, which acosh and asinh are to rounding, where ``a`` is so large that its square may overflow."""
    large = aten.add.Tensor(aten.log.default(a), math.log(2.0))
    return aten.where.self(aten.gt.Tensor(a, number(a, 1e10)), large, result)


@widened
def asinh(x: Tensor) -> Tensor:
    a = aten.abs.default(x)
    square = aten.mul.Tensor(a, a)
    small = aten.div.Tensor(square, aten.add.Tensor(aten.sqrt.default(aten.add.Tensor(square, 1)), 1))
    return _magnitude_sign(_or_large(aten.log1p.default(aten.add.Tensor(a, small)), a), x)


@widened
def atan(x: Tensor) -> Tensor:
    return aten.atan2.default(x, aten.full.default([], 1.0, dtype=x.dtype, device=x.device))


@widened
def atanh(x: Tensor) -> Tensor:
    a = aten.abs.default(x)
    ratio = aten.div.Tensor(aten.mul.Tensor(a, 2), aten.sub.Tensor(1, a))
    return _magnitude_sign(aten.mul.Tensor(aten.log1p.default(ratio), 0.5), x)


def ceil(x: Tensor) -> Tensor:
    return aten.neg.default(aten.floor.default(aten.neg.default(x))) if x.dtype.is_floating_point else aten.mul.Tensor(x, 1)


def copysign(x: Tensor, y: Tensor) -> Tensor:
    dtype = promoted(x, y)
    magnitude, sign = aten.abs.default(cast(x, dtype)), aten.signbit.default(y)
    return aten.where.self(sign, aten.neg.default(magnitude), magnitude)


@widened
def cosh(x: Tensor) -> Tensor:
    # exp(|x|/2) squared last, so that the result and not an intermediate overflows.
    half = aten.exp.default(aten.mul.Tensor(aten.abs.default(x), 0.5))
    return aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(half, 0.5), half), aten.div.Tensor(aten.div.Tensor(0.5, half), half))


@widened
def sinh(x: Tensor) -> Tensor:
    # With e = expm1(|x|/2): sinh = e (e + 2) (e (e + 2) + 2) / (2 (e + 1)**2); split so that nothing overflows early.
    e = aten.expm1.default(aten.mul.Tensor(aten.abs.default(x), 0.5))
    grown = aten.add.Tensor(e, 1)
    rise = aten.mul.Tensor(aten.div.Tensor(e, grown), aten.add.Tensor(e, 2))  # (g**2 - 1) / g
    rest = aten.mul.Tensor(aten.add.Tensor(grown, aten.reciprocal.default(grown)), 0.5)  # (g**2 + 1) / (2 g)
    finite = aten.mul.Tensor(rise, rest)
    infinite = aten.eq.Tensor(grown, number(grown, math.inf))
    return _magnitude_sign(aten.where.self(infinite, grown, finite), x)


@widened
def tanh(x: Tensor) -> Tensor:
    e = aten.expm1.default(aten.mul.Tensor(aten.abs.default(x), -2))
    return _magnitude_sign(aten.div.Tensor(aten.neg.default(e), aten.add.Tensor(e, 2)), x)


@widened
def tan(x: Tensor) -> Tensor:
    return aten.div.Tensor(aten.sin.default(x), aten.cos.default(x))


@widened
def sigmoid(x: Tensor) -> Tensor:
    return aten.reciprocal.default(aten.add.Tensor(aten.exp.default(aten.neg.default(x)), 1))


@widened
def erfc(x: Tensor) -> Tensor:
    return aten.sub.Tensor(1, aten.erf.default(x))


LOG_2 = Fraction("0.693147180559945309417232121458176568")


@widened
def exp2(x: Tensor) -> Tensor:
    # exp(n log 2 + f log 2) with n whole and |f| <= 1/2. The first bits of log 2 times n are exact, and what the sum of both
    # terms loses (late) is small enough for exp(late) = 1 + late. Large results are doubled last, so that none overflows early.
    bits = 40 if x.dtype == torch.float64 else 15
    first = Fraction(int(LOG_2 * 2**bits), 2**bits)
    whole = aten.round.default(x)
    large = aten.gt.Tensor(whole, number(x, 64))
    rest = aten.mul.Tensor(aten.sub.Tensor(x, whole), float(LOG_2))
    whole = aten.where.self(large, aten.sub.Tensor(whole, 1), whole)
    product = aten.mul.Tensor(whole, float(first))
    rest = aten.add.Tensor(rest, aten.mul.Tensor(whole, float(LOG_2 - first)))
    early = aten.add.Tensor(product, rest)
    late = aten.add.Tensor(aten.sub.Tensor(product, early), rest)
    usual = aten.lt.Tensor(aten.abs.default(x), number(x, 1e4))
    early, late = aten.where.self(usual, early, x), aten.where.self(usual, late, number(x, 0.0))
    result = aten.mul.Tensor(aten.exp.default(early), aten.add.Tensor(late, 1))
    return aten.where.self(large, aten.mul.Tensor(result, 2), result)


@widened
def expm1(x: Tensor) -> Tensor:
    # W. Kahan's: (u - 1) x / log(u) with u = exp(x) undoes the rounding of u where u is near 1.
    u = aten.exp.default(x)
    rise = aten.sub.Tensor(u, 1)
    corrected = aten.div.Tensor(aten.mul.Tensor(rise, x), aten.log.default(u))
    near = aten.logical_and.default(aten.lt.Tensor(aten.abs.default(x), number(x, 1.0)), aten.ne.Tensor(rise, number(rise, 0)))
    tiny = aten.eq.Tensor(rise, number(rise, 0))
    return aten.where.self(tiny, x, aten.where.self(near, corrected, rise))


@widened
def log1p(x: Tensor) -> Tensor:
    # W. Kahan's: log(u) x / (u - 1) with u = 1 + x undoes the rounding of u.
    u = aten.add.Tensor(x, 1)
    rise = aten.sub.Tensor(u, 1)
    corrected = aten.div.Tensor(aten.mul.Tensor(aten.log.default(u), x), rise)
    tiny = aten.eq.Tensor(rise, number(rise, 0))
    far = aten.gt.Tensor(aten.abs.default(x), number(x, 1e6))  # u is x itself there, and the product overflows before log(u)
    return aten.where.self(tiny, x, aten.where.self(far, aten.log.default(u), corrected))


@widened
def log2(x: Tensor) -> Tensor:
    return aten.mul.Tensor(aten.log.default(x), 1.0 / math.log(2.0))


@widened
def log10(x: Tensor) -> Tensor:
    return aten.mul.Tensor(aten.log.default(x), 1.0 / math.log(10.0))


@widened
def reciprocal(x: Tensor) -> Tensor:
    return aten.div.Tensor(1, x)


@widened
def rsqrt(x: Tensor) -> Tensor:
    return aten.reciprocal.default(aten.sqrt.default(x))


def relu(x: Tensor) -> Tensor:
    return aten.maximum.default(x, number(x, 0))


def sign(x: Tensor) -> Tensor:
    if x.dtype == torch.bool:
        return aten.logical_or.default(x, x)
    zero = number(x, 0)
    positive = cast(aten.gt.Tensor(x, zero), x.dtype)
    return aten.sub.Tensor(positive, cast(aten.lt.Tensor(x, zero), x.dtype))


def floor(x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return aten.mul.Tensor(x, 1)
    whole = aten.trunc.default(x)
    below = aten.lt.Tensor(x, whole)
    return aten.where.self(below, aten.sub.Tensor(whole, 1), whole)


def negate(x: Tensor) -> Tensor:
    # Not 0 - x, which loses the sign of zero.
    return aten.mul.Tensor(x, -1) if x.dtype.is_signed else aten.mul.Tensor(x, torch.iinfo(x.dtype).max)


def subtract(x: Tensor | float, y: Tensor | float) -> Tensor:
    negated = aten.neg.default(y) if isinstance(y, Tensor) else -y
    return aten.add.Tensor(x, negated)


def fmax(x: Tensor, y: Tensor) -> Tensor:
    return _ignoring_nan(aten.maximum.default, x, y)


def fmin(x: Tensor, y: Tensor) -> Tensor:
    return _ignoring_nan(aten.minimum.default, x, y)


def _ignoring_nan(function: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    chosen = function(x, y)
    if not chosen.dtype.is_floating_point:
        return chosen
    x, y = cast(x, chosen.dtype), cast(y, chosen.dtype)
    return aten.where.self(aten.ne.Tensor(x, x), y, aten.where.self(aten.ne.Tensor(y, y), x, chosen))


def maximum(x: Tensor, y: Tensor) -> Tensor:
    return _extreme(aten.gt.Tensor, x, y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    return _extreme(aten.lt.Tensor, x, y)


def _extreme(beats: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    first = beats(x, y)
    dtype = torch.result_type(x, y)
    if dtype.is_floating_point:
        first = aten.logical_or.default(first, aten.ne.Tensor(x, x))  # NaN wins
    return aten.where.self(first, cast(x, dtype), cast(y, dtype))


@widened
def hypot(x: Tensor, y: Tensor) -> Tensor:
    a, b = aten.abs.default(x), aten.abs.default(y)
    large, small = aten.maximum.default(a, b), aten.minimum.default(a, b)
    zero = aten.eq.Tensor(large, number(large, 0))
    infinite = aten.logical_or.default(aten.isinf.default(x), aten.isinf.default(y))
    ratio = aten.div.Tensor(small, large)
    length = aten.mul.Tensor(large, aten.sqrt.default(aten.add.Tensor(aten.mul.Tensor(ratio, ratio), 1)))
    return aten.where.self(infinite, number(large, math.inf), aten.where.self(zero, large, length))


def remainder(x: Tensor, y: Tensor) -> Tensor:
    """The remainder with the divisor's sign: ``fmod``, plus the divisor where the signs differ."""
    rest = aten.fmod.Tensor(x, y)
    if not rest.dtype.is_signed:
        return rest
    zero = number(rest, 0)
    wrong = aten.logical_and.default(
        aten.ne.Tensor(rest, zero), aten.ne.Tensor(aten.lt.Tensor(rest, zero), aten.lt.Tensor(y, zero))
    )
    return aten.where.self(wrong, aten.add.Tensor(rest, y), rest)


def modified_bessel_i0(x: Tensor) -> Tensor:
    return aten.i0.default(x)


def modified_bessel_i1(x: Tensor) -> Tensor:
    return aten.special_i1.default(x)


@widened
def igammac(a: Tensor, x: Tensor) -> Tensor:
    return aten.sub.Tensor(1, aten.igamma.default(a, x))


def _polynomial(x: Tensor, *coefficients: float) -> Tensor:
    """Of the lowest power first."""
    value = number(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = aten.add.Tensor(aten.mul.Tensor(value, x), coefficient)
    return value


@widened
def ndtri(p: Tensor) -> Tensor:
    # A first guess (Abramowitz and Stegun 26.2.23) for the upper tail q <= 1/2, and two of Halley's steps on Q(x) = q, where
    # Q(x) = erfcx(z) exp(-z**2) / 2 with z = x / sqrt(2): without cancellation or underflow in either tail.
    upper = aten.gt.Tensor(p, number(p, 0.5))
    q = aten.where.self(upper, aten.sub.Tensor(1, p), p)
    log_q = aten.log.default(q)
    t = aten.sqrt.default(aten.mul.Tensor(log_q, -2))
    guess = aten.div.Tensor(_polynomial(t, 2.515517, 0.802853, 0.010328), _polynomial(t, 1, 1.432788, 0.189269, 0.001308))
    x = aten.sub.Tensor(t, guess)
    for _ in range(2):
        z = aten.mul.Tensor(x, math.sqrt(0.5))
        tail = aten.special_erfcx.default(z)
        exponent = aten.add.Tensor(aten.add.Tensor(aten.mul.Tensor(z, z), math.log(2.0)), log_q)
        ratio = aten.div.Tensor(aten.exp.default(exponent), tail)  # q / Q(x)
        step = aten.mul.Tensor(aten.mul.Tensor(aten.sub.Tensor(1, ratio), tail), math.sqrt(math.pi / 2))
        x = aten.add.Tensor(x, aten.div.Tensor(step, aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, step), -0.5), 1)))
    x = aten.where.self(upper, x, aten.neg.default(x))
    inside = aten.logical_and.default(aten.gt.Tensor(p, number(p, 0.0)), aten.lt.Tensor(p, number(p, 1.0)))
    outside = aten.where.self(aten.eq.Tensor(p, number(p, 1.0)), number(p, math.inf), number(p, math.nan))
    outside = aten.where.self(aten.eq.Tensor(p, number(p, 0.0)), number(p, -math.inf), outside)
    return aten.where.self(inside, x, outside)


@widened
def spherical_bessel_j0(x: Tensor) -> Tensor:
    zero = aten.eq.Tensor(x, number(x, 0))
    one = aten.full.default([], 1.0, dtype=x.dtype, device=x.device)
    infinite = aten.isinf.default(x)
    ratio = aten.div.Tensor(aten.sin.default(x), x)
    return aten.where.self(infinite, number(x, 0.0), aten.where.self(zero, one, ratio))


def ne(x: Tensor, y: Tensor) -> Tensor:
    return aten.logical_not.default(aten.eq.Tensor(x, y))


def gt(x: Tensor, y: Tensor) -> Tensor:
    return aten.lt.Tensor(y, x)


def ge(x: Tensor, y: Tensor) -> Tensor:
    return aten.le.Tensor(y, x)


def le(x: Tensor, y: Tensor) -> Tensor:
    return aten.logical_or.default(aten.lt.Tensor(x, y), aten.eq.Tensor(x, y))


def isnan(x: Tensor) -> Tensor:
    return aten.ne.Tensor(x, x)


def isinf(x: Tensor) -> Tensor:
    if not x.dtype.is_floating_point:
        return aten.ne.Tensor(x, x)
    return aten.eq.Tensor(aten.abs.default(x), number(x, math.inf))


def logical_not(x: Tensor) -> Tensor:
    return aten.eq.Tensor(x, number(x, 0 if x.dtype != torch.bool else False))


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype == torch.bool else aten.ne.Tensor(x, number(x, 0))


def logical_and(x: Tensor, y: Tensor) -> Tensor:
    return aten.bitwise_and.Tensor(_truth(x), _truth(y))


def logical_or(x: Tensor, y: Tensor) -> Tensor:
    return aten.bitwise_or.Tensor(_truth(x), _truth(y))


def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    return aten.ne.Tensor(_truth(x), _truth(y))


def bitwise_xor(x: Tensor, y: Tensor) -> Tensor:
    either, both = aten.bitwise_or.Tensor(x, y), aten.bitwise_and.Tensor(x, y)
    return aten.bitwise_and.Tensor(either, aten.bitwise_not.default(both))


def bitwise_not(x: Tensor) -> Tensor:
    if x.dtype == torch.bool:
        return aten.logical_not.default(x)
    return aten.sub.Tensor(-1 if x.dtype.is_signed else torch.iinfo(x.dtype).max, x)
