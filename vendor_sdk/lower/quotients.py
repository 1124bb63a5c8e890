"""Loops over several dimensions at once, cut where one of these ends.

A loop over the elements of a group of channels reads the scale of each at ``y // 1024``: an index that no vector loads, and
that costs every lane a division. Two loops, over channels and over the elements of one, have ``q`` in its place, and the inner
one's indices are affine: neighbours are loaded together, and what one channel's elements share is loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.contraction import match
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Load, Nest, Range, Reduce, Scan, Stmt, Store
from vendor_sdk.ir.ranges import substitute


def affine(body: Sequence[Stmt], limits: Limits) -> tuple[Stmt, ...]:
    """``body`` with its innermost loops cut in two where that leaves fewer accesses whose place is no affine function of the
    inner loop's variable. The order of iterations stays."""
    return tuple(_cut(stmt, limits.affine) for stmt in body) if limits.affine else tuple(body)


def _cut(stmt: Stmt, least: int) -> Stmt:
    if not isinstance(stmt, Nest | Reduce):
        return stmt
    if isinstance(stmt, Nest) and match(stmt) is not None:
        return stmt  # A template knows what its ranges are.
    if any(isinstance(s, Nest | Reduce | Scan) for s in stmt.body):
        return replace(stmt, body=tuple(_cut(s, least) for s in stmt.body))
    ranges: list[Range] = []
    body = stmt.body
    for r in stmt.ranges:
        size = _length(r, body, least)
        if size is None:
            ranges.append(r)
            continue
        two = _two(r, size)
        body = _over(body, r, *two)
        ranges += two
    return replace(stmt, ranges=tuple(ranges), body=body)


def _length(r: Range, body: Sequence[Stmt], least: int) -> Int | None:
    """How many iterations the inner one of two loops over ``r`` has: of ``least`` and more the most that leave the fewest
    accesses without a stride, where neighbours of one of the two loops are neighbours in memory. None where one loop is as
    good."""
    places = [s.index for s in body if isinstance(s, Load | Store)]
    left, best = _without_stride(places, r.var), None
    for size in sorted({d for place in places for d in _divisors(place, r.var)}, key=_magnitude, reverse=True):
        if not left:
            break
        if (size.value or least) < least or ix.mod(r.size, size) != 0:
            continue
        outer, inner = _two(r, size)
        after = [s.index for s in _over(body, r, outer, inner) if isinstance(s, Load | Store)]
        count = _without_stride(after, inner.var)
        if count < left and any(_near(after, each) for each in (outer, inner) if (each.size.value or least) >= least):
            left, best = count, size
    return best


def _two(r: Range, size: Int) -> tuple[Range, Range]:
    """Two ranges for one, the inner one of ``size`` iterations."""
    return Range(f"{r.var}q", r.size // size), Range(f"{r.var}m", size)


def _over(body: Sequence[Stmt], r: Range, outer: Range, inner: Range) -> tuple[Stmt, ...]:
    position = ix.variable(outer.var, outer.size) * inner.size + ix.variable(inner.var, inner.size)
    return substitute(body, {r.var: position})


def _without_stride(places: Sequence[Int], variable: str) -> int:
    return sum(ix.stride(place, variable) is None for place in places)


def _near(places: Sequence[Int], r: Range) -> bool:
    """Whether iterations of a loop touch neighbouring elements."""
    return any(step == 1 for place in places if (step := ix.stride(place, r.var)) is not None)


def _magnitude(size: Int) -> tuple[int, int, str]:
    """What is larger in any case: numbers by value, products of symbols by how many there are."""
    return max((len(atom.factors) for atom, _ in size.terms), default=0), size.value or 0, str(size)


def _divisors(place: Int, variable: str) -> Iterator[Int]:
    """How many iterations of a loop over ``variable`` lie between two changes of a quotient in ``place``, or make one round of
    a remainder."""
    for atom, _ in place.terms:
        for factor in atom.factors:
            if isinstance(factor, ix.Extreme):
                for part in factor.key[1:]:
                    yield from _divisors(part, variable)
            if not isinstance(factor, ix.Div | ix.Mod):
                continue
            numerator, divisor = factor.key
            inside = [*_divisors(numerator, variable)]
            yield from inside
            step = ix.stride(numerator, variable)
            if step is None:
                yield from (each * divisor for each in inside)
            elif step.value is not None and divisor.value is not None:
                yield ix.wrap(divisor.value // math.gcd(step.value, divisor.value))
            elif step == 1:
                yield divisor
