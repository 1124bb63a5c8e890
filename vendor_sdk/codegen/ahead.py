"""Kernels of a backend's own, compiled though nothing runs (``Target``).

``Kernel.ahead`` gets tensors of torch's ``meta`` device that lie in memory as a call's would.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.kernel import Computed, Kernel
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.fused import Computing
from vendor_sdk.ir.orders import order_of, strides_of
from vendor_sdk.ir.primgraph import PrimGraph, map_nodes, prim_name, tensors_of
from vendor_sdk.lower.build import Lowered, arguments


def ahead(
    graph: PrimGraph,
    kernels: Mapping[str, Kernel],
    computed: Mapping[fx.Node, Mapping[str, Lowered]],
    target: Any,
    ignored: Collection[str],
) -> dict[fx.Node, Mapping[str, int]]:
    """Has the kernels of a placed graph compiled for ``target``; what each takes of the device, by node.

    Args:
        computed: loops of the operands, by name, that kernels compute.
        ignored: keyword arguments that kernels do not receive.
    """
    operands = _Operands(graph)
    found: dict[fx.Node, Mapping[str, int]] = {}
    for node in graph.calls():
        placement = node.meta.get("placement")
        if placement is None or placement.route is not Route.KERNEL or node.target is operator.getitem:
            continue
        kernel = kernels[prim_name(node)]
        if kernel.ahead is not None:
            call = node
            values: Callable[[fx.Node], Any] = operands.value
            if isinstance(node.target, Computing):
                call, values = node.target.call, operands.inside(node, computed[node]).__getitem__
            args, kwargs = map_nodes((call.args, {k: v for k, v in call.kwargs.items() if k not in ignored}), values)
            results = operands.results(node) if kernel.destination else []
            found[node] = kernel.ahead(target, *results, *args, **kwargs)
    return found


class _Operands:
    """Values of a graph as ``meta`` tensors, with the sizes of the trace where those are symbolic."""

    def __init__(self, graph: PrimGraph) -> None:
        values = [node.meta["val"] for node in graph.placeholders]
        extents = [size for tensor in tensors_of(values) for size in (*tensor.shape, *tensor.stride())]
        self.sizes = torch_private.symbol_hints([*values, *extents])
        self.known: dict[fx.Node, Any] = {}

    def of(self, arguments: Any) -> Any:
        """``arguments`` with values in place of nodes."""
        return map_nodes(arguments, self.value)

    def value(self, node: fx.Node) -> Any:
        if node not in self.known:
            self.known[node] = self._made(node)
        return self.known[node]

    def inside(self, node: fx.Node, computed: Mapping[str, Lowered]) -> dict[fx.Node, Any]:
        """What a kernel reads that computes some operands, by nodes of its group."""
        target = node.target
        assert isinstance(target, Computing)
        given = zip(target.graph.placeholders, node.args, strict=True)
        found = {inner: self.value(outer) for inner, outer in given}  # type: ignore[arg-type]
        named = {inner.name: value for inner, value in found.items()}
        for name, one in computed.items():
            source = arguments(target.call)[name]
            numbers = tuple(named.get(s.name, self.sizes.get(s.name, 0)) for s in one.kernel.symbols)
            shape = tuple(map(self._number, source.meta["val"].shape))
            buffers = tuple(map(self.value, one.inputs))
            found[source] = Computed(one.kernel, shape, source.meta["val"].dtype, buffers, numbers)
        return found

    def results(self, node: fx.Node) -> list[torch.Tensor]:
        return [self._dense(tensor, None) for tensor in tensors_of(node.meta["val"])]

    def _made(self, node: fx.Node) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return self._number(value)
        if node.op == "placeholder":
            return self._lying(value, value.stride())
        if node.meta["placement"].kind is Kind.VIEW:
            args, kwargs = self.of((node.args, node.kwargs))
            return node.target(*args, **kwargs)  # type: ignore[operator]
        return self._dense(value, order_of(node))

    def _dense(self, value: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
        sizes = [ix.wrap(self._number(n)) for n in value.shape]
        strides = strides_of(sizes, range(len(sizes)) if order is None else order)
        return self._lying(value, [stride.value for stride in strides])

    def _lying(self, value: torch.Tensor, strides: Any) -> torch.Tensor:
        sizes, steps = ([self._number(n) for n in numbers] for numbers in (value.shape, strides))
        return torch.empty_strided(sizes, steps, dtype=value.dtype, device="meta")

    def _number(self, value: Any) -> Any:
        return ix.evaluate(ix.from_size(value), self.sizes) if isinstance(value, torch.SymInt) else value
