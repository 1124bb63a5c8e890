"""Samples: argument lists that exercise a prim's domain, built from a seeded generator.

A row's sampler yields ``Sample`` objects for the dtype and effort it is asked for. Shapes a sampler must cover where they
make sense: 0-d, empty, size one, odd, larger than any vector register, non-contiguous (transposed, strided slice) and
expanded; and at least one sample of special values for floating dtypes (marked ``special``).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


class Effort(enum.IntEnum):
    """How much a run tries: ``QUICK`` about 4 samples a case, ``STANDARD`` about 12, ``FULL`` everything."""

    QUICK = 0
    STANDARD = 1
    FULL = 2


@dataclass(frozen=True)
class Sample:
    """One call of a prim.

    Attributes:
        args, kwargs: what the prim's target is called with; tensors live on the CPU and are never modified.
        label: what is special about it, in two or three words (``"0-d"``, ``"transposed"``, ``"special values"``).
        special: contains NaN, infinities, signed zeros or subnormals.
        undefined: torch leaves the values of the results open (a division of integers by zero). Any are right, and so is an
            exception, as torch's own; a crash, a result of another shape or dtype, or a modified input is not.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    special: bool = False
    undefined: bool = False


@dataclass
class SampleContext:
    """What a sampler may draw from: dtype, effort and a seeded generator (never torch's global one).

    Attributes:
        part: ``(n, of)``: of the values of float32, in the order of the integers with their bits, ``everywhere`` gives all of
            the n-th of so many equal parts (n from 1). ``None``: some of everywhere.
    """

    dtype: torch.dtype
    effort: Effort
    generator: torch.Generator
    part: tuple[int, int] | None = None

    @classmethod
    def make(
        cls, dtype: torch.dtype, effort: Effort = Effort.STANDARD, seed: int = 0, part: tuple[int, int] | None = None
    ) -> SampleContext:
        return cls(dtype, effort, torch.Generator().manual_seed(seed), part)


@dataclass(frozen=True)
class Interval:
    """Closed interval of the reals: the part of a prim's domain that ordinary samples are drawn from.

    Attributes:
        low, high: ends; integers are drawn from the whole numbers inside, intersected with the dtype's range.
        nonzero: leave zero out (divisors).
    """

    low: float = -3.0
    high: float = 3.0
    nonzero: bool = False


LINE = Interval(-math.inf, math.inf)
SMALL = Interval(-3.0, 3.0)
"""Where most functions have their interesting part."""
COUNTS = Interval(-9.0, 9.0)
"""Default for arithmetic: integers vary, halves do not overflow."""

Sampler = Callable[[SampleContext], Iterator[Sample]]


@dataclass(frozen=True)
class Layout:
    """A shape with the way its elements lie in memory."""

    label: str
    shape: tuple[int, ...]
    kind: str = "contiguous"
    effort: Effort = Effort.QUICK


LAYOUTS = (
    Layout("odd", (3, 67)),
    Layout("transposed", (7, 19), "transposed"),
    Layout("0-d", (), effort=Effort.STANDARD),
    Layout("empty", (0, 3), effort=Effort.STANDARD),
    Layout("strided slice", (5, 9), "strided", Effort.STANDARD),
    Layout("expanded", (4, 17), "expanded", Effort.STANDARD),
    Layout("size one", (1, 1, 1), effort=Effort.FULL),
    Layout("large", (2051,), effort=Effort.FULL),
    Layout("5-d", (2, 3, 1, 5, 7), "transposed", Effort.FULL),
)
"""The layouts of pointwise samples, those of the least effort first."""


def draw(
    context: SampleContext, shape: Sequence[int], domain: Interval = SMALL, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A contiguous tensor of ``shape`` with values uniform in ``domain``, dtype ``dtype`` or the context's.

    Floating values are rounded to the dtype and stay inside the interval, but for those of eight bits; bool ignores it.
    """
    dtype = dtype or context.dtype
    size = tuple(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, size, generator=context.generator).to(torch.bool)
    if dtype.is_complex:
        real = dtype.to_real()
        return torch.complex(draw(context, size, domain, dtype=real), draw(context, size, domain, dtype=real))
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        low, high = max(math.ceil(domain.low), limits.min), min(math.floor(domain.high), limits.max)
        if low > high:  # the interval holds no whole number of this dtype: take the nearest one
            low = high = min(max(round(domain.low), limits.min), limits.max)
        values = torch.randint(low, high + 1, size, generator=context.generator).to(dtype)
        return torch.where(values == 0, torch.ones_like(values), values) if domain.nonzero else values
    uniform = torch.rand(size, generator=context.generator, dtype=torch.float64)
    values = (domain.low + (domain.high - domain.low) * uniform).to(dtype)
    if dtype.itemsize == 1:  # torch has no order of such values
        return torch.where(values == 0, torch.ones_like(values), values) if domain.nonzero else values
    low_end, high_end = _inside(domain.low, dtype, math.inf), _inside(domain.high, dtype, -math.inf)
    values = values.clamp(low_end, high_end)
    return torch.where(values == 0, torch.ones_like(values), values) if domain.nonzero else values


def _inside(end: float, dtype: torch.dtype, towards: float) -> float:
    """The end of an interval as a value of ``dtype`` that lies inside the interval."""
    rounded = torch.tensor(end, dtype=torch.float64).to(dtype)
    if (rounded.item() < end) if towards > 0 else (rounded.item() > end):
        rounded = torch.nextafter(rounded, torch.tensor(towards, dtype=dtype))
    return float(rounded.item())


def arranged(values: Callable[[Sequence[int]], torch.Tensor], shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """A tensor of ``shape`` whose elements lie in memory as ``kind`` says: contiguous, transposed, strided or expanded."""
    if kind == "contiguous" or not shape:
        return values(shape)
    if kind == "transposed":
        return values(shape[::-1]).permute(*reversed(range(len(shape))))
    if kind == "strided":
        return values((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
    if kind == "expanded":
        return values((1, *shape[1:])).expand(shape)
    raise ValueError(f"unknown layout {kind!r}; one of contiguous, transposed, strided, expanded")


def tensor(context: SampleContext, layout: Layout, domain: Interval = SMALL) -> torch.Tensor:
    """A tensor of ``layout`` with values in ``domain``."""
    return arranged(lambda shape: draw(context, shape, domain), layout.shape, layout.kind)


def layouts(context: SampleContext, choices: Sequence[Layout] = LAYOUTS) -> Iterator[Layout]:
    """The layouts among ``choices`` that the context's effort asks for."""
    return (layout for layout in choices if layout.effort <= context.effort)


def specials(dtype: torch.dtype) -> torch.Tensor:
    """Special values of a floating dtype: NaN, infinities, signed zeros, subnormals, the ends of its range, ones, ties."""
    info = torch.finfo(dtype)
    positive = [0.0, info.smallest_normal, info.smallest_normal / 4, info.eps, 0.5, 1.0, 1.5, 2.5, info.max, math.inf]
    return torch.tensor([math.nan, *positive, *(-value for value in positive)], dtype=torch.float64).to(dtype)


def limits(dtype: torch.dtype) -> torch.Tensor:
    """Integers where arithmetic wraps: the ends of the dtype's range and what is near zero."""
    info = torch.iinfo(dtype)
    near_zero = [0, 1, 2] if info.min == 0 else [-2, -1, 0, 1, 2]
    return torch.tensor([info.min, info.min + 1, *near_zero, info.max - 1, info.max], dtype=dtype)


EVERYWHERE = "everywhere"
"""Label of samples whose values are those of ``everywhere`` and nothing else."""

MANTISSAS = 12
"""Mantissas drawn for each exponent and sign of float32, beside the first and the last."""


def everywhere(context: SampleContext, part: Interval = LINE) -> torch.Tensor:
    """Values all over a floating dtype, in random order: all 65,536 of float16 and bfloat16, all 256 of eight bits, some of any
    exponent and sign of float32 and float64, or all of the context's part; NaN, infinities and subnormals are among them.
    ``part`` leaves out what lies outside of it."""
    if context.part is not None:
        number, of = context.part
        count = (1 << 32) // of
        bits = torch.arange((number - 1) * count - (1 << 31), number * count - (1 << 31))
        values = bits.to(torch.int32).view(torch.float32)
    elif context.dtype.itemsize == 2:
        bits = torch.arange(-(1 << 15), 1 << 15)
        values = bits.to(torch.int16).view(context.dtype)
    elif context.dtype.itemsize == 1:
        values = torch.arange(1 << 8).to(torch.uint8).view(context.dtype)
    else:
        single = context.dtype == torch.float32
        low, high = (23, 8) if single else (52, 11)
        drawn = torch.randint(0, 1 << low, (1 << high + 1, MANTISSAS), generator=context.generator)
        ends = torch.tensor([0, (1 << low) - 1]).expand(1 << high + 1, 2)
        signs_and_exponents = torch.arange(-(1 << high), 1 << high)[:, None] << low
        bits = (signs_and_exponents | torch.cat([ends, drawn], dim=1)).reshape(-1)
        values = bits.to(torch.int32 if single else torch.int64).view(context.dtype)
    wide = values.float() if context.dtype.itemsize == 1 else values
    values = values[wide.isnan() | ((wide >= part.low) & (wide <= part.high))]
    return values[torch.randperm(values.numel(), generator=context.generator)]


def unary(
    domain: Interval = COUNTS,
    *,
    special: bool = True,
    wraps: bool = False,
    wide: Interval | None = None,
    part: Interval = LINE,
) -> Sampler:
    """Sampler of a pointwise prim of one tensor.

    Args:
        domain: where ordinary values are drawn.
        special: add a sample of ``specials`` for floating dtypes.
        wraps: add a sample of ``limits`` for integer dtypes.
        wide: a second, wider interval for the floating dtypes with at least float32's range.
        part: where results are defined by the bound: from there come the values of ``everywhere``, with ``special``.
    """

    def sample(context: SampleContext) -> Iterator[Sample]:
        for layout in layouts(context):
            yield Sample((tensor(context, layout, domain),), label=layout.label)
        if special and context.dtype.is_floating_point:
            yield Sample((specials(context.dtype),), label="special values", special=True)
            if context.effort >= Effort.STANDARD and context.dtype != torch.float64:
                yield Sample((everywhere(context, part),), label=EVERYWHERE, special=True)
        if wide is not None and context.dtype in (torch.float32, torch.float64, torch.bfloat16):
            yield Sample((draw(context, (129,), wide),), label="wide range")
        if wraps and _is_integer(context.dtype):
            yield Sample((limits(context.dtype),), label="integer limits")

    return sample


def binary(
    left: Interval = COUNTS,
    right: Interval | None = None,
    *,
    special: bool = True,
    wraps: bool = False,
    numbers: bool = False,
    mixed: bool = True,
) -> Sampler:
    """Sampler of a pointwise prim of two tensors: equal shapes, broadcasting in both directions, mixed dtypes.

    Args:
        left, right: where the operands are drawn; ``right`` is ``left`` where it is not given.
        special: add a sample of all pairs of ``specials`` for floating dtypes.
        wraps: add a sample of all pairs of ``limits`` for integer dtypes.
        numbers: the target accepts a Python number in place of the second tensor.
        mixed: add operands of two dtypes (torch's type promotion).
    """
    second = right or left

    def sample(context: SampleContext) -> Iterator[Sample]:
        for layout in layouts(context):
            pair = tensor(context, layout, left), tensor(context, Layout("", layout.shape), second)
            yield Sample(pair, label=layout.label)
        yield Sample((draw(context, (5, 1, 3), left), draw(context, (4, 1), second)), label="broadcast")
        if context.effort >= Effort.STANDARD:
            yield Sample((draw(context, (), left), draw(context, (2, 3), second)), label="0-d operand")
            yield Sample((draw(context, (3, 0), left), draw(context, (1, 1), second)), label="empty broadcast")
        if mixed and context.effort >= Effort.STANDARD and context.dtype in (torch.float32, torch.int64):
            other = torch.float16 if context.dtype == torch.float32 else torch.int32
            yield Sample((draw(context, (7,), left), draw(context, (7,), second, dtype=other)), label="two dtypes")
        if numbers and context.dtype != torch.bool:
            yield Sample((draw(context, (2, 5), left), 3), label="whole number operand")
            yield Sample((draw(context, (2, 5), left), 2.5), label="number operand")
        if special and context.dtype.is_floating_point:
            yield Sample(pairs(specials(context.dtype)), label="special values", special=True)
        if wraps and _is_integer(context.dtype):
            yield Sample(pairs(limits(context.dtype)), label="integer limits")

    return sample


def pairs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All ordered pairs of ``values`` (1-d), as two 1-d tensors."""
    count = values.numel()
    return values.repeat_interleave(count), values.repeat(count)


def by_zero(sampler: Sampler) -> Sampler:
    """``sampler`` and, for integers from effort ``standard`` on, a division by zero and of the smallest number by -1, which
    processors trap and torch leaves open."""

    def sample(context: SampleContext) -> Iterator[Sample]:
        yield from sampler(context)
        if _is_integer(context.dtype) and context.effort >= Effort.STANDARD:
            values = pairs(limits(context.dtype))
            kwargs = next(sampler(context)).kwargs
            yield Sample(values, dict(kwargs), label="by zero", special=True, undefined=True)

    return sample


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


@dataclass(frozen=True)
class Reduced:
    """A shape, the dimensions reduced or scanned over, and whether they are kept at size one."""

    label: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    keepdim: bool = False
    kind: str = "contiguous"
    effort: Effort = Effort.QUICK


REDUCED = (
    Reduced("last dimension", (5, 67), (1,)),
    Reduced("two dimensions", (4, 3, 9), (0, 2), True, "transposed"),
    Reduced("0-d", (), (0,), effort=Effort.STANDARD),
    Reduced("empty result", (0, 5), (1,), effort=Effort.STANDARD),
    Reduced("all, strided slice", (3, 21), (0, 1), kind="strided", effort=Effort.STANDARD),
    Reduced("many rows", (300, 67), (1,), effort=Effort.STANDARD),
    Reduced("first, expanded", (6, 5), (0,), True, "expanded", Effort.STANDARD),
    Reduced("size one", (1, 4, 1), (-1,), effort=Effort.FULL),
    Reduced("long", (3, 4099), (-1,), effort=Effort.STANDARD),
    Reduced("middle, 4-d", (2, 33, 3, 2), (1,), effort=Effort.FULL),
)
"""The cases of reductions over several dimensions; one dimension only where a prim takes no more."""
EMPTY_SUM = Reduced("nothing to reduce", (3, 0), (1,), effort=Effort.STANDARD)
"""For reductions with an identity."""


def reduction(
    call: Callable[[torch.Tensor, list[int], bool], Sample],
    domain: Interval = COUNTS,
    *,
    single: bool = False,
    identity: bool = False,
    special: bool = True,
) -> Sampler:
    """Sampler of a reduction or scan.

    Args:
        call: makes the sample from the tensor, the dimensions and keepdim; its label is replaced.
        domain: where ordinary values are drawn.
        single: the prim takes one dimension.
        identity: the prim is defined over no elements.
        special: add rows of two special values each, for floating dtypes.
    """

    def sample(context: SampleContext) -> Iterator[Sample]:
        for case in (*REDUCED, EMPTY_SUM) if identity else REDUCED:
            if case.effort > context.effort:
                continue
            values = arranged(lambda shape: draw(context, shape, domain), case.shape, case.kind)
            dims = list(case.dims[:1] if single else case.dims)
            made = call(values, dims, case.keepdim)
            yield Sample(made.args, made.kwargs, case.label)
        if special and context.dtype.is_floating_point:
            ends = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.0], dtype=context.dtype)
            made = call(torch.stack(pairs(ends), dim=1), [1], False)
            yield Sample(made.args, made.kwargs, "special values", special=True)

    return sample
