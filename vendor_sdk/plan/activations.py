"""What the plan of a forward graph tells that of its backward graph: where the activations for it lie."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from vendor_sdk.ir.memory import BANK, Lender, Lent, MemoryPlan, Slot
from vendor_sdk.ir.primgraph import PrimGraph


class Activations:
    """The bank of a forward graph.

    Attributes:
        places: offset in it and bytes of each activation, by the input of the backward graph that it becomes.
    """

    def __init__(self) -> None:
        self.places: dict[int, tuple[int, int]] = {}
        self._nbytes = self._arena_bytes = 0

    def note(self, plan: MemoryPlan, saved: Mapping[Slot, int]) -> None:
        """Takes the places from the plan of a forward graph; ``saved``: which input of the backward graph a result is."""
        layout, sizes = plan.fixed, plan.sizes({})
        assert layout is not None
        places = [(saved.get(plan.buffers[n].slots[-1]), n, p) for n, p in layout.places.items() if p.block == BANK]
        self.places = {index: (place.offset, sizes[n]) for index, n, place in places if index is not None}
        self._nbytes, self._arena_bytes = layout.bank_bytes, layout.arena_bytes

    def lender(self, graph: PrimGraph, last: Mapping[fx.Node, int]) -> Lender | None:
        """The bank as the backward graph ``graph`` gets it, given the last step at which each placeholder is read. What may not
        be written over lives for ever."""
        placeholders = graph.placeholders
        if not self.places or max(self.places) >= len(placeholders):
            return None
        lent = []
        for index, (offset, nbytes) in self.places.items():
            node = placeholders[index]
            if node.meta["val"].nbytes > nbytes:
                return None
            step = last.get(node, 0) if index in graph.donated_inputs else len(graph.graph.nodes)
            lent.append(Lent(nbytes, offset, step, index))
        return Lender(self._nbytes, lent, self._arena_bytes)
