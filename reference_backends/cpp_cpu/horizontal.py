"""Nests side by side in one parallel region, equal ones as calls of one function: an optimizer step over many parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reference_backends.cpp_cpu.analysis import gathers, iterations, loads, plain, scatters, stores
from reference_backends.cpp_cpu.nests import PIECE, Nests
from reference_backends.cpp_cpu.table import CTYPES
from vendor_sdk import LoopKernel, index, loop

LENGTH = "length"
LINE = 64
"""Elements; no two threads write parts of one cache line, whatever the dtype."""


@dataclass(frozen=True)
class Shared:
    """A nest with names of its own: ``kernel`` has one nest, over ``length``; ``params`` are what it is called with."""

    kernel: LoopKernel
    params: tuple[str, ...]
    size: index.Int


def shared(kernel: LoopKernel, nest: loop.Nest) -> Shared | None:
    """The nest as a function of its buffers and its length, if it is a plain loop over one range."""
    if len(nest.ranges) != 1 or not plain(nest.body) or scatters(nest.body):
        return None
    (r,) = nest.ranges
    if gathers(nest.body, r.var):
        return None
    length = index.symbol(LENGTH, 0)
    variable = index.variable("at", length)
    names: dict[str, str] = {}
    params: dict[str, str] = {}
    body: list[loop.Stmt] = []

    def moved(expression: index.Int) -> index.Int:
        return index.substitute(
            expression, {r.var: variable, **{n: index.symbol(names[n]) for n in index.symbols(expression) if n in names}}
        )

    def called(param: str) -> str:
        return params.setdefault(param, f"a{len(params)}")

    def named(value: str | None) -> str | None:
        return None if value is None else names[value]

    for s in nest.body:
        if isinstance(s, loop.Store):
            body.append(replace(s, param=called(s.param), index=moved(s.index), value=names[s.value], mask=named(s.mask)))
            continue
        if isinstance(s, loop.Load):
            s = replace(s, param=called(s.param), index=moved(s.index), mask=named(s.mask), other=named(s.other))
        elif isinstance(s, loop.Index):
            s = replace(s, index=moved(s.index))
        elif isinstance(s, loop.Compute):
            s = replace(s, args=tuple(names[a] for a in s.args))
        assert isinstance(s, loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute)
        names[s.to] = f"v{len(names)}"
        body.append(replace(s, to=names[s.to]))
    symbols = {n for s in body for n in loop.reads(s)} | {s.symbol for s in body if isinstance(s, loop.Scalar)}
    own = LoopKernel(
        "nest",
        tuple(replace(kernel.param(old), name=new, size=index.ZERO) for old, new in params.items()),
        tuple(s for s in kernel.symbols if s.name in symbols),
        (loop.Nest((loop.Range("at", length),), tuple(body)),),
    )
    return Shared(own, tuple(params), r.size)


class Horizontal(Nests):
    """Text of runs of nests."""

    functions: dict[LoopKernel, str]
    """Names of the functions that nests of this kernel share."""

    def together(self, run: Sequence[tuple[loop.Nest, Shared]]) -> None:
        """Nests that run next to each other; one that touches what an earlier one writes waits for it."""
        total = index.ZERO
        for nest, _ in run:
            total = total + iterations(nest.ranges, nest.body)
        parallel = self.open_region(total, serial=False)
        threads = "omp_get_num_threads()" if parallel else "1"
        self.out(f"const int64_t threads = {threads}, thread = {'omp_get_thread_num()' if parallel else '0'};")
        written: set[str] = set()
        touched: set[str] = set()
        for position, (nest, call) in enumerate(run):
            writes = {s.param for s in stores(nest.body)}
            uses = writes | {s.param for s in loads(nest.body)}
            if parallel and (uses & written or writes & touched):
                self.out("#pragma omp barrier")
                written, touched = set(), set()
            written |= writes
            touched |= uses
            numbers = [self.symbol(s.name) for s in call.kernel.symbols]
            past = ["past_caches"] if self.streams_any(nest) else []
            # Each nest starts with another thread, so that short ones spread.
            first = f"(thread + {position}) % threads" if position else "thread"
            arguments = ", ".join((first, "threads", index.to_c(call.size), "status", *call.params, *numbers, *past))
            self.out(f"{self.function(call, bool(past))}({arguments});")
        self.close_region()

    def streams_any(self, nest: loop.Nest) -> bool:
        return any(s.param in self.streamed for s in stores(nest.body))

    def function(self, call: Shared, past: bool) -> str:
        """Name of the function of a nest, whose text is written once."""
        key = replace(call.kernel, name="past" if past else "nest")
        if key not in self.functions:
            self.functions[key] = f"{self.kernel.name}_nest{len(self.functions)}"
            self.write_function(self.functions[key], call, past)
        return self.functions[key]

    def write_function(self, name: str, call: Shared, past: bool) -> None:
        text = Nests(call.kernel)
        (nest,) = call.kernel.body
        if past:
            text.streamed = frozenset(p.name for p in call.kernel.params if p.role == "out") - {
                s.param for s in loads(nest.body)
            }
        parts = [f"{'const ' if p.role == 'in' else ''}{CTYPES[p.dtype]} *RESTRICT {p.name}" for p in call.kernel.params]
        parts += [f"const {CTYPES[s.dtype]} {text.symbol(s.name)}" for s in call.kernel.symbols]
        parts += ["const bool past_caches"] if past else []
        head = f"const int64_t first, const int64_t threads, const int64_t {LENGTH}, int32_t &status, {', '.join(parts)}"
        text.out.depth = 0
        text.out.open(f"static void {name}({head})")
        # One run a thread: with pieces in turns, many tensors at once lose a third of the bandwidth.
        text.out(f"const int64_t run = max_int({PIECE}, ({LENGTH} / threads / {LINE} + 1) * {LINE}), start = first * run;")
        text.vector_loop(nest.ranges[0], nest.body, "start", f"min_int(start + run, {LENGTH})", cut=False)
        text.out.close()
        self.before.extend(text.out.lines)

    before: list[str]
    """Lines that stand before the kernel's function."""
