"""Fewer, longer loops with no more in them than is used: values that nobody reads go, ranges of size one too, loops that never
run and sums of one term, and neighbours that every access walks as one are merged."""

from __future__ import annotations

from dataclasses import replace

import torch

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    Nest,
    Reduce,
    Scalar,
    Scan,
    Stmt,
    Store,
    makes,
    reads,
    walk,
)
from vendor_sdk.ir.loop_ops import COMBINE
from vendor_sdk.ir.ranges import merge
from vendor_sdk.lower.bounds import proved
from vendor_sdk.lower.build import TRAPS, Lowered
from vendor_sdk.lower.interleaved import joined
from vendor_sdk.lower.picks import picked
from vendor_sdk.lower.quotients import affine
from vendor_sdk.lower.strides import strided
from vendor_sdk.lower.taps import together
from vendor_sdk.lower.turns import unfolded
from vendor_sdk.lower.windows import written

REPORTS = TRAPS | {"wrap_index"}
"""Ops that may report an error, which nobody needs to read."""


def simplify(lowered: Lowered, limits: Limits) -> Lowered:
    kernel = lowered.kernel
    checked = tuple(proved(nest) if isinstance(nest, Nest) else nest for nest in picked(kernel.body))
    written_out = joined(tuple(_windows(nest, limits) for nest in live(checked, set())), limits)
    changed = strided(unfolded(affine(written_out, limits), limits), limits)
    body = tuple(nest for nest in map(_nest, live(changed, set())) if isinstance(nest, Nest))
    return replace(lowered, kernel=replace(kernel, body=body))


def _windows(stmt: Stmt, limits: Limits) -> Stmt:
    return together(written(stmt, limits), limits) if isinstance(stmt, Nest) and limits.window > 1 else stmt


def live(body: tuple[Stmt, ...], used: set[str]) -> tuple[Stmt, ...]:
    """``body`` without values that nobody reads, but for those that may report an error; adds what it reads to ``used``."""
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if isinstance(stmt, Scan | Reduce | Nest) and _never(stmt):
            # An emitter may take what does not vary along a loop before it, from memory that is not there.
            if isinstance(stmt, Reduce):
                kept += [const for const in _of_nothing(stmt) if const.to in used]
            continue
        if isinstance(stmt, Load | Const | Scalar | Index | Compute):
            if stmt.to not in used and not _reports(stmt):
                continue
            used.update(reads(stmt))
        elif isinstance(stmt, Scan):
            used |= {name for accumulator in stmt.accumulators for name in accumulator.args}
            used |= set(ix.symbols(stmt.range.size))
            then = live(stmt.then, used)
            stmt = replace(stmt, body=live(stmt.body, used), then=then)
        elif isinstance(stmt, Reduce | Nest):
            if isinstance(stmt, Reduce):
                if not used & {*makes(stmt)} and not any(isinstance(s, Store) or _reports(s) for s in walk((stmt,))):
                    continue
                stmt = replace(stmt, accumulators=tuple(_without_second(a, used) for a in stmt.accumulators))
                used |= {name for accumulator in stmt.accumulators for name in accumulator.args}
            stmt = replace(stmt, body=live(stmt.body, used))
            if isinstance(stmt, Nest) and not stmt.body:  # what stood in it never runs
                continue
            used |= {name for r in stmt.ranges for name in ix.symbols(r.size)}
        else:
            used.update(reads(stmt))
        kept.append(stmt)
    return tuple(reversed(kept))


def _never(stmt: Scan | Reduce | Nest) -> bool:
    return any(r.size == 0 for r in ((stmt.range,) if isinstance(stmt, Scan) else stmt.ranges))


def _of_nothing(stmt: Reduce) -> list[Const]:
    """The results of a reduction without iterations."""
    found = []
    for a in stmt.accumulators:
        found.append(Const(a.to[0], COMBINE[a.op].identity(a.dtype), a.dtype))
        found += [Const(position, 0, torch.int64) for position in a.to[1:]]
    return found


def _stored_last(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """``body`` with all that it loads before all that it stores, where no load may see what is: memory works on all loads at
    once, and processors that compare a part of addresses take none of them for the reader of a store."""
    stored: set[str] = set()
    for stmt in body:
        if isinstance(stmt, Scan | Reduce | Nest) or (isinstance(stmt, Load) and stmt.param in stored):
            return body
        if isinstance(stmt, Store):
            stored.add(stmt.param)
    return tuple(sorted(body, key=lambda stmt: isinstance(stmt, Store)))


def _reports(stmt: Stmt) -> bool:
    return isinstance(stmt, Compute) and stmt.op in REPORTS


def _without_second(a: Accumulator, used: set[str]) -> Accumulator:
    """The largest element alone, where nobody asks which it is or for a sum."""
    if len(a.to) == 1 or a.to[1] in used:
        return a
    op = "max" if a.op == "expsum" else a.op.removeprefix("arg")
    return replace(a, op=op, to=a.to[:1], args=a.args[:1])


def _nest(stmt: Stmt) -> Stmt:
    if isinstance(stmt, Nest):
        ranges, body = merge(stmt.ranges, stmt.body)
        return Nest(ranges, _stored_last(tuple(map(_nest, body))))
    if isinstance(stmt, Reduce):
        ranges, body = merge(stmt.ranges, stmt.body)
        return Reduce(ranges, tuple(map(_nest, body)), stmt.accumulators)
    if isinstance(stmt, Scan):
        return replace(stmt, body=tuple(map(_nest, stmt.body)), then=tuple(map(_nest, stmt.then)))
    return stmt
