"""Smaller graphs out of a graph: fewer operators, fewer outputs, smaller sizes. All pure; None for what cannot be."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.dump.program import VALUES
from vendor_sdk.ir.primgraph import PrimGraph, leading_to, tensors_of


def plain(graph: PrimGraph) -> PrimGraph:
    """The graph without promises about its boundary: how outputs lie, which inputs are written or die."""
    return PrimGraph(graph.module, graph.constants, backward=graph.backward)


def units(graph: PrimGraph) -> list[list[fx.Node]]:
    """Operators in order, each with the ``getitem`` nodes that take its results apart."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.calls():
        first = node
        while first.target is operator.getitem:
            first = first.args[0]  # type: ignore[assignment]
        found.setdefault(first, []).append(node)
    return list(found.values())


def size(graph: PrimGraph) -> int:
    """How many operators a graph has."""
    return len(units(graph))


def keep(graph: PrimGraph, kept: Collection[int]) -> PrimGraph | None:
    """The operators of these places alone. What they read of others becomes an input; what nobody reads, an output."""
    chosen = {node for place, unit in enumerate(units(graph)) if place in kept for node in unit}
    if not chosen:
        return None
    # Numbers (sizes read from tensors) are no inputs that could be drawn: who makes them stays.
    needed = list(chosen)
    while needed:
        for operand in needed.pop().all_input_nodes:
            if operand.op == "call_function" and operand not in chosen and not isinstance(operand.meta["val"], torch.Tensor):
                chosen.add(operand)
                needed.append(operand)
    ends = [
        node for node in graph.calls()
        if node in chosen and isinstance(node.meta["val"], torch.Tensor) and not any(user in chosen for user in node.users)
    ]  # fmt: skip
    return _made(graph, chosen, ends)


def without_output(graph: PrimGraph, index: int) -> PrimGraph | None:
    """The graph without one of its outputs, and without what only that needed."""
    ends = [node for place, node in enumerate(graph.outputs) if place != index and isinstance(node, fx.Node)]
    needed = leading_to(ends)
    return _made(graph, {node for node in graph.calls() if node in needed}, ends)


def _made(graph: PrimGraph, chosen: Collection[fx.Node], ends: list[fx.Node]) -> PrimGraph | None:
    """``chosen`` with outputs ``ends``; inputs come first, in the order of their first use."""
    if not ends:
        return None
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    order = [node for node in graph.graph.nodes if node in chosen]
    read = dict.fromkeys(operand for node in order for operand in node.all_input_nodes if operand not in chosen)
    subgraphs = [node for node in read if node.op == "get_attr"]
    constants = [node for node in read if node.name in graph.constants]
    inputs = [node for node in read if node not in subgraphs and node not in constants]
    # Constants stand behind the other inputs.
    for node in (*inputs, *constants):
        copies[node] = made.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in (*subgraphs, *order):
        copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[node] for node in ends))
    names = {copies[node].name: graph.constants[node.name] for node in constants}
    return PrimGraph(fx.GraphModule(graph.module, made), names, backward=graph.backward)


def sizes(graph: PrimGraph) -> set[int]:
    """Sizes above one that inputs have."""
    shapes = [tensor.shape for node in graph.placeholders for tensor in tensors_of(node.meta["val"])]
    return {size for shape in shapes for size in shape if isinstance(size, int) and size > 1}


def resized(graph: PrimGraph, old: int, new: int, *, last: bool = False) -> PrimGraph | None:
    """The graph with ``new`` in place of ``old`` wherever inputs or arguments say so; None where that is no program.

    Constants, and inputs with values of their own, keep their first elements along such a dimension, or the last.
    """

    def other(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(other(item) for item in value)
        return new if type(value) is int and value == old else value

    changed = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        copies[node] = changed.node_copy(node, copies.__getitem__)
        if node.op == "call_function":
            copies[node].args = tuple(map(other, copies[node].args))
            copies[node].kwargs = {name: other(value) for name, value in copies[node].kwargs.items()}
    module = fx.GraphModule(graph.module, changed)
    mode, _ = torch_private.symbolic_numbers({})
    try:
        with mode:
            fakes = [_other_input(node.meta["val"], old, new) for node in graph.placeholders]
            traced = torch_private.functional_trace(lambda *values: module(*values), fakes)
        made = plain(to_prim_graph(traced, fakes, {}, backward=graph.backward))
    except Exception:  # sizes that no longer fit together
        return None
    for before, after in zip(graph.placeholders, made.placeholders, strict=True):
        held = graph.constants.get(before.name, before.meta.get(VALUES))
        if held is not None:
            part = _part(held, old, new, last)
            like = after.meta["val"]
            after.meta[VALUES] = torch.empty_strided(tuple(like.shape), like.stride(), dtype=like.dtype).copy_(part)
    constants = made.placeholders[len(made.placeholders) - len(graph.constants) :] if graph.constants else []
    made.constants = {node.name: node.meta.pop(VALUES) for node in constants}
    return made


def _part(held: torch.Tensor, old: int, new: int, last: bool) -> torch.Tensor:
    for dim, size in enumerate(held.shape):
        if size == old:
            held = held.narrow(dim, old - new if last else 0, new)
    return held


def _other_input(value: Any, old: int, new: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    shape = [new if size == old else size for size in value.shape]
    dense = torch.empty(shape, dtype=value.dtype, device=value.device)
    # The order of memory stays; gaps between elements do not.
    order = sorted(range(value.dim()), key=lambda dim: -value.stride()[dim])
    back = sorted(range(value.dim()), key=order.__getitem__)
    return dense if order == back else torch.empty([shape[dim] for dim in order], dtype=value.dtype).permute(back)
