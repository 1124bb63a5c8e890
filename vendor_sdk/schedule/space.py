"""Iteration spaces: where the element of one prim lies in the loops of a group of others.

Everything is decided by index expressions. A member of a group has an index in the group's loop variables; a reader reads it at
an index in variables of its own; equating the two gives the reader's variables in the group's, or shows that the two do not run
in step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int

Index = tuple[Int, ...]
Solution = dict[str, Int]


def plain(expression: Int) -> str | None:
    """The name of an expression that is one symbol, None for any other."""
    if expression.constant or len(expression.terms) != 1:
        return None
    try:
        return ix.name_of(expression)
    except ValueError:
        return None


def names(expressions: Sequence[Int]) -> set[str]:
    """Symbols of the expressions."""
    return {name for expression in expressions for name in ix.symbols(expression)}


def solve(read: Index, place: Index, unknown: set[str]) -> Solution | None:
    """Values of the ``unknown`` names of ``read`` that make it equal to ``place``, as far as single names tell; None where that
    is impossible. Names that stand alone nowhere stay unsolved."""
    found: Solution = {}
    for left, right in zip(read, place, strict=True):
        name = plain(left)
        if name is not None and name in unknown and found.setdefault(name, right) != right:
            return None
    for left, right in zip(read, place, strict=True):
        if names([left]) & (unknown - found.keys()):
            continue
        if ix.substitute(left, found) != right:
            return None
    return found


def moved(index: Index, values: Mapping[str, Int]) -> Index:
    """``index`` with names replaced."""
    return tuple(ix.substitute(i, values) for i in index)
