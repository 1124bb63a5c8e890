"""The order of the nodes: one that runs, and of two such orders the one that holds fewer bytes at its worst moment.

One order stays as near to the program as operands allow, which keeps what belongs together in the caches. The other takes, of
all nodes that could run, the one that frees most (Sethi and Ullman's idea for registers, greedily). In both, what follows from
inputs alone comes right before its first reader.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Mapping, Sequence

from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.memory import live_bytes
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of

Folds = Callable[[fx.Node], bool]


def order(graph: PrimGraph, position: Mapping[fx.Node, int], folds: Folds) -> None:
    """Puts the nodes in an order that runs, in place.

    Args:
        position: where the program had each node.
        folds: whether a node is a view.
    """
    values = _Values(graph, folds)
    near = values.late(_sorted(graph, lambda node: (position.get(node, 0),), lambda node: ()))
    lean = values.late(_sorted(graph, lambda node: (values.grows(node), position.get(node, 0)), values.ran))
    best = lean if values.peak(lean) < values.peak(near) else near
    output = graph.graph.output_node()
    for node in best:
        if node.op in ("call_function", "get_attr"):
            output.prepend(node)


def _sorted(
    graph: PrimGraph, priority: Callable[[fx.Node], tuple[int, ...]], ran: Callable[[fx.Node], Sequence[fx.Node]]
) -> list[fx.Node]:
    """A topological order by priority. ``ran`` is told of each node that runs, and says whose priority that may change."""
    nodes = list(graph.graph.nodes)
    number = {node: k for k, node in enumerate(nodes)}
    waiting = {node: len(node.all_input_nodes) for node in nodes}
    done: set[fx.Node] = set()
    ready = [(priority(node), number[node], node) for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    sequence: list[fx.Node] = []
    while ready:
        _, _, node = heapq.heappop(ready)
        if node in done:
            continue
        done.add(node)
        sequence.append(node)
        for user in ran(node):
            if not waiting[user] and user not in done:
                heapq.heappush(ready, (priority(user), number[user], user))
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (priority(user), number[user], user))
    if len(sequence) != len(nodes):
        raise AssertionError("a fused group waits for itself")
    return sequence


class _Values:
    """Bytes that nodes allocate or that the graph is given for good, and who still needs them."""

    def __init__(self, graph: PrimGraph, folds: Folds) -> None:
        self.graph = graph
        self.root: dict[fx.Node, fx.Node] = {}
        self.bytes: dict[fx.Node, int] = {}
        self.readers: dict[fx.Node, list[fx.Node]] = {}
        self.left: dict[fx.Node, set[fx.Node]] = {}
        donated = {graph.placeholders[index] for index in graph.donated_inputs}
        for node in graph.graph.nodes:
            root = node  # fused calls were put beside their members: operands may stand behind their readers
            while root.op == "call_function" and (root.target is operator.getitem or folds(root)):
                (root, *_) = root.all_input_nodes
            self.root[node] = root
        for node in graph.graph.nodes:
            alias = self.root[node] is not node
            if node in donated or (node.op == "call_function" and not alias):
                self.bytes[node] = sum(torch_private.size_hint(t) * t.dtype.itemsize for t in tensors_of(node.meta.get("val")))
            if not alias:
                for read in node.all_input_nodes:
                    self.left.setdefault(self.root[read], set()).add(node)
        for root, readers in self.left.items():
            self.readers[root] = list(readers)

    def ran(self, node: fx.Node) -> list[fx.Node]:
        """Notes that a node has run; returns the readers that are now the last of a value."""
        last: list[fx.Node] = []
        if node in self.bytes or node.op == "output":
            for root in {self.root[read] for read in node.all_input_nodes}:
                self.left[root].discard(node)
                if len(self.left[root]) == 1:
                    last.extend(self.left[root])
        return last

    def grows(self, node: fx.Node) -> int:
        """Bytes that are held after a node has run and were not before. Views and numbers cost nothing and come at once, as do
        inputs, which are there."""
        if node.op != "call_function" or node not in self.bytes:
            return -1 << 62
        freed = sum(
            self.bytes.get(root, 0)
            for root in {self.root[read] for read in node.all_input_nodes}
            if len(self.left[root]) == 1 and node in self.left[root]
        )
        return self.bytes[node] - freed

    def late(self, sequence: Sequence[fx.Node]) -> list[fx.Node]:
        """The same order with what follows from inputs alone (weights in another order, say) where it is read: until then it
        would only take memory. Inputs that are written to, or whose memory others get, have readers where they were."""
        changing = {self.graph.placeholders[index] for index in (*self.graph.writes, *self.graph.donated_inputs)}
        step = {node: k for k, node in enumerate(sequence)}
        early = {
            root
            for root in {self.root[node] for node in sequence}
            if root.op == "call_function"
            and all((s := self.root[read]).op == "placeholder" and s not in changing for read in root.all_input_nodes)
        }
        waits = {node for node in sequence if self.root[node] in early}
        at = dict(step)
        for node in reversed(sequence):
            if node in waits:
                at[node] = min((at[user] for user in node.users), default=step[node])
        return sorted(sequence, key=lambda node: (at[node], node not in waits, step[node]))

    def peak(self, sequence: Sequence[fx.Node]) -> int:
        """The largest sum of live bytes along an order."""
        step = {node: k for k, node in enumerate(sequence)}
        lives = [
            (size, step[node], max([step[node], *(step[reader] for reader in self.readers.get(node, ()))]))
            for node, size in self.bytes.items()
        ]
        return max(live_bytes(lives, len(sequence)), default=0)
