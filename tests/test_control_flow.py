"""Branches and loops that the host decides: their graphs are compiled as others are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

import vendor_sdk
from tests.toys import use_kind
from vendor_sdk.contract.loader import LoadedBackend
from vendor_sdk.contract.placement import Kind
from vendor_sdk.pipeline import recording

Function = Callable[..., Any]


@pytest.fixture(params=["toyloops", "cpp_cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return use_kind(request.param)


def branches(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    return torch.cond(
        z.sum() > 0, lambda z, y: ((z + y).exp() * y, z.sigmoid()), lambda z, y: (z - y, torch.tanh(z) + 1), (z, y)
    )


def turns(x: Tensor, times: Tensor) -> Any:
    def turn(count: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return count - 1, (x * 1.5 + 1).softmax(0)

    count, value = while_loop(lambda count, x: count > 0, turn, (times, x))  # type: ignore[no-untyped-call]
    return count, value - 1


def nested(x: Tensor, y: Tensor) -> Any:
    def inner(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = torch.cond(y.sum() > 0, lambda x, y: (x + y).sin(), lambda x, y: (x - y).cos(), (x, y))
        return result * 2

    return torch.cond(x.sum() > 0, inner, lambda x, y: x.exp() * y, (x, y))


def compared(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [branches, nested])
def test_either_branch_is_taken_and_compiled(function: Function, dynamic: bool, backend: str) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    graphs: list[Any] = []
    with recording(graphs.append):
        for rows in (5, 8) if dynamic else (5,):
            for sign, other in ((1, 1), (-1, 1), (1, -1)):
                x, y = torch.rand(rows, 3) * sign, torch.rand(rows, 3) * other
                compared(compiled(x, y), function(x, y))
    assert len(graphs) == (3 if function is branches else 5)
    bodies = [graph for graph in graphs if all(each.prim != "cond" for each in graph.placements)]
    assert {len(graph.loops) for graph in bodies} == {1}
    for graph in graphs:
        assert {each.prim for each in graph.placements if each.placement.kind is Kind.HOST} <= {"cond"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_loops_turn_as_often_as_data_says(dynamic: bool, backend: str) -> None:
    compiled = torch.compile(turns, backend=backend, dynamic=dynamic)
    for rows in (5, 7) if dynamic else (5,):
        for times in (3, 0, 1, 20):
            x = torch.randn(rows)
            before = x.clone()
            count, value = compiled(x, torch.tensor(times))
            compared((count, value), turns(x, torch.tensor(times)))
            compared(x, before)


def test_what_is_carried_through_no_turn_is_a_copy(backend: str) -> None:
    def f(x: Tensor, times: Tensor) -> Any:
        return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2), (times, x))  # type: ignore[no-untyped-call]

    x = torch.randn(4)
    _, value = torch.compile(f, backend=backend)(x, torch.tensor(0))
    kept = x.clone()
    value.zero_()
    compared(x, kept)


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_branches(sign: int, backend: str) -> None:
    compiled = torch.compile(branches, backend=backend)
    x, y = (torch.rand(6, 2, requires_grad=True) for _ in range(2))
    given = [torch.randn(6, 2) for _ in range(2)]
    found, wanted = (torch.autograd.grad(f(x * sign, y), (x, y), given) for f in (compiled, branches))
    compared(found, wanted)


def test_branches_draw_numbers_of_torchs_generator(backend: str) -> None:
    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.rand_like(x) + x, lambda x: x * 2, (x,))

    compiled = torch.compile(f, backend=backend)
    x = torch.rand(50)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)


def test_strided_parts_in_a_branch(backend: str) -> None:
    def part(x: Tensor) -> Tensor:
        return torch.layer_norm(x.t(), (3,)).as_strided((2, 3), (1, 2)).contiguous()

    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, part, lambda x: x[:2, :3] * 2, (x,))

    compiled = torch.compile(f, backend=backend)
    for x in (torch.rand(3, 4), -torch.rand(3, 4)):
        compared(compiled(x), f(x))


def test_the_check_of_stages_and_dumps_see_branches(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    monkeypatch.setenv("VENDOR_SDK_DEBUG_CHECK", "1")
    compiled = torch.compile(branches, backend=backend)
    for sign in (1, -1):
        x, y = torch.rand(5, 3) * sign, torch.rand(5, 3)
        compared(compiled(x, y), branches(x, y))
    assert len(list(tmp_path.iterdir())) == 3


def test_explain_counts_the_kernels_of_branches(backend: str) -> None:
    found = vendor_sdk.explain(branches, torch.rand(5, 3), torch.rand(5, 3), backend=backend, show=False)
    assert len(found.graphs) == 3


def test_a_vendors_own_function_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    def mine(pred: Tensor, true_fn: Function, false_fn: Function, operands: list[Tensor]) -> Any:
        taken.append(bool(pred))
        return (true_fn if pred else false_fn)(*operands)

    monkeypatch.setattr(LoadedBackend, "host_fallback", lambda self, prim: mine if prim == "cond" else None)
    compiled = torch.compile(branches, backend=use_kind("toyloops"))
    graphs: list[Any] = []
    with recording(graphs.append):
        for sign in (1, -1):
            x, y = torch.rand(5, 3) * sign, torch.rand(5, 3)
            compared(compiled(x, y), branches(x, y))
    assert taken == [True, False]
    assert len(graphs) == 1
