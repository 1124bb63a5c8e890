"""Floats of eight bits in the ONNX Runtime backend: conversions as torch's, what the provider moves, and who runs the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vendor_sdk
from vendor_sdk import FLOAT8
from vendor_sdk.prims.samples import Effort, SampleContext, everywhere

ort = pytest.importorskip("onnxruntime")

NAME = "onnxruntime"
SOURCES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, *FLOAT8)
TARGETS = (*SOURCES, torch.bool)
Tensor = torch.Tensor


def placed(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> tuple[Any, dict[str, str]]:
    """What a compiled function gives, and for each prim where it ran, with the reason."""
    torch.compiler.reset()
    with vendor_sdk.observe() as observed, torch.no_grad():
        result = torch.compile(function, backend=NAME, dynamic=dynamic)(*inputs)
    found = {p.prim: f"{p.placement.kind}: {p.placement.reason}" for graph in observed.graphs for p in graph.placements}
    return result, found


def same(found: Tensor, expected: Tensor) -> None:
    """In every bit, but for which NaN it is."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    one, other = found.double(), expected.double()
    nan = one.isnan() & other.isnan()
    assert bool((((one == other) & (one.signbit() == other.signbit())) | nan).all())


def values(dtype: torch.dtype) -> Tensor:
    return everywhere(SampleContext.make(dtype, Effort.STANDARD))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_conversions_are_those_of_torch(dtype: torch.dtype, source: torch.dtype, dynamic: bool) -> None:
    found, where = placed(lambda x: x.to(dtype), values(source), dynamic=dynamic)
    assert where.get("_to_copy", "native: ") == "native: "
    same(found, values(source).to(dtype))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_what_is_too_large_is_what_torch_says(dtype: torch.dtype) -> None:
    edges = torch.tensor([448.0, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 65535.0, 65536.0, 1e30, torch.inf])
    x = torch.cat([edges, -edges, torch.tensor([torch.nan, 0.0, -0.0])])
    found, _ = placed(lambda x: x.to(dtype), x)
    same(found, x.to(dtype))


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_values_are_those_of_torch(dtype: torch.dtype, target: torch.dtype) -> None:
    found, where = placed(lambda x: x.to(target), values(dtype))
    assert where.get("_to_copy", "native: ") == "native: "
    same(found, values(dtype).to(target))


def test_what_the_provider_does_not_move_is_declined_in_its_name() -> None:
    x = values(torch.float8_e5m2).reshape(16, 16)
    found, where = placed(lambda x: torch.cat([x, x.t()]), x)
    same(found, torch.cat([x, x.t()]))
    assert where["cat"].startswith("host: CPUExecutionProvider: ")
    assert "float8e5m2" in where["cat"]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_weights_of_eight_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 16).to(dtype), requires_grad=False)
            self.scale = nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight.float() * self.scale)

    module, x = Scaled().eval(), torch.randn(4, 16)
    with torch.no_grad():
        run, expected = torch.compile(module, backend=NAME), module(x)
        for _ in range(3):
            torch.testing.assert_close(run(x), expected)
        module.weight.copy_(module.weight.float().neg().to(dtype))
        torch.testing.assert_close(run(x), -expected)
        module.weight.copy_(module.weight.float().neg().to(dtype))
    path = vendor_sdk.export(module, (x,), tmp_path / "model.onnx", backend=NAME)
    (found,) = ort.InferenceSession(str(path)).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected)
