"""Gradients that nobody asks for, taken out of backward graphs.

A model that returns its loss and its logits is differentiated through the loss alone. For the logits, autograd would fill a
tensor of their size with zeros, for the backward graph to add to what the loss gives. Told not to, it passes None, as eager's
own operators get it, and the graph is compiled without that input: what is linear in it is nothing, and sums lose a term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.normalize.canonicalize import drop_dead

aten = torch.ops.aten

_LINEAR = frozenset((
    "view", "permute", "expand", "slice", "select", "squeeze", "unsqueeze", "diagonal", "unfold", "flip", "clone", "alias",
    "_to_copy", "sum", "mean", "neg", "index_select", "gather", "getitem",
))  # fmt: skip
"""Prims whose result is zero where their first operand is."""


def expected(graph: PrimGraph, tangents: Sequence[int]) -> tuple[int, ...]:
    """The gradients of outputs, among inputs ``tangents`` of a backward graph, that training does not ask for: where an output
    is a number, it is the loss, and the others are there to be looked at."""
    values = {index: graph.placeholders[index].meta["val"] for index in tangents}
    tensors = {index: value for index, value in values.items() if isinstance(value, torch.Tensor)}
    loss = any(value.dim() == 0 and value.is_floating_point() for value in tensors.values())
    return tuple(index for index, value in tensors.items() if value.dim()) if loss else ()


def without_gradients(graph: PrimGraph, undefined: Sequence[int]) -> PrimGraph | None:
    """A copy of a backward graph that lacks inputs ``undefined``, which are zero. None where a zero would have to be made whose
    sizes only a call knows."""
    graph = graph.copy()
    placeholders = graph.placeholders
    zeros = {placeholders[index] for index in undefined}
    for node in list(graph.calls()):
        if zeros.isdisjoint(node.all_input_nodes):
            continue
        if _is_zero(node, zeros):
            zeros.add(node)
        elif (rest := _rest(node, zeros)) is not None:
            node.replace_all_uses_with(rest)
    drop_dead(graph)
    for node in [node for node in graph.graph.nodes if node in zeros]:
        value = node.meta["val"]
        readers = [user for user in node.users if user not in zeros]
        if readers and not all(isinstance(size, int) for size in value.shape):
            return None
        if readers:
            first = next(n for n in graph.graph.nodes if n.op == "call_function" or n.op == "output")
            with torch_private.fake_mode_of([value]):
                made = call_before(first, aten.full.default, list(value.shape), 0, dtype=value.dtype, device=value.device)
            made.meta = {"val": made.meta["val"]}
            for user in readers:
                user.replace_input_with(node, made)
    drop_dead(graph)
    for index in undefined:
        if placeholders[index].users:
            return None
        graph.graph.erase_node(placeholders[index])
    graph.module.recompile()
    return _renumbered(graph, [index for index in range(len(placeholders)) if index not in undefined])


def _is_zero(node: fx.Node, zeros: set[fx.Node]) -> bool:
    if not node.args:
        return False
    prim, (first, *more) = prim_name(node), node.args
    if prim in _LINEAR:
        return first in zeros
    if prim == "mul":
        return first in zeros or more[0] in zeros
    if prim == "div":
        return first in zeros and not node.kwargs and len(node.args) == 2
    if prim == "where":
        return zeros.issuperset(more)
    if prim in ("add", "sub"):
        return zeros.issuperset(node.args[:2])
    if prim == "constant_pad_nd":
        return first in zeros and more[1:] in ([], [0])
    if prim in ("mm", "bmm"):
        return first in zeros or more[0] in zeros
    return False


def _rest(node: fx.Node, zeros: set[fx.Node]) -> fx.Node | None:
    """The other term of a sum with a zero, in the shape and dtype of the sum."""
    prim = prim_name(node)
    if prim not in ("add", "sub") or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    other = right if left in zeros else left
    if not isinstance(other, fx.Node) or not isinstance(other.meta["val"], torch.Tensor):
        return None
    value: Any = node.meta["val"]
    if other.meta["val"].dtype != value.dtype:
        other = call_before(node, aten._to_copy.default, other, dtype=value.dtype)
    if other.meta["val"].shape != value.shape:
        if not all(isinstance(size, int) for size in value.shape):
            return None
        other = call_before(node, aten.expand.default, other, list(value.shape))
    return call_before(node, aten.neg.default, other) if prim == "sub" and left in zeros else other


def _renumbered(graph: PrimGraph, kept: Sequence[int]) -> PrimGraph:
    """``graph``, whose inputs are those that were numbered ``kept``, with its numbers set right."""
    number = {before: after for after, before in enumerate(kept)}

    def known(numbers: frozenset[int]) -> frozenset[int]:
        return frozenset(number[index] for index in numbers if index in number)

    numbers = {"input": number, "output": {index: index for index in range(len(graph.output_layouts))}}
    layouts = [
        replace(each, alias_of=frozenset((kind, numbers[kind][i]) for kind, i in each.alias_of if i in numbers[kind]))
        for each in graph.output_layouts
    ]
    return replace(
        graph,
        output_layouts=layouts,
        static_inputs=known(graph.static_inputs),
        donated_inputs=known(graph.donated_inputs),
        writes=tuple(number[index] for index in graph.writes),
    )
