"""Outputs in the order of memory that the caller was promised.

Values are row-major inside a graph, and the eager program may have returned another order (``x.t() + y``, ``channels_last``).
The copy between the two is made a node, so that the kernel that computes the value stores it so in the first place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.placement import Kind, Placement, Route
from vendor_sdk.ir.orders import inverse, order_in_memory, order_of
from vendor_sdk.ir.primgraph import PrimGraph, map_nodes

aten = torch.ops.aten


def store_as_promised(graph: PrimGraph, emitted: Callable[[fx.Node], bool]) -> None:
    """Puts a copy before each output of a placed graph that would otherwise be rearranged after the call.

    Args:
        emitted: whether a node (a ``clone``) can run on the emitter route.
    """
    if not graph.output_layouts:
        return
    output = graph.graph.output_node()
    outputs = graph.outputs
    for position, (value, layout) in enumerate(zip(outputs, graph.output_layouts, strict=True)):
        if not isinstance(value, fx.Node) or layout.strides is None or layout.alias_of or layout.offset is not None:
            continue
        order = order_in_memory(value.meta["val"].shape, layout.strides)
        if order is None or _lies_so(value, layout.strides):
            continue
        outputs[position] = _copied(graph, output, value, order, emitted) or value
    output.args = (tuple(outputs),)
    graph.module.recompile()


def _copied(
    graph: PrimGraph, output: fx.Node, value: fx.Node, order: Sequence[int], emitted: Callable[[fx.Node], bool]
) -> fx.Node | None:
    """``value`` as a view of a row-major copy with its dimensions in ``order``."""
    made: list[fx.Node] = []

    def node(target: Any, source: fx.Node, result: torch.Tensor, placement: Placement, *args: Any) -> fx.Node:
        new = graph.graph.call_function(target, (source, *args))
        new.meta |= {"val": result, "placement": placement, "stack_trace": value.meta.get("stack_trace")}
        made.append(new)
        return new

    back = inverse(order)
    with graph.graph.inserting_before(output):
        moved = value
        if list(order) != sorted(order):
            moved = node(aten.permute.default, value, value.meta["val"].permute(order), Placement(Kind.VIEW), list(order))
        dense = moved.meta["val"].new_empty(moved.meta["val"].shape)
        copy = node(aten.clone.default, moved, dense, Placement(Kind.NATIVE, Route.EMITTER))
        if not emitted(copy):
            for unused in reversed(made):
                graph.graph.erase_node(unused)
            return None
        if moved is value:
            return copy
        return node(aten.permute.default, copy, dense.permute(back), Placement(Kind.VIEW), back)


def _lies_so(value: fx.Node, strides: Sequence[Any]) -> bool:
    """Whether a value has these strides, in memory of this graph, without another copy."""
    views: list[fx.Node] = []
    root = value
    while root.op == "call_function" and root.meta["placement"].kind is Kind.VIEW:
        views.append(root)
        root = root.args[0]  # type: ignore[assignment]
    if root.op == "placeholder":
        return False
    tensor = root.meta["val"]
    if not isinstance(tensor, torch.Tensor):
        return False
    order = order_of(root)
    if order is None:
        tensor = tensor.new_empty(tensor.shape)
    else:
        back = inverse(order)
        tensor = tensor.new_empty([tensor.shape[dim] for dim in order]).permute(back)
    for view in reversed(views):
        args = map_nodes(view.args[1:], lambda n: n.meta["val"])
        kwargs = map_nodes(view.kwargs, lambda n: n.meta["val"])
        if view.target is aten.view.default and not all(isinstance(size, int) for size in (*tensor.shape, *args[0])):
            tensor = tensor.reshape(*args)  # Whether strides express it would be a question about sizes, and a guard.
            continue
        try:
            tensor = view.target(tensor, *args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, ValueError):  # a reshape that strides cannot express: it would be copied after the call
            return False
    return all(
        torch_private.surely_equal(size, 1) or torch_private.surely_equal(own, promised)
        for size, own, promised in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )
