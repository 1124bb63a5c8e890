"""Rows of the creation family: tensors from numbers. ``empty``, ``scalar_tensor`` and the rest are ``full``."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vendor_sdk.prims.bounds import Exact, Ulp
from vendor_sdk.prims.row import ALL, NUMBERS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Effort, Sample, SampleContext

aten = torch.ops.aten


def _fills(context: SampleContext) -> Iterator[Sample]:
    dtype = {"dtype": context.dtype}
    value: float | int | bool = 0.3 if context.dtype.is_floating_point else context.dtype == torch.bool or 7
    for label, size in (("odd", [3, 67]), ("0-d", [])):
        yield Sample((size, value), dtype, label)
    if context.effort >= Effort.STANDARD:
        yield Sample(([0, 3], value), dtype, "empty")
        yield Sample(([2051], value), dtype, "large")
        yield Sample(([2, 3], 0 if context.dtype != torch.bool else False), dtype, "zeros")
    if context.dtype.is_floating_point:
        for special in (float("nan"), float("-inf"), -0.0):
            yield Sample(([5], special), dtype, f"special value {special}", special=True)


def _ranges(context: SampleContext) -> Iterator[Sample]:
    dtype = {"dtype": context.dtype}
    yield Sample((0, 100, 1), dtype, "counting")
    yield Sample((3, 50, 7), dtype, "uneven step")
    if context.effort >= Effort.STANDARD:
        yield Sample((5, 5, 1), dtype, "empty")
        yield Sample((4, 5, 1), dtype, "size one")
        if context.dtype != torch.uint8:
            yield Sample((9, -10, -3), dtype, "downward")
    if context.dtype.is_floating_point:
        yield Sample((0.5, 4.0, 0.25), dtype, "fractions")
        yield Sample((-1.0, 1.0, 0.1), dtype, "inexact step")


ROWS = (
    Prim(
        name="full",
        target=aten.full.default,
        family=Family.CREATION,
        summary="every element is the fill value, rounded to the dtype",
        dtypes=ALL,
        result=Result.ARGUMENT,
        shape=Shape.ARGUMENT,
        bound=Exact(signed_zero=True),
        samples=_fills,
        source="IEEE 754-2019, 5.4.2",
    ),
    Prim(
        name="arange",
        target=aten.arange.start_step,
        family=Family.CREATION,
        summary="start + i step for i from 0 while before end; ceil((end - start) / step) elements",
        dtypes=NUMBERS,
        result=Result.ARGUMENT,
        shape=Shape.OPERATOR,
        bound=Ulp(1, absolute=2),
        samples=_ranges,
        source="a product and a sum, one rounding each, where the sum may cancel",
    ),
)
"""The creation prims."""
