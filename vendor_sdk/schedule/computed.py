"""Operands that kernels compute where they need them: never in memory, and no kernel of their own.

What attention masks say is little beside the scores: positions, lengths, a number a head. Written out, a mask takes memory with
the square of the rows. So an operand that follows element by element from tensors that are small beside it goes into the kernel
that alone reads it, as loops, if the kernel takes it (``Kernel.computes``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.kernel import SMALLER
from vendor_sdk.contract.placement import Route
from vendor_sdk.ir.fused import Computing
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.lower import LOWERINGS
from vendor_sdk.lower.build import Lowered, arguments
from vendor_sdk.lower.summary import summarize

LARGEST = 128
"""Prims that an operand is made by, views among them, at most."""

Folds = Callable[[fx.Node], bool]
Lower = Callable[[Computing, tuple[fx.Node, ...], str], Lowered | None]
"""The operand of this name, that a group computes from these nodes, as loops; None where it cannot be lowered."""
Takes = Callable[[fx.Node, str, Lowered], bool]
"""Whether a node's kernel takes the operand of this name as these loops."""


def compute_operands(
    graph: PrimGraph,
    candidates: Mapping[fx.Node, Collection[str]],
    ops: Collection[str],
    folds: Folds,
    lower: Lower,
    takes: Takes,
) -> None:
    """Gives operands to kernels as loops, in place.

    Args:
        candidates: nodes to the names of operands that their kernels may compute.
        ops: of the emitter.
    """
    scope = _Scope(graph, candidates, ops, folds, lower)
    left, found = dict(candidates), True
    while found:  # What one kernel computes had been read for it, so that another may now be the only reader.
        found = False
        for node, names in list(left.items()):
            lowered = {name: scope.loops(node, name) for name in names if scope.is_small(node, name)}
            taken = {name: loops for name, loops in lowered.items() if loops is not None and takes(node, name, loops)}
            if taken:
                scope.replace(node, taken)
                del left[node]
                found = True
    graph.module.recompile()


class _Scope:
    def __init__(
        self, graph: PrimGraph, candidates: Mapping[fx.Node, Collection[str]], ops: Collection[str], folds: Folds, lower: Lower
    ) -> None:
        self.graph, self.candidates, self.ops, self.folds, self.lower = graph, candidates, ops, folds, lower
        self._known: dict[fx.Node, bool] = {}
        self._lowered: dict[fx.Node, Lowered | None] = {}

    def loops(self, node: fx.Node, name: str) -> Lowered | None:
        """An operand as loops: the same for all nodes that have it."""
        source = arguments(node)[name]
        if source not in self._lowered:
            self._lowered[source] = self.lower(*self.group(node, [name]), name)
        return self._lowered[source]

    def is_small(self, node: fx.Node, name: str) -> bool:
        """Whether an operand is for such kernels alone (else it lies in memory anyway), and follows from few bytes."""
        source = arguments(node).get(name)
        if not isinstance(source, fx.Node) or not tensors_of(source.meta["val"]):
            return False
        stored = source
        while stored.op == "call_function" and self.folds(stored):
            stored = stored.all_input_nodes[0]
        if stored.op != "call_function" or not self._readers(stored) <= self.candidates.keys():
            return False
        above = self._above(source)
        read = [each for each in above if not self._inside(each)]
        return len(above) <= LARGEST and SMALLER * sum(map(_bytes, read)) <= _bytes(stored)

    def _readers(self, node: fx.Node) -> set[fx.Node]:
        """Who reads the elements of a value, through views."""
        found: set[fx.Node] = set()
        for user in node.users:
            found |= self._readers(user) if self.folds(user) else {user}
        return found

    def _above(self, source: fx.Node) -> set[fx.Node]:
        """What an operand is computed by, element by element, and what that reads."""
        found, stack = set[fx.Node](), [source]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += node.all_input_nodes if self._inside(node) else []
        return found

    def _inside(self, node: fx.Node) -> bool:
        """Whether a node is a view, or computed element by element on the emitter's route."""
        if node not in self._known:
            self._known[node] = self._found_inside(node)
        return self._known[node]

    def _found_inside(self, node: fx.Node) -> bool:
        if node.op != "call_function" or self.folds(node):
            return node.op == "call_function"
        if not isinstance(node.meta["val"], torch.Tensor) or node.meta["placement"].route is not Route.EMITTER:
            return False
        summary = summarize(node, LOWERINGS, self.folds)
        return summary is not None and summary.ops <= set(self.ops) and not summary.combines and not summary.random

    def group(self, node: fx.Node, names: Sequence[str]) -> tuple[Computing, tuple[fx.Node, ...]]:
        """The prim of a node with these operands, and the nodes that the group reads."""
        inner = fx.Graph()
        given: dict[fx.Node, fx.Node] = {}
        calls: list[fx.Node] = []

        def read(source: fx.Node) -> fx.Node:
            with inner.inserting_before(calls[0] if calls else None):
                placeholder = inner.placeholder(source.name)
            placeholder.meta = {"val": source.meta["val"]}
            given[placeholder] = source
            return placeholder

        inside: dict[fx.Node, fx.Node] = {}

        def compute(source: fx.Node) -> fx.Node:
            if source not in inside and self._inside(source):
                for each in source.all_input_nodes:
                    compute(each)
                inside[source] = inner.node_copy(source, inside.__getitem__)
                calls.append(inside[source])
            elif source not in inside:
                inside[source] = read(source)
            return inside[source]

        # What the kernel reads it reads as it lies, views too, whether or not an operand is computed from it.
        of = arguments(node)
        copies = {of[name]: compute(of[name]) for name in names}
        copies |= {source: read(source) for source in node.all_input_nodes if source not in copies}
        call = inner.node_copy(node, copies.__getitem__)
        results = [call]
        if not isinstance(node.meta["val"], torch.Tensor):
            results = [inner.call_function(operator.getitem, (call, k)) for k in range(len(node.meta["val"]))]
            for result, value in zip(results, node.meta["val"], strict=True):
                result.meta = {"val": value}
        inner.output(tuple(results))
        part = PrimGraph(fx.GraphModule(self.graph.module, inner), backward=self.graph.backward)
        target = Computing(prim_name(node), part, call, tuple(names))
        return target, tuple(given[placeholder] for placeholder in part.placeholders)

    def replace(self, node: fx.Node, loops: Mapping[str, Lowered]) -> None:
        """Puts the group in the place of its prim; what nobody reads any more goes."""
        target, given = self.group(node, list(loops))
        target.lowered = {name: (one, tuple(map(given.index, one.inputs))) for name, one in loops.items()}
        with self.graph.graph.inserting_before(node):
            call = self.graph.graph.call_function(target, given)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        unread, erased = [node], set[fx.Node]()
        while unread:
            each = unread.pop()
            if each.op == "call_function" and not each.users and each not in erased:
                unread += each.all_input_nodes
                erased.add(each)
                self.graph.graph.erase_node(each)


def _bytes(node: fx.Node) -> int:
    """Of a value, as shapes were while tracing."""
    return sum(torch_private.size_hint(tensor) * tensor.dtype.itemsize for tensor in tensors_of(node.meta["val"]))
