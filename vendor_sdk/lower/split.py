"""Long inner loops of few iterations, divided among more of them: for devices that want thousands of iterations at once.

``split(kernel, position, parts)`` replaces a nest by one nest for each of its long inner loops, over the nest's own ranges and
``parts``, and one for what remains. A part of a reduction leaves its result in a scratch buffer; whatever reads the reduction
combines the parts' results first. The order of combination is part of the kernel, so results do not depend on the device.

A sum and a later sum of squared deviations of the same values, which a variance is, take one pass over memory rather than two:
each part sums squared deviations from its own mean, and what follows adds how far that mean is off (Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances", 1979). A part finds its mean's deviations in
passing, as differences from its first value: that is one of those it sums, so of ``n`` values the rounding errors are at most
``n`` times those of two passes, whatever the values are.

``together(kernel, position, parts)`` does the same in one nest over the parts of each iteration, whose operands then need not
be read again. Its iterations wait for what others store (``Heard``): it is for emitters that run all parts of a row at once,
and no interpreter takes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    reads,
    walk,
)
from vendor_sdk.ir.loop_ops import COMBINE
from vendor_sdk.ir.ranges import renamed, substitute
from vendor_sdk.lower.deviations import Counted, Deviations, deviations
from vendor_sdk.lower.simplify import live

LINE = 16
"""Elements of which a line of memory and whole vectors hold a multiple, whatever their type. So many apart lie rows of partial
results; parts side by side, but for the last, have as many iterations, so that all begin with a vector if the first does."""


@dataclass(frozen=True)
class Heard(Reduce):
    """A reduction over what all parts of a row found, in a nest of all of them: what it loads other iterations store."""


def long_loops(nest: Nest) -> list[Reduce | Nest]:
    """The inner loops of a nest that may be split: none where others than reductions and maps over memory stand beside them."""
    loops = [s for s in nest.body if isinstance(s, Reduce | Nest | Scan)]
    if any(isinstance(s, Local) or (isinstance(s, Store) and s.mode != "set") for s in walk(nest.body)):
        return []
    plain = all(
        not isinstance(s, Scan) and s.ranges and not any(isinstance(t, Reduce | Nest | Scan) for t in s.body) for s in loops
    )
    return [s for s in loops if isinstance(s, Reduce | Nest)] if plain else []


def split(
    kernel: LoopKernel,
    position: int,
    parts: Int | int,
    *,
    apart: bool = False,
    turn: int = 1,
    maps: Int | int | None = None,
) -> LoopKernel:
    """``kernel`` with the inner loops of nest ``position`` divided into ``parts``, where ``long_loops`` finds any.

    Args:
        apart: whether a part's iterations of a reduction lie as far apart as there are parts, instead of side by side.
        turn: how many of them are taken at once: parts that are not equally long have a multiple of it, of which those past the
            end do not count, so that nothing else ends inside of a turn.
        maps: into how many parts loops are divided that reduce nothing; as others where it is not given.
    """
    nest = kernel.body[position]
    loops = long_loops(nest)
    if not loops:
        return kernel
    return _Split(kernel, position, nest, ix.wrap(parts), apart, turn, ix.wrap(parts if maps is None else maps)).run()


def together(kernel: LoopKernel, position: int, parts: int) -> LoopKernel:
    """``kernel`` with the inner loops of nest ``position``, of which ``long_loops`` finds some, divided into ``parts`` in one
    nest, whose last range is that of the parts. Scratch buffers that it adds have an element for each iteration, in order.
    """
    return _Together(kernel, position, kernel.body[position], ix.wrap(parts)).run()


def _read(stmts: Sequence[Stmt]) -> set[str]:
    """Values that statements, and those inside them, read."""
    return {name for s in walk(tuple(stmts)) for name in reads(s)}


def zeros(body: Sequence[Stmt], inside: str) -> set[str]:
    """Values that are zero wherever ``inside`` does not hold, since nothing else is loaded there."""
    found: set[str] = set()
    for s in body:
        zero = False
        if isinstance(s, Const):
            zero = s.value == 0
        elif isinstance(s, Load):
            zero = s.mask == inside and s.other in found
        elif isinstance(s, Compute):
            zero = s.op in ("convert", "neg", "abs", "add", "sub", "mul") and found.issuperset(s.args)
        if zero:
            found.update(makes(s))
    return found


class _Split:
    def __init__(self, kernel: LoopKernel, position: int, nest: Nest, parts: Int, apart: bool, turn: int, maps: Int) -> None:
        self.kernel, self.position, self.nest, self.parts, self.apart, self.maps = kernel, position, nest, parts, apart, maps
        self.turn = turn
        self.taken = {name for s in walk(kernel.body) for name in (*makes(s), *loop_variables(s))}
        self.taken |= {p.name for p in (*kernel.params, *kernel.scratch)} | {s.name for s in kernel.symbols}
        self.scratch: list[Param] = []
        self.nests: list[Nest] = []
        self.combine: type[Reduce] = Reduce
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
        pairs = deviations(self.nest)
        for position, s in enumerate(self.nest.body):
            pair = next((each for each in pairs if s is each.late), None)
            if pair is None and isinstance(s, Reduce | Nest):
                before, stores = self.settled(before, stores, self.nest.body[position:])
            if pair is not None:
                before.append(self.joined_deviations(pair))
            elif isinstance(s, Reduce):
                before.append(self.reduction(s, before, [each for each in pairs if s is each.early]))
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

    def place(self, part: Int) -> Int:
        """Where a part's results lie."""
        return part * self.count + self.outer

    def settled(self, before: list[Stmt], stores: list[Stmt], rest: Sequence[Stmt]) -> tuple[list[Stmt], list[Stmt]]:
        """``before`` and ``stores`` of a loop, ``rest[0]``, and of what follows it: where that would combine the parts' results
        in every one of its iterations, a nest does so once, with the stores, and ``before`` reads what it found."""
        found: dict[str, torch.dtype] = {}
        """Values that follow from parts' results."""
        for each in before:
            if isinstance(each, Reduce):
                found.update((to, dtype) for a in each.accumulators for to, dtype in zip(a.to, a.dtypes, strict=True))
            elif isinstance(each, Compute) and found.keys() & {*reads(each)}:
                found[each.to] = each.dtype
        # One row's are read side by side, by all lanes at once.
        if self.count == 1 or not found.keys() & _read(rest[:1]):
            return before, stores
        again = [each for each in before if not found.keys() & {*makes(each)}]
        waiting = self.over_what_is_read(stores, again, rest)
        read = [name for name in found if name in _read((*rest, *waiting))]
        own = [Param(self.fresh("found"), found[name], self.count, "scratch") for name in read]
        self.scratch += own
        kept = [Store(param.name, self.outer, name) for param, name in zip(own, read, strict=True)]
        self.add(self.nest.ranges, (*before, *(s for s in stores if s not in waiting), *kept))
        loads = [Load(name, param.name, self.outer, param.dtype) for param, name in zip(own, read, strict=True)]
        return [*again, *loads], waiting

    def over_what_is_read(self, stores: Sequence[Stmt], again: Sequence[Stmt], rest: Sequence[Stmt]) -> list[Stmt]:
        """Stores that have to wait until the last nest: over operands that later nests load, or the waiting stores' values."""
        waiting: list[Stmt] = []
        while True:
            needed = live(tuple(again), _read((*rest, *waiting)))
            loaded = {each.param for each in walk((*needed, *rest)) if isinstance(each, Load)}
            found: list[Stmt] = [each for each in stores if isinstance(each, Store) and each.param in loaded]
            if found == waiting:
                return waiting
            waiting = found

    def part_of(
        self, ranges: Sequence[Range], body: Sequence[Stmt], parts: Int, *, apart: bool
    ) -> tuple[Range, Range, list[Stmt], str | None]:
        """The range of parts, that of a part's iterations, the body there, and the value that says whether one counts."""
        total = ix.product([r.size for r in ranges])
        size = (total + (parts - 1)) // parts
        if total != size * parts:
            step = self.turn if apart else math.lcm(self.turn, LINE)
            size = (size + (step - 1)) // step * step
        part, inner = Range(self.fresh("p"), parts), Range(self.fresh("q"), size)
        p, q = (ix.variable(r.var, r.size) for r in (part, inner))
        flat = q * parts + p if apart else p * size + q
        ragged = total != size * parts
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

    def reduction(self, s: Reduce, before: Sequence[Stmt], pairs: Sequence[Deviations]) -> Reduce:
        """Adds the nest of the parts, which sum the deviations of ``pairs`` too. Returns the reduction over their results."""
        part, inner, body, inside = self.part_of(s.ranges, s.body, self.parts, apart=self.apart)
        whole = tuple(body)
        first: list[Stmt] = []
        accumulators, loads, joined = [], [], []
        stores: list[Stmt] = []
        q = Range(self.fresh("q"), self.parts)
        for a in s.accumulators:
            dtypes = a.dtypes
            args = a.args
            if inside is not None:
                nothing = COMBINE[a.op].nothing(a.dtype)
                nought = zeros(body, inside)
                args = tuple(
                    value if least == 0 and value in nought else self.chosen(body, inside, value, least, dtype)
                    for value, least, dtype in zip(a.args, nothing, dtypes, strict=True)
                )
            results = tuple(self.fresh("a") for _ in a.to)
            accumulators.append(Accumulator(results, a.op, args, a.dtype))
            read = []
            for result, dtype in zip(results, dtypes, strict=True):
                param = Param(self.fresh("part"), dtype, self.count * self.parts, "scratch")
                self.scratch.append(param)
                stores.append(Store(param.name, self.place(ix.variable(part.var, part.size)), result))
                read.append(self.fresh("v"))
                loads.append(Load(read[-1], param.name, self.place(ix.variable(q.var, q.size)), dtype))
            joined.append(Accumulator(a.to, a.op, tuple(read), a.dtype))
        for pair in pairs:
            start, added, results = self.from_first(pair, whole, inner, body, inside)
            first += start
            accumulators += added
            stores += self.squares(pair, part, inner, ix.product([r.size for r in s.ranges]), results)
        partial = Reduce((inner,), tuple(body), tuple(accumulators))
        self.add((part, *self.nest.ranges), (*before, *first, partial, *stores))
        return self.combine((q,), tuple(loads), tuple(joined))

    # Sums of squared deviations

    def from_first(
        self, pair: Deviations, whole: tuple[Stmt, ...], inner: Range, body: list[Stmt], inside: str | None
    ) -> tuple[list[Stmt], list[Accumulator], tuple[str, str, str]]:
        """The first value of a part, and accumulators of the differences from it and of their squares; what they make."""
        dtype = pair.dtype
        there = substitute(whole, {inner.var: ix.ZERO})
        names = {name: self.fresh("v") for s in there for name in makes(s)}
        first = [renamed(s, names) for s in there]
        # One that is no number, or infinite, would make all differences so.
        size, top, finite, zero, shift = (self.fresh("v") for _ in range(5))
        value = names.get(pair.value, pair.value)
        first += [
            Compute(size, "abs", (value,), dtype),
            Const(top, math.inf, dtype),
            Compute(finite, "lt", (size, top), torch.bool),
            Const(zero, 0.0, dtype),
            Compute(shift, "where", (finite, value, zero), dtype),
        ]
        gap, square = self.fresh("v"), self.fresh("v")
        body.append(Compute(gap, "sub", (pair.value, shift), dtype))
        if inside is not None:
            gap = self.chosen(body, inside, gap, 0.0, dtype)
        body.append(Compute(square, "mul", (gap, gap), dtype))
        results = self.fresh("a"), self.fresh("a")
        added = [Accumulator((name,), "sum", (each,), dtype) for name, each in zip(results, (gap, square), strict=True)]
        return first, added, (shift, *results)

    def squares(self, pair: Deviations, part: Range, inner: Range, total: Int, results: tuple[str, str, str]) -> list[Stmt]:
        """Stores of a part its first value, how far its mean is from that, and squared deviations from its mean."""
        dtype = pair.dtype
        p = ix.variable(part.var, part.size)
        pair.counted = Counted(total, self.parts, inner.size, self.apart)
        some, _, divisor = self.counted(pair.counted, p, dtype)
        mean, less, own, top, finite, kept = (self.fresh("v") for _ in range(6))
        shift, differences, squared = results
        pair.scratch = [Param(self.fresh("part"), dtype, self.count * self.parts, "scratch") for _ in range(3)]
        self.scratch += pair.scratch
        return [
            *some,
            Compute(mean, "div", (differences, divisor), dtype),
            Compute(less, "mul", (differences, mean), dtype),
            Compute(own, "sub", (squared, less), dtype),
            # Squares that overflow stay infinite.
            Const(top, math.inf, dtype),
            Compute(finite, "lt", (squared, top), torch.bool),
            Compute(kept, "where", (finite, own, squared), dtype),
            *(Store(param.name, self.place(p), value) for param, value in zip(pair.scratch, (shift, mean, kept), strict=True)),
        ]

    def counted(self, counted: Counted, p: Int, dtype: torch.dtype) -> tuple[list[Stmt], str, str]:
        """How many values part ``p`` has, and what to divide by for their mean: one for none."""
        count, divisor, number, converted, none, one = (self.fresh("v") for _ in range(6))
        expression = counted.of(p)
        if expression.value is not None:
            return [Const(count, float(expression.value), dtype)], count, count
        return (
            [
                Index(number, expression),
                Compute(converted, "convert", (number,), dtype),
                Const(none, 0.0, dtype),
                Const(one, 1.0, dtype),
                Compute(count, "max", (converted, none), dtype),
                Compute(divisor, "max", (converted, one), dtype),
            ],
            count,
            divisor,
        )

    def joined_deviations(self, pair: Deviations) -> Reduce:
        """What stands for ``pair.late``: the parts' sums, each with its mean's own deviation as often as it has values."""
        dtype = pair.dtype
        q = Range(self.fresh("q"), self.parts)
        some, count, divisor = self.counted(pair.counted, ix.variable(q.var, q.size), dtype)
        square, times, result = (self.fresh("v") for _ in range(3))
        loads, gap, squares = self.deviations_of(pair, self.place(ix.variable(q.var, q.size)), divisor)
        body = [
            *some,
            *loads,
            Compute(square, "mul", (gap, gap), dtype),
            Compute(times, "mul", (square, count), dtype),
            Compute(result, "add", (squares, times), dtype),
        ]
        if some:
            none, some_there = self.fresh("v"), self.fresh("v")
            body += [Const(none, 0.0, dtype), Compute(some_there, "lt", (none, count), torch.bool)]
            result = self.chosen(body, some_there, result, 0.0, dtype)
        (accumulator,) = pair.late.accumulators
        return self.combine((q,), tuple(body), (replace(accumulator, args=(result,)),))

    def deviations_of(self, pair: Deviations, place: Int, divisor: str) -> tuple[list[Stmt], str, str]:
        """Loads of what the part at ``place`` found, how far its mean is from the whole's, and its squared deviations.

        Args:
            divisor: how many values the part has, one for none.
        """
        first, mean, squares, off, gap = (self.fresh("v") for _ in range(5))
        return (
            [
                *(Load(to, p.name, place, pair.dtype) for to, p in zip((first, mean, squares), pair.scratch, strict=True)),
                # In this order: means of values far from zero have few digits of what they differ by.
                Compute(off, "sub", (first, pair.center), pair.dtype),
                Compute(gap, "add", (off, mean), pair.dtype),
            ],
            gap,
            squares,
        )

    def chosen(self, body: list[Stmt], inside: str, value: str, worst: bool | int | float, dtype: torch.dtype) -> str:
        other, chosen = self.fresh("v"), self.fresh("v")
        body += [Const(other, worst, dtype), Compute(chosen, "where", (inside, value, other), dtype)]
        return chosen

    def map(self, s: Nest, before: Sequence[Stmt]) -> None:
        part, inner, body, _ = self.part_of(s.ranges, s.body, self.maps, apart=False)
        self.add((part, *self.nest.ranges), (*before, Nest((inner,), tuple(body))))

    def add(self, ranges: tuple[Range, ...], body: Sequence[Stmt]) -> None:
        """A nest of what the stores of ``body`` need. Values have names of their own in each nest."""
        kept = live(tuple(body), set())
        names = {name: self.fresh("w") for s in walk(kept) for name in makes(s)}
        self.nests.append(Nest(ranges, tuple(renamed(s, names) for s in kept)))


class _Together(_Split):
    """One nest of all that ``_Split`` makes several of, over the rows and, within each, its parts."""

    def __init__(self, kernel: LoopKernel, position: int, nest: Nest, parts: Int) -> None:
        super().__init__(kernel, position, nest, parts, False, 1, parts)
        self.combine = Heard
        self.part = Range(self.fresh("p"), parts)
        self.body: list[Stmt] = []

    def run(self) -> LoopKernel:
        super().run()
        body = [*self.kernel.body]
        body[self.position] = Nest((*self.nest.ranges, self.part), tuple(self.body))
        return replace(self.kernel, body=tuple(body), scratch=(*self.kernel.scratch, *self.scratch))

    def place(self, part: Int) -> Int:
        return self.outer * self.parts + part

    def settled(self, before: list[Stmt], stores: list[Stmt], rest: Sequence[Stmt]) -> tuple[list[Stmt], list[Stmt]]:
        return before, stores

    def add(self, ranges: tuple[Range, ...], body: Sequence[Stmt]) -> None:
        super().add(ranges, body)
        own = [r for r in ranges if r not in self.nest.ranges]
        places = {r.var: ix.variable(self.part.var, self.part.size) for r in own}
        for s in substitute(self.nests[-1].body, places):
            self.body += self.two_passes(s) if isinstance(s, Reduce) and not isinstance(s, Heard) else [s]

    def reduction(self, s: Reduce, before: Sequence[Stmt], pairs: Sequence[Deviations]) -> Reduce:
        found = super().reduction(s, before, [])
        for pair in pairs:
            self.own_deviations(pair, found)
        return found

    def again(self, s: Reduce) -> tuple[tuple[Range, ...], list[Stmt], Mapping[str, str]]:
        """Ranges and body of one more pass over what ``s`` reduces, and its names there."""
        names = {name: self.fresh("v") for each in s.body for name in makes(each)}
        ranges = tuple(Range(self.fresh("q"), r.size) for r in s.ranges)
        moved = {r.var: ix.variable(mine.var, mine.size) for r, mine in zip(s.ranges, ranges, strict=True)}
        return ranges, [renamed(each, names, moved) for each in s.body], names

    def own_deviations(self, pair: Deviations, found: Heard | Reduce) -> None:
        """Sums a part's squared deviations from its own mean, with the part at hand, and stores them. (``found`` combines the
        parts' sums.)"""
        dtype = pair.dtype
        position = next(k for k, a in enumerate(pair.early.accumulators) if a.args[0] == pair.value and a.op == "sum")
        told = next(s.param for s in found.body if isinstance(s, Load) and s.to == found.accumulators[position].args[0])
        total = next(s.value for s in self.body if isinstance(s, Store) and s.param == told)
        partial = next(s for s in self.body if isinstance(s, Reduce) and any(total in a.to for a in s.accumulators))
        value = next(a.args[0] for a in partial.accumulators if total in a.to)
        pair.counted = Counted(ix.product([r.size for r in pair.early.ranges]), self.parts, partial.ranges[0].size, False)
        p = ix.variable(self.part.var, self.part.size)
        some, _, divisor = self.counted(pair.counted, p, dtype)
        mean, gap, square, squares = (self.fresh("v") for _ in range(4))
        ranges, body, names = self.again(partial)
        body.append(Compute(gap, "sub", (names.get(value, value), mean), dtype))
        if pair.counted.of(p).value is None:
            here, end, inside = (self.fresh("v") for _ in range(3))
            flat = p * partial.ranges[0].size + ix.variable(ranges[0].var, ranges[0].size)
            body += [Index(here, flat), Index(end, pair.counted.total), Compute(inside, "lt", (here, end), torch.bool)]
            gap = self.chosen(body, inside, gap, 0.0, dtype)
        body.append(Compute(square, "mul", (gap, gap), dtype))
        pair.scratch = [
            next(param for param in self.scratch if param.name == told),
            Param(self.fresh("part"), dtype, self.count * self.parts, "scratch"),
        ]
        self.scratch.append(pair.scratch[1])
        self.body += [
            *some,
            Compute(mean, "div", (total, divisor), dtype),
            Reduce(ranges, tuple(body), (Accumulator((squares,), "sum", (square,), dtype),)),
            Store(pair.scratch[1].name, self.place(p), squares),
        ]

    def deviations_of(self, pair: Deviations, place: Int, divisor: str) -> tuple[list[Stmt], str, str]:
        total, mean, squares, gap = (self.fresh("v") for _ in range(4))
        return (
            [
                *(Load(to, p.name, place, pair.dtype) for to, p in zip((total, squares), pair.scratch, strict=True)),
                Compute(mean, "div", (total, divisor), pair.dtype),
                Compute(gap, "sub", (mean, pair.center), pair.dtype),
            ],
            gap,
            squares,
        )

    def two_passes(self, s: Reduce) -> list[Stmt]:
        """A part's largest value, then its sum of exponentials: the part is at hand, and each element takes one exponential."""
        after: list[Stmt] = []
        own = {a.to: a for a in s.accumulators if a.op == "expsum"}
        for (largest, total), a in own.items():
            ranges, body, names = self.again(s)
            gap, power, weighted, found, least, none, zero = (self.fresh("v") for _ in range(7))
            value, weight = (names.get(name, name) for name in a.args)
            body += [
                Compute(gap, "sub", (value, largest), a.dtype),
                Compute(power, "exp", (gap,), a.dtype),
                Compute(weighted, "mul", (power, weight), a.dtype),
            ]
            after += [
                Reduce(ranges, tuple(body), (Accumulator((found,), "sum", (weighted,), a.dtype),)),
                # Of nothing but negative infinities none weighs anything.
                Const(least, -math.inf, a.dtype),
                Compute(none, "eq", (largest, least), torch.bool),
                Const(zero, 0.0, a.dtype),
                Compute(total, "where", (none, zero, found), a.dtype),
            ]
        first = tuple(Accumulator(a.to[:1], "max", a.args[:1], a.dtype) if a.to in own else a for a in s.accumulators)
        return [replace(s, accumulators=first), *after]
