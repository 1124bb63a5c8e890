"""Tensors in what calls take and give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensors(value: Any) -> list[torch.Tensor]:
    """Those in nested lists, tuples and mappings, in order, with repetitions."""
    return list(_tensors(value))


def flat(returned: Any) -> list[Any]:
    """What a call gave, one tensor or several, as a list."""
    return [returned] if isinstance(returned, torch.Tensor) else list(returned)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
