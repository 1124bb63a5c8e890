"""Linear algebra in torch, for ``in_torch``: factorizations column by column, computed in float64.

Each column is a few nodes of the graph, so that orders are limited; the SDK's host runs larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

Tensor = torch.Tensor
_MOST_COLUMNS = 32


def _limited(count: int) -> range:
    if count > _MOST_COLUMNS:
        raise NotImplementedError(f"factorizations of more than {_MOST_COLUMNS} columns would make too large a graph")
    return range(count)


def _column(a: Tensor, j: int) -> Tensor:
    return a[..., :, j : j + 1]


def _row(a: Tensor, j: int) -> Tensor:
    return a[..., j : j + 1, :]


def _rows(a: Tensor) -> Tensor:
    return torch.arange(a.shape[-2]).unsqueeze(1)


def _columns(a: Tensor) -> Tensor:
    return torch.arange(a.shape[-1])


def _cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    rest = (a.mT if upper else a).double()
    info = torch.zeros(a.shape[:-2], dtype=torch.int32)
    found = []
    for j in _limited(a.shape[-1]):
        pivot = rest[..., j, j]
        info = torch.where((info == 0) & ~(pivot > 0), j + 1, info)
        column = torch.where(_rows(rest) >= j, _column(rest, j) / pivot.sqrt()[..., None, None], 0.0)
        found.append(column)
        rest = rest - column * column.mT
    factor = torch.cat(found, -1) if found else torch.zeros_like(rest)
    return (factor.mT if upper else factor).to(a.dtype), info.to(torch.int32)


def _substituted(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """The solution of a triangular system, in float64."""
    n = a.shape[-1]
    found: list[Any] = [None] * n
    for j in reversed(_limited(n)) if upper else _limited(n):
        row = _row(b, j)
        found[j] = row if unit else row / a[..., j : j + 1, j : j + 1]
        b = b - _column(a, j) * found[j]
    return torch.cat(torch.broadcast_tensors(*found), -2) if found else b  # type: ignore[no-untyped-call]


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    if left:
        return _substituted(a.double(), b.double(), upper, unitriangular).to(b.dtype)
    return _substituted(a.mT.double(), b.mT.double(), not upper, unitriangular).mT.to(b.dtype)


def _exchanged(order: Tensor, j: int, other: Tensor) -> Tensor:
    """Places j and ``other`` of ``order`` exchanged; ``other`` has one place for each batch."""
    place = torch.arange(order.shape[-1])
    source = torch.where(place == j, other, torch.where(place == other, j, place))
    return torch.gather(order, -1, source)


def _lu_factor(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    if not pivot:
        raise NotImplementedError("an LU factorization without pivots")
    rest = a.double()
    rows, columns = _rows(a), _columns(a)
    info = torch.zeros(a.shape[:-2], dtype=torch.int32)
    pivots = []
    for j in _limited(min(a.shape[-2:])):
        size = torch.where(rows >= j, _column(rest, j).abs(), -1.0)
        place = torch.argmax(size.squeeze(-1), -1, True)
        pivots.append(place + 1)
        order = _exchanged(rows.squeeze(1).expand(*a.shape[:-1]), j, place)
        rest = torch.gather(rest, -2, order.unsqueeze(-1).expand(rest.shape))
        head = rest[..., j : j + 1, j : j + 1]
        info = torch.where((info == 0) & (head[..., 0, 0] == 0), j + 1, info)
        factor = torch.where(rows > j, _column(rest, j) / torch.where(head == 0, 1.0, head), 0.0)
        rest = rest - factor * torch.where(columns > j, _row(rest, j), 0.0)
        rest = torch.where((rows > j) & (columns == j), factor, rest)
    exchanges = torch.cat(pivots, -1) if pivots else torch.zeros([*a.shape[:-2], 0])
    return rest.to(a.dtype), exchanges.to(torch.int32), info.to(torch.int32)


def _order(pivots: Tensor, count: int) -> Tensor:
    """Which row of the matrix stands in each place after the exchanges."""
    order = torch.arange(count).expand(*pivots.shape[:-1], count)
    for j in _limited(pivots.shape[-1]):
        order = _exchanged(order, j, pivots[..., j : j + 1].to(torch.int64) - 1)
    return order


def _lu_unpack(lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Tensor, ...]:
    count = min(lu.shape[-2:])
    rows = _rows(lu)
    exchange = (rows == _order(pivots, lu.shape[-2]).unsqueeze(-2)).to(lu.dtype)
    lower = lu[..., :, :count].tril(-1) + (rows == torch.arange(count)).to(lu.dtype)
    return exchange, lower, lu[..., :count, :].triu()


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
    factors, right = lu.double(), b.double()
    exchange = (_rows(lu) == _order(pivots, lu.shape[-2]).unsqueeze(-2)).double()
    if adjoint:
        middle = _substituted(factors.mT, right, upper=False, unit=False)
        return (exchange @ _substituted(factors.mT, middle, upper=True, unit=True)).to(b.dtype)
    middle = _substituted(factors, exchange.mT @ right, upper=False, unit=True)
    return _substituted(factors, middle, upper=True, unit=False).to(b.dtype)


# Householder reflections


def _reflector(a: Tensor, j: int) -> Tensor:
    rows = _rows(a)
    return torch.where(rows < j, 0.0, torch.where(rows == j, 1.0, _column(a, j)))


def _reflected(a: Tensor, tau: Tensor, value: Tensor, order: Iterable[int]) -> Tensor:
    for j in order:
        vector = _reflector(a, j)
        value = value - tau[..., j : j + 1].unsqueeze(-1) * vector * (vector.mT @ value)
    return value


def _product(a: Tensor, tau: Tensor, width: int) -> Tensor:
    eye = (_rows(a) == torch.arange(width)).double().expand(*a.shape[:-1], width)
    return _reflected(a, tau, eye, reversed(_limited(tau.shape[-1])))


def _householder_product(a: Tensor, tau: Tensor) -> Tensor:
    return _product(a.double(), tau.double(), a.shape[-1]).to(a.dtype)


def _ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if not left:
        return _ormqr(a, tau, other.mT, True, not transpose).mT
    steps = _limited(tau.shape[-1])
    order = steps if transpose else reversed(steps)
    return _reflected(a.double(), tau.double(), other.double(), order).to(other.dtype)


def _packed(a: Tensor) -> tuple[Tensor, Tensor]:
    """Reflectors below the diagonal with R above it, and their factors, in float64."""
    rest, rows = a.double(), _rows(a)
    count = min(a.shape[-2:])
    columns, factors = [], []
    for j in _limited(count):
        below = torch.where(rows > j, _column(rest, j), 0.0)
        head = rest[..., j : j + 1, j : j + 1]
        tail = (below * below).sum(-2, True)
        norm = torch.sqrt(head * head + tail)
        beta = torch.where(tail == 0, head, torch.where(head > 0, -norm, norm))
        tau = torch.where(tail == 0, 0.0, (beta - head) / torch.where(beta == 0, 1.0, beta))
        vector = below / torch.where(tail == 0, 1.0, head - beta)
        whole = torch.where(rows == j, 1.0, vector)
        rest = rest - tau * whole * (whole.mT @ rest)
        columns.append(torch.where(rows > j, vector, _column(rest, j)))
        factors.append(tau.squeeze(-1))
    if not columns:
        return rest, torch.zeros([*a.shape[:-2], 0], dtype=torch.float64)
    return torch.cat([*columns, rest[..., :, count:]], -1), torch.cat(factors, -1)


def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    packed, tau = _packed(a)
    return packed.to(a.dtype), tau.to(a.dtype)


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    packed, tau = _packed(a)
    count = min(a.shape[-2:])
    upper = packed.triu() if mode == "complete" else packed.triu()[..., :count, :]
    q = _product(packed, tau, a.shape[-2] if mode == "complete" else count)
    return q.to(a.dtype), upper.to(a.dtype)


_DEGREE = 18
_MOST_SQUARINGS = 24


def _matrix_exp(a: Tensor) -> Tensor:
    """Taylor's polynomial of a / 2**k, which is at most 1 in its largest row sum, squared k times.

    Raises:
        NotImplementedError: for float64, of which squaring loses digits.
    """
    if a.dtype == torch.float64:
        raise NotImplementedError("a matrix exponential to the last digits of float64")
    value = a.double()
    size = value.abs().sum(-1, True).amax(-2, True)
    halvings = torch.ceil(torch.log2(size.clamp(min=1.0))).clamp(max=float(_MOST_SQUARINGS))
    scaled = value * torch.exp2(-halvings)
    eye = (_rows(a) == _columns(a)).double()
    result = eye.expand(value.shape)
    for k in range(_DEGREE, 0, -1):
        result = eye + scaled @ result / k
    for k in range(_MOST_SQUARINGS):
        result = torch.where(halvings > k, result @ result, result)
    return result.to(a.dtype)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "linalg_cholesky_ex": _cholesky,
    "linalg_solve_triangular": _solve_triangular,
    "linalg_lu_factor_ex": _lu_factor,
    "linalg_lu_solve": _lu_solve,
    "lu_unpack": _lu_unpack,
    "linalg_householder_product": _householder_product,
    "ormqr": _ormqr,
    "geqrf": _geqrf,
    "linalg_qr": _qr,
    "linalg_matrix_exp": _matrix_exp,
}
"""Prim to what it means, in torch."""
