"""Biases of convolutions as prims of their own (``Legalization.separate_bias``).

A library that adds a bias after the convolution writes and reads the whole image once more for it, and once more to sum its
gradient. As a pointwise prim and a sum, both are fused into what stands beside the convolution.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

from torch import fx

from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.normalize.products import aten, fake


def add_biases(graph: PrimGraph) -> PrimGraph:
    """Takes the biases out of a graph's convolutions."""
    for node in list(graph.calls()):
        if node.target is aten.convolution.default and node.args[2] is not None:
            _added(graph.graph, node)
    graph.module.recompile()
    return graph


def sum_biases(graph: PrimGraph) -> PrimGraph:
    """Takes the gradients of biases out of those of convolutions: sums of the images that these read."""
    for node in list(graph.calls()):
        if node.target is aten.convolution_backward.default and cast(Sequence[bool], node.args[10])[2]:
            _summed(graph.graph, node)
    graph.module.recompile()
    return graph


def _added(graph: fx.Graph, node: fx.Node) -> None:
    x, weight, bias, *rest = node.args
    channels = [1, fake(node).shape[1], *[1] * (fake(node).dim() - 2)]
    alone = call_before(node, aten.convolution.default, x, weight, None, *rest)
    viewed = call_before(node, aten.view.default, bias, channels)
    node.replace_all_uses_with(call_before(node, aten.add.Tensor, alone, viewed))
    graph.erase_node(node)


def _summed(graph: fx.Graph, node: fx.Node) -> None:
    grad, *rest, mask = node.args
    dims = [dim for dim in range(fake(grad).dim()) if dim != 1]
    for user in list(node.users):
        assert user.target is operator.getitem
        if user.args[1] == 2:
            user.replace_all_uses_with(call_before(node, aten.sum.dim_IntList, grad, dims))
            graph.erase_node(user)
    wanted = [*cast(Sequence[bool], mask)[:2], False]
    if any(wanted):
        node.replace_all_uses_with(call_before(node, node.target, grad, *rest, wanted))  # type: ignore[arg-type]
    graph.erase_node(node)
