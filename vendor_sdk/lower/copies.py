"""Copies of a body for several values of its loop variables, one after the other in one body.

What several copies compute alike is computed once; what is known for all iterations of a copy (comparisons of positions, masks
that always hold) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Compute, Const, Index, Load, Scalar, Stmt, Store
from vendor_sdk.ir.ranges import renamed

CHAINS: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""Reductions, and what combines their operands."""
UNKNOWN = ix.symbol("unknown")
Leaf = Load | Const | Scalar | Index | Compute
"""Statements that make one value."""


def integers(body: Sequence[Stmt]) -> dict[str, Int]:
    """What is known of int64 values of a body."""
    found = {s.to: s.index for s in body if isinstance(s, Index)}
    return found | {s.to: ix.wrap(int(s.value)) for s in body if isinstance(s, Const) and s.dtype == torch.int64}


@dataclass
class Copies:
    """A body under construction.

    Attributes:
        integers: what is known of int64 values.
        truths: of bools.
        values: names by what computes them.
        written: params that are stored, whose loads stay where they are.
    """

    integers: dict[str, Int]
    written: set[str]
    body: list[Stmt] = field(default_factory=list)
    truths: dict[str, bool] = field(default_factory=dict)
    values: dict[Any, str] = field(default_factory=dict)

    def add(self, stmt: Stmt, names: dict[str, str], suffix: str, moved: Mapping[str, Int] = {}) -> None:
        """Appends a statement of a copy, if it is not there already.

        Args:
            names: what values of the copy are called; learns its own.
            suffix: of names, which no other copy has.
            moved: what stands for loop variables.
        """
        stmt = renamed(stmt, names, moved)
        if isinstance(stmt, Store):
            truth = self.truths.get(stmt.mask or "")
            if truth is not False:
                self.body.append(replace(stmt, mask=None) if truth else stmt)
            return
        assert isinstance(stmt, Leaf)
        original = stmt.to
        same, stmt = self.simpler(stmt)
        if same is not None:
            names[original] = same
            return
        key = repr(replace(stmt, to="")) if isinstance(stmt, Const) else replace(stmt, to="")
        if not (isinstance(stmt, Load) and stmt.param in self.written):
            if key in self.values:
                names[original] = self.values[key]
                return
            self.values[key] = original + suffix
        names[original] = original + suffix
        stmt = replace(stmt, to=original + suffix)
        self.body.append(stmt)
        self.integers.update(integers((stmt,)))
        if isinstance(stmt, Const) and stmt.dtype == torch.bool:
            self.truths[stmt.to] = bool(stmt.value)

    def simpler(self, stmt: Leaf) -> tuple[str | None, Leaf]:
        """A value that is the same as a statement's, or the statement with less in it."""
        if isinstance(stmt, Index) and stmt.index.value is not None:
            return None, Const(stmt.to, stmt.index.value, torch.int64)
        if isinstance(stmt, Load) and stmt.mask in self.truths:
            return (None, replace(stmt, mask=None, other=None)) if self.truths[stmt.mask] else (stmt.other, stmt)
        if not isinstance(stmt, Compute):
            return None, stmt
        if stmt.op == "convert" and stmt.dtype == torch.int32:
            number = self.integers.get(stmt.args[0], UNKNOWN).value
            if number is not None and -(2**31) <= number < 2**31:
                return None, Const(stmt.to, number, torch.int32)
        if stmt.op == "where" and stmt.args[0] in self.truths:
            return stmt.args[1 if self.truths[stmt.args[0]] else 2], stmt
        if stmt.op in ("bitand", "bitor") and stmt.dtype == torch.bool:
            neutral = stmt.op == "bitand"
            for one, other in (stmt.args, stmt.args[::-1]):
                if one in self.truths:
                    return (other if self.truths[one] is neutral else one), stmt
        if stmt.op == "bitnot" and stmt.args[0] in self.truths:
            return None, Const(stmt.to, not self.truths[stmt.args[0]], torch.bool)
        if len(stmt.args) == 2 and all(name in self.integers for name in stmt.args):
            truth = decided(stmt.op, *(self.integers[name] for name in stmt.args))
            if truth is not None:
                return None, Const(stmt.to, truth, torch.bool)
        return None, stmt


def decided(op: str, left: Int, right: Int) -> bool | None:
    """What a comparison of two expressions gives, whatever the values of their variables; None: that depends."""
    if op in ("gt", "ge"):
        left, right, op = right, left, {"gt": "lt", "ge": "le"}[op]
    apart = right - left
    if op in ("lt", "le"):
        least = int(op == "lt")
        return True if ix.nonnegative(apart - least) else False if ix.nonnegative(-apart - (1 - least)) else None
    if op in ("eq", "ne"):
        equal = True if apart == ix.ZERO else False if ix.nonnegative(apart - 1) or ix.nonnegative(-apart - 1) else None
        return equal if equal is None or op == "eq" else not equal
    return None
