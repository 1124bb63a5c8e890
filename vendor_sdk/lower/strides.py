"""Loops whose iterations read what their neighbours read, written out for a few neighbours at a time.

An index such as ``(y + 1) // 2`` (of the windows over a position, of what an image was enlarged from) is the same for two
neighbours, and no multiple of the loop variable: lanes along ``y`` would gather. A loop over every second ``y``, with both
neighbours in its body, reads each such element once, and its indices are plain again; conditions that hold for one neighbour
and not for the other are decided.

Iterations of an outer loop may read the same of a large input, too (the angles of a rotation, which all heads share): written
out, they read it once for several, instead of from a cache each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Accumulator, Compute, Index, Load, Local, Nest, Range, Reduce, Scan, Stmt, Store, makes
from vendor_sdk.ir.ranges import renamed, substitute
from vendor_sdk.lower.copies import CHAINS, Copies, integers
from vendor_sdk.lower.integers import COMPARISONS

FARTHEST = 4
"""Neighbours that read the same, at most."""
STATEMENTS = 256
"""Of a body that was written out."""
NEAR = 1 << 14
"""Bytes that the nearest cache holds in any case."""


def strided(body: tuple[Stmt, ...], limits: Limits) -> tuple[Stmt, ...]:
    """``body`` with its loops written out as far as ``limits`` allows and it pays."""
    return _body(body, limits, {}, frozenset()) if max(limits.copies, limits.sharing) > 1 else body


def _body(body: Sequence[Stmt], limits: Limits, around: Mapping[str, Int], ordered: frozenset[str]) -> tuple[Stmt, ...]:
    """``around``: what is known of int64 values of outer bodies; ``ordered``: buffers that hold what they do in the order in
    which neighbours read it."""
    ordered |= {s.param.name for s in body if isinstance(s, Local)}
    known = {**around, **integers(body)}
    found: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Scan):
            found.append(stmt)
        elif isinstance(stmt, Nest | Reduce) and any(isinstance(s, Nest | Reduce | Scan) for s in stmt.body):
            found.append(replace(stmt, body=_body(stmt.body, limits, known, ordered)))
        elif isinstance(stmt, Nest | Reduce) and not any(isinstance(s, Load) and s.param in ordered for s in stmt.body):
            found += _loops(stmt, limits, known)
        else:
            found.append(stmt)
    return tuple(found)


def _loops(loop: Nest | Reduce, limits: Limits, around: Mapping[str, Int]) -> list[Stmt]:
    """What stands for a loop: itself, written out, or several, of which the others have what neighbours leave over."""
    if isinstance(loop, Nest):
        return [*_parts(loop, limits, around)]
    if not all(a.op in CHAINS for a in loop.accumulators):
        return [loop]
    found = _parts(loop, limits, around)
    if len(found) == 1:
        return [*found]
    totals: list[Stmt] = []
    for a, *several in zip(loop.accumulators, *(part.accumulators for part in found), strict=True):  # type: ignore[union-attr]
        (first, *others) = (each.to[0] for each in several)
        for k, other in enumerate(others, 1):
            to = a.to[0] if k == len(others) else f"{a.to[0]}t{k}"
            totals.append(Compute(to, CHAINS[a.op], (first, other), a.dtype))
            first = to
    return [*found, *totals]


def _parts(
    loop: Nest | Reduce, limits: Limits, around: Mapping[str, Int], start: int = 0, copies: int = 1
) -> list[Nest | Reduce]:
    """The loop with its ranges from ``start`` on written out, where ``copies`` iterations stand in its body already. What a
    range leaves over is a loop of its own; accumulators of several loops have names of their own."""
    for number, r in enumerate(loop.ranges[start:], start):
        period = _period(r, loop.body, interleaves=limits.interleaves)
        if period is None and isinstance(loop, Nest) and limits.interleaves and number and r is loop.ranges[-1]:
            period = _alternating(r, loop.body)
        if period is None or copies * period > limits.copies:
            period = _sharing(loop, number, limits.sharing // copies)
        if period is None or len(loop.body) * period > STATEMENTS:
            continue
        whole = _written_out(loop, number, period, around)
        rest = _left_over(loop, number, period)
        if rest is None:
            return _parts(whole, limits, around, number + 1, copies * period)
        if isinstance(whole, Reduce):
            whole = replace(whole, accumulators=tuple(replace(a, to=(f"{a.to[0]}n{number}w",)) for a in whole.accumulators))
        found = _parts(whole, limits, around, number + 1, copies * period)
        return [*found, *_parts(rest, limits, around, number + 1, copies)]
    return [loop]


# Which loops


def _period(r: Range, body: Sequence[Stmt], *, interleaves: bool) -> int | None:
    """After how many iterations neighbours read something else; None where that is not so, or does not pay."""
    found: set[int] = set()
    accesses = [s for s in body if isinstance(s, Load | Store)]
    plain = all(_plain(s.index, r.var, found) for s in body if isinstance(s, Load | Store | Index))
    size = r.size.value
    if not plain or len(found) != 1 or size is None:
        return None
    (period,) = found
    if not 2 <= period <= FARTHEST or size < 2 * period:
        return None
    along = [s for s in accesses if (step := ix.stride(s.index, r.var)) is not None and step == 1]
    if along and not (interleaves and period == 2):
        return None
    return period


def _alternating(r: Range, body: Sequence[Stmt]) -> int | None:
    """The size of a loop over two neighbours in memory that conditions tell apart: results of two kinds, in turn."""
    stores = [s for s in body if isinstance(s, Store)]
    places = {s.to for s in body if isinstance(s, Index) and r.var in ix.symbols(s.index)}
    told = any(isinstance(s, Compute) and s.op in COMPARISONS and places & {*s.args} for s in body)
    beside = all(s.mode == "set" and ix.stride(s.index, r.var) == ix.ONE for s in stores)
    return 2 if told and beside and r.size == 2 else None


def _sharing(loop: Nest | Reduce, number: int, most: int) -> int | None:
    """How many iterations of an outer range, of at most ``most``, are written out since they share what they read; None where
    they do not, or where that is near anyway."""
    *around, last = loop.ranges
    r, accesses = loop.ranges[number], [s for s in loop.body if isinstance(s, Load | Store)]
    if not isinstance(loop, Nest) or r not in around or r.size.value is None:
        return None
    if any(ix.stride(s.index, r.var) in (1, None) for s in accesses):
        return None

    def far(s: Load) -> bool:
        elements = ix.product([each.size for each in loop.ranges if each.var in ix.symbols(s.index)]).value
        return elements is None or elements * s.dtype.itemsize > NEAR

    shared = [s for s in accesses if isinstance(s, Load) and r.var not in ix.symbols(s.index)]
    if not any(ix.stride(s.index, last.var) == 1 and far(s) for s in shared):
        return None
    return next((n for n in range(most, 1, -1) if r.size.value % n == 0), None)


def _plain(expression: Int, variable: str, found: set[int]) -> bool:
    """Whether an expression is affine in ``variable`` but for quotients and remainders of it and something, whose divisors join
    ``found``."""
    for atom, _ in expression.terms:
        for factor in atom.factors:
            if isinstance(factor, ix.Symbol) or variable not in ix.symbols(ix.wrap_atom(factor)):
                continue
            if isinstance(factor, ix.Extreme):
                if not all(_plain(each, variable, found) for each in factor.key[1:]):
                    return False
                continue
            numerator, divisor = factor.key
            step = ix.stride(numerator, variable)
            if divisor.value is None or step is None or step != 1:
                return False
            found.add(divisor.value)
    return True


# Writing out


def _written_out(loop: Nest | Reduce, number: int, period: int, around: Mapping[str, Int]) -> Nest | Reduce:
    """The loop over every ``period``-th iteration of its range ``number``."""
    r = loop.ranges[number]
    assert r.size.value is not None
    coarse = Range(r.var, ix.wrap(r.size.value // period))
    variable = ix.variable(coarse.var, coarse.size) if coarse.size != 1 else ix.ZERO
    copies = Copies(dict(around), {s.param for s in loop.body if isinstance(s, Store)})
    named: list[dict[str, str]] = []
    for k in range(period):
        names: dict[str, str] = {}
        for stmt in loop.body:
            copies.add(stmt, names, f"n{number}p{k}" if k else "", {r.var: variable * period + k})
        named.append(names)
    ranges = (*loop.ranges[:number], *([coarse] if coarse.size != 1 else []), *loop.ranges[number + 1 :])
    if isinstance(loop, Nest):
        return Nest(ranges, tuple(copies.body))
    combined = tuple(_combined(a, number, named, copies.body) for a in loop.accumulators)
    return Reduce(ranges, tuple(copies.body), combined)


def _combined(a: Accumulator, number: int, named: Sequence[Mapping[str, str]], body: list[Stmt]) -> Accumulator:
    """An accumulator of what the copies' operands make together."""
    (arg,) = a.args
    first, *others = (names.get(arg, arg) for names in named)
    for k, other in enumerate(others, 1):
        both = f"{a.to[0]}n{number}p{k}"
        body.append(Compute(both, CHAINS[a.op], (first, other), a.dtype))
        first = both
    return replace(a, args=(first,))


def _left_over(loop: Nest | Reduce, number: int, period: int) -> Nest | Reduce | None:
    """The loop over the iterations of its range ``number`` that are none of ``period``."""
    r = loop.ranges[number]
    assert r.size.value is not None
    left = r.size.value % period
    if not left:
        return None
    rest = Range(f"{r.var}n{number}r", ix.wrap(left))
    names = {name: f"{name}n{number}r" for s in loop.body for name in makes(s)}
    body = substitute(loop.body, {r.var: ix.variable(rest.var, rest.size) + (r.size.value - left)})
    ranges = (*loop.ranges[:number], rest, *loop.ranges[number + 1 :])
    moved = tuple(renamed(s, names) for s in body)
    if isinstance(loop, Nest):
        return Nest(ranges, moved)
    accumulators = tuple(
        replace(a, to=(f"{a.to[0]}n{number}r",), args=tuple(names.get(arg, arg) for arg in a.args)) for a in loop.accumulators
    )
    return Reduce(ranges, moved, accumulators)
