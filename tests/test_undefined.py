"""Outputs that nobody differentiates: their gradients are no tensors of zeros, and results stay those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vendor_sdk
from tests.toys import KINDS, use_kind
from vendor_sdk.normalize.undefined import expected, without_gradients
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

WORDS = 5


class Classifier(nn.Module):
    """Returns its loss, and what it is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.tanh(self.up(x))
        logits = self.down(hidden)
        return nn.functional.cross_entropy(logits, y), logits, hidden


WANTED: dict[str, Callable[..., Tensor]] = {
    "loss": lambda loss, logits, hidden: loss,
    "loss and logits": lambda loss, logits, hidden: loss + logits.square().sum(),
    "hidden": lambda loss, logits, hidden: hidden.exp().sum(),
    "logits": lambda loss, logits, hidden: logits.square().sum(),
    "all": lambda loss, logits, hidden: loss * 2 + logits.sum() + hidden.square().sum(),
}


def gradients(model: nn.Module, call: Callable[..., Any], wanted: str, rows: int, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    x, y = torch.randn(rows, 8, requires_grad=True), torch.randint(WORDS, (rows,))
    model.zero_grad()
    WANTED[wanted](*call(x, y)).backward()  # type: ignore[no-untyped-call]
    return [x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_whichever_outputs_are_differentiated(kind: str, dynamic: bool) -> None:
    model = Classifier()
    graphs: list[CompiledGraph] = []
    compiled = torch.compile(model, backend=use_kind(kind), dynamic=dynamic)
    with recording(graphs.append):
        for rows in (4, 6) if dynamic else (4,):
            for seed, wanted in enumerate(["loss", *WANTED]):
                found, right = (gradients(model, call, wanted, rows, seed) for call in (compiled, model))
                for ours, theirs in zip(found, right, strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    backward = [graph.graph for graph in graphs if graph.graph.backward]
    assert len(backward) == 2, "one for the loss alone, and one for everything else"
    assert len(backward[1].placeholders) - len(backward[0].placeholders) == 2


def test_a_loss_alone_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("no zeros are made")

    model = Classifier()
    graphs: list[CompiledGraph] = []
    compiled = torch.compile(model, backend=use_kind("toyloops"))
    with recording(graphs.append):
        for _ in range(3):
            x, y = torch.randn(4, 8), torch.randint(WORDS, (4,))
            loss, logits, _ = compiled(x, y)
            monkeypatch.setattr(torch, "zeros", refuse)
            loss.backward()
            monkeypatch.undo()
            assert logits.shape == (4, WORDS)
    assert [graph.graph.backward for graph in graphs] == [False, True]


def test_without_a_loss_every_output_counts() -> None:
    graphs: list[CompiledGraph] = []
    x = torch.randn(3, 4, requires_grad=True)
    with recording(graphs.append):
        first, second = torch.compile(lambda x: (x.sin(), x.cos()), backend=use_kind("toyloops"))(x)
        (first * 3).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach().cos())
    assert [graph.graph.backward for graph in graphs] == [False, True]
    assert second.shape == (3, 4)


def test_an_output_that_is_an_input_or_a_view_is_left_to_autograd() -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y.sum(), x, y, y.view(-1), y.t()

    compiled = torch.compile(several, backend=use_kind("toyloops"))
    for pick in (0, 1, 2, 3, 4):
        found = []
        for call in (compiled, several):
            x = torch.arange(6.0).reshape(2, 3).requires_grad_()
            (call(x)[pick] * 2).sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)


def test_a_gradient_that_is_a_view_of_one_that_nobody_asks_for() -> None:
    def joined(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.square().sum(), torch.cat((y, y.detach()))

    compiled = torch.compile(joined, backend=use_kind("toyloops"))
    for pick in (0, 1):
        found = []
        for call in (compiled, joined):
            x, y = torch.arange(6.0).requires_grad_(), torch.ones(4, requires_grad=True)
            (call(x, y)[pick] * 2).sum().backward()
            found.append([torch.zeros_like(t) if t.grad is None else t.grad for t in (x, y)])
        torch.testing.assert_close(*found)


def test_a_gradient_of_a_strided_view_that_nobody_asks_for() -> None:
    def windows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.square().sum(), torch.stack((y, y)).as_strided((2, 2), (1, 2))

    x, y = torch.arange(6.0).requires_grad_(), torch.ones(4, requires_grad=True)
    torch.compile(windows, backend=use_kind("toyloops"))(x, y)[0].backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> vendor_sdk.PrimGraph:
    return vendor_sdk.trace(function, inputs)


def test_zeros_vanish_from_whatever_is_linear_in_them() -> None:
    def back(g: Tensor, saved: Tensor, zero: Tensor) -> tuple[Tensor, ...]:
        through = (zero.to(torch.float64) * saved.double()).view(6, 2).t().sum(1, keepdim=True)
        table = torch.where(saved > 0, zero, zero).expand(2, 3, 4) / 3
        return g + zero, g - zero.neg(), zero - g, g.sum(0) + zero, through + saved[:2, :1], table.sum(0) @ saved.t() + g[:, :3]

    inputs = [torch.randn(3, 4) for _ in range(3)]
    graph = graph_of(back, *inputs)
    left = without_gradients(graph, [2])
    assert left is not None
    left.verify()
    g, saved, _ = inputs
    for found, wanted in zip(left.interpret(g, saved), graph.interpret(g, saved, torch.zeros(3, 4)), strict=True):
        torch.testing.assert_close(found, wanted)
    names = {str(node.target) for node in left.calls()}
    assert not any("mul" in name or "where" in name or "full" in name for name in names), names


def test_what_is_not_linear_gets_zeros() -> None:
    graph = graph_of(
        lambda g, zero: (zero.exp() + g, torch.cat((zero, g)), zero.cumsum(0)), torch.randn(2, 3), torch.randn(2, 3)
    )
    left = without_gradients(graph, [1])
    assert left is not None
    g = torch.randn(2, 3)
    for found, wanted in zip(left.interpret(g), graph.interpret(g, torch.zeros(2, 3)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_numbers_of_inputs_follow() -> None:
    graph = graph_of(lambda zero, saved, g: (saved * g + zero, saved), *(torch.randn(2, 3) for _ in range(3)))
    graph.donated_inputs, graph.static_inputs = frozenset({1}), frozenset({2})
    left = without_gradients(graph, [0])
    assert left is not None
    assert (left.donated_inputs, left.static_inputs) == ({0}, {1})
    assert left.output_layouts[1].alias_of == {("input", 0)}
    assert graph.donated_inputs == {1}, "the whole graph stays as it was"


def test_what_is_expected() -> None:
    def back(saved: Tensor, loss: Tensor, logits: Tensor, other: Tensor) -> Tensor:
        return saved * loss + logits + other

    graph = graph_of(back, torch.randn(2, 3), torch.randn(()), torch.randn(2, 3), torch.randn(3))
    assert expected(graph, [1, 2, 3]) == (2, 3)
    assert expected(graph, [2, 3]) == ()
    assert expected(graph, [1]) == ()
