"""Rewriting prim graphs: a node replaced by a graph that computes the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import fx

from vendor_sdk.ir.primgraph import PrimGraph, map_nodes


def inline(
    graph: PrimGraph,
    node: fx.Node,
    inner: PrimGraph,
    inputs: Sequence[fx.Node],
    keep: Callable[[fx.Node], bool] = lambda part: True,
) -> tuple[list[fx.Node], set[fx.Node]]:
    """Copies ``inner`` before ``node`` and makes the readers of ``node`` read the copy's results.

    Args:
        inputs: what ``inner``'s placeholders stand for, in order.
        keep: which of ``inner``'s calls to copy (the others are dead in it).

    Returns:
        the copies, in order, and the nodes that are dead now: ``node`` and what picked its single results. The caller erases
        the dead, since it may be walking over them.
    """
    values = dict(zip(inner.placeholders, inputs, strict=True))
    copies = []
    with graph.graph.inserting_before(node):
        for part in inner.calls():
            if keep(part):
                values[part] = graph.graph.node_copy(part, values.__getitem__)
                copies.append(values[part])
    result = map_nodes(inner.graph.output_node().args[0], values.__getitem__)
    dead = {node}
    if isinstance(node.meta["val"], torch.Tensor):
        (single,) = result if isinstance(result, list | tuple) else (result,)
        node.replace_all_uses_with(single)
        return copies, dead
    for user in list(node.users):
        assert user.target is operator.getitem, f"{node.name} has several results; {user.name} reads it whole"
        dead.add(user)
        if user.users:
            user.replace_all_uses_with(result[user.args[1]])
    return copies, dead


def erase(graph: PrimGraph, dead: set[fx.Node]) -> None:
    """Erases ``dead`` nodes, readers first."""
    for node in reversed(list(graph.calls())):
        if node in dead:
            graph.graph.erase_node(node)
    graph.module.recompile()
