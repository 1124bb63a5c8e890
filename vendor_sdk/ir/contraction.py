"""Contractions, found in plain nests: the view of a matrix product that an emitter with a template for it works from.

A contraction is no statement of the loop IR. It is a nest whose one reduction sums products of two factors,

    Nest(batch, m, n){ Reduce(k){ left(batch, m, k) * right(batch, n, k) } ; epilogue ; Store }

so the interpreter of nests defines it, and nests that were fused (producers inlined into a factor, consumers after the
reduction) are contractions as long as they keep that form. ``match`` says whether a nest has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Const, Index, Load, Nest, Range, Reduce, Scalar, Stmt, Store, reads
from vendor_sdk.ir.quotients import cut
from vendor_sdk.ir.ranges import merge


@dataclass(frozen=True)
class Factor:
    """One factor of the product, a pure function of its loop variables.

    Attributes:
        free: the ranges m (of the left factor) or n (of the right one). Ranges that this factor walks as one are merged: the
            row-major position over them is the same as over the nest's.
        reduced: the ranges k, merged in the same way.
        body: statements without loops or stores.
        value: the name of the factor among them.
    """

    free: tuple[Range, ...]
    reduced: tuple[Range, ...]
    body: tuple[Stmt, ...]
    value: str


@dataclass(frozen=True)
class Contraction:
    """A nest as a batch of matrix products.

    Attributes:
        batch, m, n, k: ranges, in the order of the nest and of its reduction; each group's row-major position counts its
            iterations. One of ``m`` and ``n`` may be empty: a product of a matrix and a vector.
        left, right: the factors; ``left`` does not depend on ``n``, ``right`` not on ``m``.
        dtype: of the factors and of the sum.
        total: name of the sum in the epilogue.
        rows, columns: ``m`` and ``n`` as the epilogue walks them, merged where it can.
        epilogue: statements after the sum, stores included; they may read ``total``.
    """

    batch: tuple[Range, ...]
    m: tuple[Range, ...]
    n: tuple[Range, ...]
    k: tuple[Range, ...]
    left: Factor
    right: Factor
    dtype: torch.dtype
    total: str
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    epilogue: tuple[Stmt, ...]

    @property
    def is_matrix_product(self) -> bool:
        """Whether both factors are matrices; otherwise one is a vector, and a plain reduction does the job too."""
        return bool(self.m and self.n)

    def exchanged(self) -> Contraction:
        """The same nest with its factors in the other order: the product of the transposes."""
        return replace(self, m=self.n, n=self.m, left=self.right, right=self.left, rows=self.columns, columns=self.rows)


def match(nest: Nest) -> Contraction | None:
    """``nest`` as a contraction, or None when it is none."""
    reductions = [s for s in nest.body if isinstance(s, Reduce)]
    if len(reductions) != 1:
        return None
    reduction = reductions[0]
    around = [s for s in nest.body if s is not reduction]
    if not all(map(_plain, (*around, *reduction.body))) or any(isinstance(s, Store) for s in reduction.body):
        return None
    stores = [s for s in around if isinstance(s, Store)]
    if len(reduction.accumulators) != 1 or any(s.mode != "set" for s in stores):
        return None
    accumulator = reduction.accumulators[0]
    product = next((s for s in reduction.body if isinstance(s, Compute) and s.to == accumulator.args[0]), None)
    if accumulator.op != "sum" or product is None or product.op != "mul":
        return None
    total = accumulator.to[0]
    before = [*around, *reduction.body]
    bodies = [needed(before, (arg,)) for arg in product.args]
    left, right = (frozenset().union(*map(reads, body)) for body in bodies)
    m = tuple(r for r in nest.ranges if r.var in left and r.var not in right)
    n = tuple(r for r in nest.ranges if r.var in right and r.var not in left)
    if not (m or n):
        return None
    batch = tuple(r for r in nest.ranges if r not in m and r not in n)
    tail = needed(around, [name for s in stores for name in reads(s)], stores)
    rows, tail = merge(m, tail)
    columns, tail = merge(n, tail)
    return Contraction(
        batch,
        m,
        n,
        reduction.ranges,
        _factor(m, reduction.ranges, bodies[0], product.args[0]),
        _factor(n, reduction.ranges, bodies[1], product.args[1]),
        accumulator.dtype,
        total,
        rows,
        columns,
        tail,
    )


def affine(factor: Factor, least: int) -> Factor:
    """The factor with its ranges cut where dimensions of at least so many iterations end, if its loads are affine in what is
    inside of these then: what lies in several dimensions is filled in stretches. Row-major positions stay."""
    free, body = _cut(factor.free, factor.body, least)
    reduced, body = _cut(factor.reduced, body, least)
    return replace(factor, free=free, reduced=reduced, body=body)


def _cut(ranges: tuple[Range, ...], body: tuple[Stmt, ...], least: int) -> tuple[tuple[Range, ...], tuple[Stmt, ...]]:
    found: list[Range] = []
    for r in ranges:
        more, body = cut(r, body, least, near=False)
        if len(more) > 1:
            more, body = _cut(more, body, least)
        found += more
    return tuple(found), body


def _factor(free: tuple[Range, ...], reduced: tuple[Range, ...], body: tuple[Stmt, ...], value: str) -> Factor:
    free, body = merge(free, body)
    reduced, body = merge(reduced, body)
    return Factor(free, reduced, body, value)


def _plain(stmt: Stmt) -> bool:
    return isinstance(stmt, Load | Const | Scalar | Index | Compute | Store)


def needed(body: Sequence[Stmt], names: Iterable[str], always: Collection[Stmt] = ()) -> tuple[Stmt, ...]:
    """The statements of a body without loops that ``names`` need, and those of ``always``, in order."""
    wanted = set(names)
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if stmt in always or (not isinstance(stmt, Store) and stmt.to in wanted):  # type: ignore[union-attr]
            kept.append(stmt)
            wanted.update(reads(stmt))
    return tuple(reversed(kept))


def sizes(ranges: Iterable[Range]) -> ix.Int:
    """How many iterations ``ranges`` have together."""
    return ix.product(r.size for r in ranges)
