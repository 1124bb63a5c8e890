"""Results that kernels return in another order of memory than row-major: their dimensions from the outermost to the innermost.

``node.meta["order"]`` says so of a placed node (``Kernel.orders``); all who read it go by ``strides_of``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from vendor_sdk.ir.index import ONE, Int

Order = tuple[int, ...]


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


def laid(value: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """``value``, dense in memory with its dimensions in ``order``; copied where it is not."""
    if order is None:
        return value.contiguous()
    moved = value.permute(*order)
    if moved.is_contiguous():
        return value
    back = sorted(range(len(order)), key=order.__getitem__)
    return moved.contiguous().permute(*back)
