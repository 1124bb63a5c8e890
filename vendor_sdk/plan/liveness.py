"""Liveness: which buffers the steps of a graph need, and how long each lives.

A view lives in the memory of what it shows, so a buffer lives until the last step that reads it or any view of it. Outputs, and
operands of whatever may keep them (foreign operators, collectives, control flow, compiled partitions), get memory of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.ir.index import ZERO, Int, from_size, product, symbols
from vendor_sdk.ir.memory import Buffer, Home, MemoryPlan, Slot, part_name
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.plan.order import Steps
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET
from vendor_sdk.prims.row import Family


def plan_memory(
    graph: PrimGraph,
    steps: Steps,
    *,
    allocated: Callable[[fx.Node], bool],
    in_place: Mapping[Slot, Slot],
    known: Collection[str],
    alignment: int,
    arena: bool,
) -> MemoryPlan:
    """The buffers of a placed graph with their lifetimes and homes; offsets come later (``offsets.lay_out``).

    Args:
        allocated: whether the SDK allocates a node's results (emitted and destination kernels), rather than the node itself.
        in_place: result to the result or input whose memory it takes over.
        known: shape symbols whose value is known before the first step; what depends on others is allocated when it is made.
        arena: whether the backend's memory can be planned at all; otherwise every buffer has memory of its own.
    """
    shares = Aliases()
    outputs = {slot for value in graph.outputs if isinstance(value, fx.Node) for slot in shares.of(value)}
    escaping = outputs | kept(steps, shares)
    buffers: list[Buffer] = []
    slots: dict[Slot, int] = {}
    for step, node in enumerate(steps.order):
        for read in steps.reads(node):
            for slot in shares.of(read):
                if slot in slots:
                    buffers[slots[slot]].last = step
        if node.op != "call_function" or shares.shows(node):
            continue
        for index, tensor in enumerate(results(node)):
            if tensor is None:
                continue
            slot = (node, index)
            source = in_place.get(slot)
            if source is not None and source in slots:
                number = slots[source]
                buffers[number].slots.append(slot)
                buffers[number].last = step
                if slot in escaping:
                    buffers[number].home = Home.BLOCK
            elif source is not None:
                continue  # the memory of an input
            else:
                number = len(buffers)
                nbytes = _nbytes(tensor, known)
                home = Home.ELSEWHERE
                if allocated(node) and nbytes is not None and arena:
                    home = Home.BLOCK if slot in escaping else Home.ARENA
                name = node.name if isinstance(node.meta["val"], torch.Tensor) else part_name(node, index)
                buffers.append(Buffer(name, nbytes if nbytes is not None else ZERO, step, step, home, [slot]))
            slots[slot] = number
    end = max(len(steps.order) - 1, 0)
    for slot in outputs:
        if slot in slots:
            buffers[slots[slot]].last = end
    return MemoryPlan(steps.order, buffers, slots, alignment)


def last_reads(graph: PrimGraph, steps: Steps, in_place: Mapping[Slot, Slot]) -> dict[fx.Node, int]:
    """The last step at which something lies in the memory of a placeholder: itself, a view, or a result that takes it over."""
    shares = Aliases()
    end = len(steps.order) - 1
    last: dict[fx.Node, int] = {}

    def read(slot: Slot, step: int) -> None:
        while slot in in_place:
            slot = in_place[slot]
        if slot[0].op == "placeholder":
            last[slot[0]] = max(step, last.get(slot[0], 0))

    for step, node in enumerate(steps.order):
        for operand in (*steps.reads(node), node):
            for slot in shares.of(operand):
                read(slot, step)
    escaping = {slot for value in graph.outputs if isinstance(value, fx.Node) for slot in shares.of(value)}
    for slot in escaping | kept(steps, shares):
        read(slot, end)
    return last


class Aliases:
    """Whose memory a value lies in."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, tuple[Slot, ...]] = {}

    def shows(self, node: fx.Node) -> bool:
        """Whether ``node`` makes no memory of its own: a view, or one of several results."""
        return node.target is operator.getitem or ("placement" in node.meta and node.meta["placement"].kind is Kind.VIEW)

    def of(self, node: fx.Node) -> tuple[Slot, ...]:
        """The results in whose memory the value of ``node`` lies; several where it has several."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._find(node)
        return known

    def _find(self, node: fx.Node) -> tuple[Slot, ...]:
        view: fx.Node | None = None
        while node.op == "call_function" and self.shows(node):
            view, node = node, node.args[0]  # type: ignore[assignment]
        if node.op == "placeholder":
            return ((node, 0),)
        if view is not None and view.target is operator.getitem:
            index = view.args[1]
            assert isinstance(index, int)
            return ((node, index),) if isinstance(node.meta["val"][index], torch.Tensor) else ()
        return tuple((node, i) for i, tensor in enumerate(results(node)) if tensor is not None)


def results(node: fx.Node) -> list[torch.Tensor | None]:
    """The tensors a node computes, ``None`` for those it leaves out or that are numbers."""
    value: Any = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [v if isinstance(v, torch.Tensor) else None for v in values]


def kept(steps: Steps, shares: Aliases) -> set[Slot]:
    """Operands of nodes that may keep a reference beyond their own step."""
    return {slot for node in steps.order if may_keep(node) for read in steps.reads(node) for slot in shares.of(read)}


def may_keep(node: fx.Node) -> bool:
    """Whether nothing is known of what a node does with its operands. Kernels and torch's own operators let go of them."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    row = BY_TARGET.get(node.target)
    if row is not None:
        return row.family in (Family.COLLECTIVE, Family.CONTROL)
    placement = node.meta.get("placement")
    if placement is None or placement.kind is Kind.WRAPPER:
        return False
    native = placement.kind is Kind.NATIVE and placement.route in (Route.KERNEL, Route.EMITTER)
    return not native and node.target not in COMPOSITE_BY_TARGET


def _nbytes(tensor: torch.Tensor, known: Collection[str]) -> Int | None:
    """Bytes of a contiguous tensor; None when a size is not known before the first step."""
    try:
        size = product([from_size(size) for size in tensor.shape]) * tensor.dtype.itemsize
    except ValueError:  # an expression outside the index algebra
        return None
    return size if symbols(size).keys() <= set(known) else None
