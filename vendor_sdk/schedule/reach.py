"""Who depends on whom among the units of a schedule, kept as units grow and merge: would joining two make a cycle?

A unit is a group or a single node. What a unit depends on, at any distance, is one integer of bits.
"""

from __future__ import annotations


class Reach:
    """Ancestors of every unit. Units are numbered in the order they are added."""

    def __init__(self) -> None:
        self._bits: list[int] = []
        """Of the unit itself; of all that it absorbed, too."""
        self._above: list[int] = []
        self._before: list[set[int]] = []
        self._after: list[set[int]] = []

    def add(self, sources: set[int]) -> int:
        """A new unit that depends on ``sources``."""
        unit = len(self._bits)
        self._bits.append(1 << unit)
        self._above.append(0)
        self._before.append(set())
        self._after.append(set())
        self.depend(unit, sources)
        return unit

    def depends(self, unit: int, on: int) -> bool:
        """Whether ``unit`` needs ``on``, at any distance."""
        return bool(self._above[unit] & self._bits[on])

    def may_join(self, unit: int, sources: set[int]) -> bool:
        """Whether something that needs ``sources`` can become part of ``unit``: none of the others waits for it."""
        return not any(self.depends(source, unit) for source in sources if source != unit)

    def may_merge(self, first: int, second: int) -> bool:
        """Whether two units can become one: no third stands between them."""
        return not any(self.depends(u, second) for u in self._before[first] if u != second) and not any(
            self.depends(u, first) for u in self._before[second] if u != first
        )

    def depend(self, unit: int, sources: set[int]) -> None:
        """Adds dependencies of ``unit``, and so of all that wait for it."""
        above = self._above[unit]
        for source in sources - {unit}:
            self._before[unit].add(source)
            self._after[source].add(unit)
            above |= self._above[source] | self._bits[source]
        self._raise(unit, above)

    def _raise(self, unit: int, above: int) -> None:
        stack = [(unit, above)]
        while stack:
            unit, above = stack.pop()
            above = (self._above[unit] | above) & ~self._bits[unit]
            if above == self._above[unit]:
                continue
            self._above[unit] = above
            stack.extend((after, above | self._bits[unit]) for after in self._after[unit])

    def merge(self, into: int, other: int) -> None:
        """``other`` becomes part of ``into``; its number is not used again."""
        bits = self._bits[into] | self._bits[other]
        self._bits[into] = bits
        for source in self._before[other]:
            self._after[source].discard(other)
        for after in self._after[other]:
            self._before[after].discard(other)
            if after != into:
                self._before[after].add(into)
                self._after[into].add(after)
        sources = self._before[other] - {into}
        above = (self._above[into] | self._above[other]) & ~bits
        self._after[into].discard(into)
        self._before[into].discard(other)
        for source in sources:
            self._before[into].add(source)
            self._after[source].add(into)
        self._above[into] = above
        for after in self._after[into]:
            self._raise(after, above | bits)
        self._before[other], self._after[other] = set(), set()
