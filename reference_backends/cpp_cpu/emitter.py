"""Loop kernels to C++: one function a kernel, one translation unit a graph.

The text is made in layers, a class and a file each: ``statements`` (one iteration, one number at a time), ``vectors`` (loops
without loops inside), ``reductions`` (sums and extremes of one iteration), ``scans`` (running results), ``columns`` (reductions
across memory), ``sliding`` (windows of many elements), ``tiles`` (nests that transpose), ``nests`` (threads, buffers of one
iteration), ``horizontal`` (nests side by side), ``rows`` (nests joined row by row). This file joins them to kernels.

Results do not depend on the number of threads: what is summed apart is cut by sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from reference_backends.cpp_cpu import attention, compiler, contraction, grouped, machine, units
from reference_backends.cpp_cpu import program as launching
from reference_backends.cpp_cpu.analysis import collides, loads, scatters
from reference_backends.cpp_cpu.horizontal import Horizontal, Shared, shared
from reference_backends.cpp_cpu.rows import Rows, by_rows
from reference_backends.cpp_cpu.table import OPS
from reference_backends.cpp_cpu.turned_columns import turned
from vendor_sdk import Emitter, Entry, Launch, Limits, LoopKernel, Program, index, loop

SMALL = 1 << 20
"""Bytes of results that any last-level cache holds: below, nothing needs to ask whether to store past it."""

__all__ = ["OPS", "CppEmitter", "KernelText"]


class KernelText(Horizontal):
    """The text of one kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        super().__init__(kernel)
        self.params = {p.name: p for p in (*kernel.params, *kernel.scratch)}
        sizes = {name: p.dtype.itemsize for name, p in self.params.items()}
        self.kernel = replace(kernel, body=by_rows(list(map(self.turned, kernel.body)), sizes))
        self.functions, self.before = {}, []
        # What is touched again, at once in a joined nest, is better in a cache.
        again = {s.param for s in loads(kernel.body)}
        again |= {s.param for nest in self.kernel.body if isinstance(nest, Rows) for s in scatters(nest.body)}
        self.streamed = frozenset(p.name for p in kernel.params if p.role == "out") - again

    def turned(self, nest: loop.Nest) -> loop.Nest:
        """A nest as it is, or whose rows run as columns if some of their operands lie across memory."""
        dtypes = {p.name: p.dtype for p in (*self.kernel.params, *self.kernel.scratch)}
        if not nest.ranges or contraction.template(nest) is not None or collides(nest) or self.as_columns(nest) is not None:
            return nest
        found = turned(nest, dtypes)
        return nest if found is None or self.as_columns(found) is None else found

    def signature(self) -> str:
        parts = [f"{kind}{name}" for name, kind in self.arguments().items()]
        return f'extern "C" int32_t {self.kernel.name}({", ".join((*parts, "Spare spare"))})'

    def text(self) -> str:
        self.out.depth = 0
        self.out.open(self.signature())
        self.out("int32_t status = OK;")
        written = index.ZERO
        for name in self.streamed:
            written = written + self.params[name].size * self.params[name].dtype.itemsize
        if written.value is not None and written.value < SMALL:
            self.streamed = frozenset()
        if self.streamed:
            self.out(f"const bool past_caches = {index.to_c(written)} > CACHE_BYTES;")
        self.open_memory()
        run: list[tuple[loop.Nest, Shared]] = []
        for nest in self.kernel.body:
            call = shared(self.kernel, nest) if len(self.kernel.body) > 1 and type(nest) is loop.Nest else None
            if call is None:
                self.flush(run)
                self.top(nest)
            else:
                run.append((nest, call))
        self.flush(run)
        self.out("return status;")
        self.out.close()
        return "\n".join((*self.before, *self.out.lines)) + "\n"

    def flush(self, run: list[tuple[loop.Nest, Shared]]) -> None:
        if len(run) > 1:
            self.together(run)
        else:
            for nest, _ in run:
                self.top(nest)
        run.clear()

    def top(self, nest: loop.Nest) -> None:
        product = contraction.template(nest)
        if product is not None:
            contraction.write(self, product)
            return
        self.nest(nest)


class CppEmitter(Emitter):
    """C++17 for the machine it runs on."""

    ops = OPS
    limits = Limits(
        local_bytes=machine.cache_bytes(2) // 4,
        local_dynamic=True,
        buffers=4096,
        nests=512,
        copies=4,
        window=49,
        interleaves=True,
        affine=8,
    )

    def foresee(self, prims: Mapping[str, frozenset[torch.dtype]]) -> None:
        for prim, dtypes in prims.items():
            for dtype in dtypes:
                if prim in attention.COMPOSITES:
                    attention.prepare(prim, dtype)
                elif prim in grouped.COMPOSITES:
                    grouped.prepare(dtype)
                elif prim in ("mm", "convolution"):
                    contraction.prepare(dtype, convolutions=prim == "convolution")

    def emit(self, kernel: LoopKernel) -> str:
        return KernelText(kernel).text()

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        return list(units.compiled(kernels))

    def panel(self, dtype: torch.dtype, rows: int | None, columns: int, steps: int) -> int:
        width = contraction.panel(dtype)
        return width if width and columns >= width and steps else 0

    def reads_along(self, dtype: torch.dtype, rows: int | None, columns: int, steps: int) -> bool:
        return contraction.reads_along(dtype, rows, columns, steps)

    def link(self, program: Program) -> Entry | None:
        return launching.link(program)

    def release(self) -> int:
        return launching.release() + compiler.release()
