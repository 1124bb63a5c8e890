"""Whether the launches of a placed graph can be recorded and replayed, and if not, why."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch

from vendor_sdk import torch_private
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.ir.panels import panels
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of

LEAST = 4
"""Launches of a graph from which a replay, which looks at operands and results first, takes less time than they do."""


def why_not_recorded(graph: PrimGraph, known: Collection[str], device: str, launches: int) -> str:
    """The reason; ``""``: the graph can be recorded.

    Args:
        known: shape symbols that the inputs of the graph determine.
        device: type of the device that the launches run on.
        launches: of one call.
    """
    if launches < LEAST:
        return f"{launches} launch{'es' * (launches != 1)} take less time than a replay"
    for node in graph.placeholders:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and value.device.type != device and node.name not in graph.constants:
            return f"operand {node.name} is on {value.device.type}"
    for node in graph.calls():
        placement = node.meta.get("placement")
        if node.target is operator.getitem:
            continue
        if node.target is panels:
            return "parameters are kept in panels, which are looked at before each call"
        if placement is None:
            continue
        if placement.kind is Kind.HOST:
            return f"{prim_name(node)} runs on the host"
        if placement.route is Route.GRAPH:
            return "a partition is launched by a compiler of its own"
        if _reads_back(node.meta["val"], known):
            return f"{prim_name(node)} tells a number or size that only its operands decide"
    return ""


def _reads_back(value: object, known: Collection[str]) -> bool:
    """Whether a result is, or has as a size, a number that is not known before the graph runs."""
    values = value if isinstance(value, list | tuple) else [value]
    sizes = [size for tensor in tensors_of(values) for size in tensor.shape]
    numbers = [n for n in (*values, *sizes) if isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool)]
    return any(not {str(s) for s in torch_private.sympy_of(n).free_symbols} <= set(known) for n in numbers)
