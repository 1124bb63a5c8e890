"""Triangular systems and the factorizations that lead to them: cpp_cpu's kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vendor_sdk
from reference_backends.cpp_cpu.solvers import KERNELS, LIBRARIES
from reference_backends.cpp_cpu.written import Written
from tests.destinations import filled
from tests.threads import by_threads
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Sample

Tensor = torch.Tensor
DTYPES = (torch.float32, torch.float64)
# Of one element, of a vector's lanes and one more, of a whole number of tiles and not, beyond a block of a tile's sums.
ORDERS = (1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 67, 130, 300)


def called(name: str, *args: Tensor, **options: Any) -> Any:
    return filled(KERNELS[name], OPSET[name].target, *args, **options)


def require(name: str, *args: Tensor, **options: Any) -> Any:
    """What a kernel gives, which must meet the prim's bound."""
    found = called(name, *args, **options)
    row, sample = OPSET[name], Sample(args, options)
    verdict = violations(row.bound, row, sample, found, reference(row, sample))
    assert verdict.ok, f"{name} {[tuple(a.shape) for a in args]} {options}: {verdict.message}"
    return found


def laid(x: Tensor, order: str) -> Tensor:
    """``x`` with other strides."""
    if order == "columns":
        return x.mT.contiguous().mT
    if order == "gaps":
        wide = torch.full((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), torch.nan, dtype=x.dtype)
        wide[..., ::2, ::3] = x
        return wide[..., ::2, ::3]
    return x.contiguous()


LAID = ("rows", "columns", "gaps")


def triangle(*shape: int, upper: bool, unit: bool, dtype: torch.dtype) -> Tensor:
    """Well-conditioned; what is not to be read is NaN."""
    n = shape[-1]
    a = torch.randn(shape, dtype=dtype) / max(n, 1) ** (1 if unit else 0.5)
    a.diagonal(dim1=-2, dim2=-1).add_(2)
    kept = torch.ones(n, n).triu(int(unit)) if upper else torch.ones(n, n).tril(-int(unit))
    return torch.where(kept > 0, a, torch.nan)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", ORDERS)
def test_triangular_systems(n: int, dtype: torch.dtype) -> None:
    """Either triangle, from either side, any strides; few right-hand sides, solved as vectors, and strips of many."""
    torch.manual_seed(0)
    for m, upper, left, unit in itertools.product((1, 2, 5, 16, 70), (False, True), (False, True), (False, True)):
        batch = (2, 3) if n < 20 else ()
        a = triangle(*batch, n, n, upper=upper, unit=unit, dtype=dtype)
        b = torch.randn(*batch, *((n, m) if left else (m, n)), dtype=dtype)
        exact = torch.where(a.isnan(), 0, a).double()
        if unit:
            exact.diagonal(dim1=-2, dim2=-1).fill_(1)
        for one, other in (("rows", "rows"), ("columns", "columns"), ("gaps", "rows")):
            options = {"upper": upper, "left": left, "unitriangular": unit}
            x = called("linalg_solve_triangular", laid(a, one), laid(b, other), **options).double()
            residual = (exact @ x if left else x @ exact) - b
            # As the prim's bound, with what must not be read left out of it.
            sizes = [v.abs().sum(-1, keepdim=True).amax(-2, keepdim=True) for v in (exact, x)]
            assert bool((residual.abs() <= 16 * n * torch.finfo(dtype).eps / 2 * sizes[0] * sizes[1]).all())


def test_batches_of_triangular_systems_are_broadcast() -> None:
    a, b = triangle(3, 1, 9, 9, upper=False, unit=False, dtype=torch.float32).tril(), torch.randn(4, 9, 20)
    found = called("linalg_solve_triangular", a, b, upper=False)
    torch.testing.assert_close(found, torch.linalg.solve_triangular(a, b.expand(3, 4, 9, 20), upper=False))


@pytest.mark.parametrize("m", [1, 20])
@pytest.mark.parametrize("upper", [False, True])
def test_singular_triangles_give_what_torch_gives(upper: bool, m: int) -> None:
    torch.manual_seed(0)
    for n in (4, 20):
        full, diagonal = torch.randn(n, n) + 3 * torch.eye(n), torch.diag(torch.arange(1.0, n + 1))
        b, missing = torch.randn(n, m), torch.randn(n, m)
        missing[1, 0] = torch.nan
        for a, right in ((full, b), (diagonal, b), (full, missing), (full * 1e-39, b * 1e-39)):
            a = a.triu() if upper else a.tril()
            if right is b:
                a[2, 2] = 0
            expected = torch.linalg.solve_triangular(a, right, upper=upper)
            found = called("linalg_solve_triangular", a, right, upper=upper)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_nothing_to_solve() -> None:
    for a, b in (((0, 0), (0, 3)), ((3, 3), (3, 0)), ((0, 3, 3), (0, 3, 2))):
        assert called("linalg_solve_triangular", torch.ones(a), torch.ones(b), upper=False).shape == torch.Size(b)
    assert called("linalg_cholesky_ex", torch.ones(2, 0, 0))[1].tolist() == [0, 0]
    for shape in ((2, 0, 0), (2, 3, 0), (2, 0, 3)):
        assert called("linalg_lu_factor_ex", torch.ones(shape))[2].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", ORDERS)
def test_cholesky_factors(n: int, dtype: torch.dtype) -> None:
    """One triangle is read; the other one of the factor is zero."""
    torch.manual_seed(0)
    a = torch.randn(*((3,) if n < 70 else ()), n, n, dtype=dtype)
    a = a @ a.mT / n + torch.eye(n, dtype=dtype)
    for order, upper in itertools.product(LAID, (False, True)):
        factor, _ = require("linalg_cholesky_ex", laid(a, order), upper=upper)
        half = torch.where((torch.ones(n, n).triu() if upper else torch.ones(n, n).tril()) > 0, a, torch.nan)
        assert torch.equal(called("linalg_cholesky_ex", laid(half, order), upper=upper)[0], factor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("m", "n"), [*((n, n) for n in ORDERS), (1, 5), (5, 1), (16, 40), (40, 16), (17, 100), (100, 17), (33, 200), (257, 130)]
)
def test_lu_factors_and_their_systems(m: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a = torch.randn(*((3,) if m < 70 else ()), m, n, dtype=dtype)
    for order in LAID:
        lu, pivots, info = require("linalg_lu_factor_ex", laid(a, order))
        expected = torch.ops.aten.linalg_lu_factor_ex.default(a)
        if dtype == torch.float64:  # the same rows are exchanged, whoever rounds in which order
            torch.testing.assert_close((lu, pivots, info), tuple(expected))
    if m == n:
        for right, left, adjoint in itertools.product((1, 3, 70), (False, True), (False, True)):
            b = torch.randn(*a.shape[:-2], *((n, right) if left else (right, n)), dtype=dtype)
            for order in LAID:
                require("linalg_lu_solve", laid(lu, order), pivots, laid(b, order), left=left, adjoint=adjoint)


def test_the_position_of_what_has_no_factors() -> None:
    for matrix in (torch.zeros(5, 5), torch.full((5, 5), torch.nan), torch.ones(20, 20), torch.zeros(3, 7), torch.zeros(7, 3)):
        found, expected = called("linalg_lu_factor_ex", matrix), torch.ops.aten.linalg_lu_factor_ex.default(matrix)
        torch.testing.assert_close(found, tuple(expected), equal_nan=True)
    for diagonal in ([0.0] * 5, [torch.nan] * 5, [1.0] * 25 + [-1.0] + [1.0] * 20):
        matrix = torch.diag(torch.tensor(diagonal))
        assert torch.equal(called("linalg_cholesky_ex", matrix)[1], torch.linalg.cholesky_ex(matrix).info)


def test_failed_factorizations_raise_when_asked_to() -> None:
    for name, matrix in (("linalg_cholesky_ex", -torch.eye(3)), ("linalg_lu_factor_ex", torch.zeros(3, 3))):
        results = called(name, matrix)
        assert int(results[-1]) == 1
        with pytest.raises(RuntimeError, match="position 1"):
            KERNELS[name].call(*results, matrix, check_errors=True)


def test_pivots_that_name_no_row_are_refused() -> None:
    for wrong in ([1, 3], [0, 1], [-1, 2]):
        with pytest.raises(RuntimeError, match="pivots"):
            called("linalg_lu_solve", torch.eye(2), torch.tensor(wrong, dtype=torch.int32), torch.ones(2, 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        lambda a, b: torch.linalg.solve_triangular(a.mT, b, upper=True, left=False),
        lambda a, b: torch.linalg.cholesky_ex(a @ a.mT + b @ b.mT)[0],
        lambda a, b: torch.linalg.solve(a, b),
        lambda a, b: torch.linalg.lu_factor_ex(a)[0] @ b,
    ],
)
def test_threads_change_nothing(function: Callable[..., Tensor]) -> None:
    """One matrix by all threads, and many small ones, each by one."""
    for shape in ((300, 300), (16, 24, 24)):
        torch.manual_seed(0)
        a, b = torch.randn(shape) + 8 * torch.eye(shape[-1]), torch.randn(shape)
        results = by_threads(lambda a=a, b=b: torch.compile(function, backend="cpp_cpu")(a, b))  # type: ignore[misc]
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_those_of_torch(dynamic: bool) -> None:
    def solved(a: Tensor, b: Tensor) -> Tensor:
        lower = torch.linalg.cholesky_ex(a @ a.mT)[0]
        x = torch.linalg.solve_triangular(lower.mT, torch.linalg.solve_triangular(lower, b, upper=False), upper=True)
        return x.sin() + torch.linalg.solve_ex(a, b, left=True)[0] + torch.linalg.inv_ex(a)[0] @ b

    compiled = torch.compile(solved, backend="cpp_cpu", fullgraph=True, dynamic=dynamic)
    for n in (5, 24):
        torch.manual_seed(0)
        given = [(torch.randn(2, n, m, dtype=torch.float64) + 4 * torch.eye(n, m)).requires_grad_() for m in (n, 3)]
        results = []
        for function in (solved, compiled):
            out = function(*given)
            results.append((out, *torch.autograd.grad(out.cos().sum(), given)))
        torch.testing.assert_close(results[1], results[0])


def test_transposes_are_read_where_they_lie() -> None:
    """No kernel copies an operand, whatever view it is."""

    def transposed(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(a.mT, b.unsqueeze(0).expand(3, -1, -1).mT, upper=True)

    given = torch.randn(3, 5, 5) + 4 * torch.eye(5), torch.randn(4, 5)
    (graph,) = vendor_sdk.explain(transposed, *given, backend="cpp_cpu", show=False).graphs
    # What is returned lies as torch lays it: one copy of the result.
    assert [kernel.name for kernel in graph.kernels.kernels] == ["linalg_solve_triangular", "k0_clone"]
    torch.testing.assert_close(torch.compile(transposed, backend="cpp_cpu")(*given), transposed(*given))


def test_libraries_compile_before_their_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Written] = []
    monkeypatch.setattr(Written, "start", lambda self: begun.append(self))
    graph = vendor_sdk.trace(lambda x: torch.linalg.cholesky_ex(x)[0], (torch.rand(4, 4),))
    vendor_sdk.compile_graph(graph, backend="cpp_cpu")
    assert begun
    assert all(each is LIBRARIES[torch.float32] for each in begun)
