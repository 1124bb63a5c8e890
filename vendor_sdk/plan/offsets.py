"""Offsets: buffers with lifetimes into one arena, as low as they fit.

The problem is two-dimensional packing (time is given, address is free) and NP-hard; greedy placement in a good order is within
a percent or two of the lower bound on real graphs. Several orders are tried. While none meets the bound, a bounded number of
repairs moves the buffers on top of the arena to the front of the best order (the idea of hill-climbing allocators).

Memory of a block (an output) may be there before its own value is written; until then buffers of the arena lie in it. The large
outputs of a backward graph, which live and die together, share one allocation, the bank, in the order of their birth: what
is not yet written there is one stretch of memory, in which large buffers find room. Where an arena of its own would still raise
the peak, the arena begins where the bank ends, in the same allocation, so that buffers may lie across.

A forward graph's activations for the backward graph have a bank too, the first-born on top, below which buffers of the arena
lie meanwhile. They die from the bottom up, roughly, while gradients are born: so the backward graph's bank, arena included,
lies over the forward graph's (the *lender*), as low as the activations that are still alive allow. Stacked so, outputs stay
below the lowest activation that outlives their birth; where that costs much, they are packed like buffers of the arena, over
the activations at one of a few places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from vendor_sdk.ir.memory import BANK, Home, Layout, Lender, Lent, MemoryPlan, Place, Slot, live_bytes

REPAIRS = 200
"""Orders tried beyond the fixed ones, on graphs of a few hundred buffers."""
EFFORT = 2_000_000
"""Comparisons spent on more than one order: it bounds the time on large graphs to about a second."""
ROOMS = 16
"""Blocks looked at for one buffer: the smallest that hold it, and the largest."""

SHARE = 256
"""Outputs below this part of all outputs' bytes stay out of the bank: a tensor there costs microseconds."""


@dataclass(frozen=True)
class Item:
    """Something to place: ``size`` bytes that live from ``first`` to ``last``, inclusive. The last ``unused`` are padding."""

    size: int
    first: int
    last: int
    unused: int = 0


@dataclass(frozen=True)
class Room:
    """Memory with an end of its own use: from each ``(step, bytes)`` of ``fills`` on, so many bytes at its front are taken.

    A block has the bytes of its tensor: the last ``unused`` of its ``size`` are not there at all.
    """

    size: int
    fills: tuple[tuple[int, int], ...]
    unused: int = 0

    def limit(self, item: Item) -> int:
        """Where the padded ``item`` must end."""
        return self.size - max(self.unused - item.unused, 0)

    def free_from(self, last: int) -> int:
        """The first byte that is free for what lives until step ``last``."""
        position = bisect_right(self.fills, last, key=lambda fill: fill[0])
        return self.fills[position - 1][1] if position else 0


@dataclass(frozen=True)
class Fixed:
    """Bytes ``[begin, end)`` that are taken until step ``last``, inclusive."""

    last: int
    begin: int
    end: int


@dataclass(frozen=True)
class Below:
    """What lies at the front of the arena: a room with an end of its own use, and what is taken at first; ``end`` bytes of the
    arena are there in any case."""

    room: Room
    fixed: Sequence[Fixed] = ()
    end: int = 0


def bank_of(plan: MemoryPlan, sizes: Sequence[int], least: int | None) -> list[int]:
    """Numbers of the blocks that share the bank: outputs of at least a ``SHARE`` of all bytes, if those are ``least`` and there
    are intermediate results that may find room among them."""
    if all(b.home is not Home.ARENA for b in plan.buffers):
        return []
    end = len(plan.steps) - 1
    outputs = [n for n, b in enumerate(plan.buffers) if b.home is Home.BLOCK and b.last == end]
    total = sum(sizes[n] for n in outputs)
    large = [n for n in outputs if sizes[n] * SHARE >= total]
    return large if least is not None and total >= least and len(large) > 1 else []


def activations_of(plan: MemoryPlan, sizes: Sequence[int], saved: Collection[Slot], least: int | None) -> list[int]:
    """Numbers of the blocks in the bank of a forward graph: those that hold ``saved`` results, chosen as in ``bank_of``."""
    held = [n for n, b in enumerate(plan.buffers) if b.home is Home.BLOCK and b.slots[-1] in saved]
    total = sum(sizes[n] for n in held)
    large = [n for n in held if sizes[n] * SHARE >= total]
    return large if least is not None and total >= least else []


NEAR = 1.02
"""Peaks up to this multiple of the lower bound are good."""


STARTS = 8
"""Places tried for the activations among outputs in any order: above so many sums of outputs, and above one of so many large
values."""
REPAIRED = 3
"""Those of them that are repaired: a place that begins worse may end better."""

CLOSE = 1.005
"""Peaks up to this multiple of the lower bound are not worth the search among ``STARTS``."""

KEPT = 3
"""How many times their own bytes gradients may keep allocated together, by lying over activations."""


def lay_out(
    plan: MemoryPlan, sizes: Sequence[int], *, borrow: bool = True, together: Collection[int] = (), downward: bool = False
) -> Layout:
    """Offsets for ``sizes`` (bytes, aligned) of the plan's buffers.

    Args:
        borrow: whether arena buffers may lie in blocks before those are written.
        together: numbers of the blocks that share the bank.
        downward: whether the first-born of them comes last in the bank, rather than first.
    """
    if downward:
        return _lay_out(plan, sizes, borrow, together, joint=False, downward=True)
    apart = _lay_out(plan, sizes, borrow, together, joint=False)
    if plan.lender is not None and borrow and apart.bank_bytes:
        over = _lay_out(plan, sizes, borrow, together, joint=True, lender=plan.lender)
        # The forward graph wants a block of so many bytes in any case.
        if over.peak > CLOSE * over.bound and over.bank_bytes > plan.lender.nbytes + plan.lender.arena_bytes:
            over = min(over, _mixed(plan, sizes, together, plan.lender), key=lambda layout: layout.peak)
        if over.peak <= apart.peak + plan.lender.nbytes and over.bank_bytes <= KEPT * apart.bank_bytes:
            return over
    if not borrow or not apart.bank_bytes or apart.peak <= NEAR * apart.bound:
        return apart
    joint = _lay_out(plan, sizes, borrow, together, joint=True)
    # Gradients keep the whole allocation: it may not be much more than theirs.
    return joint if joint.peak * NEAR <= apart.peak and joint.bank_bytes <= 2 * apart.bank_bytes else apart


def _lay_out(
    plan: MemoryPlan,
    sizes: Sequence[int],
    borrow: bool,
    together: Collection[int],
    joint: bool,
    downward: bool = False,
    lender: Lender | None = None,
) -> Layout:
    steps = len(plan.steps)
    lent = lender.values if lender is not None else ()
    bound = max(_live(plan, sizes, lent), default=0)
    inside = [n for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and sizes[n]]
    banked = sorted((n for n in together if sizes[n]), key=lambda n: plan.buffers[n].first)
    in_bank, fills, bank_bytes = {}, [], 0
    for n in banked:
        in_bank[n] = Place(BANK, bank_bytes)
        bank_bytes += sizes[n]
        fills.append((plan.buffers[n].first, bank_bytes))
    alone = [n for n, b in enumerate(plan.buffers) if b.home is Home.BLOCK and n not in in_bank and sizes[n]]
    # What dies within the call comes when it is wanted: room in it would make it come earlier.
    blocks = [n for n in alone if plan.buffers[n].first > 0 and plan.buffers[n].last == steps - 1] if borrow else []

    def unused(n: int) -> int:
        return sizes[n] - (plan.buffers[n].nbytes.value or 0) if borrow else 0

    items = [Item(sizes[n], plan.buffers[n].first, plan.buffers[n].last, unused(n)) for n in inside]
    rooms = [Room(sizes[n], ((plan.buffers[n].first, sizes[n]),), unused(n)) for n in blocks]
    bank = Room(bank_bytes, tuple(fills))
    if bank_bytes and borrow and not joint:
        blocks.append(BANK)
        rooms.append(bank)
    start, fixed = None, []
    if lender is not None:
        # Above every output that is written while an activation above it still lives.
        start = max((end - v.offset for born, end in fills for v in lent if v.last >= born), default=0)
        start = -(-max(start, 0) // plan.alignment) * plan.alignment
        fixed = [Fixed(v.last, start + v.offset, start + v.offset + v.nbytes) for v in lent]
        fixed_end = max(bank_bytes, start + lender.nbytes)
    else:
        fixed_end = bank_bytes if joint else 0
    # What the arena can be at least, given everything that is not in it.
    around = live_bytes([(sizes[n], b.first, b.last) for n, b in enumerate(plan.buffers) if b.home is not Home.ARENA], steps)
    goal = max(max(bound - max(around, default=0), 0) + (bank_bytes if joint else 0), fixed_end)
    found = pack(items, rooms, goal, Below(bank, fixed, fixed_end if lender is not None else 0) if joint else None)
    home = BANK if joint else None
    places = {n: Place(home if room is None else blocks[room], offset) for n, (room, offset) in zip(inside, found, strict=True)}
    empty = {n: Place(None, 0) for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and not sizes[n]}
    arena = max((p.offset + sizes[n] for n, p in places.items() if p.block is home), default=0)
    if joint:
        arena, bank_bytes = 0, max(arena, fixed_end)
    starts = {n: b.first for n, b in enumerate(plan.buffers)}
    for n, place in places.items():
        if place.block is not None and place.block != BANK:
            starts[place.block] = min(starts[place.block], plan.buffers[n].first)
    own = [(sizes[n], starts[n], b.last) for n, b in enumerate(plan.buffers) if b.home is not Home.ARENA and n not in in_bank]
    peak = arena + bank_bytes + max(live_bytes(own, steps), default=0)
    places |= empty | in_bank
    if downward:  # the same bank, read from its end
        places |= {n: Place(BANK, bank_bytes - p.offset - sizes[n]) for n, p in places.items() if p.block == BANK}
    return Layout(arena, bank_bytes, places, peak, bound, start)


def _mixed(plan: MemoryPlan, sizes: Sequence[int], together: Collection[int], lender: Lender) -> Layout:
    """Outputs in the bank in any order, and whatever else lives between them. An activation that lives long then keeps nobody
    but those that would lie on it away, where stacked outputs must all stay below it."""
    steps = len(plan.steps)
    bound = max(_live(plan, sizes, lender.values), default=0)
    banked = sorted((n for n in together if sizes[n]), key=lambda n: plan.buffers[n].first)
    inside = banked + [n for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and sizes[n]]
    items = [Item(sizes[n], plan.buffers[n].first, plan.buffers[n].last) for n in inside]
    own = [(sizes[n], b.first, b.last) for n, b in enumerate(plan.buffers) if b.home is not Home.ARENA and n not in set(banked)]
    around = max(live_bytes(own, steps), default=0)
    below = list(accumulate((sizes[n] for n in banked), initial=0))
    widest = sorted({item.size for item in items}, reverse=True)[:STARTS]
    starts = sorted({below[len(below) * part // STARTS] for part in range(STARTS)} | {below[-1], *widest})

    def packed(start: int, repairs: int) -> tuple[int, int, list[tuple[int | None, int]]]:
        end = lender.nbytes + max(start, lender.arena_bytes)
        fixed = [Fixed(v.last, start + v.offset, start + v.offset + v.nbytes) for v in lender.values]
        found = pack(items, [], max(bound - around, end), Below(Room(0, ()), fixed, end), repairs)
        return max(_top(items, found), end), start, found

    firsts = sorted(packed(start, 0) for start in starts)
    best = firsts[0]
    for _, start, _ in firsts[:REPAIRED]:
        if best[0] + around > CLOSE * bound:
            best = min(best, packed(start, REPAIRS))
    total, start, found = best
    places = {n: Place(BANK, offset) for n, (_, offset) in zip(inside, found, strict=True)}
    empty = {n: Place(None, 0) for n, b in enumerate(plan.buffers) if b.home is Home.ARENA and not sizes[n]}
    return Layout(0, total, {**places, **empty}, total + around, bound, start)


def _live(plan: MemoryPlan, sizes: Sequence[int], lent: Sequence[Lent]) -> list[int]:
    """Bytes that live at each step."""
    lives = [(size, b.first, b.last) for size, b in zip(sizes, plan.buffers, strict=True)]
    return live_bytes([*lives, *((value.nbytes, 0, value.last) for value in lent)], len(plan.steps))


def pack(
    items: Sequence[Item], rooms: Sequence[Room], goal: int, below: Below | None = None, repairs: int = REPAIRS
) -> list[tuple[int | None, int]]:
    """Room (or None for the arena) and offset of each item; no two that live at one step overlap.

    Args:
        goal: arena bytes that are as good as possible; the search ends there.
        below: what lies at the front of the arena.
        repairs: orders tried beyond the fixed ones, at most.
    """
    if not items:
        return []
    meets = _interference(items)
    front = [_front(item, below) for item in items]
    cost = sum(map(len, meets)) + len(items) * (1 + min(len(rooms), ROOMS))
    lowest = max(live_bytes([(i.size, i.first, i.last) for i in items], max(i.last for i in items) + 1))
    if below is None:
        goal = min(goal, lowest) if rooms else lowest
    everyone = range(len(items))
    orders = [
        sorted(everyone, key=lambda n: (-items[n].size, items[n].first)),
        sorted(everyone, key=lambda n: (-items[n].size * (items[n].last - items[n].first + 1), items[n].first)),
        sorted(everyone, key=lambda n: (items[n].first, -items[n].size)),
        sorted(everyone, key=lambda n: (items[n].first - items[n].last, -items[n].size)),
    ]
    best, best_order, least = None, orders[0], -1
    for order in orders:
        found = _place(items, rooms, order, meets, front)
        top = _top(items, found)
        if best is None or top < least:
            best, best_order, least = found, order, top
        if least <= goal or cost > EFFORT:
            break
    assert best is not None
    random = Random(0)
    order, current = best_order, best
    for _ in range(min(repairs, EFFORT // cost)):
        if least <= goal:
            break
        # Whatever reaches the top came too late: it goes first, with what lies right below it. Where that changes nothing, two
        # buffers change places.
        top = _top(items, current)
        high = [n for n in order if current[n][0] is None and current[n][1] + items[n].size == top]
        under = {m for n in high for m in meets[n] if current[m][0] is None and current[m][1] + items[m].size == current[n][1]}
        first = [*high, *(n for n in order if n in under and n not in high)]
        others = set(first)
        moved = [*first, *(n for n in order if n not in others)]
        if moved == order:
            moved = list(best_order)
            i, j = random.randrange(len(moved)), random.randrange(len(moved))
            moved[i], moved[j] = moved[j], moved[i]
        order = moved
        current = _place(items, rooms, order, meets, front)
        if _top(items, current) <= least:
            best, best_order, least = current, order, _top(items, current)
    return best


@dataclass(frozen=True)
class _Front:
    """What ``Below`` is for one item: spans of bytes that are taken while it lives, in order and apart, the first byte that it
    may have, and the end."""

    taken: Sequence[tuple[int, int]]
    base: int
    end: int


def _front(item: Item, below: Below | None) -> _Front:
    if below is None:
        return _Front((), 0, 0)
    taken: list[tuple[int, int]] = []
    for begin, end in sorted((fixed.begin, fixed.end) for fixed in below.fixed if fixed.last >= item.first):
        if taken and begin <= taken[-1][1]:
            taken[-1] = taken[-1][0], max(end, taken[-1][1])
        else:
            taken.append((begin, end))
    return _Front(taken, below.room.free_from(item.last), below.end)


def _top(items: Sequence[Item], found: Sequence[tuple[int | None, int]]) -> int:
    return max((offset + item.size for item, (room, offset) in zip(items, found, strict=True) if room is None), default=0)


def _interference(items: Sequence[Item]) -> list[list[int]]:
    """For each item the others that live at one of its steps."""
    meets: list[list[int]] = [[] for _ in items]
    alive: list[int] = []
    for n in sorted(range(len(items)), key=lambda n: items[n].first):
        alive = [m for m in alive if items[m].last >= items[n].first]
        for m in alive:
            meets[m].append(n)
            meets[n].append(m)
        alive.append(n)
    return meets


def _place(
    items: Sequence[Item],
    rooms: Sequence[Room],
    order: Sequence[int],
    meets: Sequence[Sequence[int]],
    front: Sequence[_Front],
) -> list[tuple[int | None, int]]:
    """Greedy: each item in turn goes where the hole fits best, and to the top of the arena only when there is none."""
    where: list[tuple[int | None, int]] = [(None, 0)] * len(items)
    in_arena: list[tuple[int, int] | None] = [None] * len(items)
    in_rooms: dict[int, dict[int, tuple[int, int]]] = {}
    by_size = sorted(range(len(rooms)), key=lambda r: rooms[r].size)
    widths = [rooms[r].size for r in by_size]
    top = front[0].end
    for n in order:
        item = items[n]
        taken = [*front[n].taken, *(span for m in meets[n] if (span := in_arena[m]) is not None)]
        best, above = _hole(taken, item.size, top, front[n].base)
        room: int | None = None
        fitting = range(bisect_left(widths, item.size), len(by_size))
        for position in (*fitting[:ROOMS], *fitting[ROOMS:][-1:]):  # the largest too: it may be the bank
            index = by_size[position]
            start, limit = rooms[index].free_from(item.last), rooms[index].limit(item)
            if limit - start < item.size:
                continue
            inside = in_rooms.get(index, {})
            hole, _ = _hole([inside[m] for m in meets[n] if m in inside], item.size, limit, start)
            if hole is not None and (best is None or hole[0] < best[0]):
                best, room = hole, index
            if best is not None and best[0] == item.size:
                break
        offset = above if best is None else best[1]
        span = offset, offset + item.size
        if room is None:
            top = max(top, span[1])
            in_arena[n] = span
        else:
            in_rooms.setdefault(room, {})[n] = span
        where[n] = room, offset
    return where


def _hole(taken: list[tuple[int, int]], size: int, limit: int, start: int) -> tuple[tuple[int, int] | None, int]:
    """``(length, offset)`` of the smallest hole of at least ``size`` bytes between ``start`` and ``limit``, None when there is
    none; and where everything that is taken ends."""
    least, offset = limit + 1, -1
    end = start
    for begin, stop in sorted(taken):
        if size <= begin - end < least:
            least, offset = begin - end, end
        if stop > end:
            end = stop
    if size <= limit - end < least:
        least, offset = limit - end, end
    return (None if offset < 0 else (least, offset)), end
