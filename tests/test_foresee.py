"""What is known of a graph before it is traced."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from vendor_sdk.capture.foresee import foreseen

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
