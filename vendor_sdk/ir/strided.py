"""``as_strided`` and ``as_strided_scatter`` count in the storage of their operand; in prim graphs in its elements, row-major,
since values have no layout there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.orders import inverse, order_in_memory
from vendor_sdk.ir.primgraph import STRIDED, tensors_of

aten = torch.ops.aten


def keep_counts(module: fx.GraphModule) -> None:
    """Has those calls of a captured graph whose storage is a computed value's count in a row-major copy of it; strides of such
    values that are asked for are computed from sizes. In its branches and loops, too.

    Eager's strides are known here only: what an operator is decomposed into may lie otherwise.
    """
    for each in module.modules():
        if isinstance(each, fx.GraphModule) and _keep_counts(each.graph):
            each.recompile()


def _keep_counts(graph: fx.Graph) -> bool:
    """Whether there was something to change."""
    counting = [node for node in _calls(graph) if _storage_root(node.all_input_nodes[0]).op == "call_function"]
    for node in counting:
        _count(node, _copied)
    asking = graph.find_nodes(op="call_function", target=aten.sym_stride.int)
    strides = {node: _from_sizes(node) for node in asking if node.all_input_nodes[0].op == "call_function"}
    for node, stride in strides.items():
        if stride is not None:
            node.replace_all_uses_with(stride)
            graph.erase_node(node)
    return bool(counting or strides)


def _from_sizes(node: fx.Node) -> Any:
    """The stride that a node asks for, None where memory has gaps."""
    source, dim = node.args
    assert isinstance(source, fx.Node)
    value = source.meta["val"]
    order = order_in_memory(value.shape, value.stride())
    if order is None:
        return None
    stride: Any = 1
    for inner in order[order.index(dim % value.dim()) + 1 :]:
        size = value.shape[inner]
        if isinstance(size, int) and isinstance(stride, int):
            stride *= size
            continue
        if not isinstance(size, int):
            size = call_before(node, torch.sym_max, call_before(node, aten.sym_size.int, source, inner), 1)
        stride = call_before(node, operator.mul, stride, size)
    return stride


def count_in_elements(graph: fx.Graph) -> None:
    """Has calls count in the elements of a value, in the order in which these lie in memory, by the strides of ``graph``."""
    for node in _calls(graph):
        _count(node, lambda _, memory: memory)


def _calls(graph: fx.Graph) -> list[fx.Node]:
    """The last come first: a view of a view counts in the storage of both."""
    return [node for node in reversed(graph.nodes) if node.op == "call_function" and node.target in STRIDED]


def _copied(place: fx.Node, memory: fx.Node) -> fx.Node:
    return call_before(place, aten.clone.default, memory, memory_format=torch.contiguous_format)


def _count(node: fx.Node, kept: Callable[[fx.Node, fx.Node], fx.Node]) -> None:
    source, *values = node.args
    assert isinstance(source, fx.Node)
    target: Any = node.target
    scattered = target is aten.as_strided_scatter.default
    src = [values.pop(0)] if scattered else []
    size, stride, *offset = values
    root = source if scattered else _storage_root(source)
    memory = kept(node, _in_memory(node, root))
    made = call_before(node, target, memory, *src, size, stride, _from_first(node, source, root, *offset))
    if scattered:
        made = _out_of_memory(node, made, source)
    else:
        made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


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
