"""Products of the steps of an unrolled recurrent network that need not wait for each other.

A step multiplies its input and the last step's state, often side by side, with one weight. The states come one after the other,
but the inputs are all there before: their products with the weight's part are one product. A product of few rows takes
about as long to read its right factor as to multiply; in one product of all steps' rows each element is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.normalize.canonicalize import drop_dead
from vendor_sdk.normalize.products import fake
from vendor_sdk.prims.opset import BY_TARGET

aten = torch.ops.aten

STEPS = 4
"""Products with one right factor from which on it pays."""
ROWS = 64
"""Of a product that is fast enough by itself."""
JOINED_ROWS = 512
"""Rows from which on a product gains nothing by more: they would be memory for the results of more steps at once."""
_FACTORS: Mapping[Any, tuple[int, int]] = {aten.mm.default: (0, 1), aten.addmm.default: (1, 2)}
"""Which arguments are the factors."""


@dataclass(frozen=True)
class _Step:
    """A product: the part of its left factor that is known before, columns ``[start, end)`` of it, and what else there is."""

    product: fx.Node
    known: fx.Node
    start: int
    end: int
    rest: fx.Node | None


def join_steps(graph: PrimGraph) -> PrimGraph:
    """Makes one product, or some if they are many, of what the products with one right factor have known before the first.

    Not where the graph is trained: there the factors are saved side by side, and are read again from there.
    """
    if graph.training or graph.backward:
        return graph
    place = {node: number for number, node in enumerate(graph.module.graph.nodes)}
    sharing: dict[tuple[fx.Node, fx.Node | None, str], list[fx.Node]] = {}
    for node in graph.calls():
        if node.target in _FACTORS and _fits(node):
            bias = node.args[0] if node.target == aten.addmm.default else None
            assert bias is None or isinstance(bias, fx.Node)
            sharing.setdefault((_factor(node, 1), bias, str(node.meta["val"].shape)), []).append(node)
    for (right, bias, _), products in sharing.items():
        if len(products) < STEPS:
            continue
        first = place[products[0]]
        steps = [step for each in products if (step := _whole(each, place, first)) is not None]
        if len(steps) < len(products):
            # Of the first step the state is known, too; the last one tells which part is always.
            last = [_part(products[-1], side, place, first) for side in (0, 1)]
            side = 0 if last[0] is not None else 1
            parts = [step for each in products if (step := _part(each, side, place, first)) is not None]
            steps = [step for step in parts if (step.start, step.end) == (parts[-1].start, parts[-1].end)]
        if len(steps) >= STEPS:
            share = _share(steps)
            for begin in range(0, len(steps), share):
                some = steps[begin : begin + share]
                _join(some, right, bias, some[0].product if begin else products[0])
    drop_dead(graph)
    return graph


def _fits(product: fx.Node) -> bool:
    """Whether a product is one of few rows (as traced, where their number may be another at each call) and of factors whose
    other sizes are known, with a row added at most, in a dtype that a sum may be rounded to on the way."""
    operands = [fake(arg) for arg in product.args]
    if product.kwargs or not all(isinstance(x, torch.Tensor) for x in operands):
        return False
    left = operands[_FACTORS[product.target][0]]
    known = [size for x in operands for size in (x.shape[1:] if x is left else x.shape)]
    if not all(isinstance(size, int) for size in known):
        return False
    added = product.target != aten.addmm.default or operands[0].dim() == 1 or operands[0].shape[:1] == (1,)
    value = product.meta["val"]
    rows = torch_private.size_hint(value) // max(value.shape[1], 1)
    return bool(added and value.dtype in (torch.float32, torch.float64) and 0 < rows <= ROWS)


def _factor(product: fx.Node, number: int) -> fx.Node:
    factor = product.args[_FACTORS[product.target][number]]
    assert isinstance(factor, fx.Node)
    return factor


def _whole(product: fx.Node, place: Mapping[fx.Node, int], first: int) -> _Step | None:
    left = _factor(product, 0)
    return _Step(product, left, 0, left.meta["val"].shape[1], None) if _known(left, place, first) else None


def _part(product: fx.Node, side: int, place: Mapping[fx.Node, int], first: int) -> _Step | None:
    """Of a product whose left factor is two values side by side, one of which is known."""
    left = _factor(product, 0)
    if left.target != aten.cat.default or left.args[1:] not in ((1,), (-1,)) or len(left.all_input_nodes) != 2:
        return None
    one, other = left.all_input_nodes
    middle, width = one.meta["val"].shape[1], left.meta["val"].shape[1]
    if not 0 < middle < width or middle + other.meta["val"].shape[1] != width or not _known((one, other)[side], place, first):
        return None
    return _Step(product, other, middle, width, one) if side else _Step(product, one, 0, middle, other)


def _known(node: fx.Node, place: Mapping[fx.Node, int], first: int) -> bool:
    """Whether a value is a view of what comes before the node at ``first``."""
    while node.op == "call_function" and (row := BY_TARGET.get(node.target)) is not None and row.is_view:
        if len(node.all_input_nodes) != 1:
            return False
        (node,) = node.all_input_nodes
    return place[node] < first


def _share(steps: Sequence[_Step]) -> int:
    """How many of them one product takes, so that each has ``JOINED_ROWS`` or more, and all about as many."""
    value = steps[0].product.meta["val"]
    rows: int = torch_private.size_hint(value) // max(value.shape[1], 1)
    return -(-len(steps) // max(len(steps) * rows // JOINED_ROWS, 1))


def _join(steps: Sequence[_Step], right: fx.Node, bias: fx.Node | None, anchor: fx.Node) -> None:
    start, end = steps[0].start, steps[0].end
    for step in steps:
        _move_up(step.known, anchor)
    known = call_before(anchor, aten.cat.default, [step.known for step in steps], 0)
    whole = steps[0].rest is None
    own = right if whole else call_before(anchor, aten.slice.Tensor, right, 0, start, end)
    joined = (
        call_before(anchor, aten.mm.default, known, own)
        if bias is None
        else call_before(anchor, aten.addmm.default, bias, known, own)
    )
    others = None
    if not whole:
        bounds = (end, right.meta["val"].shape[0]) if start == 0 else (0, start)
        others = call_before(anchor, aten.slice.Tensor, right, 0, *bounds)
    # One step's rows may be another number at each call.
    apart = call_before(anchor, aten.view.default, joined, [len(steps), -1, joined.meta["val"].shape[1]])
    for number, step in enumerate(steps):
        part = call_before(step.product, aten.select.int, apart, 0, number)
        if step.rest is not None:
            part = call_before(step.product, aten.addmm.default, part, step.rest, others)
        step.product.replace_all_uses_with(part)


def _move_up(node: fx.Node, anchor: fx.Node) -> None:
    """Puts a view, and those above it, before ``anchor`` where they stand behind it."""
    chain = []
    while node.op == "call_function" and not node < anchor:
        chain.append(node)
        (node,) = node.all_input_nodes
    for each in reversed(chain):
        anchor.prepend(each)
