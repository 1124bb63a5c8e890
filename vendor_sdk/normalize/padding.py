"""Gradients of paddings by reflection and by the outermost element, one dimension after the other.

Along a dimension, what a source element gets is a sum of at most three parts of the gradient: where it lies itself, and what
the borders before and behind made of it. Each part is a slice, turned round or summed up, with zeros beside. So places are
known when loops are made, and no positions are computed, loaded or checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.normalize.rules import Rules, aten, cast, computation_dtype, full, named, number

PADDING = Rules()

Tensor = torch.Tensor
Part = Callable[[Tensor, int], Tensor]
"""What a border's gradient, a slice along a dimension, means for the source elements that it was made of."""


def _flipped(border: Tensor, dim: int) -> Tensor:
    return aten.flip.default(border, [dim])  # type: ignore[no-any-return]


def _summed(border: Tensor, dim: int) -> Tensor:
    return aten.sum.dim_IntList(border, [dim], True)  # type: ignore[no-any-return]


def _among_zeros(x: Tensor, dim: int, before: Any, size: Any) -> Tensor:
    """``x`` from place ``before`` of a dimension of ``size``."""
    after = size - before - x.shape[dim]
    if before == 0 and after == 0:
        return x
    return aten.constant_pad_nd.default(x, [*([0] * (2 * (x.dim() - 1 - dim))), before, after], 0)  # type: ignore[no-any-return]


def _along(grad: Tensor, dim: int, size: Any, before: Any, after: Any, part: Part, apart: int) -> Tensor:
    """The gradient along one dimension; borders are made of elements that lie ``apart`` from the outermost ones.

    What is padded by less than nothing is cut off, and gets no gradient.
    """
    length = grad.shape[dim]
    own = aten.slice.Tensor(grad, dim, max(before, 0), length - max(after, 0))
    total = _among_zeros(own, dim, max(-before, 0), size)
    if before > 0:
        border = part(aten.slice.Tensor(grad, dim, 0, before), dim)
        total = aten.add.Tensor(total, _among_zeros(border, dim, apart, size))
    if after > 0:
        border = part(aten.slice.Tensor(grad, dim, length - after, length), dim)
        total = aten.add.Tensor(total, _among_zeros(border, dim, size - apart - border.shape[dim], size))
    return total


def _backward(grad: Tensor, x: Tensor, padding: Sequence[Any], part: Part, apart: int) -> Tensor:
    total = cast(grad, computation_dtype(grad.dtype))
    for pair in range(len(padding) // 2):
        dim = x.dim() - 1 - pair
        before, after = padding[2 * pair], padding[2 * pair + 1]
        total = _along(total, dim, x.shape[dim], before, after, part, apart)
    return cast(total, grad.dtype)


def _all_cut(x: Tensor, padding: Sequence[Any]) -> bool:
    """Whether one side cuts off a whole dimension, which then comes back from the other side."""
    return any(p < 0 and -p >= x.shape[x.dim() - 1 - i // 2] for i, p in enumerate(padding))


def _reflection(overload: Any) -> Callable[..., Tensor]:
    def backward(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
        if _all_cut(x, padding):
            return torch_private.core_aten_table()[overload](grad, x, padding)  # type: ignore[no-any-return]
        return _backward(grad, x, padding, _flipped, 1)

    return backward


def _replication(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    return _by_positions(grad, x, padding) if _all_cut(x, padding) else _backward(grad, x, padding, _summed, 0)


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
