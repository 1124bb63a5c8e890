"""Reductions across memory: a nest that walks along memory while its reductions walk across it.

A tile of neighbouring results is accumulated at once: rows are read along memory, a few at a time, and the running results of
the tile stay in the first-level cache. Where loops follow that use the results (a softmax over rows, a batch norm of an image
with its channels last), a tile has as many columns as the second-level cache holds of all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from reference_backends.cpp_cpu import machine
from reference_backends.cpp_cpu.analysis import (
    Leaf,
    blocked,
    gathers,
    hoist,
    iterations,
    loads,
    plain,
    scatters,
    stride_is,
    used,
)
from reference_backends.cpp_cpu.column_groups import Grouped, grouped, unit
from reference_backends.cpp_cpu.reductions import LAST, kinds
from reference_backends.cpp_cpu.scans import Scans
from reference_backends.cpp_cpu.statements import GRAIN, Region
from reference_backends.cpp_cpu.table import CTYPES, combined, identity
from reference_backends.cpp_cpu.turned_columns import Turn, Turned
from reference_backends.cpp_cpu.vectors import MANY, known
from vendor_sdk import index, loop

TILE = 1024
"""Results accumulated at once."""
NARROW = 256
"""Columns of which there are too few to give every thread its own; a row of them is a few cache lines."""
CUTS = 32
"""Parts that the rows are cut into then: a fixed number, so that results do not depend on the number of threads."""
PARTS = 16
"""Tiles that neighbouring results are cut into, where there is nothing else for threads to share."""
LEAST = 64
"""Results accumulated at once at least."""
ROOM = 256
"""Results accumulated at once at most where threads share so many as only the call knows."""
LOCAL_BYTES = 1 << 22
"""Of the buffers that a tile of so many columns may have."""
ROWS = 8
"""Rows that are joined in registers before the tile's running results are touched."""


def crosses(reduce: loop.Reduce, inner: loop.Range) -> bool:
    """Whether a reduction walks across memory that the nest's innermost loop walks along, or along less of it, in windows."""
    if not reduce.ranges:
        return False
    last = reduce.ranges[-1]
    steps = (0,) if index.less(last.size, inner.size) else (0, 1)
    return any(stride_is(s.index, inner.var, 1) and not stride_is(s.index, last.var, *steps) for s in loads(reduce.body))


def _across(body: Sequence[loop.Stmt], inner: str) -> bool:
    """Whether accesses walk neither along memory with ``inner`` nor stay where they are, but for one of eight."""
    accesses = [s.index for s in body if isinstance(s, loop.Load | loop.Store)]
    return 8 * sum(not stride_is(place, inner, 0, 1) for place in accesses) > len(accesses)


def _bytes(p: loop.Param) -> index.Int:
    return p.size * p.dtype.itemsize


class Columns(Scans):
    """Text of nests of column reductions."""

    def is_columns(self, nest: loop.Nest) -> bool:
        """Whether all loops of a nest go along memory with its last range: across what reductions walk along, if any do."""
        loops = [s for s in nest.body if isinstance(s, loop.Reduce | loop.Nest)]
        inner = nest.ranges[-1].var
        simple = all(s.ranges and plain(s.body) and not gathers(s.body, inner) for s in loops)
        others = not any(isinstance(s, loop.Scan) for s in nest.body)
        reduces = [s for s in loops if isinstance(s, loop.Reduce)]
        if not simple or not others or not loops:
            return False
        if reduces and not isinstance(nest, Turned) and not any(crosses(s, nest.ranges[-1]) for s in reduces):
            return False
        if any(isinstance(s, loop.Nest) and (scatters(s.body) or _across(s.body, inner)) for s in loops):
            return False
        room = LEAST * sum((_bytes(s.param) for s in nest.body if isinstance(s, loop.Local)), index.ZERO)
        return room == 0 or (room.value is not None and room.value <= LOCAL_BYTES)

    def as_columns(self, nest: loop.Nest) -> loop.Nest | None:
        """The nest with the loop last that its reductions walk along memory with; None where there is none."""
        if isinstance(nest, Turned):
            return nest if self.is_columns(nest) else None
        for r in reversed(nest.ranges):
            turned = replace(nest, ranges=(*(other for other in nest.ranges if other is not r), r))
            if self.is_columns(turned):
                return turned
        groups = grouped(nest)
        return groups if groups is not None and self.is_columns(groups) else None

    def tile_of(self, nest: loop.Nest) -> int:
        """How many columns are taken at once."""
        whole = unit(nest)
        return max(self.fitting(nest) // whole, 1) * whole

    def fitting(self, nest: loop.Nest) -> int:
        """How many columns are best taken at once."""
        share = self.share_of(nest).value
        tile = min(TILE, share) if share is not None else TILE if self.parts_of(nest) == 1 else ROOM
        if not any(isinstance(s, loop.Nest) for s in nest.body):
            return tile
        if any(isinstance(s, loop.Local) for s in nest.body):
            return min(tile, LEAST)
        loops = [index.product([r.size for r in s.ranges]) for s in nest.body if isinstance(s, loop.Reduce | loop.Nest)]
        rows = max((n.value or TILE for n in loops), default=1)
        fitting = machine.cache_bytes(2) // 2 // (4 * max(rows, 1)) // LEAST * LEAST
        return min(tile, max(fitting, LEAST))

    def parts_of(self, nest: loop.Nest) -> int:
        """Tiles into which threads share the columns."""
        apart = index.product([r.size for r in nest.ranges[:-1]]).value
        return 1 if self.is_cut(nest) or (apart is not None and apart >= PARTS) else PARTS

    def share_of(self, nest: loop.Nest) -> index.Int:
        """Columns of one of these."""
        most = LEAST * self.parts_of(nest)
        return (nest.ranges[-1].size + (most - 1)) // most * LEAST

    def step_of(self, nest: loop.Nest, tile: int) -> index.Int:
        """How many columns are taken at once: a tile of them, or fewer where only the call knows how many threads share; whole
        groups."""
        if nest.ranges[-1].size.value is not None or unit(nest) > 1:
            return index.wrap(tile)
        return index.minimum(index.maximum(self.share_of(nest), LEAST), tile)

    def is_cut(self, nest: loop.Nest) -> bool:
        """Whether threads share the rows of a tile: there are few columns, or nothing is summed over rows."""
        inner, total = nest.ranges[-1], iterations(nest.ranges, nest.body)
        narrow = inner.size.value is not None and inner.size.value <= NARROW
        maps = not any(isinstance(s, loop.Reduce) for s in nest.body)
        return len(nest.ranges) == 1 and (narrow or maps) and (total.value is None or total.value >= GRAIN)

    def columns(self, nest: loop.Nest, *, alone: bool = True) -> None:
        """A nest of columns; not ``alone``: inside another, whose iterations threads share."""
        inner, outer = nest.ranges[-1], nest.ranges[:-1]
        self.cut = alone and self.is_cut(nest)
        self.group = nest.group if isinstance(nest, Grouped) else 1
        self.base, self.width = self.fresh("base"), self.fresh("width")
        tile = self.tile_of(nest)
        step = index.to_c(self.step_of(nest, tile))
        if alone:
            parallel = self.open_region(iterations(nest.ranges, nest.body), serial=self.cut)
            self.point_locals(nest.body, "omp_get_thread_num()" if parallel else "0")
            if parallel:
                self.work_sharing(len(outer) + 1)
        for r in outer:
            self.open_loop(r)
        size = index.to_c(inner.size)
        body = self.in_tile(nest.body, inner, tile)
        self.out.open(f"for (int64_t {self.base} = 0; {self.base} < {size}; {self.base} += {step})")
        self.out(f"const int64_t {self.width} = {self.base} + min_int({step}, {size} - {self.base});")
        turns = nest.turns if isinstance(nest, Turned) else ()
        self.turn(turns, inner, tile, loop.Load)
        varying = self.varying_of(body, inner)
        carried = self.carried(body, varying)
        available: set[str] = set()
        group: list[loop.Stmt] = []

        def flush() -> None:
            if not group:
                return
            self.note(group)
            made = [s.to for s in group if isinstance(s, Leaf) and s.to in carried]
            for name in made:
                self.out(f"alignas(64) {CTYPES[self.types[name]]} {name}_t[{tile}];")

            def keep() -> None:
                for name in made:
                    self.out(f"store({name}_t + ({inner.var} - {self.base}), {self.operand(name)}, live, false);")

            self.vector_loop(inner, group, self.base, self.width, self.restored(available, group, inner), keep)
            available.update(made)
            group.clear()

        for s in body:
            if isinstance(s, loop.Reduce):
                flush()
                self.column_reduce(s, inner, tile, available)
                available.update(to for a in s.accumulators for to in a.to)
            elif isinstance(s, loop.Nest):
                flush()
                self.column_map(s, inner, available)
            elif isinstance(s, Leaf) and s.to not in varying:
                self.statement(s)
            else:
                group.append(s)
        flush()
        self.turn(turns, inner, tile, loop.Store)
        self.out.close(len(outer) + 1)
        if alone:
            self.close_region()

    def turn(self, turns: Sequence[Turn], inner: loop.Range, tile: int, kind: type[loop.Load | loop.Store]) -> None:
        """Fills buffers of a tile with what lies along rows, or stores them so."""
        count = f"{self.width} - {self.base}"
        for t in turns:
            if isinstance(t.access, kind):
                first = index.to_c(index.substitute(t.first, {inner.var: index.symbol(self.base)}))
                memory = f"{t.access.param} + {self.sum(first)}, {index.to_c(t.pitch)}"
                buffer, length = f"{t.buffer.name}, {tile}", index.to_c(t.buffer.size)
                if kind is loop.Load:
                    self.out(f"transpose({memory}, {buffer}, {count}, {length});")
                else:
                    self.out(f"transpose({buffer}, {memory}, {length}, {count});")

    def varying_of(self, body: Sequence[loop.Stmt], inner: loop.Range) -> set[str]:
        """Values that columns do not share."""
        made = {to for s in body if isinstance(s, loop.Reduce) for a in s.accumulators for to in a.to}
        _, inside, varying = hoist([s for s in body if not isinstance(s, loop.Reduce | loop.Nest)], inner.var, made)
        return varying | {s.to for s in inside if isinstance(s, Leaf)}

    def carried(self, body: Sequence[loop.Stmt], varying: Collection[str]) -> set[str]:
        """Those of ``varying`` that a later segment (after a Reduce in between) reads."""
        carried: set[str] = set()
        segment: dict[str, int] = {}
        current = 0
        for s in body:
            current += isinstance(s, loop.Reduce | loop.Nest)
            carried |= {n for n in used([s]) if n in segment and segment[n] != current}
            if isinstance(s, Leaf) and s.to in varying:
                segment[s.to] = current
            current += isinstance(s, loop.Reduce | loop.Nest)
        return carried

    def restored(self, available: set[str], body: Sequence[loop.Stmt], inner: loop.Range) -> dict[str, str]:
        """The values of earlier segments that a body reads, and where they are."""
        return {name: f"load({name}_t + ({inner.var} - {self.base}), live)" for name in sorted(available & used(body))}

    def in_tile(self, body: Sequence[loop.Stmt], inner: loop.Range, tile: int) -> list[loop.Stmt]:
        """A body whose buffers are those of all columns of a tile, side by side."""
        local = {s.param.name for s in body if isinstance(s, loop.Local)}

        def moved(s: loop.Stmt) -> loop.Stmt:
            if isinstance(s, loop.Reduce | loop.Nest):
                return replace(s, body=tuple(map(moved, s.body)))
            if isinstance(s, loop.Load | loop.Store) and s.param in local:
                return replace(s, index=s.index * tile + (index.symbol(inner.var) - index.symbol(self.base)))
            return s

        return [moved(s) for s in body if not isinstance(s, loop.Local)] if local else list(body)

    def column_map(self, s: loop.Nest, inner: loop.Range, available: set[str]) -> None:
        """A loop that reduces nothing: all columns of a tile for each of its iterations."""
        total = iterations(s.ranges, s.body) * inner.size
        region = self.open_parallel(total) if self.cut else None
        if region is not None:
            self.out.open("")
            self.work_sharing(len(s.ranges))
        for r in s.ranges:
            self.open_loop(r)
        self.note(s.body)
        self.vector_loop(inner, s.body, self.base, self.width, self.restored(available, s.body, inner))
        self.out.close(len(s.ranges))
        if region is not None:
            self.drain()
            self.out.close()
            self.close_parallel(region)

    def column_reduce(self, s: loop.Reduce, inner: loop.Range, tile: int, available: set[str]) -> None:
        self.note(s.body)
        place = f"({inner.var} - {self.base})"
        kept: list[tuple[loop.Accumulator, str, str]] = []
        bounds = {r.var: ("0", index.to_c(r.size)) for r in s.ranges}
        region = self.open_parts(s, tile, bounds) if self.cut else None
        for a in s.accumulators:
            for to, kind, first in zip(a.to, self.lane_kinds(a), (identity(a.op, a.dtype), LAST), strict=False):
                running = "double" if blocked(a) else kind
                kept.append((a, to, kind))
                if self.cut:
                    self.out(f"{running} *const {to}_w = {to}_p + part * {tile};")
                else:
                    self.out(f"alignas(64) {running} {to}_w[{tile}];")
                self.out(f"for (int64_t at = 0; at < {tile}; ++at) {to}_w[at] = {first};")
        for r in s.ranges[:-1]:
            self.open_loop(r, *bounds[r.var])
        last = s.ranges[-1]
        begin, stop = bounds[last.var]
        given = self.restored(available, [s], inner)
        before, inside, self.varying = hoist(s.body, inner.var, given)
        self.along, self.past, self.runs, self.rising = inner.var, {}, {}, {}
        first, step = self.fresh("first"), self.fresh("step")
        self.out.open(f"for (int64_t {first} = {begin}; {first} < {stop}; {first} += {ROWS})")
        self.out.open(f"const auto {step} = [&](const int64_t {inner.var}, const auto live, const auto rows) INLINE_LAMBDA")
        for value, text in given.items():
            self.out(f"const vec<{CTYPES[self.types[value]]}> {value}_v = {text};")
        for a, to, kind in kept:
            start = "0.0f" if blocked(a) else f"{to}_w + {place}"
            self.out(f"Chains<vec<{kind}>, 1> {to}_c({f'vec<{kind}>({start})' if blocked(a) else f'load({start}, live)'});")
        if len(s.body) <= MANY:
            self.out(f"#pragma GCC unroll {ROWS}")
        self.out.open("for (int row = 0; row < rows.n; ++row)")
        self.out(f"const int64_t {last.var} = {first} + row;")
        self.out("constexpr int chain = 0;")
        for stmt in before:
            self.statement(stmt)
        for other in inside:
            self.vector_statement(other)
        self.accumulate(s.accumulators)
        self.out.close()
        for a, to, _ in kept:
            value = f"{to}_c.at[0]"
            if blocked(a):
                value = combined("sum", f"load({to}_w + {place}, live)", f"convert<double>({value})", None)
            self.out(f"store({to}_w + {place}, {value}, live, false);")
        self.out.close(after=";")
        joined = 1 if len(s.body) > MANY else ROWS
        self.out(f"run_rows<{joined}, {known(last)}, {known(inner)}>({self.base}, {self.width}, {stop} - {first}, {step});")
        self.out.close(len(s.ranges))
        self.varying, self.along = set(), ""
        if region is not None:
            self.out.close()
            self.close_parallel(region)
        for a in s.accumulators:
            if self.cut:
                self.join_parts(a, tile)
            if self.group > 1:
                self.join_group(a, tile)
            for to, dtype in zip(a.to, (a.dtype, torch.int64), strict=False):
                self.types[to] = dtype
                kind = CTYPES[dtype]
                self.out(f"alignas(64) {kind} {to}_t[{tile}];")
                self.out(f"for (int64_t at = 0; at < {tile}; ++at) {to}_t[at] = ({kind}){to}_w[at];")

    def join_group(self, a: loop.Accumulator, tile: int) -> None:
        """Gives all columns of a group what they found together."""
        (to,) = a.to
        self.out.open(f"for (int64_t at = 0; at < {tile}; at += {self.group})")
        self.declare(a, "_x")
        self.out.open(f"for (int64_t other = at; other < at + {self.group}; ++other)")
        self.advance(a, "_x", [f"{to}_w[other]"])
        self.out.close()
        self.out(f"for (int64_t other = at; other < at + {self.group}; ++other) {to}_w[other] = {to}_x;")
        self.out.close()

    def open_parts(self, s: loop.Reduce, tile: int, bounds: dict[str, tuple[str, str]]) -> Region:
        """Cuts the rows that few columns are reduced over into parts, as many for any number of threads."""
        for a in s.accumulators:
            for to, kind in zip(a.to, self.lane_kinds(a), strict=True):
                self.out(f"alignas(64) {'double' if blocked(a) else kind} {to}_p[{CUTS * tile}];")
        longest = max(s.ranges, key=lambda r: r.size.value or 0)
        length, start, stop, each = index.to_c(longest.size), self.fresh("start"), self.fresh("stop"), self.fresh("each")
        self.parts = self.fresh("parts")
        # The innermost rows are joined so many at once.
        unit = ROWS if longest is s.ranges[-1] else 1
        self.out(f"const int64_t {each} = max_int(({length} + {CUTS * unit - 1}) / {CUTS * unit} * {unit}, 1);")
        self.out(f"const int64_t {self.parts} = ({length} + {each} - 1) / {each};")
        region = self.open_parallel(sharing=" for schedule(static)")
        self.out.open(f"for (int64_t part = 0; part < {self.parts}; ++part)")
        self.out(f"const int64_t {start} = part * {each}, {stop} = min_int({start} + {each}, {length});")
        bounds[longest.var] = (start, stop)
        return region

    def join_parts(self, a: loop.Accumulator, tile: int) -> None:
        for to, kind in zip(a.to, kinds(a), strict=True):
            self.out(f"alignas(64) {kind} {to}_w[{tile}];")
        self.out.open(f"for (int64_t at = 0; at < {tile}; ++at)")
        self.declare(a, "_x")
        self.out.open(f"for (int64_t part = 0; part < {self.parts}; ++part)")
        self.advance(a, "_x", [f"({kind}){to}_p[part * {tile} + at]" for to, kind in zip(a.to, kinds(a), strict=True)])
        self.out.close()
        for to in a.to:
            self.out(f"{to}_w[at] = {to}_x;")
        self.out.close()
