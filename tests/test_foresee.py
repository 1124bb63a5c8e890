"""What is known of a graph before it is traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from tests.toyloops import LoopEmitter
from vendor_sdk import ALL, Backend, TorchDevice, cache_dir, hookimpl
from vendor_sdk.capture.foresee import foreseen, nearly_always

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


class Told:
    """A backend whose emitter notes what it is told; ``fails``: it raises before anything is traced."""

    def __init__(self, fails: bool, cached: bool) -> None:
        self.name = f"told_{fails}_{cached}"  # torch knows a name for good
        self.found: list[Mapping[str, frozenset[torch.dtype]]] = []
        self.fails = fails and not cached

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name=self.name, version="0", dtypes=frozenset(ALL))

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")

    @hookimpl
    def emitter(self) -> LoopEmitter:
        plugin = self

        class Emitter(LoopEmitter):
            def foresee(self, prims: Mapping[str, frozenset[torch.dtype]]) -> None:
                plugin.found.append(prims)
                if plugin.fails and len(plugin.found) == 1:
                    raise RuntimeError("too early")

        return Emitter()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_before_the_first_trace_emitters_are_told_what_nearly_every_model_has(
    fails: bool, cached: bool, register: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the backend has something in its cache: no more than graphs need is compiled then."""
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    plugin = Told(fails, cached)
    backend = register(plugin)
    if cached:
        (cache_dir(backend) / "entry").write_bytes(b"of an earlier program")
    x = torch.randn(3, 5)
    for function in (torch.sin, torch.cos):
        compiled = torch.compile(lambda x, function=function: function(x) + 1, backend=backend)
        torch.testing.assert_close(compiled(x), function(x) + 1)
    assert plugin.found == [*([] if cached else [nearly_always()]), {}, {}], "then what each graph has"
    assert nearly_always() == {"mm": {torch.get_default_dtype()}}
