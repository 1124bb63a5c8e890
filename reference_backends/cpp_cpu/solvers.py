"""Triangular systems, and factors that lead to them: what ``solvers.cpp`` computes, as launches.

Each takes float32 or float64 matrices with any batch dimensions in front and any strides, so that transposes, broadcast batches
and systems from the right are read and written where they lie.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_backends.cpp_cpu import products
from reference_backends.cpp_cpu.program import CompiledFunction, native_kernel
from reference_backends.cpp_cpu.table import CTYPES
from reference_backends.cpp_cpu.written import Written
from vendor_sdk import Kernel, NativeCall, Operand

Tensor = torch.Tensor

_FILES = ("base.h", "products.h", "gemm.h", "strips.h", "factors.h", "solvers.cpp")
LIBRARIES: Mapping[torch.dtype, Written] = {
    dtype: Written(*_FILES, TYPE=CTYPES[dtype], NAME=str(dtype).removeprefix("torch.")).calling((products.TILES, CTYPES[dtype]))
    for dtype in (torch.float32, torch.float64)
}
"""What the kernels call, by the matrices' dtype."""


@functools.cache
def _function(name: str, dtype: torch.dtype) -> CompiledFunction:
    return CompiledFunction(LIBRARIES[dtype], f"{name}_{str(dtype).removeprefix('torch.')}")


_Numbers = tuple[Any, ...]


def _sizes(batch: Sequence[Any]) -> _Numbers:
    return (len(batch), *batch)


def _matrices(operand: Operand, batch: Sequence[Any], *, turned: bool = False) -> _Numbers:
    """Where the matrices of a batch lie in an operand whose own batch is broadcast to it."""
    return (*_spread(operand, batch, 2), *operand.strides[-2:][:: -1 if turned else 1], operand.offset)


def _spread(operand: Operand, batch: Sequence[Any], rest: int) -> _Numbers:
    """Strides of the batch's dimensions, of an operand with so many others."""
    own = list(zip(operand.shape, operand.strides, strict=True))[: len(operand.shape) - rest]
    return (*(0,) * (len(batch) - len(own)), *(0 if size == 1 else stride for size, stride in own))


def _cholesky(factor: Operand, info: Operand, a: Operand, *, upper: bool = False) -> NativeCall:
    # The upper factor is the lower one's transpose, from the upper triangle.
    batch = a.shape[:-2]
    where = (*_matrices(a, batch, turned=upper), *_matrices(factor, batch, turned=upper))
    return NativeCall(_function("cholesky", a.dtype), (a,), (*_sizes(batch), a.shape[-1], *where))


def _lu_factor(lu: Operand, pivots: Operand, info: Operand, a: Operand) -> NativeCall:
    batch = a.shape[:-2]
    return NativeCall(_function("lu_factor", a.dtype), (a,), (*_sizes(batch), *a.shape[-2:], *_matrices(a, batch)))


def _solve_triangular(
    x: Operand, a: Operand, b: Operand, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> NativeCall:
    # x a = b is the transposed system.
    batch, turned = x.shape[:-2], not left
    where = tuple(number for each in (a, b, x) for number in _matrices(each, batch, turned=turned))
    numbers = (*_sizes(batch), *x.shape[-2:][:: -1 if turned else 1], int(upper != turned), int(unitriangular), *where)
    return NativeCall(_function("solve_triangular", a.dtype), (a, b), numbers)


def _lu_solve(x: Operand, lu: Operand, pivots: Operand, b: Operand, *, left: bool = True, adjoint: bool = False) -> NativeCall:
    batch, turned = x.shape[:-2], not left
    order = (*_spread(pivots, batch, 1), 0, pivots.strides[-1], pivots.offset)
    where = (*_matrices(lu, batch), *order, *_matrices(b, batch, turned=turned), *_matrices(x, batch, turned=turned))
    numbers = (*_sizes(batch), *x.shape[-2:][:: -1 if turned else 1], int(adjoint != turned), *where)
    return NativeCall(_function("lu_solve", lu.dtype), (lu, pivots, b), numbers)


def _factorization(native: Callable[..., NativeCall], name: str, what: str) -> Kernel:
    """A kernel whose last result says what is wrong; it is looked at where that is asked for, which launches don't do."""
    unchecked = native_kernel(native)

    def call(*tensors: Tensor, check_errors: bool = False, **options: Any) -> None:
        unchecked.call(*tensors, **options)
        (*_, info, _) = tensors
        if check_errors and bool(info.any()):
            first = int(info.flatten()[info.flatten().nonzero()[0, 0]])
            raise torch.linalg.LinAlgError(f"{name}: {what} (the first at position {first})")  # type: ignore[attr-defined]

    def launch(*operands: Operand, check_errors: bool = False, **options: Any) -> NativeCall | None:
        return None if check_errors else native(*operands, **options)

    return Kernel(call, destination=True, native=launch)


def _pivoted(lu: Operand, pivots: Operand, info: Operand, a: Operand, *, pivot: bool = True) -> NativeCall:
    if not pivot:
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on the CPU")
    return _lu_factor(lu, pivots, info, a)


KERNELS: Mapping[str, Kernel] = {
    "linalg_cholesky_ex": _factorization(_cholesky, "linalg.cholesky", "a leading minor is not positive-definite"),
    "linalg_solve_triangular": native_kernel(_solve_triangular),
    "linalg_lu_factor_ex": _factorization(_pivoted, "linalg.lu_factor", "U has a zero on its diagonal"),
    "linalg_lu_solve": native_kernel(_lu_solve),
}
"""Prim to kernel."""
