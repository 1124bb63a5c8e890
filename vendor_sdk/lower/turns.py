"""Loops cut where what they read turns around or begins anew: at a reflected edge, at the end of a row that is rolled.

Along such a loop an index is no affine function of its variable, and every lane would load on its own. Between two turns it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Index, Load, Local, Nest, Range, Reduce, Scan, Stmt, Store, makes
from vendor_sdk.ir.ranges import renamed

PIECES = 6
"""Of a loop at most."""


def unfolded(body: Sequence[Stmt], limits: Limits) -> tuple[Stmt, ...]:
    """``body`` with the last loops of its nests cut at turns, where all of their indices are affine then."""
    return tuple(each for stmt in body for each in _nest(stmt)) if limits.affine else tuple(body)


def _nest(nest: Stmt) -> Sequence[Stmt]:
    if not isinstance(nest, Nest) or not nest.ranges or any(isinstance(s, Reduce | Nest | Scan | Local) for s in nest.body):
        return [nest]
    *outer, last = nest.ranges
    size = last.size.value
    if size is None or all(ix.stride(place, last.var) is not None for place in _places(nest.body)):
        return [nest]
    pieces = _pieces(nest.body, last.var, 0, size)
    if len(pieces) < 2:
        return [nest]
    return [Nest(tuple(outer), tuple(pieces))] if outer else pieces


def _pieces(body: tuple[Stmt, ...], variable: str, first: int, size: int, most: int = PIECES) -> list[Nest]:
    """Loops over ``size`` values of a variable, from ``first`` on, that are affine; none where these are too many."""
    r = Range(f"{variable}t{first}", ix.wrap(size))
    moved = {variable: ix.variable(r.var, size) + first}
    names = {name: f"{name}t{first}" for s in body for name in makes(s)}
    piece = tuple(renamed(s, names, moved) for s in body)
    bent = [place for place in _places(piece) if ix.stride(place, r.var) is None]
    if not bent:
        return [Nest((r,), piece)]
    turn = next((turn for place in bent for turn in _turns(place, r)), 0)
    if not turn or most < 2:
        return []
    before = _pieces(body, variable, first, turn, most - 1)
    after = _pieces(body, variable, first + turn, size - turn, most - len(before)) if before else []
    return [*before, *after] if after else []


def _places(body: Sequence[Stmt]) -> list[Int]:
    return [s.index for s in body if isinstance(s, Load | Store | Index)]


def _turns(place: Int, r: Range) -> Iterator[int]:
    """Where along a loop a quotient in ``place`` changes first, a remainder begins anew, or an extreme is the other side's."""
    for factor in (factor for atom, _ in place.terms for factor in atom.factors):
        if isinstance(factor, ix.Extreme):
            _, left, right = factor.key
            yield from (*_turns(left, r), *_turns(right, r))
            yield from _above(left - right, r)
        elif isinstance(factor, ix.Div | ix.Mod):
            numerator, divisor = factor.key
            yield from _turns(numerator, r)
            start = ix.substitute(numerator, {r.var: 0}).value
            if start is not None and divisor.value is not None and divisor.value > 0:
                yield from _above(numerator - start // divisor.value * divisor.value, r, divisor.value)


def _above(expression: Int, r: Range, limit: int = 0) -> Iterator[int]:
    """Where along a loop an expression of its variable alone leaves ``[0, limit)``, or changes its sign where that is empty."""
    step, start = ix.stride(expression, r.var), ix.substitute(expression, {r.var: 0}).value
    if step is None or step.value is None or start is None or r.size.value is None:
        return
    by, bound = step.value, limit
    if by < 0:  # counted from the other side, so that it rises
        by, start, bound = -by, -start, 0 if limit == 0 else 1
    turn = -((start - bound) // by) if by else 0
    if 0 < turn < r.size.value:
        yield turn
