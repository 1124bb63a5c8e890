"""Spans: intervals over tensors that hold all results which some sequence of conforming prims may give.

A ``Span`` holds, for each element, an interval that is certain to have the result of every sequence of prims that each meet
their own bound, at the dtype of the graph or a higher precision; ``docs/certification.md`` has the derivation. ``intervals.py``
says how spans pass through prims that are computed exactly, ``slack.py`` adds what the prims' own bounds allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk import rounded_once

Tensor = torch.Tensor


@dataclass(frozen=True)
class Span:
    """Intervals, an element each.

    Attributes:
        low, high: their ends: float64, int64 or bool, after ``dtype``. NaN in both is the result NaN.
        free: elements that may be anything: the bounds of the parts leave their value open (a comparison of what is too close,
            a division by what may be zero).
        dtype: of the value in the graph.
    """

    low: Tensor
    high: Tensor
    free: Tensor
    dtype: torch.dtype

    @property
    def fixed(self) -> Tensor:
        """Elements of which only one value is right."""
        return ~self.free & ((self.low == self.high) | (self.low != self.low))

    def moved(self, function: Callable[[Tensor], Tensor]) -> Span:
        """What a function gives that only moves elements."""
        return Span(function(self.low), function(self.high), function(self.free), self.dtype)


def exactly(tensor: Tensor) -> Span:
    """The span of an input."""
    wide = wider(tensor, tensor.dtype)
    return Span(wide, wide, torch.zeros(tensor.shape, dtype=torch.bool), tensor.dtype)


def wider(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor``, a value of ``dtype``, as the ends of spans are held."""
    if dtype.is_floating_point:
        return tensor.double()
    return tensor if dtype == torch.bool else tensor.to(torch.int64)


def wrapped(span: Span) -> Span:
    """A span of integers that were computed in int64, as memory of its dtype holds them: without the bits that do not fit.
    Intervals that reach over an end of the dtype's range come apart there, and are open."""
    if span.dtype.is_floating_point or span.dtype in (torch.bool, torch.int64):
        return span
    low, high = (end.to(span.dtype).to(torch.int64) for end in (span.low, span.high))
    return Span(low, high, span.free | (low > high) | (high - low != span.high - span.low), span.dtype)


def errors(span: Span, found: Tensor) -> Tensor:
    """How far results lie outside: 0 in the interval or where it is free, infinite where NaN or a wrong class stands against a
    number; elsewhere the distance in units of the interval's width, but at least of one unit in the last place."""
    low, high = (stored(end, span.dtype) for end in (span.low, span.high))
    actual = wider(found, span.dtype)
    if not span.dtype.is_floating_point:
        return torch.where(span.free | ((actual >= low) & (actual <= high)), 0.0, math.inf)
    outside = torch.maximum(low - actual, actual - high)
    within = (actual >= low) & (actual <= high)
    unit = torch.maximum(low.abs(), high.abs()) * torch.finfo(span.dtype).eps
    size = (outside / torch.maximum(high - low, unit)).nan_to_num(math.inf, math.inf, math.inf)
    right = span.free | within | (actual.isnan() & low.isnan() & high.isnan())
    return torch.where(right, 0.0, size)


def stored(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Ends of spans rounded to what memory of ``dtype`` can hold."""
    return nearest(values, dtype) if dtype.is_floating_point else values


def nearest(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values rounded to ``dtype``, as float64."""
    return values if dtype == torch.float64 else values.to(dtype).double()


def converted(span: Span, dtype: torch.dtype) -> Span:
    """A conversion that the graph asks for: rounding is part of what it says."""
    if span.dtype == dtype:
        return span
    if dtype.is_floating_point:
        low, high = (end.double() for end in (span.low, span.high))
        if not span.dtype.is_floating_point:
            open_ = (span.low.abs() > 1 << 53) | (span.high.abs() > 1 << 53) if span.dtype != torch.bool else span.free
            return Span(nearest(low, dtype), nearest(high, dtype), span.free | open_, dtype)
        if span.dtype == torch.float64 and dtype in (torch.float16, torch.bfloat16):
            # At once, or through float32, as torch does it.
            return Span(
                torch.minimum(rounded_once(low, dtype).double(), nearest(low, dtype)),
                torch.maximum(rounded_once(high, dtype).double(), nearest(high, dtype)),
                span.free,
                dtype,
            )
        return Span(nearest(low, dtype), nearest(high, dtype), span.free, dtype)
    if not span.dtype.is_floating_point:
        if dtype == torch.bool:
            zero = (span.low <= 0) & (span.high >= 0) if span.dtype != torch.bool else ~span.low
            return Span(~zero, (span.low != 0) | (span.high != 0), span.free, dtype)
        return wrapped(Span(span.low.to(torch.int64), span.high.to(torch.int64), span.free, dtype))
    if dtype == torch.bool:
        zero = (span.low <= 0) & (span.high >= 0)  # NaN is true
        return Span(~zero, (span.low != 0) | (span.high != 0), span.free, dtype)
    info = torch.iinfo(dtype)
    ends = [end.trunc() for end in (span.low, span.high)]
    # float64 has no 2**63 - 1; what is out of range is undefined.
    out = ~((ends[0] >= info.min) & (ends[1] <= min(float(info.max), 2.0**62)))
    whole = [end.masked_fill(out, 0.0).to(torch.int64) for end in ends]
    return Span(whole[0], whole[1], span.free | out, dtype)


# Spans among the arguments of a call


def inside(value: Any) -> list[Span]:
    """Those in nested lists, tuples and mappings, in order."""
    if isinstance(value, Span):
        return [value]
    if isinstance(value, Mapping):
        return [span for item in value.values() for span in inside(item)]
    return [span for item in value for span in inside(item)] if isinstance(value, list | tuple) else []


def replaced(value: Any, by: Callable[[Span], Tensor | Span]) -> Any:
    """The same nested value with something else, mostly a tensor, for each span."""
    if isinstance(value, Span):
        return by(value)
    if isinstance(value, dict):
        return {key: replaced(item, by) for key, item in value.items()}
    return type(value)(replaced(item, by) for item in value) if isinstance(value, list | tuple) else value


def own(span: Span) -> Tensor:
    """The value of a span of which only one is right."""
    return span.low.to(span.dtype)


# Ends, element by element


def less(value: Tensor, by: Tensor) -> Tensor:
    """``value - by``; infinities stay."""
    return torch.where(value.isinf(), value, value - by)


def more(value: Tensor, by: Tensor) -> Tensor:
    """``value + by``; infinities stay."""
    return torch.where(value.isinf(), value, value + by)


def least(values: Sequence[Tensor]) -> Tensor:
    """The smallest of several, after broadcasting."""
    return torch.stack(torch.broadcast_tensors(*values)).amin(0)  # type: ignore[no-untyped-call]


def most(values: Sequence[Tensor]) -> Tensor:
    """The largest of several, after broadcasting."""
    return torch.stack(torch.broadcast_tensors(*values)).amax(0)  # type: ignore[no-untyped-call]
