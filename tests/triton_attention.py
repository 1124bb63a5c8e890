"""Attention in Triton, run through its interpreter: masks, shared heads, odd sizes, strides, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from reference_backends.triton_gpu import attention
from vendor_sdk import COMPOSITES

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """Heads of queries and keys, rows, keys, width and depth; a mask made of (batch, heads, rows, keys)."""

    shape: tuple[int, int, int, int, int, int]
    dtype: torch.dtype = torch.bfloat16
    causal: bool = False
    mask: Callable[[int, int, int, int], Tensor] | None = None
    scale: float | None = None
    across: bool = False


def _seen(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    """Bools with a row that sees no key."""
    mask = torch.rand(1, heads, rows, keys) > 0.3
    mask[..., rows // 2, :] = False
    return mask


def _padding(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    return torch.arange(keys) < torch.randint(1, keys, (batch, 1, 1, 1))


def _added(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    mask = torch.randn(batch, 1, rows, keys)
    mask[..., 1, :] = -math.inf
    return mask


CASES: Mapping[str, Case] = {
    "one row": Case((2, 2, 1, 70, 64, 64)),
    "causal, odd": Case((2, 2, 150, 150, 64, 64), causal=True),
    "strides of a projection": Case((2, 2, 37, 90, 64, 64), across=True),
    "shared heads, some rows see nothing": Case((4, 2, 40, 150, 24, 40), torch.float16, mask=_seen),
    "float32, numbers added": Case((2, 1, 70, 50, 16, 16), torch.float32, causal=True, mask=_added, scale=0.3),
    "padding, negative scale": Case((2, 2, 33, 129, 128, 128), mask=_padding, scale=-0.3),
    "fewer keys than rows": Case((1, 1, 200, 140, 72, 72), causal=True),
    "more keys than rows": Case((1, 1, 70, 200, 128, 128), causal=True),
}


def wrong() -> dict[str, str]:
    """What is wrong, by case."""
    found = {}
    (reference,) = COMPOSITES["scaled_dot_product_attention"].targets.values()
    for what, case in CASES.items():
        heads, shared, rows, keys, width, depth = case.shape
        sizes = (heads, rows, width), (shared, keys, width), (shared, keys, depth)
        query, key, value = (
            (torch.randn(2, n, h, w).transpose(1, 2) if case.across else torch.randn(2, h, n, w)).to(case.dtype)
            for h, n, w in sizes
        )
        mask = None if case.mask is None else case.mask(2, heads, rows, keys)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(case.dtype)
        result = attention.generated(query, key, value, case.causal, mask, case.scale)
        wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
        exact = reference(query.double(), key.double(), value.double(), 0.0, case.causal, attn_mask=wide, scale=case.scale)
        rough = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-6}[case.dtype]
        try:
            torch.testing.assert_close(result[0].double(), exact[0], rtol=rough, atol=rough)
            torch.testing.assert_close(result[1].double(), exact[1], rtol=4e-6, atol=4e-6)
        except AssertionError as error:
            found[what] = str(error)
    return found
