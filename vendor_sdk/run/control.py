"""Branches and loops: the host decides which of their graphs runs next; the backend compiled these as it does any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.ir.strided import count_in_elements

Run = Callable[..., Sequence[Any]]
Runs = dict[fx.GraphModule, Run]
"""What runs each subgraph: takes its operands, returns its results."""

_RUNS = "runs"
"""Key of a node's metadata."""


@dataclass(frozen=True)
class Body:
    """A subgraph to compile.

    Attributes:
        graph: a copy, with results in a tuple and counts in elements.
        module: the subgraph.
        runs: where its node looks for what runs it.
    """

    graph: PrimGraph
    module: fx.GraphModule
    runs: Runs


def bodies(graph: PrimGraph, fallback: Callable[[str], Any]) -> list[Body]:
    """The subgraphs of branches and loops that the host decides, where operands say what their symbols are.

    ``operator_of`` such a node calls what is in ``runs`` by then.

    Args:
        graph: placed.
        fallback: what the vendor has for a prim on the host (``host_fallback``), which runs subgraphs as it likes.
    """
    found = []
    for node in graph.calls():
        if node.target not in DECIDED or node.meta["placement"].kind is not Kind.HOST:
            continue
        if fallback(prim_name(node)) not in (None, node.target):
            continue
        names = [str(operand.target) for operand in node.all_input_nodes if operand.op == "get_attr"]
        modules = [cast(fx.GraphModule, getattr(graph.module, name)) for name in names]
        copies = [PrimGraph(module, backward=graph.backward).copy() for module in modules]
        if all(map(_is_whole, copies)):
            runs = node.meta[_RUNS] = Runs()
            found += [Body(copy, module, runs) for module, copy in zip(modules, copies, strict=True)]
    for body in found:
        count_in_elements(body.graph.graph)
        body.graph.flatten_outputs()
    return found


def _is_whole(graph: PrimGraph) -> bool:
    """Whether the inputs of a graph determine the symbols of its sizes."""
    values = [node.meta.get("val") for node in graph.graph.nodes]
    numbers = [*values, *(size for tensor in tensors_of(values) for size in tensor.shape)]
    known = graph.known_symbols()
    return all(torch_private.size_text(number)[0] <= known for number in numbers if isinstance(number, torch.SymInt))


def operator_of(node: fx.Node) -> Callable[..., tuple[Any, ...]] | None:
    """What runs a branch or loop on the host, None where its graphs are not compiled."""
    runs = node.meta.get(_RUNS)
    return None if runs is None else DECIDED[node.target](runs)


def _branch(runs: Runs) -> Callable[..., tuple[Any, ...]]:
    def cond(pred: Any, true_fn: fx.GraphModule, false_fn: fx.GraphModule, operands: Sequence[Any] = ()) -> tuple[Any, ...]:
        return tuple(runs[true_fn if pred else false_fn](*operands))

    return cond


def _loop(runs: Runs) -> Callable[..., tuple[Any, ...]]:
    def while_loop(
        cond_fn: fx.GraphModule, body_fn: fx.GraphModule, carried: Sequence[Any], additional: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        goes_on, turn = runs[cond_fn], runs[body_fn]
        values, turned = tuple(carried), False
        while bool(*goes_on(*values, *additional)):
            values, turned = tuple(turn(*values, *additional)), True
        if turned:
            return values
        # Results share no memory with operands.
        return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)

    return while_loop


DECIDED: Mapping[Any, Callable[[Runs], Callable[..., tuple[Any, ...]]]] = {
    torch.ops.higher_order.cond: _branch,
    torch_private.while_loop_op: _loop,
}
"""Operators of which the host decides which graph runs, and what does so."""
