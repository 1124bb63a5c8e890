"""The schedule made true: each group of the graph becomes one node, and the nodes stand in an order that runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import fx

from vendor_sdk.contract.placement import Kind, Placement, Route
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.fused import Fused, Loops, Place, Total
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Range
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.lower.build import result_of
from vendor_sdk.schedule.again import Again
from vendor_sdk.schedule.fuse import Schedule
from vendor_sdk.schedule.group import Group
from vendor_sdk.schedule.order import order
from vendor_sdk.schedule.space import moved, names

LONGEST = 60
"""Characters of a kernel's name."""


def apply(graph: PrimGraph, schedule: Schedule, folds: Callable[[fx.Node], bool]) -> None:
    """Replaces the members of each group by one call of a ``Fused``, in place. Groups of one prim that reads memory alone,
    and all of whose results are read, stay as they are."""
    position = {node: place for place, node in enumerate(graph.graph.nodes)}
    done = schedule.inlined.keys() | schedule.again.unread
    stored: dict[fx.Node, fx.Node] = {}
    for groups in schedule.kernels:
        nodes = [node for group in groups for node in group.members]
        # A prim with loops of its own reads what is inlined elsewhere from memory.
        inlined = set(schedule.inlined) if groups[0].shape != "moved" else set()
        copied = inlined | {node for group in groups for node in schedule.again.by.get(group, ())}
        if len(nodes) > 1 or _reads_inlined(nodes[0], copied, folds) or _partly_read(nodes[0]):
            call = _replace(graph, groups, copied, schedule.again, stored, folds, position)
            done |= set(nodes)
            if call is None:
                continue
            position[call] = max(position[node] for node in nodes)
            for item in call.users:
                position[item] = position[call]
    _drop(graph, done)
    order(graph, position, folds)
    graph.module.recompile()


def _partly_read(node: fx.Node) -> bool:
    """Whether nobody reads some of a prim's results: a group stores the others alone."""
    value = node.meta["val"]
    return isinstance(value, list | tuple) and len({user.args[1] for user in node.users}) < len(tensors_of(value))


def _reads_inlined(node: fx.Node, inlined: set[fx.Node], folds: Callable[[fx.Node], bool]) -> bool:
    stack = list(node.all_input_nodes)
    while stack:
        source = stack.pop()
        if source in inlined:
            return True
        if folds(source):
            stack.extend(source.all_input_nodes)
    return False


def _replace(
    graph: PrimGraph,
    groups: list[Group],
    copied: Collection[fx.Node],
    again: Again,
    stored: dict[fx.Node, fx.Node],
    folds: Callable[[fx.Node], bool],
    position: Mapping[fx.Node, int],
) -> fx.Node | None:
    """The call that takes the place of groups that share a launch; None where others compute all they would.

    Args:
        copied: what it computes beside their members.
        stored: values of members, to where calls return them; its own are added.
    """
    members = sorted((node for group in groups for node in group.members), key=position.__getitem__)
    inside = set(members)
    inner = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    operands: dict[str, fx.Node] = {}
    calls: list[fx.Node] = []

    def copy(node: fx.Node) -> fx.Node:
        if node in copies:
            return copies[node]
        base, _ = result_of(node)
        if base in inside or node in copied or (node.op == "call_function" and folds(node)):
            for source in node.all_input_nodes:
                copy(source)
            copies[node] = inner.node_copy(node, copies.__getitem__)
            calls.append(copies[node])
        elif node in stored:  # One operand, whoever else reads it by the name that it has now.
            copies[node] = copy(stored[node])
        else:
            with inner.inserting_before(calls[0] if calls else None):
                copies[node] = inner.placeholder(node.name)
            copies[node].meta = {"val": node.meta["val"], **_lies(node)}
            operands[copies[node].name] = node
        return copies[node]

    for node in members:
        copy(node)
    results = [
        value
        for node in members
        for value in _values(node)
        if node not in again.unread and (value in again.operands or _escapes(value, inside, copies))
    ]
    if not results:
        return None
    inner.output(tuple(copies.get(value) or copy(value) for value in results))
    name = "_".join(dict.fromkeys(_short(prim_name(node)) for node in members))[:LONGEST].rstrip("_")
    # Placeholders were made in the order they were met; the call passes them in that order.
    part = PrimGraph(fx.GraphModule(graph.module, inner), backward=graph.backward)
    arguments = tuple(operands[placeholder.name] for placeholder in part.placeholders)
    places: dict[fx.Node, list[int]] = {}
    for k, value in enumerate(results):
        places.setdefault(result_of(value)[0], []).append(k)
    loops = tuple(_loops(group, places, copies) for group in groups if group.shape != "moved")
    fused = Fused(name, part, loops)
    with graph.graph.inserting_before(members[-1]):
        call = graph.graph.call_function(fused, arguments)
        vals = tuple(value.meta["val"] for value in results)
        call.meta = {
            "val": vals[0] if len(vals) == 1 else vals,
            "placement": Placement(Kind.NATIVE, Route.EMITTER),
            "stack_trace": members[-1].meta.get("stack_trace"),
            **_lies(results[0]),
        }
        for number, value in enumerate(results):
            item = call
            if len(results) > 1:
                item = graph.graph.call_function(operator.getitem, (call, number))
                item.meta = dict(value.meta)
            stored[value] = item
            value.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    return call


def _lies(node: fx.Node) -> dict[str, bool]:
    """On which side of the transfers a value lies, in a graph that has any: what takes its place lies there too."""
    return {"on_device": node.meta["on_device"]} if "on_device" in node.meta else {}


def _values(node: fx.Node) -> list[fx.Node]:
    """A node, or what picks its single results."""
    if tensors_of(node.meta["val"]) and isinstance(node.meta["val"], list | tuple):
        return [user for user in node.users if user.target is operator.getitem]
    return [node]


def _short(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")


def _loops(group: Group, results: Mapping[fx.Node, Sequence[int]], copies: Mapping[fx.Node, fx.Node]) -> Loops:
    rows = {name: f"x{k}" for k, name in enumerate(group.rows)}
    columns = {name: f"y{k}" for k, name in enumerate(group.columns)}
    sizes = {**group.rows, **group.columns}
    values: dict[str, Int] = {old: ix.variable(new, sizes[old]) for old, new in {**rows, **columns}.items()}

    def place(node: fx.Node) -> Place:
        return Place(group.where[node], moved(group.members[node], values))

    return Loops(
        tuple(Range(rows[name], size) for name, size in group.rows.items()),
        tuple(Range(columns[name], size) for name, size in group.columns.items()),
        tuple(sorted((k, place(node)) for node in group.members for k in results.get(node, ()))),
        tuple(
            Total(
                copies[node].name,
                "element" if _varies(group, node) else "row",
                moved(group.members[node], values),
                moved(index, values),
            )
            for node, index in group.reduced.items()
        ),
    )


def _varies(group: Group, node: fx.Node) -> bool:
    """Whether what a total combines has one value an element: then so has its result one a column."""
    return bool(names(group.members[node]) & group.columns.keys())


def _escapes(value: fx.Node, inside: set[fx.Node], copies: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether a value is read by something outside that the group holds a copy of: a view, an inlined prim."""
    stack = [user for user in value.users if user not in inside]
    seen: set[fx.Node] = set()
    while stack:
        user = stack.pop()
        if user in seen or user in inside:
            continue
        seen.add(user)
        if user not in copies:
            return True
        stack.extend(user.users)
    return False


def _drop(graph: PrimGraph, done: set[fx.Node]) -> None:
    """Erases prims that run elsewhere now, and views, that nobody reads any more."""
    for node in reversed(list(graph.graph.nodes)):
        if node.op != "call_function" or node.users or not tensors_of(node.meta.get("val")):
            continue
        placed = node.meta.get("placement")
        if result_of(node)[0] in done or (placed is not None and placed.kind is Kind.VIEW):
            graph.graph.erase_node(node)
