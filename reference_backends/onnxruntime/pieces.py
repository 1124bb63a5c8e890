"""Pieces: what a program takes out of a tensor piece by piece, in one node.

Unrolled recurrent networks take their input apart step by step, and the product of each step gate by gate. A node of ONNX
Runtime costs as much as its work on thousands of elements, so

    slices that together are all of a tensor        are the results of one Split
    selections that together are all of it          likewise, after a Reshape, so that none of them needs a Squeeze
    pieces that each go through the same function   are pieces of that function of the tensor

Of a small tensor some may be left out, for which the node then works in vain: of the four gates of an LSTM three are sigmoids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vendor_sdk import OPSET, Family, PrimGraph

SMALL = 1 << 14
"""Elements of a tensor up to which a part that nobody needs costs less than the nodes that go: on a Zen 4, an LSTM whose steps
have 16,384 takes 1.6 % less time so, one with 32,768 as long, and one with 65,536 takes 3 % more."""
_MOST_LEFT_OUT = 1 / 4
"""Of the elements of a small tensor."""

aten = torch.ops.aten
_FUNCTIONS = frozenset(row.target for row in OPSET.values() if row.family in (Family.POINTWISE, Family.COMPARISON))


@dataclass(frozen=True)
class Cut:
    """A tensor, or a function of it, in parts along a dimension.

    Attributes:
        source: the tensor.
        dim: the dimension.
        parts: width of each part and the nodes whose value it is, in order; none of a part that is left out.
        lost: whether the values are without the dimension, of which each takes one place.
        function: a prim of one operand, element by element.
    """

    source: fx.Node
    dim: int
    parts: tuple[tuple[int, tuple[fx.Node, ...]], ...]
    lost: bool = False
    function: Any = None

    @property
    def nodes(self) -> Iterator[fx.Node]:
        return (node for _, nodes in self.parts for node in nodes)


@dataclass(frozen=True)
class _Piece:
    """Elements ``[start, end)`` of a dimension, and the nodes that are it."""

    start: int
    end: int
    nodes: tuple[fx.Node, ...]


def cuts(graph: PrimGraph) -> dict[fx.Node, Cut]:
    """The cuts of a graph, by each node that is the value of a part."""
    found = [cut for source in graph.graph.nodes for cut in _of(source)]
    return {node: cut for cut in found for node in cut.nodes}


def _of(source: fx.Node) -> Iterator[Cut]:
    fake = source.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return
    for (dim, lost), pieces in _pieces(source, fake).items():
        left = pieces
        for function, results in _functions(pieces).items():
            parts = _parts(fake, dim, results)
            if parts:
                yield Cut(source, dim, parts, lost, function)
                own = {node for each in results for node in each.nodes}
                left = [each for each in left if not all(own.issuperset(node.users) for node in each.nodes)]
        parts = _parts(fake, dim, left)
        if parts:
            yield Cut(source, dim, parts, lost)


def _pieces(source: fx.Node, fake: torch.Tensor) -> Mapping[tuple[int, bool], list[_Piece]]:
    """Pieces by dimension, and whether they are without it."""
    found: dict[tuple[int, bool], list[_Piece]] = {}
    for user in source.users:
        if user.target not in (aten.slice.Tensor, aten.select.int) or user.args[0] is not source:
            continue
        dim = user.args[1] if len(user.args) > 1 else 0
        assert isinstance(dim, int)
        dim %= fake.dim()
        size = fake.shape[dim]
        bounds = _bounds(user, size) if isinstance(size, int) else None
        if bounds is None:
            continue
        nodes: tuple[fx.Node, ...] = (user,)
        lost = user.target == aten.select.int
        if not lost and bounds[1] - bounds[0] == 1 and all(_squeezes(each, dim, fake.dim()) for each in user.users):
            nodes, lost = tuple(user.users), True
        # What is left of a dimension that goes is a part of the next one, side by side with the others.
        if not lost or (dim + 1 < fake.dim() and isinstance(fake.shape[dim + 1], int) and fake.shape[dim + 1] > 0):
            found.setdefault((dim, lost), []).append(_Piece(*bounds, nodes))
    return found


def _bounds(piece: fx.Node, size: int) -> tuple[int, int] | None:
    """Start and end of a slice or selection; None where it has gaps, is empty or known at run time only."""
    numbers: list[Any] = [*piece.args[2:], None, None, None]
    if not all(number is None or type(number) is int for number in numbers):
        return None
    if piece.target == aten.select.int:
        return numbers[0] % size, numbers[0] % size + 1
    start, end, step = slice(*numbers[:3]).indices(size)
    return (start, end) if step == 1 and start < end else None


def _squeezes(node: fx.Node, dim: int, rank: int) -> bool:
    dims = node.args[1] if node.target == aten.squeeze.dims else ()
    return isinstance(dims, list | tuple) and len(dims) == 1 and isinstance(dims[0], int) and dims[0] % rank == dim


def _functions(pieces: Sequence[_Piece]) -> Mapping[Any, list[_Piece]]:
    """The pieces that go through a prim of one operand, element by element, as its results, by that prim."""
    found: dict[Any, list[_Piece]] = {}
    for piece in pieces:
        results: dict[Any, tuple[fx.Node, ...]] = {}
        for node in piece.nodes:
            for user in node.users:
                if user.target in _FUNCTIONS and user.args == (node,) and not user.kwargs:
                    results[user.target] = (*results.get(user.target, ()), user)
        for function, nodes in results.items():
            found.setdefault(function, []).append(_Piece(piece.start, piece.end, nodes))
    return found


def _parts(fake: torch.Tensor, dim: int, pieces: Sequence[_Piece]) -> tuple[tuple[int, tuple[fx.Node, ...]], ...]:
    """The pieces as parts of all of the dimension; none where they overlap, are too few or leave too much out."""
    parts: list[tuple[int, tuple[fx.Node, ...]]] = []
    place, size = 0, fake.shape[dim]
    for piece in sorted(pieces, key=lambda each: each.start):
        if piece.start < place:
            return ()
        if piece.start > place:
            parts.append((piece.start - place, ()))
        parts.append((piece.end - piece.start, piece.nodes))
        place = piece.end
    if place < size:
        parts.append((size - place, ()))
    out = sum(width for width, nodes in parts if not nodes)
    count = fake.numel()
    little = isinstance(count, int) and count <= SMALL and out <= _MOST_LEFT_OUT * size
    return tuple(parts) if len(pieces) > 1 and (out == 0 or little) else ()
