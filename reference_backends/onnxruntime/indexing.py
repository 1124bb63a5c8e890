"""Rules of indexing, gathering and scattering prims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Outline, Rule, Untranslatable, Value, normalized
from reference_backends.onnxruntime.pointwise import floor_quotient
from reference_backends.onnxruntime.view import sliced
from vendor_sdk import HALVES

# By index tensors, each for one dimension, which broadcast


class _Advanced:
    """Index tensors over some dimensions of a tensor, which stand in front of the others here.

    Attributes:
        order: the tensor's dimensions, those with an index first.
        indexed: how many have one.
        index: the positions, int64 of shape (broadcast shape, number of indexed dimensions).
        shape: the broadcast shape of the indices.
        back: the order that brings gathered dimensions where torch puts them: in place of the indexed dimensions where those
            are neighbours, else in front.
    """

    def __init__(self, b: Builder, rank: int, indices: Sequence[Operand | None]) -> None:
        dims = [dim for dim, index in enumerate(indices) if index is not None]
        tensors = [index for index in indices if index is not None]
        for tensor in tensors:
            if tensor.dtype in (torch.bool, torch.uint8):
                raise Untranslatable("a mask as index makes a size that depends on the data")
        self.order, self.indexed = [*dims, *(dim for dim in range(rank) if dim not in dims)], len(dims)
        self.shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            *(tensor.shape for tensor in tensors)
        )
        last = b.constant([-1])
        parts: list[Value] = [b.cast(tensor, torch.int64) for tensor in tensors]
        if len(parts) > 1:
            total = parts[0]
            for part in parts[1:]:
                total = b.op("Add", total, part)
            shape = b.op("Shape", total, dtype=torch.int64)  # a sum has the broadcast shape, dynamic sizes included
            parts = [b.op("Expand", part, shape) for part in parts]
        columns = [b.op("Unsqueeze", part, last) for part in parts]
        self.index = columns[0] if len(columns) == 1 else b.op("Concat", *columns, axis=-1)
        width = len(self.shape)
        rest = rank - len(dims)
        neighbours = dims[-1] - dims[0] == len(dims) - 1
        front = dims[0] if neighbours else 0
        self.back = [*range(width, width + front), *range(width), *range(width + front, width + rest)]


def _index(b: Builder, out: Outline, x: Operand, indices: Sequence[Operand | None]) -> Value:
    tensors = [index for index in indices if index is not None]
    if not tensors:
        return x
    if len(tensors) == 1 and tensors[0].dtype in (torch.int64, torch.int32):
        dim = next(dim for dim, index in enumerate(indices) if index is not None)
        return b.op("Gather", x, tensors[0], axis=dim)
    at = _Advanced(b, x.rank, indices)
    return b.transpose(b.op("GatherND", b.transpose(x, at.order), at.index), at.back)


def _index_put(
    b: Builder, out: Outline, x: Operand, indices: Sequence[Operand | None], values: Operand, accumulate: bool = False
) -> Value:
    if all(index is None for index in indices):
        raise Untranslatable("index_put without an index has no translation")
    at = _Advanced(b, x.rank, indices)
    moved = b.transpose(x, at.order)
    target = b.op("Shape", b.op("GatherND", moved, at.index), dtype=torch.int64)
    if at.back != list(range(len(at.back))):
        # ``values`` broadcasts to the shape that gathering has in torch's order of dimensions.
        placed = b.transpose(b.op("GatherND", moved, at.index), at.back)
        spread = b.op("Expand", b.cast(values, x.dtype), b.op("Shape", placed, dtype=torch.int64))
        updates = b.transpose(spread, [at.back.index(dim) for dim in range(len(at.back))])
    else:
        updates = b.op("Expand", b.cast(values, x.dtype), target)
    back = [at.order.index(dim) for dim in range(x.rank)]
    if not accumulate:
        return b.transpose(b.op("ScatterND", moved, at.index, updates), back)
    indexed, others = at.order[: at.indexed], at.order[at.indexed :]
    places = at.index
    if at.indexed > 1:
        # One number for each place, by way of a table, so that places outside are refused.
        numbers = b.op("Range", b.constant(0), b.count(x, indexed), b.constant(1), dtype=torch.int64)
        places = b.op("GatherND", b.reshape(numbers, [b.size(x, dim) for dim in indexed]), at.index)
    count = b.op("Size", places, dtype=torch.int64)
    width = b.count(x, others)
    result = _add_rows(
        b,
        b.reshape(moved, [b.count(x, indexed), width]),
        b.reshape(places, [count, 1]),
        b.reshape(updates, [count, width]),
    )
    return b.transpose(b.reshape(result, [b.size(x, dim) for dim in at.order]), back)


def _add_rows(b: Builder, x: Value, places: Value, rows: Value) -> Value:
    """A matrix with rows added at ``places``, a column. ONNX Runtime's ScatterND adds in several threads, which nothing keeps
    apart where places are equal (docs/found/onnxruntime_scatter_race.py); its ScatterElements has one."""
    spread = b.op("Expand", places, b.op("Shape", rows, dtype=torch.int64))
    return _scatter(b, "ScatterElements", x, spread, rows, "add", axis=0)


_WIDE = {torch.bool: torch.int32, torch.uint8: torch.int32, **dict.fromkeys(HALVES, torch.float32)}
"""Where ONNX Runtime's reductions of scattered values are computed, for dtypes whose sums it would round or has none of."""


def _scatter(b: Builder, kind: str, x: Value, index: Value, updates: Value, reduction: str, **attributes: Any) -> Value:
    if reduction == "none":
        return b.op(kind, x, index, updates, **attributes)
    dtype = _WIDE.get(x.dtype, x.dtype)
    wide = [b.cast(each, dtype) for each in (x, updates)]
    result = b.op(kind, wide[0], index, wide[1], reduction=reduction, **attributes)
    return b.cast(result, x.dtype)


def _index_select(b: Builder, out: Outline, x: Operand, dim: int, index: Operand) -> Value:
    if x.rank == 0:
        return x
    axis = normalized(dim, x.rank)
    return b.op("Gather", x, b.reshape(index, [-1]) if index.rank == 0 else index, axis=axis)


# By an index for every element, along one dimension


def _lifted(b: Builder, *operands: Operand) -> list[Value]:
    """0-d operands with one dimension, others as they are."""
    return [b.reshape(each, [1]) if each.rank == 0 else each for each in operands]


def _gather(b: Builder, out: Outline, x: Operand, dim: int, index: Operand, *, sparse_grad: bool = False) -> Value:
    axis = normalized(dim, max(x.rank, index.rank))
    source, positions = _lifted(b, x, index)
    result = b.op("GatherElements", source, positions, axis=axis)
    return b.squeeze(result, 0) if out.rank == 0 else result


def _along(b: Builder, out: Outline, x: Operand, dim: int, index: Operand, source: Value | Operand, reduction: str) -> Value:
    """``x`` with ``source``, already in the shape of ``index``, written at ``index`` along ``dim``."""
    axis = normalized(dim, x.rank)
    target, positions = _lifted(b, x, index)
    if x.rank == 0 or index.rank == 0:
        source = b.reshape(source, [-1])
    result = _scatter(b, "ScatterElements", target, positions, source, reduction, axis=axis)
    return b.squeeze(result, 0) if out.rank == 0 else result


def _cropped(b: Builder, source: Operand, index: Operand) -> Value:
    """The part of ``source`` that ``index`` covers."""
    value: Value = source
    for dim in range(index.rank):
        have, want = source.shape[dim], index.shape[dim]
        if not (isinstance(have, int) and isinstance(want, int) and have == want):
            value = sliced(b, value, dim, 0, b.size(index, dim))
    return value


def _scatter_src(b: Builder, out: Outline, x: Operand, dim: int, index: Operand, src: Operand) -> Value:
    return _along(b, out, x, dim, index, _cropped(b, src, index), "none")


def _scatter_value(b: Builder, out: Outline, x: Operand, dim: int, index: Operand, value: Any) -> Value:
    source = b.op("Expand", b.tensor(value, x.dtype), b.shape(index))
    return _along(b, out, x, dim, index, source, "none")


def _scatter_add(b: Builder, out: Outline, x: Operand, dim: int, index: Operand, src: Operand) -> Value:
    return _along(b, out, x, dim, index, _cropped(b, src, index), "add")


_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter_reduce(
    b: Builder,
    out: Outline,
    x: Operand,
    dim: int,
    index: Operand,
    src: Operand,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    source = _cropped(b, src, index)
    start: Value = x
    if not include_self:
        neutral = b.op("Expand", b.constant(_neutral(reduce, x.dtype), x.dtype), b.shape(index))
        start = _along(b, out, x, dim, index, neutral, "none")
    result = _along(b, out, Operand(start.name, start.dtype, x.shape), dim, index, source, _REDUCTIONS[reduce])
    if reduce in ("amax", "amin") and x.dtype.is_floating_point:
        # ONNX leaves open what an extreme makes of NaN: count them.
        nans = b.cast(b.is_nan(start), torch.int32)
        met = b.cast(b.is_nan(source), torch.int32)
        count = _along(b, out, Operand(nans.name, nans.dtype, x.shape), dim, index, met, "add")
        return b.where(b.compare("Greater", count, b.constant(0, torch.int32)), b.constant(math.nan, x.dtype), result)
    if reduce != "mean":
        return result
    counting = torch.float64 if x.dtype.is_floating_point else torch.int64
    ones = b.op("Expand", b.constant(1, counting), b.shape(index))
    counts: Value = b.op("Expand", b.constant(1 if include_self else 0, counting), b.shape(x))
    counts = _along(b, out, Operand(counts.name, counts.dtype, x.shape), dim, index, ones, "add")
    counts = b.op("Max", counts, b.constant(1, counting))
    if x.dtype.is_floating_point:
        return b.cast(b.op("Div", b.cast(result, counting), counts), x.dtype)
    return b.cast(floor_quotient(b, b.cast(result, counting), counts), x.dtype)


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype == torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


# By masks and searches


def _masked_scatter(b: Builder, out: Outline, x: Operand, mask: Operand, source: Operand) -> Value:
    """The n-th True position takes the n-th element of the source: n is a running count of the mask."""
    if any(isinstance(size, int) and size == 0 for size in source.shape):
        raise Untranslatable("masked_scatter from an empty source has no translation")
    # An expansion is to the common shape of both.
    target = b.op("Expand", x, b.op("Shape", mask, dtype=torch.int64))
    spread = b.op("Expand", mask, b.op("Shape", target, dtype=torch.int64))
    row = b.reshape(b.cast(spread, torch.int64), [-1])
    rank = b.op("Sub", b.op("CumSum", row, b.constant(0)), b.constant(1))
    rank = b.op("Max", rank, b.constant(0))
    items = b.op("Gather", b.flat(source), rank, axis=0)
    return b.select(spread, b.op("Reshape", items, b.op("Shape", target, dtype=torch.int64), allowzero=1), target)


def _nonzero_static(b: Builder, out: Outline, x: Operand, *, size: Any, fill_value: int = -1) -> Value:
    if x.rank == 0:
        raise Untranslatable("nonzero_static of a 0-d tensor has no translation")
    found = b.op("NonZero", b.cast(x, torch.bool), dtype=torch.int64)
    rows = b.transpose(found, [1, 0])
    padding = b.sizes([0, 0, size, 0])
    padded = b.op("Pad", rows, padding, b.constant(fill_value))
    return sliced(b, padded, 0, 0, size)


def _searchsorted(
    b: Builder,
    out: Outline,
    sequence: Operand,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Operand | None = None,
) -> Value:
    """How many elements of the sequence stand before each value: those not at least it, or not above it with ``right``."""
    ordered: Value = sequence if sorter is None else b.op("GatherElements", sequence, sorter, axis=sequence.rank - 1)
    elements = math.prod(each for each in (*x.shape, sequence.shape[-1]) if isinstance(each, int))
    if elements > _MOST_COMPARISONS:
        raise Untranslatable(f"searchsorted by comparing all pairs would need {elements} comparisons")
    values: Value = b.unsqueeze(x, x.rank)
    if sequence.rank > 1:
        ordered = b.unsqueeze(ordered, sequence.rank - 1)
    after = b.compare("Greater" if right or side == "right" else "GreaterOrEqual", ordered, values)
    before = b.cast(b.invert(after), torch.int64)
    return b.cast(b.op("ReduceSum", before, b.constant([x.rank]), keepdims=0), out.dtype)


_MOST_COMPARISONS = 1 << 24
"""Largest table of comparisons that searchsorted may make; the SDK's host runs larger ones by bisection."""


def _embedding_backward(
    b: Builder,
    out: Outline,
    grad: Operand,
    indices: Operand,
    num_weights: Any,
    padding_idx: Any,
    scale_grad_by_freq: bool,
) -> Value:
    if scale_grad_by_freq:
        raise Untranslatable("embedding gradients scaled by frequency have no translation")
    width = b.size(grad, grad.rank - 1)
    positions = b.cast(b.unsqueeze(b.flat(indices), 1), torch.int64)
    rows = b.op("Reshape", grad, b.sizes([b.count(indices, range(indices.rank)), width]), allowzero=1)
    if isinstance(padding_idx, Value) or padding_idx >= 0:
        padding = b.compare("Equal", positions, b.tensor(padding_idx, torch.int64))
        rows = b.where(padding, b.constant(0, grad.dtype), rows)
    start = b.op("Expand", b.constant(0, grad.dtype), b.sizes([num_weights, width]))
    return _add_rows(b, start, positions, rows)


# Results whose size depends on the data


def _nonzero(b: Builder, out: Outline, x: Operand) -> Value:
    truth = b.cast(x, torch.bool)
    if x.rank:
        return b.transpose(b.op("NonZero", truth, dtype=torch.int64), [1, 0])
    # One row without columns, or none.
    count = b.reshape(b.cast(truth, torch.int64), [1])
    return b.op("Expand", b.constant(np.zeros((1, 0), np.int64)), b.op("Concat", count, b.constant([0]), axis=0))


def _masked_select(b: Builder, out: Outline, x: Operand, mask: Operand) -> Value:
    both = b.op("Shape", b.op("Or", b.cast(x, torch.bool), mask), dtype=torch.int64)
    spread, chosen = b.op("Expand", x, both), b.op("Expand", mask, both)
    return b.op("Compress", b.op("Reshape", spread, b.constant([-1])), b.op("Reshape", chosen, b.constant([-1])), axis=0)


def _bincount(b: Builder, out: Outline, x: Operand, weights: Operand | None = None, minlength: Any = 0) -> Value:
    if weights is not None and not out.dtype.is_floating_point:
        raise Untranslatable("bincount with weights has no translation where torch (2.11) announces integers")
    places = b.cast(x, torch.int64)
    # A place before the first stands for the length of an empty result.
    last = b.op("ReduceMax", b.op("Concat", places, b.constant([-1]), axis=0), b.constant([0]), keepdims=1)
    count = b.op(
        "Max", b.op("Add", last, b.constant([1])), b.op("Unsqueeze", b.tensor(minlength, torch.int64), b.constant([0]))
    )
    added: Value = b.op("Expand", b.constant(1, out.dtype), b.shape(x)) if weights is None else b.cast(weights, out.dtype)
    start = b.op("Expand", b.constant(0, out.dtype), count)
    return b.op("ScatterElements", start, places, added, axis=0, reduction="add")


RULES: Mapping[str, Rule] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "bincount": _bincount,
    "index": _index,
    "index_put": _index_put,
    "index_select": _index_select,
    "gather": _gather,
    "scatter.src": _scatter_src,
    "scatter.value": _scatter_value,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "masked_scatter": _masked_scatter,
    "nonzero_static": _nonzero_static,
    "searchsorted": _searchsorted,
    "embedding_dense_backward": _embedding_backward,
}
