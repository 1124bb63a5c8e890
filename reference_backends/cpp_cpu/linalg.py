"""Dense linear algebra kernels: what ``linalg.cpp`` computes, called with torch's arguments (``solvers.py`` has the rest).

Each takes float32 or float64 matrices, the exponential those of halves, too, with any batch dimensions in front, and returns
contiguous results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.cpp_cpu import compiler
from reference_backends.cpp_cpu.written import Written
from vendor_sdk import HALVES

Tensor = torch.Tensor


LIBRARY = Written("base.h", "linalg.cpp")


def _call(name: str, first: Tensor, *rest: Tensor | int | None) -> None:
    compiler.call(LIBRARY(), name, first.dtype, first, *rest)


def _batch(a: Tensor) -> int:
    return math.prod(a.shape[:-2])


def _copied(x: Tensor, batch: torch.Size) -> Tensor:
    """``x`` with its batch dimensions broadcast, in memory of its own."""
    return x.expand(*batch, *x.shape[-2:]).clone(memory_format=torch.contiguous_format)


def _broadcast(*shapes: torch.Size) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-any-return, no-untyped-call]


def _checked(name: str, info: Tensor, check_errors: bool, what: str) -> None:
    if check_errors and bool(info.any()):
        first = int(info.flatten()[info.flatten().nonzero()[0, 0]])
        raise torch.linalg.LinAlgError(f"{name}: {what} (the first at position {first})")  # type: ignore[attr-defined]


def _pivots(pivots: Tensor, batch: torch.Size, rows: int) -> Tensor:
    """LAPACK's pivots, contiguous; refused where they name no row, since the C++ follows them blindly."""
    pivots = pivots.expand(*batch, pivots.shape[-1]).to(torch.int32).contiguous()
    if pivots.numel() and (int(pivots.abs().min()) < 1 or int(pivots.abs().max()) > rows):
        raise RuntimeError("pivots must be between 1 and the number of rows")
    return pivots


def _lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    lu = lu.contiguous()
    batch, (m, n) = lu.shape[:-2], lu.shape[-2:]
    rank = min(m, n)

    def result(wanted: bool, rows: int, columns: int) -> Tensor:
        return torch.empty((*batch, rows, columns) if wanted else (0,), dtype=lu.dtype)

    p, lower, upper = result(unpack_pivots, m, m), result(unpack_data, m, rank), result(unpack_data, rank, n)
    order = _pivots(pivots, batch, m)
    wanted = (p if unpack_pivots else None, *((lower, upper) if unpack_data else (None, None)))
    _call("lu_unpack", lu, order, *wanted, _batch(lu), m, n)
    return p, lower, upper


def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    a = a.contiguous()
    packed, tau = torch.empty_like(a), torch.empty((*a.shape[:-2], min(a.shape[-2:])), dtype=a.dtype)
    _call("geqrf", a, packed, tau, _batch(a), *a.shape[-2:])
    return packed, tau


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"qr: mode '{mode}' is none of 'reduced', 'complete' and 'r'")
    a = a.contiguous()
    m, n = a.shape[-2:]
    columns = m if mode == "complete" else min(m, n)
    q = torch.empty((0,) if mode == "r" else (*a.shape[:-2], m, columns), dtype=a.dtype)
    r = torch.empty((*a.shape[:-2], columns, n), dtype=a.dtype)
    _call("qr", a, None if mode == "r" else q, r, _batch(a), m, n, columns, columns)
    return q, r


def _householder_product(a: Tensor, tau: Tensor) -> Tensor:
    a, tau = a.contiguous(), tau.contiguous()
    out = torch.empty_like(a)
    _call("householder", a, tau, out, _batch(a), *a.shape[-2:], tau.shape[-1])
    return out


def _ormqr(a: Tensor, tau: Tensor, c: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    a, tau, out = a.contiguous(), tau.contiguous(), c.clone(memory_format=torch.contiguous_format)
    _call("ormqr", a, tau, out, _batch(a), a.shape[-1], tau.shape[-1], *c.shape[-2:], int(left), int(transpose))
    return out


def _ldl_factor(a: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    a = a.contiguous()
    factors, pivots = torch.empty_like(a), torch.empty(a.shape[:-1], dtype=torch.int32)
    info = torch.empty(a.shape[:-2], dtype=torch.int32)
    _call("ldl_factor", a, factors, pivots, info, _batch(a), a.shape[-1])
    _checked("linalg.ldl_factor", info, check_errors, "D has a singular block")
    return factors, pivots, info


def _ldl_solve(factors: Tensor, pivots: Tensor, b: Tensor, *, hermitian: bool = False) -> Tensor:
    batch = _broadcast(factors.shape[:-2], b.shape[:-2])
    factors, x = factors.expand(*batch, *factors.shape[-2:]).contiguous(), _copied(b, batch)
    order = _pivots(pivots, batch, factors.shape[-1])
    _call("ldl_solve", factors, order, x, math.prod(batch), *x.shape[-2:])
    return x


def _matrix_exp(a: Tensor) -> Tensor:
    wide = (a.float() if a.dtype in HALVES else a).contiguous()  # the one of these that torch has of halves, too
    out = torch.empty_like(wide)
    _call("matrix_exp", wide, out, _batch(a), a.shape[-1])
    return out.to(a.dtype)


KERNELS: Mapping[str, Callable[..., Any]] = {
    "lu_unpack": _lu_unpack,
    "geqrf": _geqrf,
    "linalg_qr": _qr,
    "linalg_householder_product": _householder_product,
    "ormqr": _ormqr,
    "linalg_ldl_factor_ex": _ldl_factor,
    "linalg_ldl_solve": _ldl_solve,
    "linalg_matrix_exp": _matrix_exp,
}
"""Prim to kernel."""
