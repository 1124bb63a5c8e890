"""What prims' own bounds add to spans of exact results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from conformance.intervals import RULES
from conformance.spans import Span, exactly, inside, least, less, more, most, nearest, own, replaced, wrapped
from conformance.subnormals import ADDING, NOWHERE, Flushing
from vendor_sdk import Accumulated, Exact, Expected, Prim, Sample, Ulp, allowances

Tensor = torch.Tensor

MOVING = frozenset((
    "abs", "neg", "relu", "sign", "floor", "ceil", "trunc", "round", "maximum", "minimum", "fmax", "fmin", "where", "view",
    "permute", "expand", "slice", "select", "squeeze", "unsqueeze", "diagonal", "flip", "cat", "constant_pad_nd", "clone",
    "alias", "amax", "amin", "max.dim", "min.dim", "index", "index_select", "gather", "_to_copy",
))  # fmt: skip
"""Prims that are exact without a rounding; ``_to_copy`` rounds by its own rule."""


def extended(
    row: Prim,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dtypes: Sequence[torch.dtype],
    flushing: Flushing = NOWHERE,
) -> list[Span]:
    """The spans of a prim's results.

    Args:
        row: one of ``RULES``.
        args, kwargs: of the call, a ``Span`` for each tensor.
        dtypes: of the results.
        flushing: subnormals that may be zero.
    """
    spans = inside((args, kwargs))
    whole = not any(dtype.is_floating_point for dtype in (*dtypes, *(span.dtype for span in spans)))
    if whole and all(bool(span.fixed.all()) for span in spans):
        return _computed(row, args, kwargs, dtypes)
    tiny = flushing.by(row)
    args, kwargs = replaced((args, dict(kwargs)), lambda span: flushed(span, tiny))
    made = RULES[row.name](row, args, kwargs, dtypes[0])
    results = [wrapped(span) for span in (made if isinstance(made, tuple) else (made,))]
    allowed = [_allowed(row, args, kwargs, span) if row.name not in MOVING else span for span in results]
    if row.family in ADDING:
        terms = max(span.low.numel() for span in spans)  # at most
        allowed = [_dropped(span, terms, tiny) for span in allowed]
    # Whoever reads them next may be a part of the same kernel.
    return [flushed(span, flushing.everywhere | tiny) for span in allowed]


def _computed(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtypes: Sequence[torch.dtype]) -> list[Span]:
    """Integers and bools are exact: the operator itself."""
    found = row.target(*replaced(args, own), **replaced(dict(kwargs), own))
    return [exactly(tensor) for tensor in (found if isinstance(found, tuple | list) else (found,))]


def _allowed(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], ideal: Span) -> Span:
    """The span of the exact results, with what the row's bound allows."""
    dtype, bound = ideal.dtype, row.bound
    if not dtype.is_floating_point:
        return ideal
    if isinstance(bound, Exact):
        # Rounded to the dtype, not at all, or to float32 on the way.
        ends = [(end, nearest(end, torch.float32) if dtype != torch.float64 else end) for end in (ideal.low, ideal.high)]
        low, high = ((*both, nearest(both[0], dtype)) for both in ends)
        return Span(least(low), most(high), ideal.free, dtype)
    if isinstance(bound, Ulp):
        below, above = (_allowances(row, Sample(()), Expected(end, tuple(end.shape), dtype)) for end in (ideal.low, ideal.high))
        return Span(less(ideal.low, below), more(ideal.high, above), ideal.free, dtype)
    assert isinstance(bound, Accumulated)
    sizes = Sample(tuple(replaced(args, _size)), dict(replaced(dict(kwargs), _size)))
    below, above = (_allowances(row, sizes, Expected(end, tuple(end.shape), dtype)) for end in (ideal.low, ideal.high))
    # Where partial results may leave the range, the order decides what comes out.
    summing = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if dtype in bound.own_dtype:
        summing = dtype
    total = torch.maximum(below, above) / torch.finfo(summing).eps
    free = ideal.free | ~((total < torch.finfo(summing).max / 8) | ideal.low.isnan())
    return Span(less(ideal.low, below), more(ideal.high, above), free, dtype)


def _dropped(span: Span, terms: int, dtypes: frozenset[torch.dtype]) -> Span:
    """A sum, each of whose terms may have been below the normal range and taken for zero; halves are added in float32."""
    if span.dtype not in dtypes:
        return span
    lost = torch.full_like(span.low, terms * torch.finfo(span.dtype if span.dtype == torch.float64 else torch.float32).tiny)
    return Span(less(span.low, lost), more(span.high, lost), span.free, span.dtype)


def flushed(span: Span, dtypes: frozenset[torch.dtype]) -> Span:
    """With zero beside subnormals, where a dtype's may be flushed."""
    if span.dtype not in dtypes:
        return span
    tiny = torch.finfo(span.dtype).tiny
    low = torch.where((span.low > 0) & (span.low < tiny), 0.0, span.low)
    high = torch.where((span.high < 0) & (span.high > -tiny), 0.0, span.high)
    return Span(low, high, span.free, span.dtype)


def _allowances(row: Prim, sample: Sample, expected: Expected) -> Tensor:
    assert isinstance(row.bound, Ulp | Accumulated)
    (found,) = allowances(row.bound, row, sample, (expected,))
    assert found is not None
    return found


def _size(span: Span) -> Tensor:
    """The end of each interval that lies farther from zero; open ones count as zero, since their results are open too."""
    if not span.dtype.is_floating_point:
        return span.low
    return torch.where(span.high.abs() >= span.low.abs(), span.high, span.low).masked_fill(span.free, 0.0)
