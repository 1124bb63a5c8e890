"""View prims on device tensors: new shape, strides and offset over the same buffer, no bytes moved.

One function a prim in ``VIEWS``, with the arguments of the ATen schema. Each returns a ``DeviceTensor`` (a tuple of them for
``split`` and its kin), or ``None`` where strides cannot express the result. The rules are those of torch's own strided tensors.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from vendor_sdk.contract.device import DeviceTensor, contiguous_strides
from vendor_sdk.errors import KernelError

View = DeviceTensor | tuple[DeviceTensor, ...] | None


def view(value: DeviceTensor, size: Sequence[int]) -> DeviceTensor | None:
    """``size`` may hold one -1. ``None`` when dimensions that do not lie end to end would have to be merged."""
    shape = _infer(value.numel, size)
    strides = _reshaped_strides(value, shape)
    return None if strides is None else replace(value, shape=shape, strides=strides)


def view_dtype(value: DeviceTensor, dtype: torch.dtype) -> DeviceTensor | None:
    """The same bits read as another dtype of the same width; ``None`` for another width."""
    return replace(value, dtype=dtype) if dtype.itemsize == value.dtype.itemsize else None


def alias(value: DeviceTensor) -> DeviceTensor:
    return value


def permute(value: DeviceTensor, dims: Sequence[int]) -> DeviceTensor:
    order = [_dim(value, dim) for dim in dims]
    return replace(value, shape=tuple(value.shape[d] for d in order), strides=tuple(value.strides[d] for d in order))


def transpose(value: DeviceTensor, dim0: int, dim1: int) -> DeviceTensor:
    order = list(range(len(value.shape)))
    if order:
        first, second = _dim(value, dim0), _dim(value, dim1)
        order[first], order[second] = order[second], order[first]
    return permute(value, order)


def t(value: DeviceTensor) -> DeviceTensor:
    return permute(value, range(len(value.shape))[::-1])


def expand(value: DeviceTensor, size: Sequence[int], *, implicit: bool = False) -> DeviceTensor:
    new = len(size) - len(value.shape)
    shape = [*size[:new], *(old if wanted == -1 else wanted for old, wanted in zip(value.shape, size[new:], strict=True))]
    strides = [0] * new
    for old, wanted, stride in zip(value.shape, shape[new:], value.strides, strict=True):
        if old not in (1, wanted):
            raise KernelError(f"expand: size {old} cannot become {wanted}", fix="only sizes of one expand")
        strides.append(stride if old == wanted else 0)
    return replace(value, shape=tuple(shape), strides=tuple(strides))


def slice_(value: DeviceTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> DeviceTensor:
    dim = _dim(value, dim)
    first, last, _ = slice(start, end).indices(value.shape[dim])
    count = max(0, -(-(last - first) // step))
    return _with_dim(value, dim, count, value.strides[dim] * step, first * value.strides[dim])


def select(value: DeviceTensor, dim: int, index: int) -> DeviceTensor:
    dim = _dim(value, dim)
    size = value.shape[dim]
    if not -size <= index < size:
        raise KernelError(f"select: index {index} is outside dimension {dim} of size {size}")
    return _without_dims(value, {dim}, (index % size) * value.strides[dim])


def squeeze(value: DeviceTensor, dim: int | Sequence[int] | None = None) -> DeviceTensor:
    dims = range(len(value.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    if not value.shape:
        return value
    return _without_dims(value, {d for d in (_dim(value, d) for d in dims) if value.shape[d] == 1})


def unsqueeze(value: DeviceTensor, dim: int) -> DeviceTensor:
    dim = dim + len(value.shape) + 1 if dim < 0 else dim
    stride = value.shape[dim] * value.strides[dim] if dim < len(value.shape) else 1
    return replace(
        value,
        shape=(*value.shape[:dim], 1, *value.shape[dim:]),
        strides=(*value.strides[:dim], stride, *value.strides[dim:]),
    )


def diagonal(value: DeviceTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> DeviceTensor:
    row, column = _dim(value, dim1), _dim(value, dim2)
    rows, columns = value.shape[row], value.shape[column]
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = 0 if count == 0 else offset * value.strides[column] if offset >= 0 else -offset * value.strides[row]
    rest = _without_dims(value, {row, column}, start)
    return replace(rest, shape=(*rest.shape, count), strides=(*rest.strides, value.strides[row] + value.strides[column]))


def as_strided(
    value: DeviceTensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> DeviceTensor | None:
    """Strides and offset count in the row-major elements of the logical tensor, as prims do: ``None`` unless ``value`` is
    contiguous."""
    if not value.contiguous:
        return None
    skip = storage_offset or 0
    result = replace(value, shape=tuple(size), strides=tuple(stride), offset=value.offset + skip)
    if skip + span(result) > value.numel:
        raise KernelError(
            f"as_strided: size {tuple(size)}, stride {tuple(stride)}, offset {skip} reach past {value.numel} elements"
        )
    return result


def unfold(value: DeviceTensor, dimension: int, size: int, step: int) -> DeviceTensor:
    dim = _dim(value, dimension)
    whole, stride = (value.shape[dim], value.strides[dim]) if value.shape else (1, 1)
    if not 0 <= size <= whole or step <= 0:
        raise KernelError(f"unfold: windows of {size}, {step} apart, do not fit dimension {dim} of size {whole}")
    if not value.shape:
        return replace(value, shape=(size,), strides=(1,))
    count = (whole - size) // step + 1
    windows = _with_dim(value, dim, count, stride * step, 0)
    return replace(windows, shape=(*windows.shape, size), strides=(*windows.strides, stride))


def split(value: DeviceTensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[DeviceTensor, ...]:
    dim = _dim(value, dim)
    total = value.shape[dim]
    if isinstance(split_size, int):
        step = max(split_size, 1)
        sizes = [min(step, total - start) for start in range(0, total, step)] or [0]
    else:
        sizes = list(split_size)
        if sum(sizes) != total:
            raise KernelError(f"split: sizes {sizes} do not add up to {total}, the size of dimension {dim}")
    pieces, start = [], 0
    for size in sizes:
        pieces.append(slice_(value, dim, start, start + size))
        start += size
    return tuple(pieces)


def unbind(value: DeviceTensor, dim: int = 0) -> tuple[DeviceTensor, ...]:
    return tuple(select(value, dim, index) for index in range(value.shape[_dim(value, dim)]))


VIEWS: Mapping[str, Callable[..., View]] = {
    "alias": alias,
    "as_strided": as_strided,
    "detach": alias,
    "diagonal": diagonal,
    "expand": expand,
    "permute": permute,
    "reshape": view,
    "select": select,
    "slice": slice_,
    "split": split,
    "split_with_sizes": split,
    "squeeze": squeeze,
    "t": t,
    "transpose": transpose,
    "unbind": unbind,
    "unfold": unfold,
    "unsqueeze": unsqueeze,
    "view": view,
    "view_dtype": view_dtype,
}
"""Prim name, overload left out (``"squeeze"`` stands for ``squeeze.dims``), to its rule. ``view.dtype`` is ``"view_dtype"``."""


def span(value: DeviceTensor) -> int:
    """Elements from the first to one past the last that ``value`` touches; 0 when it is empty."""
    if value.numel == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True))


def runs(value: DeviceTensor) -> tuple[int, int]:
    """``(count, length)``: ``value``, in row-major order, is ``count`` stretches of ``length`` elements that lie end to end."""
    cut = _run_start(value)
    return math.prod(value.shape[:cut]), math.prod(value.shape[cut:])


def run_offsets(value: DeviceTensor) -> Iterator[int]:
    """Where each stretch of ``runs`` begins in the buffer, in elements, in row-major order."""
    cut = _run_start(value)
    for index in itertools.product(*map(range, value.shape[:cut])):
        yield value.offset + sum(map(operator.mul, index, value.strides))


def _run_start(value: DeviceTensor) -> int:
    """The first of the innermost dimensions that lie end to end."""
    length = 1
    for dim in reversed(range(len(value.shape))):
        if value.shape[dim] != 1 and value.strides[dim] != length:
            return dim + 1
        length *= value.shape[dim]
    return 0


def _dim(value: DeviceTensor, dim: int) -> int:
    rank = max(len(value.shape), 1)
    if not -rank <= dim < rank:
        raise KernelError(f"dimension {dim} is outside a tensor of {len(value.shape)} dimensions")
    return dim % rank


def _with_dim(value: DeviceTensor, dim: int, size: int, stride: int, skip: int) -> DeviceTensor:
    return replace(
        value,
        shape=(*value.shape[:dim], size, *value.shape[dim + 1 :]),
        strides=(*value.strides[:dim], stride, *value.strides[dim + 1 :]),
        offset=value.offset + skip,
    )


def _without_dims(value: DeviceTensor, dims: set[int], skip: int = 0) -> DeviceTensor:
    kept = [dim for dim in range(len(value.shape)) if dim not in dims]
    return replace(
        value,
        shape=tuple(value.shape[dim] for dim in kept),
        strides=tuple(value.strides[dim] for dim in kept),
        offset=value.offset + skip,
    )


def _infer(numel: int, size: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(operator.index(item) for item in size)
    if -1 in shape:
        known = -math.prod(shape)
        shape = tuple(numel // known if item == -1 else item for item in shape) if known > 0 else shape
    if math.prod(shape) != numel:
        raise KernelError(f"view: {numel} elements cannot have shape {tuple(size)}")
    return shape


def _reshaped_strides(value: DeviceTensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that give ``shape`` over the elements of ``value`` in row-major order, or ``None``.

    Dimensions of ``value`` fall into blocks that lie end to end, each of which can be cut anew; a dimension of ``shape`` that
    would reach over two blocks cannot be expressed.
    """
    if value.contiguous:
        return contiguous_strides(shape)
    blocks: list[tuple[int, int]] = []  # (elements, stride of the innermost), innermost block first
    for size, stride in zip(reversed(value.shape), reversed(value.strides), strict=True):
        if size == 1:
            continue
        if blocks and stride == blocks[-1][0] * blocks[-1][1]:
            blocks[-1] = (blocks[-1][0] * size, blocks[-1][1])
        else:
            blocks.append((size, stride))
    strides: list[int] = []
    pending = iter(blocks)
    left, step = 1, 1
    for size in reversed(shape):
        if size == 1:
            strides.append(step)
            continue
        if left == 1:
            left, step = next(pending)
        if left % size:
            return None
        strides.append(step)
        left //= size
        step *= size
    return tuple(reversed(strides))
