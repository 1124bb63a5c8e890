"""Values computed element by element in the order in which what they are computed from lies in memory.

A caller's images may have their channels last. The values of a graph are row-major: a gradient that is masked before a
convolution reads it would be turned on the way. Where all operands of a prim lie in one other order, the prim is computed on
views of them in that order, and its result is the view of a row-major value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.orders import inverse, order_in_memory
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.normalize.channels import CONVOLUTIONS, elementwise

aten = torch.ops.aten


def in_order(graph: PrimGraph) -> PrimGraph:
    """Rewrites a graph with convolutions, whose inputs lie as the strides of their fake values say."""
    calls = list(graph.calls())
    if CONVOLUTIONS.keys().isdisjoint(node.target for node in calls):
        return graph
    lies = _Lies(graph)
    for node in filter(elementwise, calls):
        lies.visit(node)
    graph.module.recompile()
    return graph


class _Lies:
    """Values that lie in another order than row-major, with it, and views of them in that order."""

    def __init__(self, graph: PrimGraph) -> None:
        self.graph = graph
        self.orders = {node: order for node in graph.placeholders if (order := _order(node)) is not None}
        self.moved: dict[fx.Node, fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """A prim of single elements, after all that it reads."""
        tensors = [source for source in node.all_input_nodes if _shape(source)]
        order = self.orders.get(tensors[0]) if tensors else None
        if order is None or any(self.orders.get(t) != order or _shape(t) != _shape(node) for t in tensors):
            return

        def lying(argument: fx.Node) -> fx.Node:
            return self._moved(argument, order, node) if argument in tensors else argument

        made = call_before(node, node.target, *fx.map_arg(node.args, lying), **fx.map_arg(node.kwargs, lying))  # type: ignore[arg-type]
        back = call_before(node, aten.permute.default, made, inverse(order))
        self.moved[back], self.orders[back] = made, order
        node.replace_all_uses_with(back)
        self.graph.graph.erase_node(node)

    def _moved(self, value: fx.Node, order: tuple[int, ...], place: fx.Node) -> fx.Node:
        if value not in self.moved:
            self.moved[value] = call_before(place, aten.permute.default, value, list(order))
        return self.moved[value]


def _order(node: fx.Node) -> tuple[int, ...] | None:
    """The order in which a tensor lies, if that is not row-major."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return None
    order = order_in_memory(value.shape, value.stride())
    return None if order is None or order == sorted(order) else tuple(order)


def _shape(node: fx.Node) -> tuple[Any, ...] | None:
    """Of a tensor; nothing for one number, and what is none."""
    value = node.meta["val"]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
