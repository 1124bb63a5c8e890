"""Products of the steps of an unrolled recurrent network: what is known before the first is one product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import vendor_sdk
from tests.toys import register_toys
from vendor_sdk.normalize.steps import join_steps
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor


def products(function: Callable[..., Tensor], *inputs: Tensor) -> list[tuple[int, ...]]:
    """Rows, steps of the sum and columns of the products in the graph, which still computes the same."""
    graph = join_steps(vendor_sdk.trace(function, inputs))
    graph.verify()
    wanted = function(*(x.double() for x in inputs))
    torch.testing.assert_close(graph.interpret(*inputs)[0].double(), wanted.double(), rtol=1e-5, atol=1e-4)
    found: list[tuple[int, ...]] = []
    for node in graph.calls():
        if str(node.target) in ("aten.mm.default", "aten.addmm.default"):
            left, right = (arg.meta["val"] for arg in node.args[-2:])  # type: ignore[union-attr]
            found.append((left.shape[0], left.shape[1], right.shape[1]))
    return found


def _beside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    state = torch.zeros(3, 8, dtype=x.dtype)
    for step in x.unbind(1):
        state = torch.tanh(torch.addmm(b, torch.cat((step, state), -1), w))
    return state


def _apart(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    state = torch.zeros(3, 8, dtype=x.dtype)
    for place in range(x.shape[1]):
        state = torch.tanh(x[:, place] @ w + state @ u)
    return state


X, W, U, B = torch.randn(3, 5, 16), torch.randn(16, 8) / 4, torch.randn(8, 8) / 3, torch.randn(8)


def test_inputs_beside_states() -> None:
    """One product of all steps' inputs with their rows of the weight; each step has the state's left."""
    assert products(_beside, X, torch.cat((W, U)), B) == [(15, 16, 8), *[(3, 8, 8)] * 5]


def test_states_beside_inputs() -> None:
    def turned(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        state = torch.ones(3, 8, dtype=x.dtype)
        for step in x.unbind(1):
            state = torch.tanh(torch.addmm(b, torch.cat((torch.sin(state), step), -1), w))
        return state

    assert products(turned, X, torch.cat((U, W)), B) == [(15, 16, 8), *[(3, 8, 8)] * 5]


def test_inputs_with_a_weight_of_their_own() -> None:
    """The views of later steps stand behind the first product: they move up."""
    assert products(_apart, X, W, U) == [(15, 16, 8), *[(3, 8, 8)] * 5]


def test_what_stays_as_it_is() -> None:
    """Few steps; many rows; states alone; halves, whose sums would be rounded on the way."""
    assert len(products(_apart, X[:, :3], W, U)) == 6
    many = torch.randn(65, 5, 16)
    assert len(products(lambda x, w: torch.stack([step @ w for step in x.unbind(1)]), many, W)) == 5

    def chain(x: Tensor, u: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(x @ u)
        return x

    assert products(chain, torch.randn(3, 8), U) == [(3, 8, 8)] * 5
    half = vendor_sdk.trace(_beside, [t.bfloat16() for t in (X, torch.cat((W, U)), B)])
    assert sum(str(n.target) == "aten.addmm.default" for n in join_steps(half).calls()) == 5


def test_many_steps_are_some_products() -> None:
    """Of at least 512 rows and about as many each: no more results are held than one of them has."""
    x = torch.randn(40, 33, 16)

    def deep(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
        state = torch.zeros(40, 8, dtype=x.dtype)
        for step in x.unbind(1):
            state = torch.tanh(step @ w + state @ u)
        return state

    found = products(deep, x, W, U)
    assert sorted(found) == sorted([(17 * 40, 16, 8), (16 * 40, 16, 8), *[(40, 8, 8)] * 33])


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 16)
        for step in x.unbind(1):
            gate, value = self.gates(torch.cat((step, state), -1)).chunk(2, -1)
            state = torch.cat((torch.sigmoid(gate), torch.tanh(value)), -1)[:, 8:24]
        return state


def test_rows_that_vary() -> None:
    """The batch may be another at each call, without a compilation."""
    register_toys()
    model = Unrolled()
    graphs: list[CompiledGraph] = []
    with recording(graphs.append), torch.no_grad():
        compiled = torch.compile(model, backend="toyloops", fullgraph=True, dynamic=True)
        for rows in (4, 7, 100, 2):
            x = torch.randn(rows, 6, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert [graph.launches for graph in graphs] == [9]


def test_kernels_of_an_unrolled_network() -> None:
    """Of which one is the product of all inputs; in training, a step stays one product."""
    register_toys()
    model, x = Unrolled(), torch.randn(4, 6, 16)
    graphs: list[CompiledGraph] = []
    with recording(graphs.append), torch.no_grad():
        ours = torch.compile(model, backend="toyloops", fullgraph=True)(x)
    torch.testing.assert_close(ours, model(x), rtol=1e-5, atol=1e-5)
    assert [graph.launches for graph in graphs] == [9]
    assert sum(each.prim == "addmm" for each in graphs[0].placements) == 7
    with recording(graphs.append):
        torch.compile(model, backend="toyloops", fullgraph=True)(x).sum().backward()
    assert sum(each.prim == "addmm" for each in graphs[1].placements) == 6
