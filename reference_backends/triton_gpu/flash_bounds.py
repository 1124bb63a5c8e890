"""What a mask says of whole blocks, in Triton: bounds of its conditions over the rows and keys of a block.

A value of rows alone, or of keys alone, has its least and largest: where it grows with the position at the first and the last
one, otherwise it is computed for each. What follows from both is bounded by these, as in interval arithmetic (Moore, Kearfott
and Cloud, "Introduction to Interval Analysis", 2009, chapter 5). Of windows, documents and padding that decides nearly every
block without looking at its elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from reference_backends.triton_gpu import indices
from reference_backends.triton_gpu.statements import R, Statements, X
from vendor_sdk import index, loop

Pair = tuple[str, str]
"""The texts of a lower and an upper bound; of a bool, whether it holds everywhere, and whether it may anywhere."""

UNKNOWN: Pair = ("tl.full([], 0, tl.int1)", "tl.full([], 1, tl.int1)")
"""What is known of any bool."""
COMPARED: Mapping[str, Pair] = {
    "lt": ("{0[1]} < {1[0]}", "{0[0]} < {1[1]}"),
    "le": ("{0[1]} <= {1[0]}", "{0[0]} <= {1[1]}"),
    "gt": ("{0[0]} > {1[1]}", "{0[1]} > {1[0]}"),
    "ge": ("{0[0]} >= {1[1]}", "{0[1]} >= {1[0]}"),
    "eq": (
        "({0[0]} == {0[1]}) & ({1[0]} == {1[1]}) & ({0[0]} == {1[0]})",
        "({0[0]} <= {1[1]}) & ({1[0]} <= {0[1]})",
    ),
    "ne": (
        "({0[0]} > {1[1]}) | ({1[0]} > {0[1]})",
        "({0[0]} != {0[1]}) | ({1[0]} != {1[1]}) | ({0[0]} != {1[0]})",
    ),
}
"""Comparisons of whole numbers. (A float may be no number, of which nothing holds.)"""
JOINED: Mapping[str, Pair] = {
    "bitand": ("{0[0]} & {1[0]}", "{0[1]} & {1[1]}"),
    "bitor": ("{0[0]} | {1[0]}", "{0[1]} | {1[1]}"),
    "bitnot": ("{0[1]} == 0", "{0[0]} == 0"),
    "where": (
        "({0[0]} & {1[0]}) | (({0[1]} == 0) & {2[0]}) | ({1[0]} & {2[0]})",
        "({0[1]} & {1[1]}) | (({0[0]} == 0) & {2[1]})",
    ),
}
"""Operations on bools."""
COUNTED: Mapping[str, Pair] = {
    "neg": ("-{0[1]}", "-{0[0]}"),
    "abs": ("tl.maximum(tl.maximum({0[0]}, -{0[1]}), 0)", "tl.maximum({0[1]}, -{0[0]})"),
    "add": ("{0[0]} + {1[0]}", "{0[1]} + {1[1]}"),
    "sub": ("{0[0]} - {1[1]}", "{0[1]} - {1[0]}"),
}
"""Operations on positions: nothing that is read from memory, which might be too large for sums."""


class Bounds:
    """Adds to ``elements`` the bounds of values that vary along both axes; other values are computed for each element.

    Keys lie as (blocks, keys of each) and rows as (rows, 1), or the other way round: ``ROW`` is the axis of a block's rows.
    """

    def __init__(self, elements: Statements, rows: str, keys: str) -> None:
        self.elements = elements
        self.variables = {X: rows, R: keys}
        self.looks = False
        """Whether anything is computed for each row or key."""
        self.positions: dict[str, index.Int] = {}
        """Of values that are positions along one axis."""
        self.pairs: dict[str, Pair | None] = {}
        """Of values along both axes; None: nothing is known."""
        self.extremes: dict[str, Pair] = {}
        """Of values along one axis, as far as asked for."""
        self.counts: set[str] = set()
        """Values made of positions and constants alone."""

    def body(self, body: Sequence[loop.Stmt]) -> None:
        for s in body:
            (name,) = loop.makes(s)
            if isinstance(s, loop.Index | loop.Const) or (isinstance(s, loop.Compute) and self.counts.issuperset(s.args)):
                self.counts.add(name)
            expressions = [s.index] if isinstance(s, loop.Index | loop.Load) else []
            varies = self.elements.varies([*loop.reads(s), *(n for e in expressions for n in self._symbols(e))])
            if varies < X | R and self.pairs.keys().isdisjoint(loop.reads(s)):
                if isinstance(s, loop.Index):
                    self.positions[name] = index.substitute(s.index, self.elements.places)
                self.elements.statement(s)
            else:
                self.elements.axes[name], self.elements.types[name] = X | R, s.dtype  # type: ignore[union-attr]
                self.pairs[name] = self._pair(name, s)

    def holds(self, name: str) -> Pair:
        """Whether a bool holds everywhere, and whether it may anywhere."""
        return self._of(name) or UNKNOWN

    def _symbols(self, expression: index.Int) -> list[str]:
        return list(index.symbols(index.substitute(expression, self.elements.places)))

    def _pair(self, name: str, s: loop.Stmt) -> Pair | None:
        if isinstance(s, loop.Index):
            return self._position(name, s.index)
        if not isinstance(s, loop.Compute):
            return None
        types = {self.elements.types[arg] for arg in s.args}
        if types == {torch.bool}:
            texts, bounds = JOINED.get(s.op), [self.holds(arg) for arg in s.args]
        else:
            whole = not any(t.is_floating_point or t == torch.bool for t in types)
            known = [self._of(arg) for arg in s.args]
            bounds = [pair for pair in known if pair is not None]
            if not whole or len(bounds) < len(known):
                return None
            texts = COMPARED.get(s.op)
            if texts is None and name in self.counts and types | {s.dtype} == {torch.int64}:
                texts = COUNTED.get(s.op)
        return None if texts is None else self._named(name, (texts[0].format(*bounds), texts[1].format(*bounds)))

    def _position(self, name: str, expression: index.Int) -> Pair | None:
        """Bounds of a sum of what rows and what keys give."""
        parts = {X: index.ZERO, R: index.ZERO}
        placed = index.substitute(expression, self.elements.places)
        for term in (*(index.wrap_atom(atom) * times for atom, times in placed.terms), index.wrap(placed.constant)):
            axes = self.elements.varies(index.symbols(term))
            if axes == X | R:
                return None
            parts[axes or X] += term
        found = []
        for axes, part in parts.items():
            of_part = f"{name}_of_{'rows' if axes == X else 'keys'}"
            self.positions[of_part] = part
            self.elements.once(of_part, indices.value(part), torch.int64, self.elements.varies(index.symbols(part)))
            found.append(self._along(of_part))
        (low, high), (other_low, other_high) = found
        return self._named(name, (f"{low} + {other_low}", f"{high} + {other_high}"))

    def _of(self, name: str) -> Pair | None:
        """Bounds of a value over a block."""
        return self.pairs[name] if name in self.pairs else self._along(name)

    def _along(self, name: str) -> Pair:
        """Those of a value that varies along one axis, or none."""
        axes = self.elements.axes[name]
        if not axes:
            return self.elements.same(name), self.elements.same(name)
        if name not in self.extremes:
            self.extremes[name] = self._named(name, self._ends(name, axes) or self._looked(name, axes))
        return self.extremes[name]

    def _ends(self, name: str, axes: frozenset[str]) -> Pair | None:
        """Of a position that grows, or falls, with the row or key: what it is at the first and the last one."""
        variable = self.variables[axes]
        grows = _grows(self.positions[name], variable) if name in self.positions else None
        if grows is None:
            return None
        ends = [index.symbol(f"{variable}_{end}", lower=0) for end in ("first", "last")]
        low, high = (indices.value(index.substitute(self.positions[name], {variable: end})) for end in ends)
        return (low, high) if grows > 0 else (high, low)

    def _looked(self, name: str, axes: frozenset[str]) -> Pair:
        self.looks = True
        value, flag = self.elements.same(name), self.elements.types[name] == torch.bool
        axis, wide, back = (
            "ROW" if axes == X else "1 - ROW",
            f"{value}.to(tl.int32)" if flag else value,
            " != 0" if flag else "",
        )
        least, most = (f"tl.{extreme}({wide}, {axis}, keep_dims=True){back}" for extreme in ("min", "max"))
        return least, most

    def _named(self, name: str, texts: Pair) -> Pair:
        pair = f"{name}_least", f"{name}_most"
        for to, text in zip(pair, texts, strict=True):
            self.elements.out(f"{to} = {text}")
        return pair


def _grows(expression: index.Int, variable: str) -> int | None:
    """1 where an expression never falls as ``variable`` grows, -1 where it never grows, 0 where it is the same; None: nobody
    knows."""
    found = set()
    for atom, times in expression.terms:
        if variable not in index.symbols(index.wrap_atom(atom)):
            continue
        if isinstance(atom, index.Symbol):
            found.add(1 if times > 0 else -1)
        elif isinstance(atom, index.Div) and (atom.key[1].value or 0) > 0:
            inside = _grows(atom.key[0], variable)
            if inside is None:
                return None
            found.add(inside if times > 0 else -inside)
        else:
            return None
    found.discard(0)
    return None if len(found) > 1 else found.pop() if found else 0
