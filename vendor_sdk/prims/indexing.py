"""Indexing and scatter prims: elements read or written at positions that are data.

Reading and writing moves data and is exact. Accumulating writes bound the sum. Where several writes of a non-accumulating
scatter hit one position, torch leaves open which one stays, so the samples have no such duplicates.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import BY_DEFINITION, OF_PRODUCTS, OF_SUMS, Accumulated, Bound, Exact, Property
from vendor_sdk.prims.data_sets import ONE, labelled, many, scattered, sparse, with_specials, with_wrapping
from vendor_sdk.prims.row import ALL, FLOATS, HALVES, INTS, NUMBERS, STORED, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext, Sampler
from vendor_sdk.prims.view import flat_positions

aten = torch.ops.aten

Tensor = torch.Tensor


def _iota(like: Tensor, size: Any) -> Tensor:
    result: Tensor = aten.arange.start_step(0, size, 1, dtype=torch.int64, device=like.device)
    return result


def _flat(self: Tensor) -> Tensor:
    result: Tensor = aten.view.default(aten.clone.default(self, memory_format=torch.contiguous_format), [-1])
    return result


def _broadcast(self: Tensor, mask: Tensor) -> list[Any]:
    return list(torch.broadcast_shapes(self.shape, mask.shape))  # type: ignore[no-untyped-call]


def _put(self: Tensor, index: Sequence[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    result: Tensor = aten.index_put.default(self, index, source, accumulate)
    return result


def _grid(index: Tensor, dim: int) -> list[Tensor]:
    """``index`` at ``dim`` and the element's own coordinate elsewhere: what gather and scatter address."""
    places = []
    for d, size in enumerate(index.shape):
        if d == dim:
            places.append(index)
        else:
            shape: list[Any] = [1] * index.dim()
            shape[d] = size
            places.append(aten.view.default(_iota(index, size), shape))
    return places


def _like_index(source: Tensor, index: Tensor) -> Tensor:
    """The leading part of ``source`` that ``index`` covers."""
    for dim, size in enumerate(index.shape):
        if source.shape[dim] != size:
            source = aten.slice.Tensor(source, dim, 0, size)
    return source


def _dim(dim: int, rank: int) -> int:
    return dim % max(rank, 1)


def decompose_index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    if self.dim() == 0:
        copy: Tensor = aten.clone.default(self)
        return copy
    line = aten.view.default(index, [-1])
    result: Tensor = aten.index.Tensor(self, [None] * _dim(dim, self.dim()) + [line])
    return result


def decompose_gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    shape = list(index.shape)
    if self.dim() == 0:
        self = aten.unsqueeze.default(self, 0)
    if index.dim() == 0:
        index = aten.unsqueeze.default(index, 0)
    found = aten.index.Tensor(self, _grid(index, _dim(dim, index.dim())))
    result: Tensor = aten.view.default(found, shape)
    return result


def _scatter(self: Tensor, dim: int, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    shape = list(self.shape)
    if self.dim() == 0:
        self = aten.unsqueeze.default(self, 0)
    if index.dim() == 0:
        index = aten.unsqueeze.default(index, 0)
    written = _put(self, _grid(index, _dim(dim, index.dim())), source, accumulate)
    result: Tensor = aten.view.default(written, shape) if written.dim() != len(shape) else written
    return result


def decompose_scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(self, dim, index, _like_index(src, index), False)


def decompose_scatter_value(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    source = aten.full.default([], value, dtype=self.dtype, device=self.device)
    return _scatter(self, dim, index, source, False)


def decompose_scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(self, dim, index, _like_index(src, index), True)


def decompose_masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = _broadcast(self, mask)
    self, mask = aten.expand.default(self, shape), aten.expand.default(mask, shape)
    if source.numel() == 0:
        unchanged: Tensor = aten.clone.default(self)
        return unchanged
    taken = _flat(mask)
    order = aten.sub.Tensor(aten.cumsum.default(taken, 0, dtype=torch.int64), 1)
    # Positions before the first True have order -1; the value read there is discarded below.
    order = aten.where.self(taken, order, aten.full.default([], 0, dtype=torch.int64, device=self.device))
    drawn = aten.view.default(aten.index.Tensor(_flat(source), [order]), shape)
    result: Tensor = aten.where.self(mask, drawn, self)
    return result


def decompose_slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Tensor:
    dim = _dim(dim, self.dim())
    size = self.shape[dim]
    if size == 0:
        copy: Tensor = aten.clone.default(self)
        return copy
    line = aten.slice.Tensor(_iota(self, size), 0, start, end, step)
    return _put(self, [None] * dim + [line], src)


def decompose_diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = dim1 % self.dim(), dim2 % self.dim()
    order = [d for d in range(self.dim()) if d not in (first, second)] + [first, second]
    moved = aten.permute.default(self, order)
    steps = _iota(self, src.shape[-1])
    row, column = aten.add.Tensor(steps, max(-offset, 0)), aten.add.Tensor(steps, max(offset, 0))
    written = _put(moved, [None] * (self.dim() - 2) + [row, column], src)
    result: Tensor = aten.permute.default(written, [order.index(d) for d in range(self.dim())])
    return result


def decompose_as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Tensor:
    position = flat_positions(self, size, stride, storage_offset or 0)
    result: Tensor = aten.view.default(_put(_flat(self), [position], src), list(self.shape))
    return result


def decompose_index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    dim = _dim(dim, self.dim())
    shape: list[Any] = [1] * source.dim()
    if shape:
        shape[dim] = index.shape[0] if index.dim() else 1
    wide = aten.expand.default(aten.view.default(index, shape), list(source.shape))
    result: Tensor = aten.scatter_reduce.two(self, dim, wide, source, reduce, include_self=include_self)
    return result


def decompose_masked_select(self: Tensor, mask: Tensor) -> Tensor:
    shape = _broadcast(self, mask)
    places = aten.squeeze.dims(aten.nonzero.default(_flat(aten.expand.default(mask, shape))), [1])
    result: Tensor = aten.index.Tensor(_flat(aten.expand.default(self, shape)), [places])
    return result


def decompose_bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    result: Tensor = aten.searchsorted.Tensor(boundaries, self, out_int32=out_int32, right=right)
    return result


def decompose_embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Tensor:
    width = grad_output.shape[-1]
    line = _flat(indices)
    rows = aten.view.default(_flat(grad_output), [line.shape[0], width])
    zero = aten.full.default([], 0, dtype=grad_output.dtype, device=grad_output.device)
    if scale_grad_by_freq:
        ones = aten.full.default([], 1, dtype=grad_output.dtype, device=grad_output.device)
        none = aten.full.default([num_weights], 0, dtype=grad_output.dtype, device=grad_output.device)
        frequency = aten.index.Tensor(_put(none, [line], ones, True), [line])
        rows = aten.div.Tensor(rows, aten.unsqueeze.default(frequency, 1))
    if padding_idx >= 0:
        rows = aten.where.self(
            aten.unsqueeze.default(
                aten.eq.Tensor(line, aten.full.default([], padding_idx, dtype=line.dtype, device=line.device)), 1
            ),
            zero,
            rows,
        )
    start = aten.full.default([num_weights, width], 0, dtype=grad_output.dtype, device=grad_output.device)
    return _put(start, [line], rows, True)


@draw.by_effort
def _index(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 11, 67), [draw.indices(ctx, (5,), 11)]), label="rows")
    yield Sample((draw.values(ctx, 5, 7), [torch.tensor([-1, 0, 3]), torch.tensor([[2], [-7]])]), label="broadcast, negative")
    yield Sample((draw.transposed(ctx, 6, 9), [None, draw.indices(ctx, (2, 3), 9)]), label="second dim, transposed")
    yield Sample(
        (draw.values(ctx, 3, 4, 5), [draw.indices(ctx, (6,), 3), None, draw.indices(ctx, (6,), 5)]), label="split dims"
    )
    yield Sample((draw.values(ctx, 4, 3), [torch.zeros(0, dtype=torch.int64)]), label="empty index")
    yield Sample((draw.values(ctx, 131), [torch.tensor(7)]), label="0-d index")
    yield Sample((draw.expanded(ctx, 3, 4), [torch.tensor([2, 2, 0])]), label="expanded, duplicates")
    yield Sample((draw.values(ctx, 0, 3), [torch.zeros(0, dtype=torch.int64)]), label="empty self")


@draw.by_effort
def _index_put(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 11, 67), [draw.permutation(ctx, 11)[:5]], draw.values(ctx, 5, 67)), label="rows")
    duplicates = draw.indices(ctx, (40,), 7)
    yield Sample((draw.values(ctx, 7, 3), [duplicates], draw.values(ctx, 40, 3), True), label="accumulate duplicates")
    places = [torch.tensor([-1, 0, 3]), torch.tensor([[2], [-7]])]
    yield Sample((draw.values(ctx, 5, 7), places, draw.values(ctx, 2, 3)), label="broadcast, negative")
    yield Sample((draw.transposed(ctx, 6, 9), [None, torch.tensor([8, 1])], draw.values(ctx, 1)), label="one value, transposed")
    spread = [draw.permutation(ctx, 3), None, draw.permutation(ctx, 5)[:3]]
    yield Sample((draw.values(ctx, 3, 4, 5), spread, draw.values(ctx, 3, 4)), label="split dims")
    yield Sample((draw.values(ctx, 4), [torch.zeros(0, dtype=torch.int64)], draw.values(ctx, 0)), label="empty index")
    yield Sample((draw.values(ctx, 131), [torch.tensor(7)], draw.values(ctx), True), label="0-d index, accumulate")


@draw.by_effort
def _index_select(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 11, 67), 0, draw.indices(ctx, (5,), 11)), label="rows")
    yield Sample((draw.transposed(ctx, 6, 9), -1, torch.tensor([8, 0, 8])), label="columns, duplicates")
    yield Sample((draw.values(ctx, 4, 3), 0, torch.zeros(0, dtype=torch.int64)), label="empty index")
    yield Sample((draw.values(ctx), 0, torch.tensor([0])), label="0-d")
    yield Sample((draw.values(ctx, 2, 5, 3), 1, torch.tensor(4)), label="0-d index")
    yield Sample((draw.expanded(ctx, 4, 131), 0, torch.tensor([3, 1])), label="expanded")


@draw.by_effort
def _gather(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), 1, draw.indices(ctx, (4, 71), 67)), label="columns")
    yield Sample((draw.transposed(ctx, 6, 9), 0, draw.indices(ctx, (8, 3), 6)), label="rows, transposed")
    yield Sample((draw.values(ctx), 0, torch.tensor(0)), label="0-d")
    yield Sample((draw.values(ctx, 3, 4), -1, draw.indices(ctx, (3, 0), 4)), label="empty index")
    yield Sample((draw.values(ctx, 2, 3, 4), 1, draw.indices(ctx, (2, 5, 4), 3)), label="3-d")
    yield Sample((draw.expanded(ctx, 4, 5), 0, draw.indices(ctx, (1, 5), 4)), label="expanded")


def _unique_rows(ctx: SampleContext, rows: int, columns: int, bound: int) -> Tensor:
    """(rows, columns) indices below ``bound``, without duplicates in a row."""
    return torch.stack([draw.permutation(ctx, bound)[:columns] for _ in range(rows)])


def _places(ctx: SampleContext) -> Iterator[tuple[Tensor, int, Tensor, str]]:
    """(self, dim, index without duplicates, label) for scatters."""
    yield draw.values(ctx, 5, 67), 1, _unique_rows(ctx, 4, 31, 67), "columns"
    yield draw.transposed(ctx, 9, 6), 0, _unique_rows(ctx, 4, 5, 9).t(), "rows, transposed"
    yield draw.values(ctx), 0, torch.tensor(0), "0-d"
    yield draw.values(ctx, 3, 4), -1, torch.zeros(3, 0, dtype=torch.int64), "empty index"
    yield draw.values(ctx, 131), -1, draw.permutation(ctx, 131), "whole"
    yield draw.expanded(ctx, 4, 5), 1, _unique_rows(ctx, 2, 3, 5), "expanded"


@draw.by_effort
def _scatter_src(ctx: SampleContext) -> Iterator[Sample]:
    for self, dim, index, label in _places(ctx):
        larger = [size + (1 if index.dim() > 1 else 0) for size in index.shape]
        yield Sample((self, dim, index, draw.values(ctx, *larger)), label=label)


@draw.by_effort
def _scatter_value(ctx: SampleContext) -> Iterator[Sample]:
    for self, dim, index, label in _places(ctx):
        yield Sample((self, dim, index, 1), label=label)


def _overlapping(ctx: SampleContext, low: float = -4.0) -> Iterator[tuple[Tensor, int, Tensor, Tensor, str]]:
    """(self, dim, index with duplicates, source, label) for combining scatters."""
    draws = functools.partial(draw.values, ctx, low=low)
    yield draws(5, 67), 1, draw.indices(ctx, (4, 71), 67), draws(4, 71), "columns"
    yield draws(7, 3), 0, draw.indices(ctx, (40, 3), 7), draws(41, 4), "many to one, larger source"
    yield draws(), 0, torch.tensor(0), draws(), "0-d"
    yield draws(3, 4), -1, torch.zeros(3, 0, dtype=torch.int64), draws(3, 0), "empty index"
    yield (
        draw.transposed(ctx, 6, 9).abs() if low >= 0 else draw.transposed(ctx, 6, 9),
        0,
        draw.indices(ctx, (4, 9), 6),
        draws(9, 4).t(),
        "transposed",
    )
    yield draws(131), 0, draw.indices(ctx, (8,), 131), draws(8), "sparse"


@draw.by_effort
def _scatter_add(ctx: SampleContext) -> Iterator[Sample]:
    for self, dim, index, source, label in _overlapping(ctx):
        yield Sample((self, dim, index, source), label=label)


@draw.by_effort
def _scatter_reduce(ctx: SampleContext) -> Iterator[Sample]:
    kinds = ("sum", "amax", "prod", "mean", "amin")
    # Products of few values near one stay in range; magnitudes are positive so that a mean of integers rounds one way.
    for number, (self, dim, index, source, label) in enumerate(_overlapping(ctx, low=1.0)):
        kind, include = kinds[number % 5], number % 2 == 0
        if kind == "prod":
            self, source = torch.ones_like(self), torch.ones_like(source) + (source > 2).to(source.dtype)
        yield Sample((self, dim, index, source, kind), {"include_self": include}, label=f"{kind}, {label}")
    yield Sample(
        (draw.values(ctx, 5), 0, draw.indices(ctx, (9,), 5), draw.values(ctx, 9), "amin"),
        {"include_self": False},
        label="amin without self",
    )
    yield Sample((draw.values(ctx, 5), 0, torch.tensor([1, 1]), draw.values(ctx, 2), "amax"), label="amax, duplicates")


@draw.by_effort
def _masked_scatter(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), draw.mask(ctx, 5, 67), draw.values(ctx, 5, 67)), label="odd")
    yield Sample((draw.values(ctx, 3, 4), draw.mask(ctx, 4), draw.values(ctx, 20)), label="broadcast mask")
    yield Sample((draw.transposed(ctx, 4, 3), draw.mask(ctx, 3, 4).t(), draw.transposed(ctx, 4, 3)), label="transposed")
    yield Sample((draw.values(ctx, 6), torch.zeros(6, dtype=torch.bool), draw.values(ctx, 6)), label="none taken")
    yield Sample((draw.values(ctx, 6), torch.ones(6, dtype=torch.bool), draw.values(ctx, 6)), label="all taken")
    yield Sample((draw.values(ctx, 0), draw.mask(ctx, 0), draw.values(ctx, 0)), label="empty")


@draw.by_effort
def _slice_scatter(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), draw.values(ctx, 5, 15), 1, 3, 60, 4), label="step")
    yield Sample((draw.values(ctx, 7, 3), draw.values(ctx, 4, 3), 0, -4, 100), label="negative start, end beyond")
    yield Sample((draw.transposed(ctx, 6, 9), draw.transposed(ctx, 6, 7), -1, 2), label="transposed, open end")
    yield Sample((draw.values(ctx, 5), draw.values(ctx, 0), 0, 4, 2), label="empty source")
    yield Sample((draw.values(ctx, 131), draw.values(ctx, 131)), label="whole")
    yield Sample((draw.expanded(ctx, 4, 5), draw.values(ctx, 2, 5), 0, 1, 3), label="expanded")


@draw.by_effort
def _diagonal_scatter(ctx: SampleContext) -> Iterator[Sample]:
    for args in (((67, 71),), ((3, 4, 5), -1, 2, 0), ((3, 3), 5), ((2, 3, 4, 4), 1, -2, -1), ((0, 4),), ((5, 2), 1)):
        shape, rest = args[0], args[1:]
        self = draw.values(ctx, *shape)
        source = draw.values(ctx, *torch.diagonal(self, *rest).shape)
        yield Sample((self, source, *rest), label=f"{'x'.join(map(str, shape))} {rest}")
    yield Sample((draw.transposed(ctx, 5, 8), draw.values(ctx, 5), 3), label="transposed")


@draw.by_effort
def _as_strided_scatter(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 200), draw.values(ctx, 3, 5), [3, 5], [67, 2], 5), label="strided rows")
    yield Sample((draw.values(ctx, 4, 6), draw.values(ctx, 6, 4), [6, 4], [1, 6]), label="transpose")
    yield Sample((draw.values(ctx, 5), draw.values(ctx), [], [], 3), label="one element")
    yield Sample((draw.values(ctx, 5), draw.values(ctx, 0, 2), [0, 2], [1, 1]), label="empty source")


@draw.by_effort
def _index_reduce(ctx: SampleContext) -> Iterator[Sample]:
    kinds = ("amax", "mean", "prod", "amin")
    cases: tuple[tuple[tuple[int, ...], int, int], ...] = (
        ((7, 67), 0, 9),
        ((5, 6), -1, 11),
        ((4, 3, 5), 1, 4),
        ((131,), 0, 40),
        ((3, 4), 1, 0),
        ((6,), 0, 2),
        ((2, 2), 0, 1),
    )
    for number, (shape, dim, count) in enumerate(cases):
        kind = kinds[number % 4]
        wide = list(shape)
        wide[dim] = count
        self, source = draw.values(ctx, *shape, low=1), draw.values(ctx, *wide, low=1)
        if kind == "prod":
            self, source = torch.ones_like(self), torch.ones_like(source) + (source > 2).to(source.dtype)
        index = draw.indices(ctx, (count,), shape[dim])
        yield Sample((self, dim, index, source, kind), {"include_self": number % 3 != 1}, label=f"{kind}, dim {dim}")


@draw.by_effort
def _nonzero(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67, low=-1, high=1),), label="odd")
    yield Sample((draw.values(ctx, 5) * 0,), label="all zero")
    yield Sample((torch.ones_like(draw.values(ctx)),), label="0-d")
    yield Sample((draw.transposed(ctx, 4, 6),), label="transposed")
    yield Sample((draw.values(ctx, 0, 3),), label="empty")


@draw.by_effort
def _nonzero_static(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67, low=-1, high=1),), {"size": 400}, label="padded")
    yield Sample((draw.transposed(ctx, 4, 6),), {"size": 3, "fill_value": 7}, label="cut, transposed")
    yield Sample((draw.values(ctx, 131) * 0,), {"size": 2, "fill_value": 0}, label="all zero")
    yield Sample((draw.values(ctx, 5),), {"size": 0}, label="size zero")


@draw.by_effort
def _masked_select(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), draw.mask(ctx, 5, 67)), label="odd")
    yield Sample((draw.values(ctx, 3, 1), draw.mask(ctx, 1, 131)), label="both broadcast")
    yield Sample((draw.transposed(ctx, 4, 3), draw.mask(ctx, 4, 3)), label="transposed")
    yield Sample((draw.values(ctx, 6), torch.zeros(6, dtype=torch.bool)), label="none taken")
    yield Sample((draw.values(ctx), torch.tensor(True)), label="0-d")
    yield Sample((draw.values(ctx, 0), draw.mask(ctx, 0)), label="empty")


def _ascending(ctx: SampleContext, *shape: int) -> Tensor:
    return draw.values(ctx, *shape).sort(dim=-1).values


@draw.by_effort
def _searchsorted(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_ascending(ctx, 67), draw.values(ctx, 5, 31, low=-6, high=6)), label="1-d boundaries")
    yield Sample((_ascending(ctx, 3, 9), draw.values(ctx, 3, 20)), {"right": True}, label="rows, right")
    yield Sample((_ascending(ctx, 5), draw.values(ctx)), {"out_int32": True}, label="0-d, int32")
    repeated = torch.tensor([1, 1, 2, 2, 2, 4]).to(ctx.dtype)
    yield Sample((repeated, torch.tensor([0, 1, 2, 3, 4, 5]).to(ctx.dtype)), {"side": "right"}, label="ties, right")
    yield Sample((repeated, torch.tensor([0, 1, 2, 3, 4, 5]).to(ctx.dtype)), label="ties, left")
    unsorted = draw.distinct(ctx, 11)
    yield Sample((unsorted, draw.values(ctx, 7)), {"sorter": torch.argsort(unsorted)}, label="sorter")
    yield Sample((_ascending(ctx, 0), draw.values(ctx, 3)), label="empty boundaries")
    yield Sample((_ascending(ctx, 5), draw.transposed(ctx, 4, 3)), label="transposed")


@draw.by_effort
def _bucketize(ctx: SampleContext) -> Iterator[Sample]:
    for sample in _searchsorted(ctx):
        boundaries, self = sample.args
        if boundaries.dim() == 1 and not {"sorter", "side"} & set(sample.kwargs):
            yield Sample((self, boundaries), sample.kwargs, label=sample.label)
    yield Sample((draw.values(ctx, 131), _ascending(ctx, 7)), {"right": True}, label="right")


@draw.by_effort
def _embedding_dense_backward(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 9, 31), draw.permutation(ctx, 9), 9, -1, False), label="each row once")
    yield Sample((draw.values(ctx, 4, 7, 67), draw.indices(ctx, (4, 7), 11), 11, -1, False), label="odd")
    yield Sample((draw.values(ctx, 9, 3), draw.indices(ctx, (9,), 5), 5, 2, False), label="padding index")
    yield Sample((draw.values(ctx, 9, 3), draw.indices(ctx, (9,), 4), 4, -1, True), label="scaled by frequency")
    yield Sample((draw.values(ctx, 131, 2), torch.full((131,), 1), 3, 0, False), label="all to one")
    yield Sample((draw.values(ctx, 0, 3), torch.zeros(0, dtype=torch.int64), 4, -1, False), label="empty")
    yield Sample((draw.values(ctx, 5), torch.tensor(2), 4, -1, False), label="0-d index")


def _bags(ctx: SampleContext) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Arguments of ``_embedding_bag``, in order, with a label."""
    weight = draw.values(ctx, 11, 67)
    entries, offsets = draw.indices(ctx, (20,), 11), torch.tensor([0, 3, 3, 10])
    yield (weight, entries, offsets, False, 0, False, None, False, -1), "sum, an empty bag"
    yield (weight, entries, offsets, False, 1, False, None, False, -1), "mean"
    yield (draw.distinct(ctx, 7, 5), draw.indices(ctx, (9,), 7), torch.tensor([0, 4]), False, 2, False, None, False, -1), "max"
    yield (weight, entries, offsets, False, 0, False, draw.values(ctx, 20), False, -1), "sum, weighted"
    yield (weight, entries, torch.tensor([0, 5, 20]), False, 1, False, None, True, 3), "mean, last offset, padding"
    yield (
        (draw.distinct(ctx, 7, 5), draw.indices(ctx, (9,), 7), torch.tensor([0, 4, 9]), False, 2, False, None, True, -1),
        "max, last offset",
    )
    yield (weight, entries, offsets, True, 0, False, None, False, -1), "sum, scaled by frequency"


def _bag_reference(sample: Sample) -> tuple[Tensor, Tensor]:
    """First result of ``_embedding_bag`` in float64, bag by bag, and the bound on its summation without the unit roundoff."""
    weight, entries, offsets, _, mode, _, per_sample, last, padding = sample.args
    bounds = offsets.tolist() if last else [*offsets.tolist(), entries.numel()]
    rows, growths = [], []
    for first, end in itertools.pairwise(bounds):
        kept = [k for k in range(first, end) if int(entries[k]) != padding]
        taken = weight.double()[entries[kept]]
        if per_sample is not None:
            taken = taken * per_sample.double()[kept].unsqueeze(1)
        if not kept:
            rows.append(torch.zeros(weight.shape[1], dtype=torch.float64))
        elif mode == 2:
            rows.append(taken.max(dim=0).values)
        else:
            rows.append(taken.sum(dim=0) / (len(kept) if mode == 1 else 1))
        growths.append((len(kept) + 1) * taken.abs().sum(dim=0))
    return torch.stack(rows), torch.stack(growths)


def _bag_values(*args: Any) -> tuple[Tensor, None, None, None]:
    """What is defined of ``_embedding_bag``'s results."""
    return _bag_reference(Sample(args))[0], None, None, None


def _check_bag(result: Any, sample: Sample) -> str | None:
    """The bags' values; the other three results are what torch's own backward reads and are unspecified where it does not."""
    output = result[0]
    expected, growth = _bag_reference(sample)
    if output.shape != expected.shape:
        return f"shape {tuple(output.shape)} instead of {tuple(expected.shape)}"
    summing = torch.finfo(torch.float64 if output.dtype is torch.float64 else torch.float32).eps
    allowed = torch.finfo(output.dtype).eps * expected.abs() + summing * growth
    right = ((output.double() - expected).abs() <= allowed) & expected.isfinite()
    right |= (output == expected) | (output.isnan() & expected.isnan())
    return None if bool(right.all()) else f"bags differ by up to {float((output.double() - expected).abs().max()):.3g}"


@draw.by_effort
def _embedding_bag(ctx: SampleContext) -> Iterator[Sample]:
    for args, label in _bags(ctx):
        yield Sample(args, label=label)


@draw.by_effort
def _embedding_bag_backward(ctx: SampleContext) -> Iterator[Sample]:
    for args, label in _bags(ctx):
        weight, entries, offsets, scale, mode, sparse, per_sample, last, padding = args
        # offset2bag is computed, since torch's forward leaves it out where its own fast path does not need it.
        bounds = (offsets if last else torch.cat([offsets, torch.tensor([entries.numel()])])).tolist()
        sizes = torch.tensor([end - first for first, end in itertools.pairwise(bounds)])
        offset2bag = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        forward = torch.ops.aten._embedding_bag.default(weight.float(), *args[1:6], None, last, padding)
        if padding >= 0:
            sizes = forward[2]
        elif last:
            sizes = torch.cat([sizes, torch.tensor([0])])  # as GPUs count: one for the last offset too
        grad = draw.values(ctx, len(bounds) - 1, weight.shape[1])
        starts = offsets[:-1] if last else offsets
        yield Sample(
            (grad, entries, starts, offset2bag, sizes, forward[3], weight.shape[0], scale, mode, sparse, per_sample, padding),
            label=label,
        )


def _bag_gradient(
    grad: Tensor,
    entries: Tensor,
    offsets: Tensor,
    bag_of: Tensor,
    sizes: Tensor,
    places: Tensor,
    rows: int,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    per_sample: Tensor | None,
    padding: int = -1,
) -> Tensor:
    """Gradient of the weight, from its definition."""
    result = torch.zeros(rows, grad.shape[1], dtype=grad.dtype)
    if mode == 2:
        filled = sizes[: grad.shape[0]] > 0
        return result.scatter_add(0, places[filled], grad[filled])
    kept = entries != padding
    entries, bag_of = entries[kept], bag_of[kept]
    terms = grad[bag_of]
    if per_sample is not None:
        terms = terms * per_sample[kept].unsqueeze(1)
    if mode == 1:
        terms = terms / sizes[bag_of].unsqueeze(1)
    if by_frequency:
        terms = terms / torch.bincount(entries, minlength=rows)[entries].unsqueeze(1)
    return result.index_add(0, entries, terms)


@draw.by_effort
def _embedding_bag_weights_backward(ctx: SampleContext) -> Iterator[Sample]:
    weight, entries = draw.values(ctx, 11, 67), draw.indices(ctx, (20,), 11)
    for offsets, padding, label in (
        (torch.tensor([0, 3, 10]), -1, "three bags"),
        (torch.tensor([0]), -1, "one bag"),
        (torch.tensor([0, 5]), 4, "padding"),
    ):
        ends = torch.cat([offsets[1:], torch.tensor([20])])
        offset2bag = torch.repeat_interleave(torch.arange(len(offsets)), ends - offsets)
        yield Sample((draw.values(ctx, len(offsets), 67), weight, entries, offsets, offset2bag, 0, padding), label=label)


def _adding(number: int, sample: Sample) -> bool:
    """Bags that are added up: which of NaN and other values is largest, torch leaves to its kernels."""
    return sample.label in ("sum, an empty bag", "mean", "sum, weighted")


def _bag_terms(*args: Any, **kwargs: Any) -> int:
    return _most_equal(args[1])


@draw.by_effort
def _histc(ctx: SampleContext) -> Iterator[Sample]:
    # Quarters against edges at halves and a power of two of bins: every bin number is exact in every dtype.
    def quarters(*shape: int) -> Tensor:
        return (torch.randint(-16, 17, shape, generator=ctx.generator) / 4 + 0.125).to(ctx.dtype)

    yield Sample((quarters(5, 67), 8, -4, 4), label="odd, some outside")
    yield Sample((quarters(131), 4, 0, 2), label="most outside")
    yield Sample((torch.tensor([0, 1, 2, 3, 4]).to(ctx.dtype), 4, 0, 4), label="last edge included")
    yield Sample((torch.tensor([1, 1, 2, 5]).to(ctx.dtype), 4), label="range of the data")
    yield Sample((quarters(4, 6).t(), 2, -2, 2), label="transposed")


@draw.by_effort
def _bincount(ctx: SampleContext) -> Iterator[Sample]:
    draws = functools.partial(draw.values, ctx, low=0, high=9)
    yield Sample((draws(67),), label="odd")
    yield Sample((draws(20), None, 30), label="minimum length")
    yield Sample((draws(20), torch.randint(-4, 5, (20,), generator=ctx.generator).double()), label="weighted")
    yield Sample((draws(0), None, 3), label="empty")
    yield Sample((draws(262)[::2],), label="strided")


@draw.by_effort
def _segment_reduce(ctx: SampleContext) -> Iterator[Sample]:
    lengths = torch.tensor([3, 0, 5, 1])
    offsets = torch.tensor([0, 3, 3, 8, 9])
    yield Sample((draw.values(ctx, 9, 67), "sum"), {"lengths": lengths, "unsafe": False}, label="sum, an empty segment")
    yield Sample((draw.values(ctx, 9, 3), "max"), {"offsets": offsets, "initial": -9.0}, label="max, offsets")
    yield Sample((draw.values(ctx, 9), "mean"), {"lengths": torch.tensor([4, 5])}, label="mean, 1-d")
    yield Sample((draw.values(ctx, 9, 2), "min"), {"lengths": lengths, "initial": 1.0}, label="min, initial")
    yield Sample((draw.values(ctx, 9, low=0.5, high=1.5), "prod"), {"lengths": lengths}, label="prod")
    rows = torch.tensor([[2, 3], [4, 1]])
    yield Sample((draw.values(ctx, 2, 5), "sum"), {"lengths": rows, "axis": 1}, label="axis 1")


@draw.by_effort
def _segment_reduce_backward(ctx: SampleContext) -> Iterator[Sample]:
    for kind in ("sum", "max", "mean", "min", "prod"):
        data = draw.distinct(ctx, 9, 5) if kind in ("max", "min") else draw.values(ctx, 9, 5, low=0.5, high=1.5)
        lengths = {"lengths": torch.tensor([3, 2, 4])}
        output = torch.ops.aten.segment_reduce.default(data, kind, **lengths)
        yield Sample((draw.values(ctx, 3, 5), output, data, kind), lengths, label=kind)


def _most_equal(index: Tensor) -> int:
    """How often the most frequent index occurs, at least 1."""
    return max(1, int(torch.bincount(index.flatten()).max())) if index.numel() else 1


def _put_terms(self: Tensor, places: Sequence[Tensor | None], source: Tensor, accumulate: bool = False) -> int:
    if not accumulate:
        return 1
    hits = aten.index_put.default(torch.zeros_like(self), places, torch.ones_like(source), True)
    return 1 + int(hits.max()) if hits.numel() else 1


def _scatter_terms(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str = "sum", include_self: bool = True
) -> int:
    """How many values the fullest element takes in, itself among them. A mean divides, which rounds once more; a maximum adds
    nothing up."""
    if reduce in ("amax", "amin"):
        return 1
    hits = aten.scatter_add.default(torch.zeros(self.shape), dim, index, torch.ones(index.shape))
    return 1 + (int(hits.max()) if hits.numel() else 0) + (reduce == "mean")


def _segment_terms(data: Tensor, reduce: str, **kwargs: Any) -> int:
    """The longest segment; a maximum or minimum adds nothing up."""
    longest = kwargs["lengths"].max() if kwargs.get("lengths") is not None else kwargs["offsets"].diff().max()
    return 1 if reduce in ("max", "min") else int(longest) + 1


def _signed(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.dtype is not torch.bool


def _magnitude(target: Callable[..., Any], floats: Sequence[int]) -> Callable[..., Any]:
    """The operation with its arguments at the positions ``floats`` made non-negative."""

    def absolute(*args: Any, **kwargs: Any) -> Any:
        return target(*(a.abs() if n in floats and _signed(a) else a for n, a in enumerate(args)), **kwargs)

    return absolute


MOVED = Exact(signed_zero=True)
_prim = functools.partial(Prim, family=Family.INDEXING, result=Result.SAME, shape=Shape.SAME)


def _row(
    *,
    samples: Sampler,
    operands: Sequence[int] | None = None,
    of: Callable[[int, Sample], bool] = ONE,
    bound: Bound = MOVED,
    dtypes: tuple[torch.dtype, ...] = ALL,
    **rest: Any,
) -> Prim:
    """A row with special values in ``operands`` (all of a floating dtype by default) of some of its samples; what it moves is
    exact."""
    put = scattered if isinstance(bound, Exact) else sparse
    if isinstance(bound, Exact):
        rest.setdefault("source", BY_DEFINITION)
    return _prim(samples=with_specials(samples, put, operands, of), bound=bound, dtypes=dtypes, **rest)


_CANDIDATES: tuple[Prim, ...] = (
    _row(
        name="index",
        target=aten.index.Tensor,
        summary="self[i0, i1, ...] with int64 (negative counts from the end) or bool tensors that broadcast; None keeps a dim",
        shape=Shape.OPERATOR,
        dtypes=STORED,
        samples=_index,
    ),
    _row(
        name="index_put",
        target=aten.index_put.default,
        summary="self with values written (or, with accumulate, added) at self[i0, i1, ...]",
        bound=Accumulated(
            terms=_put_terms,
            magnitude=_magnitude(aten.index_put.default, (0, 2)),
            own_dtype=HALVES,
        ),
        source=OF_SUMS + ", a term for each value that meets in one element, in any order",
        samples=with_wrapping(_index_put, (2,), labelled("accumulate duplicates")),
        of=many(2),
    ),
    _row(
        name="index_select",
        target=aten.index_select.default,
        summary="the given positions of one dimension",
        shape=Shape.OPERATOR,
        dtypes=STORED,
        samples=_index_select,
        decomposition=decompose_index_select,
    ),
    _row(
        name="gather",
        target=aten.gather.default,
        summary="out[i][j] = self[index[i][j]][j] along dim: one position read per element of index",
        shape=Shape.OPERATOR,
        samples=_gather,
        decomposition=decompose_gather,
    ),
    _row(
        name="scatter.src",
        target=aten.scatter.src,
        summary="self with self[index[i][j]][j] = src[i][j] along dim",
        samples=_scatter_src,
        decomposition=decompose_scatter,
    ),
    _row(
        name="scatter.value",
        target=aten.scatter.value,
        summary="self with self[index[i][j]][j] = value along dim",
        samples=_scatter_value,
        decomposition=decompose_scatter_value,
    ),
    _row(
        name="scatter_add",
        target=aten.scatter_add.default,
        summary="self with self[index[i][j]][j] += src[i][j] along dim",
        bound=Accumulated(
            terms=_scatter_terms,
            magnitude=_magnitude(aten.scatter_add.default, (0, 3)),
            own_dtype=HALVES,
        ),
        source=OF_SUMS + ", a term for each value that meets in one element, in any order",
        samples=with_wrapping(_scatter_add, (3,)),
        decomposition=decompose_scatter_add,
    ),
    _row(
        name="scatter_reduce",
        target=aten.scatter_reduce.two,
        summary="self combined with src at index along dim by sum, prod, mean, amax or amin; without self if not include_self",
        dtypes=NUMBERS,
        bound=Accumulated(
            terms=_scatter_terms,
            magnitude=_magnitude(aten.scatter_reduce.two, (0, 3)),
            own_dtype=HALVES,
        ),
        source=OF_SUMS + " (products: 3.1), a term for each value that meets in one element; a mean rounds once more",
        samples=with_wrapping(_scatter_reduce, (3,)),
        of=many(5),
    ),
    _row(
        name="masked_scatter",
        target=aten.masked_scatter.default,
        summary="self with the n-th True position of mask replaced by the n-th element of source",
        samples=_masked_scatter,
        decomposition=decompose_masked_scatter,
    ),
    _row(
        name="slice_scatter",
        target=aten.slice_scatter.default,
        summary="self with self[start:end:step] along dim replaced by src",
        samples=_slice_scatter,
        decomposition=decompose_slice_scatter,
    ),
    _row(
        name="diagonal_scatter",
        target=aten.diagonal_scatter.default,
        summary="self with its diagonal replaced by src",
        samples=_diagonal_scatter,
        decomposition=decompose_diagonal_scatter,
    ),
    _row(
        name="as_strided_scatter",
        target=aten.as_strided_scatter.default,
        summary="self with the elements of a strided view of its row-major buffer replaced by src; no element twice",
        samples=_as_strided_scatter,
        decomposition=decompose_as_strided_scatter,
    ),
    _row(
        name="index_reduce",
        target=aten.index_reduce.default,
        summary="self with rows of source combined into rows index of dim by prod, mean, amax or amin",
        dtypes=NUMBERS,
        bound=Accumulated(
            terms=lambda self, dim, index, source, reduce, include_self=True: 2 + _most_equal(index),
            magnitude=_magnitude(aten.index_reduce.default, (0, 3)),
            own_dtype=HALVES,
        ),
        source=OF_SUMS + " (products: 3.1), a term for each value that meets in one element; a mean rounds once more",
        samples=_index_reduce,
        of=many(4),
        decomposition=decompose_index_reduce,
    ),
    _row(
        name="nonzero",
        target=aten.nonzero.default,
        summary="int64 positions of elements that are not zero, a row each, in row-major order; the size depends on the data",
        result=Result.INT64,
        shape=Shape.OPERATOR,
        bound=Exact(),
        samples=_nonzero,
    ),
    _row(
        name="nonzero_static",
        target=aten.nonzero_static.default,
        summary="the first size rows of nonzero, missing ones filled with fill_value",
        result=Result.INT64,
        shape=Shape.OPERATOR,
        bound=Exact(),
        samples=_nonzero_static,
    ),
    _row(
        name="masked_select",
        target=aten.masked_select.default,
        summary="the elements where mask is True, in row-major order; the size depends on the data",
        shape=Shape.OPERATOR,
        samples=_masked_select,
        decomposition=decompose_masked_select,
    ),
    _row(
        name="searchsorted",
        target=aten.searchsorted.Tensor,
        summary="where each value would be inserted into the ascending last dimension: before equal ones, or after with right",
        dtypes=NUMBERS,
        result=Result.OPERATOR,
        shape=Shape.OPERATOR,
        bound=Exact(),
        samples=_searchsorted,
        operands=(1,),  # boundaries ascend
    ),
    _row(
        name="bucketize",
        target=aten.bucketize.Tensor,
        summary="searchsorted of self in one ascending list of boundaries",
        dtypes=NUMBERS,
        result=Result.OPERATOR,
        bound=Exact(),
        samples=_bucketize,
        operands=(0,),
        decomposition=decompose_bucketize,
    ),
    _row(
        name="embedding_dense_backward",
        target=aten.embedding_dense_backward.default,
        summary="rows of grad_output added into rows indices of a zero weight gradient, except padding_idx",
        dtypes=FLOATS,
        shape=Shape.OPERATOR,
        bound=Accumulated(
            terms=lambda grad, index, *rest: _most_equal(index),
            magnitude=_magnitude(aten.embedding_dense_backward.default, (0,)),
            own_dtype=HALVES,
        ),
        source=OF_SUMS + ", a term for each value that meets in one element, in any order",
        samples=_embedding_dense_backward,
        decomposition=decompose_embedding_dense_backward,
    ),
    _row(
        name="_embedding_bag",
        target=aten._embedding_bag.default,
        summary="rows of weight reduced per bag by sum (0), mean (1) or max (2); further results feed the backward",
        dtypes=FLOATS,
        result=Result.OPERATOR,
        shape=Shape.OPERATOR,
        bound=Property(_check_bag),
        source=OF_SUMS + ", a term a row of the bag (products with weights: 3.1); a maximum is exact",
        samples=_embedding_bag,
        reference=_bag_values,
        of=_adding,
    ),
    _row(
        name="_embedding_bag_backward",
        target=aten._embedding_bag_backward.default,
        summary="gradient of _embedding_bag with respect to weight",
        dtypes=FLOATS,
        shape=Shape.OPERATOR,
        bound=Accumulated(terms=_bag_terms, magnitude=_magnitude(_bag_gradient, (0, 10)), own_dtype=HALVES),
        source=OF_PRODUCTS + ", a term for each bag that a row is in",
        samples=_embedding_bag_backward,
        of=_adding,
        # torch's CPU kernel divides by the frequencies of other rows (2.11 to 2.13).
        reference=_bag_gradient,
    ),
    _row(
        name="_embedding_bag_per_sample_weights_backward",
        target=aten._embedding_bag_per_sample_weights_backward.default,
        summary="gradient of _embedding_bag with respect to per_sample_weights: dot products of grad and weight rows",
        dtypes=FLOATS,
        shape=Shape.OPERATOR,
        bound=Accumulated(
            terms=lambda grad, *rest: max(1, grad.shape[1]),
            magnitude=_magnitude(aten._embedding_bag_per_sample_weights_backward.default, (0, 1)),
        ),
        source=OF_PRODUCTS,
        samples=_embedding_bag_weights_backward,
    ),
    _row(
        name="histc",
        target=aten.histc.default,
        summary="counts of elements in bins equal intervals of [min, max], or of the data's range when both are 0",
        dtypes=FLOATS,
        shape=Shape.OPERATOR,
        bound=Exact(),
        source=BY_DEFINITION + ": no sample lies at an edge that is rounded",
        samples=_histc,
    ),
    _row(
        name="bincount",
        target=aten.bincount.default,
        summary="how often each value 0, 1, ... occurs, or the sum of its weights; the size depends on the data",
        dtypes=INTS,
        result=Result.OPERATOR,
        shape=Shape.OPERATOR,
        bound=Exact(),
        samples=_bincount,
    ),
    _row(
        name="segment_reduce",
        target=aten.segment_reduce.default,
        summary="consecutive segments along axis reduced by sum, mean, max, min or prod; empty ones give initial",
        dtypes=FLOATS,
        shape=Shape.OPERATOR,
        bound=Accumulated(
            terms=_segment_terms,
            magnitude=_magnitude(aten.segment_reduce.default, (0,)),
            own_dtype=HALVES,
        ),
        source=OF_SUMS + " (products: 3.1), a term for each value that meets in one element; a mean rounds once more",
        samples=_segment_reduce,
        of=many(5),
    ),
    _row(
        name="_segment_reduce_backward",
        target=aten._segment_reduce_backward.default,
        summary="gradient of segment_reduce with respect to data",
        dtypes=FLOATS,
        shape=Shape.OPERATOR,
        bound=Accumulated(
            terms=lambda grad, output, data, reduce, **kw: max(1, data.shape[kw.get("axis", 0)]),
            magnitude=_magnitude(aten._segment_reduce_backward.default, (0,)),
            own_dtype=HALVES,
        ),
        source=OF_PRODUCTS + ", with at most as many roundings as the segment has elements",
        samples=_segment_reduce_backward,
        operands=(0,),  # the output was saved for the data
    ),
)

_DERIVED_NAMES = frozenset(
    (
        "bucketize",
        "index_reduce",
    )
)
"""Exactly other prims: described like prims, but never in a graph after decomposition."""

ROWS = tuple(row for row in _CANDIDATES if row.name not in _DERIVED_NAMES)
DERIVED = tuple(row for row in _CANDIDATES if row.name in _DERIVED_NAMES)
