"""Sorting and selection prims. Values are exact; an index is right when it points at its value.

``sort.stable`` is the one sort of the opset: ``sort.default`` becomes it with ``stable=False``, and any stable sort serves
both. NaN sorts as the largest value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import Property
from vendor_sdk.prims.data_sets import scattered, with_specials
from vendor_sdk.prims.row import ALL, NUMBERS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext, Sampler

aten = torch.ops.aten

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal element by element, NaN equal to NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    equal = left == right
    if left.dtype.is_floating_point:
        equal = equal | (left.isnan() & right.isnan())
    return bool(equal.all())


def _check(target: Callable[..., Any], dim_at: int, ordered: bool = True) -> Callable[[Any, Sample], str | None]:
    """Values as torch's (as a multiset where ``ordered`` is False for the call), indices distinct and pointing at them."""

    def check(result: Any, sample: Sample) -> str | None:
        found, place = result
        self = sample.args[0]
        expected, _ = target(*sample.args, **sample.kwargs)
        if place.dtype is not torch.int64 or place.shape != expected.shape:
            return f"indices are {place.dtype} {tuple(place.shape)} instead of int64 {tuple(expected.shape)}"
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return f"values are {found.dtype} {tuple(found.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
        dim = sample.kwargs.get("dim", sample.args[dim_at] if len(sample.args) > dim_at else -1)
        if self.dim() == 0:
            return None if _same(found, expected) and int(place) == 0 else "wrong value or index"
        if found.numel() == 0:
            return None
        if found.dim() < self.dim():
            found, place, expected = (item.unsqueeze(dim) for item in (found, place, expected))
        if bool(((place < 0) | (place >= self.shape[dim])).any()):
            return "an index is out of range"
        if not _same(self.gather(dim, place), found):
            return "an index does not point at its value"
        if bool((place.sort(dim=dim).values.diff(dim=dim) == 0).any()):
            return "an index occurs twice"
        if not ordered and sample.kwargs.get("sorted") is False:
            found, expected = found.sort(dim=dim).values, expected.sort(dim=dim).values
        if not _same(found, expected):
            return "values differ"
        if sample.kwargs.get("stable"):
            torch_place = target(*sample.args, **sample.kwargs)[1]
            return None if torch.equal(place, torch_place) else "the order of equal elements is not kept"
        return None

    return check


def _rank_one(self: Tensor) -> Tensor:
    result: Tensor = aten.unsqueeze.default(self, 0) if self.dim() == 0 else self
    return result


def _pick(sorted_pair: Pair, dim: int, position: Any, keepdim: bool) -> Pair:
    """The value and index at ``position`` along ``dim`` of a sorted pair."""
    first, second = (aten.slice.Tensor(item, dim, position, position + 1) for item in sorted_pair)
    return (first, second) if keepdim else (aten.squeeze.dims(first, [dim]), aten.squeeze.dims(second, [dim]))


def _zero_d(self: Tensor) -> Pair:
    return aten.clone.default(self), aten.full.default([], 0, dtype=torch.int64, device=self.device)


def decompose_topk(self: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    if self.dim() == 0:
        pair = _zero_d(self)
        if k == 1:
            return pair
        return aten.slice.Tensor(_rank_one(pair[0]), 0, 0, k), aten.slice.Tensor(_rank_one(pair[1]), 0, 0, k)
    found, place = aten.sort.stable(self, stable=False, dim=dim, descending=largest)
    return aten.slice.Tensor(found, dim, 0, k), aten.slice.Tensor(place, dim, 0, k)


def decompose_kthvalue(self: Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> Pair:
    if self.dim() == 0:
        return _zero_d(self)
    return _pick(aten.sort.stable(self, stable=False, dim=dim), dim, k - 1, keepdim)


def _nan_count(self: Tensor, dim: int) -> Tensor:
    ones = aten._to_copy.default(aten.ne.Tensor(self, self), dtype=torch.int64)
    result: Tensor = aten.sum.dim_IntList(ones, [dim], True)
    return result


def _gathered(sorted_pair: Pair, dim: int, position: Tensor, keepdim: bool) -> Pair:
    found, place = (aten.gather.default(item, dim, position) for item in sorted_pair)
    return (found, place) if keepdim else (aten.squeeze.dims(found, [dim]), aten.squeeze.dims(place, [dim]))


def decompose_median(self: Tensor, dim: int, keepdim: bool = False) -> Pair:
    if self.dim() == 0:
        return _zero_d(self)
    pair, size = aten.sort.stable(self, stable=True, dim=dim), self.shape[dim]
    if not self.dtype.is_floating_point:
        return _pick(pair, dim, (size - 1) // 2, keepdim)
    # NaN sorts last, so the first of the NaNs stands at size - count.
    count = _nan_count(self, dim)
    middle = aten.full.default([], (size - 1) // 2, dtype=torch.int64, device=self.device)
    zero = aten.full.default([], 0, dtype=torch.int64, device=self.device)
    first_nan = aten.add.Tensor(aten.neg.default(count), size)
    return _gathered(pair, dim, aten.where.self(aten.eq.Tensor(count, zero), middle, first_nan), keepdim)


def decompose_nanmedian(self: Tensor, dim: int, keepdim: bool = False) -> Pair:
    if self.dim() == 0:
        return _zero_d(self)
    pair, size = aten.sort.stable(self, stable=True, dim=dim), self.shape[dim]
    if not self.dtype.is_floating_point:
        return _pick(pair, dim, (size - 1) // 2, keepdim)
    last = aten.add.Tensor(aten.neg.default(_nan_count(self, dim)), size - 1)
    # A row of NaNs has last = -1; its median is its first NaN.
    zero = aten.full.default([], 0, dtype=torch.int64, device=self.device)
    middle = aten.div.Tensor_mode(aten.maximum.default(last, zero), 2, rounding_mode="floor")
    return _gathered(pair, dim, middle, keepdim)


def decompose_mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    """The value equal to most others, the smallest of those; O(n^2) comparisons a row."""
    if self.dim() == 0:
        return _zero_d(self)
    dim %= self.dim()
    found, place = aten.sort.stable(self, stable=True, dim=dim)
    equal = aten.eq.Tensor(aten.unsqueeze.default(found, dim), aten.unsqueeze.default(found, dim + 1))
    count = aten.sum.dim_IntList(aten._to_copy.default(equal, dtype=torch.int64), [dim + 1])
    return _gathered((found, place), dim, aten.argmax.default(count, dim, True), keepdim)


@draw.by_effort
def _sort(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67),), {"stable": True, "dim": -1}, label="stable")
    yield Sample((draw.values(ctx, 7, 5),), {"stable": False, "dim": 0, "descending": True}, label="descending, first dim")
    yield Sample((draw.transposed(ctx, 5, 131),), {"stable": True, "descending": True}, label="stable descending, transposed")
    yield Sample((draw.values(ctx),), {"stable": False}, label="0-d")
    yield Sample((draw.values(ctx, 2, 0),), {"stable": False}, label="empty")
    yield Sample((draw.expanded(ctx, 5, 4),), {"stable": True, "dim": 0}, label="all equal")
    if ctx.dtype.is_floating_point:
        yield Sample((draw.special_values(ctx).repeat(3),), {"stable": True}, label="special values", special=True)


@draw.by_effort
def _topk(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), 5), label="largest")
    yield Sample((draw.values(ctx, 9, 4), 3, 0, False), label="smallest, first dim")
    yield Sample((draw.transposed(ctx, 5, 131), 131), {"sorted": False}, label="all, unsorted, transposed")
    yield Sample((draw.values(ctx), 1), label="0-d")
    yield Sample((draw.values(ctx, 4, 5), 0), label="k = 0")
    yield Sample((draw.expanded(ctx, 4, 5), 2, 0), label="expanded")
    if ctx.dtype.is_floating_point:
        yield Sample((draw.special_values(ctx), 4), label="special values", special=True)


@draw.by_effort
def _kthvalue(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), 5), label="odd")
    yield Sample((draw.values(ctx, 9, 4), 9, 0, True), label="largest, kept dim")
    yield Sample((draw.transposed(ctx, 5, 131), 1, -1), label="smallest, transposed")
    yield Sample((draw.values(ctx), 1), label="0-d")
    yield Sample((draw.expanded(ctx, 4, 5), 2, 0), label="expanded")


@draw.by_effort
def _median(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), 1), label="odd size")
    yield Sample((draw.values(ctx, 8, 5), 0, True), label="even size, kept dim")
    if ctx.dtype.is_floating_point:
        holed = draw.distinct(ctx, 4, 9)
        holed[1, 3] = holed[2, :] = holed[3, 8] = float("nan")
        yield Sample((holed, -1), label="NaN", special=True)
    yield Sample((draw.transposed(ctx, 5, 131), -1), label="transposed")
    yield Sample((draw.values(ctx), 0), label="0-d")
    # No expanded sample: torch's kernel partitions a copy that keeps the zero stride, and returns wrong values and indices.


@draw.by_effort
def _mode(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67).round() if ctx.dtype.is_floating_point else draw.values(ctx, 3, 67),), label="ties")
    yield Sample((draw.distinct(ctx, 5, 4), 0, True), label="distinct, kept dim")
    yield Sample((draw.transposed(ctx, 5, 31), -1), label="transposed")
    yield Sample((draw.values(ctx),), label="0-d")
    yield Sample((draw.expanded(ctx, 4, 5), 0), label="all equal")
    yield Sample((torch.tensor([[3, 1, 4, 2, 5, 2]] * 4, dtype=ctx.dtype),), label="not at the beginning")


_prim = functools.partial(
    Prim,
    family=Family.SORTING,
    dtypes=NUMBERS,
    result=Result.OPERATOR,
    shape=Shape.OPERATOR,
    source="values exact by definition; which of several equal elements an index names is free",
)


def _row(*, samples: Sampler, **rest: Any) -> Prim:
    return _prim(samples=with_specials(samples, scattered), **rest)


ROWS: tuple[Prim, ...] = (
    _row(
        name="sort",
        target=aten.sort.stable,
        summary="values ascending (or descending) along dim and where each came from; equal ones keep their order if stable",
        dtypes=ALL,
        bound=Property(_check(aten.sort.stable, dim_at=1)),
        samples=_sort,
    ),
    _row(
        name="topk",
        target=aten.topk.default,
        summary="the k largest (or smallest) values along dim and their positions, in order if sorted",
        bound=Property(_check(aten.topk.default, dim_at=2, ordered=False)),
        samples=_topk,
        decomposition=decompose_topk,
    ),
    _row(
        name="kthvalue",
        target=aten.kthvalue.default,
        summary="the k-th smallest value along dim, k from 1, and its position",
        bound=Property(_check(aten.kthvalue.default, dim_at=2)),
        samples=_kthvalue,
        decomposition=decompose_kthvalue,
    ),
    _row(
        name="median",
        target=aten.median.dim,
        summary="the lower middle value along dim and its position; NaN if any value is NaN",
        bound=Property(_check(aten.median.dim, dim_at=1)),
        samples=_median,
        decomposition=decompose_median,
    ),
    _row(
        name="nanmedian",
        target=aten.nanmedian.dim,
        summary="the lower middle of the values that are not NaN along dim and its position",
        bound=Property(_check(aten.nanmedian.dim, dim_at=1)),
        samples=_median,
        decomposition=decompose_nanmedian,
    ),
    # No special values: torch's kernel sorts by a comparison that NaN breaks, and miscounts what lies beside (2.13).
    _prim(
        name="mode",
        target=aten.mode.default,
        summary="the most frequent value along dim, the smallest of equals, and the position of one of them",
        bound=Property(_check(aten.mode.default, dim_at=1)),
        samples=_mode,
        decomposition=decompose_mode,
    ),
)
