"""Horizontal fusion: independent groups that compute the same on other tensors share one launch (a foreach optimizer step)."""

from __future__ import annotations

from typing import Any

from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.primgraph import map_nodes, tensors_of
from vendor_sdk.lower.view import is_view
from vendor_sdk.schedule.group import Group, count, results
from vendor_sdk.schedule.reach import Reach

SMALL = 1 << 15
"""Iterations up to which groups share a launch wherever they stand: there the launch is what costs, and not memory that waits
for readers far away."""


def batch(groups: list[Group], reach: Reach, limits: Limits) -> list[list[Group]]:
    """``groups`` in lists that share a kernel each. Two of a list never wait for each other, neither does a third between them.

    Larger groups share only when all they read are inputs of the graph, and the caller gets all that they store: then nothing
    lives longer for it. (Weights of many layers, which lie in another order for their readers, would all live at once.)
    """
    batches: list[list[Group]] = []
    open_: dict[Any, list[Group]] = {}
    for group in groups:
        key = _signature(group) if limits.nests > 1 and _fits(group) else None
        found = open_.get(key) if key is not None else None
        if found is not None and _may_share(found, group, reach, limits):
            reach.merge(found[0].unit, group.unit)
            found.append(group)
            continue
        batches.append([group])
        if key is not None:
            open_[key] = batches[-1]
    return batches


def _fits(group: Group) -> bool:
    if group.shape != "pointwise":
        return False
    if all(value.op == "placeholder" for value in group.inputs) and all(_returned(group, m) for m in group.members):
        return True
    iterations = ix.bounds(count(group.rows))[1]
    if iterations is None:  # as traced
        iterations = max(torch_private.size_hint(t) for node in group.members for t in tensors_of(node.meta["val"]))
    return iterations <= SMALL


def _returned(group: Group, node: fx.Node) -> bool:
    """Whether the caller gets the memory that a member's value is stored in, if it is stored."""
    outside = [user for user in node.users if user not in group.members]
    return not outside or any(user.op == "output" or (is_view(user) and _returned(group, user)) for user in outside)


def _signature(group: Group) -> Any:
    """What the group computes, whatever the sizes: elementwise on matrices or on vectors, it is a loop over one range."""
    numbers = {node: place for place, node in enumerate(group.members)}

    def operand(node: fx.Node) -> str:
        return f"%{numbers[node]}" if node in numbers else str([t.dtype for t in tensors_of(node.meta["val"])])

    return tuple((node.target, str(map_nodes((node.args, node.kwargs), lambda n: operand(n)))) for node in group.members)


def _may_share(batch: list[Group], group: Group, reach: Reach, limits: Limits) -> bool:
    first = batch[0]
    if len(batch) >= limits.nests or (len(batch) + 1) * group.statements > limits.statements * limits.nests:
        return False
    if (len(batch) + 1) * (len(group.inputs) + results(group)) > limits.buffers:
        return False
    if reach.depends(first.unit, group.unit) or reach.depends(group.unit, first.unit):
        return False
    return reach.may_merge(first.unit, group.unit)
