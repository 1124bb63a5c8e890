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
    if not any(map(_is_sparse, module.graph.nodes)):
        return module, ()
    graph = fx.Graph()
    outputs: list[Any] = list(graph.graph_copy(module.graph, {}))  # type: ignore[arg-type]
    found: list[Parts] = []
    values: list[fx.Node] = []
    for index, node in enumerate(outputs):
        terms = _terms(node) if _is_sparse(node) and not node.users and outputs.count(node) == 1 else []
        if terms:
            outputs[index], held = _parts(node, terms)
            found.append(Parts(index, len(outputs) + len(values), tuple(node.meta["val"].shape)))
            values.append(held)
    graph.output((*outputs, *values))
    graph.eliminate_dead_code(lambda node: not _is_sparse(node))
    return fx.GraphModule(module, graph), tuple(found)


def _is_sparse(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def _terms(node: fx.Node) -> list[fx.Node]:
    """The values whose sum a sparse value is, in order: several where an embedding is looked up several times. Empty where the
    parts of one are not in the graph and cannot be, or a size is a symbol."""
    terms, left = list[fx.Node](), [node]
    while left:
        each: Any = left.pop()
        if each.target is _SUM_OF_TWO and len(each.args) == 2 and not each.kwargs and all(map(_is_sparse, each.args)):
            left += reversed(each.args)
        elif _has_parts(each):
            terms.append(each)
        else:
            return []
    return terms


def _has_parts(node: fx.Node) -> bool:
    """Whether the parts of a sparse value, no sum, are in the graph, or can be."""
    if not all(type(size) is int for size in node.meta["val"].shape):
        return False
    if node.target is _OF_BAGS:
        by_count, mode, sparse = node.args[7:10]
        return bool(sparse) and not by_count and mode in (_SUM, _MEAN)
    return node.target is _MADE


def _parts(node: fx.Node, terms: list[fx.Node]) -> tuple[fx.Node, fx.Node]:
    """Indices and values of a sparse value: those of all terms, one after the other, as torch adds them."""
    pairs: list[Any] = [_of_bags(term) if term.target is _OF_BAGS else term.args[3:5] for term in terms]
    if len(pairs) == 1:
        return pairs[0]  # type: ignore[no-any-return]
    indices, values = zip(*pairs, strict=True)
    return call_before(node, aten.cat.default, list(indices), 1), call_before(node, aten.cat.default, list(values), 0)


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
