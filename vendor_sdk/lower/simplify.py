"""Fewer, longer loops: ranges of size one go, neighbours that every access walks as one are merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Index, Load, Nest, Range, Reduce, Scan, Stmt, Store
from vendor_sdk.lower.build import Lowered


def simplify(lowered: Lowered) -> Lowered:
    kernel = lowered.kernel
    body = tuple(nest for nest in map(_nest, kernel.body) if isinstance(nest, Nest))
    return replace(lowered, kernel=replace(kernel, body=body))


def _nest(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Nest):
        ranges, body = _merge(stmt.ranges, stmt.body)
        return Nest(ranges, tuple(map(_nest, body)))
    if isinstance(stmt, Reduce):
        ranges, body = _merge(stmt.ranges, stmt.body)
        return Reduce(ranges, tuple(map(_nest, body)), stmt.accumulators)
    if isinstance(stmt, Scan):
        return replace(stmt, body=tuple(map(_nest, stmt.body)), then=tuple(map(_nest, stmt.then)))
    return stmt


def _merge(ranges: tuple[Range, ...], body: tuple[Stmt, ...]) -> tuple[tuple[Range, ...], tuple[Stmt, ...]]:
    for r in ranges:
        if r.size == 1:
            body = _substitute(body, {r.var: ix.ZERO})
    kept = [r for r in ranges if r.size != 1]
    position = len(kept) - 1
    while position > 0:
        outer, inner = kept[position - 1], kept[position]
        if all(_walks_as_one(e, outer, inner) for e in _indices(body)):
            merged = Range(outer.var, outer.size * inner.size)
            body = _substitute(body, {inner.var: ix.ZERO, outer.var: ix.ZERO}, _flat(outer, inner, merged))
            kept[position - 1 : position + 1] = [merged]
        position -= 1
    return tuple(kept), body


def _walks_as_one(expression: Int, outer: Range, inner: Range) -> bool:
    far, near = ix.stride(expression, outer.var), ix.stride(expression, inner.var)
    return far is not None and near is not None and far == near * inner.size


def _flat(outer: Range, inner: Range, merged: Range) -> Callable[[Int], Int]:
    """What merging adds to an expression whose two variables were set to zero."""
    variable = ix.variable(merged.var, merged.size)

    def moved(expression: Int) -> Int:
        near = ix.stride(expression, inner.var)
        assert near is not None
        return variable * near

    return moved


def _indices(body: Sequence[Stmt]) -> list[Int]:
    found: list[Int] = []
    for stmt in body:
        if isinstance(stmt, Load | Store | Index):
            found.append(stmt.index)
        elif isinstance(stmt, Nest | Reduce):
            found.extend(r.size for r in stmt.ranges)
            found.extend(_indices(stmt.body))
        elif isinstance(stmt, Scan):
            found.append(stmt.range.size)
            found.extend(_indices((*stmt.body, *stmt.then)))
    return found


def _substitute(
    body: Sequence[Stmt], values: dict[str, Int], plus: Callable[[Int], Int] = lambda e: ix.ZERO
) -> tuple[Stmt, ...]:
    def change(expression: Int) -> Int:
        return ix.substitute(expression, dict(values)) + plus(expression)

    def ranges(old: tuple[Range, ...]) -> tuple[Range, ...]:
        return tuple(Range(r.var, change(r.size)) for r in old)

    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Load | Store | Index):
            result.append(replace(stmt, index=change(stmt.index)))
        elif isinstance(stmt, Nest | Reduce):
            result.append(replace(stmt, ranges=ranges(stmt.ranges), body=_substitute(stmt.body, values, plus)))
        elif isinstance(stmt, Scan):
            result.append(
                replace(
                    stmt,
                    range=Range(stmt.range.var, change(stmt.range.size)),
                    body=_substitute(stmt.body, values, plus),
                    then=_substitute(stmt.then, values, plus),
                )
            )
        else:
            result.append(stmt)
    return tuple(result)
