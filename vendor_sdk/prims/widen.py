"""Dtypes inside decompositions: what is narrower is computed in float32 and rounded once at the end."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes on values of ``dtype``: float32 for those of fewer bits."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` in ``dtype``; no node when it has that dtype already."""
    return x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)


def number(value: Any, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """A 0-d tensor on the device of ``like``: most ATen operators take no Python number where a tensor stands."""
    return aten.full.default([], value, dtype=dtype, device=like.device)  # type: ignore[no-any-return]


def filled(like: torch.Tensor, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """``value`` in the shape and on the device of ``like``."""
    return aten.full.default(list(like.shape), value, dtype=dtype, device=like.device)  # type: ignore[no-any-return]
