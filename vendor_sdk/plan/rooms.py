"""Rooms: allocations that are there for a part of the call, with many buffers in them.

The arena is there for the whole call, and so is a result's memory once others lie in it. Where results and what libraries
return decide the peak, that is too much at some steps. So what is dead by the first of these, and what is born after the last,
gets a room, which comes with the first of its buffers and goes with the last; what is neither, and large, may be apart. That
lowers a peak only where memory that was freed serves what is allocated next, whatever its size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

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
    worst = [step for step, nbytes in enumerate(beside) if nbytes == max(beside)]
    inside = [n for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and sizes[n]]
    before = [n for n in inside if plan.buffers[n].last < worst[0]]
    after = [n for n in inside if plan.buffers[n].first > worst[-1]]
    between = [n for n in inside if sizes[n] >= LEAST and n not in {*before, *after}]
    rooms: list[Buffer] = []
    own = list(plan.buffers)
    for groups, alone, lay in itertools.product(([before], [after], [before, after]), ([], between), lays):
        if best.peak == best.bound:
            break
        _move(plan, alone, Home.APART)
        found, made = _with_rooms(plan, sizes, groups, best.bound, lay)
        _move(plan, alone, Home.ARENA)
        plan.buffers[:] = own
        if found is not None and found.peak < best.peak:
            best, rooms, apart = found, made, alone
    plan.buffers += rooms
    _move(plan, apart, Home.APART)
    return best


def _with_rooms(
    plan: MemoryPlan, sizes: Sequence[int], groups: Sequence[Sequence[int]], bound: int, lay: Lay
) -> tuple[Layout | None, list[Buffer]]:
    """The layout with a room for each group of buffers, and the rooms, which end ``plan``; None where one is too small."""
    places: dict[int, Place] = {}
    widths, rooms = list(sizes), []
    for group in groups:
        lives = [plan.buffers[n] for n in group]
        found = pack([Item(sizes[n], b.first, b.last) for n, b in zip(group, lives, strict=True)], [], 0)
        nbytes = max((offset + sizes[n] for n, (_, offset) in zip(group, found, strict=True)), default=0)
        if nbytes < LEAST:
            return None, []
        places |= {n: Place(len(widths), offset) for n, (_, offset) in zip(group, found, strict=True)}
        node = min(lives, key=lambda b: b.first).slots[0][0]
        first, last = min(b.first for b in lives), max(b.last for b in lives)
        rooms.append(Buffer(part_name(node, ROOM), wrap(nbytes), first, last, Home.APART, [(node, ROOM)]))
        widths.append(nbytes)
    plan.buffers += rooms
    layout = lay([0 if n in places else nbytes for n, nbytes in enumerate(widths)])
    return replace(layout, places={**layout.places, **places}, bound=bound), rooms


def _move(plan: MemoryPlan, numbers: Sequence[int], home: Home) -> None:
    for number in numbers:
        plan.buffers[number].home = home
