"""Scheduling: which prims run as one kernel, and in what order.

summaries  what each prim reads, element by element       lower/summary.py
fuse       groups, by one pass in program order           fuse.py, group.py, space.py, reach.py
batch      independent groups that share a launch         batch.py
apply      each group becomes one node of the graph       apply.py
order      an order that runs, and holds few bytes        order.py
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import replace

from torch import fx

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.lower import CONTRACTIONS, LOWERINGS
from vendor_sdk.lower.group import TOTALS
from vendor_sdk.lower.summary import summarize
from vendor_sdk.lower.view import is_view
from vendor_sdk.schedule.apply import apply
from vendor_sdk.schedule.fuse import Refusal, Schedule, fuse

__all__ = ["Refusal", "Schedule", "schedule", "usable"]


def schedule(graph: PrimGraph, limits: Limits, ops: Collection[str], *, fuel: int | None = None) -> Schedule:
    """Fuses the nodes on the emitter route of a placed graph, in place.

    Args:
        limits: of the emitter.
        ops: keys of its table.
        fuel: at most so many joins, to bisect a wrong result.
    """
    emitted = {
        node
        for node in graph.calls()
        if node.target is not operator.getitem and "placement" in node.meta and node.meta["placement"].route is Route.EMITTER
    }
    summaries = {node: summarize(node, LOWERINGS, _folds) for node in emitted}
    found = {node: summary for node, summary in summaries.items() if summary and summary.ops <= set(ops)}
    contractions = {node for node in emitted if prim_name(node) in CONTRACTIONS}
    plan = fuse(
        graph,
        found,
        emitted,
        contractions,
        _folds,
        usable(limits, ops),
        rows="nest" in ops,
        totals={op for op, mode in TOTALS.items() if "scratch" in ops and f"store.{mode}" in ops},
        fuel=fuel,
    )
    apply(graph, plan, _folds)
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
