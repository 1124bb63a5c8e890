"""Gradients of paddings by reflection and by the outermost element.

Along a dimension, what a source element gets is a sum of at most three parts of the gradient: where it lies itself, and what
the borders before and behind made of it. Each part is a slice, turned round or summed up, with zeros beside. So places are
known when loops are made, and no positions are computed, loaded or checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.normalize.rules import Rules, aten, cast, computation_dtype, full, named, number

PADDING = Rules()

Tensor = torch.Tensor


def _among_zeros(x: Tensor, sides: Sequence[tuple[Any, Any]]) -> Tensor:
    """``x`` with so many zeros before and behind, from the first dimension on."""
    pads = [each for pair in reversed(sides) for each in pair]
    return aten.constant_pad_nd.default(x, pads, 0) if any(each != 0 for each in pads) else x


def _all_cut(x: Tensor, padding: Sequence[Any]) -> bool:
    """Whether one side cuts off a whole dimension, which then comes back from the other side."""
    return any(p < 0 and -p >= x.shape[x.dim() - 1 - i // 2] for i, p in enumerate(padding))


def _dimensions(x: Tensor, padding: Sequence[Any]) -> Iterator[tuple[int, Any, Any]]:
    """The dimensions that are padded, with how many elements before and behind; less than none: so many are cut off."""
    for pair in range(len(padding) // 2):
        yield x.dim() - 1 - pair, padding[2 * pair], padding[2 * pair + 1]


def _own(x: Tensor, dim: int, before: Any, after: Any) -> Tensor:
    """Where source elements lie themselves; what is cut off got no gradient."""
    return aten.slice.Tensor(x, dim, max(before, 0), x.shape[dim] - max(after, 0))  # type: ignore[no-any-return]


def _reflection(overload: Any) -> Callable[..., Tensor]:
    """Every corner, side and middle of the gradient is a part, turned round where it was reflected, among zeros. All are read
    from the gradient itself, so that one pass adds them up."""

    def backward(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
        if _all_cut(x, padding):
            return torch_private.core_aten_table()[overload](grad, x, padding)  # type: ignore[no-any-return]
        parts: list[tuple[Tensor, dict[int, tuple[Any, Any]]]] = [(cast(grad, computation_dtype(grad.dtype)), {})]
        for dim, before, after in _dimensions(x, padding):
            size, length = x.shape[dim], grad.shape[dim]
            found = []
            for part, zeros in parts:
                found.append((_own(part, dim, before, after), {**zeros, dim: (max(-before, 0), max(-after, 0))}))
                if before > 0:
                    border = aten.flip.default(aten.slice.Tensor(part, dim, 0, before), [dim])
                    found.append((border, {**zeros, dim: (1, size - 1 - before)}))
                if after > 0:
                    border = aten.flip.default(aten.slice.Tensor(part, dim, length - after, length), [dim])
                    found.append((border, {**zeros, dim: (size - 1 - after, 1)}))
            parts = found
        whole = [_among_zeros(part, [zeros.get(dim, (0, 0)) for dim in range(x.dim())]) for part, zeros in parts]
        return cast(functools.reduce(aten.add.Tensor, whole), grad.dtype)

    return backward


def _replication(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """One dimension after the other: what the borders got belongs to the outermost elements."""
    if _all_cut(x, padding):
        return _by_positions(grad, x, padding)
    total = cast(grad, computation_dtype(grad.dtype))
    for dim, before, after in _dimensions(x, padding):
        size, length = x.shape[dim], grad.shape[dim]

        def among(part: Tensor, start: Any, dim: int = dim, size: Any = size) -> Tensor:
            sides: list[tuple[Any, Any]] = [(0, 0)] * x.dim()
            sides[dim] = start, size - start - part.shape[dim]
            return _among_zeros(part, sides)

        parts = [among(_own(total, dim, before, after), max(-before, 0))]
        if before > 0:
            parts.append(among(aten.sum.dim_IntList(aten.slice.Tensor(total, dim, 0, before), [dim], True), 0))
        if after > 0:
            border = aten.slice.Tensor(total, dim, length - after, length)
            parts.append(among(aten.sum.dim_IntList(border, [dim], True), size - 1))
        total = functools.reduce(aten.add.Tensor, parts)
    return cast(total, grad.dtype)


def _by_positions(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    """The gradient of a padding by the outermost element, added up where each element came from."""
    for pair in range(len(padding) // 2):
        dim = x.dim() - 1 - pair
        before, size = padding[2 * pair], x.shape[dim]
        place = aten.arange.start_step(0, grad.shape[dim], 1, dtype=torch.int64, device=grad.device)
        source = aten.maximum.default(aten.sub.Tensor(place, before), number(0, torch.int64, grad))
        source = aten.minimum.default(source, number(size - 1, torch.int64, grad))
        source = aten.reshape.default(source, [-1, *([1] * (x.dim() - 1 - dim))])
        shape = list(grad.shape)
        shape[dim] = size
        start = full(0, shape, grad.dtype, grad)
        grad = aten.scatter_add.default(start, dim, aten.expand.default(source, list(grad.shape)), grad)
    return grad


for _dims in (1, 2, 3):
    if (_overload := named(f"aten::reflection_pad{_dims}d_backward")) is not None:
        PADDING[_overload] = _reflection(_overload)
    if (_overload := named(f"aten::replication_pad{_dims}d_backward")) is not None:
        PADDING[_overload] = _replication
