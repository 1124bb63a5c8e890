"""Rules of prims that read or write the bits of numbers, by BitCast (opset 26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from reference_backends.onnxruntime.builder import ELEMENT_TYPES, Builder, Outline, Rule, Untranslatable, Value
from reference_backends.onnxruntime.control import loop
from reference_backends.onnxruntime.pointwise import truth
from vendor_sdk import HALVES

FLOAT, DOUBLE, INT64, INT32, UINT8, BOOL = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_BITS = {**dict.fromkeys(HALVES, torch.int16), FLOAT: INT32, DOUBLE: INT64}
_MANTISSA_BITS = 52
_EXPONENT_BIAS = 1022
"""float64's, for mantissas in [1/2, 1)."""


def bit_cast(b: Builder, value: Value, dtype: torch.dtype) -> Value:
    """The same bits read as another dtype of equal width."""
    return value if value.dtype == dtype else b.op("BitCast", value, dtype=dtype, to=ELEMENT_TYPES[dtype])


def _integer(b: Builder, value: Value) -> Value:
    """The bits as int32 or int64, those of halves extended by their sign: ONNX Runtime has few kernels for int16."""
    bits = bit_cast(b, value, _BITS[value.dtype])
    return b.cast(bits, INT32) if bits.dtype == torch.int16 else bits


def _floating(b: Builder, bits: Value, dtype: torch.dtype) -> Value:
    """``_integer`` back."""
    return bit_cast(b, b.cast(bits, _BITS[dtype]), dtype)


def _view_dtype(b: Builder, out: Outline, x: Value, dtype: torch.dtype) -> Value:
    if x.dtype.itemsize != dtype.itemsize or BOOL in (x.dtype, dtype):
        raise Untranslatable("bits are reinterpreted between numbers of equal width only")
    return b.op("Identity", x) if x.dtype == dtype else bit_cast(b, x, dtype)


def _signbit(b: Builder, out: Outline, x: Value) -> Value:
    if x.dtype in (BOOL, UINT8):
        return b.op("Xor", truth(b, x), truth(b, x))
    value = _integer(b, x) if x.dtype.is_floating_point else x
    return b.compare("Less", value, b.constant(0, value.dtype))


def _copysign(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    size, sign = (_integer(b, b.tensor(each, out.dtype)) for each in (x, y))
    lowest = torch.iinfo(_BITS[out.dtype]).min
    number = b.op("BitwiseAnd", size, b.constant(-1 - lowest, size.dtype))
    return _floating(b, b.op("BitwiseOr", number, b.op("BitwiseAnd", sign, b.constant(lowest, size.dtype))), out.dtype)


def _nextafter(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    """One more in the bits is one step away from zero."""
    left, right = (b.tensor(each, out.dtype) for each in (x, y))
    zero = b.constant(0, out.dtype)
    bits = _integer(b, left)
    up = b.compare("Greater", right, left)
    away = b.op("Xor", up, b.compare("Less", left, zero))
    one = b.constant(1, bits.dtype)
    step = b.op("Add", bits, b.where(away, one, b.constant(-1, bits.dtype)))
    from_zero = b.where(up, one, b.constant(torch.iinfo(_BITS[out.dtype]).min + 1, bits.dtype))
    moved = b.where(b.compare("Equal", left, zero), from_zero, step)
    chosen = b.where(b.compare("Equal", left, right), _integer(b, right), moved)
    nan = b.op("Or", b.is_nan(left), b.is_nan(right))
    broken = _integer(b, b.constant(float("nan"), out.dtype))
    return _floating(b, b.where(nan, broken, chosen), out.dtype)


def _frexp(b: Builder, out: Any, x: Value) -> tuple[Value, Value]:
    """By float64, in which the subnormal numbers of narrower dtypes are normal; its own are scaled up."""
    value = b.cast(x, DOUBLE)
    tiny = b.compare("Less", b.op("Abs", value), b.constant(2.0**-1022, DOUBLE))
    scaled = b.op("Mul", value, b.where(tiny, b.constant(2.0**54, DOUBLE), b.constant(1, DOUBLE)))
    bits = bit_cast(b, scaled, INT64)
    field = b.op("BitwiseAnd", bits, b.constant(0x7FF << _MANTISSA_BITS))
    raised = b.op("Div", field, b.constant(1 << _MANTISSA_BITS))
    exponent = b.op("Sub", raised, b.where(tiny, b.constant(_EXPONENT_BIAS + 54), b.constant(_EXPONENT_BIAS)))
    kept = b.op("BitwiseAnd", bits, b.constant(-1 - (0x7FF << _MANTISSA_BITS)))
    mantissa = bit_cast(b, b.op("BitwiseOr", kept, b.constant(_EXPONENT_BIAS << _MANTISSA_BITS)), DOUBLE)
    itself = b.op("Or", b.compare("Equal", value, b.constant(0, DOUBLE)), b.compare("Equal", raised, b.constant(0x7FF)))
    mantissa = b.select(itself, value, mantissa)
    return b.cast(mantissa, x.dtype), b.cast(b.where(itself, b.constant(0), exponent), INT32)


def _gcd(b: Builder, out: Outline, x: Any, y: Any) -> Value:
    """Euclid's, on all pairs until the last has ended."""
    left, right = (b.tensor(each, out.dtype) for each in (x, y))
    if out.dtype != UINT8:
        left, right = b.op("Abs", left), b.op("Abs", right)
    wide = INT32 if out.dtype == UINT8 else out.dtype
    zero = b.constant(0, wide)
    total = b.op("Add", b.cast(left, wide), b.op("Mul", b.cast(right, wide), zero))
    other = b.op("Add", b.cast(right, wide), b.op("Mul", b.cast(left, wide), zero))

    def step(inner: Builder, state: list[Value]) -> tuple[Value, list[Value]]:
        a, c = state
        done = inner.compare("Equal", c, zero)
        safe = inner.where(done, inner.constant(1, wide), c)
        rest = inner.where(done, zero, inner.op("Sub", a, inner.op("Mul", inner.op("Div", a, safe), safe)))
        after = [inner.where(done, a, c), rest]
        return _any(inner, rest), after

    return b.cast(loop(b, _any(b, other), [total, other], step)[0], out.dtype)


def _any(b: Builder, value: Value) -> Value:
    """Whether an element is not zero, 0-d."""
    flat = b.op("Reshape", b.cast(b.cast(value, BOOL), INT32), b.constant([-1]))
    total = b.op("ReduceSum", flat, b.constant([0]), keepdims=0)
    return b.compare("Greater", total, b.constant(0, INT32))


RULES: Mapping[str, Rule] = {
    "view.dtype": _view_dtype,
    "signbit": _signbit,
    "copysign": _copysign,
    "nextafter": _nextafter,
    "frexp": _frexp,
    "gcd": _gcd,
}
