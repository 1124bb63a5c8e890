"""In place: which results take over the memory of an operand that dies there, or of the input that they are written to."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.inplace import InPlace, overwrite
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.memory import Slot
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of
from vendor_sdk.plan.liveness import Aliases, kept, results
from vendor_sdk.plan.order import Steps


@dataclass(frozen=True)
class Rewritten:
    """A kernel that works in place, with the inputs that it still takes."""

    kernel: LoopKernel
    inputs: tuple[fx.Node, ...]


def work_in_place(
    graph: PrimGraph,
    steps: Steps,
    kernels: Mapping[fx.Node, tuple[LoopKernel, Sequence[fx.Node]]],
    *,
    allocated: Callable[[fx.Node], bool],
    fresh: Callable[[fx.Node], bool] = lambda node: False,
    lent: Collection[int] = (),
    own: Collection[Slot] = (),
) -> tuple[dict[Slot, Slot], dict[fx.Node, Rewritten]]:
    """Result to the result (or placeholder) whose memory it takes, and the kernels rewritten for that.

    Placeholders whose memory may be taken are donated ones, and those that a result is to be written to. Memory that a node
    returned may be taken by what dies within the call: outputs get memory of their own.

    Args:
        kernels: kernel and inputs of each emitted node; params are the inputs, then the results.
        allocated: whether the SDK allocates a node's results.
        fresh: of other nodes, whether they return memory that nobody else has.
        lent: donated inputs whose memory is planned in another way.
        own: results that get memory of their own.
    """
    shares = Aliases()
    outputs = [value for value in graph.outputs if isinstance(value, fx.Node)]
    handed_back = _handed_back(graph)
    escaping = {slot for value in outputs if value not in handed_back for slot in shares.of(value)} | kept(steps, shares)
    last: dict[Slot, int] = {}
    shown: set[Slot] = set()  # what a kernel of unknown inside has seen: its result may be the operand itself
    for step, node in enumerate(steps.order):
        for read in steps.reads(node):
            for slot in shares.of(read):
                last[slot] = step
                if not allocated(node) and not shares.shows(node):
                    shown.add(slot)
    # Results in donated memory join it.
    of_others = {(graph.placeholders[index], 0) for index in graph.donated_inputs if index not in lent}
    of_others |= {
        (node, index)
        for node in steps.order
        if not allocated(node) and fresh(node)
        for index, tensor in enumerate(results(node))
        if tensor is not None
    }
    goals = {slot: goal for slot, goal in _goals(graph, shares).items() if goal not in escaping | shown and allocated(slot[0])}
    taken: dict[Slot, Slot] = {}
    given: set[Slot] = set()  # whose memory is taken
    rewritten: dict[fx.Node, Rewritten] = {}

    def dying(inputs: Sequence[fx.Node], step: int) -> list[tuple[fx.Node, Slot]]:
        """The operands of a step that nobody else has after it, and whose memory each of them is."""
        counts = Counter(owner for source in inputs for owner in shares.of(source))
        return [
            (source, owners[0])
            for source in inputs
            if len(owners := shares.of(source)) == 1
            and last[owners[0]] == step
            and counts[owners[0]] == 1
            and owners[0] not in escaping
            and owners[0] not in given
            and _whole(source, owners[0])
        ]

    def may_have(slot: Slot, owner: Slot) -> bool:
        """Whether a result may have the memory of a dying operand, as far as others are concerned."""
        if slot in goals:
            return owner == goals[slot]
        if owner in of_others:
            return slot not in escaping and owner not in shown
        return allocated(owner[0]) and owner[0].op == "call_function" and not (slot in escaping and owner in shown)

    for step, node in enumerate(steps.order):
        for index, tensor in enumerate(results(node) if allocated(node) else ()):
            goal = goals.get((node, index)) if tensor is not None else None
            if goal is not None and last.get(goal, -1) < step:
                taken[node, index] = goal  # nobody reads there any more
                given.add(goal)
        if node not in kernels:
            continue
        kernel, inputs = kernels[node]
        name = {source: p.name for source, p in zip(inputs, kernel.params[: len(inputs)], strict=True)}
        free = {name[source]: owner for source, owner in dying(inputs, step)}
        if not free:
            continue
        pairs, over = InPlace(kernel), dict[str, str]()
        filled = [index for index, tensor in enumerate(results(node)) if tensor is not None]
        for index, result in zip(filled, kernel.params[len(inputs) :], strict=True):
            slot = (node, index)
            for operand in pairs.candidates(result.name) if slot not in taken and slot not in own else ():
                if operand in free and may_have(slot, free[operand]) and pairs.allows(operand, result.name):
                    over[operand] = result.name
                    owner = taken[slot] = free.pop(operand)
                    given.add(owner)
                    if owner in of_others:
                        of_others.add(slot)
                    if owner in shown:
                        shown.add(slot)
                    break
        if over:
            left = tuple(source for source in inputs if name[source] not in over)
            rewritten[node] = Rewritten(overwrite(kernel, over), left)
    return taken, rewritten


def _handed_back(graph: PrimGraph) -> set[fx.Node]:
    """Written inputs that are outputs only as the caller's own tensors: these show what was written, not what was there."""
    written = {node for node, _ in graph.written}
    placed = [(value, index) for index, value in enumerate(graph.outputs) if value in written]
    number = {node: index for index, node in enumerate(graph.placeholders)}
    copied = {
        value
        for value, index in placed
        if index >= len(graph.returned) or ("input", number[value]) not in graph.output_layouts[index].alias_of
    }
    return {value for value, _ in placed} - copied


def _goals(graph: PrimGraph, shares: Aliases) -> dict[Slot, Slot]:
    """Results that are only to be written to one input each, which lies in memory as the result would: result to input."""
    counts = Counter(slot for value in graph.outputs if isinstance(value, fx.Node) for slot in shares.of(value))
    storages = Counter(torch_private.storage_key(t) for node in graph.placeholders for t in tensors_of(node.meta["val"]))
    goals = {}
    for placeholder, value in graph.written:
        slots = shares.of(value)
        there = placeholder.meta["val"]
        if (
            len(slots) == 1
            and counts[slots[0]] == 1
            and _whole(value, slots[0])
            and storages[torch_private.storage_key(there)] == 1
            and torch_private.surely_contiguous(there)
        ):
            goals[slots[0]] = (placeholder, 0)
    return goals


def _whole(source: fx.Node, owner: Slot) -> bool:
    """Whether an input is its owner's memory as it stands: the node itself, or one of its several results."""
    return source is owner[0] or (source.target is operator.getitem and source.args[0] is owner[0])
