"""Rows of the scan family: running operations along one dimension; result ``i`` covers elements 0 to ``i``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk.prims.bounds import BY_DEFINITION, OF_EXPONENTIALS, OF_PRODUCTS, OF_SUMS, Accumulated, Bound, Exact
from vendor_sdk.prims.data_sets import sparse, with_specials, with_sums, with_wrapping
from vendor_sdk.prims.reduction import count
from vendor_sdk.prims.row import ALL, FLOATS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import COUNTS, Interval, Sample, Sampler, reduction

aten = torch.ops.aten


def _along(domain: Interval = COUNTS) -> Sampler:
    return reduction(lambda x, dims, keepdim: Sample((x, dims[0])), domain, single=True, identity=True)


def _line(x: torch.Tensor, dim: int) -> Sequence[int]:
    """Each result has the error of the one before it."""
    return (dim,)


def _log_magnitude(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Absolute error of ``log(sum(exp(x)))`` per unit of roundoff: that of the exponents, of the sum and of the log."""
    running = torch.logcumsumexp(x, dim)
    largest = x.abs().nan_to_num(posinf=0.0, neginf=0.0).cummax(dim).values if x.numel() and x.dim() else x.abs()
    return 1 + running.abs().nan_to_num(posinf=0.0, neginf=0.0) + largest.nan_to_num(posinf=0.0)


def _row(
    name: str,
    target: Any,
    summary: str,
    bound: Bound,
    samples: Sampler,
    dtypes: tuple[torch.dtype, ...],
    result: Result,
    source: str,
) -> Prim:
    return Prim(
        name=name,
        target=target,
        family=Family.SCAN,
        summary=summary,
        dtypes=dtypes,
        result=result,
        shape=Shape.OPERATOR if result is Result.OPERATOR else Shape.SAME,
        bound=bound,
        samples=with_specials(samples, sparse),
        source=source,
    )


ROWS = (
    _row(
        "cumsum",
        aten.cumsum.default,
        "running sum",
        Accumulated(count, shared=_line),
        with_wrapping(with_sums(_along(), count, {0: -1}), (0,)),
        ALL,
        Result.SUM,
        OF_SUMS,
    ),
    _row(
        "cumprod",
        aten.cumprod.default,
        "running product",
        Accumulated(count, shared=_line),
        with_wrapping(_along(Interval(-1.5, 1.5)), (0,)),
        ALL,
        Result.SUM,
        OF_PRODUCTS,
    ),
    _row(
        "cummax",
        aten.cummax.default,
        "(running largest, its last index); NaN from the first one on",
        Exact(),
        _along(),
        ALL,
        Result.OPERATOR,
        BY_DEFINITION,
    ),
    _row(
        "cummin",
        aten.cummin.default,
        "(running smallest, its last index); NaN from the first one on",
        Exact(),
        _along(),
        ALL,
        Result.OPERATOR,
        BY_DEFINITION,
    ),
    _row(
        "logcumsumexp",
        aten.logcumsumexp.default,
        "running log(sum(exp(x)))",
        Accumulated(count, _log_magnitude, 4.0, shared=_line),
        _along(),
        FLOATS,
        Result.SAME,
        OF_EXPONENTIALS,
    ),
)
"""The scan prims."""
