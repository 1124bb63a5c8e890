"""Scans in vectors: along memory, with a prefix inside each vector and one number carried on; across memory, with neighbouring
scans side by side, whose running results stay in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reference_backends.cpp_cpu.analysis import gathers, iterations, loads, plain, stride_is
from reference_backends.cpp_cpu.reductions import Reductions, join
from reference_backends.cpp_cpu.table import CTYPES, combined, identity
from reference_backends.cpp_cpu.vectors import known
from vendor_sdk import index, loop

SCANNED = 256
"""Scans that run side by side."""
JOINED = frozenset(("sum", "prod"))
NUMBERS = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))


def _in_vectors(s: loop.Scan) -> bool:
    simple = all(len(a.to) == 1 and a.op in JOINED and a.dtype in NUMBERS for a in s.accumulators)
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
    return scan if crosses and _in_vectors(scan) and not gathers(whole, inner.var) else None


class Scans(Reductions):
    """Text of scans."""

    def running_kind(self, a: loop.Accumulator) -> str:
        return "double" if a.dtype == torch.float32 else CTYPES[a.dtype]

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

        def advance(a: loop.Accumulator, value: str) -> str:
            kind, place = self.running_kind(a), f"{a.to[0]}_w + ({inner.var} - {base})"
            self.out(f"const vec<{kind}> {a.to[0]}_s = {combined(a.op, f'load({place}, live)', value, None)};")
            return f"store({place}, {a.to[0]}_s, live, false);"

        self.scan_steps(s, inner, nest.body[:-1], base, f"min_int({base} + {SCANNED}, {size})", advance)
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
