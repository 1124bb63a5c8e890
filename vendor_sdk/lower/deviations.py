"""Sums of squared deviations of values that an earlier reduction sums: the two reductions of a variance."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Compute, Const, Index, Load, Nest, Param, Reduce, Scalar, Store, makes, walk
from vendor_sdk.lower.alike import meaning


def deviations(nest: Nest) -> list[Deviations]:
    """Those of a nest, each late reduction once."""
    written = {s.param for s in walk(nest.body) if isinstance(s, Store)}
    reductions = [s for s in nest.body if isinstance(s, Reduce)]
    found = []
    for k, late in enumerate(reductions):
        for early in reductions[:k]:
            pair = _deviating(early, late, written)
            if pair is not None:
                found.append(Deviations(early, late, *pair))
                break
    return found


@dataclass(frozen=True)
class Counted:
    """How ``total`` values are divided into ``parts``, of ``size`` each at most."""

    total: Int
    parts: Int
    size: Int
    apart: bool

    def of(self, p: Int) -> Int:
        """How many values part ``p`` has, or a negative number for none."""
        if self.total == self.size * self.parts:
            return self.size
        if self.apart:
            return (self.total - p + (self.parts - 1)) // self.parts
        return ix.minimum(self.size, self.total - p * self.size)


@dataclass
class Deviations:
    """A reduction ``late`` that sums squared deviations from ``center`` of what ``early`` sums as ``value``.

    Attributes:
        scratch: of the parts' first values, of how far their means are from these (where parts stay at hand: their sums), and
            of squared deviations from their means.
        counted: how many values they have.
    """

    early: Reduce
    late: Reduce
    value: str
    center: str
    scratch: list[Param] = field(init=False)
    counted: Counted = field(init=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.late.accumulators[0].dtype


def _deviating(early: Reduce, late: Reduce, written: set[str]) -> tuple[str, str] | None:
    """The value in ``early`` whose sum it finds, and what ``late`` sums the squared deviations from, of just that value."""
    if len(late.accumulators) != 1 or [r.size for r in early.ranges] != [r.size for r in late.ranges]:
        return None
    if not all(isinstance(s, Load | Const | Scalar | Index | Compute) for s in (*early.body, *late.body)):
        return None
    (total,) = late.accumulators
    there = {name: s for s in late.body for name in makes(s)}
    square = there.get(total.args[0])
    if total.op != "sum" or not (isinstance(square, Compute) and square.op == "mul" and square.args[0] == square.args[1]):
        return None
    gap = there.get(square.args[0])
    if not (isinstance(gap, Compute) and gap.op == "sub") or gap.args[1] in there:
        return None
    variables = {a.var: ix.variable(b.var, b.size) for a, b in zip(late.ranges, early.ranges, strict=True)}
    value = meaning(gap.args[0], there, variables, written)
    here = {name: s for s in early.body for name in makes(s)}
    for a in early.accumulators:
        if (a.op, a.dtype) == ("sum", total.dtype) and value is not None and meaning(a.args[0], here, {}, written) == value:
            return a.args[0], gap.args[1]
    return None
