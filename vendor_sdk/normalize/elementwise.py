"""Rules for pointwise operators that are no prims and that torch leaves whole."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten, cast, full, number

ELEMENTWISE = Rules()
rule = ELEMENTWISE.rule

Tensor = torch.Tensor


@rule(aten._conj.default)
def conj(x: Tensor | complex) -> Any:
    if not isinstance(x, Tensor):  # a factor, in the graph of gradients
        return complex(x).conjugate()
    return aten._conj_physical.default(x) if x.dtype.is_complex else aten.alias.default(x)


@rule(aten.conj_physical.default)
def conj_physical(x: Tensor) -> Any:
    return aten._conj_physical.default(x) if x.dtype.is_complex else aten.clone.default(x)


@rule(aten._neg_view.default)
def neg_view(x: Tensor) -> Any:
    return aten.neg.default(x)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    pairs = aten.view_as_real.default(x)
    return aten.select.int(pairs, -1, 0), aten.select.int(pairs, -1, 1)


@rule(aten.angle.default)
def angle(x: Tensor) -> Any:
    if x.dtype.is_complex:
        real, imaginary = _parts(x)
        return aten.atan2.default(imaginary, real)
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    wide = cast(x, dtype)
    zero = number(0, dtype, x)
    turned = aten.where.self(aten.lt.Tensor(wide, zero), number(math.pi, dtype, x), zero)
    return aten.where.self(aten.isnan.default(wide), wide, turned)


@rule(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Any:
    """The smaller of ``max`` and the larger of ``min`` and ``x``; NaN wherever one of them is."""
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(x, bound) for bound in bounds), x.dtype)
    wide = cast(x, dtype)
    for bound, choose in ((min, aten.maximum.default), (max, aten.minimum.default)):
        if bound is not None:
            wide = choose(wide, cast(bound, dtype) if isinstance(bound, Tensor) else number(bound, dtype, x))
    return wide


@rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: Tensor, max: Any) -> Any:
    return clamp(x, None, max)


@rule(aten.polar.default)
def polar(size: Tensor, phase: Tensor) -> Any:
    cosine, sine = aten.cos.default(phase), aten.sin.default(phase)
    return aten.complex.default(aten.mul.Tensor(size, cosine), aten.mul.Tensor(size, sine))


@rule(aten.rrelu_with_noise_functional.default)
def rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    if generator is not None:
        return NotImplemented
    negative = aten.le.Tensor(x, number(0, x.dtype, x))
    if not training:
        return aten.where.self(negative, aten.mul.Tensor(x, (lower + upper) / 2), x), aten.clone.default(noise)
    slope = aten.rand.default(list(x.shape), dtype=x.dtype, device=x.device)
    slope = aten.add.Tensor(aten.mul.Tensor(slope, upper - lower), lower)
    one = full(1, (), x.dtype, x)
    return aten.where.self(negative, aten.mul.Tensor(x, slope), x), aten.where.self(negative, slope, one)
