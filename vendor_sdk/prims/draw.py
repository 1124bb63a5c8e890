"""Drawing tensors for samplers: values in a safe range, the layouts every sampler must cover, indices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, draw

LIMITS = {Effort.QUICK: 3, Effort.STANDARD: 8, Effort.FULL: None}
"""Samples a case runs at each effort; samplers yield the most telling ones first."""


def by_effort(sampler: Callable[[SampleContext], Iterator[Sample]]) -> Callable[[SampleContext], Iterator[Sample]]:
    """Cut a sampler that yields its samples in order of importance to what the effort allows."""

    @functools.wraps(sampler)
    def limited(ctx: SampleContext) -> Iterator[Sample]:
        return itertools.islice(sampler(ctx), LIMITS[ctx.effort])

    return limited


def no_samples(ctx: SampleContext) -> Iterator[Sample]:
    """For prims that cannot be called on their own; their rows say why."""
    return iter(())


def values(ctx: SampleContext, *shape: int, low: float = -4.0, high: float = 4.0) -> torch.Tensor:
    """A contiguous tensor of the context's dtype: floats uniform and in [low, high], bool fair."""
    return draw(ctx, shape, Interval(low, high))


def distinct(ctx: SampleContext, *shape: int) -> torch.Tensor:
    """As ``values``, but no two elements are equal where the dtype has that many values (bool and uint8 wrap around)."""
    count = 1
    for size in shape:
        count *= size
    order = torch.randperm(count, generator=ctx.generator).reshape(shape)
    if ctx.dtype.is_floating_point:
        # Halves are exact: bfloat16 has 8 significant bits, so steps of 1/16 stay distinct for up to 256 elements.
        return ((order.to(torch.float64) - count // 2) / 16).to(ctx.dtype)
    return order.to(ctx.dtype)


def transposed(ctx: SampleContext, *shape: int) -> torch.Tensor:
    """``values`` with the two last dimensions' strides swapped."""
    return values(ctx, *shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def strided(ctx: SampleContext, *shape: int) -> torch.Tensor:
    """``values`` with a step of two in the last dimension."""
    return values(ctx, *shape[:-1], 2 * shape[-1])[..., ::2]


def expanded(ctx: SampleContext, *shape: int) -> torch.Tensor:
    """``values`` with stride zero in the first dimension."""
    return values(ctx, 1, *shape[1:]).expand(shape)


def special_values(ctx: SampleContext) -> torch.Tensor:
    """One-dimensional: NaN, infinities, signed zeros, the smallest subnormal and the extremes of a floating dtype."""
    info = torch.finfo(ctx.dtype)
    return torch.tensor(
        [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, info.smallest_normal * info.eps, info.max, info.min, 1.0],
        dtype=ctx.dtype,
    )


def indices(ctx: SampleContext, shape: Sequence[int], bound: int) -> torch.Tensor:
    """int64 indices in [0, bound), with duplicates."""
    return torch.randint(0, bound, tuple(shape), generator=ctx.generator)


def permutation(ctx: SampleContext, count: int) -> torch.Tensor:
    """A random order of 0..count-1."""
    return torch.randperm(count, generator=ctx.generator)


def mask(ctx: SampleContext, *shape: int) -> torch.Tensor:
    """A fair bool tensor."""
    return torch.randint(0, 2, shape, generator=ctx.generator).bool()
