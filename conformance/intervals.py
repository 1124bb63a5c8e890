"""How spans pass through prims that are computed exactly: interval arithmetic, a rule for each prim."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from conformance.spans import Span, converted, exactly, inside, least, less, more, most, nearest, own, replaced, stored, wider
from vendor_sdk import OPSET, Prim

Tensor = torch.Tensor

EVALUATION = 4 * torch.finfo(torch.float64).eps
"""Relative error of torch's elementary functions in float64, at most: a library's are off by one unit, or few."""

Rule = Callable[[Prim, Sequence[Any], Mapping[str, Any], torch.dtype], Span | tuple[Span, ...]]
RULES: dict[str, Rule] = {}
"""By prim: the span of its results, computed without error."""


def _hull(corners: Sequence[Tensor], free: Tensor, dtype: torch.dtype, inexact: bool) -> Span:
    """The interval that has the values at the corners of a box, for functions that are monotone in each argument."""
    nan = torch.stack([corner.isnan() for corner in torch.broadcast_tensors(*corners)])  # type: ignore[no-untyped-call]
    low, high = least(corners), most(corners)
    if inexact:
        low, high = less(low, EVALUATION * low.abs()), more(high, EVALUATION * high.abs())
    # A box that reaches infinity and straddles zero has NaN inside, if not at its corners.
    unsure = (nan.any(0) & ~nan.all(0)) | (low.isinf() & high.isinf() & (low != high))
    return Span(low, high, (free | unsure).expand(low.shape), dtype)


def monotone(function: Callable[..., Tensor], inexact: bool = True) -> Rule:
    """A function that is monotone in each operand; NaN outside of its domain. Of whole numbers and bools it is exact."""

    def rule(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
        if not dtype.is_floating_point:
            whole = [_promoted(v if isinstance(v, Span) else exactly(torch.tensor(v)), dtype) for v in args]
            ends = [function(*each) for each in itertools.product(*((one.low, one.high) for one in whole))]
            free = _any(whole)
            for one in whole:
                free = free | _without_opposite(one)
            return Span(least(ends), most(ends), free.expand(ends[0].shape), dtype)
        operands = [_floating(value, dtype) for value in args]
        corners = [function(*ends) for ends in itertools.product(*((each.low, each.high) for each in operands))]
        return _hull(corners, _any(operands), dtype, inexact)

    return rule


def _without_opposite(span: Span) -> Tensor:
    """Intervals of int64 from its least value on, which is its own opposite."""
    if span.dtype != torch.int64:
        return torch.zeros_like(span.free)
    return (span.low == torch.iinfo(torch.int64).min) & (span.low != span.high)


def _floating(value: Any, dtype: torch.dtype) -> Span:
    """An operand as torch promotes it to the dtype of a floating result. A scalar tensor that the dtype does not hold (a wider
    one, the other half) is rounded to it, or to float32, or not at all; an integer to it, or to the float32 that halves are
    computed in."""
    if not isinstance(value, Span):
        return exactly(torch.tensor(float(value), dtype=torch.float64))
    if not value.dtype.is_floating_point:
        found = [converted(value, each) for each in dict.fromkeys((dtype, torch.promote_types(dtype, torch.float32)))]
        return Span(least([each.low for each in found]), most([each.high for each in found]), found[0].free, dtype)
    span = _overflowing(value)
    if torch.promote_types(span.dtype, dtype) == dtype:
        return span
    narrower = (dtype, torch.float32 if span.dtype == torch.float64 else dtype)
    ends = [(end, *(nearest(end, each) for each in narrower)) for end in (span.low, span.high)]
    return Span(least(ends[0]), most(ends[1]), span.free, span.dtype)


def _overflowing(value: Span) -> Span:
    """What is too large for the dtype may be infinite, and need not be: a sequence of prims may have a higher precision."""
    if not value.dtype.is_floating_point:
        return value
    top = torch.finfo(value.dtype).max
    low, high = value.low.masked_fill(value.low < -top, -math.inf), value.high.masked_fill(value.high > top, math.inf)
    return Span(low, high, value.free, value.dtype)


def _any(operands: Sequence[Span]) -> Tensor:
    free = operands[0].free
    for each in operands[1:]:
        free = free | each.free
    return free


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def define(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return define


# Pointwise


def _sigmoid(x: Tensor) -> Tensor:
    """``torch.sigmoid`` of float64 divides by ``1 + exp(-x)``, which overflows where results are still subnormal numbers."""
    return torch.where(x < -700, torch.exp(x), torch.sigmoid(x))


RULES["sigmoid"] = monotone(_sigmoid)
for _name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "tanh", "erf", "erfc", "atan", "asinh", "sinh",
    "asin", "acos", "atanh", "acosh",
):  # fmt: skip
    RULES[_name] = monotone(getattr(torch, _name))
for _name in ("neg", "relu", "sign", "floor", "ceil", "trunc", "round", "maximum", "minimum"):
    RULES[_name] = monotone(getattr(torch, _name), inexact=False)


@_rule("add", "sub")
def _sum_of_two(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    if not dtype.is_floating_point:
        return _unknown(args, dtype, row)
    a, b = (_floating(value, dtype) for value in args)
    if row.name == "sub":
        b = Span(-b.high, -b.low, b.free, b.dtype)
    low, high = (_directed(x, y, toward) for x, y, toward in ((a.low, b.low, -math.inf), (a.high, b.high, math.inf)))
    # Infinities that may meet, where one of the operands need not be infinite.
    meet = ((a.high == math.inf) & (b.low == -math.inf)) | ((a.low == -math.inf) & (b.high == math.inf))
    nan = (low.isnan() != high.isnan()) | (meet & ~(low.isnan() & high.isnan()))
    return Span(low, high, _any((a, b)) | nan, dtype)


def _directed(x: Tensor, y: Tensor, toward: float) -> Tensor:
    """``x + y`` rounded in a direction; by the error of the sum, which is a float64 itself (Knuth)."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    beyond = torch.nextafter(total, torch.full_like(total, toward))
    return torch.where((error < 0) if toward < 0 else (error > 0), beyond, total)


@_rule("mul")
def _product(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    if not dtype.is_floating_point:
        return _unknown(args, dtype, row)
    a, b = (_floating(value, dtype) for value in args)
    short = a.fixed & b.fixed & _short(a.low) & _short(b.low)  # then the product of float64 is exact
    found = monotone(torch.mul)(row, (a, b), kwargs, dtype)
    assert isinstance(found, Span)
    exact = a.low * b.low
    return Span(torch.where(short, exact, found.low), torch.where(short, exact, found.high), found.free, dtype)


@_rule("div")
def _quotient(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    a, b = (_floating(value, dtype) for value in args)
    found = monotone(torch.div)(row, (a, b), kwargs, dtype)
    assert isinstance(found, Span)
    quotient = a.low / b.low
    exact = a.fixed & b.fixed & _short(quotient) & _short(b.low) & (quotient * b.low == a.low)
    # The sign of a zero decides here, and spans do not have it.
    free = found.free | ((b.low <= 0) & (b.high >= 0))
    return Span(torch.where(exact, quotient, found.low), torch.where(exact, quotient, found.high), free, dtype)


def _short(value: Tensor) -> Tensor:
    """Numbers that float32 has: products of two are exact in float64."""
    return (value.float().double() == value) & ((value == 0) | (value.abs() > 1e-37))


@_rule("reciprocal")
def _reciprocal(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    return _quotient(row, (1.0, args[0]), kwargs, dtype)  # type: ignore[return-value]


@_rule("rsqrt")
def _rsqrt(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    span = monotone(torch.rsqrt)(row, args, kwargs, dtype)
    operand = _floating(args[0], dtype)
    assert isinstance(span, Span)
    return Span(span.low, span.high, span.free | ((operand.low <= 0) & (operand.high >= 0)), dtype)


@_rule("abs")
def _absolute(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    (a,) = args
    ends = a.low.abs(), a.high.abs()
    straddles = (a.low < 0) & (a.high > 0)
    return Span(least(ends).masked_fill(straddles, 0), most(ends), a.free | _without_opposite(a), dtype)


@_rule("cosh")
def _cosh(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    return monotone(torch.cosh)(row, (_absolute(row, [_floating(args[0], dtype)], {}, dtype),), {}, dtype)  # type: ignore[return-value]


@_rule("sin", "cos")
def _oscillating(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    """The slope is at most one."""
    a = _floating(args[0], dtype)
    middle, radius = a.low / 2 + a.high / 2, a.high / 2 - a.low / 2
    value = getattr(torch, row.name)(middle)
    radius = torch.where(a.fixed, 0.0, radius * (1 + EVALUATION) + EVALUATION * middle.abs()) + EVALUATION
    # The reduction of a large argument is not to be trusted here.
    free = a.free | (value.isnan() & ~a.fixed) | (middle.abs() > 1e6)
    return Span((value - radius).clamp(min=-1.0), (value + radius).clamp(max=1.0), free, dtype)


@_rule("pow")
def _power(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    if not dtype.is_floating_point:
        return _unknown(args, dtype, row)
    a, b = (_floating(value, dtype) for value in args)
    found = monotone(torch.pow)(row, (a, b), kwargs, dtype)
    assert isinstance(found, Span)
    # The corners decide for positive bases alone; an error of torch's own power grows with the exponent.
    free = found.free | ~((a.low > 0) | (a.fixed & b.fixed)) | (b.high.abs() > 64) | (b.low.abs() > 64) | (a.low == 0)
    slack = 64 * EVALUATION
    return Span(found.low - slack * found.low.abs(), found.high + slack * found.high.abs(), free, dtype)


def _unknown(args: Sequence[Any], dtype: torch.dtype, row: Prim) -> Span:
    """Integers where not all operands are known: only what depends on the known is."""
    spans = inside(args)
    own = [each.low.to(each.dtype) for each in spans]
    fixed = spans[0].fixed
    for each in spans[1:]:
        fixed = fixed & each.fixed
    values = row.target(*replaced(list(args), lambda span: own[next(i for i, s in enumerate(spans) if s is span)]))
    wide = wider(values, dtype)
    return Span(wide, wide, (~fixed).expand(wide.shape), dtype)


@_rule("where")
def _where(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    condition, *choices = args
    a, b = (each if isinstance(each, Span) and each.dtype == dtype else _promoted(each, dtype) for each in choices)
    sure, never = condition.low & ~condition.free, ~condition.high & ~condition.free

    def end(of_a: Tensor, of_b: Tensor, both: Tensor) -> Tensor:
        return torch.where(sure, of_a, torch.where(never, of_b, both))

    low = end(a.low, b.low, torch.minimum(a.low, b.low) if dtype != torch.bool else a.low & b.low)
    high = end(a.high, b.high, torch.maximum(a.high, b.high) if dtype != torch.bool else a.high | b.high)
    nan = a.low.isnan() != b.low.isnan()
    free = end(a.free, b.free, a.free | b.free | nan)
    return Span(low, high, free, dtype)


def _promoted(value: Any, dtype: torch.dtype) -> Span:
    if dtype.is_floating_point:
        span = _floating(value, dtype)
        return Span(span.low, span.high, span.free, dtype)
    return converted(value, dtype)


# Comparisons and logic


@_rule("eq", "ne", "lt", "le", "gt", "ge")
def _compared(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    a, b = (each if isinstance(each, Span) else exactly(torch.tensor(each)) for each in args)
    if any(each.dtype.is_floating_point for each in (a, b)):
        common = torch.result_type(*(torch.zeros((1,) * bool(each.low.dim()), dtype=each.dtype) for each in (a, b)))
        a, b = (_floating(each, common) for each in (a, b))
    nan = _not_a_number(a) | _not_a_number(b)
    if row.name in ("eq", "ne"):
        true = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
        false = (a.high < b.low) | (b.high < a.low) | nan
        if row.name == "ne":
            true, false = false, true
    else:
        first, second = (a, b) if row.name in ("lt", "le") else (b, a)
        strict = row.name in ("lt", "gt")
        true = (first.high < second.low) if strict else (first.high <= second.low)
        false = ((first.low >= second.high) if strict else (first.low > second.high)) | nan
    return Span(true, ~false, _any((a, b)), dtype)


def _not_a_number(span: Span) -> Tensor:
    return span.low != span.low


@_rule("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
def _logic(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    if dtype != torch.bool:
        return _unknown(args, dtype, row)
    truths = [converted(each, torch.bool) for each in args]
    found = [row.target(*ends) for ends in itertools.product(*((each.low, each.high) for each in truths))]
    low, high = found[0], found[0]
    for each in found[1:]:
        low, high = low & each, high | each
    return Span(low, high, _any(truths), dtype)


@_rule("isnan", "isinf")
def _classified(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    (a,) = args
    ends = [row.target(stored(end, a.dtype)) for end in (a.low, a.high)]
    unsure = (ends[0] | ends[1]) & ~a.fixed if row.name == "isinf" else torch.zeros_like(a.free)
    if a.dtype in (torch.float16, torch.bfloat16) and row.name == "isinf":  # a higher precision may still hold the number
        unsure = unsure | (ends[0] & ~a.low.isinf())
    return Span(ends[0] & ~unsure, ends[1] | unsure, a.free, dtype)


# Conversions, views and data movement


@_rule("_to_copy")
def _converted(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    return converted(_overflowing(args[0]), dtype)


@_rule("view", "permute", "expand", "slice", "select", "squeeze", "unsqueeze", "diagonal", "flip", "clone", "alias")
def _moved(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    return args[0].moved(lambda part: row.target(part.contiguous(), *args[1:], **kwargs))  # type: ignore[no-any-return]


@_rule("constant_pad_nd")
def _padded(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    span, pad, value = args[0], args[1], args[2] if len(args) > 2 else 0
    low, high = (row.target(end, pad, value) for end in (span.low, span.high))
    return Span(low, high, row.target(span.free, pad, False), dtype)


@_rule("cat")
def _joined(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    parts = [_promoted(part, dtype) for part in args[0]]
    low, high, free = (torch.cat([getattr(part, end) for part in parts], *args[1:]) for end in ("low", "high", "free"))
    return Span(low, high, free, dtype)


@_rule("index", "index_select", "gather")
def _indexed(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    """Indices come from inputs, and are known."""
    rest = replaced(list(args[1:]), own)
    return args[0].moved(lambda part: row.target(part, *rest, **kwargs))  # type: ignore[no-any-return]


# Reductions


@_rule("sum", "mean", "cumsum")
def _summed(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    rest, named = args[1:], {key: value for key, value in kwargs.items() if key != "dtype"}
    if not dtype.is_floating_point:
        ends = [row.target(end.to(torch.int64), *rest, **named) for end in (args[0].low, args[0].high)]
        # Of open elements the ends say nothing; sums of known ones wrap alike, as those of an interval need not.
        beyond = [row.target(end.double(), *rest, **named).abs() > 2.0**62 for end in (args[0].low, args[0].high)]
        far = (beyond[0] | beyond[1]) & _spread(row, ~args[0].fixed, rest, named)
        return Span(ends[0], ends[1], _spread(row, args[0].free, rest, named) | far, dtype)
    a = _floating(args[0], dtype)
    low, high = (row.target(end, *rest, **named) for end in (a.low, a.high))
    return Span(low, high, _spread(row, a.free, rest, named) | (low.isnan() != high.isnan()), dtype)


def _spread(row: Prim, free: Tensor, rest: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """What open elements make open."""
    target = torch.ops.aten.cumsum.default if row.name == "cumsum" else torch.ops.aten.sum.dim_IntList
    return target(free.double(), *rest, **named) > 0  # type: ignore[no-any-return]


@_rule("amax", "amin")
def _extreme(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    low, high = (row.target(end, *args[1:], **kwargs) for end in (args[0].low, args[0].high))
    free = torch.ops.aten.amax.default(args[0].free.to(torch.uint8), *args[1:], **kwargs).bool()
    return Span(low, high, free, dtype)


@_rule("any")
def _any_of(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    truth = converted(args[0], torch.bool)
    ends = [row.target(end, *args[1:], **kwargs) for end in (truth.low & ~truth.free, truth.high | truth.free)]
    low, high = (wider(end, dtype) for end in ends)  # of uint8 it is of uint8
    return Span(low, high, torch.zeros_like(ends[0]), dtype)


@_rule("argmax", "argmin", "max.dim", "min.dim")
def _position(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span | tuple[Span, ...]:
    """Known where all elements are, or where one interval lies beyond all others."""
    a = _overflowing(args[0])
    dim = args[1] if len(args) > 1 else None
    keepdim = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    by = torch.ops.aten.argmax.default if row.name in ("argmax", "max.dim") else torch.ops.aten.argmin.default
    ends = (a.low, a.high, a.free, a.fixed)
    low, high, free, known = ((end.reshape(-1) if dim is None else end) for end in ends)
    if a.dtype == torch.bool:  # Of bools torch finds the largest, and refuses to say where it is.
        low, high = low.to(torch.uint8), high.to(torch.uint8)
    along = 0 if dim is None else dim
    where = by(low, along, True)
    if low.dim():
        best_low, best_high = low.gather(along, where), high.gather(along, where)
        others = torch.zeros_like(free).scatter(along, where, True)
        if row.name in ("argmax", "max.dim"):
            apart = ((high < best_low) | others).all(along, keepdim=True)
        else:
            apart = ((low > best_high) | others).all(along, keepdim=True)
        unsure = ~(known.all(along, keepdim=True) | apart) | free.any(along, keepdim=True)
    else:
        unsure = free
    shape = where if keepdim or not where.dim() else where.squeeze(along)
    unsure = unsure.reshape(shape.shape)
    if keepdim and dim is None:
        shape, unsure = (end.reshape([1] * a.low.dim()) for end in (shape, unsure))
    index = Span(shape, shape, unsure, torch.int64)
    if row.name in ("argmax", "argmin"):
        return index
    reduce = OPSET["amax" if row.name == "max.dim" else "amin"]
    value = _extreme(reduce, (a, [dim], keepdim), {}, a.dtype)
    assert isinstance(value, Span)
    return value, index


@_rule("var")
def _variance(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    a = _overflowing(args[0])
    dims = args[1] if len(args) > 1 and args[1] else list(range(a.low.dim()))
    keepdim, correction = bool(kwargs.get("keepdim", False)), kwargs.get("correction", 1)
    count = math.prod(a.low.shape[dim] for dim in dims)
    means = [end.mean(dims, True) for end in (a.low, a.high)]
    part = Span(a.low - means[1], a.high - means[0], a.free, dtype)
    size = _absolute(row, [part], {}, dtype)
    assert isinstance(size, Span)
    low, high = ((end * end).sum(dims, keepdim) / max(count - correction, 0) for end in (size.low, size.high))
    wide = _spread(OPSET["sum"], ~a.fixed, [dims, keepdim], {})
    exact = torch.ops.aten.var.correction(a.low, dims, correction=correction, keepdim=keepdim)
    low, high = torch.where(wide, low, exact), torch.where(wide, high, exact)
    torn = a.low.isinf() != a.high.isinf()  # the distance from an infinite mean is NaN
    free = _spread(OPSET["sum"], a.free | torn, [dims, keepdim], {}) | (low.isnan() != high.isnan())
    return Span(low, high, free, dtype)


# Contractions


@_rule("mm", "bmm", "addmm", "baddbmm", "convolution")
def _contracted(row: Prim, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Span:
    """By midpoint and radius (Rump, Fast and parallel interval arithmetic, BIT 39, 1999)."""
    operands = [_floating(each, dtype) for each in inside(args)]
    added = {"addmm": 0, "baddbmm": 0}.get(row.name)
    if row.name == "convolution" and len(operands) > 2:
        added = 2

    def call(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        return row.target(*replaced(list(args), lambda span: next(rest)), **kwargs)  # type: ignore[no-any-return]

    middle = [each.low / 2 + each.high / 2 for each in operands]
    radius = [torch.where(each.fixed, 0.0, each.high / 2 - each.low / 2) for each in operands]
    odd = [each.free | ~middle[i].isfinite() | ~radius[i].isfinite() for i, each in enumerate(operands)]
    known = torch.stack([each.fixed.all() for each in operands]).all()
    exact = call(*(each.low for each in operands))
    if bool(known):
        return Span(exact, exact, torch.zeros(exact.shape, dtype=torch.bool), dtype)
    middle = [each.masked_fill(out, 0.0) for each, out in zip(middle, odd, strict=True)]
    radius = [each.masked_fill(out, 0.0) for each, out in zip(radius, odd, strict=True)]
    kept = {key: abs(value) if isinstance(value, int | float) else value for key, value in kwargs.items()}

    def sized(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        return row.target(*replaced(list(args), lambda span: next(rest)), **kept)  # type: ignore[no-any-return]

    sizes = [each.abs() + spread for each, spread in zip(middle, radius, strict=True)]
    spread = sized(*sizes) - sized(*(each.abs() for each in middle))
    slack = 64 * EVALUATION * sized(*sizes)
    touched = [out.double() for out in odd]
    ones = [torch.ones_like(out) for out in touched]
    first, second = [i for i in range(len(operands)) if i != added][:2]
    reach = torch.zeros_like(spread)
    for which in (first, second):
        mixed = [touched[i] if i == which else (torch.zeros_like(ones[i]) if i == added else ones[i]) for i in range(len(ones))]
        reach = reach + row.target(*replaced(list(args), _in_order(mixed)), **kept)
    if added is not None:
        mixed = [touched[i] if i == added else torch.zeros_like(ones[i]) for i in range(len(ones))]
        reach = reach + row.target(*replaced(list(args), _in_order(mixed)), **kept)
    value = call(*middle)
    return Span(value - spread - slack, value + spread + slack, reach != 0, dtype)


def _in_order(tensors: Sequence[Tensor]) -> Callable[[Span], Tensor]:
    rest = iter(tensors)
    return lambda span: next(rest)
