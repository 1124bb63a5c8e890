"""Matrix products whose rows begin where a library's fastest code wants them (``Legalization.row_alignment``).

A vocabulary of 50,257 words makes every row of the logits begin at another place of a vector. Products with such a matrix are
computed with a few columns of zeros beside it, and what those give is sliced off: a view, which costs nothing. A product that
the graph returns would have to be copied then, all of it: its own rows stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk.ir.calls import call_before

aten = torch.ops.aten

WORK = 32
"""Floating-point operations of a product for each byte that padding may move: below it, the product waits for memory anyway."""
_PRODUCTS: Mapping[Any, int] = {aten.mm.default: 0, aten.addmm.default: 1}
"""Where the factors begin among the arguments."""
_VIEWS = frozenset((aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.t.default, aten.alias.default))
"""Through which products are returned."""


def align_products(graph: fx.Graph, alignment: int) -> None:
    """Pads the factors of large products of real matrices of known size, so that rows of factors, and of results that are not
    returned, are multiples of ``alignment`` bytes.

    Args:
        graph: of prims; or a joint graph, whose activations are saved with the zeros beside them then.
    """
    padded = _Padded(graph)
    for node in list(graph.nodes):
        if node.target in _PRODUCTS and node.meta["val"].dtype.is_floating_point:
            itemsize = node.meta["val"].dtype.itemsize
            _align(graph, node, alignment // math.gcd(alignment, itemsize), padded)
    padded.read_inside()


@dataclass
class _Padded:
    """Values with zeros after the last element of each dimension; the same for all products that want it."""

    graph: fx.Graph
    known: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = field(default_factory=dict)

    def __call__(self, before: fx.Node, source: fx.Node, more: Sequence[int]) -> fx.Node:
        """``source`` with ``more`` elements in each dimension."""
        if not any(more):
            return source
        if _turned(source):
            (inner,) = source.all_input_nodes
            return call_before(before, aten.permute.default, self(before, inner, list(reversed(more))), [1, 0])
        key = source, tuple(more)
        if key not in self.known:
            pads = [n for extra in reversed(more) for n in (0, extra)]
            # As early as it can be: another product may want it before this one.
            place = source
            while place.op == "placeholder" or place is source:
                place = place.next
            made = self.known[key] = call_before(place, aten.constant_pad_nd.default, source, pads, 0)
            made.meta = {**before.meta, "val": made.meta["val"]}
        return self.known[key]

    def read_inside(self) -> None:
        """Readers of what is computed read it where it lies among the zeros: it need not lie elsewhere too."""
        pads = set(self.known.values())
        for (source, _), made in self.known.items():
            readers = [user for user in source.users if user not in pads and user.op == "call_function"]
            if source.op == "placeholder" or not readers:
                continue
            inside = made
            for dim, size in enumerate(source.meta["val"].shape):
                if size != made.meta["val"].shape[dim]:
                    inside = call_before(inside.next, aten.slice.Tensor, inside, dim, 0, size)
            for user in readers:
                user.replace_input_with(source, inside)


def _align(graph: fx.Graph, node: fx.Node, unit: int, padded: _Padded) -> None:
    """Pads one product to multiples of ``unit`` elements, if that pays."""
    at = _PRODUCTS[node.target]
    left, right = node.args[at : at + 2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    rows, terms = left.meta["val"].shape
    columns = right.meta["val"].shape[1]
    if not all(isinstance(size, int) and size for size in (rows, terms, columns)):
        return
    lines = {rows if _turned(left) else terms, terms if _turned(right) else columns}
    if not _is_returned(node):
        lines.add(columns)
    more = [-size % unit if size in lines else 0 for size in (rows, terms, columns)]
    copied = rows * terms * any(more[:2]) + terms * columns * any(more[1:])
    if not any(more) or 2 * rows * terms * columns < WORK * 2 * copied * node.meta["val"].dtype.itemsize:
        return

    def call(target: Callable[..., Any], *args: Any) -> fx.Node:
        return call_before(node, target, *args)

    factors = padded(node, left, more[:2]), padded(node, right, more[1:])
    added = []
    if at:
        (bias, *_) = node.args
        assert isinstance(bias, fx.Node)
        sizes = (rows, columns)[2 - bias.meta["val"].dim() :]
        extra = (more[0], more[2])[2 - len(sizes) :]
        one = [size == 1 for size in bias.meta["val"].shape]
        added = [padded(node, bias, [0 if single else n for single, n in zip(one, extra, strict=True)])]
    result = call(node.target, *added, *factors)  # type: ignore[arg-type]
    result.kwargs = dict(node.kwargs)
    for dim, (size, extra_size) in enumerate(((rows, more[0]), (columns, more[2]))):
        if extra_size:
            result = call(aten.slice.Tensor, result, dim, 0, size)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _is_returned(node: fx.Node) -> bool:
    """Whether a graph returns a value, or a view of it."""
    return any(user.op == "output" or (user.target in _VIEWS and _is_returned(user)) for user in node.users)


def _turned(node: fx.Node) -> bool:
    """Whether a matrix is another one's transpose, which libraries read as it lies."""
    return node.target == aten.permute.default and list(node.args[1]) == [1, 0]  # type: ignore[arg-type]
