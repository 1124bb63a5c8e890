"""Sums of which one term alone may count: ``sum over r of (r == t ? x : 0)`` is ``x`` where ``t`` is one of the positions, and
zero elsewhere. No loop is needed. The gradient of a cross entropy has such sums: each row has one label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Const, Index, Nest, Reduce, Scan, Stmt, makes
from vendor_sdk.lower.build import TRAPS


def picked(body: Sequence[Stmt], around: Mapping[str, Any] = MappingProxyType({})) -> tuple[Stmt, ...]:
    """``body`` with the terms of such sums instead of the sums; ``around``: constants of outer bodies."""
    known = {**around, **{s.to: s.value for s in body if isinstance(s, Const)}}
    found: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Reduce) and (term := _term(stmt, known)) is not None:
            found += term
        elif isinstance(stmt, Nest | Reduce):
            found.append(replace(stmt, body=picked(stmt.body, known)))
        elif isinstance(stmt, Scan):
            found.append(replace(stmt, body=picked(stmt.body, known), then=picked(stmt.then, known)))
        else:
            found.append(stmt)
    return tuple(found)


def _term(loop: Reduce, known: Mapping[str, Any]) -> list[Stmt] | None:
    """What stands for a loop; None where it must stay."""
    if len(loop.ranges) != 1 or any(a.op != "sum" for a in loop.accumulators):
        return None
    (r,) = loop.ranges
    own = {name for stmt in loop.body for name in makes(stmt)}
    positions: dict[str, ix.Int] = {}
    """Names of positions, and where these begin."""
    elsewhere = dict(known)
    """Values at positions that are not picked, where known."""
    chosen: Compute | None = None
    for stmt in loop.body:
        if isinstance(stmt, Const):
            elsewhere[stmt.to] = stmt.value
        elif isinstance(stmt, Index):
            step = ix.stride(stmt.index, r.var)
            if step is None or step != 1:
                return None
            positions[stmt.to] = ix.substitute(stmt.index, {r.var: ix.ZERO})
        elif not isinstance(stmt, Compute) or stmt.op in TRAPS:  # of no iterations, none reports
            return None
        elif positions.keys() & set(stmt.args):
            (label,) = set(stmt.args) - positions.keys() or {""}
            if chosen is not None or stmt.op != "eq" or not label or label in own:
                return None
            chosen, elsewhere[stmt.to] = stmt, False
        else:
            elsewhere[stmt.to] = _known(stmt, elsewhere)
    terms = [a.args[0] for a in loop.accumulators]
    if chosen is None or any(type(elsewhere.get(term)) is not float or elsewhere[term] != 0 for term in terms):
        return None
    found: list[Stmt] = []
    for stmt in loop.body:
        if stmt is chosen:
            (position,) = positions.keys() & set(chosen.args)
            (label,) = set(chosen.args) - {position}
            found += _within(chosen.to, label, positions[position], r.size)
        elif not isinstance(stmt, Index):
            found.append(stmt)
    for a in loop.accumulators:
        zero = f"{a.to[0]}z"
        found += [Const(zero, 0.0, a.dtype), Compute(a.to[0], "add", (zero, *a.args), a.dtype)]
    return found


def _within(to: str, label: str, first: ix.Int, count: ix.Int) -> list[Stmt]:
    """Whether ``label`` is one of ``count`` positions from ``first`` on."""
    low, high, above, below = (f"{to}{part}" for part in ("f", "l", "a", "b"))
    return [
        Index(low, first),
        Index(high, first + count),
        Compute(above, "ge", (label, low), torch.bool),
        Compute(below, "lt", (label, high), torch.bool),
        Compute(to, "bitand", (above, below), torch.bool),
    ]


def _known(stmt: Compute, values: dict[str, Any]) -> Any:
    """What an op gives, as far as its known operands say."""
    args = [values.get(name) for name in stmt.args]
    if stmt.op == "where" and args[0] is not None:
        return args[1] if args[0] else args[2]
    if stmt.op == "bitand" and any(arg is False for arg in args):
        return False
    if stmt.op == "convert" and args[0] == 0 and stmt.dtype.is_floating_point:
        return 0.0
    return None
