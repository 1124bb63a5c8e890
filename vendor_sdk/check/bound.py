"""The bound of a prim's row, for a graph that is one prim: how far off results may be where nothing else is computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.errors import WrongResultError
from vendor_sdk.ir.primgraph import PrimGraph, map_nodes
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.reference import flat, reference
from vendor_sdk.prims.samples import Sample

STAGE = "bound"


def beyond_bound(graph: PrimGraph, inputs: Sequence[Any], found: Sequence[Any], backend: str) -> WrongResultError | None:
    """What a call's results are wrong in by the row of the graph's one prim; None where they are right, where the graph is more
    than a prim, or draws random numbers.

    Args:
        graph: as captured.
        inputs: what the call got, without the graph's constants.
        found: its results, in the order of the graph's outputs.
        backend: name, for the error.
    """
    calls = list(graph.calls())
    prims = [node for node in calls if node.target is not operator.getitem]
    if len(prims) != 1 or prims[0].target not in BY_TARGET or torch_private.draws_numbers(prims[0].target):
        return None
    (node,) = prims
    results = _results(graph, node, found)
    if results is None or any(each.op == "get_attr" for each in node.all_input_nodes):
        return None
    row = BY_TARGET[node.target]
    values = dict(zip((each.name for each in graph.placeholders), [*inputs, *graph.constants.values()], strict=True))
    args, kwargs = map_nodes((node.args, node.kwargs), lambda each: _on_host(values[each.name]))
    sample = Sample(tuple(args), dict(kwargs))
    verdict = violations(row.bound, row, sample, results, reference(row, sample))
    if verdict.ok:
        return None
    place = "" if verdict.index is None else f", at {list(verdict.index)}"
    return WrongResultError(
        f"{backend}: prim {row.name!r} is beyond the bound of its row{place}: {verdict.message}",
        stage=STAGE,
        node=node.name,
        error=verdict.error,
        why=f"the error is {verdict.error:.3g} times what the row allows",
        fix=f"See `vendor-sdk ops {row.name}` for the bound; `vendor-sdk conformance --prims {row.name}` has it too.",
    )


def _results(graph: PrimGraph, node: fx.Node, found: Sequence[Any]) -> Any:
    """The results of a prim in its own order; None where some are no outputs."""
    by_node = dict(zip(graph.outputs, found, strict=False))
    if node in by_node:
        return _on_host(by_node[node])
    parts = {user.args[1]: _on_host(by_node[user]) for user in node.users if user in by_node}
    expected = flat(node.meta["val"])
    if any(value is not None and index not in parts for index, value in enumerate(expected)):
        return None
    return tuple(parts.get(index) for index in range(len(expected)))


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
