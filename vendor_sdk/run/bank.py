"""Banks at run time: the block in which a forward call left activations becomes that of its backward call's gradients.

The backward graph is planned over the forward graph's bank, and wants some bytes before and behind it. Its first call does not
find them, takes a block of its own and says so; from then on forward calls take blocks with this room, and a backward call
finds the block by the addresses of the activations that it is given. Where it does not (hooks have moved what was saved), it
takes a block of its own, with the same offsets.

Until then nothing lies in the room, so the forward call has its arena there.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.run.arena import release_memory
from vendor_sdk.run.blocks import Part, lease, tensors_over


class Bank:
    """Gives the calls of one graph their banks: flat memory, then its tensors, each on a storage of its own. Calls may run in
    any order and from several threads."""

    def __init__(self) -> None:
        self._room = (0, 0)  # bytes before the bank of a forward call, and in all

    def lend(self, nbytes: int, *parts: Part) -> list[torch.Tensor]:
        """That of a forward call."""
        before, total = self._room
        block = lease(max(total, before + nbytes))
        tensors = tensors_over(block, before, nbytes, parts)
        address = tensors[0].data_ptr()
        _lent[address] = _Lent(weakref.ref(block, lambda _: _lent.pop(address, None)), before, self)
        return tensors

    def room(self, bank: torch.Tensor, nbytes: int, alignment: int) -> tuple[torch.Tensor | None, torch.Tensor, int]:
        """Flat memory around ``bank``, which ``lend`` has just given, until the end of that forward call: ``nbytes`` of it
        (None where there are not so many, or none are wanted), then the longest stretch that is left, and how many bytes of it
        there are."""
        lent = _lent.get(bank.data_ptr())
        block = lent.block() if lent is not None else None
        if lent is None or block is None:
            return None, bank, 0
        behind = -(-(lent.before + bank.numel()) // alignment) * alignment
        stretches = [(0, lent.before), (behind, len(block))]
        found = None
        for number, (begin, end) in enumerate(stretches):
            if 0 < nbytes <= end - begin:
                found = tensors_over(block, begin, nbytes, ())[0]
                stretches[number] = (-(-(begin + nbytes) // alignment) * alignment, end)
                break
        begin, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
        if begin >= end:
            return found, bank, 0
        return found, tensors_over(block, begin, end - begin, ())[0], end - begin

    def take(self, nbytes: int, start: int, inputs: Sequence[tuple[torch.Tensor, int]], *parts: Part) -> list[torch.Tensor]:
        """That of a backward call, once for each forward call: over the bank of that, which begins ``start`` bytes into this
        one and in which ``inputs`` lie at their offsets."""
        addresses = {value.data_ptr() - offset for value, offset in inputs}
        lent = _lent.pop(addresses.pop(), None) if len(addresses) == 1 else None
        block = lent.block() if lent is not None else None
        if lent is not None and block is not None and (lent.before != start or len(block) < nbytes):
            lent.bank._room = (start, nbytes)
            block.kept = False  # Forward calls want another size now,
            block = None
            release_memory()  # and the arena that they had so far may never be asked for again.
        if block is None:
            block = lease(nbytes)
        return tensors_over(block, 0, nbytes, parts)


@dataclass(frozen=True)
class _Lent:
    """The block of a forward call's bank, and where in it that begins."""

    block: weakref.ref[Any]
    before: int
    bank: Bank


_lent: dict[int, _Lent] = {}
"""By the address of the forward call's bank."""
