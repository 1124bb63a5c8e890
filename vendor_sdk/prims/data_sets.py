"""Data sets: samples with values that uniform ones leave out, made from the first samples that a row has.

A sampler draws uniform values of moderate size: whoever replaces NaN by zero, sums in too few digits or overflows half way is
right there. ``with_specials`` adds samples with NaN, infinities and signed zeros, ``with_sums`` sums whose terms cancel, differ
widely in size or nearly overflow, ``with_wrapping`` sums and products of integers that do overflow. A family's row helper wraps
its samplers with them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, Sampler, draw

Tensor = torch.Tensor

BEFORE = 3
"""Ordinary samples before those of special values."""


def many(count: int) -> Callable[[int, Sample], bool]:
    """Of a row's samples the first ``count``."""
    return lambda number, sample: number < count


def labelled(*labels: str) -> Callable[[int, Sample], bool]:
    """Of a row's samples those with these labels."""
    return lambda number, sample: sample.label in labels


ONE = many(1)


def with_specials(
    sampler: Sampler,
    put: Callable[[SampleContext, Tensor], Tensor],
    operands: Sequence[int] | None = None,
    of: Callable[[int, Sample], bool] = ONE,
) -> Sampler:
    """``sampler`` and, for floating dtypes, copies of some of its samples (at effort ``quick`` of one) with special values in
    their operands.

    Args:
        sampler: of the row.
        put: ``scattered``, ``sparse`` or the like.
        operands: positions of the arguments that get special values, where those are defined; all floating ones by default.
        of: called with a sample's number and the sample: whether there is to be such a copy of it.
    """

    def sample(context: SampleContext) -> Iterator[Sample]:
        ordinary = list(sampler(context))
        made = []
        if context.dtype.is_floating_point:
            made = [_copied(context, each, put, operands) for number, each in enumerate(ordinary) if of(number, each)]
        yield from (*ordinary[:BEFORE], *made[: 1 if context.effort == Effort.QUICK else None], *ordinary[BEFORE:])

    return sample


def _copied(
    context: SampleContext,
    sample: Sample,
    put: Callable[[SampleContext, Tensor], Tensor],
    operands: Sequence[int] | None,
) -> Sample:
    copies: dict[int, Tensor] = {}

    def of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(of(item) for item in value)
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        if id(value) not in copies:
            real = torch.view_as_real(value) if value.is_complex() else value
            holed = put(context, real)
            copies[id(value)] = torch.view_as_complex(holed) if value.is_complex() else holed
        return copies[id(value)]

    args = tuple(of(value) if operands is None or at in operands else value for at, value in enumerate(sample.args))
    return dataclasses.replace(sample, args=args, label=f"special values, {sample.label}", special=True)


def scattered(context: SampleContext, like: Tensor) -> Tensor:
    """A copy in which a quarter of the elements are special, for what moves or compares values: NaN, infinities, negative zero,
    subnormals and the ends of the range."""
    info = torch.finfo(like.dtype)
    ends = [math.nan, math.inf, -math.inf, -0.0, info.smallest_normal * info.eps, info.max, info.min]
    values = torch.tensor(ends, dtype=torch.float64).to(like.dtype)
    drawn = values[torch.randint(len(ends), like.shape, generator=context.generator)]
    chosen = torch.randint(4, like.shape, generator=context.generator) == 0
    return _written(like, torch.where(chosen, drawn, like))


def sparse(context: SampleContext, like: Tensor, special: Sequence[float] = (math.nan, math.inf, -math.inf)) -> Tensor:
    """A copy with one NaN and one infinity of each sign, far apart, and a quarter of zeros, for what sums: most results stay
    finite, and the others say which of ``inf * 0``, ``inf - inf`` and NaN went in. The ends of the range are left out, since
    the order of a sum decides whether it overflows."""
    zeros = torch.tensor([0.0, -0.0], dtype=like.dtype)[torch.randint(2, like.shape, generator=context.generator)]
    values = torch.where(torch.randint(4, like.shape, generator=context.generator) == 0, zeros, like).flatten()
    part = values.numel() // len(special)
    for number, value in enumerate(special):
        if part:
            values[number * part + int(torch.randint(part, (), generator=context.generator))] = value
        elif number < values.numel():
            values[number] = value
    return _written(like, values.view(like.shape))


NAN = functools.partial(sparse, special=(math.nan,) * 3)
"""``sparse`` without infinities, for what may take the difference of two terms before or after it multiplies them."""


def _written(like: Tensor, values: Tensor) -> Tensor:
    """``values`` where they lie in memory as ``like`` does, if no two of its elements share a place."""
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype) if _dense(like) else torch.empty_like(values)
    return made.copy_(values)


def _dense(like: Tensor) -> bool:
    return sorted(torch.empty_like(like).stride()) == sorted(like.stride())


def with_sums(
    sampler: Sampler,
    terms: Callable[..., int],
    along: Mapping[int, int],
    *,
    degree: int = 1,
    scaled: int | None = None,
    overflows: bool = True,
    long: Callable[[SampleContext], Sample] | None = None,
) -> Sampler:
    """``sampler`` and, for floating dtypes from effort ``standard`` on, its first sample with other values: terms that cancel,
    terms that differ widely in size, and a sum that nearly overflows.

    Args:
        sampler: of the row.
        terms: number of terms of a sum, from the arguments, as in the row's bound.
        along: positions of the operands, each with the dimension that is summed over.
        degree: factors of a term.
        scaled: leading dimensions whose elements differ in size; all by default.
        overflows: add the sum that nearly overflows.
        long: draws a call with a long sum.
    """

    def sample(context: SampleContext) -> Iterator[Sample]:
        ordinary = list(sampler(context))
        yield from ordinary
        if not context.dtype.is_floating_point or context.effort < Effort.STANDARD:
            return
        base = ordinary[0]
        limit = (torch.finfo(context.dtype).max / 2 / max(terms(*base.args, **base.kwargs), 1)) ** (1 / degree)

        def filled(label: str, values: Callable[[int, Tensor, int], Tensor]) -> Sample:
            args = tuple(values(at, arg, along[at]) if at in along else arg for at, arg in enumerate(base.args))
            return dataclasses.replace(base, args=args, label=f"{label}, {base.label}")

        signed = min(along)
        yield filled("cancellation", lambda at, x, dim: cancelling(context, x.shape, dim, 256.0 if at == signed else -1.0))
        yield filled("wide range", lambda at, x, dim: ranging(context, x.shape, scaled))
        if overflows:
            yield filled("near overflow", lambda at, x, dim: draw(context, x.shape, Interval(limit / 2, limit)))
        if long is not None:
            yield long(context)

    return sample


def with_wrapping(sampler: Sampler, operands: Sequence[int], of: Callable[[int, Sample], bool] = ONE) -> Sampler:
    """``sampler`` and, for integers from effort ``standard`` on, copies of some of its samples with numbers of their whole
    range. Of their sums and products the lowest bits remain, as in two's complement: whoever adds in float64 loses them.

    Args:
        sampler: of the row.
        operands: positions of the arguments that get such numbers.
        of: as in ``with_specials``.
    """

    def sample(context: SampleContext) -> Iterator[Sample]:
        ordinary = list(sampler(context))
        yield from ordinary
        dtype = context.dtype
        if dtype == torch.bool or dtype.is_floating_point or dtype.is_complex or context.effort < Effort.STANDARD:
            return
        for number, each in enumerate(ordinary):
            if of(number, each):
                args = [_any_bits(context, arg) if at in operands else arg for at, arg in enumerate(each.args)]
                yield dataclasses.replace(each, args=tuple(args), label=f"whole range, {each.label}")

    return sample


def _any_bits(context: SampleContext, like: Tensor) -> Tensor:
    """Random bits in the dtype, shape and strides of ``like``; the lowest is set, since products lose an even number's."""
    limits = torch.iinfo(like.dtype)
    drawn = torch.randint(limits.min, limits.max, like.shape, dtype=like.dtype, generator=context.generator)
    return _written(like, drawn | 1)


def cancelling(context: SampleContext, shape: Sequence[int], dim: int, size: float) -> Tensor:
    """Neighbours along ``dim`` in pairs ``x, -x`` with ``size / 2 <= |x| <= size``, the last element or two small; the pairs
    are ``x, x`` for a negative ``size``, as the other factor of such terms."""
    values = draw(context, shape, Interval(abs(size) / 2, abs(size)))
    values = torch.where(draw(context, shape, dtype=torch.bool), values, -values)
    line = values.movedim(dim, -1)
    pairs = (line.shape[-1] - 1) // 2 * 2
    line[..., 1:pairs:2] = line[..., 0:pairs:2] * (-1 if size > 0 else 1)
    line[..., pairs:] = draw(context, line[..., pairs:].shape, Interval(-1.0, 1.0))
    return values


def ranging(context: SampleContext, shape: Sequence[int], scaled: int | None = None) -> Tensor:
    """Values of either sign with exponents uniform in a range that leaves products room: a factor 2^60 between them, in float16
    2^7. The exponent is one for all that the ``scaled`` leading dimensions do not tell apart."""
    reach = 3.5 if context.dtype == torch.float16 else 30.0
    own = [*shape[:scaled], *[1] * len(shape[scaled:])] if scaled is not None else shape
    exponents = draw(context, own, Interval(-reach, reach), dtype=torch.float64)
    values = draw(context, shape, Interval(0.5, 1.0), dtype=torch.float64)
    return torch.where(draw(context, shape, dtype=torch.bool), values, -values).mul(exponents.exp2()).to(context.dtype)
