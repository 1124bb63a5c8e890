"""Rules for indexing and scattering operators that are no prims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten, broadcast_shapes, cast, full, number

POSITIONS = Rules()
rule = POSITIONS.rule

Tensor = torch.Tensor


def _flat(x: Tensor) -> Tensor:
    return aten.reshape.default(x, [-1])  # type: ignore[no-any-return]


def _arange(start: Any, end: Any, like: Tensor) -> Tensor:
    return aten.arange.start_step(start, end, 1, dtype=torch.int64, device=like.device)  # type: ignore[no-any-return]


@rule(aten.take.default)
def take(x: Tensor, index: Tensor) -> Any:
    return aten.index.Tensor(_flat(x), [index])


@rule(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    placed = aten.index_put.default(_flat(x), [_flat(index)], _flat(source), accumulate)
    return aten.reshape.default(placed, list(x.shape))


@rule(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    scaled = source if alpha == 1 else aten.mul.Tensor(source, alpha)
    line = x if x.dim() else aten.reshape.default(x, [1])
    places = [None] * (dim % line.dim()) + [aten.reshape.default(index, [-1])]
    added = aten.index_put.default(line, places, scaled, True).contiguous()  # as torch has it, however x lies
    return added if x.dim() else aten.reshape.default(added, [])


@rule(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[Any]) -> Any:
    """The k-th element taken by the mask goes to position k; what the mask leaves goes to a place cut off at the end."""
    shape = broadcast_shapes(grad.shape, mask.shape)
    taken = _flat(aten.expand.default(mask, list(shape)))
    values = _flat(aten.expand.default(grad, list(shape)))
    wanted, length = math.prod(sizes), max(math.prod(sizes), taken.shape[0])
    rank = aten.sub.Tensor(aten.cumsum.default(cast(taken, torch.int64), 0), 1)
    place = aten.where.self(taken, rank, number(length, torch.int64, grad))
    start = full(0, [length + 1], grad.dtype, grad)
    gathered = aten.index_put.default(start, [place], values)
    return aten.reshape.default(aten.slice.Tensor(gathered, 0, 0, wanted), list(sizes))


@rule(aten.searchsorted.Scalar)
def searchsorted_scalar(sequence: Tensor, value: Any, **kwargs: Any) -> Any:
    return aten.searchsorted.Tensor(sequence, number(value, sequence.dtype, sequence), **kwargs)


@rule(aten.bucketize.Scalar)
def bucketize_scalar(value: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    return aten.searchsorted.Tensor(boundaries, number(value, boundaries.dtype, boundaries), out_int32=out_int32, right=right)


def _counts(x: Tensor, edges: Tensor, weight: Tensor | None, density: bool) -> Any:
    """Elements of ``x`` between consecutive edges; the last interval is closed, what lies outside counts nowhere."""
    bins = edges.shape[0] - 1
    values = _flat(x)
    place = aten.sub.Tensor(aten.searchsorted.Tensor(edges, values, right=True), 1)
    last = aten.select.int(edges, 0, bins)
    place = aten.where.self(aten.eq.Tensor(values, last), number(bins - 1, torch.int64, x), place)
    first = aten.select.int(edges, 0, 0)
    inside = aten.logical_and.default(aten.ge.Tensor(values, first), aten.le.Tensor(values, last))
    place = aten.where.self(inside, place, number(bins, torch.int64, x))
    amounts = full(1, values.shape, x.dtype, x) if weight is None else _flat(weight)
    counts = aten.index_put.default(full(0, [bins + 1], x.dtype, x), [place], amounts, True)
    counts = aten.slice.Tensor(counts, 0, 0, bins)
    if density:
        widths = aten.sub.Tensor(aten.slice.Tensor(edges, 0, 1, bins + 1), aten.slice.Tensor(edges, 0, 0, bins))
        counts = aten.div.Tensor(counts, aten.mul.Tensor(widths, aten.sum.dim_IntList(counts, [0])))
    return counts


@rule(aten.histogram.bin_ct)
def histogram(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    if range is not None:
        low, high = (number(value, x.dtype, x) for value in range)
    elif x.numel() == 0:
        low, high = number(0, x.dtype, x), number(1, x.dtype, x)
    else:
        low, high = aten.amin.default(_flat(x), [0]), aten.amax.default(_flat(x), [0])
    half = number(0.5, x.dtype, x)
    point = aten.eq.Tensor(low, high)
    low = aten.where.self(point, aten.sub.Tensor(low, half), low)
    high = aten.where.self(point, aten.add.Tensor(high, half), high)
    steps = cast(_arange(0, bins + 1, x), x.dtype)
    edges = aten.add.Tensor(low, aten.mul.Tensor(steps, aten.div.Tensor(aten.sub.Tensor(high, low), bins)))
    edges = aten.cat.default([aten.slice.Tensor(edges, 0, 0, bins), aten.unsqueeze.default(high, 0)])
    return _counts(x, edges, weight, density), edges


@rule(aten.histogram.bins_tensor)
def histogram_of_bins(x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:
    return _counts(x, bins, weight, density), aten.clone.default(bins)


@rule(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


@rule(aten.median.default)
def median(x: Tensor) -> Any:
    return aten.median.dim(_flat(x), 0)[0] if x.numel() else full(math.nan, (), x.dtype, x)


@rule(aten.nanmedian.default)
def nanmedian(x: Tensor) -> Any:
    return aten.nanmedian.dim(_flat(x), 0)[0] if x.numel() else full(math.nan, (), x.dtype, x)


_REDUCTIONS = {"add": "sum", "multiply": "prod"}
"""scatter's names for what scatter_reduce calls otherwise."""


@rule(aten.scatter.reduce)
def scatter_with_reduction(x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    return aten.scatter_reduce.two(x, dim, index, source, _REDUCTIONS[reduce], include_self=True)


@rule(aten.scatter.value_reduce)
def scatter_value_with_reduction(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Any:
    return scatter_with_reduction(x, dim, index, full(value, index.shape, x.dtype, x), reduce=reduce)


@rule(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, *, output_size: Any = None) -> Any:
    """Number i as often as ``repeats[i]`` says; without ``output_size`` the size depends on the data."""
    if output_size is None:
        return NotImplemented
    ends = aten.cumsum.default(cast(repeats, torch.int64), 0)
    return cast(aten.searchsorted.Tensor(ends, _arange(0, output_size, repeats), right=True), repeats.dtype)
