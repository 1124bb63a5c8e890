"""Rows of the pointwise family: one element of the result from one element of each operand, with broadcasting.

No bound is wider than what the OpenCL C specification allows (3.0, section 7.4, relative error as ULPs: the full-profile
single-precision table), where it has the function; most are narrower, as the row's ``source`` says: as far as libraries in use
allow, whose errors were measured over all exponents (NVIDIA's: as documented). Arm's TOSA is met too, or the row says why not.
In halves bounds are those of the float32 result, rounded once. Sums, differences and products are asked for as IEEE 754 rounds
them; quotients and square roots as one of the two neighbours in float32, and correctly rounded in halves.

Scalar operands: ``add``, ``sub``, ``mul`` and ``div`` take a Python number for a tensor, as torch's own overloads do; for every
other prim a number is a 0-d tensor (``elementary.number``), which promotes like the number. ``pow`` is one prim,
``pow.Tensor_Tensor``: torch treats the exponents 0.5, 2, 3, -0.5, -1 and -2 of ``pow.Tensor_Scalar`` specially only for speed,
and its results stay within ``pow``'s bound. ``clamp`` is ``minimum(maximum(x, low), high)``, exactly, NaN included, and so no
prim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
import torch

from vendor_sdk.prims import elementary
from vendor_sdk.prims.bounds import BY_DEFINITION, Bound, Exact, in_float32
from vendor_sdk.prims.reference import OwnDtype
from vendor_sdk.prims.row import ALL, FLOATS, INTS, NUMBERS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import (
    COUNTS,
    EVERYWHERE,
    Effort,
    Interval,
    Sample,
    SampleContext,
    Sampler,
    binary,
    by_zero,
    draw,
    everywhere,
    pairs,
    specials,
    unary,
)

aten = torch.ops.aten

OPENCL = "OpenCL C 3.0, section 7.4"
TOSA = "TOSA 1.0"
FAITHFUL = "IEEE 754-2019, 5.4.1, but either neighbour of the exact result (OpenCL C 3.0, section 7.4, allows {:g} ulp)"
"""Of what many chips do not round to nearest."""
MEASURED = "no standard bounds it: at least twice the largest error of Cephes' float32 algorithm measured on the row's domain"


def narrower(allowed: float, reason: str) -> str:
    """Source of a bound that is narrower than the ``allowed`` of OpenCL."""
    return f"{OPENCL}, allows {allowed:g} ulp; {reason}"


def as_documented(allowed: float, units: float) -> str:
    """``narrower``: half a unit more than the largest error of NVIDIA's library, which counts from the rounded result."""
    return narrower(
        allowed, f"the CUDA C++ programming guide documents {units:g} from the rounded result, and so half a unit more"
    )


SINGLES = (torch.float32, torch.float64, *INTS, torch.bool)
"""Dtypes of the special functions that torch does not define for halves."""

SIGNED_ZERO = Exact(signed_zero=True)


def _row(
    name: str,
    target: Any,
    summary: str,
    bound: Bound,
    samples: Sampler,
    *,
    dtypes: tuple[torch.dtype, ...] = ALL,
    result: Result = Result.FLOAT,
    shape: Shape = Shape.BROADCAST,
    reference: Callable[..., Any] | None = None,
    by: Callable[..., Any] | None = None,
    cost: str = "",
    source: str = "",
) -> Prim:
    return Prim(
        name=name,
        target=target,
        family=Family.POINTWISE,
        summary=summary,
        dtypes=dtypes,
        result=result,
        shape=shape,
        bound=bound,
        samples=samples,
        reference=reference,
        decomposition=by,
        decomposition_cost=cost,
        source=source,
    )


def _unary(
    name: str,
    target: Any,
    summary: str,
    bound: Bound,
    samples: Sampler | None = None,
    **rest: Any,
) -> Prim:
    return _row(name, target, summary, bound, samples or unary(), shape=Shape.SAME, **rest)


def _with_c_library(numpy_function: Callable[..., Any], target: Any) -> Callable[..., torch.Tensor]:
    """A reference through the exact ``fmod`` of the C library: torch's vectorised one errs for subnormal divisors."""

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not (x.is_floating_point() or y.is_floating_point()):
            exact: torch.Tensor = target(x, y)
            return exact
        left, right = torch.broadcast_tensors(x.double(), y.double())  # type: ignore[no-untyped-call]
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.asarray(numpy_function(left.numpy(), right.numpy())))

    return reference


def _with_scipy(function: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A reference through scipy, where torch's own function is no better in float64 than in float32.

    ``function`` names it when it is called: ``scipy.special`` loads then, and not where prims are only listed.
    """

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(function(x.double().numpy())))

    return reference


def _bessel_y1(x: torch.Tensor) -> torch.Tensor:
    """scipy's, and -2 / (pi x) for tiny x, where scipy's overflows too soon. The next term of the series, x log(x) / pi, is far
    below the last place there."""
    own = torch.from_numpy(np.asarray(scipy.special.y1(x.double().numpy())))
    tiny = (x.double() > 0) & (x.double() < 1e-150)
    # Both operands tensors: torch divides a number by a tensor through the reciprocal, which overflows.
    return torch.where(tiny, torch.full_like(own, -2 / math.pi) / x.double(), own)


def _polygamma(n: int, x: torch.Tensor) -> torch.Tensor:
    """scipy's for n > 0 and x > 0, where torch's loses half its digits; torch's elsewhere."""
    own = aten.polygamma.default(n, x.double())
    if n == 0:
        return own  # type: ignore[no-any-return]
    return torch.where(x > 0, torch.from_numpy(np.asarray(scipy.special.polygamma(n, x.double().numpy()))), own)


UNIT = Interval(-1.0, 1.0)
POSITIVE = Interval(0.01, 20.0)


def _finite(sampler: Sampler) -> Sampler:
    """Adds the finite special values, for prims whose result at infinity or NaN is unspecified."""

    def sample(context: SampleContext) -> Iterator[Sample]:
        yield from sampler(context)
        if context.dtype.is_floating_point:
            values = specials(context.dtype)
            yield Sample((values[values.isfinite()],), label="finite special values", special=True)
            if context.effort >= Effort.STANDARD:
                values = everywhere(context)
                yield Sample((values[values.isfinite()],), label=EVERYWHERE, special=True)

    return sample


def _moderate(sampler: Sampler) -> Sampler:
    """Adds the special values up to 2.5 and NaN, for functions that oscillate ever faster beyond."""

    def sample(context: SampleContext) -> Iterator[Sample]:
        yield from sampler(context)
        if context.dtype.is_floating_point:
            values = specials(context.dtype)
            yield Sample((values[~(values.abs() > 2.5)],), label="moderate special values", special=True)

    return sample


def _zeta_samples(context: SampleContext) -> Iterator[Sample]:
    yield from binary(Interval(1.2, 10.0), Interval(0.3, 10.0), special=False, mixed=False)(context)
    if context.dtype.is_floating_point:
        x = torch.tensor([1.0, 0.5, 2.0, torch.nan, 2.0, 2.0, 2.5, 3.0], dtype=context.dtype)
        q = torch.tensor([2.0, 2.0, 0.0, 1.0, torch.nan, -3.0, -1.5, 1.0], dtype=context.dtype)
        yield Sample((x, q), label="special values", special=True)


def _gamma_samples(context: SampleContext) -> Iterator[Sample]:
    yield from binary(Interval(0.2, 12.0), Interval(0.0, 15.0), special=False, mixed=False)(context)
    a, x = pairs(torch.tensor([0.0, -0.0, 1.0, 2.0, 3.5, torch.inf, -torch.inf, torch.nan, -1.0], dtype=context.dtype))
    # At zero and infinity torch's kernels give the limit for any other operand, NaN too; a NaN is as good.
    limit = (a.isnan() & ((x == 0) | x.isinf())) | (x.isnan() & a.isinf())
    yield Sample((a[~limit], x[~limit]), label="special values", special=True)


def _polygamma_samples(context: SampleContext) -> Iterator[Sample]:
    orders = (0, 1, 2, 3) if context.effort >= Effort.STANDARD else (1, 2)
    for order in orders:
        yield Sample((order, draw(context, (3, 41), Interval(0.3, 12.0))), label=f"order {order}")
    if context.effort >= Effort.STANDARD:
        yield Sample((1, draw(context, (), Interval(0.3, 12.0))), label="0-d")
        yield Sample((1, draw(context, (0, 3))), label="empty")
        yield Sample((2, draw(context, (5, 7), Interval(0.3, 12.0)).t()), label="transposed")
    if context.dtype.is_floating_point:
        values = torch.tensor([torch.inf, 1.0, 0.5, 30.0], dtype=context.dtype)
        yield Sample((1, values), label="special values", special=True)


def _pow_samples(context: SampleContext) -> Iterator[Sample]:
    if not context.dtype.is_floating_point:
        yield from binary(Interval(-4.0, 4.0), Interval(0.0, 5.0))(context)
        return
    yield from binary(Interval(0.1, 3.0), Interval(-4.0, 4.0), special=False)(context)
    base = draw(context, (33,), Interval(-3.0, 3.0, nonzero=True))
    yield Sample((base, draw(context, (33,), Interval(-4.0, 4.0)).round()), label="negative base")
    info = torch.finfo(context.dtype)
    ends = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -0.5]
    ends += [info.max, info.min, info.smallest_normal, info.smallest_normal * info.eps, -info.smallest_normal / 4]
    yield Sample(pairs(torch.tensor(ends, dtype=torch.float64).to(context.dtype)), label="special values", special=True)


def _quotient_samples(context: SampleContext) -> Iterator[Sample]:
    """div.Tensor_mode: divisors away from zero; the two rounding modes that round."""
    for mode in ("floor", "trunc"):
        for sample in binary(COUNTS, Interval(0.25, 9.0, nonzero=True), special=False, mixed=False)(context):
            yield Sample(sample.args, {"rounding_mode": mode}, f"{sample.label}, {mode}")
        if context.dtype.is_floating_point:
            # Of quotients with more digits than the dtype has, kernels that subtract the remainder first lose the last.
            ends = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -3.0, 6.0, -7.0, 0.5], dtype=context.dtype)
            yield Sample(pairs(ends), {"rounding_mode": mode}, f"special values, {mode}", special=True)


def _of_rounded_quotients(x: torch.Tensor, y: torch.Tensor, *, rounding_mode: str) -> tuple[torch.Tensor, ...]:
    """What div.Tensor_mode may give beside the exact quotient's whole part. torch "rounds the results of the division towards
    zero", and a division has rounded its result already: to the dtype, as torch's own kernels do it, or to float32. 7.25 over
    0.3027 is 23.95, and 24 in bfloat16. Rounding down has no such freedom: it is Python's ``//``, which is exact."""
    dtype = torch.result_type(x, y)
    if rounding_mode != "trunc" or not dtype.is_floating_point:
        return ()
    quotient = x.double() / y.double()
    return tuple(quotient.to(rounded).trunc().to(dtype) for rounded in (dtype, torch.float32) if dtype != torch.float64)


def _where_samples(context: SampleContext) -> Iterator[Sample]:
    for sample in binary()(context):
        x, y = sample.args
        mask = draw(context, aten.add.Tensor(x, y).shape, dtype=torch.bool)
        yield Sample((mask, x, y), label=sample.label, special=sample.special)
    mask = draw(context, (3, 1), dtype=torch.bool)
    yield Sample((mask, draw(context, (4,)), draw(context, ())), label="three shapes")


ROWS = (
    _unary(
        "abs",
        aten.abs.default,
        "|x|",
        SIGNED_ZERO,
        unary(wraps=True),
        dtypes=NUMBERS,
        result=Result.SAME,
        by=elementary.absolute,
        source="IEEE 754-2019, 5.5.1",
    ),
    _unary(
        "acos", aten.acos.default, "arc cosine", in_float32(2.5), unary(UNIT), by=elementary.acos, source=as_documented(4, 2)
    ),
    _unary(
        "acosh",
        aten.acosh.default,
        "inverse hyperbolic cosine",
        in_float32(4),
        unary(Interval(1.0, 50.0)),
        by=elementary.acosh,
        source=f"{OPENCL}; the CUDA C++ programming guide documents as many",
    ),
    _row(
        "add",
        aten.add.Tensor,
        "x + y",
        Exact(),
        binary(wraps=True, numbers=True),
        result=Result.PROMOTE,
        source="IEEE 754-2019, 5.4.1",
    ),
    _unary("asin", aten.asin.default, "arc sine", in_float32(2.5), unary(UNIT), by=elementary.asin, source=as_documented(4, 2)),
    _unary(
        "asinh",
        aten.asinh.default,
        "inverse hyperbolic sine",
        in_float32(3.5),
        unary(wide=Interval(-1e4, 1e4)),
        by=elementary.asinh,
        source=as_documented(4, 3),
    ),
    _unary(
        "atan",
        aten.atan.default,
        "arc tangent",
        in_float32(4),
        unary(),
        by=elementary.atan,
        cost="6 ulp, of atan2",
        source=narrower(5, "ONNX Runtime 1.31.1's kernel is off by 3.8"),
    ),
    _row(
        "atan2",
        aten.atan2.default,
        "angle of the point (y, x): arc tangent of x / y by quadrant",
        in_float32(4),
        binary(),
        source=narrower(6, "by ONNX Runtime 1.31.1's arc tangent it is off by 3.7"),
    ),
    _unary(
        "atanh",
        aten.atanh.default,
        "inverse hyperbolic tangent",
        in_float32(3.5),
        unary(UNIT),
        by=elementary.atanh,
        source=as_documented(5, 3),
    ),
    _unary(
        "ceil",
        aten.ceil.default,
        "smallest whole number not below x",
        SIGNED_ZERO,
        unary(),
        dtypes=NUMBERS,
        result=Result.SAME,
        by=elementary.ceil,
        source=OPENCL,
    ),
    _row(
        "copysign",
        aten.copysign.Tensor,
        "|x| with the sign of y",
        SIGNED_ZERO,
        binary(),
        by=elementary.copysign,
        source=OPENCL,
    ),
    _unary(
        "cos",
        aten.cos.default,
        "cosine",
        in_float32(3),
        unary(wide=Interval(-1e4, 1e4)),
        source=narrower(4, "ONNX Runtime 1.31.1's kernel is off by 2.4"),
    ),
    _unary(
        "cosh",
        aten.cosh.default,
        "hyperbolic cosine",
        in_float32(2.5),
        unary(),
        by=elementary.cosh,
        cost="8 ulp",
        source=as_documented(4, 2),
    ),
    _unary(
        "digamma",
        aten.digamma.default,
        "derivative of log gamma",
        in_float32(12, absolute=12),
        unary(Interval(0.05, 30.0)),
        source=MEASURED,
    ),
    _row(
        "div",
        aten.div.Tensor,
        "x / y",
        in_float32(1),
        binary(COUNTS, Interval(0.25, 9.0, nonzero=True), numbers=True),
        source=FAITHFUL.format(2.5),
    ),
    _row(
        "div.Tensor_mode",
        aten.div.Tensor_mode,
        "x / y rounded down (floor) or toward zero (trunc)",
        Exact(others=_of_rounded_quotients),
        by_zero(_quotient_samples),
        dtypes=NUMBERS,
        result=Result.PROMOTE,
        source="Python's // for floor; C's integer division for trunc, in which the quotient may have been rounded before",
    ),
    _unary(
        "erf",
        aten.erf.default,
        "error function",
        in_float32(10),
        unary(),
        source=narrower(
            16, f"{TOSA} allows 5: a quotient of polynomials in float32, as GPUs compute it quickest, is off by 7.7"
        ),
    ),
    _unary(
        "erfc",
        aten.erfc.default,
        "1 - erf(x)",
        in_float32(8),
        unary(Interval(-3.0, 5.0)),
        by=elementary.erfc,
        cost="cancels for x > 0.5: relative error grows as 1 / erfc(x)",
        source=narrower(16, "a vectorised one in float32 is off by 5.8 (measured)"),
    ),
    _unary(
        "erfinv", aten.erfinv.default, "inverse error function", in_float32(8), unary(Interval(-0.99, 0.99)), source=MEASURED
    ),
    _unary(
        "exp",
        aten.exp.default,
        "e**x",
        in_float32(2.5),
        unary(wide=Interval(-80.0, 80.0)),
        source=as_documented(3, 2) + f"; {TOSA} has 1 + |x|, fewer where |x| < 1.5",
    ),
    _unary(
        "exp2",
        aten.exp2.default,
        "2**x",
        in_float32(2.5),
        unary(wide=Interval(-120.0, 120.0)),
        by=elementary.exp2,
        source=as_documented(3, 2),
    ),
    _unary(
        "expm1",
        aten.expm1.default,
        "e**x - 1, accurate near zero",
        in_float32(2),
        unary(wide=Interval(-1e-3, 1e-3)),
        by=elementary.expm1,
        cost="8 ulp",
        source=narrower(3, "1.5 by the CUDA C++ programming guide, and half a unit for vectorised ones (1.4 measured)"),
    ),
    _unary(
        "floor",
        aten.floor.default,
        "largest whole number not above x",
        SIGNED_ZERO,
        unary(),
        dtypes=NUMBERS,
        result=Result.SAME,
        by=elementary.floor,
        source=OPENCL,
    ),
    _row(
        "fmax",
        aten.fmax.default,
        "the larger operand, NaN counting as missing",
        Exact(),
        binary(),
        result=Result.PROMOTE,
        by=elementary.fmax,
        source=OPENCL,
    ),
    _row(
        "fmin",
        aten.fmin.default,
        "the smaller operand, NaN counting as missing",
        Exact(),
        binary(),
        result=Result.PROMOTE,
        by=elementary.fmin,
        source=OPENCL,
    ),
    _row(
        "fmod",
        aten.fmod.Tensor,
        "x - y trunc(x / y), the remainder with x's sign",
        Exact(),
        by_zero(binary(COUNTS, Interval(0.25, 9.0, nonzero=True))),
        dtypes=NUMBERS,
        result=Result.PROMOTE,
        reference=_with_c_library(np.fmod, aten.fmod.Tensor),
        source=OPENCL,
    ),
    _unary(
        "frexp",
        aten.frexp.Tensor,
        "mantissa in [0.5, 1) and int32 exponent: x = mantissa 2**exponent",
        Exact(),
        _finite(unary(special=False)),
        dtypes=FLOATS,
        result=Result.OPERATOR,
        source=OPENCL,
    ),
    _row(
        "gcd",
        aten.gcd.default,
        "greatest common divisor, not negative",
        Exact(),
        binary(Interval(-60.0, 60.0)),
        dtypes=INTS,
        result=Result.PROMOTE,
        source="Euclid, Elements, book VII",
    ),
    _row(
        "hypot",
        aten.hypot.default,
        "sqrt(x**2 + y**2) without intermediate overflow",
        in_float32(3.5),
        binary(),
        dtypes=FLOATS,
        result=Result.PROMOTE,
        by=elementary.hypot,
        source=as_documented(4, 3),
    ),
    _unary(
        "i0", aten.i0.default, "modified Bessel function of the first kind, order 0", in_float32(10), unary(), source=MEASURED
    ),
    _row(
        "igamma",
        aten.igamma.default,
        "regularised lower incomplete gamma function P(a, x)",
        in_float32(16, absolute=16),
        _gamma_samples,
        dtypes=FLOATS,
        result=Result.PROMOTE,
        source=MEASURED,
    ),
    _row(
        "igammac",
        aten.igammac.default,
        "regularised upper incomplete gamma function Q(a, x)",
        in_float32(16, absolute=16),
        _gamma_samples,
        dtypes=FLOATS,
        result=Result.PROMOTE,
        by=elementary.igammac,
        cost="absolute error of 1 ulp of 1: cancels where Q is small",
        source=MEASURED,
    ),
    _unary(
        "lgamma",
        aten.lgamma.default,
        "log of the absolute value of gamma(x)",
        in_float32(6, absolute=6),
        unary(Interval(0.05, 30.0)),
        source=MEASURED,
    ),
    _unary(
        "log",
        aten.log.default,
        "natural logarithm",
        in_float32(3),
        unary(POSITIVE, wide=Interval(1e-30, 1e-20)),
        source=f"{OPENCL}; ONNX Runtime 1.31.1's kernel needs as many, beside other arithmetic",
    ),
    _unary(
        "log10",
        aten.log10.default,
        "logarithm to base 10",
        in_float32(2.5),
        unary(POSITIVE),
        by=elementary.log10,
        cost="4 ulp",
        source=as_documented(3, 2),
    ),
    _unary(
        "log1p",
        aten.log1p.default,
        "log(1 + x), accurate near zero",
        in_float32(2),
        unary(Interval(-0.9, 9.0), wide=Interval(-1e-3, 1e-3)),
        by=elementary.log1p,
        cost="5 ulp",
        source=OPENCL,
    ),
    _unary(
        "log2",
        aten.log2.default,
        "logarithm to base 2",
        in_float32(2),
        unary(POSITIVE),
        by=elementary.log2,
        cost="4 ulp",
        source=narrower(3, "1.5 by the CUDA C++ programming guide, and half a unit for vectorised ones (1.2 measured)"),
    ),
    _row(
        "maximum",
        aten.maximum.default,
        "the larger operand; NaN where either is NaN",
        Exact(),
        binary(),
        result=Result.PROMOTE,
        by=elementary.maximum,
        source="IEEE 754-2019, 9.6",
    ),
    _row(
        "minimum",
        aten.minimum.default,
        "the smaller operand; NaN where either is NaN",
        Exact(),
        binary(),
        result=Result.PROMOTE,
        by=elementary.minimum,
        source="IEEE 754-2019, 9.6",
    ),
    _row(
        "mul",
        aten.mul.Tensor,
        "x y",
        SIGNED_ZERO,
        binary(wraps=True, numbers=True),
        result=Result.PROMOTE,
        source="IEEE 754-2019, 5.4.1",
    ),
    _unary(
        "neg",
        aten.neg.default,
        "-x",
        SIGNED_ZERO,
        unary(wraps=True),
        dtypes=NUMBERS,
        result=Result.SAME,
        by=elementary.negate,
        source="IEEE 754-2019, 5.5.1",
    ),
    _row(
        "nextafter",
        aten.nextafter.default,
        "the next value of the dtype from x toward y",
        SIGNED_ZERO,
        binary(mixed=False),
        dtypes=FLOATS,
        result=Result.PROMOTE,
        reference=OwnDtype(aten.nextafter.default),
        source=OPENCL,
    ),
    _row(
        "polygamma",
        aten.polygamma.default,
        "n-th derivative of digamma(x)",
        in_float32(16, absolute=16),
        _polygamma_samples,
        shape=Shape.SAME,
        reference=_polygamma,
        source=MEASURED,
    ),
    _row(
        "pow",
        aten.pow.Tensor_Tensor,
        "x**y",
        in_float32(8),
        _pow_samples,
        dtypes=NUMBERS,
        result=Result.PROMOTE,
        source=narrower(
            16,
            f"NVIDIA's library is documented with 4 to 8, by version; {TOSA} has 2 (1 + |y log x|), fewer for small |y log x|",
        ),
    ),
    _unary(
        "reciprocal",
        aten.reciprocal.default,
        "1 / x",
        in_float32(1),
        unary(Interval(0.1, 9.0)),
        by=elementary.reciprocal,
        source=f"{TOSA}, RECIPROCAL: " + FAITHFUL.format(2.5),
    ),
    _unary(
        "relu",
        aten.relu.default,
        "max(x, 0)",
        Exact(),
        unary(),
        dtypes=NUMBERS,
        result=Result.SAME,
        by=elementary.relu,
        source=BY_DEFINITION,
    ),
    _row(
        "remainder",
        aten.remainder.Tensor,
        "x - y floor(x / y), the remainder with y's sign",
        in_float32(1),
        by_zero(binary(COUNTS, Interval(0.25, 9.0, nonzero=True))),
        dtypes=NUMBERS,
        result=Result.PROMOTE,
        reference=_with_c_library(np.remainder, aten.remainder.Tensor),
        by=elementary.remainder,
        source="fmod is exact by definition; adding the divisor is one rounding",
    ),
    _unary(
        "round",
        aten.round.default,
        "nearest whole number, ties to even",
        SIGNED_ZERO,
        unary(),
        dtypes=NUMBERS,
        result=Result.SAME,
        source="IEEE 754-2019, 5.9",
    ),
    _unary(
        "rsqrt",
        aten.rsqrt.default,
        "1 / sqrt(x)",
        in_float32(2),
        unary(POSITIVE),
        by=elementary.rsqrt,
        cost="4 ulp",
        source=f"{OPENCL}; {TOSA}, RSQRT",
    ),
    _unary(
        "sigmoid",
        aten.sigmoid.default,
        "1 / (1 + exp(-x))",
        in_float32(5),
        unary(wide=Interval(-30.0, 30.0)),
        by=elementary.sigmoid,
        source=f"exp (2.5 ulp) and a quick quotient (2 ulp, PTX ISA, div.full), errors added; {TOSA} has 2 (1 + |x|)",
    ),
    _unary(
        "sign",
        aten.sign.default,
        "-1, 0 or 1 by the sign of x; 0 for NaN",
        Exact(),
        unary(),
        result=Result.SAME,
        by=elementary.sign,
        source=BY_DEFINITION,
    ),
    _unary(
        "signbit",
        aten.signbit.default,
        "whether the sign bit is set, that of -0.0 and NaN included",
        Exact(),
        unary(),
        result=Result.BOOL,
        source=OPENCL,
    ),
    _unary(
        "sin",
        aten.sin.default,
        "sine",
        in_float32(3),
        unary(wide=Interval(-1e4, 1e4)),
        source=narrower(4, "ONNX Runtime 1.31.1's kernel is off by 2.4"),
    ),
    _unary(
        "sinh",
        aten.sinh.default,
        "hyperbolic sine",
        in_float32(3.5),
        unary(),
        by=elementary.sinh,
        cost="10 ulp",
        source=as_documented(4, 3),
    ),
    _unary(
        "special_airy_ai",
        aten.special_airy_ai.default,
        "Airy function Ai",
        in_float32(16, absolute=16),
        _moderate(unary(Interval(-6.0, 6.0), special=False)),
        dtypes=SINGLES,
        reference=_with_scipy(lambda x: scipy.special.airy(x)[0]),
        source=MEASURED,
    ),
    _unary(
        "special_bessel_j0",
        aten.special_bessel_j0.default,
        "Bessel function of the first kind, order 0",
        in_float32(8, absolute=8),
        unary(Interval(-15.0, 15.0)),
        dtypes=SINGLES,
        reference=_with_scipy(lambda x: scipy.special.j0(x)),
        source=MEASURED,
    ),
    _unary(
        "special_bessel_j1",
        aten.special_bessel_j1.default,
        "Bessel function of the first kind, order 1",
        in_float32(8, absolute=8),
        unary(Interval(-15.0, 15.0)),
        dtypes=SINGLES,
        reference=_with_scipy(lambda x: scipy.special.j1(x)),
        source=MEASURED,
    ),
    _unary(
        "special_bessel_y0",
        aten.special_bessel_y0.default,
        "Bessel function of the second kind, order 0",
        in_float32(8, absolute=8),
        unary(Interval(0.1, 15.0)),
        dtypes=SINGLES,
        reference=_with_scipy(lambda x: scipy.special.y0(x)),
        source=MEASURED,
    ),
    _unary(
        "special_bessel_y1",
        aten.special_bessel_y1.default,
        "Bessel function of the second kind, order 1",
        in_float32(8, absolute=8),
        unary(Interval(0.1, 15.0)),
        dtypes=SINGLES,
        reference=_bessel_y1,
        source=MEASURED,
    ),
    _unary(
        "special_erfcx",
        aten.special_erfcx.default,
        "exp(x**2) erfc(x)",
        in_float32(8),
        unary(Interval(-3.0, 20.0)),
        dtypes=SINGLES,
        source=OPENCL + " (erfc), with the bound of erfc",
    ),
    _unary(
        "special_i0e",
        aten.special_i0e.default,
        "exp(-|x|) i0(x)",
        in_float32(10),
        unary(Interval(-20.0, 20.0)),
        source=MEASURED,
    ),
    _unary(
        "special_i1",
        aten.special_i1.default,
        "modified Bessel function of the first kind, order 1",
        in_float32(32),
        unary(),
        source=MEASURED,
    ),
    _unary(
        "special_i1e",
        aten.special_i1e.default,
        "exp(-|x|) i1(x)",
        in_float32(32),
        unary(Interval(-20.0, 20.0)),
        source=MEASURED,
    ),
    _unary(
        "special_modified_bessel_i0",
        aten.special_modified_bessel_i0.default,
        "modified Bessel function of the first kind, order 0 (torch has it twice)",
        in_float32(10),
        unary(),
        dtypes=SINGLES,
        by=elementary.modified_bessel_i0,
        source=MEASURED,
    ),
    _unary(
        "special_modified_bessel_i1",
        aten.special_modified_bessel_i1.default,
        "modified Bessel function of the first kind, order 1 (torch has it twice)",
        in_float32(32),
        unary(),
        dtypes=SINGLES,
        by=elementary.modified_bessel_i1,
        source=MEASURED,
    ),
    _unary(
        "special_modified_bessel_k0",
        aten.special_modified_bessel_k0.default,
        "modified Bessel function of the second kind, order 0",
        in_float32(20),
        unary(Interval(0.1, 10.0)),
        dtypes=SINGLES,
        source=MEASURED,
    ),
    _unary(
        "special_modified_bessel_k1",
        aten.special_modified_bessel_k1.default,
        "modified Bessel function of the second kind, order 1",
        in_float32(12),
        unary(Interval(0.1, 10.0)),
        dtypes=SINGLES,
        source=MEASURED,
    ),
    _unary(
        "special_ndtri",
        aten.special_ndtri.default,
        "inverse of the standard normal distribution function",
        in_float32(8, absolute=8),
        unary(Interval(0.001, 0.999)),
        dtypes=SINGLES,
        by=elementary.ndtri,
        source=MEASURED,
    ),
    _unary(
        "special_scaled_modified_bessel_k0",
        aten.special_scaled_modified_bessel_k0.default,
        "exp(x) k0(x)",
        in_float32(26),
        unary(Interval(0.1, 10.0)),
        dtypes=SINGLES,
        source=MEASURED,
    ),
    _unary(
        "special_scaled_modified_bessel_k1",
        aten.special_scaled_modified_bessel_k1.default,
        "exp(x) k1(x)",
        in_float32(12),
        unary(Interval(0.1, 10.0)),
        dtypes=SINGLES,
        source=MEASURED,
    ),
    _unary(
        "special_spherical_bessel_j0",
        aten.special_spherical_bessel_j0.default,
        "sin(x) / x, 1 at zero",
        in_float32(8),
        unary(Interval(-9.0, 9.0)),
        dtypes=SINGLES,
        by=elementary.spherical_bessel_j0,
        source="sin (3 ulp, as many as 6 of the quotient) and a quick quotient (2 ulp, PTX ISA, div.full)",
    ),
    _row(
        "special_zeta",
        aten.special_zeta.default,
        "Hurwitz zeta function: sum over k >= 0 of (k + q)**-x",
        in_float32(8),
        _zeta_samples,
        dtypes=SINGLES,
        source=MEASURED,
    ),
    _unary("sqrt", aten.sqrt.default, "square root", in_float32(1), unary(Interval(0.0, 20.0)), source=FAITHFUL.format(3)),
    _row(
        "sub",
        aten.sub.Tensor,
        "x - y",
        Exact(),
        binary(wraps=True, numbers=True),
        dtypes=NUMBERS,
        result=Result.PROMOTE,
        by=elementary.subtract,
        source="IEEE 754-2019, 5.4.1",
    ),
    _unary(
        "tan",
        aten.tan.default,
        "tangent",
        in_float32(4.5),
        unary(),
        by=elementary.tan,
        cost="10.5 ulp",
        source=as_documented(5, 4),
    ),
    _unary(
        "tanh",
        aten.tanh.default,
        "hyperbolic tangent",
        in_float32(5),
        unary(wide=Interval(-30.0, 30.0)),
        by=elementary.tanh,
        source=f"{OPENCL}; ONNX Runtime 1.31.1's kernel needs as many, beside other arithmetic",
    ),
    _unary(
        "trunc",
        aten.trunc.default,
        "whole number next to x toward zero",
        SIGNED_ZERO,
        unary(),
        dtypes=NUMBERS,
        result=Result.SAME,
        source=OPENCL,
    ),
    _row(
        "where",
        aten.where.self,
        "x where the condition holds, y elsewhere",
        SIGNED_ZERO,
        _where_samples,
        result=Result.PROMOTE,
        source=BY_DEFINITION,
    ),
)
"""The pointwise prims."""
