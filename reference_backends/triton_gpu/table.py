"""What Triton calls the types, operations and constants of loop kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from vendor_sdk import loop

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
    # Their bits, since Triton has these types for some GPUs only; ``convert`` knows what they mean.
    torch.float8_e4m3fn: "tl.uint8",
    torch.float8_e5m2: "tl.uint8",
}
FLOAT8: Mapping[torch.dtype, str] = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
"""Floats of eight bits, and what functions of ``base`` call them."""
HALVES = (torch.bfloat16, torch.float16)
SMALL = (torch.int16, torch.int8, torch.uint8, torch.bool)


_LIBDEVICE = """
    floor ceil trunc exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    hypot erfc erfinv erfcx lgamma copysign nextafter
"""
_BASE = """
    div floordiv truncdiv mod fmod gcd neg signbit fmax fmin frexp_exponent frexp_mantissa sqrt sigmoid erf shl shr philox
"""

_SPECIAL = """
    digamma trigamma zeta igamma igammac i0e i1e bessel_k0 bessel_k1 bessel_k0e bessel_k1e spherical_bessel_j0 airy_ai
"""

OPS: Mapping[str, str] = {
    **{name: f"libdevice.{name}({{args}})" for name in _LIBDEVICE.split()},
    **{name: f"base.{name}({{args}})" for name in _BASE.split()},
    **{name: f"special.{name}({{args}})" for name in _SPECIAL.split()},
    "ndtri": "libdevice.normcdfinv({0})",
    "i0": "base.but_infinite(libdevice.cyl_bessel_i0({0}), {0})",
    "i1": "base.but_infinite(libdevice.cyl_bessel_i1({0}), {0})",
    # In float64: NVIDIA's float32 functions lose digits near their zeros.
    **{
        f"bessel_{kind}": f"base.but_infinite(libdevice.{kind}({{0}}.to(tl.float64)).to({{T}}), {{0}})"
        for kind in ("j0", "j1", "y0", "y1")
    },
    "round": "libdevice.rint({0})",
    "rsqrt": "base.div(tl.full([], 1, {T}), base.sqrt({0}))",
    "pow": "base.power({args})",
    "max": "base.maximum({args})",
    "min": "base.minimum({args})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "where": "tl.where({args})",
    "bitand": "{0} & {1}",
    "bitor": "{0} | {1}",
    "bitxor": "{0} ^ {1}",
    "bitnot": "~{0}",
    "convert": "",
    "bitcast": "",
    "wrap_index": "base.wrap_index({args}, {mask})",
    **{f"reduce.{name}": "" for name in ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin", "expsum")},
    "scratch": "",
    "nest": "",
    "contraction": "",
    **{f"scan.{name}": "" for name in ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")},
    **{f"store.{mode}": f"atomics.{mode}({{args}})" for mode in ("add", "mul", "max", "min")},
}
"""Loop op to Triton expression: ``{0}``... are operands, ``{args}`` all, ``{T}`` their type, ``{mask}`` where they count.

Conversions depend on both types (``convert``); reductions and scans are functions ``combine_NAME`` and ``running_NAME`` of
``base``."""


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A Triton constant with exactly this value."""
    if not dtype.is_floating_point:
        return repr(int(value))
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return f'float("{"-" if value < 0 else ""}inf")'
    return repr(float(value))


def constant(value: bool | int | float, dtype: torch.dtype, shape: str = "[]") -> str:
    """A block of one value."""
    if dtype.is_floating_point and value == 0 and math.copysign(1, value) < 0:
        # ``tl.full`` takes any value equal to zero for +0.
        bits = torch.int32 if dtype == torch.float32 else torch.int64
        return f"tl.full({shape}, {torch.iinfo(bits).min}, {TYPES[bits]}).to({TYPES[dtype]}, bitcast=True)"
    return f"tl.full({shape}, {literal(value, dtype)}, {TYPES[dtype]})"


def convert(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """``value`` in another dtype, rounded as torch does: to what is narrower by way of float32, to small integers by way
    of wide ones."""
    kind = TYPES[target]
    if target in FLOAT8:
        return f"base.narrow_{FLOAT8[target]}({convert(value, source, torch.float32)})"
    if source in FLOAT8:
        return convert(f"base.widen_{FLOAT8[source]}({value})", torch.float32, target)
    if target == torch.bool:
        return f"{value} != 0"
    if torch.float32 not in (source, target) and (source in HALVES or target in HALVES):
        return f"{value}.to(tl.float32).to({kind})"
    if source.is_floating_point and target in SMALL:
        return f"{value}.to({'tl.int64' if target == torch.uint8 else 'tl.int32'}).to({kind})"
    return f"{value}.to({kind})"


def bitcast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """The bits of ``value`` as another dtype; a bool's byte is 0 or 1."""
    if torch.bool in (source, target):
        return convert(value, source, target)
    return f"{value}.to({TYPES[target]}, bitcast=True)"


def wide(dtype: torch.dtype) -> torch.dtype:
    """What running results of ``dtype`` are kept in: shuffles between threads move no less than 32 bits."""
    return torch.int32 if dtype in SMALL else dtype


def identity(op: str, dtype: torch.dtype) -> bool | int | float:
    """The value that starts a reduction, in the dtype that it is kept in."""
    if op in ("sum", "any", "xor"):
        return 0
    if op in ("prod", "all"):
        return 1
    if op == "logaddexp":
        return -math.inf
    low = op in ("max", "argmax", "expsum")
    if dtype == torch.bool:
        return not low
    if dtype.is_floating_point:
        return -math.inf if low else math.inf
    info = torch.iinfo(dtype)
    return info.min if low else info.max


def nothing(a: loop.Accumulator) -> tuple[bool | int | float, ...]:
    """What starts the running results: of positions, one worse than any, so that the first element is taken even when it
    equals the identity."""
    return (identity(a.op, a.dtype), 0 if a.op == "expsum" else 2**63 - 1)[: len(a.to)]


def combination(a: loop.Accumulator, kind: str) -> str:
    """The function of ``base`` that combines two running results; reductions and scans differ for equal extremes only."""
    return f"base.{kind if len(a.to) == 2 else 'combine'}_{a.op}"
