"""Loop kernels to C++: one function a kernel, one translation unit a graph.

Four shapes of code, chosen from the strides of the loads:

- *rows*: iterations of a nest run one by one, in parallel; reductions inside run along memory with vector accumulators;
- *tiles*: a nest that reads across memory what it writes along it runs in square tiles;
- *columns*: where a reduction walks across memory and the nest's innermost loop along it, a tile of results is accumulated
  at once;
- *chunks*: a reduction to one result is cut into a fixed number of chunks, so that results do not depend on the number of
  threads.

Sums run in blocks: float32 lanes within a block, float64 across blocks.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from reference_backends.cpp_cpu import compiler
from vendor_sdk import Emitter, Launch, LoopKernel, index, loop

CTYPES: Mapping[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}

GRAIN = 32768
"""Inner iterations below which a loop is not worth other threads."""
BLOCK = 128
"""Elements summed in the value's own precision before float64 takes over."""
TILE = 128
"""Results a column reduction accumulates at once."""
SQUARE = 16
"""Side of the tiles of a transposing loop."""
CHUNKS = 64
"""Parts a reduction to one result is cut into."""

_CALLS = [
    "floor",
    "ceil",
    "trunc",
    "round",
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "hypot",
    "sigmoid",
    "erf",
    "erfc",
    "copysign",
    "nextafter",
    "frexp_mantissa",
    "frexp_exponent",
    "abs",
    "sign",
    "pow",
    "fmax",
    "fmin",
    "max",
    "min",
    "gcd",
    "shl",
    "shr",
    "signbit",
    "philox",
]
_SPECIAL = [
    "erfinv",
    "erfcx",
    "ndtri",
    "lgamma",
    "digamma",
    "trigamma",
    "zeta",
    "igamma",
    "igammac",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "bessel_k0",
    "bessel_k1",
    "bessel_k0e",
    "bessel_k1e",
    "spherical_bessel_j0",
    "airy_ai",
]
_WITH_STATUS = ("floordiv", "truncdiv", "mod", "fmod")

OPS: Mapping[str, str] = {
    **{name: f"op_{name}({{args}})" for name in (*_CALLS, *_SPECIAL)},
    **{name: f"op_{name}({{args}}, &status)" for name in _WITH_STATUS},
    "wrap_index": "wrap_index({args}, &status)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": "op_abs({0}) == ({T})__builtin_inf()",
    "where": "{0} ? {1} : {2}",
    "bitand": "{0} & {1}",
    "bitor": "{0} | {1}",
    "bitxor": "{0} ^ {1}",
    "bitnot": "~{0}",
    "convert": "convert<{R}>({0})",
    "bitcast": "bits<{R}>({0})",
    **{f"reduce.{name}": "" for name in ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin")},
    **{f"scan.{name}": "" for name in ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")},
    **{f"store.{name}": "" for name in ("add", "mul", "max", "min")},
    "scratch": "",
    "nest": "",
}
"""Loop op to C++ expression: ``{0}``... are operands, ``{args}`` all of them, ``{T}`` their type, ``{R}`` the result's."""

_COMBINE = {
    "sum": "({0} + {1})",
    "add": "({0} + {1})",
    "prod": "({0} * {1})",
    "mul": "({0} * {1})",
    "max": "op_max<{T}>({0}, {1})",
    "min": "op_min<{T}>({0}, {1})",
    "any": "({0} | {1})",
    "all": "({0} & {1})",
    "xor": "({0} ^ {1})",
    "logaddexp": "op_logaddexp({0}, {1})",
}
_SIMD = {"sum": "+", "prod": "*", "max": "nan_max", "min": "nan_min", "any": "|", "all": "&", "xor": "^"}


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A C++ constant with exactly this value."""
    kind = CTYPES[dtype]
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        if math.isnan(value):
            return f'({kind})__builtin_nan("")'
        if math.isinf(value):
            return f"({kind}){'-' if value < 0 else ''}__builtin_inf()"
        return f"({kind}){float(value).hex()}"
    if value == -(2**63):
        return "(-0x7fffffffffffffffLL - 1)"
    return f"({kind}){int(value)}LL"


def identity(op: str, dtype: torch.dtype) -> str:
    """The value that starts a reduction."""
    if op in ("sum", "any", "xor"):
        return literal(0, dtype)
    if op in ("prod", "all"):
        return literal(1, dtype)
    if op == "logaddexp":
        return literal(-math.inf, dtype)
    low = op in ("max", "argmax")
    if dtype == torch.bool:
        return literal(not low, dtype)
    if dtype.is_floating_point:
        return literal(-math.inf if low else math.inf, dtype)
    info = torch.iinfo(dtype)
    return literal(info.min if low else info.max, dtype)


def wide(op: str, dtype: torch.dtype) -> str:
    """C++ type that a running result is kept in."""
    if dtype == torch.float32 and op in ("sum", "prod"):
        return "double"
    if dtype == torch.bool:
        return "int32_t"
    return CTYPES[dtype]


@dataclass
class Writer:
    """Indented lines of C++."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __call__(self, text: str) -> None:
        self.lines.append(text if text.startswith("#") else "  " * self.depth + text)

    def open(self, text: str) -> None:
        self(text + " {")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self("}")


def plain(body: Sequence[loop.Stmt]) -> bool:
    """Whether a body has no loops inside."""
    return not any(isinstance(s, loop.Reduce | loop.Scan | loop.Nest) for s in body)


def loads(body: Sequence[loop.Stmt]) -> list[loop.Load]:
    return [s for s in loop.walk(tuple(body)) if isinstance(s, loop.Load)]


def combines(body: Sequence[loop.Stmt]) -> bool:
    """Whether a body has stores that read what they write."""
    return any(isinstance(s, loop.Store) and s.mode != "set" for s in loop.walk(tuple(body)))


def stride_is(expression: index.Int, variable: str, *values: int) -> bool:
    step = index.stride(expression, variable)
    return step is not None and step.value in values


class KernelText:
    """The text of one kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.out = Writer()
        self.types: dict[str, torch.dtype] = {}
        self.params = {p.name: p for p in (*kernel.params, *kernel.scratch)}
        self.symbols = {s.name: s for s in kernel.symbols}
        self.counter = 0

    def signature(self) -> str:
        parts = []
        for p in self.kernel.params:
            qualifier = "const " if p.role == "in" else ""
            parts.append(f"{qualifier}{CTYPES[p.dtype]} *RESTRICT {p.name}")
        for s in self.kernel.symbols:
            parts.append(f"const {CTYPES[s.dtype]} {self.symbol(s.name)}")
        return f'extern "C" int32_t {self.kernel.name}({", ".join(parts)})'

    def symbol(self, name: str) -> str:
        """Shape symbols are torch's short names; anything else could clash with a name of C++."""
        return name if self.symbols[name].role == "size" else f"arg_{name}"

    def text(self) -> str:
        self.out.depth = 0
        self.out.open(self.signature())
        self.out("int32_t status = OK;")
        for p in self.kernel.scratch:
            kind = CTYPES[p.dtype]
            self.out(f"{kind} *const {p.name} = ({kind} *)__builtin_malloc(({index.to_c(p.size)} + 1) * sizeof({kind}));")
            self.out(f"if (!{p.name}) return OUT_OF_MEMORY;")
        for nest in self.kernel.body:
            self.top(nest)
        for p in self.kernel.scratch:
            self.out(f"__builtin_free({p.name});")
        self.out("return status;")
        self.out.close()
        return "\n".join(self.out.lines) + "\n"

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}_{self.counter}"

    # Nests

    def top(self, nest: loop.Nest) -> None:
        serial = self.collides(nest)
        if not nest.ranges:
            self.single(nest.body, serial)
            return
        reduces = [s for s in nest.body if isinstance(s, loop.Reduce)]
        inner = nest.ranges[-1]
        simple = all(plain(r.body) for r in reduces) and all(isinstance(s, loop.Reduce) or plain([s]) for s in nest.body)
        if reduces and simple and not serial and any(self.crosses(r, inner.var) for r in reduces):
            self.columns(nest)
            return
        work = index.product([r.size for r in nest.ranges]) * self.work(nest.body)
        parallel = not serial and (work.value is None or work.value >= GRAIN)
        clause = f" if({index.to_c(work)} >= {GRAIN})" if work.value is None else ""
        vector = plain(nest.body) and not self.scatters(nest.body)
        across = self.across(nest) if vector else None
        if across is not None:
            self.tiles(nest, across, parallel, clause)
            return
        outer = list(nest.ranges[:-1]) if vector else list(nest.ranges)
        rows = index.product([r.size for r in outer])
        short = rows.value is not None and rows.value < 16
        self.out.open("")
        if parallel and outer and not (vector and short):
            together = 1 if self.scatters(nest.body) else len(outer)
            collapse = f" collapse({together})" if together > 1 else ""
            self.out(f"#pragma omp parallel for{collapse} schedule(static){clause}")
            parallel = False
        for r in outer:
            self.open_loop(r)
        if vector:
            self.out(f"#pragma omp parallel for simd schedule(static){clause}" if parallel else "#pragma omp simd")
            self.open_loop(inner)
        self.body(nest.body)
        self.out.close(len(nest.ranges) + 1)

    def across(self, nest: loop.Nest) -> loop.Range | None:
        """The outer range along which a load is contiguous that the innermost range walks across: a transposed read."""
        inner = nest.ranges[-1].var
        for r in nest.ranges[:-1]:
            if any(stride_is(s.index, r.var, 1) and not stride_is(s.index, inner, 0, 1) for s in loads(nest.body)):
                return r
        return None

    def tiles(self, nest: loop.Nest, across: loop.Range, parallel: bool, clause: str) -> None:
        """A transposing nest in square tiles, so that every cache line that is read or written is used whole."""
        inner = nest.ranges[-1]
        rest = [r for r in nest.ranges[:-1] if r is not across]
        self.out.open("")
        if parallel:
            self.out(f"#pragma omp parallel for collapse({len(rest) + 2}) schedule(static){clause}")
        for r in rest:
            self.open_loop(r)
        starts = {}
        for r in (across, inner):
            starts[r.var] = self.fresh("tile")
            start, size = starts[r.var], index.to_c(r.size)
            self.out.open(f"for (int64_t {start} = 0; {start} < {size}; {start} += {SQUARE})")
        for r in (across, inner):
            if r is inner:
                self.out("#pragma omp simd")
            self.open_loop(r, starts[r.var], f"min_int({starts[r.var]} + {SQUARE}, {index.to_c(r.size)})")
        self.body(nest.body)
        self.out.close(len(rest) + 5)

    def scatters(self, body: Sequence[loop.Stmt]) -> list[loop.Store]:
        """Stores of which two iterations may write one element: combining ones, and those whose index is itself loaded."""
        stores = [s for s in loop.walk(tuple(body)) if isinstance(s, loop.Store)]
        values = {s.to for s in loop.walk(tuple(body)) if isinstance(s, loop.Load | loop.Compute)}
        return [s for s in stores if s.mode != "set" or values & index.symbols(s.index).keys()]

    def collides(self, nest: loop.Nest) -> bool:
        """Whether iterations of the outermost loop may write one element; then they run in order, which also keeps the result
        independent of the number of threads."""
        scatters = self.scatters(nest.body)
        return bool(scatters) and not (nest.ranges and all(self.apart(s.index, nest.ranges[0].var) for s in scatters))

    def apart(self, position: index.Int, variable: str) -> bool:
        """Whether the part of ``position`` that does not follow ``variable`` stays within one step of it."""
        step = index.stride(position, variable)
        if step is None or step == 0:
            return False
        rest = index.substitute(position, {variable: index.wrap(0)})
        return index.nonnegative(rest) and index.less(rest, step)

    def work(self, body: Sequence[loop.Stmt]) -> index.Int:
        """Inner iterations of one iteration of a nest with this body."""
        total = index.ONE
        for s in body:
            if isinstance(s, loop.Reduce | loop.Nest):
                total = total + index.product([r.size for r in s.ranges]) * self.work(s.body)
            elif isinstance(s, loop.Scan):
                total = total + s.range.size
        return total

    def crosses(self, reduce: loop.Reduce, inner: str) -> bool:
        """Whether a reduction walks across memory that the nest's innermost loop walks along."""
        if not reduce.ranges or any(a.op in ("argmax", "argmin") for a in reduce.accumulators):
            return False
        last = reduce.ranges[-1].var
        return any(stride_is(s.index, inner, 1) and not stride_is(s.index, last, 0, 1) for s in loads(reduce.body))

    def open_loop(self, r: loop.Range, start: str = "0", end: str | None = None) -> None:
        end = end or index.to_c(r.size)
        self.out.open(f"for (int64_t {r.var} = {start}; {r.var} < {end}; ++{r.var})")

    def single(self, body: Sequence[loop.Stmt], serial: bool) -> None:
        """A nest of one iteration: its reductions are cut into chunks."""
        self.out.open("")
        for s in body:
            if isinstance(s, loop.Reduce) and s.ranges and plain(s.body):
                size = index.product([r.size for r in s.ranges])
                if size.value is None or size.value >= GRAIN:
                    self.chunks(s, size)
                    continue
            self.statement(s)
        self.out.close()

    def chunks(self, s: loop.Reduce, size: index.Int) -> None:
        first = s.ranges[0]
        chunk, part, start, stop = (self.fresh(n) for n in ("chunk", "part", "start", "stop"))
        length = index.to_c(first.size)
        for a in s.accumulators:
            for to, kind in zip(a.to, self.kinds(a), strict=True):
                self.out(f"{kind} {to}_p[{CHUNKS}];")
        self.out(f"const int64_t {chunk} = ({length} + {CHUNKS - 1}) / {CHUNKS};")
        clause = f" if({index.to_c(size)} >= {GRAIN})" if size.value is None else ""
        self.out(f"#pragma omp parallel for schedule(static){clause}")
        self.out.open(f"for (int64_t {part} = 0; {part} < {CHUNKS}; ++{part})")
        self.out(f"const int64_t {start} = min_int({part} * {chunk}, {length});")
        self.out(f"const int64_t {stop} = min_int({start} + {chunk}, {length});")
        self.reduce(s, start, stop, suffix="_c")
        for a in s.accumulators:
            for to in a.to:
                self.out(f"{to}_p[{part}] = {to}_c;")
        self.out.close()
        for a in s.accumulators:
            self.declare(a, "_w")
            self.out.open(f"for (int64_t {part} = 0; {part} < {CHUNKS}; ++{part})")
            self.advance(a, "_w", [f"{to}_p[{part}]" for to in a.to])
            self.out.close()
            self.settle(a, "_w")

    # Columns

    def columns(self, nest: loop.Nest) -> None:
        inner = nest.ranges[-1]
        outer = nest.ranges[:-1]
        base, width, lane = self.fresh("base"), self.fresh("width"), self.fresh("lane")
        work = index.product([r.size for r in nest.ranges]) * self.work(nest.body)
        clause = f" if({index.to_c(work)} >= {GRAIN})" if work.value is None else ""
        self.out.open("")
        if work.value is None or work.value >= GRAIN:
            self.out(f"#pragma omp parallel for collapse({len(outer) + 1}) schedule(static){clause}")
        for r in outer:
            self.open_loop(r)
        size = index.to_c(inner.size)
        self.out.open(f"for (int64_t {base} = 0; {base} < {size}; {base} += {TILE})")
        self.out(f"const int64_t {width} = min_int({TILE}, {size} - {base});")
        lanes = f"for (int64_t {lane} = 0; {lane} < {width}; ++{lane})"
        carried = self.carried(nest.body)
        available: list[str] = []
        group: list[loop.Stmt] = []

        def enter() -> None:
            self.out("#pragma omp simd")
            self.out.open(lanes)
            self.out(f"const int64_t {inner.var} = {base} + {lane};")

        def flush() -> None:
            if not group:
                return
            made = [
                s.to for s in group if not isinstance(s, loop.Store | loop.Reduce | loop.Scan | loop.Nest) and s.to in carried
            ]
            for s in group:
                self.note(s)
            for name in made:
                self.out(f"{CTYPES[self.types[name]]} {name}_t[{TILE}];")
            enter()
            self.restore(available, group, lane)
            self.body(group)
            for name in made:
                self.out(f"{name}_t[{lane}] = {name};")
            self.out.close()
            available.extend(made)
            group.clear()

        for s in nest.body:
            if not isinstance(s, loop.Reduce):
                group.append(s)
                continue
            flush()
            self.column_reduce(s, lane, lanes, enter, available)
            available.extend(to for a in s.accumulators for to in a.to)
        flush()
        self.out.close(len(outer) + 2)

    def carried(self, body: Sequence[loop.Stmt]) -> set[str]:
        """Values of a body that a later segment (after a Reduce in between) reads."""
        carried: set[str] = set()
        segment: dict[str, int] = {}
        current = 0
        for s in body:
            current += isinstance(s, loop.Reduce)
            carried |= {n for n in used([s]) if n in segment and segment[n] != current}
            if not isinstance(s, loop.Store | loop.Reduce | loop.Scan | loop.Nest):
                segment[s.to] = current
            current += isinstance(s, loop.Reduce)
        return carried

    def restore(self, available: Sequence[str], body: Sequence[loop.Stmt], lane: str) -> None:
        needed = used(body)
        for name in available:
            if name in needed:
                self.out(f"const {CTYPES[self.types[name]]} {name} = {name}_t[{lane}];")

    def column_reduce(self, s: loop.Reduce, lane: str, lanes: str, enter: Callable[[], None], available: Sequence[str]) -> None:
        blocked = [a for a in s.accumulators if self.blocked(a)]
        for a in s.accumulators:
            kind, start = wide(a.op, a.dtype), identity(a.op, a.dtype)
            self.out(f"{kind} {a.to[0]}_w[{TILE}];")
            self.out(f"for (int64_t {lane} = 0; {lane} < {TILE}; ++{lane}) {a.to[0]}_w[{lane}] = {start};")
        for r in s.ranges[:-1]:
            self.open_loop(r)
        last = s.ranges[-1]
        if blocked:
            begin, size = self.fresh("begin"), index.to_c(last.size)
            self.out.open(f"for (int64_t {begin} = 0; {begin} < {size}; {begin} += {BLOCK})")
            for a in blocked:
                self.out(f"{CTYPES[a.dtype]} {a.to[0]}_b[{TILE}] = {{}};")
            self.open_loop(last, begin, f"min_int({begin} + {BLOCK}, {size})")
        else:
            self.open_loop(last)
        enter()
        self.restore(available, s.body, lane)
        self.body(s.body)
        for a in s.accumulators:
            target = f"{a.to[0]}_{'b' if a in blocked else 'w'}[{lane}]"
            kind = CTYPES[a.dtype] if a in blocked else wide(a.op, a.dtype)
            self.out(f"{target} = ({kind}){_COMBINE[a.op].format(target, a.args[0], T=kind)};")
        self.out.close(2)
        if blocked:
            for a in blocked:
                self.out(f"for (int64_t {lane} = 0; {lane} < {TILE}; ++{lane}) {a.to[0]}_w[{lane}] += {a.to[0]}_b[{lane}];")
            self.out.close()
        self.out.close(len(s.ranges) - 1)
        for a in s.accumulators:
            self.types[a.to[0]] = a.dtype
            kind = CTYPES[a.dtype]
            self.out(f"{kind} {a.to[0]}_t[{TILE}];")
            self.out(f"for (int64_t {lane} = 0; {lane} < {TILE}; ++{lane}) {a.to[0]}_t[{lane}] = ({kind}){a.to[0]}_w[{lane}];")

    # Rows

    def blocked(self, a: loop.Accumulator) -> bool:
        return a.op == "sum" and a.dtype.is_floating_point

    def kinds(self, a: loop.Accumulator) -> list[str]:
        return [wide(a.op, a.dtype), "int64_t"][: len(a.to)]

    def declare(self, a: loop.Accumulator, suffix: str) -> None:
        self.out(f"{wide(a.op, a.dtype)} {a.to[0]}{suffix} = {identity(a.op, a.dtype)};")
        if len(a.to) == 2:
            # Worse than any position, so that the first element is taken even when it equals the identity.
            self.out(f"int64_t {a.to[1]}{suffix} = 0x7fffffffffffffffLL;")

    def advance(self, a: loop.Accumulator, suffix: str, values: Sequence[str]) -> None:
        target = f"{a.to[0]}{suffix}"
        kind = wide(a.op, a.dtype)
        if len(a.to) == 1:
            self.out(f"{target} = ({kind}){_COMBINE[a.op].format(target, values[0], T=kind)};")
            return
        position = f"{a.to[1]}{suffix}"
        test = f"takes_{a.op[3:]}<{kind}>({target}, {position}, {values[0]}, {values[1]})"
        self.out(f"if ({test}) {{ {target} = {values[0]}; {position} = {values[1]}; }}")

    def settle(self, a: loop.Accumulator, suffix: str, to_suffix: str = "") -> None:
        for to, dtype in zip(a.to, (a.dtype, torch.int64), strict=False):
            self.types[to] = dtype
            self.out(f"const {CTYPES[dtype]} {to}{to_suffix} = ({CTYPES[dtype]}){to}{suffix};")

    def reduce(self, s: loop.Reduce, start: str = "0", stop: str | None = None, suffix: str = "") -> None:
        """Runs a reduction; its results are ``to + suffix``. ``start`` and ``stop`` cut the outermost range."""
        for a in s.accumulators:
            self.declare(a, suffix or "_w")
        running = suffix or "_w"
        simple = plain(s.body) and bool(s.ranges)
        outer = s.ranges[:-1] if simple else s.ranges
        for position, r in enumerate(outer):
            self.open_loop(r, start if position == 0 else "0", stop if position == 0 else None)
        if not simple:
            self.body(s.body)
            for a in s.accumulators:
                self.advance(a, running, a.args)
            self.out.close(len(outer))
        else:
            last = s.ranges[-1]
            begin, end = (start, stop or index.to_c(last.size)) if not outer else ("0", index.to_c(last.size))
            vector = all(len(a.to) == 1 for a in s.accumulators)
            blocked = [a for a in s.accumulators if self.blocked(a)]
            if blocked:
                block = self.fresh("begin")
                self.out.open(f"for (int64_t {block} = {begin}; {block} < {end}; {block} += {BLOCK})")
                for a in blocked:
                    self.out(f"{CTYPES[a.dtype]} {a.to[0]}_b = 0;")
                begin, end = block, f"min_int({block} + {BLOCK}, {end})"
            if vector:
                clauses = "".join(
                    f" reduction({_SIMD[a.op]}:{a.to[0]}{'_b' if a in blocked else running})" for a in s.accumulators
                )
                self.out(f"#pragma omp simd{clauses}")
            self.open_loop(last, begin, end)
            self.body(s.body)
            for a in s.accumulators:
                if a in blocked:
                    self.out(f"{a.to[0]}_b += {a.args[0]};")
                else:
                    self.advance(a, running, a.args)
            self.out.close()
            if blocked:
                for a in blocked:
                    self.out(f"{a.to[0]}{running} += {a.to[0]}_b;")
                self.out.close()
            self.out.close(len(outer))
        if not suffix:
            for a in s.accumulators:
                self.settle(a, "_w")

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

    # Statements

    def body(self, body: Sequence[loop.Stmt]) -> None:
        for s in body:
            self.statement(s)

    def note(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute):
            self.types[s.to] = s.dtype

    def statement(self, s: loop.Stmt) -> None:
        self.note(s)
        if isinstance(s, loop.Reduce):
            self.reduce(s)
        elif isinstance(s, loop.Scan):
            self.scan(s)
        elif isinstance(s, loop.Nest):
            self.inner(s)
        elif isinstance(s, loop.Store):
            self.store(s)
        else:
            self.out(f"const {CTYPES[s.dtype]} {s.to} = {self.expression(s)};")

    def inner(self, s: loop.Nest) -> None:
        vector = plain(s.body) and not combines(s.body)
        for r in s.ranges[:-1]:
            self.open_loop(r)
        if s.ranges:
            if vector:
                self.out("#pragma omp simd")
            self.open_loop(s.ranges[-1])
        else:
            self.out.open("")
        self.body(s.body)
        self.out.close(max(len(s.ranges), 1))

    def expression(self, s: loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute) -> str:
        if isinstance(s, loop.Load):
            element = f"{s.param}[{index.to_c(s.index)}]"
            return element if s.mask is None else f"{s.mask} ? {element} : {s.other}"
        if isinstance(s, loop.Const):
            return literal(s.value, s.dtype)
        if isinstance(s, loop.Scalar):
            return self.symbol(s.symbol)
        if isinstance(s, loop.Index):
            return index.to_c(s.index)
        result = CTYPES[s.dtype]
        if s.dtype == torch.bool and s.op == "bitnot":
            return f"!{s.args[0]}"
        operand = CTYPES[self.types[s.args[-1]]]
        text = OPS[s.op].format(*s.args, args=", ".join(s.args), T=operand, R=result)
        return f"({result})({text})"

    def store(self, s: loop.Store) -> None:
        target = f"{s.param}[{index.to_c(s.index)}]"
        guard = f"if ({s.mask}) " if s.mask else ""
        if s.mode == "set":
            self.out(f"{guard}{target} = {s.value};")
            return
        dtype = self.params[s.param].dtype
        kind = CTYPES[dtype]
        if dtype in (torch.bfloat16, torch.float16):
            combined = _COMBINE[s.mode].format(f"widen({target})", f"widen({s.value})", T="float")
            self.out(f"{guard}{target} = convert<{kind}>({combined});")
        else:
            self.out(f"{guard}{target} = ({kind}){_COMBINE[s.mode].format(target, s.value, T=kind)};")


def used(body: Sequence[loop.Stmt]) -> set[str]:
    """Names of values that a body reads (also its own)."""
    names: set[str] = set()
    for s in loop.walk(tuple(body)):
        if isinstance(s, loop.Load):
            names.update(index.symbols(s.index))
            names.update(n for n in (s.mask, s.other) if n)
        elif isinstance(s, loop.Store):
            names.update(index.symbols(s.index))
            names.update(n for n in (s.value, s.mask) if n)
        elif isinstance(s, loop.Index):
            names.update(index.symbols(s.index))
        elif isinstance(s, loop.Compute):
            names.update(s.args)
        elif isinstance(s, loop.Reduce | loop.Scan):
            names.update(n for a in s.accumulators for n in a.args)
    return names


def library(name: str) -> str:
    """Text of one of the C++ files beside this one."""
    return (Path(__file__).parent / name).read_text()


class CppEmitter(Emitter):
    """C++17 for the machine it runs on."""

    ops = OPS

    def emit(self, kernel: LoopKernel) -> str:
        return KernelText(kernel).text()

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        if not kernels:
            return []
        needed = frozenset[str]().union(*(loop.required_ops(kernel) for kernel, _ in kernels))
        parts = [library("base.h")]
        if needed & {*_SPECIAL, "scan.logaddexp"}:
            parts.append(library("special.h"))
        loaded = compiler.load("\n".join((*parts, *(text for _, text in kernels))))
        return [_launch(getattr(loaded, kernel.name), kernel) for kernel, _ in kernels]


_ERRORS: Mapping[int, Callable[[], Exception]] = {
    1: lambda: RuntimeError("ZeroDivisionError"),
    2: lambda: IndexError("index out of range"),
    3: lambda: MemoryError("no memory for a kernel's scratch buffer"),
}


def _launch(function: Any, kernel: LoopKernel) -> Launch:
    function.restype = ctypes.c_int32
    function.argtypes = [ctypes.c_void_p] * len(kernel.params) + [
        ctypes.c_double if s.dtype == torch.float64 else ctypes.c_int64 for s in kernel.symbols
    ]

    def launch(buffers: Sequence[Any], symbols: Sequence[int | float]) -> None:
        status = function(*[b.data_ptr() for b in buffers], *symbols)
        if status:
            raise _ERRORS[status]()

    return launch
