"""Results that kernels return in another order of memory than row-major: their dimensions from the outermost to the innermost.

``node.meta["order"]`` says so of a placed node (``Kernel.orders``); all who read it go by ``strides_of``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.index import ONE, Int, from_size

Order = tuple[int, ...]

CHANNELS_LAST: Order = (0, 2, 3, 1)
"""Of images (images, channels, rows, columns): the numbers of a pixel lie side by side."""


def order_of(node: fx.Node) -> Order | None:
    """The order in which a value lies in memory; None: row-major."""
    order: Order | None = node.meta.get("order")
    return order


def strides_of(sizes: Sequence[Int], order: Sequence[int]) -> tuple[Int, ...]:
    """Strides, in elements, of a dense tensor whose dimensions lie in ``order``."""
    strides: dict[int, Int] = {}
    step = ONE
    for dim in reversed(order):
        strides[dim] = step
        step = step * sizes[dim]
    return tuple(strides[dim] for dim in range(len(sizes)))


def order_in_memory(shape: Sequence[Any], strides: Sequence[Any]) -> list[int] | None:
    """The dimensions from the outermost to the innermost in memory; None where memory has gaps or overlaps, or is empty."""
    try:
        sizes, steps = [from_size(n) for n in shape], [from_size(n) for n in strides]
    except ValueError:  # an expression outside the index algebra
        return None
    if any(size.value == 0 for size in sizes):
        return None
    left = list(range(len(sizes)))
    found: list[int] = []
    expected = ONE
    while left:
        # Where a dimension of one element lies makes no difference.
        fitting = [d for d in reversed(left) if steps[d] == expected] or [d for d in reversed(left) if sizes[d].value == 1]
        if not fitting:
            return None
        dim = next((d for d in fitting if sizes[d].value == 1), fitting[0])
        left.remove(dim)
        found.append(dim)
        expected = expected * sizes[dim]
    return found[::-1]


def channels_lie_last(image: torch.Tensor) -> bool:
    """Whether an image, fake or not, is dense with its channels last, and that is another order than row-major."""
    return (
        image.dim() == 4
        and not torch_private.surely_contiguous(image)
        and torch_private.surely_contiguous(image.permute(CHANNELS_LAST))
    )


def inverse(order: Sequence[int]) -> list[int]:
    """The permutation that undoes ``order``."""
    return sorted(range(len(order)), key=order.__getitem__)


@functools.lru_cache(4096)
def dense_strides(shape: tuple[int, ...], order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Those of a tensor that is dense in memory with its dimensions in ``order`` (``None``: row-major), as torch makes it."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape)) if order is None else order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def laid(value: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """``value``, dense in memory with its dimensions in ``order``; copied where it is not."""
    if order is None:
        return value.contiguous()
    moved = value.permute(*order)
    if moved.is_contiguous():
        return value
    return moved.contiguous().permute(*inverse(order))
