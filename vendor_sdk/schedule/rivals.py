"""What fusing a prim saves that a kernel of the backend could run as well (a matrix product, which libraries have).

Two schedules are compared, one with all such prims fused and one with none. Kernels of either that share prims belong together,
and what they load and store is counted on both sides: so an epilogue that would have been fused with what follows it counts for
what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of
from vendor_sdk.lower.build import result_of
from vendor_sdk.schedule.fuse import Schedule

Folds = Callable[[fx.Node], bool]


def gains(
    graph: PrimGraph, fused: Schedule, apart: Schedule, rivals: Collection[fx.Node], folds: Folds
) -> Mapping[fx.Node, tuple[int, int]]:
    """Bytes and launches that ``fused`` saves over ``apart``, for each of ``rivals``; those that share kernels share it."""
    ways = [_Kernels(graph, schedule, folds) for schedule in (fused, apart)]
    joined = _joined(ways)
    shares: dict[int, list[fx.Node]] = {}
    for node in rivals:
        shares.setdefault(joined[node], []).append(node)
    found: dict[fx.Node, tuple[int, int]] = {}
    counts = [way.totals(joined) for way in ways]
    for part, nodes in shares.items():
        (moved, launches), (moved_apart, launches_apart) = (count.get(part, (0, 0)) for count in counts)
        gain = (moved_apart - moved) // len(nodes), (launches_apart - launches) // len(nodes)
        found.update(dict.fromkeys(nodes, gain))
    return found


class _Kernels:
    """The kernels of a schedule, numbered; prims that are in no group have one each."""

    def __init__(self, graph: PrimGraph, schedule: Schedule, folds: Folds) -> None:
        self.folds, self.inlined = folds, schedule.inlined
        self.home: dict[fx.Node, int] = {}
        self.members: list[list[fx.Node]] = [
            [node for group in groups for node in group.members] for groups in schedule.kernels
        ]
        for node in graph.calls():
            if not folds(node) and node not in self.inlined and result_of(node)[0] is node:
                self.members.append([node])
        for number, nodes in enumerate(self.members):
            for node in nodes:
                self.home.setdefault(node, number)

    def homes(self, node: fx.Node) -> set[int]:
        """The kernels that compute a prim."""
        return {self.home[node]} if node in self.home else {self.home[r] for r in self.readers(node) if r in self.home}

    def readers(self, node: fx.Node) -> set[fx.Node]:
        """Who reads a prim's results from memory, or computes them again."""
        found: set[fx.Node] = set()
        stack = list(node.users)
        while stack:
            user = stack.pop()
            if user.op == "call_function" and (self.folds(user) or user in self.inlined or result_of(user)[0] is not user):
                stack.extend(user.users)
            else:
                found.add(user)
        return found

    def operands(self, node: fx.Node) -> set[fx.Node]:
        """What a prim reads, below views and what is computed again."""
        found: set[fx.Node] = set()
        stack = list(node.all_input_nodes)
        while stack:
            source, _ = result_of(stack.pop())
            if source.op == "call_function" and (self.folds(source) or source in self.inlined):
                stack.extend(source.all_input_nodes)
            else:
                found.add(source)
        return found

    def totals(self, joined: Mapping[fx.Node, int]) -> dict[int, tuple[int, int]]:
        """Bytes loaded and stored, and launches, by what ``joined`` says of the prims."""
        found: dict[int, tuple[int, int]] = {}
        for number, nodes in enumerate(self.members):
            if self.home[nodes[0]] != number or nodes[0] not in joined:
                continue
            loaded = {source for node in nodes for source in self.operands(node) if self.home.get(source) != number}
            stored = [node for node in nodes if any(self.home.get(reader) != number for reader in self.readers(node))]
            part = joined[nodes[0]]
            moved, launches = found.get(part, (0, 0))
            found[part] = moved + _bytes((*loaded, *stored)), launches + 1
        return found


def _bytes(nodes: Iterable[fx.Node]) -> int:
    return sum(torch_private.size_hint(t) * t.dtype.itemsize for node in nodes for t in tensors_of(node.meta.get("val")))


def _joined(ways: Iterable[_Kernels]) -> dict[fx.Node, int]:
    """A number for each prim: equal ones share kernels, directly or by way of others."""
    above: dict[fx.Node, fx.Node] = {}

    def top(node: fx.Node) -> fx.Node:
        while above.setdefault(node, node) is not node:
            node = above[node]
        return node

    for way in ways:
        for nodes in way.members:
            for node in nodes:
                above[top(node)] = top(nodes[0])
        for node in way.inlined:
            for number in way.homes(node):
                above[top(node)] = top(way.members[number][0])
    numbers: dict[fx.Node, int] = {}
    return {node: numbers.setdefault(top(node), len(numbers)) for node in list(above)}
