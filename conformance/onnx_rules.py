"""ONNX's operators as functions of torch: one entry an operator, tracing of which gives prims.

A rule gets the node's inputs in order (None where one is left out) and its attributes by name. The inputs that ``STATIC`` lists
for an operator say shapes or amounts: they must be known when the graph is made, and arrive as numpy arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from conformance import onnx_attention, onnx_recurrent, onnx_resize, onnx_selection, onnx_spectral
from conformance.onnx_types import Array, NotImported, Tensor, dtype_of, ints, refuse, tensor_of

STATIC: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Split": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "TopK": (1,),
    "CumSum": (1,),
    "CumProd": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "OneHot": (1,),
    "Trilu": (1,),
    "CenterCropPad": (1,),
    "Dropout": (1, 2),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    **onnx_resize.STATIC,
    **onnx_spectral.STATIC,
    **{f"Reduce{kind}": (1,) for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")},
}
"""Positions of the inputs that must be known when a graph is made."""


# Pointwise


def _div(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y) if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    return torch.fmod(x, y) if fmod else torch.remainder(x, y)


def _pow(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y).to(x.dtype)


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    result = torch.isinf(x)
    if not detect_negative:
        result = result & (x > 0)
    return result if detect_positive else result & (x < 0)


def _shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    return torch.bitwise_left_shift(x, y) if direction == "LEFT" else torch.bitwise_right_shift(x, y)


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *tensors: functools.reduce(function, tensors)


def _mean_of(*tensors: Tensor) -> Tensor:
    return functools.reduce(torch.add, tensors) / len(tensors)


def _cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return x.to(dtype_of(to))


def _bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.view(dtype_of(to))


def _swiglu(x: Tensor, y: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * torch.sigmoid(alpha * x) * y


def _drawn(*_: Any, **__: Any) -> Tensor:
    raise NotImported("random numbers")


def _elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x < 0, alpha * torch.expm1(x), x)


def _selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * _elu(x, alpha=alpha)


def _celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.clamp(x, min=0) + torch.clamp(alpha * torch.expm1(x / alpha), max=0)


def _shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def _thresholded(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


# Reductions


def _axes(x: Tensor, axes: Any, noop: int) -> list[int] | None:
    """``None`` for nothing to do."""
    values = ints(axes) if isinstance(axes, np.ndarray) else list(axes or [])
    if not values:
        return None if noop else list(range(x.dim()))
    return [axis % x.dim() for axis in values]


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor], before: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def rule(x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        dims = _axes(x, axes, noop_with_empty_axes)
        if dims is None:
            return before(x)
        if not dims:
            return function(x.reshape(1), [0], False)
        return function(x, dims, bool(keepdims))

    return rule


def _same(x: Tensor) -> Tensor:
    return x


def _extreme(function: Callable[..., Tensor], lowest: bool) -> Callable[[Tensor, list[int], bool], Tensor]:
    def reduce(x: Tensor, dims: list[int], keep: bool) -> Tensor:
        if all(x.shape[dim] for dim in dims):
            return function(x, dims, keep)
        shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
        shape = shape if keep else [size for dim, size in enumerate(x.shape) if dim not in dims]
        if x.dtype.is_floating_point:
            return torch.full(shape, -math.inf if lowest else math.inf, dtype=x.dtype)
        refuse(x.dtype == torch.bool, "an extreme of no bool")
        limits = torch.iinfo(x.dtype)
        return torch.full(shape, limits.min if lowest else limits.max, dtype=x.dtype)

    return reduce


def _product(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.sum(x, dims, keep, dtype=x.dtype)


def _mean(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.mean(x, dims, keep)


def _arg(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        if select_last_index:
            return x.shape[axis] - 1 - function(torch.flip(x, [axis]), axis, bool(keepdims))
        return function(x, axis, bool(keepdims))

    return rule


def _scan(function: Callable[..., Tensor], neutral: int) -> Callable[..., Tensor]:
    def rule(x: Tensor, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        (dim,) = ints(axis)
        if reverse:
            x = torch.flip(x, [dim])
        if exclusive:
            head = torch.full_like(x.narrow(dim, 0, 1), neutral)
            x = torch.cat([head, x.narrow(dim, 0, x.shape[dim] - 1)], dim)
        result = function(x, dim, dtype=x.dtype)
        return torch.flip(result, [dim]) if reverse else result

    return rule


# Shapes and positions


def _reshape(x: Tensor, shape: Array, *, allowzero: int = 0) -> Tensor:
    sizes = [x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(ints(shape))]
    return torch.reshape(x, sizes)


def _expand(x: Tensor, shape: Array) -> Tensor:
    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(ints(shape)))).clone()  # type: ignore[no-untyped-call]


def _transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return torch.permute(x, list(perm) if perm is not None else list(reversed(range(x.dim()))))


def _squeeze(x: Tensor, axes: Any = None) -> Tensor:
    dims = ints(axes) if isinstance(axes, np.ndarray) else axes  # an attribute in older opsets
    return torch.squeeze(x) if dims is None else torch.squeeze(x, tuple(dims))


def _unsqueeze(x: Tensor, axes: Any) -> Tensor:
    dims = ints(axes) if isinstance(axes, np.ndarray) else axes  # an attribute in older opsets
    rank = x.dim() + len(dims)
    for axis in sorted(each % rank for each in dims):
        x = torch.unsqueeze(x, axis)
    return x


def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis % x.dim() if axis < 0 else axis
    return torch.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


def _slice(x: Tensor, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Tensor:
    first, last = ints(starts), ints(ends)
    dims = ints(axes) if axes is not None else list(range(len(first)))
    strides = ints(steps) if steps is not None else [1] * len(first)
    for start, end, dim, step in zip(first, last, dims, strides, strict=True):
        positions = range(*slice(start, end, step).indices(x.shape[dim]))
        if step < 0:
            x = torch.index_select(x, dim, torch.tensor(list(positions), dtype=torch.int64))
        else:
            x = x[(slice(None),) * (dim % x.dim()) + (slice(start, end, step),)]
    return x


def _pad(x: Tensor, pads: Array, value: Tensor | None = None, axes: Array | None = None, *, mode: str = "constant") -> Tensor:
    amounts = ints(pads)
    dims = [axis % x.dim() for axis in ints(axes)] if axes is not None else list(range(x.dim()))
    half = len(amounts) // 2
    for before, after, dim in zip(amounts[:half], amounts[half:], dims, strict=True):
        size = x.shape[dim]
        if mode == "constant":
            fill = 0 if value is None else value
            shapes = [[amount if d == dim else s for d, s in enumerate(x.shape)] for amount in (max(before, 0), max(after, 0))]
            edges = [torch.zeros(shape, dtype=x.dtype) + fill for shape in shapes]
            middle = x.narrow(dim, max(-before, 0), size - max(-before, 0) - max(-after, 0))
            x = torch.cat([edges[0].to(x.dtype), middle, edges[1].to(x.dtype)], dim)
            continue
        places = torch.arange(-before, size + after)
        if mode == "edge":
            places = places.clamp(0, size - 1)
        elif mode == "wrap":
            places = places.remainder(size)
        else:
            places = places.abs().remainder(max(2 * size - 2, 1))
            places = torch.minimum(places, 2 * size - 2 - places) if size > 1 else places
        x = torch.index_select(x, dim, places)
    return x


def _split(
    x: Tensor, sizes: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, split: Any = None
) -> tuple[Tensor, ...]:
    parts = ints(sizes) if sizes is not None else list(split or [])
    if not parts:
        refuse(num_outputs is None, "Split into an unknown number of parts")
        assert num_outputs is not None
        each = -(-x.shape[axis] // num_outputs)
        parts = [each] * (num_outputs - 1)
        parts.append(x.shape[axis] - sum(parts))
    return tuple(part.clone() for part in torch.ops.aten.split_with_sizes(x, parts, axis))


def _wrapped(index: Tensor, size: int) -> Tensor:
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


def _gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    axis = axis % x.dim()
    return x[(slice(None),) * axis + (_wrapped(index, x.shape[axis]),)]


def _gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, _wrapped(index, x.shape[axis]))


def _columns(index: Tensor, shape: Sequence[int], skipped: int) -> tuple[Tensor, ...]:
    return tuple(_wrapped(index[..., k], shape[skipped + k]) for k in range(index.shape[-1]))


def _gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    columns = _columns(index, x.shape, batch_dims)
    if batch_dims:
        batch = [
            torch.arange(x.shape[d]).reshape([-1 if k == d else 1 for k in range(index.dim() - 1)]) for d in range(batch_dims)
        ]
        columns = (*(each.expand(columns[0].shape) for each in batch), *columns)
    return x[columns]


_SCATTERS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    places = _wrapped(index, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _SCATTERS[reduction])


def _scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    if reduction in ("none", "add"):
        return torch.index_put(x, _columns(index, x.shape, 0), updates, accumulate=reduction == "add")
    inner = math.prod(x.shape[index.shape[-1] :])
    flat = torch.zeros_like(index[..., 0])
    for column, size in zip(_columns(index, x.shape, 0), x.shape, strict=False):
        flat = flat * size + column
    places = (flat.reshape(-1, 1) * inner + torch.arange(inner)).reshape(-1)
    return torch.scatter_reduce(x.reshape(-1), 0, places, updates.reshape(-1), _SCATTERS[reduction]).reshape(x.shape)


def _constant(**given: Any) -> Tensor:
    if "value" in given:
        result: Tensor = given["value"]
        return result
    for name, dtype in (("value_int", torch.int64), ("value_float", torch.float32)):
        for key in (name, f"{name}s"):
            if key in given:
                return torch.tensor(given[key], dtype=dtype)
    raise NotImported("a constant of text")


def _constant_of_shape(shape: Array, *, value: Tensor | None = None) -> Tensor:
    fill = torch.zeros(1) if value is None else value
    return torch.full(ints(shape), fill.item(), dtype=fill.dtype)


def _range(start: Array, limit: Array, delta: Array) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=tensor_of(start).dtype)


def _eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = torch.arange(x.shape[0]).unsqueeze(1), torch.arange(x.shape[1])
    return (columns - rows == k).to(x.dtype if dtype is None else dtype_of(dtype))


def _one_hot(index: Tensor, depth: Array, values: Tensor, *, axis: int = -1) -> Tensor:
    (count,) = ints(depth)
    axis = axis % (index.dim() + 1)
    places = torch.arange(count).reshape([-1] + [1] * (index.dim() - axis))
    hot = _wrapped(index, count).unsqueeze(axis) == places
    return torch.where(hot, values[1], values[0])


def _trilu(x: Tensor, k: Array | None = None, *, upper: int = 1) -> Tensor:
    offset = 0 if k is None else ints(k)[0]
    return torch.triu(x, offset) if upper else torch.tril(x, offset)


def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    depth = c // blocksize**2
    if mode == "DCR":
        split = x.reshape(n, blocksize, blocksize, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        split = x.reshape(n, depth, blocksize, blocksize, h, w).permute(0, 1, 4, 2, 5, 3)
    return split.reshape(n, depth, h * blocksize, w * blocksize)


def _space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    split = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.permute(order).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


def _top_k(x: Tensor, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, ...]:
    values, index = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    (count,) = ints(k)
    return values.narrow(axis, 0, count).clone(), index.narrow(axis, 0, count).clone()


def _reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    time = torch.arange(moved.shape[1])
    ends = lengths.unsqueeze(1)
    places = torch.where(time < ends, ends - 1 - time, time)
    places = places.reshape(*places.shape, *([1] * (moved.dim() - 2))).expand(moved.shape)
    return torch.gather(moved, 1, places).movedim((0, 1), (batch_axis, time_axis)).contiguous()


def _center_crop_pad(x: Tensor, shape: Array, *, axes: Sequence[int] | None = None) -> Tensor:
    dims = [axis % x.dim() for axis in axes] if axes is not None else list(range(x.dim()))
    for dim, size in zip(dims, ints(shape), strict=True):
        have = x.shape[dim]
        if have >= size:
            x = x.narrow(dim, (have - size) // 2, size)
        else:
            before = (size - have) // 2
            edges = [
                torch.zeros([n if d == dim else s for d, s in enumerate(x.shape)], dtype=x.dtype)
                for n in (before, size - have - before)
            ]
            x = torch.cat([edges[0], x, edges[1]], dim)
    return x.clone()


# Products, norms, losses


def _gemm(
    x: Tensor, y: Tensor, z: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    product = torch.mm(x.t() if transA else x, y.t() if transB else y)
    product = product * alpha if alpha != 1.0 else product
    return product if z is None else product + (z * beta if beta != 1.0 else z)


def _softmax(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *, axis=-1: function(x, axis)


def _hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    best = torch.argmax(x, axis, True)
    places = torch.arange(x.shape[axis]).reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
    return (places == best).to(x.dtype)


def _statistics(x: Tensor, dims: list[int], epsilon: float) -> tuple[Tensor, Tensor]:
    mean = x.mean(dims, True)
    return mean, torch.rsqrt((x - mean).square().mean(dims, True) + epsilon)


def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, ...]:
    wide = x.to(dtype_of(stash_type))
    mean, rstd = _statistics(wide, list(range(axis % x.dim(), x.dim())), epsilon)
    result = ((wide - mean) * rstd).to(x.dtype) * scale
    return (result if bias is None else result + bias), mean, rstd


def _rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    wide = x.to(dtype_of(stash_type))
    dims = list(range(axis % x.dim(), x.dim()))
    return (wide * torch.rsqrt(wide.square().mean(dims, True) + epsilon)).to(x.dtype) * scale


def _channels(vector: Tensor, x: Tensor) -> Tensor:
    return vector.reshape([1, -1] + [1] * (x.dim() - 2))


def _instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, None, None, scale, bias, eps=epsilon)


def _group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    refuse(scale.shape[0] != x.shape[1], "GroupNormalization with a scale for each group")
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if not training_mode:
        return F.batch_norm(x, mean, var, scale, bias, eps=epsilon)
    dims = [0, *range(2, x.dim())]
    own = x.mean(dims)
    own_var = (x - _channels(own, x)).square().mean(dims)
    result = (x - _channels(own, x)) * torch.rsqrt(_channels(own_var, x) + epsilon) * _channels(scale, x) + _channels(bias, x)
    return result, mean * momentum + own * (1 - momentum), var * momentum + own_var * (1 - momentum)


def _lp_norm(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    size = torch.linalg.vector_norm(x, p, axis, True)
    return torch.where(size == 0, torch.zeros_like(x), x / size)


def _mean_variance(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    mean = x.mean(list(axes), True)
    deviation = torch.sqrt((x * x).mean(list(axes), True) - mean * mean)
    return (x - mean) / (deviation + 1e-9)


def _lrn(x: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    before = (size - 1) // 2
    padded = F.pad(x * x, [0, 0] * (x.dim() - 2) + [before, size - 1 - before])
    total = functools.reduce(torch.add, [padded.narrow(1, k, x.shape[1]) for k in range(size)])
    return x / torch.pow(bias + alpha / size * total, beta)


def _nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    return F.nll_loss(x, target.to(torch.int64), weight, reduction=reduction, ignore_index=ignore_index)


def _cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, **a: Any) -> tuple[Tensor, Tensor]:
    log = torch.log_softmax(x, 1)
    return _nll_loss(log, target, weight, **a), log


def _dropout(x: Tensor, ratio: Array | None = None, training: Array | None = None, **_: Any) -> tuple[Tensor, Tensor]:
    on = training is not None and bool(training.item()) and (ratio is None or ratio.item() != 0)
    refuse(on, "random numbers")
    return x.clone(), torch.ones_like(x, dtype=torch.bool)


# Windows


def _pads(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Any, auto_pad: str
) -> list[tuple[int, int]]:
    count = len(kernel)
    if auto_pad == "NOTSET":
        flat = list(pads or [0] * 2 * count)
        return list(zip(flat[:count], flat[count:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * count
    found = []
    for size, taps, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
        small = total // 2
        found.append((small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small))
    return found


def _surrounded(x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    flat = [amount for pair in reversed(pads) for amount in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _conv(x: Tensor, w: Tensor, bias: Tensor | None = None, *, group: int = 1, **a: Any) -> Tensor:
    rank = x.dim() - 2
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    pads = _pads(x, w.shape[2:], strides, dilations, a.get("pads"), a.get("auto_pad", "NOTSET"))
    return _CONVOLUTIONS[rank](_surrounded(x, pads), w, bias, strides, 0, dilations, group)


def _conv_transpose(x: Tensor, w: Tensor, bias: Tensor | None = None, *, group: int = 1, **a: Any) -> Tensor:
    rank = x.dim() - 2
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    extra = list(a.get("output_padding", [0] * rank))
    whole = [(x.shape[d + 2] - 1) * strides[d] + (w.shape[d + 2] - 1) * dilations[d] + 1 + extra[d] for d in range(rank)]
    auto = a.get("auto_pad", "NOTSET")
    shape = a.get("output_shape")
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [x.shape[d + 2] * strides[d] for d in range(rank)]
    if shape is not None:
        totals = [whole[d] - list(shape)[-rank:][d] for d in range(rank)]
        pads = [((t + 1) // 2, t // 2) if auto == "SAME_LOWER" else (t // 2, t - t // 2) for t in totals]
    else:
        flat = list(a.get("pads", [0] * 2 * rank))
        pads = list(zip(flat[:rank], flat[rank:], strict=True))
    refuse(any(total < 0 for pair in pads for total in pair), "ConvTranspose that is padded behind")
    tail = [max(extra[d], 0) for d in range(rank)]
    full = _TRANSPOSED[rank](x, w, None, strides, 0, 0, group, dilations)
    full = _surrounded(full, [(0, t) for t in tail])
    for d, (before, after) in enumerate(pads):
        full = full.narrow(d + 2, before, full.shape[d + 2] - before - after)
    return full if bias is None else full + _channels(bias, full)


def _window_places(size: int, taps: int, stride: int, dilation: int, pads: tuple[int, int], ceil: int) -> int:
    reach = size + sum(pads) - (taps - 1) * dilation - 1
    count = (-(-reach // stride) if ceil else reach // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pads[0] else count


def _taps(x: Tensor, kernel_shape: Sequence[int], a: Mapping[str, Any], *, padding: float = 0.0, beyond: float = 0.0) -> Tensor:
    """Every window's elements as last dimension; ``beyond`` is what a last window reads behind all padding."""
    rank = x.dim() - 2
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    pads = _pads(x, kernel_shape, strides, dilations, a.get("pads"), a.get("auto_pad", "NOTSET"))
    value = _surrounded(x, pads, padding)
    counts = [
        _window_places(x.shape[d + 2], kernel_shape[d], strides[d], dilations[d], pads[d], a.get("ceil_mode", 0))
        for d in range(rank)
    ]
    reach = [(counts[d] - 1) * strides[d] + (kernel_shape[d] - 1) * dilations[d] + 1 for d in range(rank)]
    value = _surrounded(value, [(0, max(reach[d] - value.shape[d + 2], 0)) for d in range(rank)], beyond)
    for d in range(rank):
        places = torch.arange(counts[d]).unsqueeze(1) * strides[d] + torch.arange(kernel_shape[d]) * dilations[d]
        shape = [*value.shape[: d + 2], *places.shape, *value.shape[d + 3 :]]
        value = torch.index_select(value, d + 2, places.reshape(-1)).reshape(shape).movedim(d + 3, -1)
        value = value if d == 0 else value.flatten(-2)
    return value


def _max_pool(x: Tensor, *, kernel_shape: Sequence[int], storage_order: int = 0, **a: Any) -> Tensor:
    refuse(not x.is_floating_point(), "MaxPool of integers")
    return _taps(x, kernel_shape, a, padding=-math.inf, beyond=-math.inf).amax(-1)


def _average_pool(x: Tensor, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **a: Any) -> Tensor:
    ones = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
    counts = _taps(ones, kernel_shape, a, padding=float(count_include_pad)).sum(-1)
    return _taps(x, kernel_shape, a).sum(-1) / counts


def _lp_pool(x: Tensor, *, kernel_shape: Sequence[int], p: int = 2, **a: Any) -> Tensor:
    return torch.pow(torch.pow(_taps(x, kernel_shape, a).abs(), p).sum(-1), 1 / p)


def _global(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x, list(range(2, x.dim())), True)


_GRID_MODES = {"bilinear": "bilinear", "linear": "bilinear", "nearest": "nearest", "bicubic": "bicubic", "cubic": "bicubic"}


def _grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    return F.grid_sample(x, grid, _GRID_MODES[mode], padding_mode, bool(align_corners))


def _affine_grid(theta: Tensor, size: Array, *, align_corners: int = 0) -> Tensor:
    return F.affine_grid(theta, ints(size), bool(align_corners))


def _col2im(x: Tensor, image: Array, block: Array, **a: Any) -> Tensor:
    refuse(len(ints(image)) != 2, "Col2Im of other than two dimensions")
    pads = a.get("pads", [0] * 4)
    refuse(pads[:2] != pads[2:], "Col2Im with unequal padding")
    return F.fold(x, tuple(ints(image)), tuple(ints(block)), a.get("dilations", 1), pads[:2], a.get("strides", 1))


_OF_TORCH = """
Abs Neg Exp Log Sqrt Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Sign Ceil Floor Round Reciprocal Relu
Sigmoid Add Sub Mul IsNaN Where MatMul Det
"""
"""Operators that torch has under the same name, with the same meaning."""

_DRAWN = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

RULES: Mapping[str, Callable[..., Any]] = {
    # Pointwise
    **{name: getattr(torch, name.lower()) for name in _OF_TORCH.split()},
    "Identity": torch.clone,
    "Not": torch.logical_not,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "BitwiseNot": torch.bitwise_not,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "BitShift": _shift,
    "Equal": torch.eq,
    "Less": torch.lt,
    "Greater": torch.gt,
    "LessOrEqual": torch.le,
    "GreaterOrEqual": torch.ge,
    "Div": _div,
    "Mod": _mod,
    "Pow": _pow,
    "Clip": _clip,
    "IsInf": _is_inf,
    "Max": _variadic(torch.maximum),
    "Min": _variadic(torch.minimum),
    "Sum": _variadic(torch.add),
    "Mean": _mean_of,
    "Cast": _cast,
    "BitCast": _bit_cast,
    "CastLike": lambda x, like, **_: x.to(like.dtype),
    "Softplus": lambda x: torch.log1p(torch.exp(-x.abs())) + torch.clamp(x, min=0),
    "Softsign": lambda x: x / (1 + x.abs()),
    "Mish": F.mish,
    "HardSwish": F.hardswish,
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "LeakyRelu": lambda x, *, alpha=0.01: torch.where(x < 0, alpha * x, x),
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "SwiGLU": _swiglu,
    "Swish": lambda x, *, alpha=1.0: x * torch.sigmoid(alpha * x),
    # Reductions and scans
    "ReduceSum": _reduction(_sum, _same),
    "ReduceMean": _reduction(_mean, _same),
    "ReduceProd": _reduction(_product, _same),
    "ReduceMax": _reduction(_extreme(torch.amax, True), _same),
    "ReduceMin": _reduction(_extreme(torch.amin, False), _same),
    "ReduceL1": _reduction(lambda x, dims, keep: _sum(x.abs(), dims, keep), torch.abs),
    "ReduceL2": _reduction(lambda x, dims, keep: _sum(x * x, dims, keep).sqrt(), torch.abs),
    "ReduceLogSum": _reduction(lambda x, dims, keep: _sum(x, dims, keep).log(), torch.log),
    "ReduceLogSumExp": _reduction(lambda x, dims, keep: torch.logsumexp(x, dims, keep), _same),
    "ReduceSumSquare": _reduction(lambda x, dims, keep: _sum(x * x, dims, keep), torch.square),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "CumSum": _scan(torch.cumsum, 0),
    "CumProd": _scan(torch.cumprod, 1),
    # Shapes and positions
    "Shape": lambda x, *, start=0, end=None: torch.tensor(list(x.shape)[start:end], dtype=torch.int64),
    "Size": lambda x: torch.tensor(x.numel()),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "Reshape": _reshape,
    "Expand": _expand,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Tile": lambda x, repeats: x.repeat(ints(repeats)),
    "Concat": lambda *tensors, axis: torch.cat(tensors, axis),
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "Trilu": _trilu,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "TopK": _top_k,
    "ReverseSequence": _reverse_sequence,
    "CenterCropPad": _center_crop_pad,
    # Products, norms, losses
    "Gemm": _gemm,
    "Einsum": lambda *tensors, equation: torch.einsum(equation, *tensors),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "Hardmax": _hardmax,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "BatchNormalization": _batch_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance,
    "LRN": _lrn,
    "NegativeLogLikelihoodLoss": _nll_loss,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "Dropout": _dropout,
    # Windows
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global(torch.mean),
    "GlobalMaxPool": _global(torch.amax),
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    "Col2Im": _col2im,
    # Families of their own
    **onnx_attention.RULES,
    **onnx_recurrent.RULES,
    **onnx_resize.RULES,
    **onnx_selection.RULES,
    **onnx_spectral.RULES,
    # Numbers that no test can foretell
    **dict.fromkeys(_DRAWN, _drawn),
}
