"""Loops over several dimensions at once, cut where one of these ends.

A loop over the elements of a group of channels reads the scale of each at ``y // 1024``: an index that no vector loads, and
that costs every lane a division. Two loops, over channels and over the elements of one, have ``q`` in its place, and the inner
one's indices are affine: neighbours are loaded together, and what one channel's elements share is loaded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir.contraction import match
from vendor_sdk.ir.index import stride
from vendor_sdk.ir.loop import Load, Nest, Range, Reduce, Scan, Stmt
from vendor_sdk.ir.quotients import cut, cut_each


def affine(body: Sequence[Stmt], limits: Limits) -> tuple[Stmt, ...]:
    """``body`` with its innermost loops cut in two where that leaves fewer accesses whose place is no affine function of the
    inner loop's variable, and the last loop around reductions where they then read along memory what they would gather. The
    order of iterations stays."""
    return tuple(_cut(stmt, limits.affine) for stmt in body) if limits.affine else tuple(body)


def _cut(stmt: Stmt, least: int, groups: Range | None = None) -> Stmt:
    if not isinstance(stmt, Nest | Reduce):
        return stmt
    if isinstance(stmt, Nest) and match(stmt) is not None:
        return stmt  # A template knows what its ranges are.
    if any(isinstance(s, Nest | Reduce | Scan) for s in stmt.body):
        columns = _columns(stmt, least) if isinstance(stmt, Nest) else None
        last = stmt.ranges[-1] if stmt.ranges else None
        return columns or replace(stmt, body=tuple(_cut(s, least, last) for s in stmt.body))
    ranges, body = cut_each(stmt.ranges, stmt.body, least, near=True, groups=groups)
    return replace(stmt, ranges=ranges, body=body)


def _columns(nest: Nest, least: int) -> Nest | None:
    """A nest of reductions whose last range is cut where that makes columns of them: what they read lies side by side along the
    inner one, and did not before. None for any other."""
    last = nest.ranges[-1] if nest.ranges else None
    if last is None or any(isinstance(s, Nest | Scan) for s in nest.body) or _beside(nest.body, last):
        return None
    found, body = cut(last, nest.body, least, near=True)
    if not _beside(body, found[-1]):
        return None
    return replace(nest, ranges=(*nest.ranges[:-1], *found), body=tuple(_steps(s, least) for s in body))


def _beside(body: Sequence[Stmt], r: Range) -> bool:
    """Whether what a reduction reads lies side by side for neighbours of ``r``."""
    loads = [s for each in body if isinstance(each, Reduce) for s in each.body if isinstance(s, Load)]
    return any(stride(s.index, r.var) == 1 for s in loads)


def _steps(stmt: Stmt, least: int) -> Stmt:
    """A reduction whose ranges are cut where what it reads then lies at one distance."""
    if not isinstance(stmt, Reduce):
        return stmt
    ranges, body = cut_each(stmt.ranges, stmt.body, least, near=False)
    return replace(stmt, ranges=ranges, body=body)
