"""Rules of sorting and selection prims, all from one stable sort."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Outline, Rule, Value, normalized, read
from reference_backends.onnxruntime.view import sliced
from vendor_sdk import HALVES

Pair = tuple[Value, Value]


def _ordered(b: Builder, x: Operand, axis: int, *, descending: bool) -> Value:
    """Positions of the elements along ``axis`` in order, equal ones as they stood; NaN counts as the largest value.

    ONNX's TopK puts equal elements in order of position. It leaves the place of NaN open, so the elements are sorted with
    infinity for NaN first, and then by whether they are NaN.
    """
    count = b.reshape(b.tensor(b.size(x, axis), torch.int64), [1])
    value: Value = b.cast(x, torch.int32) if x.dtype == torch.bool else b.cast(x, torch.float32) if x.dtype in HALVES else x
    if not value.dtype.is_floating_point:
        return _sorted_positions(b, value, count, axis, descending)
    nan = b.is_nan(value)
    order = _sorted_positions(b, b.where(nan, b.constant(math.inf, value.dtype), value), count, axis, descending)
    late = b.op("GatherElements", b.cast(nan, torch.int32), order, axis=axis)
    return b.op("GatherElements", order, _sorted_positions(b, late, count, axis, descending), axis=axis)


def _sorted_positions(b: Builder, value: Value, count: Value, axis: int, descending: bool) -> Value:
    dtypes = [value.dtype, torch.int64]
    return b.ops("TopK", value, count, dtypes=dtypes, axis=axis, largest=int(descending), sorted=1)[1]


def _gathered(b: Builder, x: Operand, index: Value, axis: int) -> Pair:
    return b.op("GatherElements", x, index, axis=axis), index


def _sort(b: Builder, out: Any, x: Operand, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Pair:
    if x.rank == 0:
        return x, b.constant(0)
    axis = normalized(dim, x.rank)
    return _gathered(b, x, _ordered(b, x, axis, descending=descending), axis)


def _topk(
    b: Builder, out: Sequence[Outline | None], x: Operand, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Pair:
    if x.rank == 0:
        return (x, b.constant(0)) if read(out).rank == 0 else (b.reshape(x, [1]), b.constant([0]))
    axis = normalized(dim, x.rank)
    order = _ordered(b, x, axis, descending=largest)
    return _gathered(b, x, sliced(b, order, axis, 0, k), axis)


def _one(b: Builder, x: Operand, order: Value, place: Value, axis: int, keepdim: bool) -> Pair:
    """The element at ``place`` (0-d, or 1 long along ``axis``) of the order, and its position."""
    index = b.op("GatherElements", order, place, axis=axis)
    value = b.op("GatherElements", x, index, axis=axis)
    return (value, index) if keepdim else (b.squeeze(value, axis), b.squeeze(index, axis))


def _everywhere(b: Builder, x: Operand, place: Any, axis: int) -> Value:
    """``place`` for every slice along ``axis``."""
    sizes = [1 if dim == axis else b.size(x, dim) for dim in range(x.rank)]
    return b.op("Expand", b.tensor(place, torch.int64), b.sizes(sizes))


def _kthvalue(b: Builder, out: Any, x: Operand, k: Any, dim: int = -1, keepdim: bool = False) -> Pair:
    if x.rank == 0:
        return x, b.constant(0)
    axis = normalized(dim, x.rank)
    place = b.op("Sub", b.tensor(k, torch.int64), b.constant(1))
    return _one(b, x, _ordered(b, x, axis, descending=False), _everywhere(b, x, place, axis), axis, keepdim)


def _half(b: Builder, count: Value) -> Value:
    """The lower middle of ``count`` places; 0 where there is none."""
    one, zero = b.constant(1), b.constant(0)
    return b.op("Div", b.op("Max", b.op("Sub", count, one), zero), b.constant(2))


def _middle(b: Builder, x: Operand, axis: int, keepdim: bool, *, skip_nan: bool) -> Pair:
    order = _ordered(b, x, axis, descending=False)
    place = _everywhere(b, x, _half(b, b.tensor(b.size(x, axis), torch.int64)), axis)
    if x.dtype.is_floating_point:
        nan = b.cast(b.is_nan(x), torch.int64)
        count = b.op("ReduceSum", nan, b.constant([axis]), keepdims=1)
        if skip_nan:
            place = _half(b, b.op("Sub", b.tensor(b.size(x, axis), torch.int64), count))
        else:
            # The first NaN stands behind all numbers.
            first = b.op("Sub", b.tensor(b.size(x, axis), torch.int64), count)
            place = b.where(b.compare("Greater", count, b.constant(0)), first, place)
    return _one(b, x, order, place, axis, keepdim)


def _median(*, skip_nan: bool) -> Rule:
    def rule(b: Builder, out: Any, x: Operand, dim: int, keepdim: bool = False) -> Pair:
        if x.rank == 0:
            return x, b.constant(0)
        return _middle(b, x, normalized(dim, x.rank), keepdim, skip_nan=skip_nan)

    return rule


RULES: Mapping[str, Rule] = {
    "sort": _sort,
    "topk": _topk,
    "kthvalue": _kthvalue,
    "median": _median(skip_nan=False),
    "nanmedian": _median(skip_nan=True),
}
