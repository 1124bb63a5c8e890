"""In place: which results take over the memory of an operand that dies there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from vendor_sdk.ir.inplace import may_overwrite, overwrite
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.memory import Slot
from vendor_sdk.ir.primgraph import PrimGraph
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
    donated: Collection[fx.Node],
) -> tuple[dict[Slot, Slot], dict[fx.Node, Rewritten]]:
    """Result to the result (or donated placeholder) whose memory it takes, and the kernels rewritten for that.

    Args:
        kernels: kernel and inputs of each emitted node; params are the inputs, then the results.
        allocated: whether the SDK allocates a node's results.
        donated: placeholders whose memory the caller gives away.
    """
    shares = Aliases(steps)
    outputs = {slot for value in graph.outputs if isinstance(value, fx.Node) for slot in shares.of(value)}
    escaping = outputs | kept(steps, shares)
    last: dict[Slot, int] = {}
    shown: set[Slot] = set()  # what a kernel of unknown inside has seen: its result may be the operand itself
    for step, node in enumerate(steps.order):
        for read in steps.reads(node):
            for slot in shares.of(read):
                last[slot] = step
                if not allocated(node) and not shares.shows(node):
                    shown.add(slot)
    of_caller = {(node, 0) for node in donated}  # results in donated memory join it
    taken: dict[Slot, Slot] = {}
    rewritten: dict[fx.Node, Rewritten] = {}
    for step, node in enumerate(steps.order):
        if node not in kernels:
            continue
        kernel, inputs = kernels[node]
        inputs = list(inputs)
        filled = [index for index, tensor in enumerate(results(node)) if tensor is not None]
        for position, index in enumerate(filled):
            slot = (node, index)
            result = kernel.params[len(inputs) + position]
            for source in list(inputs):
                owners = shares.of(source)
                if len(owners) != 1 or last[owners[0]] != step or owners[0] in taken.values() or owners[0] in escaping:
                    continue
                (owner,) = owners
                if owner in of_caller:
                    if slot in escaping or owner in shown:
                        continue
                elif not allocated(owner[0]) or owner[0].op != "call_function" or (slot in escaping and owner in shown):
                    continue
                if sum(owner in shares.of(other) for other in inputs) != 1 or not _whole(source, owner):
                    continue
                operand = kernel.params[inputs.index(source)]
                if may_overwrite(kernel, operand.name, result.name):
                    kernel = overwrite(kernel, operand.name, result.name)
                    inputs.remove(source)
                    taken[slot] = owner
                    if owner in of_caller:
                        of_caller.add(slot)
                    if owner in shown:
                        shown.add(slot)
                    rewritten[node] = Rewritten(kernel, tuple(inputs))
                    break
    return taken, rewritten


def _whole(source: fx.Node, owner: Slot) -> bool:
    """Whether an input is its owner's memory as it stands: the node itself, or one of its several results."""
    return source is owner[0] or (source.target is operator.getitem and source.args[0] is owner[0])
