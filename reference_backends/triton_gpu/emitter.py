"""Loop kernels to Triton: one function a nest, and a host function that launches them in order.

The iterations of a nest are numbered through (``x_index``) and cut into blocks of ``XBLOCK``, one a program. Inside, every
value is a block with up to two axes:

- *x*: the iterations of the program's block;
- *r*: the iterations of one inner loop (a reduction, scan or nest without loops of its own), taken ``RBLOCK`` at a time.

Other inner loops run one iteration after the other. A value that does not vary along an axis has size one there, or is a
scalar; ``axes`` of a value says along which it varies, and so which masks its loads and stores need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from reference_backends.triton_gpu import compiler, indices
from vendor_sdk import Emitter, Launch, LoopKernel, LoweringError, index, loop

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
HALVES = (torch.bfloat16, torch.float16)
SMALL = (torch.int16, torch.int8, torch.uint8, torch.bool)

SHORT = 32
"""Iterations up to which an inner loop runs one after the other, so that the block's lanes lie along the nest."""

_LIBDEVICE = """
    floor ceil trunc exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    hypot erf erfc erfinv erfcx lgamma copysign nextafter
"""
_BASE = """
    div floordiv truncdiv mod fmod gcd neg signbit fmax fmin frexp_exponent frexp_mantissa sqrt sigmoid shl shr philox
"""

OPS: Mapping[str, str] = {
    **{name: f"libdevice.{name}({{args}})" for name in _LIBDEVICE.split()},
    **{name: f"base.{name}({{args}})" for name in _BASE.split()},
    "ndtri": "libdevice.normcdfinv({0})",
    "i0": "libdevice.cyl_bessel_i0({0})",
    "i1": "libdevice.cyl_bessel_i1({0})",
    "bessel_j0": "libdevice.j0({0})",
    "bessel_j1": "libdevice.j1({0})",
    "bessel_y0": "libdevice.y0({0})",
    "bessel_y1": "libdevice.y1({0})",
    "round": "libdevice.rint({0})",
    "rsqrt": "base.div(tl.full([], 1, {T}), base.sqrt({0}))",
    "pow": "base.power({args})",
    "max": "base.maximum({args})",
    "min": "base.minimum({args})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "where": "tl.where({args})",
    "bitand": "{0} & {1}",
    "bitor": "{0} | {1}",
    "bitxor": "{0} ^ {1}",
    "bitnot": "~{0}",
    "convert": "",
    "bitcast": "",
    "wrap_index": "base.wrap_index({args}, {mask})",
    **{f"reduce.{name}": "" for name in ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin")},
    "scratch": "",
    "nest": "",
    **{f"scan.{name}": "" for name in ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")},
    "store.add": "tl.atomic_add",
}
"""Loop op to Triton expression: ``{0}``... are operands, ``{args}`` all, ``{T}`` their type, ``{mask}`` where they count.

Conversions depend on both types (``convert``); reductions and scans are functions ``combine_NAME`` and ``running_NAME`` of
``base``. There is no atomic product, and Triton's atomic extremes of floats pass NaN by: those prims are not native."""

HEADER = """\
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from reference_backends.triton_gpu import base
from reference_backends.triton_gpu.launch import float_bits, run
"""

Axes = frozenset[str]
NONE: Axes = frozenset()
X: Axes = frozenset("x")


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A Triton constant with exactly this value."""
    if not dtype.is_floating_point:
        return repr(int(value))
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return f'float("{"-" if value < 0 else ""}inf")'
    return repr(float(value))


def constant(value: bool | int | float, dtype: torch.dtype, shape: str = "[]") -> str:
    """A block of one value."""
    if dtype.is_floating_point and value == 0 and math.copysign(1, value) < 0:
        # ``tl.full`` takes any value equal to zero for +0.
        bits = torch.int32 if dtype == torch.float32 else torch.int64
        return f"tl.full({shape}, {torch.iinfo(bits).min}, {TYPES[bits]}).to({TYPES[dtype]}, bitcast=True)"
    return f"tl.full({shape}, {literal(value, dtype)}, {TYPES[dtype]})"


def convert(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """``value`` in another dtype, rounded as torch does: to halves by way of float32, to small integers by way of wide ones."""
    kind = TYPES[target]
    if target == torch.bool:
        return f"{value} != 0"
    if target in HALVES:
        return f"{value}.to(tl.float32).to({kind})"
    if source in HALVES:
        return f"{value}.to(tl.float32).to({kind})"
    if source.is_floating_point and target in SMALL:
        return f"{value}.to({'tl.int64' if target == torch.uint8 else 'tl.int32'}).to({kind})"
    return f"{value}.to({kind})"


def bitcast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """The bits of ``value`` as another dtype; a bool's byte is 0 or 1."""
    if torch.bool in (source, target):
        return convert(value, source, target)
    return f"{value}.to({TYPES[target]}, bitcast=True)"


def wide(dtype: torch.dtype) -> torch.dtype:
    """What running results of ``dtype`` are kept in: shuffles between threads move no less than 32 bits."""
    return torch.int32 if dtype in SMALL else dtype


def identity(op: str, dtype: torch.dtype) -> bool | int | float:
    """The value that starts a reduction, in the dtype that it is kept in."""
    if op in ("sum", "any", "xor"):
        return 0
    if op in ("prod", "all"):
        return 1
    if op == "logaddexp":
        return -math.inf
    low = op in ("max", "argmax")
    if dtype == torch.bool:
        return not low
    if dtype.is_floating_point:
        return -math.inf if low else math.inf
    info = torch.iinfo(dtype)
    return info.min if low else info.max


def plain(body: Sequence[loop.Stmt]) -> bool:
    """Whether a body has no loops inside."""
    return not any(isinstance(s, loop.Reduce | loop.Scan | loop.Nest) for s in body)


def ranges_of(s: loop.Reduce | loop.Scan | loop.Nest) -> tuple[loop.Range, ...]:
    return (s.range,) if isinstance(s, loop.Scan) else s.ranges


def blocked(s: loop.Stmt) -> bool:
    """Whether an inner loop is taken ``RBLOCK`` iterations at a time."""
    if isinstance(s, loop.Scan):
        return plain((*s.body, *s.then))
    if not isinstance(s, loop.Reduce | loop.Nest) or not s.ranges or not plain(s.body):
        return False
    size = index.product([r.size for r in s.ranges]).value
    return isinstance(s, loop.Nest) or size is None or size > SHORT


@dataclass
class Writer:
    """Indented lines of Python."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __call__(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)


class NestText:
    """The function of one nest."""

    def __init__(self, kernel: LoopKernel, name: str, nest: loop.Nest) -> None:
        self.kernel, self.name, self.nest = kernel, name, nest
        self.out = Writer()
        self.axes: dict[str, Axes] = {}
        self.types: dict[str, torch.dtype] = {}
        self.places: dict[str, index.Int] = {}
        self.r_mask = ""
        self.count = index.product([r.size for r in nest.ranges])
        self.inner = [s for s in loop.walk(nest.body) if blocked(s)]
        self.counter = 0

    # The function and its launch

    def text(self) -> str:
        for s in self.kernel.symbols:
            if s.role == "size":
                self.out(f"{s.name} = tl.cast({s.name}, tl.int64)")
            elif s.dtype == torch.float64:
                self.out(f"arg_{s.name} = tl.cast(arg_{s.name}, tl.int64).to(tl.float64, bitcast=True)")
            else:
                self.out(f"arg_{s.name} = tl.cast(arg_{s.name}, tl.int64)")
        column = "[:, None]" if self.inner else ""
        self.out(f"x_index = (tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)){column}")
        self.out(f"x_mask = x_index < {self.expression(self.count)[0]}")
        self.axes["x_index"] = X
        self.place(self.nest.ranges, index.variable("x_index", self.count))
        self.body(self.nest.body)
        fixed = ", ".join(f'"{symbol_name(s)}"' for s in self.kernel.symbols)
        asserts = any(isinstance(s, loop.Compute) and s.op == "wrap_index" for s in loop.walk(self.nest.body))
        options = [f"do_not_specialize=[{fixed}]"] if fixed else []
        options += ["debug=True"] if asserts else []
        decorator = f"@triton.jit({', '.join(options)})" if options else "@triton.jit"
        parameters = ", ".join([*argument_names(self.kernel), "XBLOCK: tl.constexpr", "RBLOCK: tl.constexpr"])
        return "\n".join([decorator, f"def {self.name}({parameters}):", *self.out.lines]) + "\n"

    def launch(self) -> str:
        """Text of the call that launches the function: how many iterations there are, and in its longest inner loop."""
        lengths = list(dict.fromkeys(index.to_python(index.product([r.size for r in ranges_of(s)])) for s in self.inner))  # type: ignore[arg-type]
        longest = "0" if not lengths else lengths[0] if len(lengths) == 1 else f"max({', '.join(lengths)})"
        arguments = ", ".join(argument_names(self.kernel))
        comma = "," if arguments and ", " not in arguments else ""
        return f"run({self.name}, ({arguments}{comma}), {index.to_python(self.count)}, {longest}, across={self.across()})"

    def across(self) -> bool:
        """Whether inner loops walk across memory that the nest's last range walks along."""
        if not self.nest.ranges:
            return False
        along = self.nest.ranges[-1].var
        for s in self.inner:
            assert isinstance(s, loop.Reduce | loop.Scan | loop.Nest)
            body = (*s.body, *s.then) if isinstance(s, loop.Scan) else s.body
            last = ranges_of(s)[-1].var
            for access in body:
                if isinstance(access, loop.Load | loop.Store) and _stride(access.index, along) == 1:
                    return _stride(access.index, last) not in (0, 1)
        return False

    # Places

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}_{self.counter}"

    def place(self, ranges: Sequence[loop.Range], number: index.Int) -> None:
        """Loop variables as functions of the iteration's number; index expressions over several often fold back to it."""
        rest = number
        for position, r in reversed(list(enumerate(ranges))):
            if r.size == 0:  # the loop's text is never run
                self.places.update({each.var: index.ZERO for each in ranges})
                return
            self.places[r.var] = rest % r.size if position else rest
            rest = rest // r.size

    def expression(self, expression: index.Int) -> tuple[str, Axes]:
        placed = index.substitute(expression, self.places)
        return indices.text(placed), self.varies(index.symbols(placed))

    def varies(self, names: Iterable[str]) -> Axes:
        return NONE.union(*(self.axes.get(name, NONE) for name in names))

    def uniform(self, size: index.Int) -> str:
        """The text of a loop's length, which all lanes share."""
        text, axes = self.expression(size)
        if axes:
            raise LoweringError(f"triton_gpu: {self.kernel.name} has an inner loop whose length varies between iterations")
        return text

    def shape(self, axes: Axes) -> str:
        if not axes:
            return "[]"
        if not self.inner:
            return "[XBLOCK]"
        return f"[{'XBLOCK' if 'x' in axes else '1'}, {'RBLOCK' if 'r' in axes else '1'}]"

    def context(self) -> Axes:
        return X | {"r"} if self.r_mask else X

    def mask(self, axes: Axes, extra: str | None = None) -> str:
        """Where lanes count: inside the ranges of the axes, and where ``extra`` holds."""
        parts = ["x_mask"] * ("x" in axes) + [self.r_mask] * ("r" in axes) + ([extra] if extra else [])
        return " & ".join(parts)

    def pointer(self, param: str, position: index.Int, others: Iterable[str | None], least: Axes = NONE) -> tuple[str, Axes]:
        """The address of an element, as wide as the values that go with it."""
        text, axes = self.expression(position)
        full = axes | least | self.varies(name for name in others if name)
        if full != axes:
            text = f"tl.full({self.shape(full)}, 0, tl.int64) + {text}"
        return f"{param} + ({text})", full

    # Statements

    def body(self, body: Sequence[loop.Stmt]) -> None:
        for s in body:
            self.statement(s)

    def define(self, name: str, text: str, dtype: torch.dtype, axes: Axes) -> None:
        self.types[name], self.axes[name] = dtype, axes
        self.out(f"{name} = {text}")

    def statement(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Reduce | loop.Nest):
            if blocked(s) and not self.r_mask:
                self.in_blocks(s)
            else:
                self.one_by_one(s)
        elif isinstance(s, loop.Scan):
            if blocked(s) and not self.r_mask:
                self.scan_in_blocks(s)
            else:
                self.one_by_one(s)
        elif isinstance(s, loop.Load):
            self.load(s)
        elif isinstance(s, loop.Store):
            self.store(s)
        elif isinstance(s, loop.Const):
            self.define(s.to, constant(s.value, s.dtype), s.dtype, NONE)
        elif isinstance(s, loop.Scalar):
            self.define(s.to, f"arg_{s.symbol}", s.dtype, NONE)
        elif isinstance(s, loop.Index):
            text, axes = self.expression(s.index)
            self.define(s.to, f"tl.cast({text}, tl.int64)", torch.int64, axes)
        else:
            assert isinstance(s, loop.Compute), f"{s} needs an op that the table does not have"
            self.compute(s)

    def compute(self, s: loop.Compute) -> None:
        source = self.types[s.args[-1]]
        axes = self.varies(s.args)
        if s.op == "convert":
            text = convert(s.args[0], source, s.dtype)
        elif s.op == "bitcast":
            text = bitcast(s.args[0], source, s.dtype)
        elif source == torch.bool and s.op in ("max", "min"):
            text = f"{s.args[0]} {'|' if s.op == 'max' else '&'} {s.args[1]}"
        elif source == torch.bool and s.op == "bitnot":
            text = f"{s.args[0]} == 0"
        else:
            mask = self.mask(axes) or "True"
            text = OPS[s.op].format(*s.args, args=", ".join(s.args), T=TYPES[source], mask=mask)
        self.define(s.to, text, s.dtype, axes)

    def load(self, s: loop.Load) -> None:
        address, axes = self.pointer(s.param, s.index, (s.mask, s.other))
        mask = self.mask(axes, s.mask)
        if not mask:
            self.define(s.to, f"tl.load({address})", s.dtype, axes)
            return
        # Lanes outside the ranges get zero: what they compute is defined, and thrown away.
        self.define(s.to, f"tl.load({address}, mask={mask}, other={s.other or '0'})", s.dtype, axes)

    def store(self, s: loop.Store) -> None:
        if s.mode == "set":
            address, axes = self.pointer(s.param, s.index, (s.value, s.mask))
            mask = self.mask(axes, s.mask)
            self.out(f"tl.store({address}, {s.value}{f', mask={mask}' if mask else ''})")
            return
        # Every iteration takes part, also where the address does not vary.
        address, axes = self.pointer(s.param, s.index, (s.value, s.mask), self.context())
        mask = self.mask(axes, s.mask)
        self.out(f'{OPS[f"store.{s.mode}"]}({address}, {s.value}, mask={mask}, sem="relaxed")')

    # Inner loops

    def enter(self, s: loop.Reduce | loop.Scan | loop.Nest) -> None:
        """Opens the loop over blocks of an inner loop's iterations."""
        ranges = ranges_of(s)
        size = index.product([r.size for r in ranges])
        length = self.uniform(size)
        start, number, mask = self.fresh("start"), self.fresh("r_index"), self.fresh("r_mask")
        self.out(f"for {start} in range(0, {length}, RBLOCK):")
        self.out.depth += 1
        self.out(f"{number} = (tl.cast({start}, tl.int64) + tl.arange(0, RBLOCK))[None, :]")
        self.out(f"{mask} = {number} < {length}")
        self.axes[number] = frozenset("r")
        self.r_mask = mask
        self.place(ranges, index.variable(number, size))

    def leave(self) -> None:
        self.r_mask = ""
        self.out.depth -= 1

    def in_blocks(self, s: loop.Reduce | loop.Nest) -> None:
        """A reduction keeps a running result for each lane of the block, and combines the lanes at the end."""
        accumulators = s.accumulators if isinstance(s, loop.Reduce) else ()
        for a in accumulators:
            self.start(a, "[XBLOCK, RBLOCK]")
        self.enter(s)
        self.body(s.body)
        mask = self.mask(self.context())
        for a in accumulators:
            self.advance(a, "combine", mask)
        self.leave()
        for a in accumulators:
            running = [f"{to}_w" for to in a.to]
            reduced = [f"{to}_r" for to in a.to]
            operand = running[0] if len(running) == 1 else f"({', '.join(running)})"
            self.out(f"{', '.join(reduced)} = tl.reduce({operand}, 1, base.combine_{a.op})")
            for to, name, dtype in zip(a.to, reduced, (a.dtype, torch.int64), strict=False):
                self.settle(to, f"{name}[:, None]", dtype, X)

    def one_by_one(self, s: loop.Reduce | loop.Scan | loop.Nest) -> None:
        accumulators = () if isinstance(s, loop.Nest) else s.accumulators
        for a in accumulators:
            self.start(a, self.shape(self.context()))
        depth = self.out.depth
        for r in ranges_of(s):
            length = self.uniform(r.size)
            turn = self.fresh("turn")
            self.out(f"for {turn} in range(0, {length}):")
            self.out.depth += 1
            self.out(f"{r.var} = tl.cast({turn}, tl.int64)")
        self.body(s.body)
        for a in accumulators:
            self.advance(a, "running" if isinstance(s, loop.Scan) else "combine", "")
        if isinstance(s, loop.Scan):
            self.settle_all(accumulators)
            self.body(s.then)
        self.out.depth = depth
        if isinstance(s, loop.Reduce):
            self.settle_all(accumulators)

    def scan_in_blocks(self, s: loop.Scan) -> None:
        """Each block is scanned at once, from what the blocks before it came to (``_w``)."""
        for a in s.accumulators:
            self.start(a, "[XBLOCK, 1]")
        self.enter(s)
        self.body(s.body)
        mask = self.mask(self.context())
        for a in s.accumulators:
            function = combination(a, "running")
            begin = (identity(a.op, a.dtype), 0)
            for to, value, dtype, least in zip(a.to, a.args, (wide(a.dtype), torch.int64), begin, strict=False):
                self.out(f"{to}_v = tl.where({mask}, {value}.to({TYPES[dtype]}), {constant(least, dtype)})")
            carried, values, scanned, totals = ([f"{to}_{suffix}" for to in a.to] for suffix in "wvsr")
            operand = values[0] if len(values) == 1 else f"({', '.join(values)})"
            self.out(f"{', '.join(scanned)} = tl.associative_scan({operand}, 1, {function})")
            self.out(f"{', '.join(scanned)} = {function}({', '.join([*carried, *scanned])})")
            self.out(f"{', '.join(totals)} = tl.reduce({operand}, 1, {function})")
            after = [f"{name}[:, None]" for name in totals]
            self.out(f"{', '.join(carried)} = {function}({', '.join([*carried, *after])})")
            for to, name, dtype in zip(a.to, scanned, (a.dtype, torch.int64), strict=False):
                self.settle(to, name, dtype, self.context())
        self.body(s.then)
        self.leave()

    def start(self, a: loop.Accumulator, shape: str) -> None:
        self.out(f"{a.to[0]}_w = {constant(identity(a.op, a.dtype), wide(a.dtype), shape)}")
        if len(a.to) == 2:
            # Worse than any position, so that the first element is taken even when it equals the identity.
            self.out(f"{a.to[1]}_w = {constant(2**63 - 1, torch.int64, shape)}")

    def advance(self, a: loop.Accumulator, kind: str, mask: str) -> None:
        """One step of the running results, where ``mask`` holds (``""``: everywhere)."""
        running = [f"{to}_w" for to in a.to]
        steps = [f"{to}_n" for to in a.to]
        values = [f"{v}.to({TYPES[t]})" for v, t in zip(a.args, (wide(a.dtype), torch.int64), strict=False)]
        self.out(f"{', '.join(steps)} = {combination(a, kind)}({', '.join([*running, *values])})")
        for name, step in zip(running, steps, strict=True):
            self.out(f"{name} = tl.where({mask}, {step}, {name})" if mask else f"{name} = {step}")

    def settle(self, to: str, name: str, dtype: torch.dtype, axes: Axes) -> None:
        self.define(to, name if wide(dtype) == dtype else convert(name, torch.int32, dtype), dtype, axes)

    def settle_all(self, accumulators: Sequence[loop.Accumulator]) -> None:
        for a in accumulators:
            for to, dtype in zip(a.to, (a.dtype, torch.int64), strict=False):
                self.settle(to, f"{to}_w", dtype, self.context())


def combination(a: loop.Accumulator, kind: str) -> str:
    """The function of ``base`` that combines two running results; reductions and scans differ for equal extremes only."""
    return f"base.{kind if len(a.to) == 2 else 'combine'}_{a.op}"


def _stride(expression: index.Int, variable: str) -> int | None:
    step = index.stride(expression, variable)
    return None if step is None else step.value


def symbol_name(s: loop.Symbol) -> str:
    """Shape symbols are torch's short names; anything else could clash with a name of Python."""
    return s.name if s.role == "size" else f"arg_{s.name}"


def argument_names(kernel: LoopKernel) -> list[str]:
    """What the function of each nest takes."""
    return [*(p.name for p in (*kernel.params, *kernel.scratch)), *map(symbol_name, kernel.symbols)]


def kernel_text(kernel: LoopKernel) -> str:
    """The functions of a kernel's nests, and one of the kernel's name that launches them."""
    nests = [NestText(kernel, f"{kernel.name}_{position}", nest) for position, nest in enumerate(kernel.body)]
    host = Writer()
    for s in kernel.symbols:
        if s.dtype == torch.float64:
            host(f"arg_{s.name} = float_bits(arg_{s.name})")
    for p in kernel.scratch:
        host(f"{p.name} = torch.empty({index.to_python(p.size)}, dtype={p.dtype}, device={kernel.params[-1].name}.device)")
    for nest in nests:
        host(nest.launch())
    parts = [nest.text() for nest in nests]
    taken = ", ".join([*(p.name for p in kernel.params), *map(symbol_name, kernel.symbols)])
    parts.append("\n".join([f"def {kernel.name}({taken}):", *(host.lines or ["    pass"])]) + "\n")
    return "\n\n".join(parts)


class TritonEmitter(Emitter):
    """Triton for NVIDIA GPUs."""

    ops = OPS

    def emit(self, kernel: LoopKernel) -> str:
        return kernel_text(kernel)

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        if not kernels:
            return []
        module = compiler.load("\n\n".join([HEADER, *(text for _, text in kernels)]))
        return [_launch(getattr(module, kernel.name)) for kernel, _ in kernels]


def _launch(function: Callable[..., None]) -> Launch:
    return lambda buffers, symbols: function(*buffers, *symbols)
