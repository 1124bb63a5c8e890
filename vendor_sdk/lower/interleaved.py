"""Nests that fill one result in turns, each a few of its elements from the same operands, as one nest.

What a window of stride two spreads lies at even and odd places, which different elements of the window reach: a nest for each.
In one, operands are read once for all, and stores of every second element stand beside those between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Load, Nest, Stmt, Store, makes
from vendor_sdk.lower.copies import Copies, Leaf, integers

STATEMENTS = 256
"""Of a nest of several, at most."""


def joined(body: Sequence[Stmt], limits: Limits) -> tuple[Stmt, ...]:
    """``body`` with such nests joined, for emitters that pair stores (``Limits.interleaves``)."""
    if not limits.interleaves:
        return tuple(body)
    found: list[Stmt] = []
    for stmt in body:
        both = _both(found[-1], stmt) if found and isinstance(found[-1], Nest) and isinstance(stmt, Nest) else None
        if both is None:
            found.append(stmt)
        else:
            found[-1] = both
    return tuple(found)


def _both(first: Nest, second: Nest) -> Nest | None:
    """Two nests as one, if the second goes on with what the first stores, from what it loads."""
    if [r.size for r in first.ranges] != [r.size for r in second.ranges] or not first.ranges:
        return None
    if len(first.body) + len(second.body) > STATEMENTS or not _plain(first) or not _plain(second):
        return None
    if {name for s in first.body for name in makes(s)} & {name for s in second.body for name in makes(s)}:
        return None
    variables = {r.var: ix.variable(s.var, s.size) for r, s in zip(second.ranges, first.ranges, strict=True)}
    stored = {s.param for s in first.body if isinstance(s, Store)}
    loaded = [{(s.param, ix.substitute(s.index, variables)) for s in n.body if isinstance(s, Load)} for n in (first, second)]
    if stored != {s.param for s in second.body if isinstance(s, Store)} or not loaded[0] & loaded[1]:
        return None
    if any(param in stored for each in loaded for param, _ in each) or not _in_turn(first, second, variables):
        return None
    copies = Copies(integers(first.body), stored)
    for n, nest in enumerate((first, second)):
        names: dict[str, str] = {}
        for s in nest.body:
            copies.add(s, names, "", variables if n else {})
    return Nest(first.ranges, tuple(copies.body))


def _plain(nest: Nest) -> bool:
    return all(isinstance(s, Leaf) or (isinstance(s, Store) and s.mode == "set") for s in nest.body)


def _in_turn(first: Nest, second: Nest, variables: dict[str, ix.Int]) -> bool:
    """Whether the second stores between what the first does."""
    earlier, later = ([s for s in n.body if isinstance(s, Store)] for n in (first, second))
    for s in earlier:
        for other in later:
            gap = (ix.substitute(other.index, variables) - s.index).value
            steps = [ix.stride(s.index, r.var) for r in first.ranges]
            if gap and any(step is not None and step.value is not None and abs(gap) < abs(step.value) > 1 for step in steps):
                return True
    return False
