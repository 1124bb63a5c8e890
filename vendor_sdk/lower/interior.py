"""The interior of a loop: the iterations before its loads reach over an edge of what they read.

Where sizes are numbers, most windows are known to end inside. Where they are symbols, a loop compares every place with the
edge, and its loads are masked. Conditions that rise along the loop and must stay below a number hold up to one iteration, which
an emitter's text finds first: the loop ends there, without those masks, and the rest follows with all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from vendor_sdk.ir import index, loop


@dataclass(frozen=True)
class Edge:
    """A condition that holds where ``expression``, which grows by ``step`` an iteration, is below the value named ``bound``."""

    expression: index.Int
    step: index.Int
    bound: str


@dataclass(frozen=True)
class Interior:
    """A body where all conditions of ``edges`` hold.

    Attributes:
        names: what values are called that it does not make, since others are equal to them.
    """

    edges: tuple[Edge, ...]
    body: tuple[loop.Stmt, ...]
    names: Mapping[str, str]


def interior(body: Sequence[loop.Stmt], variable: str, varying: Collection[str]) -> Interior | None:
    """What is left of the body of a loop over ``variable`` inside of the edges that loads are masked with; None without any.

    Args:
        varying: names of values that change along the loop.
    """
    positions = {s.to: s.index for s in body if isinstance(s, loop.Index)}
    edges: dict[str, Edge] = {}
    for s in body:
        if isinstance(s, loop.Compute) and s.op == "lt" and s.args[0] in positions and s.args[1] not in varying:
            expression = positions[s.args[0]]
            step = index.stride(expression, variable)
            if step is not None and index.less(0, step) and not index.symbols(expression).keys() & positions.keys():
                edges[s.to] = Edge(expression, step, s.args[1])
    inside, names, met = _where_true(body, edges.keys())
    if not met:
        return None
    return Interior(tuple(edge for name, edge in edges.items() if name in met), inside, names)


def _where_true(
    body: Sequence[loop.Stmt], conditions: Collection[str]
) -> tuple[tuple[loop.Stmt, ...], dict[str, str], set[str]]:
    """The body where ``conditions`` are true, which others than masks still find; what values are called that it leaves out;
    and those conditions that masked loads."""
    true = {name: {name} for name in conditions}
    names: dict[str, str] = {}
    by: dict[str, set[str]] = {}
    met: set[str] = set()
    kept: list[loop.Stmt] = []
    for s in body:
        if isinstance(s, loop.Compute):
            if s.op == "bitand" and any(a in true for a in s.args):
                rest = [a for a in s.args if a not in true]
                by[s.to] = {name for a in s.args for name in true.get(a, by.get(a, set()))}
                if rest:
                    names[s.to] = names.get(rest[0], rest[0])
                    continue
                true[s.to] = by[s.to]
            if s.op == "where" and s.args[0] in true:
                names[s.to] = names.get(s.args[1], s.args[1])
                continue
            s = replace(s, args=tuple(names.get(a, a) for a in s.args))
        elif isinstance(s, loop.Load) and s.mask is not None:
            met |= true.get(s.mask, by.get(s.mask, set()))
            if s.mask in true:
                s = replace(s, mask=None, other=None)
            else:
                assert s.mask is not None
                assert s.other is not None
                s = replace(s, mask=names.get(s.mask, s.mask), other=names.get(s.other, s.other))
        elif isinstance(s, loop.Store):
            mask = None if s.mask is None or s.mask in true else names.get(s.mask, s.mask)
            s = replace(s, value=names.get(s.value, s.value), mask=mask)
        if isinstance(s, loop.Load | loop.Store | loop.Index):
            s = replace(s, index=index.substitute(s.index, {old: index.symbol(new) for old, new in names.items()}))
        kept.append(s)
    return tuple(kept), names, met
