"""Segments: nodes on the graph route join into partitions that the vendor's compiler gets whole.

A node's depth counts how often a path from the inputs to it changes between the graph route and anything else. Nodes of the
graph route with equal depth form one partition: no path leaves a partition and comes back, since that would raise the depth.
One pass, linear in nodes and edges.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from vendor_sdk.contract.graph import GraphCompiler
from vendor_sdk.contract.placement import Kind, Placement, Route
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.prims.opset import BY_TARGET


class Partition:
    """A compiled partition, callable as a node's target: its inputs' values in order, the values of its outputs out."""

    def __init__(self, name: str, graph: PrimGraph, run: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self.__name__ = name
        self.__module__ = "vendor_sdk.partition"
        self.graph = graph
        self.run = run

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return self.run(inputs)


def join_segments(graph: PrimGraph, compiler: GraphCompiler) -> None:
    """Replaces the nodes of each partition by one call of its compiled form, in place."""
    _share_outputs(graph)
    depths = _depths(graph)
    members: dict[int, list[fx.Node]] = {}
    for node in graph.calls():
        if _joins(node):
            members.setdefault(depths[node], []).append(node)
    _order_by_depth(graph, depths)
    for depth, nodes in members.items():
        _replace(graph, nodes, compiler, f"partition_{depth // 2}")
    graph.module.recompile()


def _share_outputs(graph: PrimGraph) -> None:
    """Views of one value, and of inputs, among the outputs leave their partitions: as in eager, what shares memory stays so."""
    output = graph.graph.output_node()
    outputs = [value for value in graph.outputs if isinstance(value, fx.Node)]
    roots = Counter(_viewed(node)[0] for node in dict.fromkeys(outputs))
    moved: dict[fx.Node, fx.Node] = {}
    for node in dict.fromkeys(outputs):
        root, views = _viewed(node)
        if not views or (roots[root] < 2 and root.op != "placeholder"):
            continue
        for view in views:
            if view not in moved:
                with graph.graph.inserting_before(output):
                    moved[view] = graph.graph.node_copy(view, lambda n: moved.get(n, n))
                moved[view].meta["placement"] = Placement(Kind.VIEW)
        output.replace_input_with(node, moved[node])
    for view in reversed(list(moved)):
        if not view.users:
            graph.graph.erase_node(view)


def _viewed(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """What ``node`` is a view of through nodes of the graph route, and those nodes, the innermost first."""
    views: list[fx.Node] = []
    while node.op == "call_function" and _joins(node) and node.target in BY_TARGET and BY_TARGET[node.target].is_view:
        views.insert(0, node)
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node, views


def _joins(node: fx.Node) -> bool:
    return bool("placement" in node.meta and node.meta["placement"].route is Route.GRAPH)


def _depths(graph: PrimGraph) -> dict[fx.Node, int]:
    """Odd depths are partitions, even depths everything else."""
    depths: dict[fx.Node, int] = {}
    for node in graph.graph.nodes:
        deepest = max((depths[source] for source in node.all_input_nodes), default=0)
        inside = node.op == "call_function" and _joins(node)
        depths[node] = deepest + (deepest % 2 != int(inside))
    return depths


def _order_by_depth(graph: PrimGraph, depths: dict[fx.Node, int]) -> None:
    calls = list(graph.calls())
    anchor = graph.graph.output_node()
    for node in sorted(calls, key=depths.__getitem__):  # stable: program order within a depth
        anchor.prepend(node)


def _replace(graph: PrimGraph, nodes: list[fx.Node], compiler: GraphCompiler, name: str) -> None:
    inside = set(nodes)
    read = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside))
    inputs = [source for source in read if source.op != "get_attr"]
    subgraphs = [source for source in read if source.op == "get_attr"]
    outputs = [node for node in nodes if any(user not in inside for user in node.users) and not _several(node)]
    inner = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for source in inputs:
        values[source] = inner.placeholder(source.name)
        values[source].meta = dict(source.meta)
    for node in (*subgraphs, *nodes):
        values[node] = inner.node_copy(node, values.__getitem__)
    inner.output(tuple(values[node] for node in outputs))
    placeholders = graph.placeholders
    stay = {placeholders[index] for index in graph.static_inputs} | {n for n in placeholders if n.name in graph.constants}
    part = PrimGraph(
        fx.GraphModule(graph.module, inner),
        backward=graph.backward,
        training=graph.training,
        static_inputs=frozenset(index for index, source in enumerate(inputs) if source in stay),
    )
    part.verify()
    partition = Partition(name, part, compiler.compile(part))
    with graph.graph.inserting_before(nodes[0]):
        call = graph.graph.call_function(partition, tuple(inputs))
        call.meta["val"] = tuple(node.meta["val"] for node in outputs)
        call.meta["placement"] = Placement(Kind.NATIVE, Route.GRAPH)
        call.meta["stack_trace"] = nodes[0].meta.get("stack_trace")
        for index, node in enumerate(outputs):
            item = graph.graph.call_function(operator.getitem, (call, index))
            item.meta = dict(node.meta)
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in (*reversed(nodes), *subgraphs):
        if not node.users:
            graph.graph.erase_node(node)


def _several(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], list | tuple)
