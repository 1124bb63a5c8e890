"""Rectangular loops rewritten: substitution of loop variables, neighbouring ranges walked as one, what a statement reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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

    def change(expression: Int) -> Int:
        return ix.substitute(expression, dict(values)) + plus(expression)

    def ranges(old: tuple[Range, ...]) -> tuple[Range, ...]:
        return tuple(Range(r.var, change(r.size)) for r in old)

    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Load | Store | Index):
            result.append(replace(stmt, index=change(stmt.index)))
        elif isinstance(stmt, Nest | Reduce):
            result.append(replace(stmt, ranges=ranges(stmt.ranges), body=substitute(stmt.body, values, plus)))
        elif isinstance(stmt, Scan):
            result.append(
                replace(
                    stmt,
                    range=Range(stmt.range.var, change(stmt.range.size)),
                    body=substitute(stmt.body, values, plus),
                    then=substitute(stmt.then, values, plus),
                )
            )
        else:
            result.append(stmt)
    return tuple(result)


def reads(stmt: Stmt) -> set[str]:
    """Names of the values, loop variables and size symbols that a statement without inner loops reads."""
    names: set[str] = set()
    if isinstance(stmt, Load | Store | Index):
        names.update(ix.symbols(stmt.index))
    if isinstance(stmt, Load):
        names.update(n for n in (stmt.mask, stmt.other) if n)
    elif isinstance(stmt, Store):
        names.update(n for n in (stmt.value, stmt.mask) if n)
    elif isinstance(stmt, Compute):
        names.update(stmt.args)
    return names
