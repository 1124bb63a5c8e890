"""Reductions over small windows, written out in the body of the loop around them.

A loop over the nine elements of a window is too short for vectors, and its elements lie apart. Written out, neighbouring
windows run in the lanes of a vector: each of the nine loads reads neighbours. Conditions that hold for all windows go.

Channels may be the neighbours, whose nine weights lie apart. They are loaded first, and the loops over all else follow inside.

Windows of many weights stay loops, over a copy of what they slide over (``halo``).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.contraction import match, sizes
from vendor_sdk.ir.loop import Compute, Const, Load, Local, Nest, Param, Range, Reduce, Scan, Stmt, Store
from vendor_sdk.ir.ranges import renamed
from vendor_sdk.lower.copies import CHAINS, Copies, Leaf, integers
from vendor_sdk.lower.halo import staged

STATEMENTS = 512
"""Of a body that was written out, at most."""
FEW = 16
"""Elements of a window that are written out even where each has a weight, which stays in a register."""
WIDEST = 256
"""Elements of a window."""
NEAR = ({1}, {1, 2})
"""Distances of what neighbours read, the better ones first: every second element is two vectors, shuffled."""


def written(nest: Nest, limits: Limits) -> Nest:
    """``nest`` with its windows written out, as far as ``limits`` allows."""
    loops = [s for s in nest.body if isinstance(s, Reduce | Nest | Scan | Local)]
    windows = [s for s in loops if isinstance(s, Reduce) and _is_window(s)]
    if not windows or len(windows) < len(loops):
        return nest
    terms = sum(len(s.body) * _count(s) for s in windows)
    lanes = _lanes(nest, windows, by_two=limits.interleaves and limits.copies > 1 and terms <= STATEMENTS // 2)
    product = match(nest)
    if lanes is None or (product is not None and 1 not in (sizes(product.m), sizes(product.n))):
        return nest  # A template may know better.
    few = min(FEW, limits.window)
    long = any(_count(s) > (few if _weighs(s, lanes) else limits.window) for s in windows)
    if long or terms > STATEMENTS:
        return staged(nest, lanes, limits) or _tables_beside(nest, windows, lanes, limits) or nest
    if (beside := _tables_beside(nest, windows, lanes, limits)) is not None:
        return beside
    copies = Copies(integers(nest.body), {s.param for s in nest.body if isinstance(s, Store)})
    for s in nest.body:
        if isinstance(s, Reduce):
            _terms(s, copies)
        else:
            copies.body.append(s)
    return _tables_first(nest.ranges, tuple(copies.body), lanes)


def _tables_first(ranges: tuple[Range, ...], body: tuple[Stmt, ...], lanes: Range) -> Nest:
    """A nest in which what each of ``lanes`` has of its own, apart from its neighbours', is loaded before all other loops."""
    own = [s for s in body if isinstance(s, Load) and _is_table(s, lanes, ())]
    tables = [s for s in own if ix.stride(s.index, lanes.var) not in (0, 1)]
    if not tables:
        return Nest(ranges, body)
    rest = Nest(tuple(r for r in ranges if r != lanes), tuple(s for s in body if s not in tables))
    return Nest((lanes,), (*tables, rest))


def _tables_beside(nest: Nest, windows: Sequence[Reduce], lanes: Range, limits: Limits) -> Nest | None:
    """A nest of windows around copies of what each of ``lanes`` has of its own, apart from its neighbours', and a nest that
    reads it side by side."""
    (window, *more) = windows
    inside = {r.var for r in window.ranges}
    apart = [s for s in window.body if isinstance(s, Load) and _is_table(s, lanes, inside)]
    apart = [s for s in apart if ix.stride(s.index, lanes.var) not in (0, 1)]
    size = ix.product([*(r.size for r in window.ranges), lanes.size])
    if more or len(apart) != 1 or size.value is None or size.value * apart[0].dtype.itemsize > limits.local_bytes:
        return None
    (load,) = apart
    param = Param(f"{load.to}_table", load.dtype, size, "local")
    position = ix.ZERO
    for r in (*window.ranges, lanes):
        position = position * r.size + ix.variable(r.var, r.size)
    moved = {r.var: ix.variable(f"{r.var}_t", r.size) for r in (*window.ranges, lanes)}
    filled: list[Stmt] = [load, Store(param.name, position, load.to)]
    copy = Nest(
        tuple(Range(f"{r.var}_t", r.size) for r in (*window.ranges, lanes)),
        tuple(renamed(s, {load.to: f"{load.to}_t"}, moved) for s in filled),
    )
    read = replace(window, body=tuple(replace(s, param=param.name, index=position) if s is load else s for s in window.body))
    outer = nest.ranges[: next(n for n, r in enumerate(nest.ranges) if r == lanes or _slides(r, window))]
    inner = Nest(nest.ranges[len(outer) :], tuple(read if s is window else s for s in nest.body))
    return Nest(outer, (Local(param), copy, inner))


def _slides(r: Range, window: Reduce) -> bool:
    """Whether neighbouring results of a loop read elements that lie among each other."""
    moving = [s.index for s in window.body if isinstance(s, Load) and r.var in ix.symbols(s.index)]
    return not all(_beyond(place, r, other) for place in moving for other in window.ranges)


def _beyond(place: ix.Int, r: Range, within: Range) -> bool:
    """Whether a step of ``r`` goes further than all of ``within``."""
    step, each = ix.stride(place, r.var), ix.stride(place, within.var)
    if step is None or each is None:
        return False
    return all(ix.nonnegative(step - reach) for reach in (each * within.size, -each * within.size))


def _is_table(s: Load, lanes: Range, inside: Collection[str]) -> bool:
    """Whether nothing but ``lanes``, and loops of names ``inside``, says what is loaded."""
    return not s.mask and ix.symbols(s.index).keys() <= {lanes.var, *inside}


def _weighs(s: Reduce, lanes: Range) -> bool:
    """Whether there are weights: the same for all results, or tables."""
    inside = {r.var for r in s.ranges}
    loads = [each for each in s.body if isinstance(each, Load) and inside & ix.symbols(each.index).keys()]
    return any(ix.stride(each.index, lanes.var) == 0 or _is_table(each, lanes, inside) for each in loads)


def _count(s: Reduce) -> int:
    return ix.product([r.size for r in s.ranges]).value or 0


def _is_window(s: Reduce) -> bool:
    """Whether a reduction has few terms, in several dimensions or some of them masked; or is a sum of one."""
    leaves = all(isinstance(each, Leaf) for each in s.body) and all(a.op in CHAINS for a in s.accumulators)
    several = len(s.ranges) != 1 or any(isinstance(each, Load) and each.mask for each in s.body)
    least = 1 if all(a.op == "sum" for a in s.accumulators) else 2
    return leaves and several and least <= _count(s) <= WIDEST


def _lanes(nest: Nest, windows: Sequence[Reduce], *, by_two: bool) -> Range | None:
    """The loop of the nest whose neighbours read elements close to each other, or the same, but for tables of their own;
    ``by_two``: or every second neighbour."""
    inside = {r.var for s in windows for r in s.ranges}
    loads = [s for each in windows for s in each.body if isinstance(s, Load)]
    for near, tables in itertools.product(NEAR, (False, True)):
        for r in reversed(nest.ranges):
            others = [s for s in loads if not (tables and _is_table(s, r, inside))]
            steps = {_step(s.index, r, by_two=by_two) for s in others}
            if steps & near and steps <= near | {0} and (len(others) == len(loads) or len(nest.ranges) > 1):
                return r
    return None


def _step(place: ix.Int, r: Range, *, by_two: bool) -> int | None:
    """How far apart neighbours read, or every second one: of windows two steps apart, gradients read ``(x - k) // 2``, of which
    ``strides`` makes places side by side, two neighbours at a time."""
    step = ix.stride(place, r.var)
    if step is None and by_two and r.size.value is not None:
        second = ix.variable(r.var, ix.wrap((r.size.value + 1) // 2)) * 2
        step = ix.stride(ix.substitute(place, {r.var: second}), r.var)
    return None if step is None else step.value


def _terms(s: Reduce, copies: Copies) -> None:
    """Adds what a reduction computes, one term after the other."""
    running = {a.to[0]: "" for a in s.accumulators}
    for a in s.accumulators:
        if a.op == "sum":  # of negative zeros is zero
            running[a.to[0]] = f"{a.to[0]}_w"
            copies.body.append(Const(running[a.to[0]], 0, a.dtype))
    places = [*itertools.product(*(range(r.size.value or 0) for r in s.ranges))]
    for number, place in enumerate(places):
        moved = {r.var: ix.wrap(at) for r, at in zip(s.ranges, place, strict=True)}
        names: dict[str, str] = {}
        for leaf in s.body:
            copies.add(leaf, names, f"_w{number}", moved)
        for a in s.accumulators:
            (to,), (arg,) = a.to, a.args
            value, before = names.get(arg, arg), running[to]
            name = to if number == len(places) - 1 else f"{to}_w{number}"
            if not before:
                running[to] = value
                continue
            copies.body.append(Compute(name, CHAINS[a.op], (before, value), a.dtype))
            running[to] = name
