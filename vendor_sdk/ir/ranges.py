"""Rectangular loops rewritten: substitution of loop variables, neighbouring ranges walked as one, other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Compute, Index, Load, Nest, Range, Reduce, Scan, Stmt, Store


def merge(ranges: tuple[Range, ...], body: tuple[Stmt, ...]) -> tuple[tuple[Range, ...], tuple[Stmt, ...]]:
    """The same iterations in the same order with fewer ranges: those of size one go, neighbours that every access walks as one
    become one. The row-major position over ``ranges`` is not changed."""
    for r in ranges:
        if r.size == 1:
            body = substitute(body, {r.var: ix.ZERO})
    kept = [r for r in ranges if r.size != 1]
    position = len(kept) - 1
    while position > 0:
        outer, inner = kept[position - 1], kept[position]
        if all(_walks_as_one(e, outer, inner) for e in expressions(body)):
            merged = Range(outer.var, outer.size * inner.size)
            body = substitute(body, {inner.var: ix.ZERO, outer.var: ix.ZERO}, _flat(inner, merged))
            kept[position - 1 : position + 1] = [merged]
        position -= 1
    return tuple(kept), body


def _walks_as_one(expression: Int, outer: Range, inner: Range) -> bool:
    far, near = ix.stride(expression, outer.var), ix.stride(expression, inner.var)
    return far is not None and near is not None and far == near * inner.size


def _flat(inner: Range, merged: Range) -> Callable[[Int], Int]:
    """What merging adds to an expression whose two variables were set to zero."""
    variable = ix.variable(merged.var, merged.size)

    def moved(expression: Int) -> Int:
        near = ix.stride(expression, inner.var)
        assert near is not None
        return variable * near

    return moved


def expressions(body: Sequence[Stmt]) -> list[Int]:
    """All index expressions and sizes of a body."""
    found: list[Int] = []
    for stmt in body:
        if isinstance(stmt, Load | Store | Index):
            found.append(stmt.index)
        elif isinstance(stmt, Nest | Reduce):
            found.extend(r.size for r in stmt.ranges)
            found.extend(expressions(stmt.body))
        elif isinstance(stmt, Scan):
            found.append(stmt.range.size)
            found.extend(expressions((*stmt.body, *stmt.then)))
    return found


def substitute(
    body: Sequence[Stmt], values: dict[str, Int], plus: Callable[[Int], Int] = lambda e: ix.ZERO
) -> tuple[Stmt, ...]:
    """``body`` with symbols of its index expressions replaced, and ``plus`` of the old expression added to each."""
    return changed(body, lambda e: ix.substitute(e, values) + plus(e), values=True)


def changed(body: Sequence[Stmt], change: Callable[[Int], Int], *, values: bool = False) -> tuple[Stmt, ...]:
    """``body`` with ``change`` of its places in memory and of the sizes of its loops; with ``values``, of the expressions too
    whose values it computes with."""

    def inner(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return changed(body, change, values=values)

    def ranges(old: tuple[Range, ...]) -> tuple[Range, ...]:
        return tuple(Range(r.var, change(r.size)) for r in old)

    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Load | Store) or (values and isinstance(stmt, Index)):
            result.append(replace(stmt, index=change(stmt.index)))
        elif isinstance(stmt, Nest | Reduce):
            result.append(replace(stmt, ranges=ranges(stmt.ranges), body=inner(stmt.body)))
        elif isinstance(stmt, Scan):
            (along,) = ranges((stmt.range,))
            result.append(replace(stmt, range=along, body=inner(stmt.body), then=inner(stmt.then)))
        else:
            result.append(stmt)
    return tuple(result)


def renamed(stmt: Stmt, names: Mapping[str, str], moved: Mapping[str, Int] = {}) -> Stmt:
    """A statement, and what is inside it, with other names for values that it reads or makes, and loop variables replaced."""
    values: dict[str, Any] = {}

    def index(expression: Int) -> Int:
        known = ix.symbols(expression)
        change: dict[str, Int] = {n: v for n, v in moved.items() if n in known}
        for old, symbol in known.items():
            if old in names:
                change[old] = ix.symbol(names[old], symbol.lower, symbol.upper, symbol.below)
        return ix.substitute(expression, change) if change else expression

    def other(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in given)

    if isinstance(stmt, Load | Store | Index):
        values["index"] = index(stmt.index)
    for name in ("to", "mask", "other", "value"):
        used = getattr(stmt, name, None)
        if isinstance(used, str) and used in names:
            values[name] = names[used]
    if isinstance(stmt, Compute):
        values["args"] = other(stmt.args)
    elif isinstance(stmt, Reduce | Nest):
        values["ranges"] = tuple(Range(r.var, index(r.size)) for r in stmt.ranges)
    elif isinstance(stmt, Scan):
        values["range"] = Range(stmt.range.var, index(stmt.range.size))
        values["then"] = tuple(renamed(s, names, moved) for s in stmt.then)
    if isinstance(stmt, Reduce | Nest | Scan):
        values["body"] = tuple(renamed(s, names, moved) for s in stmt.body)
    if isinstance(stmt, Reduce | Scan):
        values["accumulators"] = tuple(replace(a, to=other(a.to), args=other(a.args)) for a in stmt.accumulators)
    return replace(stmt, **values) if values else stmt
