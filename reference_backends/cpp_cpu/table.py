"""What each loop op is in C++: the emitter's capability list, and the text of constants and combinations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

CTYPES: Mapping[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}

_CALLS = [
    "floor",
    "ceil",
    "trunc",
    "round",
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "hypot",
    "sigmoid",
    "erf",
    "erfc",
    "copysign",
    "nextafter",
    "frexp_mantissa",
    "frexp_exponent",
    "abs",
    "sign",
    "pow",
    "fmax",
    "fmin",
    "max",
    "min",
    "gcd",
    "shl",
    "shr",
    "signbit",
    "philox",
]
WIDE = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "hypot")
"""Ops whose text of float32 needs ``wide.h``."""
GAMMAS = ("erfinv", "ndtri", "lgamma", "digamma", "trigamma")
"""Ops whose text needs ``wide.h`` and ``gammas.h`` besides ``special.h``."""
SPECIAL = [
    *GAMMAS,
    "erfcx",
    "zeta",
    "igamma",
    "igammac",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "bessel_k0",
    "bessel_k1",
    "bessel_k0e",
    "bessel_k1e",
    "spherical_bessel_j0",
    "airy_ai",
]
"""Ops whose text needs ``special.h``."""
_WITH_STATUS = ("floordiv", "truncdiv", "mod", "fmod")

OPS: Mapping[str, str] = {
    **{name: f"op_{name}({{args}})" for name in (*_CALLS, *SPECIAL)},
    **{name: f"op_{name}({{args}}, &status{{live}})" for name in _WITH_STATUS},
    "wrap_index": "wrap_index({args}, &status{live})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": "op_abs({0}) == ({T})__builtin_inf()",
    "where": "select({0}, {1}, {2})",
    "bitand": "{0} & {1}",
    "bitor": "{0} | {1}",
    "bitxor": "{0} ^ {1}",
    "bitnot": "~{0}",
    "convert": "convert<{R}>({0})",
    "bitcast": "bits<{R}>({0})",
    **{f"reduce.{name}": "" for name in ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin")},
    **{f"scan.{name}": "" for name in ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")},
    **{f"store.{name}": "" for name in ("add", "mul", "max", "min")},
    "scratch": "",
    "nest": "",
    "local": "",
    "contraction": "",
}
"""Loop op to C++ expression: ``{0}``... are operands, ``{args}`` all of them, ``{T}`` their type, ``{R}`` the result's element,
``{live}`` the lanes that count in a vector."""

COMBINE: Mapping[str, str] = {
    "sum": "({0} + {1})",
    "add": "({0} + {1})",
    "prod": "({0} * {1})",
    "mul": "({0} * {1})",
    "max": "op_max{T}({0}, {1})",
    "min": "op_min{T}({0}, {1})",
    "any": "({0} | {1})",
    "all": "({0} & {1})",
    "xor": "({0} ^ {1})",
    "logaddexp": "op_logaddexp({0}, {1})",
}
"""How a reduction or a combining store joins two values; ``{T}`` is a template argument, empty for vectors."""

COSTLY = frozenset((*_CALLS[6:36], "pow", "philox", "gcd", "floordiv", "truncdiv", "mod", "fmod", *SPECIAL))
"""Ops of many instructions: a loop with one of them has enough independent work without unrolling."""


LANE_BY_LANE = frozenset({*_WITH_STATUS, "gcd", "nextafter", "frexp_mantissa", "frexp_exponent", *SPECIAL} - {*GAMMAS})
"""Ops that vectors of float32 compute one lane after the other."""


def combined(op: str, left: str, right: str, kind: str | None) -> str:
    """Two values joined; ``kind`` is the C++ type of scalars, None for vectors."""
    return COMBINE[op].format(left, right, T=f"<{kind}>" if kind else "")


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A C++ constant with exactly this value."""
    kind = CTYPES[dtype]
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        if math.isnan(value):
            return f'({kind})__builtin_nan("")'
        if math.isinf(value):
            return f"({kind}){'-' if value < 0 else ''}__builtin_inf()"
        return f"({kind}){float(value).hex()}"
    if value == -(2**63):
        return "(-0x7fffffffffffffffLL - 1)"
    return f"({kind}){int(value)}LL"


def identity(op: str, dtype: torch.dtype) -> str:
    """The value that starts a reduction."""
    if op in ("sum", "any", "xor"):
        return literal(0, dtype)
    if op in ("prod", "all"):
        return literal(1, dtype)
    if op == "logaddexp":
        return literal(-math.inf, dtype)
    low = op in ("max", "argmax")
    if dtype == torch.bool:
        return literal(not low, dtype)
    if dtype.is_floating_point:
        return literal(-math.inf if low else math.inf, dtype)
    info = torch.iinfo(dtype)
    return literal(info.min if low else info.max, dtype)


def wide(op: str, dtype: torch.dtype) -> str:
    """C++ type that a running result is kept in."""
    if dtype == torch.float32 and op in ("sum", "prod"):
        return "double"
    if dtype == torch.bool:
        return "int32_t"
    return CTYPES[dtype]
