"""Slices of everything: what is left of ``x[:, :, None]`` where sizes are symbols, and of its gradient.

Torch drops a slice that takes all of a dimension where it knows the size. Where it does not, the slice stays, and its gradient
is scattered into zeros; passes that look for a pattern would not see it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private

aten = torch.ops.aten


def drop_whole_slices(graph: fx.Graph) -> None:
    """Takes slices out that take, or fill, all of a dimension.

    Args:
        graph: of aten operators, without writes, with ``meta["val"]``.
    """
    for node in reversed(graph.find_nodes(op="call_function", target=aten.slice_scatter.default)):
        into, source, *bounds = node.args
        if _whole(*bounds, **node.kwargs) and _lie_alike(node, source):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            if not into.users and into.op == "call_function":
                graph.erase_node(into)
    for node in graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        x, *bounds = node.args
        if _whole(*bounds, **node.kwargs) and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(x)
            graph.erase_node(node)


def _whole(dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> bool:
    if not all(isinstance(bound, int | None) for bound in (start, end, step)):
        return False  # a size, or known to data only
    return start in (None, 0) and end in (None, sys.maxsize) and step == 1


def _lie_alike(node: fx.Node, source: fx.Node) -> bool:
    """Whether two tensors have the same shape, and their elements the same places."""
    one, other = node.meta["val"], source.meta["val"]
    sizes = [*one.shape, *one.stride()], [*other.shape, *other.stride()]
    return one.dtype == other.dtype and len(sizes[0]) == len(sizes[1]) and all(map(torch_private.surely_equal, *sizes))
