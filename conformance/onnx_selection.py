"""Rules of operators whose results have sizes that only the data tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.onnx_types import Tensor


def _compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The elements, or slices, for which the condition holds; it may be shorter than they are many."""
    return torch.index_select(x.flatten() if axis is None else x, axis or 0, torch.nonzero(condition).squeeze(1))


def _unique(x: Tensor, *, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
    """The distinct elements, or slices: themselves, where each stands first, which of them each one is, how often it is there.

    In the order of a stable sort, equal ones are neighbours and the first of them comes first.
    """
    whole, dim = (x.flatten(), 0) if axis is None else (x, axis)
    rows = whole.movedim(dim, 0).flatten(1) if whole.dim() > 1 else whole.unsqueeze(1)
    count = rows.shape[0]
    order = torch.arange(count)
    for column in reversed(range(rows.shape[1])):
        order = order[torch.sort(rows[:, column][order], stable=True).indices]
    ordered = rows[order]
    new = torch.cat([torch.ones(min(count, 1), dtype=torch.bool), (ordered[1:] != ordered[:-1]).any(1)])
    if not sorted:
        starts = torch.cummax(torch.where(new, torch.arange(count), 0), 0).values
        first = torch.scatter(torch.zeros_like(order), 0, order, order[starts])  # of those equal to each, in the given order
        order, new = torch.arange(count), first == torch.arange(count)
        group = (torch.cumsum(new, 0) - 1)[first]
    else:
        group = torch.cumsum(new, 0) - 1
    often = torch.scatter_add(torch.zeros(count, dtype=torch.int64), 0, group, torch.ones(count, dtype=torch.int64))
    places = torch.masked_select(order, new)
    inverse = torch.scatter(torch.zeros_like(order), 0, order, group)
    return torch.index_select(whole, dim, places), places, inverse, torch.masked_select(often[group], new)


RULES: Mapping[str, Callable[..., Any]] = {
    "Compress": _compress,
    "NonZero": lambda x: torch.nonzero(x).t().contiguous(),
    "Unique": _unique,
}
