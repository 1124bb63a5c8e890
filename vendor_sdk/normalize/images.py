"""Group norms of images whose channels lie last in memory, for backends that want convolutions to have such
(``Legalization.channels_last``).

A group's channels are a few numbers of each pixel there: a kernel that takes group after group reads and writes parts of lines.
Statistics of single channels are sums of columns, which all channels of a pixel take together, and what is computed of an
element is pointwise; in between stand a few numbers a channel. Mean and variance of a group follow from those of its channels,
equally many numbers each: the variance is the mean of variances and the variance of means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vendor_sdk.ir.orders import CHANNELS_LAST, channels_lie_last, inverse
from vendor_sdk.normalize.rules import Rule, aten
from vendor_sdk.prims.normalization import group_norm, group_norm_backward
from vendor_sdk.prims.widen import cast, computation_dtype
from vendor_sdk.torch_private import OpOverload

Tensor = torch.Tensor


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Any, c: Any, hxw: Any, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if not channels_lie_last(x):
        return group_norm(x, weight, bias, n, c, hxw, group, eps)
    groups = [n, 1, group, c // group]
    pixels = _pixels(cast(x, computation_dtype(x.dtype)), [n, hxw, c])
    means = _viewed(aten.mean.dim(pixels, [1], True), groups)
    variances = _viewed(aten.var.correction(pixels, [1], correction=0, keepdim=True), groups)
    mean = aten.mean.dim(means, [3], True)
    apart = aten.sub.Tensor(means, mean)
    variance = aten.mean.dim(aten.add.Tensor(variances, aten.mul.Tensor(apart, apart)), [3], True)
    rstd = aten.rsqrt.default(aten.add.Tensor(variance, eps))
    shift, scale = (_of_channels(each, groups, c) for each in (mean, rstd))
    result = aten.mul.Tensor(aten.sub.Tensor(pixels, shift), scale)
    if weight is not None:
        result = aten.mul.Tensor(result, cast(weight, result.dtype))
    if bias is not None:
        result = aten.add.Tensor(result, cast(bias, result.dtype))
    return cast(_image(result, x), x.dtype), *(cast(_viewed(each, [n, group]), x.dtype) for each in (mean, rstd))  # type: ignore[return-value]


def _group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: Any,
    c: Any,
    hxw: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not channels_lie_last(x):
        return group_norm_backward(grad, x, mean, rstd, weight, n, c, hxw, group, output_mask)
    dtype, parameter = computation_dtype(x.dtype), weight.dtype if weight is not None else x.dtype
    groups = [n, 1, group, c // group]
    shift, scale = (_of_channels(_viewed(cast(each, dtype), [n, 1, group, 1]), groups, c) for each in (mean, rstd))
    wide = _pixels(cast(grad, dtype), [n, hxw, c])
    x_hat = aten.mul.Tensor(aten.sub.Tensor(_pixels(cast(x, dtype), [n, hxw, c]), shift), scale)
    sums, products = (aten.sum.dim_IntList(each, [1], True) for each in (wide, aten.mul.Tensor(wide, x_hat)))
    grad_x = None
    if output_mask[0]:
        scales = None if weight is None else cast(weight, dtype)
        scaled, *along = (each if scales is None else aten.mul.Tensor(each, scales) for each in (wide, sums, products))
        means = [
            _of_channels(aten.div.Tensor(aten.sum.dim_IntList(_viewed(each, groups), [3], True), c // group * hxw), groups, c)
            for each in along
        ]
        rest = aten.sub.Tensor(aten.sub.Tensor(scaled, means[0]), aten.mul.Tensor(x_hat, means[1]))
        grad_x = cast(_image(aten.mul.Tensor(rest, scale), x), x.dtype)
    grad_weight, grad_bias = (
        cast(aten.sum.dim_IntList(each, [0, 1]), parameter) if wanted else None
        for each, wanted in zip((products, sums), output_mask[1:], strict=True)
    )
    return grad_x, grad_weight, grad_bias


def _pixels(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """An image as (images, pixels, channels)."""
    return _viewed(aten.permute.default(x, list(CHANNELS_LAST)), shape)


def _image(pixels: Tensor, like: Tensor) -> Tensor:
    last = _viewed(pixels, [like.shape[dim] for dim in CHANNELS_LAST])
    return aten.permute.default(last, inverse(CHANNELS_LAST))  # type: ignore[no-any-return]


def _of_channels(per_group: Tensor, groups: Sequence[Any], c: Any) -> Tensor:
    """A number of each group as one of each of its channels."""
    return _viewed(aten.expand.default(per_group, groups), [groups[0], 1, c])


def _viewed(x: Tensor, shape: Sequence[Any]) -> Tensor:
    return aten.reshape.default(x, list(shape))  # type: ignore[no-any-return]


IMAGES: Mapping[OpOverload, Rule] = {
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
