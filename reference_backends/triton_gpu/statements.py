"""Statements of one iteration as Triton, on blocks.

Every value of a function is a block with up to two axes:

- *x*: the iterations of the program's block;
- *r*: iterations of an inner loop (a reduction, scan or nest without loops of its own): a *tile*.

A value that does not vary along an axis has size one there, or is a scalar; ``axes`` of a value says along which it varies, and
so which masks its loads and stores need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from reference_backends.triton_gpu import indices
from reference_backends.triton_gpu.analysis import Weights
from reference_backends.triton_gpu.reuse import Policy
from reference_backends.triton_gpu.table import OPS, TYPES, bitcast, constant, convert
from reference_backends.triton_gpu.tiles import Tile
from vendor_sdk import LoopKernel, LoweringError, index, loop

Axes = frozenset[str]
NONE: Axes = frozenset()
X: Axes = frozenset("x")
R: Axes = frozenset("r")


@dataclass
class Writer:
    """Indented lines of Python."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __call__(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)


class Statements:
    """Text of a kernel's statements. A value of the loop IR is a block of its name."""

    told_sizes: Sequence[str] = ()
    """Sizes of which the function knows a divisor."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.out = Writer()
        self.axes: dict[str, Axes] = {}
        self.types: dict[str, torch.dtype] = {}
        self.places: dict[str, index.Int] = {}
        self.known: dict[Any, str] = {}
        self.tile: Tile | None = None
        self.tiles: dict[index.Int, list[Tile]] = {}
        self.x_mask = "x_mask"
        self.x_axes = X
        """The axes of what varies between the iterations of a block: none where a block is one iteration."""
        self.written: set[str] = set()
        self.late: frozenset[int] = frozenset()
        """Stores that wait for the loads before them."""
        self.read_over: dict[str, set[str]] = {}
        """How many elements the blocks have that were loaded from what is stored to, too."""
        self.told: Collection[str] = ()
        """Scratch buffers of what the programs of a row tell each other."""
        self.policies: Mapping[int, Policy] = {}
        """What the caches are told of loads, by identity."""
        self.rounded: set[str] = set()
        """Values of which nothing but their bfloat16 is used."""
        self.weights = Weights(frozenset(), summed=False)
        self.above_one: Mapping[str, str] = {}
        """Values 1 + erf(u) of which nothing but halves is used, with u."""
        self.loaded: set[str] = set()
        """Tiles that were loaded, by their first names."""
        self.stale: set[str] = set()
        """Those of which loops take what was loaded once more, rather than what followed from it in the loops before."""
        self.counter = 0

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
        if not self.tiles:
            return "[XBLOCK]"
        return f"[{'XBLOCK' if 'x' in axes else '1'}, {self.tile.block if self.tile and 'r' in axes else '1'}]"

    def context(self) -> Axes:
        return self.x_axes | R if self.tile else self.x_axes

    def mask(self, axes: Axes, extra: str | None = None) -> str:
        """Where lanes count: inside the ranges of the axes, and where ``extra`` holds."""
        parts = [self.x_mask] if "x" in axes and self.x_mask else []
        if "r" in axes and self.tile is not None and self.tile.mask:
            parts.append(self.tile.mask)
        return " & ".join([*parts, extra] if extra else parts)

    def pointer(self, param: str, position: index.Int, others: Iterable[str | None], least: Axes = NONE) -> tuple[str, Axes]:
        """The address of an element, as wide as the values that go with it."""
        text, axes = self.expression(position)
        full = axes | least | self.varies(name for name in others if name)
        if full != axes:
            text = f"tl.full({self.shape(full)}, 0, tl.int32) + {text}"
        return f"{param} + ({text})", full

    # Values

    def define(self, name: str, text: str, dtype: torch.dtype, axes: Axes) -> None:
        self.types[name], self.axes[name] = dtype, axes
        here = self.here(name)
        self.axes[here] = axes
        if dtype == torch.int64:
            self.places.pop(name, None)
            if here != name:
                self.places[name] = index.symbol(here)
        self.out(f"{here} = {text}")

    def here(self, name: str) -> str:
        """The name of a value in the piece of the tile that the text is about."""
        return name + self.tile.suffix if self.tile and "r" in self.axes[name] else name

    def once(self, name: str, text: str, dtype: torch.dtype, axes: Axes) -> None:
        """Defines a value, or names the equal one that is there."""
        self.axes[name] = axes
        here = self.here(name)
        first = self.known.get((text, dtype))
        if first is None:
            self.known[text, dtype] = here
            self.define(name, text, dtype, axes)
        elif first in self.stale:
            self.known[text, dtype] = here
            self.define(name, f"base.again({first})", dtype, axes)
        elif first != here:
            self.known["name", here] = first
            self.define(name, first, dtype, axes)

    def same(self, name: str) -> str:
        """The first name of a value, so that equal expressions have equal text."""
        here = self.here(name)
        return self.known.get(("name", here), here)

    # Statements

    def body(self, body: Sequence[loop.Stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Load):
            self.load(s)
        elif isinstance(s, loop.Store):
            self.store(s)
        elif isinstance(s, loop.Const):
            self.once(s.to, constant(s.value, s.dtype), s.dtype, NONE)
        elif isinstance(s, loop.Scalar):
            self.once(s.to, f"arg_{s.symbol}", s.dtype, NONE)
        elif isinstance(s, loop.Index):
            placed = index.substitute(s.index, self.places)
            self.once(s.to, indices.value(placed, self.told_sizes), torch.int64, self.varies(index.symbols(placed)))
        else:
            assert isinstance(s, loop.Compute), f"{s} needs an op that the table does not have"
            self.compute(s)

    def compute(self, s: loop.Compute) -> None:
        source = self.types[s.args[-1]]
        axes = self.varies(s.args)
        args = [self.same(name) for name in s.args]
        if s.op == "convert":
            text = convert(args[0], source, s.dtype)
        elif s.op == "bitcast":
            text = bitcast(args[0], source, s.dtype)
        elif source == torch.bool and s.op in ("max", "min"):
            text = f"{args[0]} {'|' if s.op == 'max' else '&'} {args[1]}"
        elif s.op == "div" and source == torch.float32 and self.axes[s.args[1]] < axes:
            text = f"base.{'quotient_by' if s.to in self.rounded else 'div_by'}({', '.join(args)})"
        elif s.op == "exp" and s.to in self.weights.names:
            text = f"base.weight({args[0]}, {self.weights.summed})"
        elif s.to in self.above_one:
            text = f"base.one_and_erf({self.same(self.above_one[s.to])})"
        elif source == torch.bool and s.op == "bitnot":
            text = f"{args[0]} == 0"
        else:
            mask = self.mask(axes) or "True"
            text = OPS[s.op].format(*args, args=", ".join(args), T=TYPES[source], mask=mask)
        self.once(s.to, text, s.dtype, axes)

    def load(self, s: loop.Load) -> None:
        others = [self.same(name) if name else None for name in (s.mask, s.other)]
        address, axes = self.pointer(s.param, s.index, (s.mask, s.other))
        mask = self.mask(axes, others[0])
        # Lanes outside the ranges get zero: what they compute is defined, and thrown away.
        masked = f", mask={mask}, other={others[1] or '0'}" if mask else ""
        hint = f', eviction_policy="{self.policies[id(s)]}"' if id(s) in self.policies else ""
        text = f"tl.load({address}{masked}{hint})"
        if s.param in self.told:
            text = f"base.value_of({self.known[s.param, address]}, {TYPES[s.dtype]})"
        elif s.param in self.written:
            self.read_over.setdefault(s.param, set()).add(" * ".join(self.shape(axes).strip("[]").split(", ")))
        (self.define if s.param in self.written else self.once)(s.to, text, s.dtype, axes)
        if axes >= R:
            self.loaded.add(self.same(s.to))

    def store(self, s: loop.Store) -> None:
        least = NONE if s.mode == "set" else self.context()  # Every iteration takes part, also where the address does not vary.
        address, axes = self.pointer(s.param, s.index, (s.value, s.mask), least)
        mask = self.mask(axes, self.here(s.mask) if s.mask else None)
        value = self.here(s.value)
        if id(s) in self.late:
            self.out("tl.debug_barrier()")
        else:
            for elements in sorted(self.read_over.get(s.param, ())):
                self.out(f"base.before_write({elements or '1'})")
        if s.param in self.told:
            self.out(f"base.tell({address}, {value})")
        elif s.mode == "set":
            self.out(f"tl.store({address}, {value}{f', mask={mask}' if mask else ''})")
        else:
            self.out(OPS[f"store.{s.mode}"].format(args=f"{address}, {value}, {mask or None}, {s.param}"))
