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

    def pragma(self, text: str) -> int:
        """Opens a parallel region; its place, for ``copied``."""
        self.out(f"#pragma omp parallel{text}")
        return len(self.out.lines) - 1

    def copied(self, region: int) -> None:
        """Gives threads copies of the arguments that a finished region reads: shared ones are behind pointers, and every store
        of a vector might change them for all that the compiler knows."""
        lines = self.out.lines
        words = {word for line in lines[region + 1 :] for word in re.findall(r"\w+", line)}
        arguments = [p.name for p in (*self.kernel.params, *self.kernel.scratch)]
        arguments += [*map(self.symbol, self.symbols), "past_caches"]
        names = [name for name in arguments if name in words]
        if names:
            lines[region] += f" firstprivate({', '.join(names)})"

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
