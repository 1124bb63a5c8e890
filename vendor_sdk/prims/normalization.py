"""Normalizations as composites: layer, RMS, group and batch norm, forward and backward.

All have one form, ``(x - mean) * rstd * weight + bias`` with statistics over some dimensions, in float32 for halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from vendor_sdk.prims.bounds import OF_PRODUCTS, OF_VARIANCES, Accumulated
from vendor_sdk.prims.recognize import recognize_rms_norm
from vendor_sdk.prims.row import Composite
from vendor_sdk.prims.samples import Effort, Sample, SampleContext, draw
from vendor_sdk.prims.widen import cast, computation_dtype

aten = torch.ops.aten
Tensor = torch.Tensor


def _statistics(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and ``1 / sqrt(variance + eps)`` over ``dims``, which stay with size one."""
    variance = aten.var.correction(x, dims, correction=0, keepdim=True)
    return aten.mean.dim(x, dims, True), variance, aten.rsqrt.default(aten.add.Tensor(variance, eps))


def _normalized(x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)  # type: ignore[no-any-return]


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[Any]) -> Tensor:
    """``x * weight + bias``, both viewed in ``shape``, in the dtype of ``x``."""
    if weight is not None:
        x = aten.mul.Tensor(x, aten.reshape.default(cast(weight, x.dtype), shape))
    if bias is not None:
        x = aten.add.Tensor(x, aten.reshape.default(cast(bias, x.dtype), shape))
    return x


def _sum_to(x: Tensor, dims: Sequence[int], shape: Sequence[Any], dtype: torch.dtype) -> Tensor:
    total = aten.sum.dim_IntList(x, dims) if dims else x
    return cast(aten.reshape.default(total, shape), dtype)


def _gradient(grad: Tensor, x_hat: Tensor, rstd: Tensor, dims: Sequence[int]) -> Tensor:
    """Gradient of ``x_hat = (x - mean(x)) * rstd(x)`` against ``grad``, statistics over ``dims``."""
    along_mean = aten.mean.dim(grad, dims, True)
    along_x_hat = aten.mul.Tensor(x_hat, aten.mean.dim(aten.mul.Tensor(grad, x_hat), dims, True))
    return aten.mul.Tensor(aten.sub.Tensor(aten.sub.Tensor(grad, along_mean), along_x_hat), rstd)  # type: ignore[no-any-return]


# --- layer norm ---


def layer_norm(
    x: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    wide = cast(x, computation_dtype(x.dtype))
    mean, _, rstd = _statistics(wide, dims, eps)
    result = _affine(_normalized(wide, mean, rstd), weight, bias, list(normalized_shape))
    # torch saves the statistics in the input's dtype on the CPU, in the computation dtype elsewhere
    saved = x.dtype if x.device.type == "cpu" else wide.dtype
    return cast(result, x.dtype), cast(mean, saved), cast(rstd, saved)


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    outer = list(range(x.dim() - len(normalized_shape)))
    inner = list(range(len(outer), x.dim()))
    dtype = computation_dtype(x.dtype)
    wide = cast(grad, dtype)
    x_hat = _normalized(cast(x, dtype), cast(mean, dtype), cast(rstd, dtype))
    scaled = wide if weight is None else aten.mul.Tensor(wide, cast(weight, dtype))
    shape = list(normalized_shape)
    return (
        cast(_gradient(scaled, x_hat, cast(rstd, dtype), inner), x.dtype) if output_mask[0] else None,
        _sum_to(aten.mul.Tensor(wide, x_hat), outer, shape, weight.dtype) if output_mask[1] and weight is not None else None,
        _sum_to(wide, outer, shape, bias.dtype) if output_mask[2] and bias is not None else None,
    )


# --- RMS norm ---


def rms_norm(x: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    wide = cast(x, computation_dtype(x.dtype))
    margin = torch.finfo(wide.dtype).eps if eps is None else eps
    power = aten.mean.dim(aten.mul.Tensor(wide, wide), dims, True)
    rstd = aten.rsqrt.default(aten.add.Tensor(power, margin))
    result = aten.mul.Tensor(wide, rstd)
    if weight is not None:
        result = aten.mul.Tensor(result, cast(weight, wide.dtype))
    return cast(result, x.dtype), rstd


def rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[Any],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    outer = list(range(x.dim() - len(normalized_shape)))
    inner = list(range(len(outer), x.dim()))
    dtype = computation_dtype(x.dtype)
    wide, rstd = cast(grad, dtype), cast(rstd, dtype)
    x_hat = aten.mul.Tensor(cast(x, dtype), rstd)
    grad_x = grad_weight = None
    if output_mask[0]:
        scaled = wide if weight is None else aten.mul.Tensor(wide, cast(weight, dtype))
        along = aten.mul.Tensor(x_hat, aten.mean.dim(aten.mul.Tensor(scaled, x_hat), inner, True))
        grad_x = cast(aten.mul.Tensor(aten.sub.Tensor(scaled, along), rstd), x.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = _sum_to(aten.mul.Tensor(wide, x_hat), outer, list(normalized_shape), weight.dtype)
    return grad_x, grad_weight


# --- group norm ---


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Any, c: Any, hxw: Any, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = cast(x, computation_dtype(x.dtype))
    grouped = aten.reshape.default(wide, [n, group, c // group * hxw])
    mean, _, rstd = _statistics(grouped, [2], eps)
    channels = [1, c, *([1] * (x.dim() - 2))]
    result = _affine(aten.reshape.default(_normalized(grouped, mean, rstd), list(x.shape)), weight, bias, channels)
    # Of all normalizations torch saves these statistics alone in the input's dtype on every device.
    return (
        cast(result, x.dtype),
        cast(aten.reshape.default(mean, [n, group]), x.dtype),
        cast(aten.reshape.default(rstd, [n, group]), x.dtype),
    )


def group_norm_backward(
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
    dtype = computation_dtype(x.dtype)
    shape = [n, group, c // group * hxw]
    wide_grad, rstd = cast(grad, dtype), aten.reshape.default(cast(rstd, dtype), [n, group, 1])
    wide = aten.reshape.default(cast(x, dtype), shape)
    x_hat = _normalized(wide, aten.reshape.default(cast(mean, dtype), [n, group, 1]), rstd)
    by_channel = [n, c, hxw]
    channel_grad = aten.reshape.default(wide_grad, by_channel)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = channel_grad if weight is None else _affine(channel_grad, weight, None, [1, c, 1])
        grad_x = _gradient(aten.reshape.default(scaled, shape), x_hat, rstd, [2])
        grad_x = cast(aten.reshape.default(grad_x, list(x.shape)), x.dtype)
    parameter = weight.dtype if weight is not None else x.dtype
    if output_mask[1]:
        products = aten.mul.Tensor(channel_grad, aten.reshape.default(x_hat, by_channel))
        grad_weight = _sum_to(products, [0, 2], [c], parameter)
    if output_mask[2]:
        grad_bias = _sum_to(channel_grad, [0, 2], [c], parameter)
    return grad_x, grad_weight, grad_bias


# --- batch norm ---


def _not_channel(x: Tensor) -> tuple[list[int], list[Any]]:
    """The dimensions that batch statistics reduce, and the shape that broadcasts a per-channel vector."""
    return [0, *range(2, x.dim())], [1, x.shape[1], *([1] * (x.dim() - 2))]


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not training:
        result, mean, rstd = batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps)
        return result, mean, rstd, aten.clone.default(running_mean), aten.clone.default(running_var)
    dims, shape = _not_channel(x)
    wide = cast(x, computation_dtype(x.dtype))
    mean, variance, rstd = _statistics(wide, dims, eps)
    result = cast(_affine(_normalized(wide, mean, rstd), weight, bias, shape), x.dtype)
    count = x.numel() // x.shape[1]
    vector = [x.shape[1]]
    unbiased = aten.mul.Tensor(aten.reshape.default(variance, vector), count / (count - 1) if count != 1 else math.nan)
    mean = aten.reshape.default(mean, vector)
    saved = x.dtype if x.device.type == "cpu" else wide.dtype
    return (
        result,
        cast(mean, saved),
        cast(aten.reshape.default(rstd, vector), saved),
        _follow(running_mean, mean, momentum),
        _follow(running_var, unbiased, momentum),
    )


def _follow(running: Tensor, value: Tensor, momentum: float) -> Tensor:
    moved = aten.add.Tensor(aten.mul.Tensor(running, 1 - momentum), aten.mul.Tensor(cast(value, running.dtype), momentum))
    return cast(moved, running.dtype)


def batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    _, shape = _not_channel(x)
    wide = cast(x, computation_dtype(x.dtype))
    mean = aten.reshape.default(cast(running_mean, wide.dtype), shape)
    rstd = aten.rsqrt.default(aten.add.Tensor(aten.reshape.default(cast(running_var, wide.dtype), shape), eps))
    result = cast(_affine(_normalized(wide, mean, rstd), weight, bias, shape), x.dtype)
    if x.device.type == "cpu":
        empty = aten.full.default([0], 0, dtype=x.dtype, device=x.device)
        return result, empty, aten.clone.default(empty)
    return result, aten.reshape.default(mean, [x.shape[1]]), aten.reshape.default(rstd, [x.shape[1]])


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_rstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dims, shape = _not_channel(x)
    dtype = computation_dtype(x.dtype)
    if train:
        assert save_mean is not None
        assert save_rstd is not None
        mean, rstd = cast(save_mean, dtype), cast(save_rstd, dtype)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = cast(running_mean, dtype), aten.rsqrt.default(aten.add.Tensor(cast(running_var, dtype), eps))
    mean, rstd = aten.reshape.default(mean, shape), aten.reshape.default(rstd, shape)
    wide = cast(grad, dtype)
    x_hat = _normalized(cast(x, dtype), mean, rstd)
    # The weight is the same for all that is summed: gradients of parameters and of the input share two sums.
    total, along = (aten.sum.dim_IntList(terms, dims, True) for terms in (wide, aten.mul.Tensor(wide, x_hat)))
    grad_x = None
    if output_mask[0]:
        grad_x = wide
        if train:
            # Times the reciprocal: that is done for every element.
            share = 1 / count if (count := x.numel() // x.shape[1]) != 0 else math.nan
            mean, mean_along = aten.mul.Tensor(total, share), aten.mul.Tensor(along, share)
            grad_x = aten.sub.Tensor(aten.sub.Tensor(wide, mean), aten.mul.Tensor(x_hat, mean_along))
        grad_x = cast(_affine(aten.mul.Tensor(grad_x, rstd), weight, None, shape), x.dtype)
    parameter, channels = weight.dtype if weight is not None else x.dtype, [x.shape[1]]
    return (
        grad_x,
        cast(aten.reshape.default(along, channels), parameter) if output_mask[1] else None,
        cast(aten.reshape.default(total, channels), parameter) if output_mask[2] else None,
    )


# --- bounds: on absolute values; a mean is off by growth(n) u mean|x|, a rstd relatively by growth(n) u mean(x^2) rstd^2 ---


def _spread(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Magnitudes of mean, rstd and ``(x - mean) * rstd``."""
    axes = list(dims)
    mean = x.abs().mean(axes, True)
    rstd = ((x - x.mean(axes, True)).square().mean(axes, True) + eps).rsqrt()
    sensitivity = 1 + (x * x).mean(axes, True) * rstd * rstd
    return mean, rstd * sensitivity, (x.abs() + mean) * rstd * sensitivity


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Tensor:
    x = x if weight is None else x * weight.abs().reshape(shape)
    return x if bias is None else x + bias.abs().reshape(shape)


def _layer_norm_magnitude(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Tensor, ...]:
    mean, rstd, x_hat = _spread(x, list(range(x.dim() - len(shape), x.dim())), eps)
    return _scaled(x_hat, weight, bias, shape), mean, rstd


def _group_norm_magnitude(
    x: Tensor, weight: Any, bias: Any, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Tensor, ...]:
    mean, rstd, x_hat = _spread(x.reshape(n, group, -1), [2], eps)
    result = _scaled(x_hat.reshape(x.shape), weight, bias, [1, c, *([1] * (x.dim() - 2))])
    return result, mean.reshape(n, group), rstd.reshape(n, group)


def _batch_norm_magnitude(
    x: Tensor, weight: Any, bias: Any, running_mean: Tensor, running_var: Tensor, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    dims, shape = _not_channel(x)
    mean, rstd, x_hat = _spread(x, dims, eps)
    squares = (x * x).mean(dims)
    return (
        _scaled(x_hat, weight, bias, shape),
        mean.reshape(-1),
        rstd.reshape(-1),
        running_mean.abs() + mean.reshape(-1),
        running_var.abs() + 4 * squares,
    )


def _inference_magnitude(
    x: Tensor, weight: Any, bias: Any, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    _, shape = _not_channel(x)
    x_hat = (x.abs() + running_mean.abs().reshape(shape)) * (running_var.reshape(shape) + eps).rsqrt()
    empty = x.new_zeros(0)
    return _scaled(x_hat, weight, bias, shape), empty, empty


def _rms_norm_magnitude(x: Tensor, shape: Any, weight: Any, eps: float | None) -> tuple[Tensor, Tensor]:
    result, rstd = rms_norm(x, shape, None if weight is None else weight.abs(), eps)
    return result.abs(), rstd


def _rows(x: Tensor, shape: Sequence[int], *_: Any) -> Sequence[int]:
    """Dimensions along which results share statistics; parameters' gradients are sums over all rows."""
    return range(-len(shape), 0)


def _rows_of_gradient(grad: Tensor, x: Tensor, shape: Sequence[int], *_: Any) -> Sequence[int]:
    return _rows(x, shape)


def _groups(x: Tensor, *_: Any) -> Sequence[int]:
    """All but the batch, though only channels of a group share statistics."""
    return range(1, x.dim())


def _channels(x: Tensor, *_: Any) -> Sequence[int]:
    return (0, *range(2, x.dim()))


def _backward_magnitude(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, scaled: Tensor, dims: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Magnitudes of the input gradient and of ``grad * x_hat``."""
    x_hat = (x.abs() + mean.abs()) * rstd
    axes = list(dims)
    grad_x = (scaled + scaled.mean(axes, True) + x_hat * (scaled * x_hat).mean(axes, True)) * rstd
    return grad_x, grad.abs() * x_hat


def _layer_norm_backward_magnitude(
    grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
) -> tuple[Tensor, ...]:
    outer = list(range(x.dim() - len(shape)))
    scaled = _scaled(grad.abs(), weight, None, shape)
    grad_x, products = _backward_magnitude(grad, x, mean, rstd, scaled, list(range(len(outer), x.dim())))
    return grad_x, products.sum(outer) if outer else products, grad.abs().sum(outer) if outer else grad.abs()


def _rms_norm_backward_magnitude(
    grad: Tensor, x: Tensor, shape: Any, rstd: Tensor, weight: Any, mask: Any
) -> tuple[Tensor, ...]:
    full = _layer_norm_backward_magnitude(grad, x, shape, torch.zeros_like(rstd), rstd, weight, None, mask)
    return full[0], full[1]


def _summed(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, n: int, c: int, hxw: int, group: int, *_: Any
) -> int:
    """By the longer of its sums: over a row of a group, for the input, or over the batch, for a channel."""
    return hxw * max(n, c // group)


def _group_norm_backward_magnitude(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, n: int, c: int, hxw: int, group: int, mask: Any
) -> tuple[Tensor, ...]:
    scaled = _scaled(grad.abs().reshape(n, c, hxw), weight, None, [1, c, 1]).reshape(n, group, -1)
    mean, rstd = mean.reshape(n, group, 1), rstd.reshape(n, group, 1)
    grad_x, products = _backward_magnitude(grad.reshape(n, group, -1), x.reshape(n, group, -1), mean, rstd, scaled, [2])
    return grad_x.reshape(x.shape), products.reshape(n, c, hxw).sum((0, 2)), grad.abs().reshape(n, c, hxw).sum((0, 2))


def _batch_norm_backward_magnitude(
    grad: Tensor, x: Tensor, weight: Any, rm: Any, rv: Any, mean: Tensor, rstd: Tensor, train: bool, eps: float, mask: Any
) -> tuple[Tensor, ...]:
    dims, shape = _not_channel(x)
    if not train:
        mean, rstd = rm, (rv + eps).rsqrt()
    scaled = _scaled(grad.abs(), weight, None, shape)
    grad_x, products = _backward_magnitude(grad, x, mean.reshape(shape), rstd.reshape(shape), scaled, dims)
    return grad_x, products.sum(dims), grad.abs().sum(dims)


# --- samples ---


def _layer_shapes(context: SampleContext) -> Iterator[tuple[str, Tensor, list[int]]]:
    yield "last dimension", draw(context, (3, 67)), [67]
    yield "two dimensions", draw(context, (2, 5, 7)), [5, 7]
    if context.effort >= Effort.STANDARD:
        yield "transposed", draw(context, (33, 4)).t(), [33]
        yield "long rows", draw(context, (2, 2051)), [2051]
        yield "many rows", draw(context, (257, 19)), [19]
        yield "no outer dimension", draw(context, (9,)), [9]
        yield "no rows", draw(context, (0, 9)), [9]


def _layer_norm_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, shape in _layer_shapes(context):
        yield Sample((x, shape, draw(context, shape), draw(context, shape), 1e-5), label=label)
    yield Sample((draw(context, (4, 9)), [9], None, None, 1e-3), label="no weight")


def _saved(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    wide = x.to(torch.float64)
    axes = list(dims)
    mean = wide.mean(axes, True)
    rstd = ((wide - mean).square().mean(axes, True) + 1e-5).rsqrt()
    return mean.to(x.dtype), rstd.to(x.dtype)


def _layer_norm_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, shape in _layer_shapes(context):
        mean, rstd = _saved(x, list(range(x.dim() - len(shape), x.dim())))
        grad, weight, bias = draw(context, x.shape), draw(context, shape), draw(context, shape)
        yield Sample((grad, x, shape, mean, rstd, weight, bias, [True, True, True]), label=label)


def _rms_norm_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, shape in _layer_shapes(context):
        yield Sample((x, shape, draw(context, shape), 1e-6), label=label)
    yield Sample((draw(context, (4, 9)), [9], None, 1e-6), label="no weight")


def _rms_norm_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, shape in _layer_shapes(context):
        wide = x.to(torch.float64)
        rstd = ((wide * wide).mean(list(range(x.dim() - len(shape), x.dim())), True) + 1e-6).rsqrt()
        saved = rstd.to(computation_dtype(x.dtype))
        yield Sample((draw(context, x.shape), x, shape, saved, draw(context, shape), [True, True]), label=label)


def _channel_shapes(context: SampleContext) -> Iterator[tuple[str, Tensor]]:
    yield "images", draw(context, (2, 6, 5, 7))
    yield "sequences", draw(context, (3, 6, 11))
    if context.effort >= Effort.STANDARD:
        yield "channels last", draw(context, (2, 5, 7, 6)).permute(0, 3, 1, 2)
        yield "many rows", draw(context, (40, 6, 31))


def _group_norm_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x in _channel_shapes(context):
        n, c, hxw = x.shape[0], x.shape[1], math.prod(x.shape[2:])
        yield Sample((x.contiguous(), draw(context, (c,)), draw(context, (c,)), n, c, hxw, 3, 1e-5), label=label)


def _group_norm_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x in _channel_shapes(context):
        n, c, hxw = x.shape[0], x.shape[1], math.prod(x.shape[2:])
        x = x.contiguous()
        mean, rstd = (part.reshape(n, 3) for part in _saved(x.reshape(n, 3, -1), [2]))
        args = (draw(context, x.shape), x, mean, rstd, draw(context, (c,)), n, c, hxw, 3, [True, True, True])
        yield Sample(args, label=label)


def _running(context: SampleContext, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    channels, wide = (x.shape[1],), computation_dtype(context.dtype)
    mean, variance = draw(context, channels, dtype=wide), draw(context, channels, dtype=wide).abs() + 0.5
    return draw(context, channels), draw(context, channels), mean, variance


def _batch_norm_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x in _channel_shapes(context):
        yield Sample((x, *_running(context, x), True, 0.1, 1e-5), label=label)


def _inference_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x in _channel_shapes(context):
        yield Sample((x, *_running(context, x), 0.1, 1e-5), label=label)


def _batch_norm_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x in _channel_shapes(context):
        weight, _, mean, variance = _running(context, x)
        saved = (part.reshape(-1) for part in _saved(x, [0, *range(2, x.dim())]))
        args = (draw(context, x.shape), x, weight, mean, variance, *saved, True, 1e-5, [True, True, True])
        yield Sample(args, label=label)


def _inner(x: Tensor, shape: Sequence[int]) -> int:
    return max(math.prod(shape), x.numel() // max(math.prod(shape), 1))


def _per_channel(x: Tensor) -> int:
    return x.numel() // max(x.shape[1], 1)


NORMALIZATION_ROWS: tuple[Composite, ...] = (
    Composite(
        name="layer_norm",
        summary="(x - mean) * rstd * weight + bias over the last dimensions; also mean and rstd",
        targets={aten.native_layer_norm.default: layer_norm},
        bound=Accumulated(
            terms=lambda x, shape, *_: math.prod(shape), magnitude=_layer_norm_magnitude, constant=4, shared=_rows
        ),
        source=OF_VARIANCES + "; a reciprocal root, a product and a sum more",
        samples=_layer_norm_samples,
    ),
    Composite(
        name="layer_norm_backward",
        summary="gradients of layer_norm by input, weight and bias",
        targets={aten.native_layer_norm_backward.default: layer_norm_backward},
        bound=Accumulated(
            terms=lambda g, x, shape, *_: _inner(x, shape),
            magnitude=_layer_norm_backward_magnitude,
            constant=8,
            shared=_rows_of_gradient,
        ),
        source=OF_PRODUCTS + ", two sums over the row or the batch; their products with what was saved added",
        samples=_layer_norm_backward_samples,
    ),
    Composite(
        name="rms_norm",
        summary="x * rsqrt(mean(x^2) + eps) * weight over the last dimensions; also the reciprocal root",
        targets={aten._fused_rms_norm.default: rms_norm},
        bound=Accumulated(terms=lambda x, shape, *_: math.prod(shape), magnitude=_rms_norm_magnitude, constant=4, shared=_rows),
        source=OF_PRODUCTS + "; a reciprocal root and two products more",
        samples=_rms_norm_samples,
        recognize=recognize_rms_norm,
    ),
    Composite(
        name="rms_norm_backward",
        summary="gradients of rms_norm by input and weight",
        targets={aten._fused_rms_norm_backward.default: rms_norm_backward},
        bound=Accumulated(
            terms=lambda g, x, shape, *_: _inner(x, shape),
            magnitude=_rms_norm_backward_magnitude,
            constant=8,
            shared=_rows_of_gradient,
        ),
        source=OF_PRODUCTS + ", two sums over the row or the batch; their products with what was saved added",
        samples=_rms_norm_backward_samples,
        reference=rms_norm_backward,  # torch has no CPU kernel for it; the gradients are tested against autograd's
    ),
    Composite(
        name="group_norm",
        summary="(x - mean) * rstd * weight + bias over groups of channels; also mean and rstd",
        targets={aten.native_group_norm.default: group_norm},
        bound=Accumulated(
            terms=lambda x, w, b, n, c, hxw, group, eps: c // group * hxw,
            magnitude=_group_norm_magnitude,
            constant=4,
            shared=_groups,
        ),
        source=OF_VARIANCES + "; a reciprocal root, a product and a sum more",
        samples=_group_norm_samples,
    ),
    Composite(
        name="group_norm_backward",
        summary="gradients of group_norm by input, weight and bias",
        targets={aten.native_group_norm_backward.default: group_norm_backward},
        bound=Accumulated(terms=_summed, magnitude=_group_norm_backward_magnitude, constant=8, shared=_groups),
        source=OF_PRODUCTS + ", two sums over the row or the batch; their products with what was saved added",
        samples=_group_norm_backward_samples,
    ),
    Composite(
        name="batch_norm",
        summary="(x - mean) * rstd * weight + bias over the batch; also mean, rstd and the new running statistics",
        targets={aten._native_batch_norm_legit_functional.default: batch_norm},
        bound=Accumulated(terms=lambda x, *_: _per_channel(x), magnitude=_batch_norm_magnitude, constant=4, shared=_channels),
        source=OF_VARIANCES + "; a reciprocal root, a product and a sum more",
        samples=_batch_norm_samples,
    ),
    Composite(
        name="batch_norm_inference",
        summary="(x - running_mean) * rsqrt(running_var + eps) * weight + bias",
        targets={aten._native_batch_norm_legit_no_training.default: batch_norm_inference},
        bound=Accumulated(terms=lambda *_: 1, magnitude=_inference_magnitude, constant=8, shared=_channels),
        source="rsqrt (2 ulp), two differences and two products, errors added",
        samples=_inference_samples,
    ),
    Composite(
        name="batch_norm_backward",
        summary="gradients of batch_norm by input, weight and bias",
        targets={aten.native_batch_norm_backward.default: batch_norm_backward},
        bound=Accumulated(
            terms=lambda g, x, *_: _per_channel(x), magnitude=_batch_norm_backward_magnitude, constant=8, shared=_channels
        ),
        source=OF_PRODUCTS + ", two sums over the row or the batch; their products with what was saved added",
        samples=_batch_norm_backward_samples,
    ),
)
