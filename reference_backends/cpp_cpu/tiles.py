"""Nests that cross memory's grain, with accesses that lie along different loops: in tiles, which use every cache line whole.

The loop that most accesses lie along runs in vectors; what lies along another one, *across* it, is turned in registers on the
way into, or out of, a buffer of the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import torch

from reference_backends.cpp_cpu.analysis import Access, Leaf, iterations, loads, stores, stride_is
from reference_backends.cpp_cpu.sliding import Sliding
from reference_backends.cpp_cpu.table import CTYPES
from reference_backends.cpp_cpu.vectors import SHORT
from vendor_sdk import index, loop


@dataclass(frozen=True)
class Crossing:
    """``inner`` runs in vectors; the accesses ``turned`` lie along ``across``."""

    inner: loop.Range
    across: loop.Range
    turned: tuple[Access, ...]


def crossing(nest: loop.Nest) -> Crossing | None:
    """The loops to tile; None where all accesses lie along one, or along none."""
    made = {s.to for s in nest.body if isinstance(s, Leaf)}
    both: list[Access] = [*loads(nest.body), *stores(nest.body)]
    accesses = [s for s in both if not index.symbols(s.index).keys() & made]

    def turned(inner: loop.Range, across: loop.Range) -> tuple[Access, ...]:
        return tuple(s for s in accesses if _turns(s, inner, across))

    def straight(inner: loop.Range, across: loop.Range) -> int:
        """Accesses that lie along ``inner`` and step over memory along ``across``: what ``across`` does not move is read once,
        whichever way the loops run."""
        return sum(stride_is(s.index, inner.var, 1) and not stride_is(s.index, across.var, 0) for s in accesses)

    def rank(pair: tuple[loop.Range, loop.Range]) -> tuple[bool, int, int]:
        inner, across = pair
        return inner.size.value is None or inner.size.value > SHORT, straight(inner, across), len(turned(inner, across))

    mixed = [pair for pair in permutations(reversed(nest.ranges), 2) if straight(*pair) and turned(*pair)]
    if not mixed:
        return None
    inner, across = max(mixed, key=rank)
    return Crossing(inner, across, turned(inner, across))


def _turns(s: Access, inner: loop.Range, across: loop.Range) -> bool:
    """Whether an access lies along ``across`` and steps over memory along ``inner``."""
    step = index.stride(s.index, inner.var)
    combines = isinstance(s, loop.Store) and s.mode != "set"
    return (
        s.mask is None and not combines and step is not None and step.value not in (0, 1) and stride_is(s.index, across.var, 1)
    )


def side(dtypes: Sequence[torch.dtype]) -> int:
    """Side of a tile: what is turned is read and written in pieces of a few cache lines, and lies in the first cache levels."""
    return 64 if max(d.itemsize for d in dtypes) >= 4 else 128


class Tiles(Sliding):
    """Text of nests in tiles."""

    def tiles(self, nest: loop.Nest, crossing: Crossing) -> None:
        inner, across = crossing.inner, crossing.across
        square = side([self.dtype(s) for s in crossing.turned])
        rest = [r for r in nest.ranges if r is not across and r is not inner]
        if self.open_region(iterations(nest.ranges, nest.body), serial=False):
            self.work_sharing(len(rest) + 2)
        for r in rest:
            self.open_loop(r)
        # Rows of results go to memory whole, so that tiles follow each other along the innermost range.
        down, along = (self.fresh("tile") for _ in range(2))
        for start, r in ((down, across), (along, inner)):
            self.out.open(f"for (int64_t {start} = 0; {start} < {index.to_c(r.size)}; {start} += {square})")
        height, width = self.fresh("height"), self.fresh("width")
        self.out(f"const int64_t {height} = min_int({square}, {index.to_c(across.size)} - {down});")
        self.out(f"const int64_t {width} = min_int({square}, {index.to_c(inner.size)} - {along});")
        place = (index.variable(across.var, across.size) - index.symbol(down)) * square
        place = place + index.variable(inner.var, inner.size) - index.symbol(along)
        body: list[loop.Stmt] = []
        after: list[str] = []
        for s in nest.body:
            if s not in crossing.turned:
                body.append(s)
                continue
            assert isinstance(s, Access)
            buffer = self.fresh("turned")
            first = index.substitute(s.index, {across.var: index.symbol(down), inner.var: index.symbol(along)})
            pitch = index.stride(s.index, inner.var)
            assert pitch is not None
            self.out(f"alignas(64) {CTYPES[self.dtype(s)]} {buffer}[{square * square}];")
            memory = f"{s.param} + {self.sum(index.to_c(first))}, {index.to_c(pitch)}"
            if isinstance(s, loop.Load):
                self.out(f"transpose({memory}, {buffer}, {square}, {width}, {height});")
            else:
                after.append(f"transpose({buffer}, {square}, {memory}, {height}, {width});")
            body.append(replace(s, param=buffer, index=place))
        self.open_loop(across, down, f"{down} + {height}")
        self.vector_loop(inner, body, along, f"{along} + {width}")
        self.out.close()
        for text in after:
            self.out(text)
        self.out.close(len(rest) + 2)
        self.close_region()

    def dtype(self, s: Access) -> torch.dtype:
        return self.kernel.param(s.param).dtype
