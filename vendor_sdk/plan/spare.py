"""What is spare: at each step, the longest stretch of the arena, of the bank, of a room or of a result's memory in which
nothing lies.

Arena and bank are there during the whole call, and full at its worst step alone; the memory of a result in which others lie
before it is written is there from the first of them on, and a room from the first to the last. Launches that need memory of
their own take it there, so the call holds no more than was planned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from vendor_sdk.ir.memory import BANK, Layout, MemoryPlan, Place, Stretch


def spare(plan: MemoryPlan) -> list[Stretch | None]:
    """For each step of a static plan; None where there is nothing."""
    layout = plan.fixed
    assert layout is not None
    if not plan.steps:
        return []
    memory = {None: _Free(layout.arena_bytes), BANK: _Free(layout.bank_bytes)}
    begins: list[list[_Lies]] = [[] for _ in plan.steps]
    ends: list[list[_Lies]] = [[] for _ in plan.steps]
    there = _first_uses(plan, layout)
    goes: dict[int, list[int]] = {}
    for number in there:
        if plan.buffers[number].is_room:
            goes.setdefault(plan.buffers[number].last, []).append(number)
    for block, begin, end, first, last in _lying(plan, layout, there):
        if begin < end:
            begins[first].append((block, begin, end))
            ends[min(last, len(plan.steps) - 1)].append((block, begin, end))
    comes: dict[int, list[int]] = {}
    for block, first in there.items():
        comes.setdefault(first, []).append(block)
    found: list[Stretch | None] = []
    for step, (born, dying) in enumerate(zip(begins, ends, strict=True)):
        memory |= {block: _Free(_nbytes(plan, block)) for block in comes.get(step, ())}
        for block, begin, end in born:
            memory[block].take(begin, end)
        block, (begin, end) = max(
            ((block, free.longest()) for block, free in memory.items()), key=lambda each: each[1][1] - each[1][0]
        )
        found.append(Stretch(Place(block, begin), end - begin) if end > begin else None)
        for block, begin, end in dying:
            memory[block].give(begin, end)
        for room in goes.get(step, ()):
            del memory[room]
    return found


def _nbytes(plan: MemoryPlan, block: int) -> int:
    """Bytes of a result, whose memory has no padding at its end."""
    return plan.buffers[block].nbytes.value or 0


def _first_uses(plan: MemoryPlan, layout: Layout) -> dict[int, int]:
    """Results and rooms in whose memory others lie, each with the step from which on it is there."""
    first: dict[int, int] = {}
    for number, place in layout.places.items():
        if place.block is not None and place.block != BANK:
            step = plan.buffers[number].first
            first[place.block] = min(first.get(place.block, step), step)
    return first


_Lies = tuple[int | None, int, int]
"""In which memory (``Place.block``), from where to where."""


def _lying(plan: MemoryPlan, layout: Layout, results: Mapping[int, int]) -> Iterator[tuple[int | None, int, int, int, int]]:
    """What lies where, and from which step to which."""
    sizes = plan.sizes({})
    for number, place in layout.places.items():
        buffer, end = plan.buffers[number], place.offset + sizes[number]
        if place.block is not None and place.block in results:
            end = min(end, _nbytes(plan, place.block))
        yield place.block, place.offset, end, buffer.first, buffer.last
    for number in [number for number in results if not plan.buffers[number].is_room]:
        yield number, 0, _nbytes(plan, number), plan.buffers[number].first, plan.buffers[number].last
    if plan.lender is not None and layout.lender is not None:
        for value in plan.lender.values:
            begin = layout.lender + value.offset
            yield BANK, begin, begin + value.nbytes, 0, value.last


class _Free:
    """Stretches that are free, in order and apart."""

    def __init__(self, nbytes: int) -> None:
        self.begins, self.ends = ([0], [nbytes]) if nbytes else ([], [])

    def take(self, begin: int, end: int) -> None:
        """``[begin, end)``, which is free."""
        at = bisect_right(self.begins, begin) - 1
        first, last = self.begins[at], self.ends[at]
        left = [(first, begin)] if first < begin else []
        left += [(end, last)] if end < last else []
        self.begins[at : at + 1] = [a for a, _ in left]
        self.ends[at : at + 1] = [b for _, b in left]

    def give(self, begin: int, end: int) -> None:
        """``[begin, end)``, which was taken."""
        at = bisect_right(self.begins, begin)
        low, high = at, at
        if at > 0 and self.ends[at - 1] == begin:
            low, begin = at - 1, self.begins[at - 1]
        if at < len(self.begins) and self.begins[at] == end:
            high, end = at + 1, self.ends[at]
        self.begins[low:high] = [begin]
        self.ends[low:high] = [end]

    def longest(self) -> tuple[int, int]:
        return max(zip(self.begins, self.ends, strict=True), key=lambda each: each[1] - each[0], default=(0, 0))
