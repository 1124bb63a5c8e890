"""Ranges over several dimensions at once, cut where one of these ends.

The index of what goes along such a range holds quotients and remainders of its variable; that of two ranges, one over the
dimensions outside and one inside, is affine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Index, Load, Range, Stmt, Store, walk
from vendor_sdk.ir.ranges import substitute


def cut(
    r: Range, body: tuple[Stmt, ...], least: int, *, near: bool, groups: Range | None = None
) -> tuple[tuple[Range, ...], tuple[Stmt, ...]]:
    """Two ranges for one, the inner one of ``least`` iterations and more, and the body over them, where that leaves fewer
    accesses whose place is no affine function of the inner one's variable; else what was given. The order of iterations stays.

    Args:
        near: whether that is worth it only where neighbours of one of the two are neighbours in memory, be there so few: then
            ``groups`` of them, too.
    """
    size = _length(r, body, least, near, groups)
    if size is None:
        return (r,), body
    two = _two(r, size)
    return two, _over(body, r, *two)


def cut_each(
    ranges: Sequence[Range], body: tuple[Stmt, ...], least: int, *, near: bool, groups: Range | None = None
) -> tuple[tuple[Range, ...], tuple[Stmt, ...]]:
    """``cut`` of each of some ranges."""
    found: list[Range] = []
    for r in ranges:
        two, body = cut(r, body, least, near=near, groups=groups)
        found += two
    return tuple(found), body


def _length(r: Range, body: Sequence[Stmt], least: int, near: bool, groups: Range | None) -> Int | None:
    """How many iterations the inner one of two ranges for ``r`` has: of ``least`` and more the most that leave the fewest
    accesses without a stride. None where one is as good."""
    places = _places(body)
    left, best = _without_stride(places, r.var), None
    for size in sorted({d for place in places for d in _divisors(place, r.var)}, key=_magnitude, reverse=True):
        if not left:
            break
        if (size.value or least) < least or ix.mod(r.size, size) != 0:
            continue
        outer, inner = _two(r, size)
        after = _over(body, r, outer, inner)
        count = _without_stride(_places(after), inner.var)
        touched = [s.index for s in walk(after) if isinstance(s, Load | Store)]
        beside = not near or any(_near(touched, each) for each in (outer, inner) if (each.size.value or least) >= least)
        beside = beside or (groups is not None and any(_continues(place, outer, groups) for place in touched))
        if count < left and beside:
            left, best = count, size
    return best


def _places(body: Sequence[Stmt]) -> list[Int]:
    return [s.index for s in walk(tuple(body)) if isinstance(s, Load | Store | Index)]


def _two(r: Range, size: Int) -> tuple[Range, Range]:
    """Two ranges for one, the inner one of ``size`` iterations."""
    return Range(f"{r.var}q", r.size // size), Range(f"{r.var}m", size)


def _over(body: Sequence[Stmt], r: Range, outer: Range, inner: Range) -> tuple[Stmt, ...]:
    position = ix.variable(outer.var, outer.size) * inner.size + ix.variable(inner.var, inner.size)
    return substitute(body, {r.var: position})


def _without_stride(places: Sequence[Int], variable: str) -> int:
    return sum(ix.stride(place, variable) is None for place in places)


def _continues(place: Int, r: Range, groups: Range) -> bool:
    """Whether neighbours of a loop are neighbours in memory, and the next of ``groups`` follows the last of them."""
    step, apart = ix.stride(place, r.var), ix.stride(place, groups.var)
    return step is not None and step == 1 and apart == r.size


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
