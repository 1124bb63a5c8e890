"""Attention under masks, as models call it: programs that run without gradients (``semantics``) and with (``derivatives``).

What a device makes of a mask depends on its dtype and on where it has one row, one head or one sequence for all; a graph may
hold the call whole, or spelled out; and what follows from positions a kernel may compute itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from conformance.draw import Draw

Tensor = torch.Tensor
ROWS, KEYS = 9, 11


def _operands(draw: Draw, keys: int = KEYS, heads: int = 4) -> list[Tensor]:
    """Query, key and value; keys and values have so many heads."""
    return [draw.normal(2, 4, ROWS, 8), draw.normal(2, heads, keys, 8), draw.normal(2, heads, keys, 8)]


def _kept(draw: Draw, *shape: int) -> Tensor:
    """Where keys count: the first one does everywhere."""
    kept = draw.whole(*shape, dtype=torch.bool)
    kept[..., 0] = True
    return kept


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask).contiguous()


def _as_numbers(query: Tensor, key: Tensor, value: Tensor, kept: Tensor) -> Tensor:
    return _plain(query, key, value, torch.zeros_like(kept, dtype=query.dtype).masked_fill(~kept, float("-inf")))


def _and_causal(query: Tensor, key: Tensor, value: Tensor, kept: Tensor) -> Tensor:
    rows, keys = query.shape[2], key.shape[2]
    return _plain(query, key, value, kept & torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril())


def _by_distance(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> Tensor:
    return _plain(query, key, value, slopes * torch.arange(key.shape[2], device=query.device))


def _by_both(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> Tensor:
    row, place = (torch.arange(each.shape[2], device=query.device) for each in (query, key))
    return _plain(query, key, value, slopes * (place - row[:, None]).abs())


def _near(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
    place = torch.arange(query.shape[2], device=query.device)
    near = (place - place[:, None] < 2) & (place[:, None] - place < 4)
    return _plain(query, key, value, near & (documents[:, :, None] == documents[:, None])[:, None])


def _alike(query: Tensor, key: Tensor, value: Tensor, kept: Tensor) -> Tensor:
    return _plain(query, key[:, :, :1].expand(key.shape), value, kept)


PROGRAMS: Sequence[tuple[str, Callable[..., Tensor], Callable[[Draw], Sequence[Tensor]]]] = (
    ("padded keys", _plain, lambda draw: [*_operands(draw), _kept(draw, 2, 1, 1, KEYS)]),
    ("padded keys with one head", _plain, lambda draw: [*_operands(draw, heads=1), _kept(draw, 2, 1, 1, KEYS)]),
    ("padded keys, as numbers", _as_numbers, lambda draw: [*_operands(draw), _kept(draw, 2, 1, 1, KEYS)]),
    ("padded keys, causal", _and_causal, lambda draw: [*_operands(draw, ROWS), _kept(draw, 2, 1, 1, ROWS)]),
    ("keys by row and head", _plain, lambda draw: [*_operands(draw), _kept(draw, 1, 4, ROWS, KEYS)]),
    ("one mask for all", _plain, lambda draw: [*_operands(draw), _kept(draw, ROWS, KEYS)]),
    ("a bias by head and key", _by_distance, lambda draw: [*_operands(draw), draw.positive(1, 4, 1, 1)]),
    ("a bias by head, row and key", _by_both, lambda draw: [*_operands(draw), draw.positive(1, 4, 1, 1)]),
    ("near keys of one document", _near, lambda draw: [*_operands(draw, ROWS), draw.whole(2, ROWS, dtype=torch.bool).long()]),
    ("hundreds of keys that are alike", _alike, lambda draw: [*_operands(draw, 600), _kept(draw, 1, 1, 1, 600)]),
)
"""Name, function, and how its inputs are drawn."""
