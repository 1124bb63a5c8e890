"""Scans in vectors: along memory, with a prefix inside each vector and one number carried on; across memory, with neighbouring
scans side by side, whose running results stay in the first-level cache. Where joining two results takes long, as exponentials
do, a prefix would join several times as often as one number after the other: scans along memory then run side by side, too, in
tiles that are turned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from reference_backends.cpp_cpu.analysis import Access, gathers, iterations, loads, plain, stride_is
from reference_backends.cpp_cpu.reductions import Reductions, join
from reference_backends.cpp_cpu.table import CTYPES, combined, identity
from reference_backends.cpp_cpu.vectors import known
from vendor_sdk import index, loop

SCANNED = 256
"""Scans that run side by side."""
JOINED = frozenset(("sum", "prod"))
SLOW = frozenset(("logaddexp",))
"""What takes too long to be joined more often than need be."""
TILE = 64
"""Scans, and their steps, that are turned at a time."""
FEWEST = 16
"""Scans that are worth a tile."""
NUMBERS = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))


def _in_vectors(s: loop.Scan, joined: frozenset[str] = JOINED) -> bool:
    simple = all(len(a.to) == 1 and a.op in joined and a.dtype in NUMBERS for a in s.accumulators)
    return simple and plain(s.body) and plain(s.then)


def side_by_side(nest: loop.Nest) -> loop.Scan | None:
    """The scan of a nest that walks along memory while the scan walks across it."""
    scans = [s for s in nest.body if isinstance(s, loop.Scan)]
    if (
        len(scans) != 1
        or not nest.ranges
        or not plain(s for s in nest.body if s is not scans[0])
        or nest.body[-1] is not scans[0]
    ):
        return None
    (scan,) = scans
    inner = nest.ranges[-1]
    crosses = any(stride_is(s.index, inner.var, 1) and not stride_is(s.index, scan.range.var, 0, 1) for s in loads(scan.body))
    whole = (*nest.body[:-1], *scan.body, *scan.then)
    return scan if crosses and _in_vectors(scan, JOINED | SLOW) and not gathers(whole, inner.var) else None


@dataclass(frozen=True)
class Turned:
    """A nest of nothing but ``scan``, which ``rows`` are to run side by side; the accesses ``turned`` lie along the scan."""

    scan: loop.Scan
    rows: loop.Range
    turned: tuple[Access, ...]


def turned_scan(nest: loop.Nest) -> Turned | None:
    """How slow scans along memory run side by side; None where they do not."""
    scan = nest.body[0] if len(nest.body) == 1 else None
    if not isinstance(scan, loop.Scan) or not nest.ranges:
        return None
    if not _in_vectors(scan, JOINED | SLOW) or not any(a.op in SLOW for a in scan.accumulators):
        return None
    statements = (*scan.body, *scan.then)
    accesses = [s for s in statements if isinstance(s, Access)]
    made = {name for s in statements for name in loop.makes(s)}
    # What is loaded is a tile's before any of its results is stored: a result may only replace what its own step loads.
    stored = {s.param: s.index for s in accesses if isinstance(s, loop.Store)}
    if any(index.symbols(s.index).keys() & made or stored.get(s.param, s.index) != s.index for s in accesses):
        return None
    for rows in reversed(nest.ranges):
        if rows.size.value is not None and rows.size.value < FEWEST:
            continue
        turned = tuple(s for s in accesses if not stride_is(s.index, rows.var, 0, 1))
        if turned and all(_is_turned(s, scan, rows) for s in turned):
            return Turned(scan, rows, turned)
    return None


def _is_turned(s: Access, scan: loop.Scan, rows: loop.Range) -> bool:
    combines = isinstance(s, loop.Store) and s.mode != "set"
    along = stride_is(s.index, scan.range.var, 1)
    return along and s.mask is None and not combines and index.stride(s.index, rows.var) is not None


class Scans(Reductions):
    """Text of scans."""

    def running_kind(self, a: loop.Accumulator) -> str:
        return "double" if a.dtype == torch.float32 and a.op in JOINED else CTYPES[a.dtype]

    def scan(self, s: loop.Scan) -> None:
        if not _in_vectors(s) or self.is_short(s.range) or gathers((*s.body, *s.then), s.range.var):
            super().scan(s)
            return
        for a in s.accumulators:
            self.declare(a, "_w")

        def advance(a: loop.Accumulator, value: str) -> str:
            kind, first = self.running_kind(a), identity(a.op, a.dtype)
            inside = f"prefix<{kind}>(kept(live, {value}, vec<{kind}>(({kind}){first})), ({kind}){first}, {join(a.op)})"
            running = combined(a.op, f"vec<{kind}>({a.to[0]}_w)", inside, None)
            self.out(f"const vec<{kind}> {a.to[0]}_s = {running};")
            return f"{a.to[0]}_w = {a.to[0]}_s[LANES - 1];"

        self.scan_steps(s, s.range, (), "0", index.to_c(s.range.size), advance)

    def scans(self, nest: loop.Nest, s: loop.Scan) -> None:
        """A nest of scans side by side."""
        inner, outer = nest.ranges[-1], nest.ranges[:-1]
        if self.open_region(iterations(nest.ranges, nest.body), serial=False):
            self.work_sharing(len(outer) + 1)
        for r in outer:
            self.open_loop(r)
        base, size = self.fresh("base"), index.to_c(inner.size)
        self.out.open(f"for (int64_t {base} = 0; {base} < {size}; {base} += {SCANNED})")
        for a in s.accumulators:
            kind = self.running_kind(a)
            self.out(f"alignas(64) {kind} {a.to[0]}_w[{SCANNED}];")
            self.out(f"for (int64_t at = 0; at < {SCANNED}; ++at) {a.to[0]}_w[at] = {identity(a.op, a.dtype)};")
        self.open_loop(s.range)
        end = f"min_int({base} + {SCANNED}, {size})"
        self.scan_steps(s, inner, nest.body[:-1], base, end, self.advance_side_by_side(inner, base))
        self.out.close(len(outer) + 2)
        self.close_region()

    def advance_side_by_side(self, inner: loop.Range, base: str) -> Callable[[loop.Accumulator, str], str]:
        """How running results advance that lie in memory, from that of scan ``base`` on."""

        def advance(a: loop.Accumulator, value: str) -> str:
            kind, place = self.running_kind(a), f"{a.to[0]}_w + ({inner.var} - {base})"
            self.out(f"const vec<{kind}> {a.to[0]}_s = {combined(a.op, f'load({place}, live)', value, None)};")
            return f"store({place}, {a.to[0]}_s, live, false);"

        return advance

    def turned_scans(self, nest: loop.Nest, found: Turned) -> None:
        """A nest of scans along memory, side by side."""
        s, rows = found.scan, found.rows
        outer = [r for r in nest.ranges if r is not rows]
        if self.open_region(iterations(nest.ranges, nest.body), serial=False):
            self.work_sharing(len(outer) + 1)
        for r in outer:
            self.open_loop(r)
        base, start, height, width = (self.fresh(name) for name in ("base", "start", "height", "width"))
        count, length = index.to_c(rows.size), index.to_c(s.range.size)
        self.out.open(f"for (int64_t {base} = 0; {base} < {count}; {base} += {TILE})")
        self.out(f"const int64_t {height} = min_int({TILE}, {count} - {base});")
        for a in s.accumulators:
            self.out(f"alignas(64) {self.running_kind(a)} {a.to[0]}_w[{TILE}];")
            self.out(f"for (int64_t at = 0; at < {TILE}; ++at) {a.to[0]}_w[at] = {identity(a.op, a.dtype)};")
        self.out.open(f"for (int64_t {start} = 0; {start} < {length}; {start} += {TILE})")
        self.out(f"const int64_t {width} = min_int({TILE}, {length} - {start});")
        place = (index.variable(s.range.var, s.range.size) - index.symbol(start)) * TILE
        place = place + index.variable(rows.var, rows.size) - index.symbol(base)
        buffers: dict[int, loop.Stmt] = {}
        after: list[str] = []
        for access in found.turned:
            buffer = self.fresh("turned")
            first = index.substitute(access.index, {s.range.var: index.symbol(start), rows.var: index.symbol(base)})
            pitch = index.stride(access.index, rows.var)
            assert pitch is not None
            self.out(f"alignas(64) {CTYPES[self.kernel.param(access.param).dtype]} {buffer}[{TILE * TILE}];")
            memory = f"{access.param} + {self.sum(index.to_c(first))}, {index.to_c(pitch)}"
            if isinstance(access, loop.Load):
                self.out(f"transpose({memory}, {buffer}, {TILE}, {height}, {width});")
            else:
                after.append(f"transpose({buffer}, {TILE}, {memory}, {width}, {height});")
            buffers[id(access)] = replace(access, param=buffer, index=place)

        def moved(statements: Sequence[loop.Stmt]) -> tuple[loop.Stmt, ...]:
            return tuple(buffers.get(id(t), t) for t in statements)

        self.open_loop(s.range, start, f"{start} + {width}")
        inside = replace(s, body=moved(s.body), then=moved(s.then))
        self.scan_steps(inside, rows, (), base, f"{base} + {height}", self.advance_side_by_side(rows, base))
        self.out.close()
        for text in after:
            self.out(text)
        self.out.close(len(outer) + 2)
        self.close_region()

    def scan_steps(
        self,
        s: loop.Scan,
        along: loop.Range,
        first: Sequence[loop.Stmt],
        start: str,
        end: str,
        advance: Callable[[loop.Accumulator, str], str],
    ) -> None:
        """Steps along ``along``. ``advance`` writes the running results of a step, named ``_s``; its answer keeps them."""
        body = (*first, *s.body)
        self.note((*body, *s.then))
        running = {a.to[0]: "" for a in s.accumulators}
        for a in s.accumulators:
            self.types[a.to[0]] = a.dtype
        inside = self.prepare(along, (*body, *s.then), start, end, running)
        later = [t for t in inside if any(t is other for other in s.then)]
        step = self.fresh("step")
        self.out.open(f"const auto {step} = [&](const int64_t {along.var}, const auto live) INLINE_LAMBDA")
        for t in inside:
            if not any(t is other for other in later):
                self.vector_statement(t)
        for a in s.accumulators:
            kind, value = self.running_kind(a), self.operand(a.args[0])
            keep = advance(a, value if kind == CTYPES[a.dtype] else f"convert<{kind}>({value})")
            self.out(keep)
            text = f"{a.to[0]}_s" if kind == CTYPES[a.dtype] else f"convert<{CTYPES[a.dtype]}>({a.to[0]}_s)"
            self.out(f"const vec<{CTYPES[a.dtype]}> {a.to[0]}_v = {text};")
        for t in later:
            self.vector_statement(t)
        self.out.close(after=";")
        self.out(f"run_steps<{known(along)}>({start}, {end}, {step});")
        self.finish()

    def open_region(self, total: index.Int, serial: bool) -> bool:
        raise NotImplementedError

    def work_sharing(self, loops: int) -> None:
        raise NotImplementedError

    def close_region(self) -> None:
        raise NotImplementedError

    def drain(self) -> None:
        raise NotImplementedError

    def point_locals(self, body: Sequence[loop.Stmt], thread: str) -> None:
        raise NotImplementedError
