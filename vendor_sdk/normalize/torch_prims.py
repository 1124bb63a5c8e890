"""Torch's own ``prims`` namespace to ATen: reference implementations end there, and so do a few captured graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten, cast, full, named

TORCH_PRIMS = Rules()

_SAME_ARGUMENTS = {
    "abs": "abs",
    "acos": "acos",
    "acosh": "acosh",
    "add": "add.Tensor",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atan2": "atan2",
    "atanh": "atanh",
    "bessel_i0": "i0",
    "bessel_i0e": "special_i0e",
    "bessel_i1": "special_i1",
    "bessel_i1e": "special_i1e",
    "bessel_j0": "special_bessel_j0",
    "bessel_j1": "special_bessel_j1",
    "bitwise_and": "bitwise_and.Tensor",
    "bitwise_not": "bitwise_not",
    "bitwise_or": "bitwise_or.Tensor",
    "bitwise_xor": "bitwise_xor.Tensor",
    "cat": "cat",
    "ceil": "ceil",
    "clone": "clone",
    "conj": "_conj",
    "conj_physical": "_conj_physical",
    "cos": "cos",
    "cosh": "cosh",
    "digamma": "digamma",
    "eq": "eq.Tensor",
    "erf": "erf",
    "erf_inv": "erfinv",
    "erfc": "erfc",
    "erfcx": "special_erfcx",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "floor": "floor",
    "fmax": "fmax",
    "fmin": "fmin",
    "fmod": "fmod.Tensor",
    "frexp": "frexp.Tensor",
    "gcd": "gcd",
    "ge": "ge.Tensor",
    "gt": "gt.Tensor",
    "hypot": "hypot",
    "igamma": "igamma",
    "igammac": "igammac",
    "isfinite": "isfinite",
    "le": "le.Tensor",
    "lgamma": "lgamma",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "lt": "lt.Tensor",
    "maximum": "maximum",
    "minimum": "minimum",
    "mul": "mul.Tensor",
    "ndtri": "special_ndtri",
    "ne": "ne.Tensor",
    "neg": "neg",
    "nextafter": "nextafter",
    "pow": "pow.Tensor_Tensor",
    "reciprocal": "reciprocal",
    "remainder": "remainder.Tensor",
    "reshape": "reshape",
    "rev": "flip",
    "round": "round",
    "rsqrt": "rsqrt",
    "shift_left": "bitwise_left_shift.Tensor",
    "shift_right_arithmetic": "bitwise_right_shift.Tensor",
    "sign": "sign",
    "signbit": "signbit",
    "sin": "sin",
    "sinh": "sinh",
    "spherical_bessel_j0": "special_spherical_bessel_j0",
    "sqrt": "sqrt",
    "squeeze": "squeeze.dims",
    "sub": "sub.Tensor",
    "tan": "tan",
    "tanh": "tanh",
    "transpose": "permute",
    "trunc": "trunc",
    "view_of": "alias",
    "where": "where.self",
    "zeta": "special_zeta",
}
"""prims operator to the ATen overload that takes the same arguments."""

for _prim, _aten in _SAME_ARGUMENTS.items():
    _key, _value = named(f"prims::{_prim}"), named(f"aten::{_aten}")
    if _key is not None and _value is not None:
        TORCH_PRIMS[_key] = _value


def _register(name: str, rule: Any) -> None:
    overload = named(f"prims::{name}")
    if overload is not None:
        TORCH_PRIMS[overload] = rule


def _div(x: torch.Tensor, y: torch.Tensor) -> Any:
    # prims.div truncates integers towards zero
    if isinstance(x, torch.Tensor) and not x.dtype.is_floating_point and not x.dtype.is_complex:
        return aten.div.Tensor_mode(x, y, rounding_mode="trunc")
    return aten.div.Tensor(x, y)


def _broadcast_in_dim(a: torch.Tensor, shape: Sequence[Any], broadcast_dimensions: Sequence[int]) -> torch.Tensor:
    for dim in range(len(shape)):
        if dim not in broadcast_dimensions:
            a = aten.unsqueeze.default(a, dim)
    return aten.expand.default(a, shape)  # type: ignore[no-any-return]


def _collapse_view(a: torch.Tensor, start: int, end: int) -> torch.Tensor:
    size = 1
    for length in a.shape[start : end + 1]:
        size = size * length
    return aten.reshape.default(a, [*a.shape[:start], size, *a.shape[end + 1 :]])  # type: ignore[no-any-return]


def _split_dim(a: torch.Tensor, dim: int, outer_length: Any) -> torch.Tensor:
    inner = a.shape[dim] // outer_length
    return aten.reshape.default(a, [*a.shape[:dim], outer_length, inner, *a.shape[dim + 1 :]])  # type: ignore[no-any-return]


def _iota(length: Any, *, start: Any, step: Any, dtype: torch.dtype, device: Any, requires_grad: bool) -> torch.Tensor:
    return aten.arange.start_step(start, start + length * step, step, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _full(shape: Any, value: Any, *, dtype: torch.dtype, device: Any, requires_grad: bool) -> torch.Tensor:
    return aten.full.default(shape, value, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _full_like(a: torch.Tensor, value: Any, *, dtype: torch.dtype, device: Any, requires_grad: bool) -> torch.Tensor:
    return aten.full.default(list(a.shape), value, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    return aten.full.default([], value, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _empty_strided(shape: Any, strides: Any, *, dtype: torch.dtype, device: Any, requires_grad: bool) -> torch.Tensor:
    return aten.full.default(shape, 0, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _empty_permuted(shape: Any, order: Any, *, dtype: torch.dtype, device: Any, requires_grad: bool) -> torch.Tensor:
    return aten.full.default(shape, 0, dtype=dtype, device=device)  # type: ignore[no-any-return]


def _dims(a: torch.Tensor, dims: Sequence[int] | None) -> list[int]:
    return list(range(a.dim())) if dims is None else list(dims)


def _sum(inp: torch.Tensor, dims: Any, *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.sum.dim_IntList(inp, _dims(inp, dims), dtype=output_dtype)  # type: ignore[no-any-return]


def _amax(inp: torch.Tensor, dims: Any, *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    return cast(aten.amax.default(inp, _dims(inp, dims)), output_dtype or inp.dtype)


def _amin(inp: torch.Tensor, dims: Any, *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    return cast(aten.amin.default(inp, _dims(inp, dims)), output_dtype or inp.dtype)


def _var(inp: torch.Tensor, dims: Any, correction: float = 1, *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    return cast(aten.var.correction(inp, _dims(inp, dims), correction=correction), output_dtype or inp.dtype)


def _prod(inp: torch.Tensor, dims: Any, *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    for dim in sorted(_dims(inp, dims), reverse=True):
        inp = aten.prod.dim_int(inp, dim, dtype=output_dtype)
    return inp


def _device_put(a: torch.Tensor, device: Any, non_blocking: bool = False) -> torch.Tensor:
    return aten._to_copy.default(a, device=device, non_blocking=non_blocking)  # type: ignore[no-any-return]


def _convert_element_type(a: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return cast(a, dtype)


def _uniform(shape: Any, *, low: Any, high: Any, dtype: Any, device: Any, stride: Any, generator: Any = None) -> Any:
    return aten.rand.default(shape, dtype=dtype, device=device) * (high - low) + low


def _normal(shape: Any, *, mean: Any, std: Any, dtype: Any, device: Any, requires_grad: Any, generator: Any = None) -> Any:
    return aten.randn.default(shape, dtype=dtype, device=device) * std + mean


def _cbrt(x: torch.Tensor) -> Any:
    third = full(1 / 3, (), x.dtype, x)
    return aten.sign.default(x) * aten.pow.Tensor_Tensor(aten.abs.default(x), third)


def _copy_to(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return aten.expand.default(cast(b, a.dtype), list(a.shape))  # type: ignore[no-any-return]


def _clone(a: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    return aten.clone.default(a)  # type: ignore[no-any-return]


def _copy_strided(a: torch.Tensor, stride: Any) -> torch.Tensor:
    return aten.clone.default(a)  # type: ignore[no-any-return]


for _name, _rule in {
    "div": _div,
    "broadcast_in_dim": _broadcast_in_dim,
    "collapse_view": _collapse_view,
    "split_dim": _split_dim,
    "iota": _iota,
    "full": _full,
    "full_like": _full_like,
    "scalar_tensor": _scalar_tensor,
    "empty_strided": _empty_strided,
    "empty_permuted": _empty_permuted,
    "sum": _sum,
    "amax": _amax,
    "amin": _amin,
    "var": _var,
    "prod": _prod,
    "device_put": _device_put,
    "convert_element_type": _convert_element_type,
    "uniform": _uniform,
    "normal": _normal,
    "cbrt": _cbrt,
    "copy_to": _copy_to,
    "clone": _clone,
    "copy_strided": _copy_strided,
}.items():
    TORCH_PRIMS.pop(named(f"prims::{_name}"), None)  # type: ignore[arg-type]
    _register(_name, _rule)


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    # As torch's own kernel for it: a compiler may contract the two, eager does not.
    return aten.add.Tensor(aten.mul.Tensor(a, b), c)  # type: ignore[no-any-return]


LATE = {"prims::fma": _fma}
"""Rules of operators that torch registers only when Dynamo first needs them (``addcmul_`` with a number)."""
