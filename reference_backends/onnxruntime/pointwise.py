"""Rules of pointwise, comparison and conversion prims.

Kernels of ONNX Runtime that are less accurate than the prim's bound are not used: those functions are computed in float64
and rounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.onnxruntime.builder import ELEMENT_TYPES, Builder, Outline, Rule, Untranslatable, Value
from vendor_sdk import FLOAT8

FLOAT, DOUBLE, INT64, INT32, UINT8, BOOL = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


# Functions of one floating operand; integers and bool become floating first


def direct(kind: str) -> Rule:
    """ONNX's own operator, in the result's dtype."""

    def rule(b: Builder, out: Outline, x: Value) -> Value:
        return b.op(kind, b.cast(x, out.dtype))

    return rule


def in_double(function: Callable[[Builder, Value], Value]) -> Rule:
    """A formula computed in float64 and rounded to the result's dtype."""

    def rule(b: Builder, out: Outline, x: Value) -> Value:
        return b.cast(function(b, b.cast(x, DOUBLE)), out.dtype)

    return rule


def in_single(function: Callable[[Builder, Value], Value], double: Rule | str) -> Rule:
    """A formula in float32 for results no wider than that; for float64 another rule, or the reason why there is none."""

    def rule(b: Builder, out: Outline, x: Value) -> Value:
        if out.dtype != DOUBLE:
            return b.cast(function(b, b.cast(x, FLOAT)), out.dtype)
        if isinstance(double, str):
            raise Untranslatable(double)
        result: Value = double(b, out, x)
        return result

    return rule


def single_only(kind: str, reason: str = "") -> Rule:
    """ONNX's own operator in float32: in float64 ONNX Runtime has no kernel for it, or none that is exact enough."""
    return in_single(lambda b, x: b.op(kind, x), reason or f"ONNX Runtime has no float64 kernel for {kind}")


INEXACT = "ONNX Runtime's float64 sine and cosine lose digits near their zeros"


def _number(b: Builder, value: float) -> Value:
    return b.constant(value, DOUBLE)


def _expm1(b: Builder, x: Value) -> Value:
    """Kahan's: with u = exp(x), (u - 1) x / log(u) corrects the rounding of u. https://people.eecs.berkeley.edu/~wkahan/"""
    one = _number(b, 1)
    u = b.op("Exp", x)
    difference = b.op("Sub", u, one)
    corrected = b.op("Div", b.op("Mul", difference, x), b.op("Log", u))
    # Where u is 0 or infinite the correction is 0 / 0 or the like; where u is 1, x itself is the answer.
    large = b.compare("Greater", b.op("Abs", x), _number(b, 0.5))
    return b.where(b.opposite(b.compare("Equal", u, one)), b.where(large, difference, corrected), x)


def _log1p(b: Builder, x: Value) -> Value:
    """Kahan's: with u = 1 + x, log(u) x / (u - 1) corrects the rounding of u."""
    one = _number(b, 1)
    u = b.op("Add", x, one)
    log = b.op("Log", u)
    corrected = b.op("Div", b.op("Mul", log, x), b.op("Sub", u, one))
    large = b.compare("Greater", b.op("Abs", x), _number(b, 0.5))
    return b.where(b.opposite(b.compare("Equal", u, one)), b.where(large, log, corrected), x)


def _sinh(b: Builder, x: Value) -> Value:
    """(m + m / (m + 1)) / 2 with m = expm1(|x|); exp(|x| / 2)**2 / 2 where exp(|x|) may overflow."""
    size = b.op("Abs", x)
    m = _expm1(b, size)
    near = b.op("Mul", b.op("Add", m, b.op("Div", m, b.op("Add", m, _number(b, 1)))), _number(b, 0.5))
    value = b.where(b.compare("Greater", size, _number(b, 30)), _half_exp(b, size), near)
    return _odd(b, x, value)


def _odd(b: Builder, x: Value, value: Value) -> Value:
    """The value of an odd function at ``x`` from that at its absolute value; x itself, with its sign, at zero and NaN."""
    zero = _number(b, 0)
    below = b.where(b.compare("Less", x, zero), b.op("Neg", value), x)
    return b.where(b.compare("Greater", x, zero), value, below)


def _half_exp(b: Builder, size: Value) -> Value:
    root = b.op("Exp", b.op("Mul", size, _number(b, 0.5)))
    return b.op("Mul", b.op("Mul", root, _number(b, 0.5)), root)


def _cosh(b: Builder, x: Value) -> Value:
    size = b.op("Abs", x)
    both = b.op("Add", b.op("Exp", size), b.op("Exp", b.op("Neg", size)))
    near = b.op("Mul", both, _number(b, 0.5))
    return b.where(b.compare("Greater", size, _number(b, 30)), _half_exp(b, size), near)


def one_and_exp(b: Builder, x: Value) -> Value:
    """1 + exp(-x), the denominator of the sigmoid. ONNX Runtime's Sigmoid has no digits where the result is small."""
    return b.op("Add", b.op("Exp", b.op("Neg", x)), b.constant(1, x.dtype))


def _sigmoid(b: Builder, x: Value) -> Value:
    """z / (1 + z) with z = exp(x), where x is so large that this is 1 with a smaller one, which does not overflow.
    1 / (1 + 1 / z) would have no subnormals, whose product with x may be a normal number. Softsign is z / (1 + z) of what is
    not negative, in ONNX Runtime for float32 alone."""
    z = b.op("Exp", b.op("Min", x, b.constant(80 if x.dtype == FLOAT else 700, x.dtype)))
    if x.dtype == FLOAT:
        return b.op("Softsign", z)
    return b.op("Div", z, b.op("Add", z, b.constant(1, x.dtype)))


def _rsqrt(b: Builder, x: Value) -> Value:
    return b.op("Div", b.constant(1, x.dtype), b.op("Sqrt", x))


def _scaled_log(base: float) -> Callable[[Builder, Value], Value]:
    """In float32 the error of ONNX Runtime's Log, one and a half units, grows to four by the division."""

    def formula(b: Builder, x: Value) -> Value:
        return b.op("Div", b.op("Log", x), b.constant(math.log(base), x.dtype))

    return formula


def _exp2(b: Builder, x: Value) -> Value:
    return b.op("Pow", b.constant(2, x.dtype), x)


def _tanh_single(b: Builder, x: Value) -> Value:
    """ONNX Runtime's float32 kernel is off by up to 5.3 units and loses digits of subnormals, its float64 one by none of
    float32. That does not matter to arithmetic that goes on with the result, whose own rounding is coarser."""
    if b.goes_on:
        return b.op("Tanh", x)
    return b.cast(b.op("Tanh", b.cast(x, DOUBLE)), x.dtype)


def _log(b: Builder, out: Outline, x: Value) -> Value:
    """ONNX Runtime's float32 kernel is off by up to 3.05 units near 1.13, which matters as with ``_tanh_single``."""
    if out.dtype == FLOAT and not b.goes_on:
        return b.cast(b.op("Log", b.cast(x, DOUBLE)), FLOAT)
    return b.op("Log", b.cast(x, out.dtype))


def _asin(b: Builder, x: Value) -> Value:
    """ONNX Runtime's float32 kernel, which is off by up to 4.3 units, and a step of Newton's method in float64."""
    y, wanted = b.cast(b.op("Asin", x), DOUBLE), b.cast(x, DOUBLE)
    step = b.op("Div", b.op("Sub", wanted, b.op("Sin", y)), b.op("Cos", y))
    return b.where(b.compare("Equal", x, b.constant(0, x.dtype)), x, b.cast(b.op("Add", y, step), x.dtype))


def _acos(b: Builder, x: Value) -> Value:
    """As ``_asin``; at one the result is exact and has no derivative."""
    y, wanted = b.cast(b.op("Acos", x), DOUBLE), b.cast(x, DOUBLE)
    step = b.op("Div", b.op("Sub", b.op("Cos", y), wanted), b.op("Sin", y))
    return b.cast(b.where(b.compare("Equal", y, _number(b, 0)), y, b.op("Add", y, step)), x.dtype)


def erfcx_of_positive(b: Builder, x: Value) -> Value:
    """exp(x**2) erfc(x) for x >= 0, in float64: t exp(p(2 t - 1)) with t = 2 / (2 + x).

    p is log(exp(x**2) erfc(x) / t), interpolated at 400 Chebyshev nodes in degree 14: the relative error is below 4e-10.
    """
    t = b.op("Div", _number(b, 2), b.op("Add", x, _number(b, 2)))
    s = b.op("Sub", b.op("Add", t, t), _number(b, 1))
    total = _number(b, _ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        total = b.op("Add", b.op("Mul", total, s), _number(b, coefficient))
    return b.op("Mul", t, b.op("Exp", total))


def _erfc(b: Builder, x: Value) -> Value:
    """By ``erfcx_of_positive``, and 2 minus that where x is negative."""
    size = b.op("Abs", x)
    value = b.op("Mul", erfcx_of_positive(b, size), b.op("Exp", b.op("Neg", b.op("Mul", size, size))))
    return b.where(b.compare("Less", x, _number(b, 0)), b.op("Sub", _number(b, 2), value), value)


_ERFC = (
    -0.671794084160358,
    0.6726432205460086,
    0.047343320367393776,
    -0.04689548216100838,
    -0.009872980459474386,
    0.008823558177689633,
    0.0017613393657182966,
    -0.002339277723951063,
    -0.00015613427640338804,
    0.0006579538472120071,
    -7.119730778044889e-05,
    -0.00015463379009751863,
    4.1795892650001566e-05,
    2.0723070650871056e-05,
    -8.12125396223824e-06,
)


def _tanh(b: Builder, x: Value) -> Value:
    """m / (m + 2) with m = expm1(2 |x|); 1 where that rounds to 1."""
    size = b.op("Abs", x)
    m = _expm1(b, b.op("Mul", size, _number(b, 2)))
    value = b.op("Div", m, b.op("Add", m, _number(b, 2)))
    value = b.where(b.compare("Greater", size, _number(b, 20)), _number(b, 1), value)
    return _odd(b, x, value)


def _sinc(b: Builder, x: Value) -> Value:
    """sin(x) / x; 1 at zero, 0 at the infinities."""
    zero = b.compare("Equal", x, b.constant(0, x.dtype))
    far = b.op("IsInf", x, dtype=BOOL)
    quotient = b.op("Div", b.op("Sin", x), x)
    return b.where(zero, b.constant(1, x.dtype), b.where(far, b.constant(0, x.dtype), quotient))


# Rounding and signs


def _rounding(kind: str) -> Rule:
    def rule(b: Builder, out: Outline, x: Value) -> Value:
        return b.op(kind, x) if out.dtype.is_floating_point else b.op("Identity", x)

    return rule


def truncated(b: Builder, x: Value) -> Value:
    """Toward zero; keeps the sign of zeros."""
    return b.where(b.compare("Greater", x, b.constant(0, x.dtype)), b.op("Floor", x), b.op("Ceil", x))


def _trunc(b: Builder, out: Outline, x: Value) -> Value:
    return truncated(b, x) if out.dtype.is_floating_point else b.op("Identity", x)


def _neg(b: Builder, out: Outline, x: Value) -> Value:
    return b.op("Sub", b.constant(0, UINT8), x) if out.dtype == UINT8 else b.op("Neg", x)


def _sign(b: Builder, out: Outline, x: Value) -> Value:
    if out.dtype == BOOL:
        return b.op("Identity", x)
    sign = b.op("Sign", x)
    return b.where(b.is_nan(x), b.constant(0, out.dtype), sign) if out.dtype.is_floating_point else sign


def _relu(b: Builder, out: Outline, x: Value) -> Value:
    if x.dtype in (FLOAT, DOUBLE):
        return b.floored(b.op("Relu", x))  # a NaN passes, in fused convolutions too, which ONNX leaves open
    zero = b.constant(0, x.dtype)
    return b.where(b.compare("Less", x, zero), zero, x)


def _atan2(b: Builder, out: Outline, y: Any, x: Any) -> Value:
    """From the arc tangent of |y| / |x| in the first quadrant; zeros count with their signs."""
    if out.dtype == DOUBLE:
        raise Untranslatable("ONNX Runtime has no float64 kernel for Atan")
    rise, run = (b.cast(b.tensor(each, out.dtype), DOUBLE) for each in (y, x))
    height, width = b.op("Abs", rise), b.op("Abs", run)
    infinite = b.op("And", b.op("IsInf", height, dtype=BOOL), b.op("IsInf", width, dtype=BOOL))
    slope = b.where(infinite, _number(b, 1), b.op("Div", height, width))
    both = b.op("And", b.compare("Equal", height, _number(b, 0)), b.compare("Equal", width, _number(b, 0)))
    slope = b.where(both, _number(b, 0), slope)
    angle = b.cast(b.op("Atan", b.cast(slope, FLOAT)), DOUBLE)
    angle = b.where(_negative(b, run), b.op("Sub", _number(b, math.pi), angle), angle)
    sign = b.where(_negative(b, rise), _number(b, -1), _number(b, 1))
    return b.cast(b.op("Mul", angle, sign), out.dtype)


def _negative(b: Builder, x: Value) -> Value:
    """Whether x is below zero or -0.0."""
    zero = b.constant(0, x.dtype)
    below_infinity = b.compare("Less", b.op("Div", b.constant(1, x.dtype), x), zero)
    return b.op("Or", b.compare("Less", x, zero), below_infinity)


# Arithmetic of two operands


def _add(b: Builder, out: Outline, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    left, right = b.tensor(x, out.dtype), b.tensor(y, out.dtype)
    if out.dtype == BOOL:
        return b.op("Or", left, right) if alpha else b.op("Identity", _broadcast_first(b, left, right))
    return b.op("Add", left, _scaled(b, right, alpha))


def _broadcast_first(b: Builder, left: Value, right: Value) -> Value:
    nothing = b.op("Xor", right, right)
    return b.op("Or", left, nothing)


def _sub(b: Builder, out: Outline, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return b.op("Sub", b.tensor(x, out.dtype), _scaled(b, b.tensor(y, out.dtype), alpha))


def _scaled(b: Builder, value: Value, alpha: Any) -> Value:
    if not isinstance(alpha, Value) and alpha == 1:
        return value
    return b.op("Mul", value, b.tensor(alpha, value.dtype))


def _mul(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    left, right = b.tensor(x, out.dtype), b.tensor(y, out.dtype)
    if out.dtype == BOOL:
        return b.op("And", left, right)
    return b.op("Mul", left, right)


def _div(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    return b.op("Div", b.tensor(x, out.dtype), b.tensor(y, out.dtype))


def _div_mode(b: Builder, out: Outline, x: Any, y: Any, *, rounding_mode: str | None) -> Value:
    left, right = b.tensor(x, out.dtype), b.tensor(y, out.dtype)
    if rounding_mode is None:
        return b.op("Div", left, right)
    if out.dtype.is_floating_point:
        if rounding_mode == "floor":
            return _floor_divide(b, left, right)
        return truncated(b, b.op("Div", left, right))
    if rounding_mode == "trunc":
        return divided(b, left, right)[0]
    return floor_quotient(b, left, right)


def floor_quotient(b: Builder, left: Value, right: Value) -> Value:
    """Integer quotient rounded down."""
    quotient, remainder = divided(b, left, right)
    if left.dtype == UINT8:
        return quotient
    zero = b.constant(0, left.dtype)
    differ = b.op("Xor", b.compare("Less", left, zero), b.compare("Less", right, zero))
    below = b.op("And", differ, b.invert(b.compare("Equal", remainder, zero)))
    return b.op("Sub", quotient, b.cast(below, left.dtype))


def divided(b: Builder, left: Value, right: Value) -> tuple[Value, Value]:
    """Integer quotient toward zero and its remainder (Mod with ``fmod`` is computed in float64, and has 53 bits).

    The smallest integer divided by -1 traps in the processor, so that divisor becomes 1 and the quotient is negated.
    """
    if left.dtype == UINT8:
        return b.op("Div", left, right), b.op("Mod", left, right)
    trap = b.compare("Equal", right, b.constant(-1, right.dtype))
    safe = b.where(trap, b.constant(1, right.dtype), right)
    quotient = b.op("Div", left, safe)
    return b.where(trap, b.op("Neg", quotient), quotient), b.op("Sub", left, b.op("Mul", quotient, safe))


def _floor_divide(b: Builder, left: Value, right: Value) -> Value:
    """floor(x / y) without the rounding of x / y: from the exact remainder, as Python divides floats."""
    zero = b.constant(0, left.dtype)
    one = b.constant(1, left.dtype)
    mod = b.op("Mod", left, right, fmod=1)
    quotient = b.op("Div", b.op("Sub", left, mod), right)
    differ = b.op("Xor", b.compare("Less", mod, zero), b.compare("Less", right, zero))
    below = b.op("And", differ, b.invert(b.compare("Equal", mod, zero)))
    quotient = b.where(below, b.op("Sub", quotient, one), quotient)
    floor = b.op("Floor", quotient)
    up = b.compare("Greater", b.op("Sub", quotient, floor), b.constant(0.5, left.dtype))
    floor = b.where(up, b.op("Add", floor, one), floor)
    return b.where(b.compare("Equal", right, zero), b.op("Div", left, right), floor)


def _fmod(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    left, right = b.tensor(x, out.dtype), b.tensor(y, out.dtype)
    return b.op("Mod", left, right, fmod=1) if out.dtype.is_floating_point else divided(b, left, right)[1]


def _remainder(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    mod, right = _fmod(b, out, x, y), b.tensor(y, out.dtype)
    if out.dtype == UINT8:
        return mod
    zero = b.constant(0, out.dtype)
    differ = b.op("Xor", b.compare("Less", mod, zero), b.compare("Less", right, zero))
    wrong = b.op("And", differ, b.invert(b.compare("Equal", mod, zero)))
    return b.where(wrong, b.op("Add", mod, right), mod)


def _pow(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    if not out.dtype.is_floating_point:
        raise Untranslatable("ONNX Runtime computes integer powers in float64")
    left, right = (b.cast(b.tensor(each, out.dtype), DOUBLE) for each in (x, y))
    return b.cast(b.op("Pow", left, right), out.dtype)


def _extreme(kind: str, gate: str) -> Rule:
    def rule(b: Builder, out: Outline, x: Any, y: Any) -> Value:
        return b.op(gate if out.dtype == BOOL else kind, b.tensor(x, out.dtype), b.tensor(y, out.dtype))

    return rule


def _extreme_of_numbers(kind: str, gate: str) -> Rule:
    """A NaN counts as missing."""
    plain = _extreme(kind, gate)

    def rule(b: Builder, out: Outline, x: Any, y: Any) -> Value:
        if not out.dtype.is_floating_point:
            return plain(b, out, x, y)  # type: ignore[no-any-return]
        left, right = b.tensor(x, out.dtype), b.tensor(y, out.dtype)
        return b.where(b.is_nan(left), right, b.where(b.is_nan(right), left, b.op(kind, left, right)))

    return rule


def _hypot(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    """large sqrt(1 + (small / large)**2), which overflows only where the result does."""
    left, right = (b.op("Abs", b.cast(b.tensor(each, out.dtype), DOUBLE)) for each in (x, y))
    large, small = b.op("Max", left, right), b.op("Min", left, right)
    ratio = b.op("Div", small, large)
    value = b.op("Mul", large, b.op("Sqrt", b.op("Add", b.op("Mul", ratio, ratio), _number(b, 1))))
    value = b.where(b.compare("Equal", large, _number(b, 0)), _number(b, 0), value)
    infinite = b.op("Or", b.op("IsInf", left, dtype=BOOL), b.op("IsInf", right, dtype=BOOL))
    return b.cast(b.where(infinite, _number(b, math.inf), value), out.dtype)


def _where(b: Builder, out: Outline, condition: Value, x: Any, y: Any) -> Value:
    return b.select(truth(b, condition), b.tensor(x, out.dtype), b.tensor(y, out.dtype))


# Comparison and bits


def _common(b: Builder, x: Any, y: Any) -> tuple[Value, Value]:
    """Both operands in one dtype that the comparing kernels have."""
    tensors = [each.dtype for each in (x, y) if isinstance(each, Value)]
    dtype = tensors[0] if len(tensors) == 1 else torch.promote_types(*tensors)
    return b.tensor(x, dtype), b.tensor(y, dtype)


def _comparison(kind: str, *, negated: bool = False) -> Rule:
    def rule(b: Builder, out: Outline, x: Any, y: Any) -> Value:
        left, right = _common(b, x, y)
        if left.dtype == BOOL:
            left, right = b.cast(left, UINT8), b.cast(right, UINT8)
        result = b.compare(kind, left, right)
        return b.invert(result) if negated else result

    return rule


def truth(b: Builder, value: Value) -> Value:
    return b.cast(value, BOOL)


def _logical(kind: str) -> Rule:
    def rule(b: Builder, out: Outline, x: Any, y: Any) -> Value:
        left, right = _common(b, x, y)
        return b.op(kind, truth(b, left), truth(b, right))

    return rule


def _logical_not(b: Builder, out: Outline, x: Value) -> Value:
    return b.invert(truth(b, x))


def _class_test(kind: str) -> Rule:
    def rule(b: Builder, out: Outline, x: Value) -> Value:
        if x.dtype.is_floating_point:
            return b.op(kind, x, dtype=BOOL)
        return b.op("Xor", truth(b, x), truth(b, x))  # false everywhere

    return rule


def _bitwise(kind: str, gate: str) -> Rule:
    def rule(b: Builder, out: Outline, *operands: Any) -> Value:
        return b.op(gate if out.dtype == BOOL else kind, *(b.tensor(each, out.dtype) for each in operands))

    return rule


def _shift(b: Builder, out: Outline, x: Any, y: Any, *, left: bool) -> Value:
    """By a table of powers of two. Amounts outside 0..bits-1 shift everything out, the sign staying on the right."""
    dtype = out.dtype
    bits = torch.iinfo(dtype).bits
    wrapped = [(1 << k) - (1 << bits if dtype != UINT8 and k == bits - 1 else 0) for k in range(bits)]
    value, amount = b.tensor(x, dtype), b.cast(b.tensor(y, dtype), INT64)
    inside = b.op("And", b.compare("GreaterOrEqual", amount, b.constant(0)), b.compare("Less", amount, b.constant(bits)))
    power = b.op("Gather", b.constant(wrapped, dtype), b.where(inside, amount, b.constant(0)), axis=0)
    zero = b.constant(0, dtype)
    if left:
        return b.where(inside, b.op("Mul", value, power), zero)
    if dtype == UINT8:
        return b.where(inside, b.op("Div", value, power), zero)
    # floor(x / 2**y) for negative x is ~(~x / 2**y): the quotient of two that are not negative is exact.
    mask = b.op("Neg", b.cast(b.compare("Less", value, zero), dtype))
    quotient = b.op("Div", b.op("BitwiseXor", value, mask), power)
    return b.where(inside, b.op("BitwiseXor", quotient, mask), mask)


def _left_shift(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    return _shift(b, out, x, y, left=True)


def _right_shift(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    return _shift(b, out, x, y, left=False)


# Conversion


def _to_copy(b: Builder, out: Outline, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    if x.dtype == out.dtype:
        return b.op("Identity", x)
    if x.dtype in FLOAT8:
        x = b.cast(x, FLOAT)  # of which ONNX Runtime knows that -0.0 is false
    if out.dtype in FLOAT8:
        return _to_float8(b, b.cast(x, FLOAT), out.dtype)
    if x.dtype.is_floating_point and out.dtype == UINT8:
        return b.cast(b.cast(x, INT64), UINT8)  # what does not fit wraps, as torch's conversion does
    return b.rounded(x, out.dtype)


def _to_float8(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """What is too large for e4m3fn is what the installed torch says, its largest number or NaN; for e5m2 it is infinite, where
    ONNX Runtime gives NaN between the largest number and the next power of two."""
    if dtype == torch.float8_e5m2:
        half_way = b.constant(_E5M2_INFINITE, FLOAT)
        beyond = b.compare("GreaterOrEqual", b.op("Abs", x), half_way)
        x = b.where(beyond, b.op("Mul", x, b.constant(math.inf, FLOAT)), x)
    return b.op("Cast", x, dtype=dtype, to=ELEMENT_TYPES[dtype], saturate=int(dtype == torch.float8_e4m3fn and _saturates()))


_E5M2_INFINITE = 61440.0
"""Half way between the largest number and the one that would follow; its mantissa is odd, so this goes up."""


@functools.cache
def _saturates() -> bool:
    """Whether torch takes what is too large for e4m3fn to its largest number: 2.13 does, 2.11 makes it NaN."""
    return not torch.tensor(torch.finfo(FLOAT).max).to(torch.float8_e4m3fn).isnan()


RULES: Mapping[str, Rule] = {
    "exp": direct("Exp"),
    "log": _log,
    "sqrt": direct("Sqrt"),
    "sin": single_only("Sin", INEXACT),
    "cos": single_only("Cos", INEXACT),
    "reciprocal": direct("Reciprocal"),
    "tan": single_only("Tan"),
    "asin": in_single(_asin, "ONNX Runtime has no float64 kernel for Asin"),
    "acos": in_single(_acos, "ONNX Runtime has no float64 kernel for Acos"),
    "atan": single_only("Atan"),
    "asinh": single_only("Asinh"),
    "acosh": single_only("Acosh"),
    "atanh": single_only("Atanh"),
    "erf": single_only("Erf"),
    "erfc": in_single(lambda b, x: b.cast(_erfc(b, b.cast(x, DOUBLE)), FLOAT), "ONNX Runtime has no float64 kernel for Erf"),
    "sinh": in_single(lambda b, x: b.op("Sinh", x), in_double(_sinh)),
    "cosh": in_single(lambda b, x: b.op("Cosh", x), in_double(_cosh)),
    "tanh": in_single(_tanh_single, in_double(_tanh)),
    "sigmoid": in_single(_sigmoid, in_double(_sigmoid)),
    "rsqrt": in_single(_rsqrt, in_double(_rsqrt)),
    "exp2": in_single(_exp2, in_double(_exp2)),
    "expm1": in_double(_expm1),
    "log1p": in_double(_log1p),
    "log2": in_double(_scaled_log(2)),
    "log10": in_double(_scaled_log(10)),
    "special_spherical_bessel_j0": in_single(_sinc, INEXACT),
    "abs": direct("Abs"),
    "neg": _neg,
    "sign": _sign,
    "relu": _relu,
    "ceil": _rounding("Ceil"),
    "floor": _rounding("Floor"),
    "round": _rounding("Round"),
    "trunc": _trunc,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "div.Tensor_mode": _div_mode,
    "fmod": _fmod,
    "remainder": _remainder,
    "pow": _pow,
    "maximum": _extreme("Max", "Or"),
    "minimum": _extreme("Min", "And"),
    "fmax": _extreme_of_numbers("Max", "Or"),
    "fmin": _extreme_of_numbers("Min", "And"),
    "hypot": _hypot,
    "atan2": _atan2,
    "where": _where,
    "eq": _comparison("Equal"),
    "ne": _comparison("Equal", negated=True),
    "lt": _comparison("Less"),
    "le": _comparison("LessOrEqual"),
    "gt": _comparison("Greater"),
    "ge": _comparison("GreaterOrEqual"),
    "isnan": _class_test("IsNaN"),
    "isinf": _class_test("IsInf"),
    "logical_and": _logical("And"),
    "logical_or": _logical("Or"),
    "logical_xor": _logical("Xor"),
    "logical_not": _logical_not,
    "bitwise_and": _bitwise("BitwiseAnd", "And"),
    "bitwise_or": _bitwise("BitwiseOr", "Or"),
    "bitwise_xor": _bitwise("BitwiseXor", "Xor"),
    "bitwise_not": _bitwise("BitwiseNot", "Not"),
    "bitwise_left_shift": _left_shift,
    "bitwise_right_shift": _right_shift,
    "_to_copy": _to_copy,
}
