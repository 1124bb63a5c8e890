"""Neighbouring totals that read the same elements, summed in one pass over them.

The gradient of a window's weights is such a group: one total for each element of the window, all of which multiply the same
gradients with images that are moved against each other. As loops of their own they read both once for each. Here one loop has
an accumulator for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.contraction import match, sizes
from vendor_sdk.ir.loop import Accumulator, Load, Local, Nest, Range, Reduce, Scan, Stmt, Store, makes, reads
from vendor_sdk.lower.copies import CHAINS, Copies, Leaf, integers

TOTALS = 16
"""Of one loop at most: each runs in a register."""


def together(nest: Nest, limits: Limits) -> Nest:
    """``nest`` with such totals in one loop."""
    loops = [s for s in nest.body if isinstance(s, Reduce | Nest | Scan | Local)]
    total = loops[0] if len(loops) == 1 else None
    if not isinstance(total, Reduce):
        return nest
    if not all(isinstance(s, Leaf) for s in total.body) or any(a.op not in CHAINS for a in total.accumulators):
        return nest
    count = sizes(total.ranges).value
    if count is not None and count <= limits.window:
        return nest  # A window itself, whose results are neighbours.
    taps = _taps(nest, total)
    product = match(nest)
    if not taps or (product is not None and 1 not in (sizes(product.m), sizes(product.n))):
        return nest  # A template may know better.
    position = next(n for n, s in enumerate(nest.body) if s is total)
    return _in_one(nest, total, nest.body[:position], nest.body[position + 1 :], taps)


def _taps(nest: Nest, total: Reduce) -> list[Range]:
    """The last ranges of a nest whose iterations share what they sum."""
    loads = [s for s in total.body if isinstance(s, Load)]
    found: list[Range] = []
    count = len(total.accumulators)
    for r in reversed([r for r in nest.ranges[1:] if r.size != 1]):
        steps = [ix.stride(s.index, r.var) for s in loads]
        size = r.size.value
        if size is None or count * size > TOTALS or None in steps or all(step != 0 for step in steps):
            break
        if not all(step == 0 or _again(s, r, total) for s, step in zip(loads, steps, strict=True)):
            break
        count *= size
        found.insert(0, r)
    some = any(r.var in ix.symbols(s.index) for r in found for s in loads)
    shared = any(not ix.symbols(s.index).keys() & {r.var for r in found} for s in loads)
    return found if some and shared else []


def _again(s: Load, r: Range, total: Reduce) -> bool:
    """Whether a load, moved on by an iteration of ``r``, stays among what it reads in other iterations of the sum."""
    step = ix.stride(s.index, r.var)
    assert step is not None
    for other in total.ranges:
        apart = ix.stride(s.index, other.var)
        if apart is None or not apart.value or step.value is None:
            continue
        if ix.less(abs(step.value), other.size * abs(apart.value)):
            return True
    return False


def _in_one(nest: Nest, total: Reduce, before: Sequence[Stmt], after: Sequence[Stmt], taps: Sequence[Range]) -> Nest:
    own, shared = _split(before, taps)
    outside = Copies(integers(shared), {s.param for s in nest.body if isinstance(s, Store)})
    inside = Copies(outside.integers, outside.written, truths=outside.truths)
    accumulators: list[Accumulator] = []
    finished: list[tuple[dict[str, str], dict[str, ix.Int], str]] = []
    for number, place in enumerate(itertools.product(*(range(r.size.value or 0) for r in taps))):
        moved = {r.var: ix.wrap(at) for r, at in zip(taps, place, strict=True)}
        names: dict[str, str] = {}
        suffix = f"_t{number}"
        for s in own:
            outside.add(s, names, suffix, moved)
        for s in total.body:
            inside.add(s, names, suffix, moved)
        for a in total.accumulators:
            results = tuple(f"{to}{suffix}" for to in a.to)
            accumulators.append(replace(a, to=results, args=tuple(names.get(arg, arg) for arg in a.args)))
            names.update(zip(a.to, results, strict=True))
        finished.append((names, moved, suffix))
    body = [*shared, *outside.body, Reduce(total.ranges, tuple(inside.body), tuple(accumulators))]
    rest = Copies(outside.integers, outside.written, truths=outside.truths)
    for names, moved, suffix in finished:
        for s in after:
            rest.add(s, names, suffix, moved)
    return Nest(tuple(r for r in nest.ranges if r not in taps), (*body, *rest.body))


def _split(body: Sequence[Stmt], taps: Sequence[Range]) -> tuple[list[Stmt], list[Stmt]]:
    """Statements that follow from the variables of ``taps``, and others."""
    varying = {r.var for r in taps}
    own: list[Stmt] = []
    shared: list[Stmt] = []
    for s in body:
        if varying.intersection(reads(s)) or isinstance(s, Store):
            varying.update(makes(s))
            own.append(s)
        else:
            shared.append(s)
    return own, shared
