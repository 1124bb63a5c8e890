"""Scheduling: which prims run as one kernel, and in what order.

summaries  what each prim reads, element by element       lower/summary.py
computed   operands that the backend's kernels compute    computed.py
fuse       groups, by one pass in program order           fuse.py, group.py, space.py, reach.py
again      what is computed again rather than stored    again.py
rivals     prims that a kernel of the backend runs too    rivals.py
batch      independent groups that share a launch         batch.py
moved      images stored in the order of their copies   moved.py
apply      each group becomes one node of the graph       apply.py
order      an order that runs, and holds few bytes        order.py
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torch import fx

from vendor_sdk.contract.backend import Decline, Support
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.contract.placement import Kind, Placement, Route
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.lower import CONTRACTIONS, LOWERINGS
from vendor_sdk.lower.group import TOTALS
from vendor_sdk.lower.summary import summarize
from vendor_sdk.lower.view import is_view
from vendor_sdk.schedule.apply import apply
from vendor_sdk.schedule.computed import Lower, Takes, compute_operands
from vendor_sdk.schedule.fuse import Refusal, Schedule, fuse
from vendor_sdk.schedule.moved import store_moved
from vendor_sdk.schedule.rivals import gains

__all__ = ["Refusal", "Schedule", "schedule", "usable"]


def schedule(
    graph: PrimGraph,
    limits: Limits,
    ops: Collection[str],
    *,
    rivals: Collection[fx.Node] = (),
    takes_over: Callable[[fx.Node, int, int], Support] | None = None,
    computes: Mapping[fx.Node, Collection[str]] | None = None,
    lower_operand: Lower | None = None,
    takes_operand: Takes | None = None,
    fuel: int | None = None,
) -> Schedule:
    """Fuses the nodes on the emitter route of a placed graph, in place.

    Args:
        limits: of the emitter.
        ops: keys of its table.
        rivals: nodes on the kernel route that the emitter could run.
        takes_over: whether it does, given the bytes and the launches that this saves; they are on its route then.
        computes: nodes on the kernel route to names of operands that their kernels may compute.
        lower_operand, takes_operand: what such operands are as loops, and whether a kernel takes one.
        fuel: at most so many joins, to bisect a wrong result.
    """
    if computes and lower_operand is not None and takes_operand is not None and fuel != 0:
        compute_operands(graph, computes, ops, _folds, lower_operand, takes_operand)
    emitted = {
        node
        for node in graph.calls()
        if node.target is not operator.getitem and "placement" in node.meta and node.meta["placement"].route is Route.EMITTER
    }
    summaries = {node: summarize(node, LOWERINGS, _folds) for node in {*emitted, *rivals}}
    found = {node: summary for node, summary in summaries.items() if summary and summary.ops <= set(ops)}
    contractions = {node for node in {*emitted, *rivals} if prim_name(node) in CONTRACTIONS}

    def fused(own: set[fx.Node]) -> Schedule:
        return fuse(
            graph,
            found,
            own,
            contractions,
            _folds,
            usable(limits, ops),
            rows="nest" in ops,
            totals={op for op, mode in TOTALS.items() if "scratch" in ops and f"store.{mode}" in ops},
            fuel=fuel,
        )

    plan = fused(emitted)
    if rivals and takes_over is not None:
        plan = _among_rivals(graph, plan, emitted, set(rivals), fused, takes_over)
    store_moved(graph, plan, contractions & (emitted | plan.taken_over), _folds, fuel)
    apply(graph, plan, _folds)
    return plan


def _among_rivals(
    graph: PrimGraph,
    apart: Schedule,
    emitted: set[fx.Node],
    rivals: set[fx.Node],
    fused: Callable[[set[fx.Node]], Schedule],
    takes_over: Callable[[fx.Node, int, int], Support],
) -> Schedule:
    """The schedule with those rivals fused that the emitter takes over; ``apart`` is the one with none."""
    together = fused(emitted | rivals)
    saved = gains(graph, together, apart, rivals, _folds)
    answers = {node: takes_over(node, *saved[node]) for node in graph.calls() if node in rivals}
    taken = {node for node, answer in answers.items() if not isinstance(answer, Decline)}
    for node in taken:
        node.meta["placement"] = Placement(Kind.NATIVE, Route.EMITTER)
    plan = together if taken == rivals else fused(emitted | taken) if taken else apart
    plan.taken_over = taken
    for node, answer in answers.items():
        readers = [user.name for user in node.users if user.op == "call_function"]
        if isinstance(answer, Decline) and readers:
            plan.refusals.append(Refusal(node.name, readers[0], answer.reason))
    return plan


def usable(limits: Limits, ops: Collection[str]) -> Limits:
    """The limits as far as the emitter has what they are about."""
    return limits if "local" in ops else replace(limits, local_bytes=0)


def _folds(node: fx.Node) -> bool:
    """Whether a node is a view that costs nothing: its readers fold it into their index maps."""
    if not is_view(node):
        return False
    placement = node.meta.get("placement")
    return placement is None or placement.kind is Kind.VIEW
