"""Products whose rows begin at multiples of some bytes, whatever the sizes are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import vendor_sdk
from tests.toyloops import LoopEmitter
from vendor_sdk import ALL, Backend, Emitter, Legalization, TorchDevice, hookimpl
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.normalize.aligned import align_products
from vendor_sdk.normalize.canonicalize import canonicalize
from vendor_sdk.normalize.legalize import legalize

Tensor = torch.Tensor
N = 517
"""No multiple of anything here."""


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "logits": (lambda x, w: x @ w.T, (draw(64, 128), draw(N, 128)), 1),
    "logits with a bias": (
        lambda x, w, b: torch.addmm(b, x, w.T),
        (draw(64, 128), draw(N, 128), draw(N)),
        2,
    ),
    "a bias for each row": (lambda x, w, b: torch.addmm(b, x, w.T), (draw(64, 128), draw(N, 128), draw(64, 1)), 1),
    "a matrix of biases": (lambda x, w, b: torch.addmm(b, x, w.T), (draw(64, 128), draw(N, 128), draw(64, N)), 2),
    "gradient of the hidden states": (lambda g, w: g @ w, (draw(128, N), draw(N, 128)), 2),
    "gradient of the weight": (lambda g, x: g.T @ x, (draw(64, N), draw(64, 128)), 1),
    "both gradients": (lambda g, w, x: (g @ w).sum() * (g.T @ x), (draw(128, N), draw(N, 128), draw(128, 128)), 2),
    "all sizes": (lambda a, b: a @ b, (draw(N, N + 2), draw(N + 2, N + 4)), 2),
}


def traced(function: Callable[..., Tensor], *inputs: Tensor) -> PrimGraph:
    return canonicalize(vendor_sdk.trace(function, inputs))


def pads(graph: PrimGraph) -> int:
    return sum(prim_name(n) == "constant_pad_nd" for n in graph.calls())


@pytest.mark.parametrize("name", CASES)
def test_rows_are_multiples_and_results_are_the_same(name: str) -> None:
    product, inputs, padded = CASES[name]

    def function(*given: Tensor) -> Tensor:
        return product(*given).neg()  # what is returned itself has rows as they come

    graph = legalize(traced(function, *inputs), vendor_sdk.Legalization(row_alignment=16))
    graph.module.recompile()
    assert pads(graph) == padded
    for node in graph.calls():
        if prim_name(node) in ("mm", "addmm"):
            for matrix in (node, *node.all_input_nodes[-2:]):
                turned = prim_name(matrix) == "permute" if matrix.op == "call_function" else False
                assert matrix.meta["val"].shape[0 if turned else 1] % 8 == 0
    wide = [x.double() for x in inputs]
    exact = function(*wide)
    found = graph.module(*inputs)
    found = found[0] if isinstance(found, list | tuple) else found
    assert found.shape == exact.shape
    expected = function(*inputs)
    assert float((found.double() - exact).abs().max()) <= 2 * float((expected.double() - exact).abs().max()) + 1e-6


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: x @ w.T, (draw(4, 128), draw(N, 128))),  # waits for memory
        (lambda x, w: x @ w.T, (draw(64, 128), draw(512, 128))),
        (lambda x, w: x @ w, (torch.ones(64, 128, dtype=torch.int64), torch.ones(128, N, dtype=torch.int64))),
        (lambda x, w: x @ w, (draw(64, 0), draw(0, N))),
    ],
    ids=["few rows", "aligned", "integers", "no terms"],
)
def test_products_that_gain_nothing_stay(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    graph = legalize(traced(function, *inputs), vendor_sdk.Legalization(row_alignment=16))
    assert not pads(graph)


@pytest.mark.parametrize("alignment", [2, 4, 12])
def test_any_number_of_bytes_will_do(alignment: int) -> None:
    x, w = torch.randn(64, 130, dtype=torch.float64), torch.randn(517, 130, dtype=torch.float64)
    graph = legalize(traced(lambda x, w: x @ w.T, x, w), vendor_sdk.Legalization(row_alignment=alignment))
    graph.module.recompile()
    torch.testing.assert_close(graph.module(x, w)[0], x @ w.T)


def test_who_does_not_ask_gets_products_as_they_are() -> None:
    function, inputs, _ = CASES["logits"]
    assert not pads(legalize(traced(function, *inputs), vendor_sdk.Legalization()))


def test_products_that_are_returned_keep_their_own_rows() -> None:
    """They would have to be copied, and in a joint graph saved a second time with zeros."""
    g, x, w = draw(64, N), draw(64, 128), draw(N, 128)
    for function, inputs, padded in (
        (lambda x, w: (x @ w.T).float().sum(), (x, w), 1),
        (lambda x, w: (x @ w.T).view(2, 32, N), (x, w), 0),
        (lambda x, w: [(y := x @ w.T), y.sum()], (x, w), 0),
        (lambda g, x: g.T @ x, (g, x), 1),  # the rows of a factor
        (lambda x, w: x @ w, (x, w.T.contiguous()), 1),
    ):
        graph = traced(function, *inputs)
        align_products(graph.graph, 16)
        assert pads(graph) == padded


def test_other_readers_of_a_padded_value_read_it_among_the_zeros() -> None:
    """It lies in memory once; rows of a softmax are computed there."""

    def function(g: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
        g = torch.softmax(g, -1)
        return [g @ w, g.T @ x, g.float().sum(0)]

    inputs = draw(128, N), draw(N, 128), draw(128, 128)
    graph = traced(function, *inputs)
    align_products(graph.graph, 16)
    (padded,) = [n for n in graph.calls() if prim_name(n) == "constant_pad_nd" and n.meta["val"].shape[0] == 128]
    (source,) = padded.all_input_nodes
    assert list(source.users) == [padded]
    graph.module.recompile()
    for found, wanted in zip(graph.module(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


class Aligned:
    """An emitter that interprets, and products on aligned rows."""

    name = "aligned"

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name=self.name, version="1", dtypes=frozenset(ALL), legalize=Legalization(row_alignment=16))

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")

    @hookimpl
    def emitter(self) -> Emitter:
        return LoopEmitter()


@pytest.mark.parametrize("returned", [False, True])
def test_gradients_through_products_whose_activations_have_zeros_beside_them(
    returned: bool, register: Callable[..., str]
) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        logits = x @ w.T
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(64))
        return (loss, logits) if returned else (loss,)

    x, w = torch.randn(64, 128, requires_grad=True), torch.randn(N, 128, requires_grad=True)
    found = torch.compile(function, backend=register(Aligned()))(x, w)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    expected = function(*wide)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
        assert one.stride() == other.stride()
    grads = torch.autograd.grad(found[0], (x, w))
    for grad, exact in zip(grads, torch.autograd.grad(expected[0], wide), strict=True):
        torch.testing.assert_close(grad.double(), exact, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
