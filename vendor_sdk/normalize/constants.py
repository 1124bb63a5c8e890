"""Constant folding: what is the same number in every element becomes ``full``, and what such a number leaves as it is goes.

Decompositions ask questions about numbers that are known (is this weight below a half?). Answered here, neither the question
nor the branch not taken reaches a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.row import Family

aten = torch.ops.aten

Number = bool | int | float

_ELEMENTWISE = (Family.POINTWISE, Family.COMPARISON)


def fold_constants(graph: PrimGraph) -> PrimGraph:
    """Every elementwise prim of uniform operands as a ``full``; its own users follow. Numbers stand where they are used."""
    for node in list(graph.calls()):
        row = BY_TARGET.get(node.target)
        if row is None or row.family not in _ELEMENTWISE or not isinstance(node.meta["val"], torch.Tensor):
            continue
        node.args = tuple(_on_device_of(graph, node, argument) for argument in node.args)
        kept = _kept(node)
        if kept is not None:
            node.replace_all_uses_with(kept)
            graph.graph.erase_node(node)
            continue
        number = _value(node)
        if number is not None and all(isinstance(size, int) for size in node.meta["val"].shape):
            _become_full(graph, node, number)
    return graph


def _uniform(argument: Any) -> Number | None:
    """The number that ``argument`` is in every element, where that is known."""
    if isinstance(argument, bool | int | float):
        return argument
    if (
        isinstance(argument, fx.Node)
        and argument.target is aten.full.default
        and isinstance(argument.args[1], bool | int | float)
    ):
        return argument.args[1]
    return None


def _on_device_of(graph: PrimGraph, node: fx.Node, argument: Any) -> Any:
    """``argument``; a number of no dimensions that lies on another device, as ``torch.vmap`` makes them of Python's, on the
    device of ``node``."""
    if not isinstance(argument, fx.Node) or _uniform(argument) is None or argument.meta["val"].dim():
        return argument
    device = node.meta["val"].device
    if argument.meta["val"].device == device:
        return argument
    with graph.graph.inserting_before(node):
        moved = graph.graph.call_function(aten.full.default, argument.args, {**argument.kwargs, "device": device})
    moved.meta.update(argument.meta, val=argument.meta["val"].to(device))
    return moved


def _value(node: fx.Node) -> Number | None:
    """The prim on the numbers that its tensors are, in their dtypes, by torch."""
    operands: list[Any] = []
    for argument in node.args:
        if not isinstance(argument, fx.Node):
            operands.append(argument)
            continue
        number, value = _uniform(argument), argument.meta["val"]
        if number is None:
            return None
        # The rank counts in type promotion, where tensors without dimensions give way.
        operands.append(torch.full((1,) * value.dim(), number, dtype=value.dtype))
    result = node.target(*operands, **node.kwargs)  # type: ignore[operator]
    number = result.item()
    return number if isinstance(number, bool | int | float) and result.dtype == node.meta["val"].dtype else None


def _become_full(graph: PrimGraph, node: fx.Node, number: Number) -> None:
    value = node.meta["val"]
    with graph.graph.inserting_before(node):
        full = graph.graph.call_function(
            aten.full.default, (list(value.shape), number), {"dtype": value.dtype, "device": value.device}
        )
    full.meta.update(node.meta)
    node.replace_all_uses_with(full)
    graph.graph.erase_node(node)


def _kept(node: fx.Node) -> fx.Node | None:
    """The operand that the prim returns unchanged, bit for bit; NaNs and signed zeros included."""
    which = _KEEPS.get(node.target)
    operand = which(node) if which is not None else None
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta["val"], torch.Tensor):
        return None
    before, after = operand.meta["val"], node.meta["val"]
    same_shape = before.dim() == after.dim() and all(
        torch_private.surely_equal(a, b) for a, b in zip(before.shape, after.shape, strict=True)
    )
    return operand if same_shape and before.dtype == after.dtype and before.device == after.device else None


def _chosen(node: fx.Node) -> Any:
    condition = _uniform(node.args[0])
    return None if condition is None else node.args[1 if condition else 2]


def _factor(node: fx.Node) -> Any:
    left, right = node.args[:2]
    return left if _uniform(right) == 1 else right if _uniform(left) == 1 else None


def _dividend(node: fx.Node) -> Any:
    return node.args[0] if _uniform(node.args[1]) == 1 else None


_KEEPS: Mapping[Any, Callable[[fx.Node], Any]] = {
    aten.where.self: _chosen,
    aten.mul.Tensor: _factor,
    aten.div.Tensor: _dividend,
}
