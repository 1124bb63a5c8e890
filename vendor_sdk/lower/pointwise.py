"""Pointwise, comparison, bitwise and conversion prims: one value of the result from one value of each operand.

Operands are converted to the dtype the computation is done in (float32 for halves), as torch's CPU kernels do; results are
rounded once, on the store.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vendor_sdk.lower.build import Argument, Builder, Lowering, Value, fake, is_tensor, opmath

Body = Callable[..., Value]
"""``body(builder, *operands)`` gives the result's value."""


def tensor_arguments(k: Builder) -> list[str]:
    """Names of the schema's leading tensor (or number-for-tensor) arguments."""
    schema = k.node.target._schema  # type: ignore[union-attr]
    return [p.name for p in schema.arguments if not p.kwarg_only and str(p.type) in ("Tensor", "Optional[Tensor]", "number")]


def result_type(*operands: Argument) -> torch.dtype:
    """torch.result_type over any number of operands: tensors rank by dimension, numbers last."""
    values = [fake(o) for o in operands]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    dims = functools.reduce(_promote, (v.dtype for v in tensors if v.dim() > 0), None)
    zeros = functools.reduce(_promote, (v.dtype for v in tensors if v.dim() == 0), None)
    result = dims
    if zeros is not None and (result is None or _category(zeros) > _category(result)):
        result = _promote(result, zeros)
    numbers = [_number_dtype(v) for v in values if not isinstance(v, torch.Tensor)]
    for number in numbers:
        if result is None or _category(number) > _category(result):
            result = _promote(result, number)
    assert result is not None
    return result


def _promote(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None else torch.promote_types(a, b)


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else 1 if not dtype.is_floating_point and not dtype.is_complex else 2


def _number_dtype(value: Any) -> torch.dtype:
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(value, int | torch.SymInt) else torch.get_default_dtype()


def pointwise(k: Builder, operands: Sequence[Argument], dtype: torch.dtype | None, body: Body) -> None:
    """Stores ``body`` over broadcast operands, each converted to ``dtype`` first (None: left as it is)."""
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, body(k, *(k.operand(o, i, dtype) for o in operands)))


def promoted(body: Body, *names: str) -> Lowering:
    """Operands in the result's dtype."""

    def lowering(k: Builder) -> None:
        operands = [k.args[n] for n in names or tensor_arguments(k)]
        pointwise(k, operands, opmath(k.outputs[0].dtype), body)

    return lowering


def compared(body: Body, *names: str) -> Lowering:
    """Operands in their common dtype, whatever the result's."""

    def lowering(k: Builder) -> None:
        operands = [k.args[n] for n in names or tensor_arguments(k)]
        common = result_type(*operands)
        with k.nest(k.outputs[0].shape) as i:
            # Through the common dtype itself: a number next to a half is rounded to that half before it is compared.
            values = [k.convert(k.operand(o, i, common), opmath(common)) for o in operands]
            k.store(0, i, body(k, *values))

    return lowering


def op(name: str) -> Body:
    """The loop op itself."""
    return lambda k, *values: k.compute(name, *values)


def for_bool(name: str, on_bool: str) -> Body:
    """A number op that has a logical meaning on bool."""
    return lambda k, *values: k.compute(on_bool if values[0].dtype == torch.bool else name, *values)


def identity_for_ints(name: str) -> Body:
    """A rounding op: integers are what they are."""
    return lambda k, a: k.compute(name, a) if a.dtype.is_floating_point else a


def select(k: Builder, condition: Value, a: Value, b: Value) -> Value:
    return k.compute("where", condition, a, b)


def like(k: Builder, value: Value, number: float) -> Value:
    """A number in the dtype of ``value``."""
    return k.const(number, value.dtype)


def truth(k: Builder, value: Value) -> Value:
    """Whether a value is not zero (NaN is true)."""
    return value if value.dtype == torch.bool else k.compute("ne", value, like(k, value, 0))


def logical(name: str) -> Body:
    return lambda k, *values: k.compute(name, *(truth(k, v) for v in values))


def _reciprocal(k: Builder, a: Value) -> Value:
    return k.compute("div", like(k, a, 1), a)


def _square(k: Builder, a: Value) -> Value:
    return k.compute("mul", a, a)


def _relu(k: Builder, a: Value) -> Value:
    return k.compute("max", a, like(k, a, 0))


def _abs(k: Builder, a: Value) -> Value:
    return a if a.dtype == torch.bool else k.compute("abs", a)


def _sign(k: Builder, a: Value) -> Value:
    return a if a.dtype == torch.bool else k.compute("sign", a)


def _is(name: str) -> Body:
    return lambda k, a: k.compute(name, a) if a.dtype.is_floating_point else k.const(False, torch.bool)


def _signbit(k: Builder, a: Value) -> Value:
    return k.const(False, torch.bool) if a.dtype == torch.bool else k.compute("signbit", a)


def _pow(k: Builder, a: Value, b: Value) -> Value:
    if a.dtype == torch.bool:
        return k.compute("bitor", a, k.compute("bitnot", b))
    return k.compute("pow", a, b)


def _pow_lowering(k: Builder) -> None:
    operands = [k.args[n] for n in tensor_arguments(k)]
    exponent = fake(operands[1])
    dtype = opmath(k.outputs[0].dtype)
    if not isinstance(exponent, torch.Tensor) and exponent in (2, 0.5, 3, 1, -1) and is_tensor(operands[0]):
        if dtype.is_floating_point:
            special: dict[float, Body] = {
                1: lambda k, a: a,
                2: _square,
                3: lambda k, a: k.compute("mul", k.compute("mul", a, a), a),
                # The square root of -inf is NaN, its power infinite; of -0.0 the root is -0.0.
                -1: _reciprocal,
            }
            if exponent in special:
                pointwise(k, operands[:1], dtype, special[exponent])
                return
        elif exponent == 2 and dtype != torch.bool:
            pointwise(k, operands[:1], dtype, _square)
            return
    if not dtype.is_floating_point and not isinstance(exponent, torch.Tensor) and isinstance(exponent, int) and exponent < 0:
        raise k.fail("an integer to a negative power")
    pointwise(k, operands, dtype, _pow)


def _div_rounded(k: Builder) -> None:
    mode = k.args.get("rounding_mode")
    if mode is None:
        promoted(op("div"))(k)
        return
    divide = {"floor": "floordiv", "trunc": "truncdiv"}[mode]
    _integer_division(divide)(k)


def _integer_division(name: str) -> Lowering:
    def lowering(k: Builder) -> None:
        dtype = k.outputs[0].dtype
        if dtype == torch.bool:
            raise k.fail("division of bools")
        promoted(op(name))(k)

    return lowering


def _where(k: Builder) -> None:
    dtype = k.outputs[0].dtype
    with k.nest(k.outputs[0].shape) as i:
        condition = truth(k, k.operand(k.args["condition"], i))
        a, b = (k.operand(k.args[n], i) for n in ("self", "other"))
        wide = opmath(dtype)
        k.store(0, i, select(k, condition, k.convert(a, wide), k.convert(b, wide)))


def _polygamma(k: Builder) -> None:
    order = k.args["n"]

    def body(k: Builder, a: Value) -> Value:
        if order < 2:
            return k.compute("trigamma" if order else "digamma", a)
        sign = 1.0 if order % 2 else -1.0
        scale = like(k, a, sign * math.factorial(order))
        return k.compute("mul", scale, k.compute("zeta", like(k, a, order + 1.0), a))

    pointwise(k, [k.args["self"]], opmath(k.outputs[0].dtype), body)


def _round(k: Builder) -> None:
    decimals = k.args.get("decimals", 0)
    if not decimals:
        promoted(identity_for_ints("round"), "self")(k)
        return
    ten = 10.0 ** abs(decimals)

    def body(k: Builder, a: Value) -> Value:
        if not a.dtype.is_floating_point:
            return a
        up, down = ("mul", "div") if decimals > 0 else ("div", "mul")
        return k.compute(down, k.compute("round", k.compute(up, a, like(k, a, ten))), like(k, a, ten))

    pointwise(k, [k.args["self"]], opmath(k.outputs[0].dtype), body)


def _convert(k: Builder) -> None:
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.load(k.args["self"] if "self" in k.args else k.args["a"], i))


def _frexp(k: Builder) -> None:
    with k.nest(k.outputs[0].shape) as i:
        a = k.load(k.args["self"], i)
        wide = k.convert(a, opmath(a.dtype))
        k.store(0, i, k.compute("frexp_mantissa", wide))
        k.store(1, i, k.compute("frexp_exponent", wide))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bitcast(k: Builder) -> None:
    source = k.args["self"]
    target = k.outputs[0].dtype
    old, new = k.dtype(source).itemsize, target.itemsize
    with k.nest(k.outputs[0].shape) as i:
        if old == new:
            value = k.convert(k.load(source, i), k.dtype(source))
        elif old > new:
            # Little-endian: the low bytes come first.
            ratio = old // new
            element = k.convert(k.load(source, (*i[:-1], i[-1] // ratio)), k.dtype(source))
            whole = _reinterpreted(k, element, _INTEGERS[old])
            shift = k.index(i[-1] % ratio * (8 * new))
            part = k.compute("shr", k.convert(whole, torch.int64), shift)
            value = k.convert(part, _INTEGERS[new])
        else:
            ratio = new // old
            joined = k.const(0, torch.int64)
            for part_number in range(ratio):
                element = k.convert(k.load(source, (*i[:-1], i[-1] * ratio + part_number)), k.dtype(source))
                part = _reinterpreted(k, element, _INTEGERS[old])
                mask = k.const((1 << (8 * old)) - 1, torch.int64)
                low = k.compute("bitand", k.convert(part, torch.int64), mask)
                joined = k.compute("bitor", joined, k.compute("shl", low, k.const(8 * old * part_number, torch.int64)))
            value = k.convert(joined, _INTEGERS[new])
        k.store(0, i, _reinterpreted(k, value, target))


def _reinterpreted(k: Builder, value: Value, dtype: torch.dtype) -> Value:
    return value if value.dtype == dtype else k.compute("bitcast", value, dtype=dtype)


def _nextafter(k: Builder) -> None:
    dtype = k.outputs[0].dtype
    if dtype == opmath(dtype):
        promoted(op("nextafter"))(k)
        return
    int16, wide = torch.int16, opmath(dtype)
    with k.nest(k.outputs[0].shape) as i:
        # Neighbouring floats of one sign have neighbouring bit patterns.
        a, b = (k.operand(k.args[n], i, dtype) for n in ("self", "other"))
        x, y = k.convert(a, wide), k.convert(b, wide)
        bits, zero, one = k.compute("bitcast", a, dtype=int16), like(k, x, 0), k.const(1, int16)
        away = k.compute("eq", k.compute("lt", x, y), k.compute("gt", x, zero))
        moved = select(k, away, k.compute("add", bits, one), k.compute("sub", bits, one))
        smallest = select(k, k.compute("lt", y, zero), k.const(-(2**15) + 1, int16), one)
        moved = select(k, k.compute("eq", x, zero), smallest, moved)
        moved = select(k, k.compute("eq", x, y), k.compute("bitcast", b, dtype=int16), moved)
        unordered = k.compute("bitor", k.compute("isnan", x), k.compute("isnan", y))
        nan = k.compute("bitcast", k.convert(k.compute("add", x, y), dtype), dtype=int16)
        k.store(0, i, k.compute("bitcast", select(k, unordered, nan, moved), dtype=dtype))


_FLOAT_UNARY = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "sigmoid": "sigmoid", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "lgamma": "lgamma", "digamma": "digamma",
    "i0": "i0", "special_i0e": "i0e", "special_i1": "i1", "special_i1e": "i1e", "special_ndtri": "ndtri",
"special_erfcx": "erfcx", "special_bessel_j0": "bessel_j0",
    "special_modified_bessel_i0": "i0", "special_modified_bessel_i1": "i1",
    "special_modified_bessel_k0": "bessel_k0", "special_modified_bessel_k1": "bessel_k1",
    "special_scaled_modified_bessel_k0": "bessel_k0e", "special_scaled_modified_bessel_k1": "bessel_k1e",
    "special_spherical_bessel_j0": "spherical_bessel_j0", "special_airy_ai": "airy_ai",
    "special_bessel_j1": "bessel_j1", "special_bessel_y0": "bessel_y0", "special_bessel_y1": "bessel_y1",
}  # fmt: skip
_FLOAT_BINARY = {
    "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "igamma": "igamma",
    "igammac": "igammac", "special_zeta": "zeta",
}  # fmt: skip


def _float_extreme(name: str, on_ints: str) -> Body:
    return lambda k, a, b: k.compute(name if a.dtype.is_floating_point else on_ints, a, b)


LOWERINGS: Mapping[str, Lowering] = {
    **{prim: promoted(op(name)) for prim, name in {**_FLOAT_UNARY, **_FLOAT_BINARY}.items()},
    "polygamma": _polygamma,
    "nextafter": _nextafter,
    "gcd": promoted(op("gcd")),
    "add": promoted(for_bool("add", "bitor")),
    "sub": promoted(op("sub")),
    "mul": promoted(for_bool("mul", "bitand")),
    "div": _div_rounded,
    "div.Tensor_mode": _div_rounded,
    "remainder": _integer_division("mod"),
    "fmod": _integer_division("fmod"),
    "pow": _pow_lowering,
    "maximum": promoted(op("max")),
    "minimum": promoted(op("min")),
    "fmax": promoted(_float_extreme("fmax", "max")),
    "fmin": promoted(_float_extreme("fmin", "min")),
    "neg": promoted(op("neg")),
    "abs": promoted(_abs),
    "sign": promoted(_sign),
    "reciprocal": promoted(_reciprocal),
    "relu": promoted(_relu),
    "floor": promoted(identity_for_ints("floor")),
    "ceil": promoted(identity_for_ints("ceil")),
    "trunc": promoted(identity_for_ints("trunc")),
    "round": _round,
    "frexp": _frexp,
    "where": _where,
    **{prim: compared(op(prim)) for prim in ("eq", "ne", "lt", "le", "gt", "ge")},
    "isnan": compared(_is("isnan")),
    "isinf": compared(_is("isinf")),
    "signbit": compared(_signbit),
    "logical_and": compared(logical("bitand")),
    "logical_or": compared(logical("bitor")),
    "logical_xor": compared(logical("bitxor")),
    "logical_not": compared(logical("bitnot")),
    "bitwise_and": promoted(op("bitand")),
    "bitwise_or": promoted(op("bitor")),
    "bitwise_xor": promoted(op("bitxor")),
    "bitwise_not": promoted(op("bitnot")),
    "bitwise_left_shift": promoted(op("shl")),
    "bitwise_right_shift": promoted(op("shr")),
    "_to_copy": _convert,
    "view.dtype": _bitcast,
}
