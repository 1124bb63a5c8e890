"""Rules for linear algebra and contractions that are no prims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten, broadcast_shapes, cast, full, number

ALGEBRA = Rules()
rule = ALGEBRA.rule

Tensor = torch.Tensor


def _mt(x: Tensor) -> Tensor:
    rank = x.dim()
    return aten.permute.default(x, [*range(rank - 2), rank - 1, rank - 2])  # type: ignore[no-any-return]


def _mh(x: Tensor) -> Tensor:
    return aten._conj_physical.default(_mt(x)) if x.dtype.is_complex else _mt(x)


@rule(aten._linalg_check_errors.default)
def check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """torch's message names the failing minor; an assertion on the device cannot, and names the function."""
    zero = number(0, info.dtype, info)
    failed = aten.any.dims(aten.ne.Tensor(info, zero), list(range(info.dim())))
    aten._assert_async.msg(aten.logical_not.default(failed), f"{api_name}: the algorithm failed on the input matrix")


@rule(aten.cholesky.default)
def cholesky(x: Tensor, upper: bool = False) -> Any:
    factor, info = aten.linalg_cholesky_ex.default(x, upper=upper, check_errors=False)
    check_errors(info, "cholesky", is_matrix=x.dim() == 2)
    return factor


@rule(aten.cholesky_solve.default)
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Any:
    """Of complex factors the other one is the conjugate transpose."""
    first, second = (_mh(factor), factor) if upper else (factor, _mh(factor))
    half = aten.linalg_solve_triangular.default(first, b, upper=False)
    return aten.linalg_solve_triangular.default(second, half, upper=True)


@rule(aten.cholesky_inverse.default)
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Any:
    one = aten.eye.default(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cholesky_solve(aten.expand.default(one, list(factor.shape)), factor, upper)


@rule(aten.linalg_lu.default)
def linalg_lu(x: Tensor, *, pivot: bool = True) -> Any:
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(x, pivot=pivot)
    return aten.lu_unpack.default(factors, pivots, True, pivot)


@rule(aten.triangular_solve.default)
def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    matrix = _mt(a) if transpose else a
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    right = aten.expand.default(b, [*batch, *b.shape[-2:]])
    matrix = aten.expand.default(matrix, [*batch, *matrix.shape[-2:]])
    solution = aten.linalg_solve_triangular.default(matrix, right, upper=upper != transpose, unitriangular=unitriangular)
    return solution, aten.clone.default(aten.expand.default(a, [*batch, *a.shape[-2:]]))


@rule(aten.linalg_polar.default)
def linalg_polar(x: Tensor) -> tuple[Tensor, Tensor]:
    left, values, right = aten._linalg_svd.default(x, False, True)
    scaled = aten.mul.Tensor(_mh(right), aten.unsqueeze.default(cast(values, x.dtype), -2))
    return aten.matmul.default(left, right), aten.matmul.default(scaled, right)


@rule(aten.linalg_matrix_sqrth.default)
def linalg_matrix_sqrth(x: Tensor) -> Any:
    values, vectors = aten._linalg_eigh.default(x)
    roots = cast(aten.sqrt.default(values), x.dtype)
    return aten.matmul.default(aten.mul.Tensor(vectors, aten.unsqueeze.default(roots, -2)), _mh(vectors))


@rule(aten.linalg_pinv.atol_rtol_tensor)
def pinv(x: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Any:
    """From the singular values (or eigenvalues), those below ``max(atol, rtol * largest)`` left out."""
    rows, columns = x.shape[-2:]
    if x.numel() == 0:
        return full(0, [*x.shape[:-2], columns, rows], x.dtype, x)
    if hermitian:
        values, left = aten._linalg_eigh.default(x)
        right = _mh(left)
    else:
        left, values, right = aten._linalg_svd.default(x, False, True)
    sizes = aten.abs.default(values)
    largest = aten.amax.default(sizes, [-1], True)
    floor = number(0, values.dtype, x) if atol is None else _vector(cast(atol, values.dtype))
    if rtol is None:
        # torch's default when only atol is given or nothing is
        relative = number(0 if atol is not None else max(rows, columns) * torch.finfo(x.dtype).eps, values.dtype, x)
        if atol is not None:
            default = number(max(rows, columns) * torch.finfo(x.dtype).eps, values.dtype, x)
            relative = aten.where.self(aten.gt.Tensor(floor, number(0, values.dtype, x)), relative, default)
    else:
        relative = _vector(cast(rtol, values.dtype))
    threshold = aten.maximum.default(floor, aten.mul.Tensor(relative, largest))
    inverse = aten.where.self(aten.gt.Tensor(sizes, threshold), aten.reciprocal.default(values), number(0, values.dtype, x))
    scaled = aten.mul.Tensor(_mh(right), aten.unsqueeze.default(inverse, -2))
    return aten.matmul.default(scaled, _mh(left))


def _vector(tolerance: Tensor) -> Tensor:
    return aten.unsqueeze.default(tolerance, -1)  # type: ignore[no-any-return]


@rule(aten._trilinear.default)
def trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The product of three tensors with size-one dimensions inserted at ``expand*``, summed over ``sumdim``."""
    for dim in expand1:
        a = aten.unsqueeze.default(a, dim)
    for dim in expand2:
        b = aten.unsqueeze.default(b, dim)
    for dim in expand3:
        c = aten.unsqueeze.default(c, dim)
    product = aten.mul.Tensor(aten.mul.Tensor(a, b), c)
    return aten.sum.dim_IntList(product, list(sumdim)) if sumdim else product
