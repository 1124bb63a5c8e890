"""Rules written in torch: a function of tensors is traced to prims, which have rules of their own.

For prims without an operator of ONNX that are rare in models. Their shapes must be known.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime import linalg
from vendor_sdk import HALVES, OPSET

Tensor = torch.Tensor
Function = Callable[..., Any]


def _of_row(name: str) -> Function:
    """A prim's own decomposition."""
    function = OPSET[name].decomposition
    assert function is not None
    return function


# Sampling at positions of a grid

_ZEROS, _BORDER, _REFLECTION = range(3)
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_FAR = 1e9
"""Positions are limited to it, so that they fit integers."""


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """``x`` mirrored at both ends until it lies between them."""
    span = high - low
    if span == 0:
        return torch.zeros_like(x)
    offset = torch.remainder((x - low).abs(), 2 * span)
    return low + torch.minimum(offset, 2 * span - offset)


def _kept_inside(x: Tensor, size: int, padding: int, align: bool) -> Tensor:
    if padding == _REFLECTION:
        x = _reflected(x, 0.0, size - 1.0) if align else _reflected(x, -0.5, size - 0.5)
    return _limited(x, 0, size - 1) if padding else x


def _limited(x: Tensor, low: float, high: float) -> Tensor:
    """A clamp without slope at its ends, as torch's kernels have it."""
    return torch.where(x <= low, low, torch.where(x >= high, high, x))


def _read(x: Tensor, places: Sequence[Tensor], padding: int, align: bool) -> Tensor:
    """``x`` (n, c, sizes) at whole-numbered positions, one tensor (n, outputs) a dimension: (n, c, outputs)."""
    sizes = x.shape[2:]
    flat: Any = 0
    valid: Any = None
    for place, size in zip(places, sizes, strict=True):
        place = _kept_inside(place, size, padding, align)
        inside = (place >= 0) & (place <= size - 1)
        valid = inside if valid is None else valid & inside
        flat = flat * size + place.clamp(0, size - 1).to(torch.int64)
    index = flat.unsqueeze(1).expand(x.shape[0], x.shape[1], flat.shape[1])
    values = torch.gather(x.flatten(2), 2, index)
    return torch.where(valid.unsqueeze(1), values, 0.0)  # not a product: what is read beside may be NaN


def _cubic(t: Tensor) -> list[Tensor]:
    """Weights of the four taps around position t in [0, 1), with torch's parameter -3/4."""
    a = -0.75

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def grid_sampler(x: Tensor, grid: Tensor, interpolation: int, padding: int, align: bool) -> Tensor:
    """torch's ``grid_sample`` in two or three dimensions."""
    sizes = x.shape[2:]
    rank = len(sizes)
    positions = grid.flatten(1, rank).flip(-1)
    places = []
    for d, size in enumerate(sizes):
        place = positions[..., d]
        place = (place + 1) / 2 * (size - 1) if align else ((place + 1) * size - 1) / 2
        if interpolation != _BICUBIC:
            place = _kept_inside(place, size, padding, align)
        places.append(_limited(place, -_FAR, _FAR))
    if interpolation == _NEAREST:
        value: Any = _read(x, [place.round() for place in places], padding, align)
    else:
        floors = [place.floor() for place in places]
        rests = [place - floor for place, floor in zip(places, floors, strict=True)]
        first = 0 if interpolation == _BILINEAR else -1
        weights = [[1 - rest, rest] if interpolation == _BILINEAR else _cubic(rest) for rest in rests]
        value = 0
        for taps in itertools.product(range(len(weights[0])), repeat=rank):
            weight = functools.reduce(torch.mul, [weights[d][tap] for d, tap in enumerate(taps)])
            corner = [floors[d] + (tap + first) for d, tap in enumerate(taps)]
            value = value + _read(x, corner, padding, align) * weight.unsqueeze(1)
    return value.reshape(x.shape[0], x.shape[1], *grid.shape[1:-1])  # type: ignore[no-any-return]


def _grid_sampler_backward(
    grad: Tensor, x: Tensor, grid: Tensor, interpolation: int, padding: int, align: bool, output_mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor]:
    """By differentiating ``grid_sampler``."""
    pull: Any = torch.func.vjp(lambda a, b: grid_sampler(a, b, interpolation, padding, align), x, grid)[1]
    grad_x, grad_grid = pull(grad)
    return (grad_x if output_mask[0] else None), grad_grid


# Bags and segments


def _owners(bounds: Tensor, count: int) -> Tensor:
    """For each of ``count`` elements how many of the bounds, which ascend, it is not below."""
    return (torch.arange(count).unsqueeze(1) >= bounds.unsqueeze(0)).sum(1)


def _members(owners: Tensor, count: int) -> Tensor:
    """(count, elements): which element belongs to which owner."""
    return torch.arange(count).unsqueeze(1) == owners.unsqueeze(0)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = weight.to(torch.float32) if weight.dtype in HALVES else weight
    bags = offsets.shape[0] - int(include_last_offset)
    owner = _owners(offsets[:bags], indices.shape[0]) - 1
    kept = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    rows = wide[indices.to(torch.int64)]
    own = _members(owner, bags) & kept
    sizes = own.sum(1)
    if mode == 2:
        low = torch.where(own.unsqueeze(2), rows, -math.inf)
        best, place = torch.max(low, 1)
        result = torch.where((sizes > 0).unsqueeze(1), best, 0.0)
        chosen = torch.where((sizes > 0).unsqueeze(1), indices.to(torch.int64)[place], -1)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.to(wide.dtype).unsqueeze(1)
        if padding_idx >= 0:
            rows = torch.where(kept.unsqueeze(1), rows, 0.0)
        result = torch.zeros([bags, wide.shape[1]], dtype=wide.dtype).index_put([owner], rows, accumulate=True)
        if mode == 1:
            result = result / sizes.clamp(min=1).to(wide.dtype).unsqueeze(1)
        chosen = torch.zeros(bags, dtype=torch.int64)
    kinds = indices.dtype
    return result.to(weight.dtype), owner.to(kinds), sizes.to(kinds), chosen.to(kinds)


def _bag_owners(indices: Tensor, offsets: Tensor, offset2bag: Tensor) -> Tensor:
    """The bag of each index; torch's forward leaves it out where its own backward does not need it."""
    return offset2bag if offset2bag.shape == indices.shape else _owners(offsets, indices.shape[0]) - 1


def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if sparse:
        raise NotImplementedError("sparse gradients")
    wide, places = _wide(grad), indices.to(torch.int64)
    result = torch.zeros([num_weights, grad.shape[1]], dtype=wide.dtype)
    if mode == 2:
        chosen = maximum_indices.to(torch.int64).reshape(wide.shape)
        added = torch.where(chosen >= 0, wide, 0.0)
        return result.scatter_add(0, chosen.clamp(min=0), added).to(grad.dtype)
    bag = _bag_owners(indices, offsets, offset2bag).to(torch.int64)
    rows = wide[bag]
    if mode == 1:
        rows = rows / bag_size.clamp(min=1).to(wide.dtype)[bag].unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * _wide(per_sample_weights).unsqueeze(1)
    if scale_grad_by_freq:
        rows = rows / _members(places, num_weights).sum(1).to(wide.dtype)[places].unsqueeze(1)
    if padding_idx >= 0:
        rows = torch.where((places == padding_idx).unsqueeze(1), 0.0, rows)
    return result.index_put([places], rows, accumulate=True).to(grad.dtype)


def _bag_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    places = indices.to(torch.int64)
    bag = _bag_owners(indices, offsets, offset2bag).to(torch.int64)
    products = (_wide(grad)[bag] * _wide(weight)[places]).sum(1)
    return torch.where(places == padding_idx, 0.0, products).to(grad.dtype) if padding_idx >= 0 else products.to(grad.dtype)


def _segment_bounds(lengths: Tensor | None, offsets: Tensor | None, axis: int) -> tuple[Tensor, Tensor]:
    """Ends and lengths of the segments."""
    given = lengths if lengths is not None else offsets
    if given is None or given.dim() != 1 or axis != 0:
        raise NotImplementedError("segments along other than the first dimension")
    if lengths is not None:
        return torch.cumsum(lengths, 0), lengths
    return given[1:], given[1:] - given[:-1]


_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_SCATTERED = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in HALVES else x


def _by_segment(data: Tensor, owner: Tensor, count: int, start: Any, reduce: str) -> Tensor:
    """Reduced into ``count`` segments; an owner beyond them is dropped."""
    index = owner.reshape(-1, *([1] * (data.dim() - 1))).expand(data.shape)
    initial = torch.full([count + 1, *data.shape[1:]], start, dtype=data.dtype)
    return torch.scatter_reduce(initial, 0, index, data, _SCATTERED[reduce])[:count]


def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    ends, sizes = _segment_bounds(lengths, offsets, axis)
    count = ends.shape[0]
    start = _NEUTRAL[reduce] if initial is None else initial
    result = _by_segment(_wide(data), _owners(ends, data.shape[0]), count, start, reduce)
    if reduce == "mean":
        parts = sizes.to(result.dtype).reshape(-1, *([1] * (data.dim() - 1)))
        empty = torch.full_like(result, math.nan) if initial is None else result
        result = torch.where(parts > 0, result / parts, empty)
    return result.to(data.dtype)


def _segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    ends, sizes = _segment_bounds(lengths, offsets, axis)
    count, value = ends.shape[0], _wide(data)
    owner = _owners(ends, data.shape[0])
    inside = (owner < count).reshape(-1, *([1] * (data.dim() - 1)))
    place = owner.clamp(max=max(count - 1, 0))
    own = _wide(grad)[place]
    if reduce == "mean":
        own = own / sizes.to(own.dtype)[place].reshape(-1, *([1] * (data.dim() - 1)))
    elif reduce in ("max", "min"):
        best = (value == _wide(output)[place]) | value.isnan()
        shared = _by_segment(best.to(value.dtype), owner, count, 0.0, "sum")[place]
        own = torch.where(best, own / shared, 0.0)
    elif reduce == "prod":
        zero = value == 0
        zeros = _by_segment(zero.to(value.dtype), owner, count, 0.0, "sum")[place]
        others = _by_segment(torch.where(zero, 1.0, value), owner, count, 1.0 if initial is None else initial, "prod")[place]
        alone = torch.where(zeros == 1, others, 0.0)
        own = own * torch.where(zero, alone, torch.where(zeros > 0, 0.0, others / torch.where(zero, 1.0, value)))
    return torch.where(inside, own, 0.0).to(data.dtype)


# Others


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    value = _wide(x.reshape(-1))
    if min == max and value.shape[0]:
        low, high = value.amin(), value.amax()
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    else:
        low, high = torch.full([], float(min), dtype=value.dtype), torch.full([], float(max), dtype=value.dtype)
    inside = (value >= low) & (value <= high)
    place = ((value - low) * bins / (high - low)).clamp(0, bins - 1)
    place = torch.where(inside, place, 0.0).to(torch.int64)
    return torch.zeros(bins, dtype=value.dtype).scatter_add(0, place, inside.to(value.dtype)).to(x.dtype)


def _antialiased(size: int, out: int, align: bool, scale: float | None) -> Tensor:
    """(out, size): what each place of a result reads, by a triangle as wide as the reduction. float64."""
    if align:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        step = 1 / scale if scale else size / out
    reach = max(step, 1.0)
    centre = (torch.arange(out).double().unsqueeze(1) + 0.5) * step
    place = torch.arange(size).double()
    inside = (place >= torch.floor(centre - reach + 0.5)) & (place < torch.floor(centre + reach + 0.5))
    weight = torch.where(inside, (1 - ((place - centre + 0.5) / reach).abs()).clamp(min=0), 0.0)
    return weight / weight.sum(1, True)


def _upsample_aa(
    x: Tensor, output_size: Sequence[int], align: bool, scale_h: float | None = None, scale_w: float | None = None
) -> Tensor:
    rows = _antialiased(x.shape[2], output_size[0], align, scale_h).to(x.dtype)
    columns = _antialiased(x.shape[3], output_size[1], align, scale_w).to(x.dtype)
    return torch.matmul(torch.matmul(rows, x), columns.mT)


def _upsample_aa_backward(
    grad: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align: bool,
    scale_h: float | None = None,
    scale_w: float | None = None,
) -> Tensor:
    rows = _antialiased(input_size[2], output_size[0], align, scale_h).to(grad.dtype)
    columns = _antialiased(input_size[3], output_size[1], align, scale_w).to(grad.dtype)
    return torch.matmul(torch.matmul(rows.mT, grad), columns)


def _fractional_starts(u: Tensor, size: int, out: int, extent: int) -> Tensor:
    """Where the windows begin, (..., out): floor((o + u) alpha) - floor(u alpha), the last one at the end. Graham, "Fractional
    max-pooling" (2014), section 2, in the samples' dtype."""
    last = torch.full([*u.shape, 1], size - extent, dtype=torch.int64)
    if out == 1:
        return last
    alpha = torch.full([], size - extent, dtype=u.dtype) / torch.full([], out - 1, dtype=u.dtype)
    u = u.unsqueeze(-1)
    moved = ((torch.arange(out - 1).to(u.dtype) + u) * alpha).to(torch.int64) - (u * alpha).to(torch.int64)
    return torch.cat([moved, last], -1).clamp(0, size - extent)


def _fractional_max_pool(rank: int) -> Function:
    def function(x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
        batched = x.dim() == rank + 2
        value = x if batched else x.unsqueeze(0)
        lead, sizes = value.shape[:2], value.shape[2:]
        flat: Any = torch.zeros([*lead, *[1] * (2 * rank)], dtype=torch.int64)
        for d in range(rank):
            # torch stores the samples of two dimensions innermost first, those of three outermost first.
            u = samples[..., 1 - d if rank == 2 else d].expand(lead)
            starts = _fractional_starts(u, sizes[d], output_size[d], kernel_size[d])
            places = starts.unsqueeze(-1) + torch.arange(kernel_size[d])
            shape = [*lead, *[1] * (2 * rank)]
            shape[2 + d], shape[2 + rank + d] = output_size[d], kernel_size[d]
            flat = flat * sizes[d] + places.reshape(shape)
        windows = flat.flatten(2 + rank)
        taps = torch.gather(value.flatten(2), 2, windows.flatten(2)).reshape(windows.shape)
        best, place = torch.max(taps, -1)
        index = torch.gather(windows, -1, place.unsqueeze(-1)).squeeze(-1)
        return (best, index) if batched else (best.squeeze(0), index.squeeze(0))

    return function


FUNCTIONS: Mapping[str, Function] = {
    "grid_sampler_2d": grid_sampler,
    "grid_sampler_3d": grid_sampler,
    "grid_sampler_2d_backward": _grid_sampler_backward,
    "grid_sampler_3d_backward": _grid_sampler_backward,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_backward": _embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward": _bag_weights_backward,
    "segment_reduce": _segment_reduce,
    "_segment_reduce_backward": _segment_reduce_backward,
    "histc": _histc,
    "fractional_max_pool2d": _fractional_max_pool(2),
    "fractional_max_pool3d": _fractional_max_pool(3),
    "_upsample_bilinear2d_aa": _upsample_aa,
    "_upsample_bilinear2d_aa_backward": _upsample_aa_backward,
    **linalg.FUNCTIONS,
    "mode": _of_row("mode"),
    "_cdist_backward": _of_row("_cdist_backward"),
}
"""Prim to what it means, in torch."""
