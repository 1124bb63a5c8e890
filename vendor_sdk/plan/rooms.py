"""Rooms: allocations that are there for a part of the call, with many buffers in them.

The arena is there for the whole call, and so is a result's memory once others lie in it. Where results and what libraries
return decide the peak, that is too much at some steps. So what is dead by the first of these, and what is born after the last,
gets a room, which comes with the first of its buffers and goes with the last; what is neither, and large, may be apart. That
lowers a peak only where memory that was freed serves what is allocated next, whatever its size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from vendor_sdk.ir.index import wrap
from vendor_sdk.ir.memory import ROOM, Buffer, Home, Layout, MemoryPlan, Place, live_bytes, part_name
from vendor_sdk.plan.offsets import Item, pack

LEAST = 1 << 16
"""Bytes of a room that is worth its allocation."""

Lay = Callable[[Sequence[int]], Layout]
"""Lays out a plan as it stands, for sizes of its buffers."""


def make_rooms(plan: MemoryPlan, sizes: Sequence[int], best: Layout, lays: Sequence[Lay]) -> Layout:
    """Gives ``plan`` rooms where that lowers its peak; buffers that were apart lie there then.

    Args:
        sizes: of the buffers, in bytes.
        best: the layout of the plan as it stands.
        lays: what is not in a room may lie in either way.

    Returns:
        The layout of the plan as it stands then.
    """
    if best.peak <= best.bound or all(b.home is not Home.ELSEWHERE for b in plan.buffers):
        return best
    apart = [n for n, b in enumerate(plan.buffers) if b.home is Home.APART]
    _move(plan, apart, Home.ARENA)
    outside = [(sizes[n], b.first, b.last) for n, b in enumerate(plan.buffers) if b.home is not Home.ARENA]
    beside = live_bytes(outside, len(plan.steps))
    most = max(beside)
    worst = [step for step, nbytes in enumerate(beside) if nbytes == most]
    inside = [n for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and sizes[n]]
    before = [n for n in inside if plan.buffers[n].last < worst[0]]
    after = [n for n in inside if plan.buffers[n].first > worst[-1]]
    between = [n for n in inside if sizes[n] >= LEAST and n not in {*before, *after}]
    rooms = [room for group in (before, after) if group and (room := _room(plan, sizes, group)).nbytes >= LEAST]
    chosen: Sequence[_Room] = ()
    for some, alone, lay in itertools.product(_subsets(rooms), ([], between) if between else ([],), lays):
        if best.peak == best.bound:
            break
        _move(plan, alone, Home.APART)
        found = _with_rooms(plan, sizes, some, best.bound, lay)
        _move(plan, alone, Home.ARENA)
        if found.peak < best.peak:
            best, chosen, apart = found, some, alone
    plan.buffers += [room.buffer for room in chosen]
    _move(plan, apart, Home.APART)
    return best


@dataclass(frozen=True)
class _Room:
    """A room with the offsets of the buffers in it."""

    buffer: Buffer
    nbytes: int
    offsets: Mapping[int, int]


def _room(plan: MemoryPlan, sizes: Sequence[int], inside: Sequence[int]) -> _Room:
    """For buffers of these numbers, of which there are some."""
    lives = [plan.buffers[n] for n in inside]
    found = pack([Item(sizes[n], b.first, b.last) for n, b in zip(inside, lives, strict=True)], [], 0)
    offsets = {n: offset for n, (_, offset) in zip(inside, found, strict=True)}
    nbytes = max(offset + sizes[n] for n, offset in offsets.items())
    node = min(lives, key=lambda b: b.first).slots[0][0]
    first, last = min(b.first for b in lives), max(b.last for b in lives)
    return _Room(Buffer(part_name(node, ROOM), wrap(nbytes), first, last, Home.APART, [(node, ROOM)]), nbytes, offsets)


def _subsets(rooms: Sequence[_Room]) -> list[Sequence[_Room]]:
    """But the empty one."""
    return [some for count in range(1, len(rooms) + 1) for some in itertools.combinations(rooms, count)]


def _with_rooms(plan: MemoryPlan, sizes: Sequence[int], rooms: Sequence[_Room], bound: int, lay: Lay) -> Layout:
    """The layout if ``plan`` ended with these rooms."""
    count = len(plan.buffers)
    places = {n: Place(count + i, offset) for i, room in enumerate(rooms) for n, offset in room.offsets.items()}
    plan.buffers += [room.buffer for room in rooms]
    layout = lay([0 if n in places else nbytes for n, nbytes in enumerate((*sizes, *(room.nbytes for room in rooms)))])
    del plan.buffers[count:]
    return replace(layout, places={**layout.places, **places}, bound=bound)


def _move(plan: MemoryPlan, numbers: Sequence[int], home: Home) -> None:
    for number in numbers:
        plan.buffers[number].home = home
