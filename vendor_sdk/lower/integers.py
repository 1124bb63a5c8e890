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
PLACES = frozenset(("abs", "add", "floordiv", "fmod", "max", "min", "mod", "mul", "neg", "sub", "truncdiv", "wrap_index"))
"""Ops that make an index expression of index expressions, if ``place`` does."""
EXTREMES = frozenset(("abs", "max", "min"))
"""Those of them that are one instruction, unlike conditions among index expressions."""
CHECKED = frozenset(("floordiv", "fmod", "mod", "truncdiv", "wrap_index"))
"""Those of them that look at their operands before they compute; of index expressions that is known."""
DIVISIONS = frozenset(("floordiv", "fmod", "mod", "mul", "truncdiv"))
"""Those of them that want a number as one of the operands."""
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


def place(op: str, first: Int, second: Int = ix.ZERO) -> Int | None:
    """What one of ``PLACES`` makes of index expressions; None where that is none."""
    if op == "abs":
        return ix.maximum(first, -first)
    if op == "neg":
        return -first
    if op in ("max", "min"):
        return ix.maximum(first, second) if op == "max" else ix.minimum(first, second)
    if op == "wrap_index":
        return first if ix.nonnegative(first) and ix.less(first, second) else None
    if op in ("add", "sub", "mul"):
        made = combined(op, Affine("", torch.int64, first), Affine("", torch.int64, second))
        return made and made.offset
    if second.value is None or second.value <= 0 or (op in ("fmod", "truncdiv") and not ix.nonnegative(first)):
        return None
    return first % second if op in ("mod", "fmod") else first // second


def fits(expression: Int) -> bool:
    """Whether an index expression is an int32, as far as its bounds are known."""
    low, high = ix.bounds(expression)
    return low is not None and high is not None and low >= -(2**31) and high < 2**31
