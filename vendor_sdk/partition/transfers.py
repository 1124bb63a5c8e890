"""Transfers: makes every crossing between host and device memory a node of its own, once per value and direction.

Only for devices with memory of their own. Views live where their source lives.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import fx

from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.primgraph import PrimGraph, map_nodes, tensors_of
from vendor_sdk.ir.transfer import to_device, to_host


def insert_transfers(graph: PrimGraph, *, narrow_int64: bool) -> None:
    """Inserts ``to_device`` and ``to_host`` nodes in place; afterwards ``meta["on_device"]`` is set on every value.

    Args:
        narrow_int64: int64 values are int32 on the device (``Legalization.no_int64``): the fake values of device nodes and
            their ``dtype`` arguments are rewritten so; transfers convert.
    """
    moved: dict[tuple[fx.Node, bool], fx.Node] = {}
    returned = {value for value in graph.outputs if isinstance(value, fx.Node)}
    shared = _shared(graph)

    def at(value: fx.Node, device: bool, user: fx.Node) -> fx.Node:
        if not tensors_of(value.meta.get("val")) or value.meta["on_device"] == device:
            return value
        fake = value.meta["val"]
        if user.op == "output" and _is_view(value) and (returned.intersection(_above(value)) or _storage(value) in shared):
            # Returned beside others of its storage: the caller was promised one, so the view is taken on the host.
            if (value, device) not in moved:
                viewed = value.args[0]
                assert isinstance(viewed, fx.Node)
                source = at(viewed, device, user)
                with graph.graph.inserting_before(user):
                    taken = graph.graph.node_copy(value, lambda n: source if n is viewed else n)
                if isinstance(fake, torch.Tensor):
                    taken.meta["val"] = fake.to(value.meta.get("host_dtype", fake.dtype))
                taken.meta["on_device"] = False
                moved[value, device] = taken
            return moved[value, device]
        if (value, device) not in moved:
            with graph.graph.inserting_before(user):
                node = graph.graph.call_function(to_device if device else to_host, (value,))
            host_dtype = value.meta.get("host_dtype", fake.dtype)
            if device and narrow_int64:
                fake = _narrow(fake)
            elif not device and fake.dtype != host_dtype:
                fake = fake.to(host_dtype)
            node.meta.update(val=fake, on_device=device, host_dtype=host_dtype, stack_trace=value.meta.get("stack_trace"))
            moved[value, device] = node
        return moved[value, device]

    for node in list(graph.graph.nodes):
        if node.op in ("placeholder", "get_attr"):
            node.meta["on_device"] = False
            continue
        device = _runs_on_device(node)
        node.meta["on_device"] = device
        if not _follows_source(node):
            node.args = map_nodes(node.args, lambda n: at(n, device, node))
            node.kwargs = map_nodes(node.kwargs, lambda n: at(n, device, node))
        if device and narrow_int64:
            _narrow_node(node)
    graph.module.recompile()


def _shared(graph: PrimGraph) -> set[fx.Node]:
    """Values whose storage several results share. Views that only the backward graph gets share nothing that anybody sees, and
    cross alone, so that they stay resident."""
    saved = set(graph.saved_outputs.values())
    results = dict.fromkeys(
        value for index, value in enumerate(graph.outputs) if isinstance(value, fx.Node) and index not in saved
    )
    counts = Counter(_storage(value) for value in results)
    return {value for value, count in counts.items() if count > 1}


def _storage(node: fx.Node) -> fx.Node:
    """What ``node`` is a view of in the end; itself where it is none."""
    return (_above(node) or [node])[-1]


def _above(node: fx.Node) -> list[fx.Node]:
    """What ``node`` is a view of, directly and indirectly, in this order."""
    found = []
    while _is_view(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
        found.append(node)
    return found


def _is_view(node: fx.Node) -> bool:
    """Whether a node reads the storage of its source: results of a kernel have one each, pieces of a view one together."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return _is_view(source)
    return bool(node.meta["placement"].kind is Kind.VIEW)


def _follows_source(node: fx.Node) -> bool:
    """Views and single results live where what they are taken from lives."""
    if node.op != "call_function":
        return False
    return node.target is operator.getitem or node.meta["placement"].kind is Kind.VIEW


def _runs_on_device(node: fx.Node) -> bool:
    if node.op == "output":
        return False
    if _follows_source(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return bool(source.meta["on_device"])
    return bool(node.meta["placement"].kind is Kind.NATIVE)


def _narrow(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(torch.int32) if value.dtype is torch.int64 else value
    if isinstance(value, list | tuple):
        return tuple(_narrow(item) for item in value)
    return value


def _narrow_node(node: fx.Node) -> None:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        node.meta["host_dtype"] = value.dtype
    node.meta["val"] = _narrow(value)
    if node.kwargs.get("dtype") is torch.int64:
        node.kwargs = {**node.kwargs, "dtype": torch.int32}
