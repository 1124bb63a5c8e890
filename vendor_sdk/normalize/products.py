"""Sums of matrix products: ``a1 @ b1 + a2 @ b2 + ...`` is one product of the factors side by side.

The gradient of a weight that a program uses many times (an unrolled recurrent layer) comes as such a sum. Added up one by one,
every product is as large as the weight, and all of them are written and read; side by side, only the factors are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.normalize.canonicalize import drop_dead

aten = torch.ops.aten


def join_products(graph: PrimGraph) -> PrimGraph:
    """Makes one product of each sum of products that moves fewer bytes so."""
    done: set[fx.Node] = set()
    for root in reversed(list(graph.calls())):
        if root in done or not _is_sum(root):
            continue
        terms = _terms(root, done)
        products = [product for term in terms if (product := _product(term)) is not None]
        if len(products) > 1 and _pays(products):
            others = [term for term in terms if _product(term) is None]
            root.replace_all_uses_with(_joined(root, products, others))
    drop_dead(graph)
    return graph


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two real matrices of its own shape and dtype."""
    if node.target != aten.add.Tensor or node.kwargs:
        return False
    matrices = [fake(arg) for arg in (node, *node.args)]
    first = matrices[0]
    return all(
        isinstance(m, torch.Tensor)
        and m.dtype.is_floating_point
        and m.dtype == first.dtype
        and all(isinstance(size, int) for size in m.shape)
        and m.shape == first.shape
        and m.dim() == 2
        for m in matrices
    )


def fake(argument: Any) -> Any:
    """The fake value of a node, None for anything else."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else None


def _terms(root: fx.Node, done: set[fx.Node]) -> list[fx.Node]:
    """What a tree of sums adds up, in order; the sums inside it become ``done``."""
    found: list[fx.Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node is root or (_is_sum(node) and len(node.users) == 1):
            done.add(node)
            stack.extend(arg for arg in reversed(node.args) if isinstance(arg, fx.Node))
        else:
            found.append(node)
    return found


def _product(term: fx.Node) -> fx.Node | None:
    """The matrix product that a term is, which nothing else reads; it may have been transposed and back."""
    turned = False
    while term.target == aten.permute.default and len(term.users) == 1:
        turned ^= list(term.args[1]) == [1, 0]  # type: ignore[arg-type]
        (term,) = term.all_input_nodes
    fits = term.target == aten.mm.default and len(term.users) == 1 and not turned
    return term if fits and all(isinstance(size, int) for n in term.all_input_nodes for size in n.meta["val"].shape) else None


def _factors(product: fx.Node) -> tuple[fx.Node, fx.Node]:
    left, right = product.args
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return left, right


def _pays(products: Sequence[fx.Node]) -> bool:
    """Whether copying the factors moves less than writing all products but one."""
    rows, columns = products[0].meta["val"].shape
    inner = sum(_factors(product)[0].meta["val"].shape[1] for product in products)
    return bool(inner * (rows + columns) <= (len(products) - 1) * math.prod((rows, columns)))


def _joined(root: fx.Node, products: Sequence[fx.Node], others: Sequence[fx.Node]) -> fx.Node:
    def call(target: Callable[..., Any], *args: Any) -> fx.Node:
        return call_before(root, target, *args)

    def beside(factors: Sequence[fx.Node], dim: int) -> fx.Node:
        """Along ``dim``; transposed factors are transposed together."""
        if all(f.target == aten.permute.default and list(f.args[1]) == [1, 0] for f in factors):  # type: ignore[arg-type]
            return call(aten.permute.default, call(aten.cat.default, [f.args[0] for f in factors], 1 - dim), [1, 0])
        return call(aten.cat.default, list(factors), dim)

    lefts, rights = zip(*map(_factors, products), strict=True)
    total = call(aten.mm.default, beside(lefts, 1), beside(rights, 0))
    for other in others:
        total = call(aten.add.Tensor, total, other)
    return total
