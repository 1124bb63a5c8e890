"""How the iterations of a tile are cut into pieces.

Blocks have powers of two, so that a length far from one is taken in several. And threads read and write whole vectors of 16
bytes only where every vector lies at a multiple of its own length and counts as a whole. So where rows begin anywhere, or their
length is no multiple of a vector, the pieces cover the whole vectors of a row, wherever these begin in it, and a small piece
the *edges*: what lies before the first and after the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from reference_backends.triton_gpu.analysis import Loop, body_of, ranges_of
from reference_backends.triton_gpu.launch import blocks_for, even_blocks
from vendor_sdk import LoopKernel, index, loop

VECTOR_BYTES = 16
LEAST = 64
"""Vectors of a row from which on its edges may cost a piece."""


@dataclass(frozen=True)
class Vectors:
    """Where vectors lie in rows.

    Attributes:
        lanes: iterations in a vector.
        offset: where a row begins in memory, less multiples of ``lanes``; nonnegative.
    """

    lanes: int
    offset: index.Int


@dataclass(frozen=True)
class Tile:
    """The axis r of inner loops of one length, or a piece of it.

    Attributes:
        block: how many iterations lie in it: a number, or the name of the constant.
        number: name of the iterations' numbers.
        mask: name of where they count; empty where all do.
        size: iterations of the loops.
        start: text of the number that the piece starts with.
        end: text of the first number that does not count.
        suffix: of the names of values in this piece.
        offset: what the number 0 stands before: the piece's numbers count from there.
        edges: of which vectors this piece holds the edges, if it does.
        most: iterations that a tile taken a block at a time holds; those of the loops where no piece holds edges.
    """

    block: str
    number: str
    mask: str
    size: index.Int
    start: str = "0"
    end: str = ""
    suffix: str = ""
    offset: index.Int = index.ZERO
    edges: Vectors | None = None
    most: index.Int | None = None

    @property
    def iteration(self) -> index.Int:
        """The iteration of a lane."""
        if self.offset == index.ZERO:
            return index.variable(self.number, self.size)
        return index.symbol(self.number) - self.offset


def pieces(name: str, size: index.Int, vectors: Vectors | None, most: int, *, even: bool) -> list[Tile]:
    """The tile of loops of ``size`` iterations, a known number: ``most`` pieces, or ``even`` ones, and one of the edges."""
    length = size.value
    assert length is not None
    lanes = vectors.lanes if vectors else 1
    whole = length // lanes * lanes
    found = []
    at = 0
    for k, block in enumerate((even and even_blocks(whole)) or blocks_for(whole, most)):
        suffix = f"_{k}" if k else ""
        number = name + suffix
        if vectors is None or vectors.offset == index.ZERO:
            mask = "" if at + block <= whole else f"{number}_mask"
            found.append(Tile(str(block), number, mask, size, str(at), str(whole), suffix))
        else:
            # Of a row that begins inside of a vector, the last whole one may not be there.
            mask = "" if at + block <= (length - lanes + 1) // lanes * lanes else f"{number}_mask"
            start = f"{name}_first + {at}" if at else f"{name}_first"
            found.append(Tile(str(block), number, mask, size, start, f"{name}_last", suffix, vectors.offset))
        at += block
    return [*found, _edges(name, size, vectors)] if vectors else found


def piecewise(name: str, block: str, size: index.Int, vectors: Vectors | None) -> list[Tile]:
    """The tile of loops that take ``block`` iterations at a time, and a piece of the edges."""
    if vectors is None:
        return [Tile(block, name, f"{name}_mask", size)]
    most = size // vectors.lanes * vectors.lanes
    start, end = ("0", index.to_python(most)) if vectors.offset == index.ZERO else (f"{name}_first", f"{name}_last")
    blocks = Tile(block, name, f"{name}_mask", size, start, end, offset=vectors.offset, most=most)
    return [blocks, _edges(name, size, vectors)]


def _edges(name: str, size: index.Int, vectors: Vectors) -> Tile:
    return Tile(str(2 * vectors.lanes), f"{name}_e", f"{name}_e_mask", size, suffix="_e", edges=vectors)


def vectors(
    kernel: LoopKernel, loops: Sequence[Loop], places: Mapping[str, index.Int], known: Container[str]
) -> Vectors | None:
    """Where vectors lie in the rows of ``loops``, which share a tile; ``None`` where rows begin and end with vectors, or not
    all in one way that the program knows.

    Args:
        places: of the variables around the loops.
        known: names of which a program knows the value before the loops.
    """
    rows: list[tuple[index.Int, int, bool]] = []
    for s in loops:
        if len(ranges_of(s)) != 1:
            return None
        (r,) = ranges_of(s)
        for access in body_of(s):
            if isinstance(access, loop.Load | loop.Store):
                along = index.stride(access.index, r.var)
                if along == 1:
                    start = index.substitute(index.substitute(access.index, {r.var: index.ZERO}), places)
                    param = kernel.param(access.param)
                    far = param.role != "scratch" and bool(index.symbols(start))
                    rows.append((start, param.dtype.itemsize, far))
    length = ranges_of(loops[0])[0].size.value
    if not rows or length is None:
        return None
    # A row that all programs read (a weight), and what is written at the end, are near: that they be accessed in whole vectors
    # matters less.
    rows = [row for row in rows if row[2]] or rows
    # Those of the smallest elements, where a row has many of these.
    widths = [VECTOR_BYTES // itemsize for itemsize in sorted({itemsize for _, itemsize, _ in rows})]
    lanes = next((n for n in widths if length >= LEAST * n), widths[-1])
    ((offset, count),) = Counter(modulo(start, lanes) for start, _, _ in rows).most_common(1)
    if 2 * count <= len(rows) or length < LEAST * lanes or (offset == index.ZERO and length % lanes == 0):
        return None
    if not index.nonnegative(offset) or any(name not in known for name in index.symbols(offset)):
        return None
    return Vectors(lanes, offset)


def modulo(expression: index.Int, divisor: int) -> index.Int:
    """An expression that differs from this one by multiples of ``divisor``, each of its coefficients below."""
    result = index.wrap(expression.constant % divisor)
    for atom, coefficient in expression.terms:
        result = result + index.wrap_atom(atom) * (coefficient % divisor)
    return result
