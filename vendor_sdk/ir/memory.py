"""The memory plan: which buffers a graph's steps need, how long each lives, and where it lies.

    plan    = MemoryPlan(steps, buffers, slots, alignment)   sizes may be symbolic
    step    = a node that runs; steps count from 0, in the order of the wrapper
    buffer  = Buffer(name, nbytes, first, last, home)        bytes that live from step `first` to step `last`, inclusive
    home    = ARENA     memory that the call borrows and gives back at its end
            | BLOCK     an allocation of its own, which outlives the call: an output, or what a kernel may keep
            | APART     an allocation of its own, from its first step to its last: a result's, or a room's, in which others lie
            | ELSEWHERE allocated by whoever computes it (a kernel that returns its result); it is counted, not placed
    slot    = (node, index) -> buffer                        a result; several share a buffer where a kernel works in place.
                                                             (node, ROOM): the room that is made for a step
    layout  = Layout(arena_bytes, bank_bytes, places, peak, bound)   offsets for one tuple of symbol values
    place   = Place(block, offset)                           `block` None: in the arena; BANK: in the bank, one allocation of
                                                             several outputs; else inside that room, or that BLOCK, while it
                                                             is unwritten

`live_bytes` is the cost of an order of steps, before anything has been placed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from vendor_sdk.ir.index import Int, evaluate, symbols

BANK = -1
"""Instead of the number of a block: the allocation that the outputs of a backward graph share, or the activations that a
forward graph leaves to one."""

ROOM = -1
"""Instead of the number of a result: memory without a value, in which results of several nodes lie."""

Slot = tuple[fx.Node, int]
"""One result of a node; index 0 where it has a single one."""


def part_name(node: fx.Node, index: int) -> str:
    """What one of several results of a node is called, or the room that is made for it. Not ``name_1``, which may be another
    node: graphs number those of a kind so."""
    return f"{node.name}_room" if index == ROOM else f"{node.name}_r{index}"


class Home(enum.Enum):
    """Who owns the bytes of a buffer."""

    ARENA = "arena"
    BLOCK = "block"
    APART = "apart"
    ELSEWHERE = "elsewhere"


@dataclass
class Buffer:
    """Bytes that live from step ``first`` to step ``last``, inclusive.

    Attributes:
        name: of the first result in it.
        nbytes: size; an expression over shape symbols.
        first, last: steps.
        home: who owns the bytes.
        slots: the results that lie in it, in the order in which they are written.
    """

    name: str
    nbytes: Int
    first: int
    last: int
    home: Home
    slots: list[Slot] = field(default_factory=list)

    @property
    def is_room(self) -> bool:
        return bool(self.slots) and self.slots[0][1] == ROOM


@dataclass(frozen=True)
class Lent:
    """An activation in the bank of the forward graph: ``nbytes`` from ``offset`` on, which steps read up to ``last``, and
    which is input ``index``."""

    nbytes: int
    offset: int
    last: int
    index: int


@dataclass(frozen=True)
class Lender:
    """The bank of a forward graph as its backward graph gets it: ``nbytes``, which are free as the activations in them die. The
    forward graph's arena of ``arena_bytes`` lies beside them, in the same block."""

    nbytes: int
    values: Sequence[Lent]
    arena_bytes: int = 0


@dataclass(frozen=True)
class Place:
    """Where a buffer begins: ``offset`` bytes into the arena (``block`` None), the bank, or the memory of buffer ``block``."""

    block: int | None
    offset: int


@dataclass(frozen=True)
class Stretch:
    """``nbytes`` from ``place`` on."""

    place: Place
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """A plan with numbers: what one call needs.

    Attributes:
        arena_bytes: size of the arena.
        bank_bytes: size of the bank, 0 without one.
        places: buffer number to place, for buffers at home in the arena and for blocks in the bank.
        peak: bytes held at the worst step: the whole arena, blocks from their first use on, and what lives elsewhere.
        bound: the largest sum of live bytes at any step, which no plan can go below.
        lender: where in the bank that of the forward graph begins, whose activations count as live; None where it has none.
    """

    arena_bytes: int
    bank_bytes: int
    places: Mapping[int, Place]
    peak: int
    bound: int
    lender: int | None = None


@dataclass
class MemoryPlan:
    """Buffers of a graph with their lifetimes.

    Attributes:
        steps: the nodes that run, in order.
        buffers: everything the graph allocates.
        slots: result to number of its buffer.
        alignment: bytes; sizes are rounded up to it, and offsets are multiples.
        fixed: the layout, when no size is symbolic.
        lender: the forward graph's bank, where this is its backward graph.
        spare: for each step of a static plan the longest stretch of memory that is there in which nothing lies.
    """

    steps: Sequence[fx.Node]
    buffers: list[Buffer]
    slots: Mapping[Slot, int]
    alignment: int
    fixed: Layout | None = None
    lender: Lender | None = None
    spare: Sequence[Stretch | None] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the shape symbols that sizes depend on, sorted."""
        return tuple(sorted({name for buffer in self.buffers for name in symbols(buffer.nbytes)}))

    def sizes(self, values: Mapping[str, int]) -> list[int]:
        """Bytes of each buffer for values of the symbols, rounded up to the alignment."""
        return [-(-evaluate(b.nbytes, values) // self.alignment) * self.alignment for b in self.buffers]

    def text(self, layout: Layout | None = None) -> str:
        """A table for people: one line a buffer, with the totals on top."""
        layout = layout or self.fixed
        lines = []
        if layout is not None:
            bank = f"bank {layout.bank_bytes}, " if layout.bank_bytes else ""
            bank += f"activations from {layout.lender} in it, " if layout.lender is not None else ""
            lines.append(f"arena {layout.arena_bytes} bytes, {bank}peak {layout.peak}, lower bound {layout.bound}")
        lines.append(f"{'buffer':24} {'bytes':>16} {'steps':>13}  place")
        for number, buffer in enumerate(self.buffers):
            place = layout.places.get(number) if layout is not None else None
            if place is None:
                where = buffer.home.value
            elif place.block is None:
                where = f"arena + {place.offset}"
            elif place.block == BANK:
                where = f"bank + {place.offset}"
            else:
                where = f"{self.buffers[place.block].name} + {place.offset}"
            shared = "".join(f" = {node.name}" for node, _ in buffer.slots[1:])
            lines.append(
                f"{buffer.name:24} {buffer.nbytes!s:>16} {buffer.first:>6}..{buffer.last:<5}  {where}"
                f"{f'  in place:{shared}' if shared else ''}"
            )
        return "\n".join(lines) + "\n"


def live_bytes(lives: Sequence[tuple[int, int, int]], steps: int) -> list[int]:
    """Sum of live bytes at each step.

    Args:
        lives: ``(nbytes, first, last)`` of each value, inclusive.
        steps: how many steps there are.
    """
    change = [0] * (steps + 1)
    for nbytes, first, last in lives:
        change[first] += nbytes
        change[last + 1] -= nbytes
    total, totals = 0, []
    for delta in change[:steps]:
        total += delta
        totals.append(total)
    return totals
