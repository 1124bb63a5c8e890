"""Matrix products of floats of eight bits with scales, as a composite.

A device that multiplies such numbers claims it. Others convert both factors, multiply them in float32, which holds all their
products, and scale what is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vendor_sdk.prims.bounds import Accumulated, apart
from vendor_sdk.prims.row import FLOAT8, Composite
from vendor_sdk.prims.samples import Interval, Sample, SampleContext, draw
from vendor_sdk.prims.widen import cast

aten = torch.ops.aten
Tensor = torch.Tensor


def _scales_results(self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor) -> bool:
    """Whether there is one scale for all, or one for each row of the first factor and column of the second."""
    if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
        return False
    one = (scale_a.numel(), scale_b.numel()) == (1, 1)
    return one or (tuple(scale_a.shape) == (self.shape[0], 1) and tuple(scale_b.shape) == (1, mat2.shape[1]))


def scaled_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """``(self @ mat2) * scale_a * scale_b + bias``, rounded once. Torch ignores ``scale_result``, and ``use_fast_accum`` allows
    sums of fewer digits, which nothing here needs. Scales of blocks are left to torch."""
    if not _scales_results(self, mat2, scale_a, scale_b):
        return NotImplemented
    if scale_a.numel() == 1:
        scale_a, scale_b = (aten.reshape.default(scale, []) for scale in (scale_a, scale_b))
    result = aten.mm.default(cast(self, torch.float32), cast(mat2, torch.float32))
    result = aten.mul.Tensor(aten.mul.Tensor(result, scale_a), scale_b)
    if bias is not None:
        result = aten.add.Tensor(result, cast(bias, torch.float32))
    return cast(result, out_dtype or self.dtype)


def _reference(self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
    result = self @ mat2 * scale_a * scale_b
    return result if bias is None else result + bias


def _samples(context: SampleContext) -> Iterator[Sample]:
    """The context's dtype is that of results; float32 where torch has none of it."""
    result = torch.float32 if context.dtype == torch.float64 else context.dtype
    positive = Interval(0.25, 2.0)

    def factors(first: torch.dtype, second: torch.dtype) -> tuple[Tensor, Tensor]:
        return draw(context, (17, 64), dtype=first), draw(context, (48, 64), dtype=second).t()

    def scale(*shape: int) -> Tensor:
        return draw(context, shape, positive, dtype=torch.float32)

    e4m3, e5m2 = FLOAT8
    yield Sample((*factors(e4m3, e4m3), scale(), scale()), {"out_dtype": result}, "one scale")
    yield Sample((*factors(e5m2, e4m3), scale(17, 1), scale(1, 48)), {"out_dtype": result}, "a scale for each row and column")
    bias = draw(context, (48,), dtype=torch.bfloat16 if result == torch.float32 else result)
    yield Sample((*factors(e4m3, e5m2), scale(1), scale(1), bias), {"out_dtype": result}, "a bias")


def _terms(self: Tensor, *_: Any, **__: Any) -> int:
    return self.shape[1]


SCALED_ROWS: tuple[Composite, ...] = (
    Composite(
        name="scaled_mm",
        summary="(self @ mat2) * scale_a * scale_b + bias of float8 factors; one scale each, or one for each row and column",
        targets={aten._scaled_mm.default: scaled_mm},
        bound=Accumulated(terms=_terms, constant=2, shared=apart),
        samples=_samples,
        reference=_reference,
        source="Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1; three more roundings",
    ),
)
