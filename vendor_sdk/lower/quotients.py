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
from vendor_sdk.ir.loop import Nest, Range, Reduce, Scan, Stmt
from vendor_sdk.ir.quotients import cut


def affine(body: Sequence[Stmt], limits: Limits) -> tuple[Stmt, ...]:
    """``body`` with its innermost loops cut in two where that leaves fewer accesses whose place is no affine function of the
    inner loop's variable. The order of iterations stays."""
    return tuple(_cut(stmt, limits.affine) for stmt in body) if limits.affine else tuple(body)


def _cut(stmt: Stmt, least: int) -> Stmt:
    if not isinstance(stmt, Nest | Reduce):
        return stmt
    if isinstance(stmt, Nest) and match(stmt) is not None:
        return stmt  # A template knows what its ranges are.
    if any(isinstance(s, Nest | Reduce | Scan) for s in stmt.body):
        return replace(stmt, body=tuple(_cut(s, least) for s in stmt.body))
    ranges: list[Range] = []
    body = stmt.body
    for r in stmt.ranges:
        found, body = cut(r, body, least, near=True)
        ranges += found
    return replace(stmt, ranges=tuple(ranges), body=body)
