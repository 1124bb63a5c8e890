"""The steps of a graph in the order in which they run: emitted launches stand together as far as their operands allow.

Views and shape arithmetic cost nothing, but a launch on either side of one would belong to two native segments. So numbers come
as early as they can be computed, and views just before their first reader. Several results that a node returns are taken apart
right behind it: together they would live as long as the last of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx

from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.primgraph import PrimGraph

Reads = Callable[[fx.Node], Sequence[fx.Node]]


@dataclass(frozen=True)
class Steps:
    """What runs.

    Attributes:
        order: the nodes, in order; views that every reader folds into its index map are not among them.
        reads: the nodes whose value a step takes at run time.
    """

    order: tuple[fx.Node, ...]
    reads: Reads


def steps_of(graph: PrimGraph, reads: Reads, folded: Callable[[fx.Node], bool]) -> Steps:
    """The steps of a placed graph.

    Args:
        reads: the nodes whose value a node takes at run time (an emitted kernel reads what lies below the views it folds).
        folded: whether a node only names one of several results, so that no code runs for it.
    """
    needed = _needed(graph, reads)
    order: list[fx.Node] = []
    done: set[fx.Node] = {node for node in graph.graph.nodes if node.op in ("placeholder", "get_attr")}
    numbers = [node for node in graph.calls() if node in needed and _number(node)]

    def parts(node: fx.Node) -> list[fx.Node]:
        users = [user for user in node.users if user.target is operator.getitem and user in needed and user not in done]
        return sorted(users, key=lambda user: user.args[1])  # type: ignore[arg-type, return-value]

    def add(node: fx.Node) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [read for read in reads(top) if read not in done and read in needed]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            if top not in done:
                made = [top, *parts(top)]
                done.update(made)
                order.extend(node for node in made if not folded(node))

    def add_numbers() -> None:
        pending = [node for node in numbers if node not in done]
        for node in pending:  # in graph order, so one pass finds those that wait for each other
            if all(read in done for read in reads(node)):
                add(node)
        numbers[:] = [node for node in pending if node not in done]

    add_numbers()
    for node in graph.calls():
        if node not in needed or node in done or _number(node) or _lazy(node):
            continue
        add(node)
        if numbers:
            add_numbers()
    for node in graph.calls():
        if node in needed and node not in done:
            add(node)
    return Steps(tuple(order), reads)


def _needed(graph: PrimGraph, reads: Reads) -> set[fx.Node]:
    """Nodes whose value is read at run time, and those that act without being read (assertions, waits)."""
    needed: set[fx.Node] = set()
    stack = [n for n in graph.outputs if isinstance(n, fx.Node)]
    stack += [n for n in graph.calls() if n.meta["val"] is None]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += reads(node)
    return needed


def _number(node: fx.Node) -> bool:
    """Shape arithmetic: no tensor is computed, and nothing but tensors' sizes and other numbers is read."""
    return _kind(node) is Kind.WRAPPER and node.meta["val"] is not None


def _lazy(node: fx.Node) -> bool:
    return node.target is operator.getitem or _kind(node) is Kind.VIEW


def _kind(node: fx.Node) -> Kind | None:
    return node.meta["placement"].kind if "placement" in node.meta else None
