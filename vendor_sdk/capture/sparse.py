"""Sparse results of a captured graph as the dense tensors that they consist of.

Embeddings with ``sparse=True`` have sparse gradients: indices, and a row for each. Prim graphs hold dense tensors only, so a
graph returns these two, and the sparse tensor is made of them after a call (``run/sparse.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.sparse import Parts

aten = torch.ops.aten
_MADE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_OF_BAGS = aten._embedding_bag_backward.default
_SUM_OF_TWO = aten.add.Tensor
_SUM, _MEAN = 0, 1


def without_sparse(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[Parts, ...]]:
    """Sparse results that nothing else reads become their indices, where they stood, and their values, at the end.

    ``module`` itself stays as it was, and so do other sparse values: capture refuses them.
    """
    if not any(_is_sparse(node) for node in module.graph.nodes):
        return module, ()
    graph = fx.Graph()
    outputs: list[Any] = list(graph.graph_copy(module.graph, {}))  # type: ignore[arg-type]
    found: list[Parts] = []
    values: list[fx.Node] = []
    for index, node in enumerate(outputs):
        if not isinstance(node, fx.Node) or node.users or outputs.count(node) > 1 or not _is_sparse(node):
            continue
        outputs[index], held = _parts(node)
        found.append(Parts(index, len(outputs) + len(values), tuple(node.meta["val"].shape)))
        values.append(held)
    graph.output((*outputs, *values))
    graph.eliminate_dead_code(lambda node: not _is_sparse(node))
    return fx.GraphModule(module, graph), tuple(found)


def _is_sparse(node: Any) -> bool:
    """Whether a value is sparse whose parts are in the graph, or can be; its sizes are numbers."""
    if not isinstance(node, fx.Node):
        return False
    if node.target is _SUM_OF_TWO:
        return len(node.args) == 2 and not node.kwargs and all(map(_is_sparse, node.args))
    if node.target is _OF_BAGS:
        by_count, mode, sparse = node.args[7:10]
        if not sparse or by_count or mode not in (_SUM, _MEAN):
            return False
    elif node.target is not _MADE:
        return False
    return all(type(size) is int for size in node.meta["val"].shape)


def _parts(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Indices and values of a sparse value."""
    if node.target is _MADE:
        return node.args[3:5]  # type: ignore[return-value]
    if node.target is _OF_BAGS:
        return _of_bags(node)
    # One embedding that is looked up twice. As torch adds them: what either has, one after the other.
    pairs = [_parts(each) for each in node.args]  # type: ignore[arg-type]
    indices, values = ([pair[which] for pair in pairs] for which in (0, 1))
    return call_before(node, aten.cat.default, indices, 1), call_before(node, aten.cat.default, values, 0)


def _of_bags(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The indices, and for each the gradient's row of its bag: weighted, or divided by how many the bag has."""
    args: Any = node.args
    grad, indices, offsets, _, sizes, _, _, _, mode, _, weights, *padding = args
    count = indices.meta["val"].shape[0]

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return call_before(node, target, *args, **kwargs)

    places = call(aten.arange.start_step, 0, count, 1, dtype=torch.int64, device=node.meta["val"].device)
    bags = call(aten.sub.Tensor, call(aten.bucketize.Tensor, places, offsets, right=True), 1)
    rows = call(aten.index_select.default, grad, 0, bags)
    if weights is not None:
        rows = call(aten.mul.Tensor, rows, call(aten.unsqueeze.default, weights, 1))
    if mode == _MEAN:
        several = call(aten.index_select.default, sizes, 0, bags)
        rows = call(aten.div.Tensor, rows, call(aten.unsqueeze.default, several, 1))
    if padding and padding[0] >= 0:
        left_out = call(aten.eq.Scalar, indices, padding[0])
        rows = call(aten.masked_fill.Scalar, rows, call(aten.unsqueeze.default, left_out, 1), 0)
    return call(aten.unsqueeze.default, indices, 0), rows
