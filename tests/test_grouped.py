"""Products of groups of rows: what torch and transformers call them, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.toys import register_toys
from vendor_sdk.capture.foresee import foreseen
from vendor_sdk.capture.graph import trace
from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.primgraph import prim_name
from vendor_sdk.normalize.decompose import prim_table
from vendor_sdk.pipeline import recording
from vendor_sdk.prims.grouped import OPERATOR, gradients
from vendor_sdk.prims.opset import COMPOSITES
from vendor_sdk.run.compiled import CompiledGraph

aten = torch.ops.aten
Tensor = torch.Tensor
ROW = COMPOSITES["grouped_mm"]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def offsets(*ends: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(ends, dtype=dtype)


@pytest.mark.parametrize(("self", "mat2", "offs"), [
    (torch.randn(8), torch.randn(2, 4, 3), offsets(4, 8)),
    (torch.randn(8, 5), torch.randn(2, 4, 3), offsets(4, 8)),
    (torch.randn(8, 4), torch.randn(2, 4, 3).double(), offsets(4, 8)),
    (torch.randn(8, 4), torch.randn(2, 4, 3), offsets(4, 6, 8)),
])  # fmt: skip
def test_operands_that_do_not_go_together(self: Tensor, mat2: Tensor, offs: Tensor) -> None:
    with pytest.raises(RuntimeError, match="grouped_mm"):
        OPERATOR(self, mat2, offs)


@pytest.mark.parametrize("ends", [(4, 3, 8), (4, 8, 9), (-1, 4, 8)])
def test_offsets_that_are_none(ends: tuple[int, ...]) -> None:
    x, w, offs = torch.randn(8, 4), torch.randn(3, 4, 3), offsets(*ends)
    with pytest.raises(IndexError):
        OPERATOR(x, w, offs)


def test_gradients_are_autograds() -> None:
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    grad, ends = torch.randn(12, 7, dtype=torch.float64), (4, 4, 10)
    start, parts = 0, []
    for group, end in enumerate(ends):
        parts.append(x[start:end] @ w[group])
        start = end
    parts.append(x[start:] @ torch.zeros(5, 7, dtype=torch.float64))
    wanted = torch.autograd.grad(torch.cat(parts), (x, w), grad)
    torch.testing.assert_close(gradients(grad, x.detach(), w.detach(), offsets(*ends)), wanted)


def test_torchs_operator_becomes_the_composite() -> None:
    """In its four forms; those with offsets take groups of rows, of columns, or of the steps of the sum."""

    def bf16(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16)

    forms = [
        ((bf16(16, 24), bf16(2, 24, 32)), ["grouped_mm"]),
        ((bf16(16, 24), bf16(24, 32)), ["grouped_mm"]),
        ((bf16(2, 24, 32), bf16(32, 16)), ["grouped_mm"]),
        ((bf16(2, 16, 24), bf16(2, 24, 32)), ["bmm"]),
    ]
    table = prim_table(frozenset((OPERATOR,)))
    for factors, expected in forms:
        offs = offsets(8, 16) if expected == ["grouped_mm"] else None
        given = (*factors, *(() if offs is None else (offs,)))
        graph = trace(lambda *tensors: aten._grouped_mm.default(*tensors), given, table)
        names = [prim_name(node) for node in graph.calls()]
        assert [name for name in names if name != "permute"] == expected
        (ours,), theirs = graph.interpret(*given), aten._grouped_mm.default(*given)
        torch.testing.assert_close(ours, theirs)


class Experts(nn.Module):
    """As transformers computes them: rows sorted by their expert, two products of groups, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 64, 32) / 6)
        self.down = nn.Parameter(torch.randn(4, 32, 64) / 8)

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        order = torch.argsort(experts)
        ends = (experts[:, None] <= torch.arange(4)).sum(0).to(torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        hidden = torch.relu(product(x[order], self.up.mT, ends))
        return torch.zeros_like(x).index_copy(0, order, product(hidden, self.down.mT, ends))


@pytest.mark.parametrize("backend", ["toyloops", "cpp_cpu"])
def test_a_mixture_of_experts_stays_on_the_device(backend: str) -> None:
    """Every product of groups is one node of its own: two forward, and three for the gradients, as the input needs none."""
    pytest.importorskip("transformers.integrations.moe")
    register_toys()
    torch.manual_seed(0)
    model, experts = Experts(), torch.randint(4, (50,))
    x = torch.randn(50, 32)
    graphs: list[CompiledGraph] = []
    with recording(graphs.append):
        torch.compile(model, backend=backend, fullgraph=True)(x, experts).square().sum().backward()
    assert not [each for graph in graphs for each in graph.placements if each.placement.kind is Kind.HOST]
    counts = [sum(each.prim == "grouped_mm" for each in graph.placements) for graph in graphs]
    assert counts == [2, 3]
    # The gradients by the weights are computed in the order of the weights, so that nothing copies them.
    assert graphs[1].launches == 5
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.double()(x.double(), experts).square().sum().backward()
    for gradient, p in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(gradient.double(), p.grad, rtol=1e-4, atol=1e-4)


def test_its_library_is_begun_before_the_graph_is_traced() -> None:
    pytest.importorskip("transformers.integrations.moe")
    graphs: list[Any] = []

    def keep(module: Any, _: Any) -> Any:
        graphs.append(module)
        return module

    torch.compile(Experts(), backend=keep, fullgraph=True)(torch.randn(50, 32), torch.randint(4, (50,)))
    assert foreseen(graphs[0]) == {"grouped_mm": {torch.float32}}
