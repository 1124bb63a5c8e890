"""Slices of everything go, all others stay."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import fx

from vendor_sdk.capture.whole import drop_whole_slices

aten = torch.ops.aten


def sliced(*bounds: Any) -> fx.GraphModule:
    """A slice of ``x``, beside ``x`` scattered into zeros by the same bounds."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 6)
    part = graph.call_function(aten.slice.Tensor, (x, 1, *bounds))
    part.meta["val"] = aten.slice.Tensor(torch.empty(4, 6), 1, *bounds)
    twice = graph.call_function(aten.mul.Tensor, (part, 2))
    twice.meta["val"] = torch.empty(part.meta["val"].shape)
    zeros = graph.call_function(aten.full.default, ([4, 6], 0.0))
    zeros.meta["val"] = torch.empty(4, 6)
    scattered = graph.call_function(aten.slice_scatter.default, (zeros, twice, 1, *bounds))
    scattered.meta["val"] = torch.empty(4, 6)
    graph.output((scattered,))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ((0, sys.maxsize), ["mul"]),
        ((None, None), ["mul"]),
        ((), ["mul"]),
        ((0, sys.maxsize, 2), ["slice", "mul", "full", "slice_scatter"]),
        ((1, sys.maxsize), ["slice", "mul", "full", "slice_scatter"]),
        ((0, 5), ["slice", "mul", "full", "slice_scatter"]),
        ((0, -1), ["slice", "mul", "full", "slice_scatter"]),
    ],
)
def test_slices_of_everything_go(bounds: tuple[Any, ...], kept: list[str]) -> None:
    module = sliced(*bounds)
    x = torch.randn(4, 6)
    expected = module(x)
    drop_whole_slices(module.graph)
    module.recompile()
    module.graph.lint()
    targets: list[Any] = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert [str(target).split(".")[1] for target in targets] == kept
    torch.testing.assert_close(module(x), expected)


def test_a_slice_that_is_returned_stays() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(aten.slice.Tensor, (x, 0, 0, sys.maxsize)),))
    drop_whole_slices(graph)
    assert len(graph.find_nodes(op="call_function", target=aten.slice.Tensor)) == 1
