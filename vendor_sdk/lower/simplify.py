"""Fewer, longer loops: ranges of size one go, neighbours that every access walks as one are merged."""

from __future__ import annotations

from dataclasses import replace

from vendor_sdk.ir.loop import Nest, Reduce, Scan, Stmt
from vendor_sdk.ir.ranges import merge
from vendor_sdk.lower.build import Lowered


def simplify(lowered: Lowered) -> Lowered:
    kernel = lowered.kernel
    body = tuple(nest for nest in map(_nest, kernel.body) if isinstance(nest, Nest))
    return replace(lowered, kernel=replace(kernel, body=body))


def _nest(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Nest):
        ranges, body = merge(stmt.ranges, stmt.body)
        return Nest(ranges, tuple(map(_nest, body)))
    if isinstance(stmt, Reduce):
        ranges, body = merge(stmt.ranges, stmt.body)
        return Reduce(ranges, tuple(map(_nest, body)), stmt.accumulators)
    if isinstance(stmt, Scan):
        return replace(stmt, body=tuple(map(_nest, stmt.body)), then=tuple(map(_nest, stmt.then)))
    return stmt
