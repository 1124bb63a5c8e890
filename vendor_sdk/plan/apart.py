"""Apart: buffers with an allocation of their own, where what lies beside the arena decides the peak.

The arena is there for the whole call. Outputs come on top of it as they are written, and what a library's kernel returns comes
and goes; so at the step with the most of these, every byte of the arena which is not in use then is too much. Buffers that are
large and dead at that step are allocated when they are made, and freed when they die: first those that lie above or below all
that the arena holds then; where libraries decide the peak, also those that found no room in an output's memory, or all of some
size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vendor_sdk.ir.memory import BANK, Home, Layout, MemoryPlan, Slot, live_bytes
from vendor_sdk.plan.offsets import CLOSE

PART = 64
"""Buffers below this part of the peak stay in the arena: an allocation costs microseconds."""
ALONE = 256
"""The same for those that are not in an output's memory: they are few where most are."""
LEAST = 1 << 16
"""Bytes of a buffer for which its kernel takes longer than an allocation and the end of a native call."""
WIDTHS = 6
"""How many sizes are tried as the least that is apart."""


def set_apart(plan: MemoryPlan, sizes: Sequence[int], lay: Callable[[], Layout]) -> Layout:
    """Gives large buffers of ``plan`` a home of their own where that lowers its peak.

    Args:
        sizes: of the buffers, in bytes.
        lay: lays out the plan as it stands.

    Returns:
        The layout of the plan as it stands then.
    """
    best = lay()
    chosen: list[int] = []
    for candidates in filter(None, _candidates(plan, sizes, best)):
        if best.peak <= CLOSE * best.bound:
            break
        _move(plan, candidates, Home.APART)
        found = lay()
        _move(plan, candidates, Home.ARENA)
        if found.peak * CLOSE < best.peak:
            best, chosen = found, candidates
    _move(plan, chosen, Home.APART)
    return best


def better_alone(plan: MemoryPlan) -> set[Slot]:
    """Results that took over memory and are read when a block is written in which others lay until then: those before them,
    which share their buffer, could lie there, too. None where the plan is good, and where no library's results decide it."""
    layout = plan.fixed
    if layout is None or layout.peak <= CLOSE * layout.bound or all(b.home is not Home.ELSEWHERE for b in plan.buffers):
        return set()
    blocks = {p.block for p in layout.places.values() if p.block is not None and p.block != BANK}
    written = {plan.buffers[n].first for n in blocks if plan.buffers[n].home is Home.BLOCK}
    shared = [b for b in plan.buffers if b.home in (Home.ARENA, Home.APART) and len(b.slots) > 1]
    return {b.slots[-1] for b in shared if any(b.first < step <= b.last for step in written)}


def _candidates(plan: MemoryPlan, sizes: Sequence[int], layout: Layout) -> Iterator[list[int]]:
    """Buffers that may be better apart."""
    inside = [n for n, b in enumerate(plan.buffers) if b.home is Home.ARENA]
    yield from _beyond(plan, sizes, layout)
    if all(b.home is not Home.ELSEWHERE for b in plan.buffers):
        return
    yield [n for n in inside if layout.places[n].block is None and sizes[n] * ALONE >= layout.peak]
    large = [n for n in inside if sizes[n] * PART >= layout.peak]
    for least in sorted({sizes[n] for n in large}, reverse=True)[:WIDTHS]:
        yield [n for n in large if sizes[n] >= least]


def _beyond(plan: MemoryPlan, sizes: Sequence[int], layout: Layout) -> Iterator[list[int]]:
    """Buffers above all that the arena holds at the steps with the most beside it, and those below."""
    outside = [(sizes[n], b.first, b.last) for n, b in enumerate(plan.buffers) if b.home is not Home.ARENA]
    beside = live_bytes(outside, len(plan.steps))
    most = max(beside, default=0)
    worst = [step for step, nbytes in enumerate(beside) if nbytes == most]
    inside = {n: (p.offset, p.offset + sizes[n]) for n, p in layout.places.items() if p.block is None and sizes[n] >= LEAST}
    there = [n for n in inside if any(plan.buffers[n].first <= step <= plan.buffers[n].last for step in worst)]
    begin = min((inside[n][0] for n in there), default=0)
    end = max((inside[n][1] for n in there), default=0)
    yield [n for n in inside if inside[n][1] > end]
    yield [n for n in inside if inside[n][0] < begin]


def _move(plan: MemoryPlan, numbers: Sequence[int], home: Home) -> None:
    for number in numbers:
        plan.buffers[number].home = home
