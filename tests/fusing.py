"""Functions of tensors, traced, scheduled and lowered with no backend at all; kernels run in the loop interpreter."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.contract.placement import Kind, Placement, Route
from vendor_sdk.ir import index as ix
from vendor_sdk.ir import loop_ops
from vendor_sdk.ir.fused import Fused
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_print import read, text
from vendor_sdk.ir.loop_verify import verify
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.lower import LOWERINGS, Layout, Lowered, lower, lower_group
from vendor_sdk.lower.view import is_view
from vendor_sdk.normalize.canonicalize import drop_dead
from vendor_sdk.pipeline import trace
from vendor_sdk.schedule import Schedule, schedule

OPS = {*loop_ops.OPS, "nest", "local", "scratch", "store.add", "store.max", "store.min", "store.mul"}
ROOM = Limits(buffers=256, statements=2048, local_bytes=1 << 20, local_dynamic=True, nests=64)


@dataclass
class Compiled:
    """A scheduled graph with a kernel for each node that is not a view."""

    graph: PrimGraph
    plan: Schedule
    kernels: dict[fx.Node, Lowered]

    def run(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The outputs, computed by the loop interpreter."""
        values: dict[fx.Node, Any] = dict(zip(self.graph.placeholders, [*inputs, *self.graph.constants.values()], strict=True))
        for node in self.graph.calls():
            if node.target is operator.getitem:
                values[node] = values[node.args[0]][node.args[1]]  # type: ignore[index]
            elif node in self.kernels:
                results = iter(self._launch(self.kernels[node], values))
                values[node] = pytree.tree_map_only(torch.Tensor, lambda _, results=results: next(results), node.meta["val"])
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return [values[n] for n in self.graph.outputs]

    def _launch(self, lowered: Lowered, values: dict[fx.Node, Any]) -> list[torch.Tensor]:
        kernel = lowered.kernel
        outputs = [torch.empty([int(s.value or 0) for s in spec.shape], dtype=spec.dtype) for spec in lowered.outputs]
        for output in outputs:
            output.view(torch.uint8).fill_(0x7F) if output.dim() and output.dtype != torch.bool else None
        buffers = [values[n].contiguous().reshape(-1) for n in lowered.inputs]
        interpret(kernel, [*buffers, *(o.reshape(-1) for o in outputs)], [7 for _ in kernel.symbols])
        return outputs


def compiled(function: Callable[..., Any], inputs: Sequence[torch.Tensor], limits: Limits = ROOM, **options: Any) -> Compiled:
    """``function`` scheduled for an emitter that has everything."""
    graph = trace(function, inputs)
    drop_dead(graph)
    for node in graph.calls():
        if node.target is operator.getitem:
            continue
        view = is_view(node)
        native = prim_name(node) in LOWERINGS
        node.meta["placement"] = (
            Placement(Kind.VIEW) if view else Placement(Kind.NATIVE, Route.EMITTER) if native else Placement(Kind.HOST)
        )
    plan = schedule(graph, limits, OPS, **options)
    graph.verify()
    kernels: dict[fx.Node, Lowered] = {}

    def layout(node: fx.Node) -> Layout | None:
        if is_view(node):
            return None
        return Layout(tuple(ix.from_size(s) for s in node.meta["val"].contiguous().stride()))

    for node in graph.calls():
        if isinstance(node.target, Fused):
            kernels[node] = lower_group(node, f"k{len(kernels)}", layout, limits, inner_nests=True)
        elif tensors_of(node.meta["val"]) and node.target is not operator.getitem and not is_view(node):
            kernels[node] = lower(node, f"k{len(kernels)}", layout, limits)
    for lowered in kernels.values():
        verify(lowered.kernel)
        assert read(text(lowered.kernel)) == lowered.kernel
    return Compiled(graph, plan, kernels)
