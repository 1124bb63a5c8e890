"""Long inner loops of few iterations, divided among more of them: for devices that want thousands of iterations at once.

``split(kernel, position, parts)`` replaces a nest by one nest for each of its long inner loops, over the nest's own ranges and
``parts``, and one for what remains. A part of a reduction leaves its result in a scratch buffer; whatever reads the reduction
combines the parts' results first. The order of combination is part of the kernel, so results do not depend on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    Local,
    LoopKernel,
    Nest,
    Param,
    Range,
    Reduce,
    Scan,
    Stmt,
    Store,
    loop_variables,
    makes,
    walk,
)
from vendor_sdk.ir.loop_ops import COMBINE
from vendor_sdk.ir.ranges import renamed, substitute
from vendor_sdk.lower.simplify import live

LINE = 16
"""Elements of which a line of memory and whole vectors hold a multiple, whatever their type. So many apart lie rows of partial
results; parts side by side, but for the last, have as many iterations, so that all begin with a vector if the first does."""


def long_loops(nest: Nest) -> list[Reduce | Nest]:
    """The inner loops of a nest that may be split: none where others than reductions and maps over memory stand beside them."""
    loops = [s for s in nest.body if isinstance(s, Reduce | Nest | Scan)]
    if any(isinstance(s, Local) or (isinstance(s, Store) and s.mode != "set") for s in walk(nest.body)):
        return []
    plain = all(
        not isinstance(s, Scan) and s.ranges and not any(isinstance(t, Reduce | Nest | Scan) for t in s.body) for s in loops
    )
    return [s for s in loops if isinstance(s, Reduce | Nest)] if plain else []


def split(kernel: LoopKernel, position: int, parts: Int | int, *, apart: bool = False) -> LoopKernel:
    """``kernel`` with the inner loops of nest ``position`` divided into ``parts``, where ``long_loops`` finds any.

    Args:
        apart: whether a part's iterations lie as far apart as there are parts, instead of side by side.
    """
    nest = kernel.body[position]
    loops = long_loops(nest)
    if not loops:
        return kernel
    return _Split(kernel, position, nest, ix.wrap(parts), apart).run()


class _Split:
    def __init__(self, kernel: LoopKernel, position: int, nest: Nest, parts: Int, apart: bool) -> None:
        self.kernel, self.position, self.nest, self.parts, self.apart = kernel, position, nest, parts, apart
        self.taken = {name for s in walk(kernel.body) for name in (*makes(s), *loop_variables(s))}
        self.taken |= {p.name for p in (*kernel.params, *kernel.scratch)} | {s.name for s in kernel.symbols}
        self.scratch: list[Param] = []
        self.nests: list[Nest] = []
        outer = ix.ZERO
        for r in nest.ranges:
            outer = outer * r.size + ix.variable(r.var, r.size)
        self.outer = outer
        self.count = ix.product([r.size for r in nest.ranges])

    def fresh(self, prefix: str) -> str:
        number = 0
        while f"{prefix}{number}" in self.taken:
            number += 1
        self.taken.add(f"{prefix}{number}")
        return f"{prefix}{number}"

    def run(self) -> LoopKernel:
        before: list[Stmt] = []
        """What statements after this point may read: scalars, and reductions of the parts' results."""
        stores: list[Stmt] = []
        for s in self.nest.body:
            if isinstance(s, Reduce):
                before.append(self.reduction(s, before))
            elif isinstance(s, Nest):
                self.map(s, before)
            elif isinstance(s, Store):
                stores.append(s)
            else:
                before.append(s)
        if stores:
            self.add(self.nest.ranges, (*before, *stores))
        body = [*self.kernel.body]
        body[self.position : self.position + 1] = self.nests
        return replace(self.kernel, body=tuple(body), scratch=(*self.kernel.scratch, *self.scratch))

    def part_of(self, ranges: Sequence[Range], body: Sequence[Stmt]) -> tuple[Range, Range, list[Stmt], str | None]:
        """The range of parts, that of a part's iterations, the body there, and the value that says whether one counts."""
        total = ix.product([r.size for r in ranges])
        size = (total + (self.parts - 1)) // self.parts
        if not self.apart and total != size * self.parts:
            size = (size + (LINE - 1)) // LINE * LINE
        part, inner = Range(self.fresh("p"), self.parts), Range(self.fresh("q"), size)
        p, q = (ix.variable(r.var, r.size) for r in (part, inner))
        flat = q * self.parts + p if self.apart else p * size + q
        ragged = total != size * self.parts
        # Positions count below the total, which a part's own arithmetic does not tell.
        places: dict[str, Int] = {}
        rest = flat
        for k, r in reversed(list(enumerate(ranges))):
            places[r.var] = rest % r.size if k else rest
            rest = rest // r.size
        moved = substitute(tuple(body), places)
        if not ragged:
            return part, inner, list(moved), None
        here, end, inside = self.fresh("v"), self.fresh("v"), self.fresh("v")
        test: list[Stmt] = [Index(here, flat), Index(end, total), Compute(inside, "lt", (here, end), torch.bool)]
        return part, inner, test + [t for s in moved for t in self.guarded(s, inside)], inside

    def guarded(self, s: Stmt, inside: str) -> list[Stmt]:
        """A statement that touches memory only where ``inside`` holds."""
        if not isinstance(s, Load | Store):
            return [s]
        if s.mask is None:
            if isinstance(s, Store):
                return [replace(s, mask=inside)]
            other = self.fresh("v")
            return [Const(other, 0, s.dtype), replace(s, mask=inside, other=other)]
        both = self.fresh("v")
        return [Compute(both, "bitand", (inside, s.mask), torch.bool), replace(s, mask=both)]

    def reduction(self, s: Reduce, before: Sequence[Stmt]) -> Reduce:
        """Adds the nest of the parts. Returns the reduction over their results."""
        part, inner, body, inside = self.part_of(s.ranges, s.body)
        accumulators, stores, loads, joined = [], [], [], []
        q = Range(self.fresh("q"), self.parts)
        for a in s.accumulators:
            dtypes = a.dtypes
            args = a.args
            if inside is not None:
                nothing = COMBINE[a.op].nothing(a.dtype)
                args = tuple(self.chosen(body, inside, *each) for each in zip(a.args, nothing, dtypes, strict=True))
            results = tuple(self.fresh("a") for _ in a.to)
            accumulators.append(Accumulator(results, a.op, args, a.dtype))
            read = []
            for result, dtype in zip(results, dtypes, strict=True):
                param = Param(self.fresh("part"), dtype, self.count * self.parts, "scratch")
                self.scratch.append(param)
                stores.append(Store(param.name, ix.variable(part.var, part.size) * self.count + self.outer, result))
                read.append(self.fresh("v"))
                loads.append(Load(read[-1], param.name, ix.variable(q.var, q.size) * self.count + self.outer, dtype))
            joined.append(Accumulator(a.to, a.op, tuple(read), a.dtype))
        partial = Reduce((inner,), tuple(body), tuple(accumulators))
        self.add((part, *self.nest.ranges), (*before, partial, *stores))
        return Reduce((q,), tuple(loads), tuple(joined))

    def chosen(self, body: list[Stmt], inside: str, value: str, worst: bool | int | float, dtype: torch.dtype) -> str:
        other, chosen = self.fresh("v"), self.fresh("v")
        body += [Const(other, worst, dtype), Compute(chosen, "where", (inside, value, other), dtype)]
        return chosen

    def map(self, s: Nest, before: Sequence[Stmt]) -> None:
        part, inner, body, _ = self.part_of(s.ranges, s.body)
        self.add((part, *self.nest.ranges), (*before, Nest((inner,), tuple(body))))

    def add(self, ranges: tuple[Range, ...], body: Sequence[Stmt]) -> None:
        """A nest of what the stores of ``body`` need. Values have names of their own in each nest."""
        kept = live(tuple(body), set())
        names = {name: self.fresh("w") for s in walk(kept) for name in makes(s)}
        self.nests.append(Nest(ranges, tuple(renamed(s, names) for s in kept)))
