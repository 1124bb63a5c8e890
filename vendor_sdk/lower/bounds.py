"""Checks of indices that cannot fail are left out.

Where a pixel of an enlarged image comes from follows from where it stands: numbers of a loop, scaled, rounded and cut. Whoever
wrote the index knew that it lies inside; here it is proved, from the ranges of the loops through the arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Const, Index, Nest, Reduce, Scan, Stmt, makes, walk
from vendor_sdk.ir.loop_ops import OPS
from vendor_sdk.ir.ranges import renamed

Interval = tuple[float, float]
"""The smallest and the largest number that a value can be, both finite; it is no NaN."""

ROUNDED = frozenset(("add", "sub", "mul", "div"))
"""Ops whose floating point results a compiler may compute with another rounding, as a part of a fused one, or a division from a
reciprocal."""
DIGITS = 4
"""Units in the last place by which they may differ for it: more than any row's bound."""
MONOTONE = ROUNDED | {"neg", "max", "min", "fmax", "fmin", "floor", "ceil", "trunc", "round", "convert"}
"""Ops that grow, or fall, with each operand while the others stay: over intervals, extremes lie at the ends."""
DTYPES = (torch.int64, torch.float32, torch.float64)
FARTHEST = 2.0**52
"""Of numbers up to here, float64 holds all whole ones, and int64 their sums and differences."""


def proved(nest: Nest) -> Nest:
    """``nest`` without the checks of indices that are always inside."""
    checks = [s for s in walk((nest,)) if isinstance(s, Compute) and s.op == "wrap_index"]
    if not checks:
        return nest
    made = [name for s in walk((nest,)) for name in makes(s)]
    if len(set(made)) < len(made):
        return nest  # A name stands for different values in different loops.
    known = _intervals(nest)
    needless: dict[str, str] = {}
    for s in checks:
        place, size = (known.get(arg) for arg in s.args)
        if place is not None and size is not None and place[0] >= 0 and place[1] < size[0]:
            needless[s.to] = s.args[0]
    if not needless:
        return nest
    for to, arg in needless.items():  # in program order, so that what stands for an operand is known
        needless[to] = needless.get(arg, arg)
    found = renamed(replace(nest, body=_without(nest.body, needless)), needless)
    assert isinstance(found, Nest)
    return found


def _without(body: Sequence[Stmt], names: Mapping[str, str]) -> tuple[Stmt, ...]:
    found: list[Stmt] = []
    for s in body:
        if isinstance(s, Compute) and s.to in names:
            continue
        if isinstance(s, Scan):
            found.append(replace(s, body=_without(s.body, names), then=_without(s.then, names)))
        elif isinstance(s, Nest | Reduce):
            found.append(replace(s, body=_without(s.body, names)))
        else:
            found.append(s)
    return tuple(found)


def _intervals(nest: Nest) -> dict[str, Interval]:
    """What the values of a nest can be, where that is known."""
    known: dict[str, Interval] = {}
    dtypes: dict[str, torch.dtype] = {}
    for s in walk((nest,)):
        if isinstance(s, Const | Index | Compute) and s.dtype in DTYPES:
            found = _interval(s, known, dtypes)
            if found is not None:
                known[s.to], dtypes[s.to] = found, s.dtype
    return known


def _interval(s: Const | Index | Compute, known: Mapping[str, Interval], dtypes: Mapping[str, torch.dtype]) -> Interval | None:
    if isinstance(s, Const):
        return _finite(s.value, s.value)
    if isinstance(s, Index):
        low, high = ix.bounds(s.index)
        return None if low is None or high is None else _finite(low, high)
    if s.op not in MONOTONE or any(arg not in known for arg in s.args):
        return None
    operands = [known[arg] for arg in s.args]
    if s.op == "div" and operands[1][0] <= 0 <= operands[1][1]:
        return None
    if s.op == "mul" and math.prod(max(map(abs, ends)) for ends in operands) > FARTHEST:
        return None
    ends = zip(*itertools.product(*operands), strict=True)
    corners = [torch.tensor(each, dtype=dtype) for each, dtype in zip(ends, map(dtypes.__getitem__, s.args), strict=True)]
    options = {"dtype": s.dtype} if OPS[s.op].result == "given" else {}
    results = OPS[s.op].reference(*corners, **options)
    if s.op in ROUNDED and s.dtype.is_floating_point:
        off = DIGITS * torch.finfo(s.dtype).eps * results.abs() + torch.finfo(s.dtype).tiny
        results = torch.cat((results - off, results + off))
    return _finite(results.min().item(), results.max().item())


def _finite(low: float, high: float) -> Interval | None:
    return (low, high) if -FARTHEST <= low <= high <= FARTHEST else None
