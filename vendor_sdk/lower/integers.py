"""Integer arithmetic whose operands are known so well that it is an index expression, or fits into fewer bits.

Places of tensors are int64 in torch. A kernel that compares them, or takes one from another, rarely needs that many bits: an
int64 takes two registers on most devices, and half of a vector's lanes. Written as a value of a few bits plus an index
expression, whose bounds are known, most such arithmetic disappears at compile time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int

COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
SMALL = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32))
"""Integers whose sum with an index expression of int32 never leaves int64."""


class Affine(NamedTuple):
    """An int64: ``value``, the name of one of dtype ``dtype`` (empty: none), plus ``offset``."""

    value: str
    dtype: torch.dtype
    offset: Int


def combined(op: str, left: Affine, right: Affine) -> Affine | None:
    """What "add", "sub" or "mul" makes of two; ``None`` where that is more than one value and an index expression."""
    if op == "add" and not (left.value and right.value):
        value, dtype = (left if left.value else right)[:2]
        return Affine(value, dtype, left.offset + right.offset)
    if op == "sub" and (not right.value or left.value == right.value):
        value = "" if left.value == right.value else left.value
        return Affine(value, left.dtype, left.offset - right.offset)
    if op == "mul" and not (left.value or right.value) and (left.offset.value is not None or right.offset.value is not None):
        return Affine("", torch.int64, left.offset * right.offset)
    return None


def fits(expression: Int) -> bool:
    """Whether an index expression is an int32, as far as its bounds are known."""
    low, high = ix.bounds(expression)
    return low is not None and high is not None and low >= -(2**31) and high < 2**31
