"""Canonical form: what follows from values being logical tensors. Copies vanish, equal nodes merge, dead nodes go."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.orders import inverse, order_in_memory
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of
from vendor_sdk.normalize.constants import fold_constants
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.row import Family

aten = torch.ops.aten


def canonicalize(graph: PrimGraph) -> PrimGraph:
    """Strides made logical, constants folded, no-ops removed, common subexpressions merged, dead code dropped."""
    _logical_as_strided(graph)
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


def _logical_as_strided(graph: PrimGraph) -> None:
    """``as_strided`` and ``as_strided_scatter`` count in the storage as traced; rewrites them to count in the row-major
    elements of their operand."""
    for node in list(graph.calls()):
        if node.target not in (aten.as_strided.default, aten.as_strided_scatter.default):
            continue
        source, *values = node.args
        assert isinstance(source, fx.Node)
        if node.target is aten.as_strided.default:
            size, stride, *offset = values
            root = _storage_root(source)
            first = _from_first(node, source, root, *offset)
            logical = call_before(node, aten.as_strided.default, _in_memory(node, root), size, stride, first)
            logical.meta.update(node.meta)
        else:
            src, size, stride, *offset = values
            first, memory = _from_first(node, source, source, *offset), _in_memory(node, source)
            written = call_before(node, aten.as_strided_scatter.default, memory, src, size, stride, first)
            logical = _out_of_memory(node, written, source)
        node.replace_all_uses_with(logical)
        graph.graph.erase_node(node)


def _from_first(node: fx.Node, source: fx.Node, root: fx.Node, offset: Any = None) -> Any:
    """Where a strided view begins, from the first element of ``root``, whose storage ``source`` has."""
    offset = node.kwargs.get("storage_offset", offset)
    shift = root.meta["val"].storage_offset()
    if offset is None:
        if source is root:
            return 0
        offset = source.meta["val"].storage_offset()
        if not isinstance(offset, int):
            offset = call_before(node, aten.sym_storage_offset.default, source)
    if isinstance(shift, int) and (shift == 0 or isinstance(offset, int)):
        return offset - shift if shift else offset
    if not isinstance(shift, int):
        shift = call_before(node, aten.sym_storage_offset.default, root)
    return call_before(node, operator.sub, offset, shift)


def _in_memory(place: fx.Node, root: fx.Node) -> fx.Node:
    """The elements of a value in the order of memory, row-major; between them zeros, where memory has gaps."""
    value = root.meta["val"]
    if torch_private.surely_contiguous(value):
        return root
    if not _has_gaps(value):
        return call_before(place, aten.permute.default, root, _outer_first(value))
    shape, strides = _numbers(place, root)
    extent: Any = 1
    for size, stride in zip(shape, strides, strict=True):
        before_last = call_before(place, operator.mul, call_before(place, operator.sub, size, 1), stride)
        extent = call_before(place, operator.add, extent, before_last)
    with torch_private.fake_mode_of([value]):
        zeros = call_before(place, aten.full.default, [extent], 0, dtype=value.dtype, device=value.device)
    return call_before(place, aten.as_strided_scatter.default, zeros, root, shape, strides, 0)


def _out_of_memory(place: fx.Node, memory: fx.Node, root: fx.Node) -> fx.Node:
    """What ``_in_memory`` made of ``root``, and was then written to, as that value."""
    value = root.meta["val"]
    if torch_private.surely_contiguous(value):
        return memory
    if not _has_gaps(value):
        return call_before(place, aten.permute.default, memory, inverse(_outer_first(value)))
    return call_before(place, aten.as_strided.default, memory, *_numbers(place, root), 0)


def _has_gaps(value: torch.Tensor) -> bool:
    """Whether memory between the elements of a value is none of it."""
    return 0 not in value.shape and order_in_memory(value.shape, value.stride()) is None


def _outer_first(value: torch.Tensor) -> list[int]:
    strides = value.stride()
    return sorted(range(value.dim()), key=lambda dim: (-strides[dim], dim))


def _numbers(place: fx.Node, root: fx.Node) -> tuple[list[Any], list[Any]]:
    """Sizes and strides of a value, as arguments."""

    def all_of(numbers: Sequence[Any], read: Any) -> list[Any]:
        return [n if isinstance(n, int) else call_before(place, read, root, dim) for dim, n in enumerate(numbers)]

    value = root.meta["val"]
    return all_of(value.shape, aten.sym_size.int), all_of(value.stride(), aten.sym_stride.int)


def _storage_root(node: fx.Node) -> fx.Node:
    """The earliest value in the graph with the storage of ``node``, reached through first operands."""
    key = torch_private.storage_key(node.meta["val"])
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        source = node.args[0]
        values = tensors_of(source.meta.get("val"))
        if len(values) != 1 or torch_private.storage_key(values[0]) != key:
            break
        node = source
    return node
