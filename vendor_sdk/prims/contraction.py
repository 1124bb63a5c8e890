"""Contraction prims: sums of products over a shared dimension, and pairwise distances.

Bounds: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1: a sum of n products is off by at most
gamma_n times the same sum of absolute values. Distances sum non-negative terms, so their own value is the magnitude.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import OF_PRODUCTS, Accumulated, apart
from vendor_sdk.prims.data_sets import sparse, with_specials, with_sums, with_wrapping
from vendor_sdk.prims.row import NUMBERS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext, Sampler

aten = torch.ops.aten

Tensor = torch.Tensor


def _affine(self: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """``beta * self + alpha * product``; torch does not read ``self`` when beta is 0, so its NaN must not show."""
    scaled = product if alpha == 1 else aten.mul.Tensor(product, alpha)
    if beta == 0:
        result: Tensor = aten.clone.default(scaled)
        return result
    return aten.add.Tensor(self if beta == 1 else aten.mul.Tensor(self, beta), scaled)  # type: ignore[no-any-return]


def decompose_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _affine(self, aten.mm.default(mat1, mat2), beta, alpha)


def decompose_baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _affine(self, aten.bmm.default(batch1, batch2), beta, alpha)


def _scalar(like: Tensor, value: float) -> Tensor:
    result: Tensor = aten.full.default([], value, dtype=like.dtype, device=like.device)
    return result


def _norm(difference: Tensor, p: float) -> Tensor:
    """p-norm over the last dimension; p = 0 counts elements that are not zero."""
    size = aten.abs.default(difference)
    result: Tensor
    if difference.shape[-1] == 0:
        result = aten.full.default(list(difference.shape[:-1]), 0, dtype=difference.dtype, device=difference.device)
    elif p == 0:
        ones = aten.where.self(aten.eq.Tensor(size, _scalar(size, 0.0)), _scalar(size, 0.0), _scalar(size, 1.0))
        result = aten.sum.dim_IntList(ones, [-1])
    elif p == float("inf"):
        result = aten.amax.default(size, [-1])
    elif p == 1:
        result = aten.sum.dim_IntList(size, [-1])
    elif p == 2:
        result = aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(size, size), [-1]))
    else:
        power = aten.pow.Tensor_Tensor(size, _scalar(size, p))
        result = aten.pow.Tensor_Tensor(aten.sum.dim_IntList(power, [-1]), _scalar(size, 1.0 / p))
    return result


def _norm_gradient(difference: Tensor, norm: Tensor, p: float) -> Tensor:
    """Derivative of the p-norm with respect to ``difference``, 0 where torch defines it so (zero distances, p = 0)."""
    size, sign, zero = aten.abs.default(difference), aten.sign.default(difference), _scalar(difference, 0.0)
    if p == 0:
        result: Tensor = aten.mul.Tensor(sign, 0)
        return result
    if p == 1:
        return aten.clone.default(sign)  # type: ignore[no-any-return]
    if p == float("inf"):
        return aten.where.self(aten.eq.Tensor(size, norm), sign, zero)  # type: ignore[no-any-return]
    ratio = aten.div.Tensor(size, norm)
    slope = ratio if p == 2 else aten.pow.Tensor_Tensor(ratio, _scalar(ratio, p - 1))
    flat = aten.eq.Tensor(norm, zero)
    if p < 1:
        flat = aten.logical_or.default(flat, aten.eq.Tensor(difference, zero))
    return aten.where.self(flat, zero, aten.mul.Tensor(sign, slope))  # type: ignore[no-any-return]


def decompose_cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm(aten.sub.Tensor(aten.unsqueeze.default(x1, -2), aten.unsqueeze.default(x2, -3)), p)


def decompose_cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    difference = aten.sub.Tensor(aten.unsqueeze.default(x1, -2), aten.unsqueeze.default(x2, -3))
    slope = _norm_gradient(difference, aten.unsqueeze.default(cdist, -1), p)
    result: Tensor = aten.sum.dim_IntList(aten.mul.Tensor(aten.unsqueeze.default(grad, -1), slope), [-2])
    return result


def _pairs(self: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers (i, j), i < j, in ``pdist``'s order, from the position alone (no data-dependent size)."""
    rows = self.shape[0]
    line = aten.arange.start_step(0, rows, 1, dtype=torch.int64, device=self.device)
    first, second = [], []
    for row in range(rows - 1):
        rest = aten.slice.Tensor(line, 0, row + 1, rows)
        second.append(rest)
        first.append(aten.full.default([rows - row - 1], row, dtype=torch.int64, device=self.device))
    return aten.cat.default(first, 0), aten.cat.default(second, 0)


def decompose_pdist(self: Tensor, p: float = 2.0) -> Tensor:
    if self.shape[0] < 2:
        empty: Tensor = aten.full.default([0], 0, dtype=self.dtype, device=self.device)
        return empty
    first, second = _pairs(self)
    return _norm(aten.sub.Tensor(aten.index.Tensor(self, [first]), aten.index.Tensor(self, [second])), p)


def decompose_pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    start: Tensor = aten.full.default(list(self.shape), 0, dtype=self.dtype, device=self.device)
    if self.shape[0] < 2:
        return start
    first, second = _pairs(self)
    difference = aten.sub.Tensor(aten.index.Tensor(self, [first]), aten.index.Tensor(self, [second]))
    slope = _norm_gradient(difference, aten.unsqueeze.default(pdist, -1), p)
    part = aten.mul.Tensor(aten.unsqueeze.default(grad, -1), slope)
    added = aten.index_put.default(start, [first], part, True)
    result: Tensor = aten.index_put.default(added, [second], aten.neg.default(part), True)
    return result


@draw.by_effort
def _mm(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 5, 67), draw.values(ctx, 67, 33)), label="odd")
    yield Sample((draw.transposed(ctx, 7, 131), draw.transposed(ctx, 131, 3)), label="both transposed")
    yield Sample((draw.values(ctx, 3, 0), draw.values(ctx, 0, 4)), label="empty sum")
    yield Sample((draw.values(ctx, 1, 9), draw.values(ctx, 9, 1)), label="dot")
    yield Sample((draw.strided(ctx, 4, 6), draw.expanded(ctx, 6, 5)), label="strided, expanded")
    yield Sample((draw.values(ctx, 9, 1), draw.values(ctx, 1, 8)), label="outer")
    yield Sample((draw.values(ctx, 0, 3), draw.values(ctx, 3, 2)), label="empty result")
    yield Sample(_many(ctx), label="even")


def _many(ctx: SampleContext, *batch: int) -> tuple[Tensor, Tensor]:
    """Factors of enough results for statistics (``bounds``), each with few enough terms for them to tell."""
    return draw.values(ctx, *batch, 64, 128), draw.values(ctx, *batch, 128, 64)


@draw.by_effort
def _bmm(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 5, 67), draw.values(ctx, 3, 67, 9)), label="odd")
    yield Sample((draw.transposed(ctx, 2, 7, 31), draw.transposed(ctx, 2, 31, 3)), label="both transposed")
    yield Sample((draw.values(ctx, 2, 3, 0), draw.values(ctx, 2, 0, 4)), label="empty sum")
    yield Sample((draw.expanded(ctx, 4, 3, 5), draw.values(ctx, 4, 5, 2)), label="expanded batch")
    yield Sample((draw.values(ctx, 5, 1, 9), draw.values(ctx, 5, 9, 1)), label="dots")
    yield Sample((draw.values(ctx, 0, 3, 4), draw.values(ctx, 0, 4, 2)), label="no batch")
    yield Sample(_many(ctx, 1), label="even")


@draw.by_effort
def _addmm(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 33), draw.values(ctx, 5, 67), draw.values(ctx, 67, 33)), label="bias row")
    yield Sample((draw.values(ctx, 4, 3), draw.transposed(ctx, 4, 9), draw.transposed(ctx, 9, 3)), label="transposed")
    yield Sample((draw.values(ctx, 4, 1), draw.values(ctx, 4, 9), draw.values(ctx, 9, 3)), label="bias column")
    yield Sample((draw.values(ctx, 3), draw.values(ctx, 2, 0), draw.values(ctx, 0, 3)), label="empty sum")
    yield Sample((draw.expanded(ctx, 4, 3), draw.values(ctx, 4, 1), draw.values(ctx, 1, 3)), label="expanded")
    yield Sample((draw.values(ctx, 64), *_many(ctx)), label="even")


@draw.by_effort
def _baddbmm(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 3, 5, 9), draw.values(ctx, 3, 5, 67), draw.values(ctx, 3, 67, 9)), label="odd")
    yield Sample((draw.values(ctx, 1, 5, 1), draw.values(ctx, 2, 5, 7), draw.values(ctx, 2, 7, 3)), label="broadcast")
    yield Sample((draw.values(ctx, 2, 3, 4), draw.values(ctx, 2, 3, 0), draw.values(ctx, 2, 0, 4)), label="empty sum")
    yield Sample((draw.values(ctx, 2, 3, 4), draw.transposed(ctx, 2, 3, 5), draw.transposed(ctx, 2, 5, 4)), label="transposed")
    yield Sample((draw.values(ctx, 1, 64, 64), *_many(ctx, 1)), label="even")


_NORMS = (2.0, 1.0, float("inf"), 0.0, 3.0, 1.5, 0.5)


@draw.by_effort
def _cdist(ctx: SampleContext) -> Iterator[Sample]:
    for number, p in enumerate(_NORMS):
        lead = (2,) if number % 2 else ()
        # compute_mode 2 keeps torch from squaring out |x - y|^2, which loses half the digits.
        yield Sample((draw.values(ctx, *lead, 5, 67), draw.values(ctx, *lead, 7, 67), p, 2), label=f"p={p}")
    yield Sample((draw.transposed(ctx, 5, 3), draw.values(ctx, 4, 3), 2.0, 2), label="transposed")
    yield Sample((draw.values(ctx, 3, 0), draw.values(ctx, 2, 0), 2.0, 2), label="empty rows")


@draw.by_effort
def _cdist_backward(ctx: SampleContext) -> Iterator[Sample]:
    for p in _NORMS:
        left, right = draw.distinct(ctx, 5, 6), draw.distinct(ctx, 4, 6) + 0.03125
        grad = draw.values(ctx, 5, 4)
        yield Sample((grad, left, right, p, aten._cdist_forward.default(left, right, p, 2)), label=f"p={p}")
    same = draw.values(ctx, 3, 4)
    yield Sample(
        (draw.values(ctx, 3, 3), same, same, 2.0, aten._cdist_forward.default(same, same, 2.0, 2)), label="zero distances"
    )


@draw.by_effort
def _pdist(ctx: SampleContext) -> Iterator[Sample]:
    for p in _NORMS:
        yield Sample((draw.values(ctx, 5, 67), p), label=f"p={p}")
    yield Sample((draw.values(ctx, 1, 4),), label="one row")


@draw.by_effort
def _pdist_backward(ctx: SampleContext) -> Iterator[Sample]:
    for p in _NORMS:
        self = draw.distinct(ctx, 5, 6)
        yield Sample((draw.values(ctx, 10), self, p, aten._pdist_forward.default(self, p)), label=f"p={p}")


def _abs_mm(left: Tensor, right: Tensor) -> Tensor:
    return left.abs() @ right.abs()


def _abs_add(self: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return abs(beta) * self.abs() + abs(alpha) * _abs_mm(left, right)


def _abs_cdist(x1: Tensor, x2: Tensor, *rest: Any) -> Tensor:
    """Largest sum of |x| + |y|: the rounding of the subtraction is relative to it, and every norm is below it."""
    return x1.abs().sum(-1).unsqueeze(-1) + x2.abs().sum(-1).unsqueeze(-2) + _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), rest[0])


def _abs_pdist(self: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(len(self), len(self), 1)
    size = self.abs().sum(-1)
    return size[first] + size[second] + _norm(self[first] - self[second], p)


def _abs_cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    slope = _norm_gradient(difference, cdist.unsqueeze(-1), p).abs()
    size = x1.abs().unsqueeze(-2) + x2.abs().unsqueeze(-3)
    # The slope is |d|^(p-1): its relative error is (p - 1) times that of d, which is u * (|x| + |y|) / |d|.
    growth = 1 + abs(p if p != float("inf") else 1.0) * torch.where(difference == 0, 0.0, size / difference.abs())
    return (grad.abs().unsqueeze(-1) * slope * growth).sum(-2)


def _abs_pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    square = torch.zeros(len(self), len(self), dtype=self.dtype)
    wide_grad = square.clone()
    first, second = torch.triu_indices(len(self), len(self), 1)
    for matrix, line in ((square, pdist), (wide_grad, grad)):
        matrix[first, second] = line
        matrix[second, first] = line
    return _abs_cdist_backward(wide_grad, self, self, p, square)


_prim = functools.partial(Prim, family=Family.CONTRACTION, dtypes=NUMBERS, result=Result.SAME, shape=Shape.OPERATOR)

LONG = 4096
"""Terms of the longest products."""


def _product(
    *, samples: Sampler, bound: Accumulated, along: Mapping[int, int], long: Sequence[Sequence[int]], **rest: Any
) -> Prim:
    """A product of two factors: ``along`` has their positions and shared dimension, ``long`` the shapes of a long one."""

    def drawn(ctx: SampleContext) -> Sample:
        return Sample(tuple(draw.values(ctx, *shape) for shape in long), label="long sum")

    many = with_sums(samples, bound.terms, along, degree=2, long=drawn)
    return _prim(samples=with_specials(with_wrapping(many, tuple(along)), sparse), bound=bound, **rest)


def _distance(*, samples: Sampler, operands: Sequence[int] | None = None, **rest: Any) -> Prim:
    # Torch's CPU kernels for distances exist in float32 and float64 only.
    return _prim(samples=with_specials(samples, sparse, operands), dtypes=(torch.float32, torch.float64), **rest)


_CANDIDATES: tuple[Prim, ...] = (
    _product(
        name="mm",
        target=aten.mm.default,
        summary="matrix product (n, k) x (k, m): out[i, j] = sum_k self[i, k] * mat2[k, j]",
        bound=Accumulated(terms=lambda a, b: max(1, a.shape[-1]), magnitude=_abs_mm, shared=apart),
        source=OF_PRODUCTS,
        samples=_mm,
        along={0: 1, 1: 0},
        long=((3, LONG), (LONG, 5)),
    ),
    _product(
        name="bmm",
        target=aten.bmm.default,
        summary="matrix product of each pair in two batches (b, n, k) x (b, k, m)",
        bound=Accumulated(terms=lambda a, b: max(1, a.shape[-1]), magnitude=_abs_mm, shared=apart),
        source=OF_PRODUCTS,
        samples=_bmm,
        along={0: 2, 1: 1},
        long=((2, 3, LONG), (2, LONG, 5)),
    ),
    _product(
        name="addmm",
        target=aten.addmm.default,
        summary="beta * self + alpha * (mat1 @ mat2), self broadcast; self is not read when beta is 0",
        bound=Accumulated(terms=lambda s, a, b, **kw: a.shape[-1] + 3, magnitude=_abs_add, shared=apart),
        source=OF_PRODUCTS + "; two products and a sum more",
        samples=_addmm,
        along={1: 1, 2: 0},
        long=((5,), (3, LONG), (LONG, 5)),
        decomposition=decompose_addmm,
        decomposition_cost="one more rounding of the product to the result dtype",
    ),
    _product(
        name="baddbmm",
        target=aten.baddbmm.default,
        summary="beta * self + alpha * (batch1 @ batch2), self broadcast; self is not read when beta is 0",
        bound=Accumulated(terms=lambda s, a, b, **kw: a.shape[-1] + 3, magnitude=_abs_add, shared=apart),
        source=OF_PRODUCTS + "; two products and a sum more",
        samples=_baddbmm,
        along={1: 2, 2: 1},
        long=((2, 3, 5), (2, 3, LONG), (2, LONG, 5)),
        decomposition=decompose_baddbmm,
        decomposition_cost="one more rounding of the product to the result dtype",
    ),
    _distance(
        name="_cdist_forward",
        target=aten._cdist_forward.default,
        summary="p-norm distance between every row of x1 and every row of x2, batched",
        bound=Accumulated(terms=lambda a, b, *rest: a.shape[-1] + 4, magnitude=_abs_cdist, constant=4.0),
        source=OF_PRODUCTS + "; differences are relative to |x| + |y|; a power, a root and two roundings a term, 4 units",
        samples=_cdist,
        decomposition=decompose_cdist,
    ),
    _distance(
        name="_cdist_backward",
        target=aten._cdist_backward.default,
        summary="gradient of _cdist_forward with respect to x1",
        bound=Accumulated(
            terms=lambda grad, x1, x2, *rest: x1.shape[-1] + x2.shape[-2] + 4, magnitude=_abs_cdist_backward, constant=4.0
        ),
        source=OF_PRODUCTS + "; the slope |d|**(p - 1) is off by (p - 1) times the relative error of d",
        samples=_cdist_backward,
        operands=(0,),  # the distances were saved for the other operands
        decomposition=decompose_cdist_backward,
    ),
    _distance(
        name="_pdist_forward",
        target=aten._pdist_forward.default,
        summary="p-norm distance between rows i < j of self, in row-major order of (i, j)",
        bound=Accumulated(terms=lambda a, *rest: a.shape[-1] + 4, magnitude=_abs_pdist, constant=4.0),
        source=OF_PRODUCTS + "; differences are relative to |x| + |y|; a power, a root and two roundings a term, 4 units",
        samples=_pdist,
        decomposition=decompose_pdist,
    ),
    _distance(
        name="_pdist_backward",
        target=aten._pdist_backward.default,
        summary="gradient of _pdist_forward",
        bound=Accumulated(terms=lambda grad, a, *rest: sum(a.shape) + 4, magnitude=_abs_pdist_backward, constant=4.0),
        source=OF_PRODUCTS + "; the slope |d|**(p - 1) is off by (p - 1) times the relative error of d",
        samples=_pdist_backward,
        operands=(0,),
        decomposition=decompose_pdist_backward,
    ),
)

_DERIVED_NAMES = frozenset(
    (
        "_pdist_forward",
        "_pdist_backward",
    )
)
"""Exactly other prims: described like prims, but never in a graph after decomposition."""

ROWS = tuple(row for row in _CANDIDATES if row.name not in _DERIVED_NAMES)
DERIVED = tuple(row for row in _CANDIDATES if row.name in _DERIVED_NAMES)
