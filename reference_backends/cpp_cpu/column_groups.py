"""Groups of neighbouring columns that are reduced together: a group norm of an image with its channels last.

The channels of a group lie side by side, and the groups do. A nest over groups whose loops run over the channels of one is a
nest over all channels whose loops do not, and where a reduction ends, what the columns of a group found is joined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from reference_backends.cpp_cpu.analysis import plain, stride_is
from vendor_sdk import index, loop

LARGEST = 1024
"""Columns of whole groups and whole vectors at most."""
JOINED = frozenset(("sum", "prod", "max", "min", "any", "all", "xor"))
"""Reductions of one result each."""
UNIT = 64
"""Columns of whole vectors, of every type."""


@dataclass(frozen=True)
class Grouped(loop.Nest):
    """A nest over columns.

    Attributes:
        group: so many neighbours are reduced together.
    """

    group: int = 1


def unit(nest: loop.Nest) -> int:
    """Tiles have a multiple of so many columns."""
    return math.lcm(UNIT, nest.group) if isinstance(nest, Grouped) else UNIT


def grouped(nest: loop.Nest) -> Grouped | None:
    """The nest over columns that a nest over groups of them is; None for any other."""
    loops = [s for s in nest.body if isinstance(s, loop.Reduce | loop.Nest)]
    if not nest.ranges or not loops or not all(plain(s.body) for s in loops):
        return None
    *outer, groups = nest.ranges
    places = [_place(s, groups) for s in loops]
    sizes = {r.size.value if r is not None else None for r in places}
    (size,) = sizes if len(sizes) == 1 else (None,)
    if size is None or size < 2 or math.lcm(UNIT, size) > LARGEST:
        return None
    columns = loop.Range(f"{groups.var}c", groups.size * size)
    body: list[loop.Stmt] = []
    for s in nest.body:
        if isinstance(s, loop.Reduce | loop.Nest):
            own = next(r for r in s.ranges if r in places)
            rest = tuple(r for r in s.ranges if r is not own)
            s = replace(s, ranges=rest, body=tuple(_over(t, groups, own, columns, size) for t in s.body))
        elif isinstance(s, loop.Store) and s.mode != "set":
            return None
        else:
            s = _over(s, groups, None, columns, size)
        body.append(s)
    return Grouped((*outer, columns), tuple(body), size)


def _place(s: loop.Reduce | loop.Nest, groups: loop.Range) -> loop.Range | None:
    """The loop over the columns of a group: where its neighbours end, those of the next group begin."""
    if isinstance(s, loop.Reduce) and not all(a.op in JOINED for a in s.accumulators):
        return None
    for r in s.ranges if len(s.ranges) > 1 else ():
        indices = [(t, t.index) for t in s.body if isinstance(t, loop.Load | loop.Store | loop.Index)]
        if any(stride_is(at, r.var, 1) for _, at in indices) and all(_continues(t, at, r, groups) for t, at in indices):
            return r
    return None


def _continues(s: loop.Stmt, at: index.Int, own: loop.Range, groups: loop.Range) -> bool:
    step, apart = index.stride(at, own.var), index.stride(at, groups.var)
    if step is None or apart is None:
        return False
    return apart == step * own.size if step != 0 else not isinstance(s, loop.Store)


def _over(s: loop.Stmt, groups: loop.Range, own: loop.Range | None, columns: loop.Range, size: int) -> loop.Stmt:
    """A statement in a loop over columns."""
    if not isinstance(s, loop.Load | loop.Store | loop.Index):
        return s
    at, column = s.index, index.variable(columns.var, columns.size)
    step = index.ZERO if own is None else index.stride(at, own.var)
    if own is None or step is None or step == 0:
        return replace(s, index=index.substitute(at, {groups.var: column // size}))
    return replace(s, index=index.substitute(at, {groups.var: 0, own.var: 0}) + column * step)
