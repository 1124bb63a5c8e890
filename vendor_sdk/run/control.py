"""Branches and loops: the host decides which of their graphs runs next; the backend compiled these as it does any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of
from vendor_sdk.ir.strided import count_in_elements

Run = Callable[..., Sequence[Any]]
Bodies = Mapping[fx.GraphModule, Run]
"""What runs each subgraph: takes its operands, returns its results."""

_BODIES = "bodies"
"""Key of a node's metadata."""


def compile_bodies(graph: PrimGraph, compiled: Callable[[PrimGraph], Run]) -> None:
    """Has the subgraphs of branches and loops that the host decides compiled, where operands say what their symbols are."""
    for node in graph.calls():
        if node.target not in _OPERATORS or node.meta["placement"].kind is not Kind.HOST:
            continue
        names = [str(operand.target) for operand in node.all_input_nodes if operand.op == "get_attr"]
        modules = [cast(fx.GraphModule, getattr(graph.module, name)) for name in names]
        bodies = [PrimGraph(module, backward=graph.backward).copy() for module in modules]
        if all(map(_is_whole, bodies)):
            for body in bodies:
                count_in_elements(body.graph)
                end = body.graph.output_node()
                end.args = (_flat(end.args[0]),)
            node.meta[_BODIES] = {module: compiled(body) for module, body in zip(modules, bodies, strict=True)}


def _is_whole(graph: PrimGraph) -> bool:
    """Whether the inputs of a graph determine the symbols of its sizes."""

    def sizes(nodes: Sequence[fx.Node]) -> list[Any]:
        values = [node.meta.get("val") for node in nodes]
        return [*values, *(size for tensor in tensors_of(values) for size in tensor.shape)]

    def symbolic(numbers: Sequence[Any]) -> list[Any]:
        return [torch_private.sympy_of(number) for number in numbers if isinstance(number, torch.SymInt)]

    known = {each for each in symbolic(sizes(graph.placeholders)) if each.is_symbol}
    return all(each.free_symbols <= known for each in symbolic(sizes(list(graph.graph.nodes))))


def _flat(result: Any) -> tuple[Any, ...]:
    """The results of a graph: a condition returns one alone."""
    return tuple(result) if isinstance(result, list | tuple) else (result,)


def operator_of(node: fx.Node) -> Callable[..., tuple[Any, ...]] | None:
    """What runs a branch or loop on the host, None where its graphs were not compiled."""
    bodies = node.meta.get(_BODIES)
    return None if bodies is None else _OPERATORS[node.target](bodies)


def _branch(bodies: Bodies) -> Callable[..., tuple[Any, ...]]:
    def cond(pred: Any, true_fn: fx.GraphModule, false_fn: fx.GraphModule, operands: Sequence[Any] = ()) -> tuple[Any, ...]:
        return tuple(bodies[true_fn if pred else false_fn](*operands))

    return cond


def _loop(bodies: Bodies) -> Callable[..., tuple[Any, ...]]:
    def while_loop(
        cond_fn: fx.GraphModule, body_fn: fx.GraphModule, carried: Sequence[Any], additional: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        goes_on, turn = bodies[cond_fn], bodies[body_fn]
        values, turned = tuple(carried), False
        while bool(*goes_on(*values, *additional)):
            values, turned = tuple(turn(*values, *additional)), True
        if turned:
            return values
        # Results share no memory with operands.
        return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)

    return while_loop


_OPERATORS: Mapping[Any, Callable[[Bodies], Callable[..., tuple[Any, ...]]]] = {
    torch.ops.higher_order.cond: _branch,
    torch_private.while_loop_op: _loop,
}
