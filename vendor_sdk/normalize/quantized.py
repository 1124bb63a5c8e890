"""The operators that quantize and dequantize in graphs of torch's own quantization, to prims.

They are registered where somebody imports torch's quantization, hence ``LATE``, and mean what torch's implementations do:
rounded to nearest, ties to even, in float32; then offset, cut off, and converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rule, aten, cast, computation_dtype

Tensor = torch.Tensor


def _quantized(x: Tensor, inverse: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    steps = aten.round.default(aten.mul.Tensor(cast(x, computation_dtype(x.dtype)), inverse))
    return cast(aten.clamp.default(aten.add.Tensor(steps, zero), low, high), dtype)


def _quantize_per_tensor(x: Tensor, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    return _quantized(x, 1.0 / scale, zero, low, high, dtype)


def _dequantize_per_tensor(
    x: Tensor, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, *, out_dtype: torch.dtype | None = None
) -> Tensor:
    return aten.mul.Tensor(aten.sub.Tensor(cast(x, out_dtype or torch.float32), zero), scale)  # type: ignore[no-any-return]


def _along(x: Tensor, axis: int, values: Tensor) -> Tensor:
    """One value for each index along ``axis`` of ``x``."""
    shape = [1] * x.dim()
    shape[axis] = values.shape[0]
    return aten.reshape.default(values, shape)  # type: ignore[no-any-return]


def _quantize_per_channel(
    x: Tensor, scales: Tensor, zeros: Tensor, axis: int, low: Any, high: Any, dtype: torch.dtype
) -> Tensor:
    inverse = aten.reciprocal.default(_along(x, axis, scales))
    return _quantized(x, inverse, _along(x, axis, zeros), low, high, dtype)


def _dequantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    axis: int,
    low: Any,
    high: Any,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    steps = x if zeros is None else aten.sub.Tensor(x, _along(x, axis, zeros))
    return cast(aten.mul.Tensor(steps, _along(x, axis, scales)), out_dtype or torch.float32)


def _quantize_per_token(x: Tensor, scales: Tensor, zeros: Tensor, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    steps = aten.add.Tensor(aten.mul.Tensor(x, aten.reciprocal.default(scales)), zeros)
    return cast(aten.clamp.default(aten.round.default(steps), low, high), dtype)


def _dequantize_per_token(
    x: Tensor, scales: Tensor, zeros: Tensor, low: Any, high: Any, dtype: torch.dtype, output_dtype: torch.dtype
) -> Tensor:
    return cast(aten.mul.Tensor(aten.sub.Tensor(x, zeros), scales), output_dtype)


LATE: Mapping[str, Rule] = {
    "quantized_decomposed::quantize_per_tensor": _quantize_per_tensor,
    "quantized_decomposed::dequantize_per_tensor": _dequantize_per_tensor,
    "quantized_decomposed::quantize_per_channel": _quantize_per_channel,
    "quantized_decomposed::dequantize_per_channel": _dequantize_per_channel,
    "quantized_decomposed::quantize_per_token": _quantize_per_token,
    "quantized_decomposed::dequantize_per_token": _dequantize_per_token,
}
