"""Where the wrapper finds each value: in a variable, in the arena, in a room, or in memory of outputs not yet written."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.memory import BANK, ROOM, Home, MemoryPlan, Slot, Stretch, part_name


class Shares(Protocol):
    """Whose memory a value lies in (``vendor_sdk/plan/liveness.py``)."""

    def of(self, node: fx.Node) -> tuple[Slot, ...]: ...


@dataclass(frozen=True)
class Arena:
    """At the place of buffer ``number`` in the arena."""

    number: int


@dataclass(frozen=True)
class Inside:
    """``offset`` bytes into the tensor of ``owner``, a result or a room, which is a variable."""

    owner: Slot
    offset: int


@dataclass(frozen=True)
class InBank:
    """``offset`` bytes into the bank, before the outputs there are written."""

    offset: int


Where = Arena | Inside | InBank


class Values:
    """The memory plan as the writer asks for it.

    Args:
        allocated: whether the SDK allocates a node's results.
        in_place: result to the one (or the placeholder) whose memory it takes.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        shares: Shares,
        allocated: Callable[[fx.Node], bool],
        in_place: Mapping[Slot, Slot],
    ) -> None:
        self.plan, self.shares, self.allocated, self.in_place = plan, shares, allocated, in_place
        self.users: dict[Slot, list[Slot]] = {}
        for slot in in_place:
            self.users.setdefault(self.root(slot), []).append(slot)
        self._spare = dict(zip(plan.steps, plan.spare, strict=False))
        self._rooms = {b.slots[0]: _room(plan, number) for number, b in enumerate(plan.buffers) if b.is_room}
        apart = [buffer for buffer in plan.buffers if buffer.home is Home.APART]
        turns = sorted({step for buffer in apart for step in (buffer.first, buffer.last + 1)})
        self._phases = {node: bisect_right(turns, step) for step, node in enumerate(plan.steps)}

    def folded(self, node: fx.Node) -> bool:
        """Whether a node only names one of several results that the SDK allocates: no code runs for it."""
        return node.target is operator.getitem and isinstance(node.args[0], fx.Node) and self.allocated(node.args[0])

    def name(self, node: fx.Node) -> str:
        """The variable of a node's value."""
        if self.folded(node):
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return self.variable((source, node.args[1]))  # type: ignore[arg-type]
        return self.variable((node, 0)) if self.allocated(node) else node.name

    def variable(self, slot: Slot) -> str:
        node, index = slot
        if index == ROOM:
            return part_name(node, index)
        if not isinstance(node.meta["val"], list | tuple):
            return node.name
        if self.allocated(node):
            return part_name(node, index)
        return next(user.name for user in node.users if user.target is operator.getitem and user.args[1] == index)

    def tensor(self, slot: Slot) -> torch.Tensor:
        """The fake tensor of a result, or of a room."""
        room = self._rooms.get(slot)
        return _result(slot) if room is None else room

    def root(self, slot: Slot) -> Slot:
        """The first result in the memory of ``slot``, or the placeholder that it belongs to."""
        while slot in self.in_place:
            slot = self.in_place[slot]
        return slot

    def written_at(self, value: fx.Node) -> Slot | None:
        """The placeholder in whose memory a value was made, if there is one."""
        slots = self.shares.of(value)
        if len(slots) != 1 or slots[0] not in self.in_place:
            return None
        root = self.root(slots[0])
        return root if root[0].op == "placeholder" else None

    def where(self, slot: Slot) -> Where:
        """Where the bytes of an allocated result are. An owner that nobody allocates is an input, or what a node returned."""
        number = self.plan.slots.get(slot)
        if number is None:
            return Inside(self.root(slot), 0)
        buffer = self.plan.buffers[number]
        if buffer.home is not Home.ARENA:
            first, last = buffer.slots[0], buffer.slots[-1]
            return Inside(last if self.allocated(first[0]) else first, 0)
        place = self.plan.fixed.places[number] if self.plan.fixed is not None else None
        if place is None or place.block is None:
            return Arena(number)
        if place.block == BANK:
            return InBank(place.offset)
        return Inside(self.plan.buffers[place.block].slots[-1], place.offset)

    def spare(self, node: fx.Node) -> Stretch | None:
        """What a launch may use besides."""
        return self._spare.get(node)

    def passing(self, slot: Slot) -> bool:
        """Whether a result has memory of its own that the call gives back."""
        if slot in self._rooms:
            return True
        number = self.plan.slots.get(slot)
        return number is not None and self.plan.buffers[number].home is Home.APART

    def phase(self, node: fx.Node) -> int:
        """Steps have the same where no memory comes or goes between them but results that stay."""
        return self._phases[node]

    def banked(self) -> list[tuple[Slot, int]]:
        """Outputs in the bank with their offsets."""
        fixed = self.plan.fixed
        if fixed is None:
            return []
        return [
            (self.plan.buffers[number].slots[-1], place.offset)
            for number, place in fixed.places.items()
            if self.plan.buffers[number].home is Home.BLOCK
        ]

    def planned(self, node: fx.Node) -> bool:
        """Whether a value lies in memory that is used again before or after the call's end: a kernel must not return it."""
        for slot in self.shares.of(node):
            if self.allocated(slot[0]):
                where = self.where(slot)
                if not isinstance(where, Inside) or where.owner != slot:
                    return True
        return False


def _room(plan: MemoryPlan, number: int) -> torch.Tensor:
    """The fake tensor of a room: of the dtype that most of what lies there has."""
    assert plan.fixed is not None
    nbytes = Counter[torch.dtype]()
    for inside, place in plan.fixed.places.items():
        if place.block == number:
            buffer = plan.buffers[inside]
            nbytes[_result(buffer.slots[0]).dtype] += buffer.nbytes.value or 0
    dtype = nbytes.most_common(1)[0][0]
    return torch.empty(-(-(plan.buffers[number].nbytes.value or 0) // dtype.itemsize), dtype=dtype, device="meta")


def _result(slot: Slot) -> torch.Tensor:
    value: Any = slot[0].meta["val"]
    tensor = value[slot[1]] if isinstance(value, list | tuple) else value
    assert isinstance(tensor, torch.Tensor)
    return tensor


def is_view(node: fx.Node) -> bool:
    return "placement" in node.meta and node.meta["placement"].kind is Kind.VIEW
