"""Rows of which some operands lie along memory and others across it: a softmax over the channels of an image, which lie last in
its input and first in its result.

Such a nest runs as columns (``columns``): what lies along rows is turned into a buffer of a tile of rows, or out of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from reference_backends.cpp_cpu import machine
from reference_backends.cpp_cpu.analysis import Access, loads, plain, scatters, stores, stride_is
from vendor_sdk import index, loop

TILE = 64
"""Rows of a tile at most."""
LONGEST = 1024
"""Elements of a row."""
FEWEST = 16
"""Rows that are neighbours."""


@dataclass(frozen=True)
class Turn:
    """What is turned: element ``k`` of a row lies at ``first + k``, that of the next row ``pitch`` further."""

    access: Access
    first: index.Int
    pitch: index.Int
    buffer: loop.Param


@dataclass(frozen=True)
class Turned(loop.Nest):
    """A nest of rows, to be run as columns of its last range, whose loops access the buffers of ``turns`` instead."""

    turns: tuple[Turn, ...] = ()


def turned(nest: loop.Nest, dtypes: Mapping[str, torch.dtype]) -> Turned | None:
    """A nest of rows as one of columns; None where its accesses lie otherwise, or all along rows. ``dtypes``: of params."""
    loops = [s for s in nest.body if isinstance(s, loop.Reduce | loop.Nest)]
    lengths = {r.size.value for s in loops for r in s.ranges}
    (length,) = lengths if len(lengths) == 1 else (None,)
    if length is None or not 2 <= length <= LONGEST or scatters(nest.body) or any(isinstance(s, loop.Scan) for s in nest.body):
        return None
    if not all(len(s.ranges) == 1 and plain(s.body) for s in loops):
        return None
    for rows in reversed(nest.ranges):
        found = _over(nest, loops, rows, length, dtypes)
        if found is not None:
            return found
    return None


def _over(
    nest: loop.Nest,
    loops: Sequence[loop.Reduce | loop.Nest],
    rows: loop.Range,
    length: int,
    dtypes: Mapping[str, torch.dtype],
) -> Turned | None:
    if rows.size.value is not None and rows.size.value < FEWEST:
        return None
    turns: dict[tuple[type, str, index.Int], Turn] = {}
    along = False
    inside = {name for s in loops for t in s.body for name in loop.makes(t)}
    for s in loops:
        (own,) = s.ranges
        for t in s.body:
            if not isinstance(t, Access) or stride_is(t.index, rows.var, 0):
                continue
            if stride_is(t.index, rows.var, 1):
                along = True
                continue
            pitch, first = index.stride(t.index, rows.var), index.substitute(t.index, {own.var: 0})
            plainly = t.mask is None and stride_is(t.index, own.var, 1) and not inside & index.symbols(t.index).keys()
            if pitch is None or not plainly or not index.less(length - 1, pitch):
                return None
            key = type(t), t.param, first
            if key not in turns:
                buffer = loop.Param(f"{t.param}_turned{len(turns)}", dtypes[t.param], index.wrap(length), "local")
                turns[key] = Turn(t, first, pitch, buffer)
    params = {turn.access.param for turn in turns.values()}
    # What one loop stores and a later one loads is in memory at the end of a tile only.
    if params & {t.param for t in loads(nest.body)} & {t.param for t in stores(nest.body)}:
        return None
    room = TILE * length * sum(turn.buffer.dtype.itemsize for turn in turns.values())
    if not along or not turns or room > machine.cache_bytes(2) // 2:
        return None
    others = tuple(r for r in nest.ranges if r is not rows)
    body = [_moved(s, turns) if isinstance(s, loop.Reduce | loop.Nest) else s for s in nest.body]
    return Turned((*others, rows), (*(loop.Local(t.buffer) for t in turns.values()), *body), tuple(turns.values()))


def _moved(s: loop.Reduce | loop.Nest, turns: Mapping[tuple[type, str, index.Int], Turn]) -> loop.Reduce | loop.Nest:
    (own,) = s.ranges
    body: list[loop.Stmt] = []
    for t in s.body:
        if isinstance(t, Access):
            turn = turns.get((type(t), t.param, index.substitute(t.index, {own.var: 0})))
            if turn is not None and t.mask is None and stride_is(t.index, own.var, 1):
                t = replace(t, param=turn.buffer.name, index=index.variable(own.var, own.size))
        body.append(t)
    return replace(s, body=tuple(body))
