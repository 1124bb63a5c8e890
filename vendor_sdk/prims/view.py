"""View and shape prims: data moves or is renamed, no arithmetic; results are exact.

``view.default`` stands for every reshape (``reshape``, ``flatten``, ``_unsafe_view``, ``squeeze`` and ``unsqueeze`` are views
too, but keep their rows because backends name them). Values of a prim graph are logical tensors, so ``view`` of a transposed
value means its row-major elements in the new shape; torch's own operator wants strides that allow it, and the
samples respect that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import BY_DEFINITION, Exact
from vendor_sdk.prims.data_sets import scattered, with_specials
from vendor_sdk.prims.row import ALL, STORED, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext, Sampler

aten = torch.ops.aten

Tensor = torch.Tensor


def _iota(like: Tensor, start: Any, end: Any, step: Any = 1) -> Tensor:
    result: Tensor = aten.arange.start_step(start, end, step, dtype=torch.int64, device=like.device)
    return result


def _at(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    """``tensor[:, ..., index]`` with ``index`` at ``dim``."""
    result: Tensor = aten.index.Tensor(tensor, [None] * dim + [index])
    return result


def flat_positions(like: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Tensor:
    """int64 tensor of shape ``size``: the storage position of each element of a strided view."""
    position: Tensor = aten.full.default([1] * len(size), offset, dtype=torch.int64, device=like.device)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = aten.mul.Tensor(_iota(like, 0, count), step)
        shape = [1] * len(size)
        shape[dim] = count
        position = aten.add.Tensor(position, aten.view.default(along, shape))
    return position


def decompose_select(self: Tensor, dim: int, index: Any) -> Tensor:
    dim %= self.dim()
    start = index + self.shape[dim] if index < 0 else index
    result: Tensor = aten.squeeze.dims(aten.slice.Tensor(self, dim, start, start + 1), [dim])
    return result


def decompose_flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    if self.dim() == 0 or not dims:
        copy: Tensor = aten.clone.default(self)
        return copy
    for dim in (dim % self.dim() for dim in dims):
        size = self.shape[dim]
        if size > 0:
            self = _at(self, dim, _iota(self, size - 1, -1, -1))
    return self


def decompose_constant_pad_nd(self: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    for pair in range(len(pad) // 2):
        dim = self.dim() - 1 - pair
        before, after = pad[2 * pair], pad[2 * pair + 1]
        if before < 0 or after < 0:
            self = aten.slice.Tensor(self, dim, -before if before < 0 else 0, self.shape[dim] + (after if after < 0 else 0))
        parts = [self]
        for width, place in ((before, 0), (after, 2)):
            if width > 0:
                shape = list(self.shape)
                shape[dim] = width
                parts.insert(place, aten.full.default(shape, value, dtype=self.dtype, device=self.device))
        if len(parts) > 1:
            self = aten.cat.default(parts, dim)
    result: Tensor = aten.clone.default(self)
    return result


def decompose_repeat(self: Tensor, repeats: Sequence[Any]) -> Tensor:
    shape = [1] * (len(repeats) - self.dim()) + list(self.shape)
    between: list[Any] = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide: list[Any] = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    spread = aten.expand.default(aten.view.default(_row_major(self), between), wide)
    result: Tensor = aten.view.default(_row_major(spread), [n * size for n, size in zip(repeats, shape, strict=True)])
    return result


def _row_major(self: Tensor) -> Tensor:
    """A copy in row-major order, which torch's ``view`` accepts whatever the strides of the source were."""
    result: Tensor = aten.clone.default(self, memory_format=torch.contiguous_format)
    return result


def _permuted(self: Tensor, order: Sequence[int]) -> Tensor:
    result: Tensor = aten.permute.default(self, order)
    return result


def decompose_unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if self.dim() == 0:
        result: Tensor = aten.slice.Tensor(aten.unsqueeze.default(self, 0), 0, 0, size)
        return result
    dim = dimension % self.dim()
    starts = aten.mul.Tensor(_iota(self, 0, (self.shape[dim] - size) // step + 1), step)
    windows = _at(self, dim, aten.add.Tensor(aten.unsqueeze.default(starts, 1), _iota(self, 0, size)))
    order = [d for d in range(windows.dim()) if d != dim + 1] + [dim + 1]
    return _permuted(windows, order)


def decompose_as_strided(self: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Tensor:
    flat = aten.view.default(_row_major(self), [-1])
    return _at(flat, 0, flat_positions(self, size, stride, storage_offset or 0))


@draw.by_effort
def _view(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 6, 67), [3, 134]), label="odd")
    yield Sample((draw.values(ctx), [1, 1]), label="0-d")
    yield Sample((draw.strided(ctx, 4, 5), [2, 2, -1]), label="strided, inferred size")
    yield Sample((draw.values(ctx, 0, 3), [3, 0, 2]), label="empty")
    yield Sample((draw.values(ctx, 1, 1, 1), []), label="to 0-d")
    yield Sample((draw.values(ctx, 131), [-1, 1]), label="column")
    yield Sample((draw.expanded(ctx, 5, 6), [5, 2, 3]), label="expanded")


@draw.by_effort
def _permute(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67, 2), [2, 0, 1]), label="rotated")
    yield Sample((draw.values(ctx), []), label="0-d")
    yield Sample((draw.transposed(ctx, 5, 7), [-1, -2]), label="negative dims of transposed")
    yield Sample((draw.values(ctx, 2, 0, 3), [1, 2, 0]), label="empty")
    yield Sample((draw.values(ctx, 2, 3, 4, 5), [3, 1, 0, 2]), label="4-d")
    yield Sample((draw.values(ctx, 131), [0]), label="identity")
    yield Sample((draw.expanded(ctx, 4, 5), [1, 0]), label="expanded")


@draw.by_effort
def _expand(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 1, 67), [3, 67]), label="odd")
    yield Sample((draw.values(ctx), [2, 3]), label="0-d")
    yield Sample((draw.values(ctx, 3, 1), [2, -1, 5]), label="new dim, kept size")
    yield Sample((draw.values(ctx, 1, 4), [0, 4]), label="to empty")
    yield Sample((draw.values(ctx, 5), [5]), label="identity")
    yield Sample((draw.transposed(ctx, 1, 7), [4, 7]), label="transposed")


@draw.by_effort
def _slice(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), 1, 3, 60, 4), label="step")
    yield Sample((draw.values(ctx, 7, 3), 0, -4, 100), label="negative start, end beyond")
    yield Sample((draw.transposed(ctx, 6, 9), -1, 2), label="transposed, open end")
    yield Sample((draw.values(ctx, 5), 0, 4, 2), label="empty result")
    yield Sample((draw.values(ctx, 3, 0), 1, 0, 9223372036854775807), label="empty")
    yield Sample((draw.values(ctx, 131), 0, None, -1, 3), label="negative end")
    yield Sample((draw.expanded(ctx, 4, 5), 0, 1, 3), label="expanded")


@draw.by_effort
def _select(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), 0, 3), label="row")
    yield Sample((draw.values(ctx, 5, 67), -1, -1), label="negative dim and index")
    yield Sample((draw.values(ctx, 3), 0, 1), label="to 0-d")
    yield Sample((draw.transposed(ctx, 4, 6), 1, 2), label="transposed")
    yield Sample((draw.values(ctx, 2, 0, 3), 0, 1), label="empty")
    yield Sample((draw.expanded(ctx, 4, 5), 0, -4), label="expanded")


@draw.by_effort
def _squeeze(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 1, 67, 1), [0, 2]), label="two dims")
    yield Sample((draw.values(ctx), []), label="0-d")
    yield Sample((draw.values(ctx, 2, 1, 3), [0, -2]), label="dim larger than one stays")
    yield Sample((draw.values(ctx, 1, 0), [0]), label="empty")
    yield Sample((draw.values(ctx, 1, 1), [0, 1]), label="to 0-d")
    yield Sample((draw.transposed(ctx, 5, 1), [1]), label="transposed")


@draw.by_effort
def _unsqueeze(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), 1), label="middle")
    yield Sample((draw.values(ctx), 0), label="0-d")
    yield Sample((draw.transposed(ctx, 4, 5), -1), label="last, transposed")
    yield Sample((draw.values(ctx, 0, 2), -3), label="empty")
    yield Sample((draw.strided(ctx, 131), 0), label="strided")


@draw.by_effort
def _diagonal(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 67, 71),), label="odd")
    yield Sample((draw.values(ctx, 3, 4, 5), -1, 2, 0), label="offset, dims out of order")
    yield Sample((draw.transposed(ctx, 5, 8), 3), label="transposed")
    yield Sample((draw.values(ctx, 3, 3), 5), label="empty result")
    yield Sample((draw.values(ctx, 2, 3, 4, 4), 0, -2, -1), label="batched")
    yield Sample((draw.values(ctx, 0, 4),), label="empty")


@draw.by_effort
def _as_strided(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 200), [3, 67], [1, 2], 5), label="overlapping rows")
    yield Sample((draw.values(ctx, 4, 6), [6, 4], [1, 6]), label="transpose")
    yield Sample((draw.values(ctx, 10), [3, 4], [0, 2], 1), label="stride zero")
    yield Sample((draw.values(ctx, 5), [], [], 3), label="to 0-d")
    yield Sample((draw.values(ctx, 5), [0, 2], [1, 1]), label="empty result")


@draw.by_effort
def _unfold(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), 1, 5, 3), label="overlapping")
    yield Sample((draw.values(ctx, 8, 3), 0, 2, 2), label="tiling")
    yield Sample((draw.transposed(ctx, 5, 9), -1, 4, 5), label="gaps, transposed")
    yield Sample((draw.values(ctx, 6), 0, 6, 1), label="whole")
    yield Sample((draw.values(ctx, 2, 7, 3), -2, 3, 2), label="middle dim")
    yield Sample((draw.values(ctx), 0, 1, 1), label="0-d")


@draw.by_effort
def _flip(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), [0, 1]), label="both")
    yield Sample((draw.transposed(ctx, 5, 7), [-1]), label="transposed")
    yield Sample((draw.values(ctx), []), label="0-d")
    yield Sample((draw.values(ctx, 2, 0, 3), [1]), label="empty")
    yield Sample((draw.values(ctx, 2, 3, 4), [2, 0]), label="out of order")
    yield Sample((draw.expanded(ctx, 3, 5), [0, 1]), label="expanded")


@draw.by_effort
def _cat(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample(([draw.values(ctx, 3, 67), draw.values(ctx, 2, 67)], 0), label="rows")
    yield Sample(([draw.values(ctx, 3, 1), draw.transposed(ctx, 3, 5), draw.strided(ctx, 3, 7)], -1), label="mixed layouts")
    yield Sample(([draw.values(ctx, 0, 4), draw.values(ctx, 2, 4)], 0), label="one empty")
    yield Sample(([draw.values(ctx, 131)], 0), label="one")
    yield Sample(([draw.values(ctx, 2, 3, 4), draw.expanded(ctx, 2, 1, 4), draw.values(ctx, 2, 2, 4)], 1), label="middle dim")
    same = draw.values(ctx, 2, 3)
    yield Sample(([same, same], 1), label="same twice")
    yield Sample(([draw.values(ctx, 0), draw.values(ctx, 0)],), label="empty")


@draw.by_effort
def _pad(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), [2, 1, 0, 3], 1), label="two dims")
    yield Sample((draw.values(ctx, 5, 6), [-1, 2]), label="negative before")
    yield Sample((draw.transposed(ctx, 4, 5), [1, -2, -1, 1], 0), label="mixed signs, transposed")
    yield Sample((draw.values(ctx, 2, 0), [1, 1], 1), label="empty")
    yield Sample((draw.values(ctx, 5), []), label="no padding")
    yield Sample((draw.values(ctx, 1, 2, 3, 3), [1, 1, 1, 1]), label="image")


@draw.by_effort
def _repeat(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), [2, 2]), label="both")
    yield Sample((draw.values(ctx), [2, 3]), label="0-d")
    yield Sample((draw.transposed(ctx, 3, 4), [2, 1, 3]), label="new dim, transposed")
    yield Sample((draw.values(ctx, 3), [0]), label="to empty")
    yield Sample((draw.values(ctx, 0, 2), [2, 2]), label="empty")
    yield Sample((draw.values(ctx, 5), [1, 1]), label="ones")


@draw.by_effort
def _copy(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.transposed(ctx, 5, 67),), label="transposed")
    yield Sample((draw.values(ctx),), label="0-d")
    yield Sample((draw.expanded(ctx, 4, 5),), label="expanded")
    yield Sample((draw.values(ctx, 0, 3),), label="empty")
    yield Sample((draw.strided(ctx, 131),), label="strided")


@draw.by_effort
def _to_complex(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67, 2),), label="odd")
    yield Sample((draw.values(ctx, 2),), label="to 0-d")
    yield Sample((draw.values(ctx, 0, 2),), label="empty")
    yield Sample((draw.values(ctx, 5, 3, 2).transpose(0, 1),), label="transposed")


@draw.by_effort
def _to_real(ctx: SampleContext) -> Iterator[Sample]:
    for sample in _to_complex(ctx):
        yield Sample((torch.view_as_complex(sample.args[0]),), label=sample.label)


_prim = functools.partial(
    Prim,
    family=Family.VIEW,
    result=Result.SAME,
    shape=Shape.OPERATOR,
    bound=Exact(signed_zero=True),
    source=BY_DEFINITION,
)


def _row(*, samples: Sampler, dtypes: tuple[torch.dtype, ...] = ALL, **rest: Any) -> Prim:
    return _prim(samples=with_specials(samples, scattered), dtypes=dtypes, **rest)


_CANDIDATES: tuple[Prim, ...] = (
    _row(
        name="view",
        target=aten.view.default,
        summary="the elements of self in row-major order, in another shape",
        dtypes=STORED,
        samples=_view,
    ),
    _row(
        name="permute",
        target=aten.permute.default,
        summary="dimensions reordered: result dimension i is self's dimension dims[i]",
        dtypes=STORED,
        samples=_permute,
    ),
    _row(
        name="expand",
        target=aten.expand.default,
        summary="dimensions of size one repeated without copying; -1 keeps a size; new dimensions come first",
        samples=_expand,
    ),
    _row(
        name="slice",
        target=aten.slice.Tensor,
        summary="self[..., start:end:step, ...] along dim, Python's rules for negative and too large bounds, step >= 1",
        dtypes=STORED,
        samples=_slice,
    ),
    _row(
        name="select",
        target=aten.select.int,
        summary="self[..., index, ...] along dim, which disappears",
        samples=_select,
        decomposition=decompose_select,
    ),
    _row(
        name="squeeze",
        target=aten.squeeze.dims,
        summary="the given dimensions removed where their size is one",
        samples=_squeeze,
    ),
    _row(
        name="unsqueeze", target=aten.unsqueeze.default, summary="a dimension of size one inserted at dim", samples=_unsqueeze
    ),
    _row(
        name="diagonal",
        target=aten.diagonal.default,
        summary="elements with index[dim2] = index[dim1] + offset, as the last dimension",
        samples=_diagonal,
    ),
    _row(
        name="as_strided",
        target=aten.as_strided.default,
        summary="element i is self's row-major buffer at storage_offset + sum(i[d] * stride[d])",
        shape=Shape.ARGUMENT,
        samples=_as_strided,
        decomposition=decompose_as_strided,
    ),
    _row(
        name="unfold",
        target=aten.unfold.default,
        summary="windows of the given size every step along a dimension; the window is a new last dimension",
        samples=_unfold,
        decomposition=decompose_unfold,
    ),
    _row(
        name="flip",
        target=aten.flip.default,
        summary="order reversed along dims",
        shape=Shape.SAME,
        samples=_flip,
        decomposition=decompose_flip,
    ),
    _row(name="cat", target=aten.cat.default, summary="tensors joined along dim", dtypes=STORED, samples=_cat),
    _row(
        name="constant_pad_nd",
        target=aten.constant_pad_nd.default,
        summary="value added before and after dimensions, last dimension first; negative amounts remove",
        dtypes=STORED,
        samples=_pad,
        decomposition=decompose_constant_pad_nd,
    ),
    _row(
        name="repeat",
        target=aten.repeat.default,
        summary="self tiled repeats[d] times along each dimension; new dimensions come first",
        samples=_repeat,
        decomposition=decompose_repeat,
    ),
    _row(name="clone", target=aten.clone.default, summary="a copy", dtypes=STORED, shape=Shape.SAME, samples=_copy),
    _row(name="alias", target=aten.alias.default, summary="the same value under another name", shape=Shape.SAME, samples=_copy),
    _row(
        name="view_as_complex",
        target=aten.view_as_complex.default,
        summary="pairs of the last dimension as complex numbers",
        # Only component dtypes whose complex dtype torch supports without a warning; complex halves are experimental.
        dtypes=(torch.float32, torch.float64),
        result=Result.OPERATOR,
        samples=_to_complex,
    ),
    _row(
        name="view_as_real",
        target=aten.view_as_real.default,
        summary="complex numbers as pairs (real, imaginary) in a new last dimension; the dtype named is the component's",
        dtypes=(torch.float32, torch.float64),
        result=Result.OPERATOR,
        samples=_to_real,
    ),
)

_DERIVED_NAMES = frozenset(("repeat",))
"""Exactly other prims: described like prims, but never in a graph after decomposition."""

ROWS = tuple(row for row in _CANDIDATES if row.name not in _DERIVED_NAMES)
DERIVED = tuple(row for row in _CANDIDATES if row.name in _DERIVED_NAMES)
