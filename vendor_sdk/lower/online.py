"""The largest of a row and the sum of its exponentials in one pass, for emitters whose rows do not stay near the arithmetic.

``online(kernel, position)`` finds in a nest a reduction to a row's largest value ``m`` and a later one that sums ``exp(v - m)``
over the same values: softmax, its logarithm and cross entropy begin so. Both become one ``expsum`` reduction, and memory is
read once less (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).

Results are those of the two passes but for rounding: a running sum is multiplied when a larger value appears.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    LoopKernel,
    Nest,
    Reduce,
    Scalar,
    Stmt,
    Store,
    loop_variables,
    makes,
    walk,
)
from vendor_sdk.lower.alike import meaning
from vendor_sdk.lower.split import Heard


def online(kernel: LoopKernel, position: int) -> LoopKernel:
    """``kernel`` with such pairs of reductions in nest ``position`` made one."""
    taken = {name for s in walk(kernel.body) for name in (*makes(s), *loop_variables(s))}
    body = list(kernel.body)
    nest = body[position]
    written = {s.param for s in walk(nest.body) if isinstance(s, Store)}
    body[position] = replace(nest, body=_joined(nest.body, written, taken))
    return replace(kernel, body=tuple(body))


def gaps(body: Sequence[Stmt]) -> frozenset[str]:
    """Names of the values in the loops of a nest's ``body`` that are an element less the largest of its row.

    They are at most zero, and one of them is zero. The largest is the ``max``, or the first result of an ``expsum``, of an
    earlier loop over the same elements.
    """
    written = {s.param for s in walk(tuple(body)) if isinstance(s, Store)}
    return frozenset(_gaps(body, written))


def _gaps(stmts: Sequence[Stmt], written: set[str]) -> Iterator[str]:
    loops = [s for s in stmts if isinstance(s, Reduce | Nest)]
    heard = _heard(stmts)
    for position, late in enumerate(loops):
        yield from _gaps(late.body, written)
        there = {name: s for s in late.body for name in makes(s)}
        for early in loops[:position]:
            if not isinstance(early, Reduce) or [r.size for r in early.ranges] != [r.size for r in late.ranges]:
                continue
            variables = {a.var: ix.variable(b.var, b.size) for a, b in zip(late.ranges, early.ranges, strict=True)}
            here = {name: s for s in early.body for name in makes(s)}
            rows = {
                largest: [meaning(value, here, {}, written) for value in (a.args[0], _counted(a.args[0], early))]
                for a in early.accumulators
                if a.op in ("max", "expsum")
                for largest in (a.to[0], *heard.get(a.to[0], ()))
            }
            for s in late.body:
                if not isinstance(s, Compute) or s.op != "sub" or s.args[1] not in rows:
                    continue
                if meaning(s.args[0], there, variables, written) in rows[s.args[1]]:
                    yield s.to


def _heard(stmts: Sequence[Stmt]) -> dict[str, list[str]]:
    """The largest value of a row's parts, by that of its own part that each tells the others."""
    told = {s.param: s.value for s in stmts if isinstance(s, Store)}
    found: dict[str, list[str]] = {}
    for s in stmts:
        if isinstance(s, Heard):
            loads = {each.to: each.param for each in s.body if isinstance(each, Load)}
            for a in s.accumulators:
                if a.op in ("max", "expsum") and a.args[0] in loads:
                    found.setdefault(told[loads[a.args[0]]], []).append(a.to[0])
    return found


def _counted(name: str, s: Reduce) -> str:
    """The value of which ``name`` is the one that counts, in a loop that reads nothing where it does not count."""
    made = {each.to: each for each in s.body if isinstance(each, Compute)}
    chosen = made.get(name)
    masks = {each.mask for each in s.body if isinstance(each, Load)}
    if chosen is not None and chosen.op == "where" and masks == {chosen.args[0]}:
        return chosen.args[1]
    return name


def _joined(stmts: Sequence[Stmt], written: set[str], taken: set[str]) -> tuple[Stmt, ...]:
    inner = [replace(s, body=_joined(s.body, written, taken)) if isinstance(s, Reduce | Nest) else s for s in stmts]
    body: list[Stmt | list[Stmt]] = [*inner]
    for second, late in enumerate(body):
        for first, early in enumerate(body[:second]):
            value = _largest(early, late, written)
            if value is None:
                continue
            assert isinstance(early, Reduce)
            assert isinstance(late, Reduce)
            body[first], body[second] = _one(early, late, value, taken)
            break
    return tuple(s for each in body for s in (each if isinstance(each, list) else [each]))


def _largest(early: Stmt | list[Stmt], late: Stmt | list[Stmt], written: set[str]) -> str | None:
    """The value in ``early`` of which it finds the largest, where ``late`` sums the exponentials of just that."""
    if not isinstance(early, Reduce) or not isinstance(late, Reduce) or len(late.accumulators) != 1:
        return None
    sizes = [[r.size for r in s.ranges] for s in (early, late)]
    # Over no iterations the sum is zero, which what is computed from an infinite largest value is not.
    if sizes[0] != sizes[1] or not ix.less(0, ix.product(sizes[0])):
        return None
    if not all(isinstance(s, Load | Const | Scalar | Index | Compute) for s in (*early.body, *late.body)):
        return None
    (total,) = late.accumulators
    there = {name: s for s in late.body for name in makes(s)}
    power = there.get(total.args[0])
    shifted = there.get(power.args[0]) if isinstance(power, Compute) and power.op == "exp" else None
    if total.op != "sum" or not isinstance(shifted, Compute) or shifted.op != "sub":
        return None
    variables = {a.var: ix.variable(b.var, b.size) for a, b in zip(late.ranges, early.ranges, strict=True)}
    value = meaning(shifted.args[0], there, variables, written)
    if value is None:
        return None
    here = {name: s for s in early.body for name in makes(s)}
    for a in early.accumulators:
        if a.op == "max" and a.to[0] == shifted.args[1] and meaning(a.args[0], here, {}, written) == value:
            return a.args[0]
    return None


def _one(early: Reduce, late: Reduce, value: str, taken: set[str]) -> tuple[Reduce, list[Stmt]]:
    """The reduction in place of ``early``, and what stands in place of ``late``."""
    (total,) = late.accumulators
    weight, running, gap, unit = (_fresh(f"{total.to[0]}_{what}", taken) for what in ("weight", "running", "gap", "unit"))
    dtype = total.dtype
    (largest,) = (a for a in early.accumulators if a.op == "max" and a.args[0] == value)
    pair = Accumulator((largest.to[0], running), "expsum", (value, weight), dtype)
    accumulators = tuple(pair if a is largest else a for a in early.accumulators)
    # exp(m - m) is one, and NaN where the largest value is infinite, as the sum then is.
    after: Sequence[Stmt] = [
        Compute(gap, "sub", (largest.to[0], largest.to[0]), dtype),
        Compute(unit, "exp", (gap,), dtype),
        Compute(total.to[0], "mul", (running, unit), dtype),
    ]
    return replace(early, body=(*early.body, Const(weight, 1.0, dtype)), accumulators=accumulators), list(after)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
