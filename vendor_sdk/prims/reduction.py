"""Rows of the reduction family.

Canonical forms: the dimensions are given, and a reduction over all of them lists them. ``sum``, ``mean``, ``var``, ``any``,
``amax``, ``amin`` and ``linalg_vector_norm`` take several; ``prod``, ``max.dim`` and ``min.dim`` one, on a flattened view
where all are meant; ``argmax`` and ``argmin`` one, or ``None`` for the flattened tensor. Where elements tie, indices are
those of the first.
"""

# mypy: disable-error-code="no-any-return"
# (torch.ops is untyped: every operator call is an Any.)

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk.prims.bounds import BY_DEFINITION, OF_PRODUCTS, OF_SUMS, OF_VARIANCES, Accumulated, Bound, Exact, apart
from vendor_sdk.prims.data_sets import sparse, with_specials, with_sums, with_wrapping
from vendor_sdk.prims.elementary import cast, number
from vendor_sdk.prims.row import ALL, FLOATS, NUMBERS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, Sampler, draw, reduction

aten = torch.ops.aten
Tensor = torch.Tensor


def count(x: Tensor, dim: int | Sequence[int] | None = None, *_: Any, **__: Any) -> int:
    """Number of elements of ``x`` that one element of the result is made of; the arguments are those of a reduction."""
    if dim is None:
        return x.numel()
    dims = [dim] if isinstance(dim, int) else dim
    return math.prod(x.shape[d] for d in dims) if x.dim() else 1


def _several(x: Tensor, dims: list[int], keepdim: bool) -> Sample:
    return Sample((x, dims, keepdim))


def _one(x: Tensor, dims: list[int], keepdim: bool) -> Sample:
    return Sample((x, dims[0], keepdim))


def _ties(sampler: Sampler) -> Sampler:
    """Adds rows with few distinct values, where the choice of the index shows."""

    def sample(context: SampleContext) -> Iterator[Sample]:
        yield Sample(
            (
                draw(context, (9, 23), Interval(0.0, 2.0)).round()
                if context.dtype.is_floating_point
                else draw(context, (9, 23), Interval(0.0, 2.0)),
                1,
                False,
            ),
            label="ties",
        )
        yield from sampler(context)

    return sample


def _argument(sampler: Sampler) -> Sampler:
    def sample(context: SampleContext) -> Iterator[Sample]:
        yield from sampler(context)
        if context.effort >= Effort.STANDARD:
            yield Sample((draw(context, (4, 7), Interval(-9.0, 9.0)),), label="flattened")

    return sample


def _corrections(context: SampleContext) -> Iterator[Sample]:
    for correction in (1, 0) if context.effort >= Effort.STANDARD else (1,):
        made = reduction(lambda x, dims, keepdim: Sample((x, dims), {"keepdim": keepdim}), special=correction == 1)
        for sample in made(context):
            # torch writes a warning to stderr whenever nothing is left to divide by; once in a full run is enough.
            if (sample.args[0].numel() and count(*sample.args) > correction) or context.effort >= Effort.FULL:
                yield Sample(sample.args, {**sample.kwargs, "correction": correction}, sample.label, sample.special)


def _norms(context: SampleContext) -> Iterator[Sample]:
    orders = (2, 1, math.inf, -math.inf, 0, 3.5) if context.effort >= Effort.STANDARD else (2, 1, math.inf)
    for order in orders:
        made = reduction(lambda x, dims, keepdim: Sample((x, order, dims, keepdim)), special=order in (1, 2))
        for sample in made(context):
            yield Sample(sample.args, {}, f"order {order}, {sample.label}", sample.special)


def _any_samples(context: SampleContext) -> Iterator[Sample]:
    sparse = draw(context, (16, 5), Interval(-1.0, 1.0)) * (draw(context, (16, 5), Interval(0.0, 5.0)) == 0)
    if context.dtype.is_floating_point:
        keep = draw(context, (16, 5), dtype=torch.bool) & draw(context, (16, 5), dtype=torch.bool)
        sparse = draw(context, (16, 5)) * keep
    yield Sample((sparse.to(context.dtype), [1], False), label="mostly zero")
    yield from reduction(_several, Interval(-1.0, 1.0), identity=True)(context)


def _mean(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    computing = torch.float32 if result in (torch.float16, torch.bfloat16) else result
    total = aten.sum.dim_IntList(x, dim, keepdim, dtype=computing)
    # No elements: 0 / 0 is the NaN that a mean of nothing is.
    return cast(aten.div.Tensor(total, count(x, dim)), result)


def _var(x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    # Two passes: one pass over x and x**2 cancels where the mean is large beside the deviation.
    computing = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    wide = cast(x, computing)
    deviation = aten.sub.Tensor(wide, aten.mean.dim(wide, dim, True))
    squares = aten.sum.dim_IntList(aten.mul.Tensor(deviation, deviation), dim, keepdim)
    freedom = torch.sym_max(count(x, dim) - (1 if correction is None else correction), 0)  # type: ignore[no-untyped-call]
    return cast(aten.div.Tensor(squares, freedom), x.dtype)


def _any(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    truth = cast(x if x.dtype == torch.bool else aten.ne.Tensor(x, number(x, 0)), torch.uint8)
    found = aten.sum.dim_IntList(truth, dim, keepdim)
    return cast(aten.ne.Tensor(found, number(found, 0)), torch.uint8 if x.dtype == torch.uint8 else torch.bool)


def _indexed(extreme: Any, argument: Any) -> Callable[..., Any]:
    def decomposition(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        ordered = cast(x, torch.uint8) if x.dtype == torch.bool else x
        return extreme(x, [dim], keepdim), argument(ordered, dim, keepdim)

    return decomposition


def _norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    result = dtype or x.dtype
    computing = torch.float32 if result in (torch.float16, torch.bfloat16) else result
    size = aten.abs.default(cast(x, computing))
    dims = list(range(x.dim())) if dim is None else list(dim)
    if ord == math.inf:
        norm = aten.amax.default(size, dims, keepdim)
    elif ord == -math.inf:
        norm = aten.amin.default(size, dims, keepdim)
    elif ord == 0:
        present = cast(aten.ne.Tensor(size, number(size, 0)), computing)
        norm = aten.sum.dim_IntList(present, dims, keepdim)
    elif ord == 1:
        norm = aten.sum.dim_IntList(size, dims, keepdim)
    elif ord == 2:
        norm = aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(size, size), dims, keepdim))
    else:
        powers = aten.pow.Tensor_Tensor(size, number(size, ord))
        total = aten.sum.dim_IntList(powers, dims, keepdim)
        norm = aten.pow.Tensor_Tensor(total, number(total, 1.0 / ord))
    return cast(norm, result)


def _spread(x: Tensor, dim: list[int] | None = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Variance times its condition number ``sqrt(1 + mean**2 / variance)`` (Chan, Golub and LeVeque, 1983), and the square of
    the mean's rounding, which is all that is left of equal elements."""
    variance = torch.var(x, dim, correction=correction, keepdim=keepdim)
    square = torch.mean(x, dim, keepdim=keepdim) ** 2
    return (variance * (variance + square)).sqrt() + count(x, dim) * 2.0**-24 * square


def _norm_itself(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return aten.linalg_vector_norm.default(x, *args, **kwargs)


def _row(
    name: str,
    target: Any,
    summary: str,
    bound: Bound,
    samples: Sampler,
    *,
    dtypes: tuple[torch.dtype, ...],
    result: Result,
    by: Callable[..., Any] | None = None,
    cost: str = "",
    source: str = BY_DEFINITION,
) -> Prim:
    return Prim(
        name=name,
        target=target,
        family=Family.REDUCTION,
        summary=summary,
        dtypes=dtypes,
        result=result,
        shape=Shape.REDUCE,
        bound=bound,
        samples=with_specials(samples, sparse),
        decomposition=by,
        decomposition_cost=cost,
        source=source,
    )


_ALONG = {0: -1}
"""What the first sample of ``reduction`` sums over."""

ROWS = (
    _row(
        "sum",
        aten.sum.dim_IntList,
        "sum over dim",
        Accumulated(count, shared=apart),
        with_wrapping(with_sums(reduction(_several, identity=True), count, _ALONG), (0,)),
        dtypes=ALL,
        result=Result.SUM,
        source=OF_SUMS,
    ),
    _row(
        "prod",
        aten.prod.dim_int,
        "product over dim",
        Accumulated(count, shared=apart),
        with_wrapping(reduction(_one, Interval(-1.5, 1.5), single=True, identity=True), (0,)),
        dtypes=ALL,
        result=Result.SUM,
        source=OF_PRODUCTS,
    ),
    _row(
        "amax",
        aten.amax.default,
        "largest over dim; NaN where there is one",
        Exact(),
        reduction(_several),
        dtypes=ALL,
        result=Result.SAME,
    ),
    _row(
        "amin",
        aten.amin.default,
        "smallest over dim; NaN where there is one",
        Exact(),
        reduction(_several),
        dtypes=ALL,
        result=Result.SAME,
    ),
    _row(
        "mean",
        aten.mean.dim,
        "sum over dim divided by the count",
        Accumulated(lambda *a, **k: count(*a, **k) + 2, shared=apart, bias=1.0),
        with_sums(reduction(_several, identity=True), count, _ALONG),
        dtypes=FLOATS,
        result=Result.SAME,
        by=_mean,
        source=OF_SUMS + "; one division more, or the reciprocal of the count, which is rounded once for all",
    ),
    _row(
        "var",
        aten.var.correction,
        "sum of (x - mean)**2 over dim divided by max(count - correction, 0)",
        Accumulated(lambda x, dim=None, **_: count(x, dim) + 4, _spread, 2.0, shared=apart),
        with_sums(_corrections, count, _ALONG, degree=2),
        dtypes=FLOATS,
        result=Result.SAME,
        by=_var,
        source=OF_VARIANCES + ", Welford's update",
    ),
    _row(
        "any",
        aten.any.dims,
        "whether an element over dim is not zero (uint8 for uint8)",
        Exact(),
        _any_samples,
        dtypes=ALL,
        result=Result.OPERATOR,
        by=_any,
    ),
    _row(
        "argmax",
        aten.argmax.default,
        "index of the first largest element over dim, of the first NaN where there is one",
        Exact(),
        _argument(_ties(reduction(_one, single=True))),
        dtypes=NUMBERS,
        result=Result.INT64,
    ),
    _row(
        "argmin",
        aten.argmin.default,
        "index of the first smallest element over dim, of the first NaN where there is one",
        Exact(),
        _argument(_ties(reduction(_one, single=True))),
        dtypes=NUMBERS,
        result=Result.INT64,
    ),
    _row(
        "max.dim",
        aten.max.dim,
        "(amax, argmax) over dim",
        Exact(),
        _ties(reduction(_one, single=True)),
        dtypes=ALL,
        result=Result.OPERATOR,
        by=_indexed(aten.amax.default, aten.argmax.default),
    ),
    _row(
        "min.dim",
        aten.min.dim,
        "(amin, argmin) over dim",
        Exact(),
        _ties(reduction(_one, single=True)),
        dtypes=ALL,
        result=Result.OPERATOR,
        by=_indexed(aten.amin.default, aten.argmin.default),
    ),
    _row(
        "linalg_vector_norm",
        aten.linalg_vector_norm.default,
        "(sum of |x|**ord over dim)**(1 / ord); largest, smallest, count at inf, -inf, 0",
        Accumulated(lambda x, ord=2, dim=None, *_, **__: count(x, dim) + 2, _norm_itself, 16.0, shared=apart),
        # Sums of squares may overflow where the norm does not.
        with_sums(_norms, lambda x, ord, dim, *_: count(x, dim), _ALONG, degree=2),
        dtypes=FLOATS,
        result=Result.SAME,
        by=_norm,
        cost="sums of squares overflow above the square root of the largest finite value",
        source=OF_SUMS + "; powers as in OpenCL C 3.0, section 7.4 (pow, 16 ulp)",
    ),
)
"""The reduction prims."""
