"""What is begun before a graph is traced, and what kernels then leave to libraries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from reference_backends.cpp_cpu import compiler, products, units
from reference_backends.cpp_cpu.emitter import CppEmitter
from vendor_sdk.capture.foresee import foreseen
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
f32, f64 = torch.float32, torch.float64


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 8), nn.Conv2d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.linear(x) @ x.transpose(-1, -2))
        return F.scaled_dot_product_attention(x, x, x).double().matmul(torch.ones(6, 2, dtype=f64))


def graph_of(model: nn.Module, *inputs: Tensor) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module

    torch._dynamo.reset()
    torch.compile(model, backend=keep, fullgraph=True)(*inputs)
    return graphs[0]


def test_what_a_graph_of_dynamo_will_need() -> None:
    x = torch.randn(2, 1, 8, 8)
    attention = "scaled_dot_product_attention"
    forward = {"mm": {f32, f64}, "convolution": {f32}, attention: {f32}}
    with torch.no_grad():
        assert foreseen(graph_of(Model(), x)) == forward
    both = {**forward, "convolution_backward": {f32}, f"{attention}_backward": {f32}}
    assert foreseen(graph_of(Model(), x)) == both
    assert foreseen(graph_of(nn.ReLU(), x)) == {}


def test_libraries_are_begun_before_the_graph_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(compiler, "start", begun.append)
    monkeypatch.setattr(products, "_loaded", {})
    CppEmitter().foresee({"mm": frozenset((torch.bfloat16,)), "convolution": frozenset((f32, f64))})
    expected = [(products.MATRICES, "float"), (products.MATRICES, "double"), (products.FILTERS, "float")]
    assert set(begun) == {products.source(need) for need in expected}
    begun.clear()
    CppEmitter().foresee({"mm": frozenset((torch.bool,)), "sort": frozenset((f32,))})
    assert not begun


@pytest.mark.parametrize("across", [False, True])
def test_factors_that_lie_in_memory_need_no_code(across: bool) -> None:
    compiled: list[CompiledGraph] = []
    a, b = torch.randn(5, 200), torch.randn(200, 300) if across else torch.randn(300, 200).t()
    torch._dynamo.reset()
    with recording(compiled.append), torch.no_grad():
        result = torch.compile(lambda x, y: (x @ y).relu(), backend="cpp_cpu")(a, b)
    assert torch.allclose(result.double(), (a.double() @ b.double()).relu(), atol=1e-4)
    (kernel,) = compiled[0].loops.values()
    unit = units._unit(kernel, CppEmitter().emit(kernel))
    assert unit.calls == ((products.MATRICES, "float"),)
    assert "fill_with" not in unit.text
