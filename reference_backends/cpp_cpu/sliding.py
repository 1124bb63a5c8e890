"""Windows of many elements: nests whose results lie along memory, each a reduction of a few dozen elements near its place.

Neighbouring results run in the lanes of a vector, and a few rows of them in registers at once, so that what all results
multiply alike (the weights of a convolution of each channel) is read once for all of them. The loops over a window stay loops:
written out, some hundred loads are more than compilers keep in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from reference_backends.cpp_cpu.analysis import Leaf, gathers, hoist, iterations, loads, scatters, stride_is
from reference_backends.cpp_cpu.columns import Columns
from reference_backends.cpp_cpu.table import CTYPES, combined, identity
from reference_backends.cpp_cpu.vectors import known
from vendor_sdk import contraction, index, loop

TERMS = 256
"""Of a window at most: so many float32 numbers may be added one after the other."""
FIRST, LAST = "first_row", "last_row"
ROWS = range(8, 1, -1)
"""Of results in registers, in order of preference where they divide the rows that there are."""


@dataclass(frozen=True)
class Window:
    """A nest of windows: ``before``, which all results share, ``total``, and ``after``."""

    outer: tuple[loop.Range, ...]
    rows: loop.Range
    lanes: loop.Range
    before: tuple[Leaf, ...]
    total: loop.Reduce
    after: tuple[loop.Stmt, ...]


def window(nest: loop.Nest) -> Window | None:
    """A nest as one of windows, if it is that."""
    totals = [s for s in nest.body if isinstance(s, loop.Reduce)]
    others = [s for s in nest.body if not isinstance(s, loop.Reduce)]
    if len(totals) != 1 or len(nest.ranges) < 2 or not all(isinstance(s, Leaf | loop.Store) for s in others):
        return None
    (total,) = totals
    terms = index.product(r.size for r in total.ranges).value
    plain = all(isinstance(s, Leaf) for s in total.body) and all(a.op in ("sum", "max", "min") for a in total.accumulators)
    if not plain or terms is None or terms > TERMS or scatters(nest.body):
        return None
    return next((found for lanes in reversed(nest.ranges) if (found := _along(nest, total, others, lanes)) is not None), None)


def _along(nest: loop.Nest, total: loop.Reduce, others: Sequence[loop.Stmt], lanes: loop.Range) -> Window | None:
    """A nest of windows whose results are neighbours along ``lanes``."""
    *outer, rows = (r for r in nest.ranges if r is not lanes)
    before, after, _ = hoist(others, lanes.var, (rows.var, *loop.makes(total)))
    made = {s.to for s in after if isinstance(s, Leaf)}
    if lanes.size.value is None or lanes.size.value < 2 or made & set(loop.needs(total)) or gathers(total.body, lanes.var):
        return None
    read = [s.index for s in loads(total.body)]
    beside = any(stride_is(place, lanes.var, 1, 2) for place in read)
    shared = any(stride_is(place, rows.var, 0) for place in read)
    sliding = any(
        not stride_is(place, rows.var, 0) and any(not stride_is(place, r.var, 0) for r in total.ranges) for place in read
    )
    if not (beside and shared and sliding):
        return None
    return Window(tuple(outer), rows, lanes, tuple(before), total, tuple(after))


def edges(w: Window) -> tuple[index.Int, ...] | None:
    """What is not negative for all results of some rows where none of their windows masks anything, of rows ``FIRST`` to
    ``LAST``; None where that depends on other things than places, or nothing is masked but along lanes."""
    inside = hoist(w.total.body, w.lanes.var)[2]
    masks = {s.mask for s in loads(w.total.body) if s.mask and s.mask not in inside}
    known = {s.to: s.index for s in w.total.body if isinstance(s, loop.Index)}
    known |= {s.to: index.wrap(int(s.value)) for s in w.before if isinstance(s, loop.Const) and s.dtype == torch.int64}
    bounds = {r.var: (index.wrap(0), r.size - 1) for r in w.total.ranges}
    bounds[w.rows.var] = (index.symbol(FIRST), index.symbol(LAST))
    found: list[index.Int] = []
    for s in contraction.needed([*w.before, *w.total.body], [mask for mask in masks if mask]):
        if isinstance(s, loop.Compute) and s.op in ("ge", "lt") and known.keys() >= {*s.args}:
            left, right = (known[name] for name in s.args)
            least = left - right if s.op == "ge" else right - left - 1
            for name, (low, high) in bounds.items():
                step = index.stride(least, name)
                if step is None or step.value is None:
                    return None
                least = index.substitute(least, {name: low if step.value > 0 else high})
            found.append(least)
        elif not isinstance(s, loop.Const | loop.Index) and not (isinstance(s, loop.Compute) and s.op == "bitand"):
            return None
    return tuple(dict.fromkeys(found)) or None


class Sliding(Columns):
    """Text of nests of windows."""

    def windows(self, w: Window, *, alone: bool) -> None:
        """A nest of windows; not ``alone``: inside another, whose iterations threads share."""
        ranges = (*w.outer, w.rows, w.lanes)
        parallel = self.open_region(iterations(ranges, (w.total,)), serial=False) if alone else False
        if parallel:
            self.work_sharing(len(w.outer) + 1)
        for r in w.outer:
            self.open_loop(r)
        height, rows = w.rows.size.value, index.to_c(w.rows.size)
        together = ROWS[0] if height is None else next((n for n in ROWS if height % n == 0), min(height, 4))
        first = self.fresh("first")
        self.out.open(f"for (int64_t {first} = 0; {first} < {rows}; {first} += {together})")
        self.body(w.before)
        found = edges(w)
        step = self.window_step(w, masked=found is not None)
        run = self.fresh("run")
        self.out.open(f"const auto {run} = [&](int64_t at, auto count) INLINE_LAMBDA")
        each = "[&](int64_t i, auto live) INLINE_LAMBDA {{ {}(i, live, at, count, {}); }}"
        steps = f"run_steps<{known(w.lanes)}>(0, {index.to_c(w.lanes.size)}, {each});"
        if found is not None:
            self.out(f"const int64_t {FIRST} = at, {LAST} = at + count.n - 1;")
            self.out(f"if ({' && '.join(f'{index.to_c(least)} >= 0' for least in found)}) " + steps.format(step, "Fixed<1>()"))
            self.out("else")
        self.out(steps.format(step, "Fixed<0>()"))
        self.out.close(after=";")
        if height is not None and height % together == 0:
            self.out(f"{run}({first}, Fixed<{together}>());")
        else:
            self.out(f"if ({first} + {together} <= {rows}) {run}({first}, Fixed<{together}>());")
            rest = "1" if height is None else str(height % together)
            self.out(f"else for (int64_t at = {first}; at < {rows}; at += {rest}) {run}(at, Fixed<{rest}>());")
        self.out.close(1 + len(w.outer))
        if alone:
            self.close_region()

    def window_step(self, w: Window, *, masked: bool) -> str:
        """Writes the lambda of some rows of one vector; its name. It is told where all that is ``masked`` is inside."""
        name, start = self.fresh("step"), self.fresh("start")
        self.note(w.total.body)
        lanes = w.lanes.var
        given = f"const int64_t {lanes}, const auto live, const int64_t {start}, const auto rows, const auto inside"
        self.out.open(f"const auto {name} = [&]({given}) INLINE_LAMBDA")
        for a in w.total.accumulators:
            kind = CTYPES[a.dtype]
            self.out(f"Chains<vec<{kind}>, rows.n> {a.to[0]}_c(vec<{kind}>(({kind}){identity(a.op, a.dtype)}));")
        for r in w.total.ranges:
            self.open_loop(r)
        before, inside, _ = hoist(w.total.body, lanes, (w.rows.var,))
        self.body(before)
        products = self.products(w.total, inside)
        self.open_rows(w, start, inside)
        for s in inside:
            if masked and isinstance(s, loop.Load) and s.mask and s.mask not in self.varying:
                mask = self.fresh("mask")
                self.out(f"const bool {mask} = inside.n || {s.mask};")
                s = replace(s, mask=mask)
            if s not in products.values():
                self.vector_statement(s)
        for a in w.total.accumulators:
            target, product = f"{a.to[0]}_c.at[row]", products.get(a.args[0])
            if product is not None:
                left, right = map(self.operand, product.args)
                self.out(f"{target} = multiply_add({left}, {right}, {target});")
            else:
                self.out(f"{target} = {combined(a.op, target, self.operand(a.args[0]), None)};")
        self.out.close(1 + len(w.total.ranges))
        self.open_rows(w, start, w.after, loop.makes(w.total))
        for a in w.total.accumulators:
            self.types[a.to[0]] = a.dtype
            self.out(f"const auto {a.to[0]}_v = {a.to[0]}_c.at[row];")
        for s in w.after:
            self.vector_statement(s)
        self.out.close()
        self.out.close(after=";")
        self.varying, self.along = set(), ""
        return name

    def open_rows(self, w: Window, start: str, inside: Sequence[loop.Stmt], given: Sequence[str] = ()) -> None:
        """The loop over the rows in registers, in which what changes along the lanes is vectors."""
        self.out("#pragma GCC unroll 8")
        self.out.open("for (int row = 0; row < rows.n; ++row)")
        self.out(f"const int64_t {w.rows.var} = {start} + row;")
        _, _, self.varying = hoist(inside, w.lanes.var, given)
        self.along, self.past, self.runs, self.rising = w.lanes.var, {}, {}, {}

    def products(self, total: loop.Reduce, inside: Sequence[loop.Stmt]) -> dict[str, loop.Compute]:
        """Products that nothing but a sum of float32 reads, by name: they are rounded with the sum."""
        found = {s.to: s for s in inside if isinstance(s, loop.Compute) and s.op == "mul" and s.dtype == torch.float32}
        read = [name for s in total.body for name in loop.reads(s)] + [a.args[0] for a in total.accumulators]
        summed = [a.args[0] for a in total.accumulators if a.op == "sum"]
        return {name: found[name] for name in summed if name in found and read.count(name) == 1}
