"""Nests one after the other over the rows of one buffer, as one that does all of them row by row: parts of a concatenation, or
a copy and what is scattered into it. Rows are still in the first caches when they are touched again, and threads meet once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reference_backends.cpp_cpu import machine
from reference_backends.cpp_cpu.analysis import Access, along, collides, plain, repeated, scatters, stores
from reference_backends.cpp_cpu.tiles import crossing
from vendor_sdk import index, loop

FEWEST = 256
"""Rows that many threads share evenly."""


@dataclass(frozen=True)
class Rows(loop.Nest):
    """A nest over rows whose body is nests within a row, in the order in which they stood."""


def by_rows(nests: Sequence[loop.Nest], sizes: dict[str, int]) -> tuple[loop.Nest, ...]:
    """The nests of a kernel, neighbours joined where that changes no result. ``sizes``: bytes of an element of each param."""
    found: list[loop.Nest] = []
    for nest in nests:
        joined = _joined(found[-1], nest, sizes) if found else None
        if joined is None:
            found.append(nest)
        else:
            found[-1] = joined
    return tuple(found)


def _joined(first: loop.Nest, second: loop.Nest, sizes: dict[str, int]) -> Rows | None:
    # The loop over rows is that of either nest which has loops inside it.
    rows = next((n.ranges[0] for n in (first, second) if isinstance(n, Rows) or len(n.ranges) > 1), None)
    if rows is None or rows.size.value is None or rows.size.value < FEWEST:
        return None
    before, after = _parts(first, rows), _parts(second, rows)
    if before is None or after is None or not _keep_to_rows(before, after, rows):
        return None
    moved = index.ZERO
    for n in (*before, *after):
        moved = moved + index.product(r.size for r in n.ranges) * sum(sizes[s.param] for s in _accesses((n,)))
    if moved.value is None or moved.value > machine.cache_bytes(2) // 2:
        return None
    return Rows((rows,), (*before, *after))


def _parts(nest: loop.Nest, rows: loop.Range) -> tuple[loop.Nest, ...] | None:
    """What a nest does to one row; None where its outermost loop is not over rows, or where it runs better in another way."""
    if type(nest) not in (loop.Nest, Rows) or not nest.ranges:
        return None
    outer, *inner = nest.ranges
    count, size = rows.size.value, outer.size.value
    assert count is not None
    row = index.variable(rows.var, rows.size)
    if isinstance(nest, Rows):
        parts = [part for part in nest.body if isinstance(part, loop.Nest)]
        return tuple(_at(part, outer, row, part.ranges) for part in parts) if size == count else None
    if not plain(nest.body) or collides(nest):
        return None
    if not inner:
        if size is None or size % count or size == count:
            return None
        within = loop.Range(f"{outer.var}w", index.wrap(size // count))
        return (_at(nest, outer, row * within.size + index.variable(within.var, within.size), (within,)),)
    if size != count or along(nest.ranges, nest.body) == 0 or any(repeated(nest.ranges, r, nest.body) for r in inner):
        return None
    if not scatters(nest.body) and crossing(nest) is not None:
        return None
    return (_at(nest, outer, row, tuple(inner)),)


def _at(nest: loop.Nest, outer: loop.Range, place: index.Int, ranges: tuple[loop.Range, ...]) -> loop.Nest:
    """The body of a nest where its outermost variable is ``place``."""
    body = (
        replace(s, index=index.substitute(s.index, {outer.var: place})) if isinstance(s, Access | loop.Index) else s
        for s in nest.body
    )
    return loop.Nest(ranges, tuple(body))


def _accesses(nests: Sequence[loop.Nest]) -> list[Access]:
    return [s for n in nests for s in loop.walk(n.body) if isinstance(s, Access)]


def _keep_to_rows(before: Sequence[loop.Nest], after: Sequence[loop.Nest], rows: loop.Range) -> bool:
    """Whether what both touch and either writes lies in the same row for both; and whether there is any."""
    shared = {s.param for s in _accesses(before)} & {s.param for s in _accesses(after)}
    shared &= {s.param for n in (*before, *after) for s in stores(n.body)}
    pitches: dict[str, index.Int] = {}
    for s in _accesses((*before, *after)):
        if s.param not in shared:
            continue
        pitch = index.stride(s.index, rows.var)
        if pitch is None or pitches.setdefault(s.param, pitch) != pitch:
            return False
        rest = index.substitute(s.index, {rows.var: 0})
        if not (index.nonnegative(rest) and index.less(rest, pitch)):
            return False
    return bool(pitches)
