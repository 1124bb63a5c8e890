"""Sums of matrix products become one product of the factors side by side, where that moves fewer bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import vendor_sdk
from tests.toys import register_toys
from vendor_sdk.normalize.products import join_products
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
mm, t = torch.mm, torch.t


def joined(function: Callable[..., Tensor], *inputs: Tensor) -> dict[str, int]:
    """How often each operator stands in the graph, which still computes the same."""
    graph = join_products(vendor_sdk.trace(function, inputs))
    graph.verify()
    wanted = function(*(x.double() for x in inputs))
    torch.testing.assert_close(graph.interpret(*inputs)[0].double(), wanted, rtol=1e-5, atol=1e-4)
    counts: dict[str, int] = {}
    for node in graph.calls():
        name = str(node.target).split(".")[1]
        counts[name] = counts.get(name, 0) + 1
    return counts


A, B, C, D = (torch.randn(5, 96) for _ in range(4))
OTHER = torch.randn(96, 96)


def test_transposed_factors_are_joined_before_they_are_transposed() -> None:
    counts = joined(lambda a, b, c, d: mm(t(a), b) + mm(t(c), d) + mm(t(b), a), A, B, C, D)
    assert (counts["mm"], counts["cat"], counts.get("add", 0)) == (1, 2, 0)
    assert counts.get("permute", counts.get("t")) in (1, 4)


def test_what_else_is_added_stays() -> None:
    counts = joined(lambda a, b, c, x: (mm(t(a), b) + x) + (x + mm(t(c), a)), A, B, C, OTHER)
    assert (counts["mm"], counts["add"]) == (1, 2)


def test_products_that_were_transposed_and_back() -> None:
    counts = joined(lambda a, b, c: t(t(mm(t(a), b))) + t(t(mm(t(c), a))), A, B, C)
    assert counts["mm"] == 1
    assert joined(lambda a, b, c: t(mm(t(a), b)) + t(mm(t(c), a)), A, B, C)["mm"] == 2


def test_long_factors_and_shared_products_stay_apart() -> None:
    long = torch.randn(400, 96)
    assert joined(lambda a, b: mm(t(a), b) + mm(t(b), a), long, long)["mm"] == 2

    def shared(a: Tensor, b: Tensor) -> Tensor:
        product = mm(t(a), b)
        return (product + mm(t(b), a)) * product

    assert joined(shared, A, B)["mm"] == 2


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_gradients_of_a_recurrent_layer(steps: int) -> None:
    register_toys()
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(48, 48), torch.randn(3, steps, 48)

    def unrolled(x: Tensor) -> Tensor:
        state = x.new_zeros(3, 48)
        for step in x.unbind(1):
            state = torch.tanh(layer(state + step))
        return state

    graphs: list[CompiledGraph] = []
    with recording(graphs.append):
        torch.autograd.backward(torch.compile(unrolled, backend="toyloops")(x).square().sum())
    ours = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    layer.double()
    torch.autograd.backward(unrolled(x.double()).square().sum())
    for mine, wanted in zip(ours, [p.grad for p in layer.parameters() if p.grad is not None], strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-5)
    products = [p for p in graphs[1].placements if p.prim == "mm"]
    assert len(products) == steps, "one for each step but the first, whose state needs no gradient, and one for the weight"
