"""Nests: which loops run in parallel, in vectors, in tiles; where buffers of one iteration live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reference_backends.cpp_cpu.analysis import along, collides, iterations, plain, repeated, scatters, work
from reference_backends.cpp_cpu.reductions import kinds
from reference_backends.cpp_cpu.rows import Rows
from reference_backends.cpp_cpu.scans import side_by_side, turned_scan
from reference_backends.cpp_cpu.sliding import window
from reference_backends.cpp_cpu.statements import GRAIN, Region
from reference_backends.cpp_cpu.table import CTYPES
from reference_backends.cpp_cpu.tiles import Tiles, crossing
from vendor_sdk import index, loop

PIECE = 8192
"""Iterations of a long inner loop that one thread takes at a time; a multiple of every vector's length."""
SHARE = 512
"""The same where each of its steps runs a loop of its own."""
CHUNKS = 64
"""Parts a reduction to one result is cut into: a fixed number, so that results do not depend on the number of threads."""
FEW = 8
"""Rows of which there are too few to give every thread its own."""
LONG = 1 << 17
"""Inner iterations that make one row worth several threads."""
STACK_BYTES = 1 << 15
"""Largest buffer of one iteration that lives on the stack."""


def shareable(s: loop.Stmt) -> bool:
    """Whether all threads can work on one statement at once, if it is a loop at all."""
    if isinstance(s, loop.Nest):
        return window(s) is not None or (plain(s.body) and not scatters(s.body))
    return plain(s.body) if isinstance(s, loop.Reduce) else not isinstance(s, loop.Scan)


class Nests(Tiles):
    """Text of whole nests."""

    region: Region | None
    """The open parallel region, if there is one."""

    def nest(self, nest: loop.Nest) -> None:
        """A nest of the kernel itself."""
        if isinstance(nest, Rows):
            self.rows(nest, serial=False)
            return
        serial = collides(nest)
        if not nest.ranges:
            self.single(nest.body)
            return
        sliding = None if serial else window(nest)
        if sliding is not None:
            self.windows(sliding, alone=True)
            return
        turned = None if serial else self.as_columns(nest)
        if turned is not None:
            self.columns(turned)
            return
        scan = None if serial else side_by_side(nest)
        if scan is not None:
            self.scans(nest, scan)
            return
        turned_one = None if serial else turned_scan(nest)
        if turned_one is not None:
            self.turned_scans(nest, turned_one)
            return
        if serial and plain(nest.body) and len(nest.ranges) > 1 and not collides(replace(nest, ranges=nest.ranges[-1:])):
            self.strips(nest)
            return
        if plain(nest.body):
            tiled = None if scatters(nest.body) else crossing(nest)
            if tiled is not None:
                self.tiles(nest, tiled)
            else:
                self.pointwise(nest, serial)
            return
        self.rows(nest, serial)

    # Plain bodies

    def pointwise(self, nest: loop.Nest, serial: bool = False) -> None:
        ranges = nest.ranges
        position = len(ranges) - 1 if serial else along(ranges, nest.body)
        if not position and len(ranges) > 1 and scatters(nest.body):
            # Only iterations of the outermost loop are known to keep apart: that is the one that threads share.
            position = 1 + along(ranges[1:], nest.body)
        inner = ranges[position]
        within = repeated(ranges, inner, nest.body)
        outer = [r for r in ranges if r is not inner and r is not within]
        size = inner.size
        piece = PIECE if within is None else SHARE
        pieces = not serial and (size.value is None or size.value > 2 * piece)
        total = iterations(ranges, nest.body)
        # Only the outermost loop keeps scattering iterations apart.
        together = 1 if scatters(nest.body) else len(outer) + pieces
        parallel = self.open_region(total, serial)
        if parallel and (together > 1 or outer or pieces):
            self.work_sharing(max(together, 1))
        for r in outer:
            self.open_loop(r)
        start, end = "0", index.to_c(size)
        if pieces:
            start = self.fresh("piece")
            self.out.open(f"for (int64_t {start} = 0; {start} < {end}; {start} += {piece})")
            end = f"min_int({start} + {piece}, {end})"
        elif parallel and not outer:
            self.out("#pragma omp single nowait")
            self.out.open("")
        self.vector_loop(inner, nest.body, start, end, within=within)
        self.out.close(len(outer) + (pieces or (parallel and not outer)))
        self.close_region()

    def strips(self, nest: loop.Nest) -> None:
        """A nest whose outer iterations meet in one element and whose innermost ones do not.

        Every thread runs all of the outer loops over a strip of the innermost, so that what an element gets comes in one order,
        however many threads there are.
        """
        inner, outer = nest.ranges[-1], nest.ranges[:-1]
        size = index.to_c(inner.size)
        parallel = self.open_region(iterations(nest.ranges, nest.body), serial=False)
        width, start, end = (self.fresh(n) for n in ("width", "start", "end"))
        threads, thread = ("omp_get_num_threads()", "omp_get_thread_num()") if parallel else ("1", "0")
        self.out(f"const int64_t {width} = ({size} + {threads} * LANES - 1) / ({threads} * LANES) * LANES;")
        self.out(f"const int64_t {start} = min_int({thread} * {width}, {size}), {end} = min_int({start} + {width}, {size});")
        for r in outer:
            self.open_loop(r)
        self.vector_loop(inner, nest.body, start, end)
        self.out.close(len(outer))
        self.close_region()

    def open_region(self, total: index.Int, serial: bool) -> bool:
        """Opens a block that all threads run, where ``total`` iterations are worth it; whether they do."""
        parallel = not serial and (total.value is None or total.value >= GRAIN)
        self.region = self.open_parallel(total) if parallel else None
        self.out.open("")
        return parallel

    def work_sharing(self, loops: int) -> None:
        collapse = f" collapse({loops})" if loops > 1 else ""
        self.out(f"#pragma omp for{collapse} schedule(static) nowait")

    def close_region(self) -> None:
        self.drain()
        self.out.close()
        if self.region is not None:
            self.close_parallel(self.region)

    def drain(self) -> None:
        """Lets others see what this thread stored past the caches."""
        if self.streamed:
            self.out("if (past_caches) drain_streams();")

    # Rows

    def rows(self, nest: loop.Nest, serial: bool) -> None:
        """A nest whose body holds loops: one iteration a thread at a time, or, where there are few, all threads in each."""
        count = index.product([r.size for r in nest.ranges])
        each = work(nest.body)
        long = each.value is None or each.value >= LONG
        few = count.value is not None and count.value < FEW and long and all(map(shareable, nest.body))
        if few or serial:
            self.out.open("")
            self.point_locals(nest.body, "0")
            for r in nest.ranges:
                self.open_loop(r)
            if few:
                self.single_body(nest.body)
            else:
                self.body(nest.body)
            self.out.close(len(nest.ranges) + 1)
            return
        total = iterations(nest.ranges, nest.body)
        parallel = self.open_region(total, serial=False)
        self.point_locals(nest.body, "omp_get_thread_num()" if parallel else "0")
        if parallel:
            self.work_sharing(1 if scatters(nest.body) else len(nest.ranges))
        for r in nest.ranges:
            self.open_loop(r)
        self.body(nest.body)
        self.out.close(len(nest.ranges))
        self.close_region()

    def single(self, body: Sequence[loop.Stmt]) -> None:
        """A nest of one iteration."""
        self.out.open("")
        self.point_locals(body, "0")
        self.single_body(body)
        self.out.close()

    def single_body(self, body: Sequence[loop.Stmt]) -> None:
        """One iteration whose loops all threads share."""
        for s in body:
            if isinstance(s, loop.Reduce) and s.ranges and shareable(s):
                size = iterations(s.ranges, s.body)
                if size.value is None or size.value >= GRAIN:
                    self.chunks(s, size)
                    continue
            if isinstance(s, loop.Nest) and s.ranges and shareable(s):
                sliding = window(s)
                if sliding is not None:
                    self.windows(sliding, alone=True)
                else:
                    self.pointwise(s)
                continue
            self.statement(s)

    def chunks(self, s: loop.Reduce, size: index.Int) -> None:
        longest = max(s.ranges, key=lambda r: r.size.value or 0)
        chunk, part, start, stop = (self.fresh(n) for n in ("chunk", "part", "start", "stop"))
        length = index.to_c(longest.size)
        for a in s.accumulators:
            for to, kind in zip(a.to, kinds(a), strict=True):
                self.out(f"{kind} {to}_p[{CHUNKS}];")
        # Vectors of all chains, but for the last chunk.
        self.out(f"const int64_t {chunk} = ({length} + {CHUNKS * 64 - 1}) / {CHUNKS * 64} * 64;")
        region = self.open_parallel(size, " for schedule(static)")
        self.out.open(f"for (int64_t {part} = 0; {part} < {CHUNKS}; ++{part})")
        self.out(f"const int64_t {start} = min_int({part} * {chunk}, {length});")
        self.out(f"const int64_t {stop} = min_int({start} + {chunk}, {length});")
        self.reduce(s, longest.var, start, stop, suffix="_w")
        for a in s.accumulators:
            for to in a.to:
                self.out(f"{to}_p[{part}] = {to}_w;")
        self.out.close()
        self.close_parallel(region)
        for a in s.accumulators:
            self.declare(a, "_w")
            self.out.open(f"for (int64_t {part} = 0; {part} < {CHUNKS}; ++{part})")
            self.advance(a, "_w", [f"{to}_p[{part}]" for to in a.to])
            self.out.close()
            self.settle(a, "_w")

    # Buffers

    def open_memory(self) -> None:
        """One block for the buffers of the launch and for those of one iteration that are too large for the stack."""
        self.heap: dict[str, str] = {}
        names: list[tuple[str, str, bool]] = [(p.name, self.bytes(p), False) for p in self.kernel.scratch]
        for nest in self.kernel.body:
            turned = self.as_columns(nest) if nest.ranges and not collides(nest) else None
            columns = self.tile_of(turned) if turned is not None else 0
            for s in loop.walk((nest,)):
                if isinstance(s, loop.Local) and columns:
                    tile = replace(s.param, size=s.param.size * columns)
                    names.append((s.param.name, self.bytes(tile), turned is not None and not self.is_cut(turned)))
                elif isinstance(s, loop.Local) and not self.on_stack(s.param):
                    names.append((s.param.name, self.bytes(s.param), True))
        self.memory = self.fresh("memory") if names else ""
        if not names:
            return
        self.out("int64_t block_bytes = 0;")
        for name, size, private in names:
            self.out(f"const int64_t {name}_at = block_bytes, {name}_bytes = {size};")
            self.out(f"block_bytes += {name}_bytes{' * omp_get_max_threads()' if private else ''};")
            self.heap[name] = CTYPES[self.kernel.param(name).dtype]
        self.out("const Memory block(spare, block_bytes);")
        self.out("if (!block.data) return OUT_OF_MEMORY;")
        self.out(f"char *const {self.memory} = block.data;")
        for p in self.kernel.scratch:
            self.out(f"{self.heap[p.name]} *const {p.name} = ({self.heap[p.name]} *)({self.memory} + {p.name}_at);")

    def bytes(self, p: loop.Param) -> str:
        return f"(({index.to_c(p.size)}) * {p.dtype.itemsize} + 127) / 64 * 64"

    def on_stack(self, p: loop.Param) -> bool:
        return p.size.value is not None and p.size.value * p.dtype.itemsize <= STACK_BYTES

    def point_locals(self, body: Sequence[loop.Stmt], thread: str) -> None:
        """Where this thread's buffers of one iteration are."""
        for s in loop.walk(tuple(body)):
            if isinstance(s, loop.Local) and s.param.name in self.heap:
                name = s.param.name
                kind = self.heap[name]
                self.out(f"{kind} *const {name} = ({kind} *)({self.memory} + {name}_at + {name}_bytes * {thread});")

    # Statements with bodies

    def statement(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Reduce):
            self.reduce(s)
        elif isinstance(s, loop.Scan):
            self.scan(s)
        elif isinstance(s, loop.Nest):
            self.inner(s)
        elif isinstance(s, loop.Local):
            if s.param.name not in self.heap:
                kind = CTYPES[s.param.dtype]
                self.out(f"alignas(64) {kind} {s.param.name}[{index.to_c(s.param.size)} + LANES];")
        else:
            super().statement(s)

    def inner(self, s: loop.Nest) -> None:
        """A nest inside an iteration."""
        sliding = window(s)
        if sliding is not None:
            self.windows(sliding, alone=False)
            return
        turned = None if plain(s.body) or any(isinstance(t, loop.Local) for t in s.body) else self.as_columns(s)
        if turned is not None:
            self.columns(turned, alone=False)
            return
        if not s.ranges or not plain(s.body):
            if not s.ranges:
                self.out.open("")
            for r in s.ranges:
                self.open_loop(r)
            self.body(s.body)
            self.out.close(max(len(s.ranges), 1))
            return
        inner = s.ranges[along(s.ranges, s.body)]
        outer = [r for r in s.ranges if r is not inner]
        for r in outer:
            self.open_loop(r)
        self.vector_loop(inner, s.body)
        self.out.close(len(outer))
