"""Matrix products of numbers of eight bits, as composites: a device that multiplies such numbers claims them.

Others convert both factors to a dtype that holds all products, multiply them there, and scale what is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vendor_sdk.prims.bounds import Accumulated, Exact, apart
from vendor_sdk.prims.row import FLOAT8, Composite
from vendor_sdk.prims.samples import COUNTS, Interval, Sample, SampleContext, draw
from vendor_sdk.prims.widen import cast

aten = torch.ops.aten
Tensor = torch.Tensor


def int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    """int8 factors, and the product of int32 numbers: no sum of fewer than 2^17 terms overflows."""
    return aten.mm.default(cast(self, torch.int32), cast(mat2, torch.int32))  # type: ignore[no-any-return]


def _integers(context: SampleContext) -> Iterator[Sample]:
    whole = Interval(-128.0, 127.0)
    yield Sample((draw(context, (24, 64), whole, dtype=torch.int8), draw(context, (64, 48), whole, dtype=torch.int8)))
    a, b = draw(context, (32, 40), COUNTS, dtype=torch.int8), draw(context, (16, 40), COUNTS, dtype=torch.int8)
    yield Sample((a, b.t()), label="transposed")


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


QUANTIZED_ROWS: tuple[Composite, ...] = (
    Composite(
        name="int_mm",
        summary="the product of int8 matrices, in int32",
        targets={aten._int_mm.default: int_mm},
        dtypes=(torch.int8,),
        bound=Exact(),
        samples=_integers,
        source="exact by definition",
    ),
    Composite(
        name="scaled_mm",
        summary="(self @ mat2) * scale_a * scale_b + bias of float8 factors; one scale each, or one for each row and column",
        targets={aten._scaled_mm.default: scaled_mm},
        dtypes=FLOAT8,
        bound=Accumulated(terms=_terms, constant=2, shared=apart),
        samples=_samples,
        reference=_reference,
        source="Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1; three more roundings",
    ),
)
