"""Reductions and scans: vector accumulators in several chains along memory; scalar loops where bodies hold loops of their own.

Sums of float32 run in blocks: float32 within a block, float64 across blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference_backends.cpp_cpu.analysis import along, blocked, gathers, light, plain
from reference_backends.cpp_cpu.table import CTYPES, combined, identity, wide
from reference_backends.cpp_cpu.vectors import LANE, MANY, Vectors, known
from vendor_sdk import index, loop

BLOCK = 1024
"""Elements of one block of a sum: at most a few dozen additions in each lane before float64 takes over."""
TURNS = 32
"""Additions in each lane of a block that several runs of a short inner loop make."""
LIGHT = 32
"""Iterations of which a run makes one addition in each lane of two chains of 16."""
STREAMS = 4
"""Chains of ``run_streams``: places of memory that a long loop, of which threads have parts, reads at once, since the processor
fetches ahead for each."""
STREAMED = 2
"""Operands of such a loop, at most."""
LONG = 1 << 23
"""Iterations of such a loop, at least: 32 MiB of float32. Sums depend on it, so that it is the same on every machine."""
FEW = 4
"""Accumulators of which each has several chains, all in registers."""
LAST = "0x7fffffffffffffffLL"
"""Worse than any position, so that the first element is taken even when it equals the identity."""


def join(op: str) -> str:
    """A lambda that joins two running results, scalars or vectors."""
    return f"[](auto a, auto b) INLINE_LAMBDA {{ return {combined(op, 'a', 'b', None)}; }}"


def kinds(a: loop.Accumulator) -> list[str]:
    """C++ types of the running results of an accumulator."""
    return [wide(a.op, a.dtype), "int64_t"][: len(a.to)]


class Reductions(Vectors):
    """Text of reductions and scans inside one iteration."""

    def declare(self, a: loop.Accumulator, suffix: str) -> None:
        self.out(f"{wide(a.op, a.dtype)} {a.to[0]}{suffix} = {identity(a.op, a.dtype)};")
        if len(a.to) == 2:
            self.out(f"int64_t {a.to[1]}{suffix} = {LAST};")

    def advance(self, a: loop.Accumulator, suffix: str, values: Sequence[str]) -> None:
        target = f"{a.to[0]}{suffix}"
        kind = wide(a.op, a.dtype)
        if len(a.to) == 1:
            self.out(f"{target} = ({kind}){combined(a.op, target, values[0], kind)};")
            return
        position = f"{a.to[1]}{suffix}"
        test = f"takes_{a.op[3:]}<{kind}>({target}, {position}, {values[0]}, {values[1]})"
        self.out(f"if ({test}) {{ {target} = {values[0]}; {position} = {values[1]}; }}")

    def settle(self, a: loop.Accumulator, suffix: str) -> None:
        for to, dtype in zip(a.to, (a.dtype, torch.int64), strict=False):
            self.types[to] = dtype
            self.out(f"const {CTYPES[dtype]} {to} = ({CTYPES[dtype]}){to}{suffix};")

    def reduce(self, s: loop.Reduce, cut: str = "", start: str = "0", stop: str = "", suffix: str = "") -> None:
        """Runs a reduction. With ``suffix``, its running results are left as ``to + suffix``; ``start`` and ``stop`` bound the
        range of variable ``cut``."""
        running = suffix or "_w"
        self.note(s.body)
        position = along(s.ranges, s.body) if s.ranges and plain(s.body) else None
        if position is not None and (self.is_short(s.ranges[position]) or gathers(s.body, s.ranges[position].var)):
            position = None
        bounds = {r.var: (start, stop) if r.var == cut else ("0", index.to_c(r.size)) for r in s.ranges}
        if position is None:
            for a in s.accumulators:
                self.declare(a, running)
            for r in s.ranges:
                self.open_loop(r, *bounds[r.var])
            if not s.ranges:
                self.out.open("")
            self.body(s.body)
            for a in s.accumulators:
                self.advance(a, running, a.args)
            self.out.close(max(len(s.ranges), 1))
        else:
            self.vector_reduce(s, position, bounds, running, cut)
        if not suffix:
            for a in s.accumulators:
                self.settle(a, "_w")

    def note(self, body: Sequence[loop.Stmt]) -> None:
        """Learns the types of a body's values before its text is written."""
        for s in body:
            if isinstance(s, loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute):
                self.types[s.to] = s.dtype

    def vector_reduce(self, s: loop.Reduce, position: int, bounds: dict[str, tuple[str, str]], running: str, cut: str) -> None:
        inner = s.ranges[position]
        outer = [r for r in s.ranges if r is not inner]
        single = all(len(a.to) == 1 for a in s.accumulators)
        few = single and len(s.accumulators) <= FEW and len(s.body) <= MANY
        chains = (4 if light(s.body) else 2) if few else 1
        for a in s.accumulators:
            for to, kind, first in zip(a.to, self.lane_kinds(a), (identity(a.op, a.dtype), LAST), strict=False):
                self.out(f"Chains<vec<{kind}>, {chains}> {to}_c(vec<{kind}>(({kind}){first}));")
            if blocked(a):
                self.out(f"vec<double> {a.to[0]}_d(0.0);")
        sums = [a for a in s.accumulators if blocked(a)]
        turns = self.turns(inner) if sums and outer else 1
        for r in outer[:-1] if turns > 1 else outer:
            self.open_loop(r, *bounds[r.var])
        block = self.fresh("block") if sums else ""
        if turns > 1:
            first, last = bounds[outer[-1].var]
            self.out.open(f"for (int64_t {block} = {first}; {block} < {last}; {block} += {turns})")
            self.open_loop(outer[-1], block, f"min_int({block} + {turns}, {last})")
        start, end = bounds[inner.var]
        inside = self.prepare(inner, s.body, start, end, {})
        step = self.step(inner, inside, {}, lambda: self.accumulate(s.accumulators), ", const int chain")
        run = f"run_chains<{0 if len(s.body) > MANY else chains}, {known(inner)}>({{}}, {{}}, {step});"
        if sums and turns == 1:
            loads = sum(isinstance(each, loop.Load) for each in s.body)
            long = inner.var == cut and (inner.size.value is None or inner.size.value >= LONG)
            if long and chains == STREAMS and loads <= STREAMED:
                start = self.several_places(sums, inner.size, start, end, step)
            self.out.open(f"for (int64_t {block} = {start}; {block} < {end}; {block} += {BLOCK})")
            self.out(run.format(block, f"min_int({block} + {BLOCK}, {end})"))
            self.end_block(sums, chains)
            self.out.close()
        else:
            self.out(run.format(start, end))
        self.finish()
        if turns > 1:
            self.out.close()
            self.end_block(sums, chains)
        self.out.close(len(outer))
        for a in s.accumulators:
            self.gather_lanes(a, running)

    def several_places(self, sums: Sequence[loop.Accumulator], size: index.Int, start: str, end: str, step: str) -> str:
        """Runs all chains at once, each in a part of the range, of a loop that is long enough; where the rest begins."""
        apart, done, block = self.fresh("apart"), self.fresh("done"), self.fresh("block")
        enough = "" if size.value is not None else f"{index.to_c(size)} < {LONG} ? 0 : "
        self.out(f"const int64_t {apart} = {enough}({end} - {start}) / {BLOCK} * {BLOCK // STREAMS};")
        self.out.open(f"for (int64_t {block} = 0; {block} < {apart}; {block} += {BLOCK // STREAMS})")
        self.out(f"run_streams({start} + {block}, {start} + {block} + {BLOCK // STREAMS}, {apart}, {step});")
        self.end_block(sums, STREAMS)
        self.out.close()
        self.out(f"const int64_t {done} = {start} + {STREAMS} * {apart};")
        return done

    def turns(self, inner: loop.Range) -> int:
        """How often a short inner loop runs in one block of a sum."""
        size = inner.size.value
        return max(1, min(TURNS, TURNS * LIGHT // max(size, 1))) if size is not None else 1

    def end_block(self, sums: Sequence[loop.Accumulator], chains: int) -> None:
        for a in sums:
            to = a.to[0]
            self.out(f"{to}_d = {to}_d + convert<double>({to}_c.joined({join('sum')}));")
            self.out(f"{to}_c = Chains<vec<float>, {chains}>(vec<float>(0.0f));")

    def lane_kinds(self, a: loop.Accumulator) -> list[str]:
        """Element types of the vectors that an accumulator runs in."""
        kind = "double" if a.op == "prod" and a.dtype == torch.float32 else CTYPES[a.dtype]
        return [kind, "int64_t"][: len(a.to)]

    def accumulate(self, accumulators: Sequence[loop.Accumulator]) -> None:
        for a in accumulators:
            kind = self.lane_kinds(a)[0]
            target, value = f"{a.to[0]}_c.at[chain]", self.operand(a.args[0])
            if len(a.to) == 1:
                if kind != CTYPES[a.dtype]:
                    value = f"convert<{kind}>({value})"
                kept = f"kept(live, {value}, vec<{kind}>(({kind}){identity(a.op, a.dtype)}))"
                self.out(f"{target} = {combined(a.op, target, kept, None)};")
                continue
            position, where = f"{a.to[1]}_c.at[chain]", self.operand(a.args[1])
            take = self.fresh("take")
            test = f"takes_{a.op[3:]}({target}, {position}, {value}, {where})"
            self.out(f"const B {take} = {test} & alive(live);")
            self.out(f"{target} = select({take}, {value}, {target});")
            self.out(f"{position} = select({take}, {where}, {position});")

    def gather_lanes(self, a: loop.Accumulator, suffix: str) -> None:
        """One number of the chains and their lanes."""
        kind = wide(a.op, a.dtype)
        if len(a.to) == 2:
            self.declare(a, suffix)
            self.out.open(f"for (int {LANE} = 0; {LANE} < LANES; ++{LANE})")
            self.advance(a, suffix, [f"({k}){to}_c.at[0][{LANE}]" for to, k in zip(a.to, kinds(a), strict=True)])
            self.out.close()
            return
        to = a.to[0]
        vector = f"{to}_d" if blocked(a) else f"{to}_c.joined({join(a.op)})"
        element = "double" if blocked(a) else self.lane_kinds(a)[0]
        self.out(f"const {kind} {to}{suffix} = across<{element}>({vector}, {join(a.op)});")

    def scan(self, s: loop.Scan) -> None:
        for a in s.accumulators:
            self.declare(a, "_w")
        self.open_loop(s.range)
        self.body(s.body)
        for a in s.accumulators:
            if len(a.to) == 2:
                # The latest of equals, as torch's cummax and cummin have it.
                value, best = a.args[0], f"{a.to[0]}_w"
                better = f"{value} {'>=' if a.op == 'argmax' else '<='} {best}"
                taken = f"{best} = {value}; {a.to[1]}_w = {a.args[1]};"
                self.out(f"if ({value} != {value} || ({best} == {best} && {better})) {{ {taken} }}")
            else:
                self.advance(a, "_w", a.args)
            self.settle(a, "_w")
        self.body(s.then)
        self.out.close()
