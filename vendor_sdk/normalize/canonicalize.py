"""Canonical form: what follows from values being logical tensors. Copies vanish, equal nodes merge, dead nodes go."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.normalize.constants import fold_constants
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.row import Family

aten = torch.ops.aten


def canonicalize(graph: PrimGraph) -> PrimGraph:
    """Constants folded, no-ops removed, common subexpressions merged, dead code dropped."""
    fold_constants(graph)
    drop_copies(graph)
    _merge_equal(graph)
    drop_dead(graph)
    graph.module.recompile()
    return graph


def drop_dead(graph: PrimGraph) -> None:
    """Erases nodes whose value nobody reads, unless they act (assertions, waits) or draw random numbers the caller expects."""
    for node in reversed(list(graph.calls())):
        if not node.users and not acts(node):
            graph.graph.erase_node(node)


def acts(node: fx.Node) -> bool:
    """Whether a node matters though nobody reads its value."""
    row = BY_TARGET.get(node.target)
    if row is not None and row.family is Family.CONTROL:
        return True
    return node.meta.get("val") is None and node.target is not operator.getitem


def drop_copies(graph: PrimGraph) -> None:
    """Values are never written, so a copy of a value is the value."""
    for node in list(graph.calls()):
        changes_nothing = _NO_CHANGE.get(node.target)
        if changes_nothing is None or not changes_nothing(node):
            continue
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)


def _same_type(node: fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta["val"], node.meta["val"]
    return bool(before.dtype == after.dtype and before.device == after.device)


def _same_shape(node: fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta["val"].shape, node.meta["val"].shape
    return len(before) == len(after) and all(torch_private.surely_equal(a, b) for a, b in zip(before, after, strict=True))


_NO_CHANGE: Mapping[Any, Callable[[fx.Node], bool]] = {
    aten.clone.default: lambda node: True,
    aten.alias.default: lambda node: True,
    aten.lift_fresh_copy.default: lambda node: True,
    aten._to_copy.default: _same_type,
    aten.expand.default: _same_shape,
    aten.slice.Tensor: _same_shape,
    aten.view.default: _same_shape,
}
"""Operators that may leave a value as it is, with when they do."""


def _merge_equal(graph: PrimGraph) -> None:
    seen: dict[Hashable, fx.Node] = {}
    for node in list(graph.calls()):
        row = BY_TARGET.get(node.target)
        if row is None and node.target is not operator.getitem:
            continue
        if row is not None and row.family in (Family.RANDOM, Family.COLLECTIVE, Family.CONTROL):
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.graph.erase_node(node)
        else:
            seen[key] = node


def _hashable(value: Any) -> Hashable:
    if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.SymInt):
        return ("size", torch_private.sympy_of(value.meta["val"]))  # whoever computes it
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _hashable(value.start), _hashable(value.stop), _hashable(value.step))
    if isinstance(value, float):
        return ("float", value.hex())  # 0.0 and -0.0 differ, and so do 1 and 1.0
    return (type(value).__name__, value) if isinstance(value, bool | int) else value
