"""Dense linear algebra: factorizations, solvers and what follows from them, batched over leading dimensions.

Factors are defined only up to choices (signs, order of equal singular values, pivots), so results are checked by what they
must satisfy: the factors multiply to the matrix, orthogonal ones are orthogonal, solutions have small residuals. Every
residual is bounded by ``CONSTANT * n * u * scale``, the backward stability of the standard algorithms (Higham 2002,
theorems 8.5, 9.3, 10.3, 11.3 and 19.4; Golub and Van Loan 2013, sections 8.3 and 8.6).

For a contiguous real matrix some of ``_linalg_det``, ``_linalg_slogdet`` and ``_linalg_solve_ex`` factorize the transpose, and
their gradient formulas count on it. Which ones differs between torch versions, so the operators are asked.

Only ``lu_unpack``, which moves data, has samples with NaN and infinities: a matrix that has them has no factors, and LAPACK
leaves open what its routines return for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import BY_DEFINITION, HIGHAM, Exact, Property
from vendor_sdk.prims.data_sets import scattered, with_specials
from vendor_sdk.prims.row import Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext

aten = torch.ops.aten

Tensor = torch.Tensor

GOLUB = "Golub and Van Loan, Matrix Computations (2013), "
CONSTANT = 16.0
"""Allowance over n * u: the theorems' small constants, and norms by largest row sums instead of 2-norms."""


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _size(matrix: Tensor) -> Tensor:
    """Largest row sum of each matrix, kept for broadcasting; 0 for empty ones."""
    if matrix.shape[-1] == 0 or matrix.shape[-2] == 0:
        return torch.zeros(*matrix.shape[:-2], 1, 1, dtype=torch.float64)
    return matrix.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)


class Residuals:
    """Collects what is wrong with a result of precision ``dtype`` for matrices of order ``n``; the first finding counts."""

    def __init__(self, dtype: torch.dtype, n: int) -> None:
        self.unit = torch.finfo(dtype).eps / 2
        self.n = max(n, 1)
        self.finding: str | None = None

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds and self.finding is None:
            self.finding = otherwise

    def small(self, what: str, residual: Tensor, scale: Tensor | float) -> None:
        allowed = CONSTANT * self.n * self.unit * scale
        excess = residual.abs() - allowed
        self.require(bool((excess <= 0).all()), f"{what} is off by up to {residual.abs().max() if residual.numel() else 0:.3g}")

    def orthonormal(self, what: str, columns: Tensor) -> None:
        eye = torch.eye(columns.shape[-1], dtype=columns.dtype)
        self.small(f"{what} times its transpose minus the identity", columns.mH @ columns - eye, 1.0)


def _checked(target: Callable[..., Any], examine: Callable[..., None], count: int = 1) -> Callable[[Any, Sample], str | None]:
    """A check that first compares shapes and dtypes with torch's, then examines the float64 results with the arguments."""

    def check(result: Any, sample: Sample) -> str | None:
        outline = target(*sample.args, **sample.kwargs)
        results, outlines = (result, outline) if count > 1 else ((result,), (outline,))
        if len(results) != len(outlines):
            return f"{len(results)} results instead of {len(outlines)}"
        for place, (one, other) in enumerate(zip(results, outlines, strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"result {place} is {one.dtype} {tuple(one.shape)} instead of {other.dtype} {tuple(other.shape)}"
        floats = [_wide(a) if isinstance(a, Tensor) and a.is_floating_point() else a for a in sample.args]
        first = sample.args[0]
        found = Residuals(first.dtype, max(first.shape[-2:]))
        examine(found, [_wide(r) if r.is_floating_point() or r.is_complex() else r for r in results], *floats, **sample.kwargs)
        return found.finding

    return check


def _triangle(found: Residuals, what: str, matrix: Tensor, upper: bool) -> None:
    found.require(torch.equal(matrix, matrix.triu() if upper else matrix.tril()), f"{what} is not triangular")


def _examine_cholesky(found: Residuals, results: Any, a: Tensor, *, upper: bool = False, check_errors: bool = False) -> None:
    factor, info = results
    expected_info = torch.linalg.cholesky_ex(a, upper=upper).info
    found.require(torch.equal(info, expected_info), "info differs")
    fine = info == 0
    factor, a = factor[fine], a[fine]
    _triangle(found, "the factor", factor, upper)
    full = a.triu() + a.triu(1).mT if upper else a.tril() + a.tril(-1).mT
    found.small("the product of the factors", (factor.mT @ factor if upper else factor @ factor.mT) - full, _size(full))


def _examine_cholesky_inverse(found: Residuals, results: Any, factor: Tensor, upper: bool = False) -> None:
    a = factor.triu().mT @ factor.triu() if upper else factor.tril() @ factor.tril().mT
    (inverse,) = results
    found.small("A X - I", a @ inverse - torch.eye(a.shape[-1], dtype=a.dtype), _size(a) * _size(inverse))


def _examine_cholesky_solve(found: Residuals, results: Any, b: Tensor, factor: Tensor, upper: bool = False) -> None:
    a = factor.triu().mT @ factor.triu() if upper else factor.tril() @ factor.tril().mT
    (x,) = results
    found.n = max(found.n, a.shape[-1])
    found.small("A X - B", a @ x - b, _size(a) * _size(x))


def _examine_triangular(
    found: Residuals, results: Any, a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> None:
    (x,) = results
    a = a.triu() if upper else a.tril()
    if unitriangular:
        a = a - torch.diag_embed(torch.diagonal(a, dim1=-2, dim2=-1)) + torch.eye(a.shape[-1], dtype=a.dtype)
    found.small("the residual", (a @ x if left else x @ a) - b, _size(a) * _size(x) if left else _size(x) * _size(a))


def _product_of_lu(lu: Tensor, pivots: Tensor) -> Tensor:
    p, lower, upper = torch.lu_unpack(lu, pivots)
    return p @ lower @ upper


def _lu(found: Residuals, a: Tensor, lu: Tensor, pivots: Tensor) -> None:
    rank = min(a.shape[-2:])
    inside = bool(((pivots >= 1) & (pivots <= a.shape[-2])).all())
    found.require(inside, "a pivot is out of range")
    if inside:
        lower = lu[..., :rank].tril(-1)
        found.require(bool((lower.abs() <= 1 + 1e-3).all()), "a multiplier is larger than one: rows were not pivoted")
        found.small("P L U - A", _product_of_lu(lu, pivots) - a, _size(a) * max(rank, 1))


def _examine_lu(found: Residuals, results: Any, a: Tensor, **kwargs: Any) -> None:
    lu, pivots, info = results
    found.require(bool((info == 0).all()), "info is not 0")
    _lu(found, a, lu, pivots)


def _examine_lu_solve(
    found: Residuals, results: Any, lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> None:
    (x,) = results
    a = _product_of_lu(lu, pivots)
    a = a.mT if adjoint else a
    scale = _size(a) * _size(x) if left else _size(x) * _size(a)
    found.small("the residual", (a @ x if left else x @ a) - b, scale * found.n)


def _examine_qr(found: Residuals, results: Any, a: Tensor, mode: str = "reduced") -> None:
    q, r = results
    _triangle(found, "R", r, True)
    if mode == "r":
        found.small("R'R - A'A", r.mT @ r - a.mT @ a, _size(a.mT) * _size(a))
        return
    found.orthonormal("Q", q)
    found.small("Q R - A", q @ r - a, _size(a))


def _examine_svd(
    found: Residuals, results: Any, a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> None:
    u, s, vh = results
    size = _size(a) + _size(a.mT)
    found.require(bool((s >= 0).all()) and bool((s.diff(dim=-1) <= 0).all()), "singular values are not descending from above 0")
    found.small("singular values", s - torch.linalg.svdvals(a), size.squeeze(-1))
    if compute_uv:
        found.orthonormal("U", u)
        found.orthonormal("V", vh.mT)
        rank = s.shape[-1]
        found.small("U S V' - A", (u[..., :rank] * s.unsqueeze(-2)) @ vh[..., :rank, :] - a, size)


def _examine_eigh(found: Residuals, results: Any, a: Tensor, uplo: str = "L", compute_v: bool = True) -> None:
    w, v = results
    full = a.triu() + a.triu(1).mT if uplo == "U" else a.tril() + a.tril(-1).mT
    found.require(bool((w.diff(dim=-1) >= 0).all()), "eigenvalues are not ascending")
    found.small("eigenvalues", w - torch.linalg.eigvalsh(full), _size(full).squeeze(-1))
    if compute_v:
        found.orthonormal("V", v)
        found.small("A V - V W", full @ v - v * w.unsqueeze(-2), _size(full))


def _examine_eig(found: Residuals, results: Any, a: Tensor) -> None:
    w, v = results
    found.small("A V - V W", a.to(v.dtype) @ v - v * w.unsqueeze(-2), _size(a))
    found.small("column norms of V", torch.linalg.vector_norm(v, dim=-2) - 1.0, 1.0)
    trace = torch.diagonal(a, dim1=-2, dim2=-1).sum(-1)
    found.small("sum of eigenvalues minus trace", w.sum(-1) - trace, (_size(a) * found.n).squeeze(-1).squeeze(-1))


def _examine_inverse(found: Residuals, results: Any, a: Tensor, **kwargs: Any) -> None:
    inverse, info = results
    found.require(bool((info == 0).all()), "info is not 0")
    found.small("A X - I", a @ inverse - torch.eye(a.shape[-1], dtype=a.dtype), _size(a) * _size(inverse) * found.n)


def _factors_transpose(lu_and_pivots: Callable[[Tensor], tuple[Tensor, Tensor]]) -> bool:
    matrix = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    return not torch.allclose(_product_of_lu(*lu_and_pivots(matrix)), matrix)


_SOLVE_FLIPS = _factors_transpose(lambda a: aten._linalg_solve_ex.default(a, a)[1:3])
_DET_FLIPS = _factors_transpose(lambda a: aten._linalg_det.default(a)[1:3])
_SLOGDET_FLIPS = _factors_transpose(lambda a: aten._linalg_slogdet.default(a)[2:4])


def _factored(a: Tensor, flips: bool) -> Tensor:
    """What the LU factors of ``a`` multiply to; see the top of this file."""
    return _mt(a) if flips and a.is_contiguous() and not a.is_complex() else a


def _examine_solve(
    found: Residuals, results: Any, a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> None:
    x, lu, pivots, info = results
    found.require(bool((info == 0).all()), "info is not 0")
    _lu(found, _factored(a, _SOLVE_FLIPS), lu, pivots)
    vector = x.dim() < a.dim()
    x, b = (x.unsqueeze(-1), b.unsqueeze(-1)) if vector else (x, b)
    scale = _size(a) * _size(x) if left else _size(x) * _size(a)
    found.small("the residual", (a @ x if left else x @ a) - b, scale * found.n)


def _examine_det(found: Residuals, results: Any, a: Tensor) -> None:
    det, lu, pivots = results
    _lu(found, _factored(a, _DET_FLIPS), lu, pivots)
    product = torch.diagonal(lu, dim1=-2, dim2=-1).prod(-1) * _parity(pivots)
    found.small("det minus the product of the pivots", det - product, product.abs())


def _parity(pivots: Tensor) -> Tensor:
    """1 or -1: the sign of the row exchanges that LAPACK-style pivots record."""
    moved = pivots != torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1.0 - 2.0 * (moved.sum(-1) % 2)


def _examine_slogdet(found: Residuals, results: Any, a: Tensor) -> None:
    sign, logabsdet, lu, pivots = results
    _lu(found, _factored(a, _SLOGDET_FLIPS), lu, pivots)
    diagonal = torch.diagonal(lu, dim1=-2, dim2=-1)
    found.require(torch.equal(sign, diagonal.sign().prod(-1) * _parity(pivots)), "sign differs")
    found.small("log |det|", logabsdet - diagonal.abs().log().sum(-1), diagonal.abs().log().abs().sum(-1) + 1)


def _examine_ldl(found: Residuals, results: Any, a: Tensor, **kwargs: Any) -> None:
    factors, pivots, info = results
    found.require(bool((info == 0).all()), "info is not 0")
    inside = bool(((pivots != 0) & (pivots.abs() <= a.shape[-1])).all())
    found.require(inside, "a pivot is out of range")
    if not inside:
        return
    full = a.tril() + a.tril(-1).mT
    inverse = torch.linalg.ldl_solve(factors, pivots, torch.eye(a.shape[-1], dtype=a.dtype).expand_as(a))
    found.small(
        "A times the inverse from the factors minus I",
        full @ inverse - torch.eye(a.shape[-1], dtype=a.dtype),
        _size(full) * _size(inverse) * found.n,
    )


def _examine_ldl_solve(
    found: Residuals, results: Any, factors: Tensor, pivots: Tensor, b: Tensor, *, hermitian: bool = False
) -> None:
    (x,) = results
    a = torch.linalg.inv(
        torch.linalg.ldl_solve(factors, pivots, torch.eye(factors.shape[-1], dtype=b.dtype).expand_as(factors))
    )
    found.small("A X - B", a @ x - b, _size(a) * _size(x) * found.n)


def _examine_householder(found: Residuals, results: Any, a: Tensor, tau: Tensor) -> None:
    found.small("the product", results[0] - torch.linalg.householder_product(a, tau), 1.0)


def _examine_ormqr(found: Residuals, results: Any, a: Tensor, tau: Tensor, c: Tensor, *rest: Any) -> None:
    found.n = max(found.n, *c.shape[-2:])
    found.small("the product", results[0] - torch.ormqr(a, tau, c, *rest), _size(c) + _size(c.mT))


def _examine_geqrf(found: Residuals, results: Any, a: Tensor) -> None:
    packed, tau = results
    rank = min(a.shape[-2:])
    q = torch.linalg.householder_product(packed[..., :, :rank], tau)
    found.small("Q R - A", q @ packed.triu()[..., :rank, :] - a, _size(a))
    found.orthonormal("Q", q)


def _examine_exp(found: Residuals, results: Any, a: Tensor) -> None:
    # A Pade or Taylor polynomial is evaluated and squared; the condition of exp is at most about the norm.
    size = _size(a)
    found.small("exp(A)", results[0] - torch.linalg.matrix_exp(a), size.exp() * (1 + size))


def _symmetric(ctx: SampleContext, *shape: int) -> Tensor:
    """Symmetric, indefinite."""
    a = draw.values(ctx, *shape)
    return (a + a.mT) / 2


def _definite(ctx: SampleContext, *shape: int) -> Tensor:
    """Symmetric positive definite: diagonally dominant, condition below about 10."""
    return _symmetric(ctx, *shape) + 4 * shape[-1] * torch.eye(shape[-1], dtype=ctx.dtype)


def _regular(ctx: SampleContext, *shape: int) -> Tensor:
    """Well-conditioned, but with rows reversed so that pivoting happens."""
    a = draw.values(ctx, *shape) + 4 * shape[-1] * torch.eye(shape[-1], dtype=ctx.dtype)
    return a.flip(-2)


def _column_major(matrix: Tensor) -> Tensor:
    return matrix.mT.contiguous().mT


@draw.by_effort
def _cholesky(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_definite(ctx, 3, 7, 7),), label="batch")
    yield Sample((_definite(ctx, 67, 67),), {"upper": True}, label="upper")
    yield Sample((torch.stack([_definite(ctx, 4, 4), -_definite(ctx, 4, 4)]),), label="one not definite")
    yield Sample((_column_major(_definite(ctx, 5, 5)),), label="column-major")
    yield Sample((_definite(ctx, 1, 1),), label="one by one")
    yield Sample((draw.values(ctx, 2, 0, 0),), label="empty")


def _factor(ctx: SampleContext, *shape: int) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(_definite(ctx, *shape))
    return factor


@draw.by_effort
def _cholesky_inverse(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_factor(ctx, 2, 7, 7),), label="batch")
    yield Sample((_factor(ctx, 67, 67).mT.contiguous(), True), label="upper")
    yield Sample((_factor(ctx, 1, 1),), label="one by one")
    yield Sample((_factor(ctx, 5, 5) + draw.values(ctx, 5, 5).triu(1),), label="other triangle not read")


@draw.by_effort
def _cholesky_solve(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 2, 7, 3), _factor(ctx, 2, 7, 7)), label="batch")
    yield Sample((draw.transposed(ctx, 67, 5), _factor(ctx, 67, 67).mT.contiguous(), True), label="upper, transposed")
    yield Sample((draw.values(ctx, 1, 1), _factor(ctx, 1, 1)), label="one by one")
    yield Sample((draw.values(ctx, 4, 0), _factor(ctx, 4, 4)), label="empty")
    yield Sample((draw.values(ctx, 3, 5, 2), _factor(ctx, 5, 5)), label="broadcast")


@draw.by_effort
def _triangular(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_definite(ctx, 2, 7, 7), draw.values(ctx, 2, 7, 3)), {"upper": False}, label="lower, batch")
    yield Sample(
        (_definite(ctx, 67, 67), draw.values(ctx, 5, 67)), {"upper": True, "left": False}, label="upper, from the right"
    )
    unit = draw.values(ctx, 5, 5) / 8
    yield Sample((unit, draw.transposed(ctx, 5, 4)), {"upper": True, "unitriangular": True}, label="unit diagonal not read")
    yield Sample((_column_major(_definite(ctx, 5, 5)), draw.values(ctx, 3, 5, 2)), {"upper": False}, label="broadcast")
    yield Sample((_definite(ctx, 4, 4), draw.values(ctx, 4, 0)), {"upper": True}, label="empty")


@draw.by_effort
def _lu_factor(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_regular(ctx, 3, 7, 7),), label="batch")
    yield Sample((draw.distinct(ctx, 9, 5),), label="tall")
    yield Sample((draw.transposed(ctx, 5, 67),), label="wide, transposed")
    yield Sample((_regular(ctx, 1, 1),), label="one by one")
    yield Sample((draw.values(ctx, 0, 3, 3),), label="empty batch")


@draw.by_effort
def _lu_solve(ctx: SampleContext) -> Iterator[Sample]:
    for shape, b, options, label in (
        ((2, 7, 7), (2, 7, 3), {}, "batch"),
        ((67, 67), (67, 5), {"adjoint": True}, "transposed matrix"),
        ((5, 5), (4, 5), {"left": False}, "from the right"),
        ((5, 5), (4, 5), {"left": False, "adjoint": True}, "from the right, transposed"),
        ((1, 1), (1, 1), {}, "one by one"),
        ((4, 4), (3, 4, 2), {}, "broadcast"),
    ):
        lu, pivots = torch.linalg.lu_factor(_regular(ctx, *shape))
        yield Sample((lu, pivots, draw.values(ctx, *b)), dict(options), label=label)


@draw.by_effort
def _lu_unpack(ctx: SampleContext) -> Iterator[Sample]:
    for shape, label in (((2, 7, 7), "batch"), ((9, 5), "tall"), ((5, 67), "wide"), ((1, 1), "one by one"), ((0, 0), "empty")):
        matrix = _regular(ctx, *shape) if shape[-1] == shape[-2] else draw.distinct(ctx, *shape)
        lu, pivots, _ = torch.linalg.lu_factor_ex(matrix)
        yield Sample((lu, pivots), label=label)
    yield Sample((lu, pivots, True, False), label="no permutation")


@draw.by_effort
def _qr(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 2, 9, 5),), label="tall, batch")
    yield Sample((draw.transposed(ctx, 5, 67), "complete"), label="wide, complete, transposed")
    yield Sample((draw.values(ctx, 7, 7), "r"), label="R only")
    yield Sample((draw.values(ctx, 9, 4), "complete"), label="tall, complete")
    yield Sample((draw.values(ctx, 1, 1),), label="one by one")
    yield Sample((draw.values(ctx, 3, 0),), label="empty")


@draw.by_effort
def _svd(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 2, 9, 5),), label="tall, batch")
    yield Sample((draw.transposed(ctx, 5, 67), True), label="wide, full, transposed")
    yield Sample((draw.values(ctx, 7, 7), False, False), label="values only")
    rank_one = draw.values(ctx, 6, 1, low=1) @ draw.values(ctx, 1, 4, low=1)
    yield Sample((rank_one,), label="rank one")
    yield Sample((draw.values(ctx, 1, 1),), label="one by one")


@draw.by_effort
def _eigh(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_symmetric(ctx, 2, 7, 7),), label="batch")
    yield Sample((draw.values(ctx, 31, 31), "U"), label="upper triangle read")
    yield Sample((_symmetric(ctx, 5, 5), "L", False), label="values only")
    yield Sample((torch.eye(4, dtype=ctx.dtype),), label="equal eigenvalues")
    yield Sample((draw.values(ctx, 1, 1),), label="one by one")


@draw.by_effort
def _eig(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 2, 7, 7),), label="batch")
    yield Sample((draw.transposed(ctx, 31, 31),), label="transposed")
    yield Sample((torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=ctx.dtype),), label="rotation")
    yield Sample((draw.values(ctx, 1, 1),), label="one by one")


@draw.by_effort
def _inverse(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_regular(ctx, 2, 7, 7),), label="batch")
    yield Sample((_column_major(_regular(ctx, 67, 67)),), label="column-major")
    yield Sample((_regular(ctx, 1, 1),), label="one by one")
    yield Sample((draw.values(ctx, 2, 0, 0),), label="empty")


@draw.by_effort
def _determinant(ctx: SampleContext) -> Iterator[Sample]:
    for sample in _inverse(ctx):
        # Entries near one keep the determinant of 67 rows inside float32's range.
        scale = 4.0 * max(sample.args[0].shape[-1], 1)
        yield Sample((sample.args[0] / scale,), label=sample.label)
    yield Sample((torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=ctx.dtype),), label="one exchange")


@draw.by_effort
def _solve(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_regular(ctx, 2, 7, 7), draw.values(ctx, 2, 7, 3)), label="batch")
    yield Sample((_column_major(_regular(ctx, 67, 67)), draw.values(ctx, 67, 5)), label="column-major")
    yield Sample((_regular(ctx, 5, 5), draw.values(ctx, 4, 5)), {"left": False}, label="from the right")
    yield Sample((_regular(ctx, 5, 5), draw.values(ctx, 5)), label="vector")
    yield Sample((_regular(ctx, 1, 1), draw.values(ctx, 1, 1)), label="one by one")


@draw.by_effort
def _ldl(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((_definite(ctx, 2, 7, 7),), label="batch")
    yield Sample((_definite(ctx, 31, 31) * (1 - 2 * (torch.arange(31) % 2).to(ctx.dtype)).diag().abs(),), label="diagonal")
    yield Sample((torch.tensor([[0.0, 2.0], [2.0, 0.0]], dtype=ctx.dtype),), label="two by two pivot")
    yield Sample((_definite(ctx, 1, 1),), label="one by one")


@draw.by_effort
def _ldl_solve(ctx: SampleContext) -> Iterator[Sample]:
    for sample in _ldl(ctx):
        a = sample.args[0]
        factors, pivots, _ = torch.linalg.ldl_factor_ex(a)
        yield Sample((factors, pivots, draw.values(ctx, *a.shape[:-1], 3)), label=sample.label)


def _reflectors(ctx: SampleContext, *shape: int) -> tuple[Tensor, Tensor]:
    packed, tau = torch.geqrf(draw.values(ctx, *shape))
    return packed, tau


@draw.by_effort
def _householder(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample(_reflectors(ctx, 2, 9, 5), label="tall, batch")
    yield Sample(_reflectors(ctx, 67, 67), label="square")
    packed, tau = _reflectors(ctx, 7, 5)
    yield Sample((packed, tau[:3]), label="fewer reflectors")
    yield Sample((packed[:, :0], tau[:0]), label="empty")


@draw.by_effort
def _ormqr(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((*_reflectors(ctx, 2, 9, 5), draw.values(ctx, 2, 9, 4)), label="batch")
    yield Sample((*_reflectors(ctx, 67, 7), draw.values(ctx, 67, 3), True, True), label="transposed factor")
    yield Sample((*_reflectors(ctx, 6, 6), draw.transposed(ctx, 4, 6), False), label="from the right")
    yield Sample((*_reflectors(ctx, 1, 1), draw.values(ctx, 1, 1)), label="one by one")


@draw.by_effort
def _geqrf(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 2, 9, 5),), label="tall, batch")
    yield Sample((draw.transposed(ctx, 5, 67),), label="wide, transposed")
    yield Sample((draw.values(ctx, 1, 1),), label="one by one")


@draw.by_effort
def _exp(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((draw.values(ctx, 2, 7, 7) / 8,), label="batch")
    yield Sample((draw.transposed(ctx, 31, 31) / 64,), label="transposed")
    yield Sample((draw.values(ctx, 3, 3),), label="larger norm")
    yield Sample((draw.values(ctx, 1, 1),), label="one by one")
    yield Sample((torch.zeros(4, 4, dtype=ctx.dtype),), label="zero")
    yield Sample((draw.values(ctx, 0, 3, 3),), label="empty batch")


def _eye(like: Tensor) -> Tensor:
    """Identity matrices of the shape and dtype of ``like``."""
    line = aten.arange.start_step(0, like.shape[-1], 1, dtype=torch.int64, device=like.device)
    same = aten.eq.Tensor(aten.unsqueeze.default(line, 0), aten.unsqueeze.default(line, 1))
    result: Tensor = aten.expand.default(aten._to_copy.default(same, dtype=like.dtype), list(like.shape))
    return result


def _mt(matrix: Tensor) -> Tensor:
    rank = matrix.dim()
    result: Tensor = aten.permute.default(matrix, [*range(rank - 2), rank - 1, rank - 2])
    return result


def _two_solves(factor: Tensor, b: Tensor, upper: bool) -> Tensor:
    """X with A X = B for A = L L' (or U' U) by forward and backward substitution."""
    first, second = (_mt(factor), factor) if upper else (factor, _mt(factor))
    half = aten.linalg_solve_triangular.default(first, b, upper=False)
    result: Tensor = aten.linalg_solve_triangular.default(second, half, upper=True)
    return result


def decompose_cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    return _two_solves(self, _eye(self), upper)


def decompose_cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    return _two_solves(input2, self, upper)


def decompose_inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = aten.linalg_lu_factor_ex.default(a, check_errors=check_errors)
    return aten.linalg_lu_solve.default(lu, pivots, _eye(a)), info


def decompose_solve(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    matrix = _factored(a, _SOLVE_FLIPS)
    flipped = matrix is not a
    lu, pivots, info = aten.linalg_lu_factor_ex.default(matrix, check_errors=check_errors)
    # torch.linalg.solve takes B as vectors when it is 1-d or a batch of vectors with the batch of A.
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and list(b.shape) == list(a.shape[:-1]))
    right = aten.unsqueeze.default(b, -1) if vector else b
    x = aten.linalg_lu_solve.default(lu, pivots, right, left=left, adjoint=flipped)
    return (aten.squeeze.dims(x, [-1]) if vector else x), lu, pivots, info


def _exchanges(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """1 or -1 a matrix: the sign of its row exchanges."""
    order = aten.arange.start_step(1, pivots.shape[-1] + 1, 1, dtype=torch.int64, device=pivots.device)
    moved = aten._to_copy.default(aten.ne.Tensor(pivots, order), dtype=torch.int64)
    odd = aten.bitwise_and.Tensor(
        aten.sum.dim_IntList(moved, [-1]), aten.full.default([], 1, dtype=torch.int64, device=pivots.device)
    )
    result: Tensor = aten._to_copy.default(aten.add.Tensor(aten.mul.Tensor(odd, -2), 1), dtype=dtype)
    return result


def decompose_det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = aten.linalg_lu_factor_ex.default(_factored(a, _DET_FLIPS))
    product = aten.prod.dim_int(aten.diagonal.default(lu, 0, -2, -1), -1)
    return aten.mul.Tensor(product, _exchanges(pivots, a.dtype)), lu, pivots


def decompose_slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, _ = aten.linalg_lu_factor_ex.default(_factored(a, _SLOGDET_FLIPS))
    diagonal = aten.diagonal.default(lu, 0, -2, -1)
    sign = aten.mul.Tensor(aten.prod.dim_int(aten.sign.default(diagonal), -1), _exchanges(pivots, a.dtype))
    return sign, aten.sum.dim_IntList(aten.log.default(aten.abs.default(diagonal)), [-1]), lu, pivots


def _row(
    target: Any,
    examine: Callable[..., None],
    samples: Callable[[SampleContext], Iterator[Sample]],
    summary: str,
    *,
    source: str,
    results: int = 1,
    decomposition: Callable[..., Any] | None = None,
) -> Prim:
    return Prim(
        name=target._schema.name.removeprefix("aten::"),
        target=target,
        family=Family.LINALG,
        summary=summary,
        # LAPACK has single and double precision; torch's CPU kernels follow it.
        dtypes=(torch.float32, torch.float64),
        result=Result.OPERATOR if results > 1 else Result.SAME,
        shape=Shape.OPERATOR,
        bound=Property(_checked(target, examine, results)),
        samples=samples,
        decomposition=decomposition,
        source=source,
    )


_CANDIDATES: tuple[Prim, ...] = (
    _row(
        aten.linalg_cholesky_ex.default,
        _examine_cholesky,
        _cholesky,
        "L with A = L L' (or U with A = U' U), reading one triangle; info is 0 or the order of the minor that is not definite",
        results=2,
        source=HIGHAM + "theorem 10.3",
    ),
    _row(
        aten.cholesky_inverse.default,
        _examine_cholesky_inverse,
        _cholesky_inverse,
        "inverse of L L' (or U' U)",
        decomposition=decompose_cholesky_inverse,
        source=HIGHAM + "theorem 10.4, of the columns of the identity",
    ),
    _row(
        aten.cholesky_solve.default,
        _examine_cholesky_solve,
        _cholesky_solve,
        "X with L L' X = B (or U' U X = B)",
        decomposition=decompose_cholesky_solve,
        source=HIGHAM + "theorem 10.4",
    ),
    _row(
        aten.linalg_solve_triangular.default,
        _examine_triangular,
        _triangular,
        "X with A X = B (or X A = B if not left) for triangular A; the diagonal is taken as ones if unitriangular",
        source=HIGHAM + "theorem 8.5",
    ),
    _row(
        aten.linalg_lu_factor_ex.default,
        _examine_lu,
        _lu_factor,
        "L (unit, below the diagonal) and U packed in one matrix, with row pivots counted from 1, and info",
        results=3,
        source=HIGHAM + "theorem 9.3",
    ),
    _row(
        aten.linalg_lu_solve.default,
        _examine_lu_solve,
        _lu_solve,
        "X with A X = B (or X A = B if not left; A' if adjoint) from the factors of A",
        source=HIGHAM + "theorem 9.4",
    ),
    Prim(
        name="lu_unpack",
        target=aten.lu_unpack.default,
        family=Family.LINALG,
        summary="P, L and U from packed factors and pivots, A = P L U",
        dtypes=(torch.float32, torch.float64),
        result=Result.OPERATOR,
        shape=Shape.OPERATOR,
        bound=Exact(),
        samples=with_specials(_lu_unpack, scattered, operands=(0,)),
        source=BY_DEFINITION,
    ),
    _row(
        aten.linalg_qr.default,
        _examine_qr,
        _qr,
        "Q with orthonormal columns and upper triangular R, A = Q R; mode reduced, complete or r",
        results=2,
        source=HIGHAM + "theorem 19.4",
    ),
    _row(
        aten._linalg_svd.default,
        _examine_svd,
        _svd,
        "U, S and V' with A = U diag(S) V', S descending; S alone if not compute_uv",
        results=3,
        source=GOLUB + "section 8.6",
    ),
    _row(
        aten._linalg_eigh.default,
        _examine_eigh,
        _eigh,
        "ascending eigenvalues and orthonormal eigenvectors of a symmetric matrix, of which one triangle is read",
        results=2,
        source=GOLUB + "section 8.3",
    ),
    _row(
        aten.linalg_eig.default,
        _examine_eig,
        _eig,
        "complex eigenvalues and unit eigenvectors of a square matrix",
        results=2,
        source=GOLUB + "section 7.5",
    ),
    _row(
        aten.linalg_inv_ex.default,
        _examine_inverse,
        _inverse,
        "inverse, and info (0, or where U has a zero on its diagonal)",
        results=2,
        decomposition=decompose_inverse,
        source=HIGHAM + "section 14.3",
    ),
    _row(
        aten._linalg_solve_ex.default,
        _examine_solve,
        _solve,
        "X with A X = B (or X A = B if not left), and A's factors for the backward",
        results=4,
        decomposition=decompose_solve,
        source=HIGHAM + "theorem 9.4",
    ),
    _row(
        aten._linalg_det.default,
        _examine_det,
        _determinant,
        "determinant, and the factors for the backward",
        results=3,
        decomposition=decompose_det,
        source=HIGHAM + "theorem 9.3 and section 14.6",
    ),
    _row(
        aten._linalg_slogdet.default,
        _examine_slogdet,
        _determinant,
        "sign and logarithm of the absolute value of the determinant, and the factors",
        results=4,
        decomposition=decompose_slogdet,
        source=HIGHAM + "theorem 9.3 and section 14.6; as many logarithms as rows",
    ),
    _row(
        aten.linalg_ldl_factor_ex.default,
        _examine_ldl,
        _ldl,
        "L and block diagonal D packed in one matrix with A = L D L' for symmetric A, pivots as LAPACK's sytrf, info",
        results=3,
        source=HIGHAM + "theorem 11.3",
    ),
    _row(
        aten.linalg_ldl_solve.default,
        _examine_ldl_solve,
        _ldl_solve,
        "X with A X = B from the L D L' factors of A",
        source=HIGHAM + "theorem 11.3",
    ),
    _row(
        aten.linalg_householder_product.default,
        _examine_householder,
        _householder,
        "the first columns of the product of reflectors I - tau v v'",
        source=HIGHAM + "lemma 19.3",
    ),
    _row(
        aten.ormqr.default,
        _examine_ormqr,
        _ormqr,
        "Q C (or C Q if not left; Q' if transpose) for Q a product of reflectors",
        source=HIGHAM + "lemma 19.3",
    ),
    _row(
        aten.geqrf.default,
        _examine_geqrf,
        _geqrf,
        "R and the reflectors of A = Q R packed in one matrix, and tau",
        results=2,
        source=HIGHAM + "theorem 19.4",
    ),
    _row(
        aten.linalg_matrix_exp.default,
        _examine_exp,
        _exp,
        "matrix exponential, the sum of A^k / k!",
        source="Higham, Functions of Matrices (2008), section 10.3; the condition of exp is about the norm",
    ),
)

_DERIVED_NAMES = frozenset(
    (
        "cholesky_inverse",
        "cholesky_solve",
        "linalg_inv_ex",
        "_linalg_solve_ex",
        "_linalg_det",
        "_linalg_slogdet",
    )
)
"""Exactly other prims: described like prims, but never in a graph after decomposition."""

ROWS = tuple(row for row in _CANDIDATES if row.name not in _DERIVED_NAMES)
DERIVED = tuple(row for row in _CANDIDATES if row.name in _DERIVED_NAMES)
