"""Apart: buffers with an allocation of their own, where libraries' results beside the arena decide the peak.

The arena is there for the whole call. What a library's kernel returns comes and goes, so at the step with the most of that,
every byte of the arena which is not in use then is too much. Buffers that are large and dead at that step are allocated when
they are made, and freed when they die.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vendor_sdk.ir.memory import Home, Layout, MemoryPlan
from vendor_sdk.plan.offsets import CLOSE

PART = 64
"""Buffers below this part of the peak stay in the arena: an allocation costs microseconds."""
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
    if all(b.home is not Home.ELSEWHERE for b in plan.buffers):
        return best
    large = [n for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and sizes[n] * PART >= best.peak]
    chosen: list[int] = []
    for least in sorted({sizes[n] for n in large}, reverse=True)[:WIDTHS]:
        if best.peak <= CLOSE * best.bound:
            break
        candidates = [n for n in large if sizes[n] >= least]
        _move(plan, candidates, Home.BLOCK)
        found = lay()
        _move(plan, candidates, Home.ARENA)
        if found.peak * CLOSE < best.peak:
            best, chosen = found, candidates
    _move(plan, chosen, Home.BLOCK)
    return best


def _move(plan: MemoryPlan, numbers: Sequence[int], home: Home) -> None:
    for number in numbers:
        plan.buffers[number].home = home
