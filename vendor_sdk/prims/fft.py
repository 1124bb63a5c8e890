"""Discrete Fourier transforms over several dimensions, real to complex, complex to complex, complex to real.

Their rows name the component dtype; complex values run where torch runs them. Bound: an FFT of n points is off by
O(log n) u times the 2-norm of its input (Higham 2002, section 24.1); the 1-norm is above that and easier to write down.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import HIGHAM, Property
from vendor_sdk.prims.data_sets import with_specials
from vendor_sdk.prims.row import Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext, Sampler

aten = torch.ops.aten

Tensor = torch.Tensor

CONSTANT = 8.0
"""Roundings a radix-2 butterfly level adds: a complex product and a sum, with an inexact twiddle factor (Higham 24.2)."""


def _check(target: Callable[..., Any]) -> Callable[[Any, Sample], str | None]:
    def check(result: Any, sample: Sample) -> str | None:
        self, dims, normalization = sample.args[0], sample.args[1], sample.args[2]
        exact = target(self.to(torch.complex128 if self.is_complex() else torch.float64), *sample.args[1:], **sample.kwargs)
        meta = target(*sample.args, **sample.kwargs)
        if result.shape != meta.shape or result.dtype != meta.dtype:
            return f"{result.dtype} {tuple(result.shape)} instead of {meta.dtype} {tuple(meta.shape)}"
        if exact.numel() == 0:
            return None
        points = math.prod(exact.shape[d] for d in dims)
        scale = (1.0, points**-0.5, 1.0 / points)[normalization]
        # A real result takes a half spectrum, each entry of which counts twice.
        size = self.abs().double().sum(dim=list(dims), keepdim=True) * (1 if exact.is_complex() else 2)
        unit = torch.finfo(result.dtype).eps / 2
        allowed = CONSTANT * unit * (1 + math.log2(max(points, 2))) * scale * size
        # Each result has a share of every element of its line: one that is not finite leaves none of them finite. Whether it
        # is NaN or infinite follows from the order of the butterflies.
        lost = ~size.isfinite().expand(exact.shape)
        if bool((result.isfinite() & lost).any()):
            return "finite where an element of the line is not"
        worst = torch.where(lost, 0.0, (result.to(exact.dtype) - exact).abs() - allowed).max()
        return None if float(worst) <= 0 else f"off by more than the bound by {float(worst):.3g}"

    return check


@draw.by_effort
def _r2c(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 67), [1], 0, True), label="prime length, onesided")
    yield Sample((draw.values(ctx, 4, 6), [0, 1], 1, False), label="two dims, twosided")
    yield Sample((draw.transposed(ctx, 5, 32), [1], 2, True), label="transposed, normalized")
    yield Sample((draw.values(ctx, 1), [0], 0, True), label="one point")


def _complex(ctx: SampleContext, *shape: int) -> Tensor:
    return torch.view_as_complex(draw.values(ctx, *shape, 2))


@draw.by_effort
def _c2c(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_complex(ctx, 3, 67), [1], 0, True), label="prime length, forward")
    yield Sample((_complex(ctx, 4, 6), [0, 1], 2, False), label="two dims, inverse")
    yield Sample((_complex(ctx, 32, 5).t(), [1], 1, True), label="transposed")
    yield Sample((_complex(ctx, 1), [0], 0, False), label="one point")


@draw.by_effort
def _c2r(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_complex(ctx, 3, 34), [1], 2, 67), label="odd length")
    yield Sample((_complex(ctx, 4, 4), [0, 1], 1, 6), label="two dims")
    yield Sample((_complex(ctx, 17, 5).t(), [1], 0, 32), label="transposed")
    yield Sample((_complex(ctx, 1), [0], 0, 1), label="one point")


_prim = functools.partial(
    Prim,
    family=Family.FFT,
    dtypes=(torch.float32, torch.float64),
    result=Result.OPERATOR,
    shape=Shape.OPERATOR,
    source=HIGHAM + "theorem 24.2, with the 1-norm of a line in place of its 2-norm",
)


def _holed(ctx: SampleContext, like: Tensor) -> Tensor:
    """A copy of three lines of which the first has a NaN and the second an infinity."""
    values = like.clone()
    values[0, 5, ...], values[1, 7, ...] = math.nan, math.inf
    return values


def _row(*, samples: Sampler, **rest: Any) -> Prim:
    return _prim(samples=with_specials(samples, _holed), **rest)


ROWS: tuple[Prim, ...] = (
    _row(
        name="_fft_r2c",
        target=aten._fft_r2c.default,
        summary="Fourier transform of a real tensor over dim; only the first half of the last one if onesided",
        bound=Property(_check(aten._fft_r2c.default)),
        samples=_r2c,
    ),
    _row(
        name="_fft_c2c",
        target=aten._fft_c2c.default,
        summary="Fourier transform (forward) or its inverse of a complex tensor over dim",
        bound=Property(_check(aten._fft_c2c.default)),
        samples=_c2c,
    ),
    _row(
        name="_fft_c2r",
        target=aten._fft_c2r.default,
        summary="inverse Fourier transform of a half spectrum over dim to last_dim_size real points",
        bound=Property(_check(aten._fft_c2r.default)),
        samples=_c2r,
    ),
)
