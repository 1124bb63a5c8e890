"""Rows of the comparison family: comparisons, logic and bits, element by element with broadcasting. All are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from vendor_sdk.prims import elementary
from vendor_sdk.prims.bounds import BY_DEFINITION, Exact
from vendor_sdk.prims.row import ALL, BOOL, INTS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, Sampler, binary, draw, unary

aten = torch.ops.aten

BITS = (*INTS, *BOOL)
FEW = Interval(-2.0, 2.0)
"""Whole numbers collide often here, so that equality is seen."""


def _row(
    name: str,
    target: Any,
    summary: str,
    samples: Sampler,
    *,
    dtypes: tuple[torch.dtype, ...] = ALL,
    result: Result = Result.BOOL,
    shape: Shape = Shape.BROADCAST,
    by: Callable[..., Any] | None = None,
    source: str = BY_DEFINITION,
) -> Prim:
    return Prim(
        name=name,
        target=target,
        family=Family.COMPARISON,
        summary=summary,
        dtypes=dtypes,
        result=result,
        shape=shape,
        bound=Exact(),
        samples=samples,
        decomposition=by,
        source=source,
    )


def _ordered(context: SampleContext) -> Iterator[Sample]:
    """Two tensors with many equal elements, beside the ordinary ones."""
    x = draw(context, (7, 13), FEW)
    y = draw(context, (7, 13), FEW)
    yield Sample((torch.where(draw(context, (7, 13), dtype=torch.bool), x, y), y), label="ties")
    yield from binary(FEW, wraps=True)(context)


def _shifts(context: SampleContext) -> Iterator[Sample]:
    """Shift counts below the number of bits, where the shift is defined, and others."""
    bits = torch.iinfo(context.dtype).bits
    yield from binary(Interval(-100.0, 100.0), Interval(0.0, min(bits - 1, 31)), mixed=False)(context)
    if context.effort >= Effort.STANDARD:
        counts = torch.tensor([bits, bits + 1, -1, -bits]).to(context.dtype).repeat(9)
        yield Sample((draw(context, (36,), Interval(-100.0, 100.0)), counts), label="counts out of range", undefined=True)


_IEEE = "IEEE 754-2019, 5.11: unordered compares false, except for ne"

ROWS = (
    _row("eq", aten.eq.Tensor, "x = y", _ordered, source=_IEEE),
    _row("ne", aten.ne.Tensor, "x != y; true where either is NaN", _ordered, by=elementary.ne, source=_IEEE),
    _row("lt", aten.lt.Tensor, "x < y", _ordered, source=_IEEE),
    _row("le", aten.le.Tensor, "x <= y", _ordered, by=elementary.le, source=_IEEE),
    _row("gt", aten.gt.Tensor, "x > y", _ordered, by=elementary.gt, source=_IEEE),
    _row("ge", aten.ge.Tensor, "x >= y", _ordered, by=elementary.ge, source=_IEEE),
    _row(
        "isnan", aten.isnan.default, "x is NaN", unary(), shape=Shape.SAME, by=elementary.isnan, source="IEEE 754-2019, 5.7.2"
    ),
    _row(
        "isinf",
        aten.isinf.default,
        "x is an infinity",
        unary(),
        shape=Shape.SAME,
        by=elementary.isinf,
        source="IEEE 754-2019, 5.7.2",
    ),
    _row("logical_and", aten.logical_and.default, "x != 0 and y != 0", binary(FEW), by=elementary.logical_and),
    _row("logical_or", aten.logical_or.default, "x != 0 or y != 0", binary(FEW), by=elementary.logical_or),
    _row("logical_xor", aten.logical_xor.default, "(x != 0) != (y != 0)", binary(FEW), by=elementary.logical_xor),
    _row("logical_not", aten.logical_not.default, "x = 0", unary(FEW), shape=Shape.SAME, by=elementary.logical_not),
    _row(
        "bitwise_and",
        aten.bitwise_and.Tensor,
        "bit by bit and",
        binary(Interval(-99.0, 99.0), wraps=True),
        dtypes=BITS,
        result=Result.PROMOTE,
    ),
    _row(
        "bitwise_or",
        aten.bitwise_or.Tensor,
        "bit by bit or",
        binary(Interval(-99.0, 99.0), wraps=True),
        dtypes=BITS,
        result=Result.PROMOTE,
    ),
    _row(
        "bitwise_xor",
        aten.bitwise_xor.Tensor,
        "bit by bit exclusive or",
        binary(Interval(-99.0, 99.0), wraps=True),
        dtypes=BITS,
        result=Result.PROMOTE,
        by=elementary.bitwise_xor,
    ),
    _row(
        "bitwise_not",
        aten.bitwise_not.default,
        "every bit flipped; logical not for bool",
        unary(Interval(-99.0, 99.0), wraps=True),
        dtypes=BITS,
        result=Result.SAME,
        shape=Shape.SAME,
        by=elementary.bitwise_not,
    ),
    _row(
        "bitwise_left_shift",
        aten.bitwise_left_shift.Tensor,
        "x 2**y, wrapping; 0 <= y < bits",
        _shifts,
        dtypes=INTS,
        result=Result.PROMOTE,
    ),
    _row(
        "bitwise_right_shift",
        aten.bitwise_right_shift.Tensor,
        "floor(x / 2**y), the sign kept; 0 <= y < bits",
        _shifts,
        dtypes=INTS,
        result=Result.PROMOTE,
    ),
)
"""The comparison, logical and bitwise prims."""
