"""Statements of one iteration as C++, one number at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from reference_backends.cpp_cpu.analysis import Leaf
from reference_backends.cpp_cpu.table import CTYPES, OPS, combined, literal
from vendor_sdk import LoopKernel, index, loop

HALVES = (torch.bfloat16, torch.float16)
GRAIN = 32768
"""Iterations from which on threads are worth it."""


def _rounded(kernel: LoopKernel) -> frozenset[str]:
    """Values that were float64, are float32, and will be float64 again: not all compilers see to it that they are rounded."""
    kinds = loop.dtypes(kernel)
    converted = {s.to: s for s in loop.walk(kernel.body) if isinstance(s, loop.Compute) and s.op == "convert"}
    return frozenset(
        first
        for s in converted.values()
        if s.dtype == torch.float64 and kinds[first := s.args[0]] == torch.float32
        if first in converted and kinds[converted[first].args[0]] == torch.float64
    )


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

    def close(self, count: int = 1, after: str = "") -> None:
        for left in reversed(range(count)):
            self.depth -= 1
            self("}" + (after if left == 0 else ""))


@dataclass(frozen=True)
class Region:
    """A statement that threads run.

    Attributes:
        place: of its first line.
        sharing: as ``Statements.open_parallel`` has it.
        worth: the condition under which threads are worth it; empty: always.
    """

    place: int
    sharing: str
    worth: str


class Statements:
    """Text of a kernel's statements. A value of the loop IR is a C++ constant of its name."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.out = Writer()
        self.types: dict[str, torch.dtype] = {}
        self.symbols = {s.name: s for s in kernel.symbols}
        self.rounded = _rounded(kernel)
        self.counter = 0

    def symbol(self, name: str) -> str:
        """Shape symbols are torch's short names; anything else could clash with a name of C++."""
        return name if self.symbols[name].role == "size" else f"arg_{name}"

    def open_parallel(self, total: index.Int | None = None, sharing: str = "") -> Region:
        """Opens a statement that all threads run; where it is not known yet whether ``total`` iterations are worth it, one that
        this thread may run alone.

        Args:
            sharing: how its loop's iterations are shared, if it is a loop: what follows ``omp``.
        """
        worth = f"{index.to_c(total)} >= {GRAIN}" if total is not None and total.value is None else ""
        region = Region(len(self.out.lines), sharing, worth)
        self.out("")
        if worth and sharing:
            self.out(f"#pragma omp{sharing}")
        return region

    def close_parallel(self, region: Region) -> None:
        """Gives threads copies of the arguments that a finished region reads: shared ones are behind pointers, and every store
        of a vector might change them for all that the compiler knows.

        A region that one thread may run alone is a function, which it calls: OpenMP's own condition would make a team of one.
        """
        lines = self.out.lines
        words = {word for line in lines[region.place + 1 :] for word in re.findall(r"\w+", line)}
        scratch = {p.name: f"{CTYPES[p.dtype]} *const " for p in self.kernel.scratch}
        known = {**self.arguments(), **scratch, "past_caches": "const bool "}
        read = {name: kind for name, kind in known.items() if name in words}
        private = f" firstprivate({', '.join(read)})" if read else ""
        if not region.worth:
            lines[region.place] = f"#pragma omp parallel{region.sharing}{private}"
            return
        name = self.fresh("region")
        given = ", ".join(f"{kind}{name}" for name, kind in read.items())
        lines[region.place] = "  " * self.out.depth + f"const auto {name} = [&]({given}) __attribute__((noinline)) {{"
        call = f"{name}({', '.join(read)});"
        self.out("};")
        self.out.open(f"if ({region.worth})")
        self.out(f"#pragma omp parallel{private}")
        self.out(call)
        self.out.close()
        self.out(f"else {call}")

    def arguments(self) -> dict[str, str]:
        """Names of buffers and symbols that the kernel is given, and what they are declared as before their names."""
        kinds = {p.name: f"{'const ' if p.role == 'in' else ''}{CTYPES[p.dtype]} *RESTRICT " for p in self.kernel.params}
        kinds |= {self.symbol(s.name): f"const {CTYPES[s.dtype]} " for s in self.kernel.symbols}
        return kinds

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}_{self.counter}"

    def open_loop(self, r: loop.Range, start: str = "0", end: str | None = None) -> None:
        end = end or index.to_c(r.size)
        self.out.open(f"for (int64_t {r.var} = {start}; {r.var} < {end}; ++{r.var})")

    def body(self, body: Sequence[loop.Stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Store):
            self.store(s)
        else:
            assert isinstance(s, Leaf), f"a statement with a body: {s}"
            self.types[s.to] = s.dtype
            self.out(f"const {CTYPES[s.dtype]} {s.to} = {self.expression(s)};")

    def expression(self, s: Leaf) -> str:
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
        if s.to in self.rounded:
            return f"rounded({s.args[0]})"
        text = OPS[s.op].format(*s.args, args=", ".join(s.args), T=operand, R=result, live="")
        return f"({result})({text})"

    def store(self, s: loop.Store, value: str | None = None, mask: str | None = None) -> None:
        """``value`` and ``mask``: the texts to use in place of the statement's names."""
        value, mask = value or s.value, mask or s.mask
        target = f"{s.param}[{index.to_c(s.index)}]"
        guard = f"if ({mask}) " if mask else ""
        if s.mode == "set":
            self.out(f"{guard}{target} = {value};")
            return
        dtype = self.kernel.param(s.param).dtype
        kind = CTYPES[dtype]
        if dtype in HALVES:
            self.out(f"{guard}{target} = convert<{kind}>({combined(s.mode, f'widen({target})', f'widen({value})', 'float')});")
        else:
            self.out(f"{guard}{target} = ({kind}){combined(s.mode, target, value, kind)};")
