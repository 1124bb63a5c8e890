"""Rules of view, shape and creation prims. A partition copies what the SDK itself would run as metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from reference_backends.onnxruntime.builder import (
    Builder,
    Operand,
    Outline,
    Rule,
    Untranslatable,
    Value,
    normalized,
    static,
)

LAST = torch.iinfo(torch.int64).max


def _view(b: Builder, out: Outline, x: Operand, size: Sequence[Any]) -> Value:
    if all(isinstance(each, int) for each in out.shape):
        return b.folded(x, x.shape, out.shape)
    # A size of -1 is inferred by ONNX, which must know then that no other size is zero; dynamic sizes are at least 2.
    if -1 in [each for each in size if isinstance(each, int)] and 0 in [each for each in size if isinstance(each, int)]:
        raise Untranslatable("a view with a size of -1 beside one of 0 has no translation")
    inferred = any(isinstance(each, int) and each == -1 for each in size)
    return b.op("Reshape", x, b.sizes(size), allowzero=int(not inferred))


def _permute(b: Builder, out: Outline, x: Operand, dims: Sequence[int]) -> Value:
    return b.transpose(x, [normalized(dim, x.rank) for dim in dims]) if x.rank else x


def _expand(b: Builder, out: Outline, x: Operand, size: Sequence[Any]) -> Value:
    new = len(size) - x.rank
    kept = [isinstance(each, int) and each == -1 for each in size]
    sizes = [b.size(x, index - new) if kept[index] else each for index, each in enumerate(size)]
    return b.op("Expand", x, b.sizes(sizes))


def sliced(b: Builder, value: Value, axis: int, start: Any, end: Any, step: Any = 1) -> Value:
    first, last, each = (b.sizes([number]) for number in (start, end, step))
    return b.op("Slice", value, first, last, b.constant([axis]), each)


def parts(b: Builder, x: Operand, axis: int, widths: Sequence[int], *, lost: bool) -> list[Value]:
    """``x`` in parts along a dimension; ``lost``: parts of width 1 are without it, others are read by nobody."""
    value: Value = x
    if lost:
        widths = [width * x.shape[axis + 1] for width in widths]
        sizes = [b.size(x, dim) for dim in range(x.rank)]
        sizes[axis : axis + 2] = [sum(widths)]
        value = b.reshape(x, sizes)
    return list(b.ops("Split", value, b.constant(list(widths)), dtypes=[x.dtype] * len(widths), axis=axis))


def _slice(b: Builder, out: Outline, x: Operand, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    return sliced(b, x, normalized(dim, x.rank), 0 if start is None else start, LAST if end is None else end, step)


def _select(b: Builder, out: Outline, x: Operand, dim: int, index: Any) -> Value:
    return b.op("Gather", x, b.tensor(index, torch.int64), axis=normalized(dim, x.rank))


def _squeeze(b: Builder, out: Outline, x: Operand, dim: Sequence[int]) -> Value:
    if x.rank == 0:
        return x
    gone = {normalized(each, x.rank) for each in dim}
    gone = {each for each in gone if isinstance(x.shape[each], int) and x.shape[each] == 1}
    return b.squeeze(x, *sorted(gone)) if gone else x


def _unsqueeze(b: Builder, out: Outline, x: Operand, dim: int) -> Value:
    return b.unsqueeze(x, dim % (x.rank + 1))


def taken(b: Builder, x: Operand, positions: np.ndarray[Any, Any]) -> Value:
    """Elements of ``x`` at constant positions in row-major order; the shape is that of ``positions``."""
    return b.op("Gather", b.flat(x), b.constant(positions), axis=0)


def placed(b: Builder, x: Operand, positions: np.ndarray[Any, Any], source: Operand) -> Value:
    """``x`` with the elements of ``source`` at constant positions in row-major order."""
    written = b.op("ScatterElements", b.flat(x), b.constant(positions.reshape(-1)), b.flat(source), axis=0)
    return b.reshape(written, static(x.shape, "a scatter"))


def _positions(shape: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)


def _diagonal_positions(x: Operand, offset: int, dim1: int, dim2: int) -> np.ndarray[Any, Any]:
    return np.diagonal(_positions(static(x.shape, "a diagonal")), offset, dim1, dim2)


def _diagonal(b: Builder, out: Outline, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return taken(b, x, _diagonal_positions(x, offset, dim1, dim2))


def _diagonal_scatter(
    b: Builder, out: Outline, x: Operand, source: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    return placed(b, x, _diagonal_positions(x, offset, dim1, dim2), source)


def _strided_positions(size: Sequence[Any], stride: Sequence[Any], offset: Any) -> np.ndarray[Any, Any]:
    static([*size, *stride, offset or 0], "as_strided")
    positions = np.full(tuple(size), offset or 0, dtype=np.int64)
    for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
        positions += (np.arange(count, dtype=np.int64) * step).reshape([-1] + [1] * (len(size) - dim - 1))
    return positions


def _as_strided(
    b: Builder, out: Outline, x: Operand, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Value:
    return taken(b, x, _strided_positions(size, stride, storage_offset))


def _as_strided_scatter(
    b: Builder,
    out: Outline,
    x: Operand,
    source: Operand,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
) -> Value:
    return placed(b, x, _strided_positions(size, stride, storage_offset), source)


def _unfold(b: Builder, out: Outline, x: Operand, dimension: int, size: int, step: int) -> Value:
    if x.rank == 0:
        return b.reshape(x, [size])
    axis = normalized(dimension, x.rank)
    (count,) = static([out.shape[axis]], "unfold")
    windows = np.arange(count, dtype=np.int64)[:, None] * step + np.arange(size, dtype=np.int64)
    value = b.op("Gather", x, b.constant(windows), axis=axis)
    return b.transpose(value, [*range(axis + 1), *range(axis + 2, x.rank + 1), axis + 1])


def _flip(b: Builder, out: Outline, x: Operand, dims: Sequence[int]) -> Value:
    axes = sorted({normalized(dim, x.rank) for dim in dims}) if x.rank else []
    if not axes:
        return x
    each = len(axes)
    first, last = b.constant([-1] * each), b.constant([-LAST] * each)
    return b.op("Slice", x, first, last, b.constant(axes), b.constant([-1] * each))


def _cat(b: Builder, out: Outline, tensors: Sequence[Operand], dim: int = 0) -> Value:
    parts = [each for each in tensors if each.rank == out.rank]  # torch passes over empty tensors of one dimension
    return b.op("Concat", *(b.cast(each, out.dtype) for each in parts), axis=normalized(dim, out.rank))


def _constant_pad(b: Builder, out: Outline, x: Operand, pad: Sequence[Any], value: Any = 0) -> Value:
    before: list[Any] = [0] * x.rank
    after: list[Any] = [0] * x.rank
    for index in range(len(pad) // 2):
        before[x.rank - 1 - index], after[x.rank - 1 - index] = pad[2 * index], pad[2 * index + 1]
    fill = b.tensor(value, out.dtype)
    if x.rank == 0:
        return x
    return b.op("Pad", x, b.sizes([*before, *after]), fill)


def _same(b: Builder, out: Outline, x: Operand) -> Value:
    return x


def _slice_scatter(
    b: Builder,
    out: Outline,
    x: Operand,
    source: Operand,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Value:
    axis = normalized(dim, x.rank)
    shape = static(x.shape, "slice_scatter")
    static([start or 0, end or 0, step], "slice_scatter")
    chosen = _positions(shape)[tuple([slice(None)] * axis + [slice(start, end, step)])]
    return placed(b, x, chosen, source)


def _full(b: Builder, out: Outline, size: Sequence[Any], fill_value: Any, *, dtype: Any = None) -> Value:
    return b.repeated(b.tensor(fill_value, out.dtype), size)


def _arange(b: Builder, out: Outline, start: Any, end: Any, step: Any = 1, *, dtype: Any = None) -> Value:
    if isinstance(out.shape[0], int):
        count: Value = b.constant(out.shape[0])
    elif all(isinstance(each, int | Value) and not isinstance(each, float) for each in (start, end, step)):
        first, last, gap = (b.tensor(each, torch.int64) for each in (start, end, step))
        if not isinstance(step, int) or step != 1:
            raise Untranslatable("arange of dynamic length with a step other than 1 has no translation")
        count = b.op("Div", b.op("Sub", last, first), gap)
    else:
        raise Untranslatable("arange of dynamic length over floats has no translation")
    wide = torch.float64 if out.dtype.is_floating_point else torch.int64
    index = b.cast(b.op("Range", b.constant(0), count, b.constant(1)), wide)
    return b.cast(b.op("Add", b.tensor(start, wide), b.op("Mul", index, b.tensor(step, wide))), out.dtype)


RULES: Mapping[str, Rule] = {
    "view": _view,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "diagonal": _diagonal,
    "as_strided": _as_strided,
    "unfold": _unfold,
    "flip": _flip,
    "cat": _cat,
    "constant_pad_nd": _constant_pad,
    "clone": _same,
    "alias": _same,
    "slice_scatter": _slice_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "as_strided_scatter": _as_strided_scatter,
    "full": _full,
    "arange": _arange,
}
