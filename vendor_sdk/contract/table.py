"""An emitter that is a table: for targets whose programs are loops and statements, or instructions on registers."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import torch

from vendor_sdk.contract.emitter import Emitter
from vendor_sdk.errors import ContractError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    Local,
    LoopKernel,
    Nest,
    Param,
    Range,
    Reduce,
    Scalar,
    Stmt,
    Store,
    Symbol,
    dtypes,
)
from vendor_sdk.ir.loop_ops import COMBINE

STATEMENTS = ("const", "move", "load", "load.masked", "store", "store.masked", "loop", "end")
"""Keys that every table has."""


class TableEmitter(Emitter):
    """Writes kernels from a table of target text; what remains to write is ``head`` and ``compile``.

    Each text is one or more lines with fields in braces. ``{to}`` is the result's name, also a prefix for temporaries; ``{0}``,
    ``{1}``, ... are the operands and ``{args}`` all of them, ``{T}`` the operands' type, ``{R}`` the result's, ``{n}`` a number
    that no other text of the kernel has, for labels and for temporaries where there is no ``{to}``. Beside the operations
    (``"add"``, ``"reduce.sum"``, ``"store.add"``; see `docs/loops.md`) a table has these keys:

    - ``const``: ``{to} {value} {R}``; ``literal`` writes the value.
    - ``move``: ``{to} {0} {R}``, a number of the call, or an index as a value.
    - ``load``: ``{to} {param} {index} {R}``.
    - ``load.masked``: ``{mask} {other}`` too.
    - ``store`` and ``store.MODE``: ``{param} {index} {0} {T}``.
    - ``store.masked``: ``{store} {mask}``, how a store is made conditional.
    - ``loop`` and ``end``: ``{var} {size}``, what opens and closes a range.
    - ``reduce.OP`` and ``scan.OP``: once an iteration, after the body: ``{to} {0}``, for "argmax" and "argmin"
      ``{to} {at} {0} {1}``; ``{rank}`` is the number of ranges, ``{start}`` the result over nothing.
    - ``accumulator``: where running results must be started: ``{to} {value} {R}``, before the loop, for each.
    - ``result``: where they are kept in another form: ``{to} {R}``, after the loop, or in a scan after each advance.
    - ``compute``: where the texts of operations are expressions: ``{to} {expression} {R}``.
    - ``scratch`` and ``local``: ``{param} {size} {T}``, if the target has such memory. The text of ``scratch`` may be empty
      where the launch allocates the buffers and passes them (``kernel.scratch``, which are not among ``kernel.params``).
    - ``nest`` and ``contraction``: any text, if loops in loops and matrix products as plain loops are welcome.

    Names in kernels are lower-case letters and a number (``y0``, ``v12``), some with more behind that; a function of such a
    name (C's ``y0``) is called by one of another name in the prelude. `docs/loops.md` says how a nest's ranges become threads.
    """

    ops: Mapping[str, str]
    types: Mapping[torch.dtype, str]
    """What the target calls the element types; a prim whose loops need another one is declined."""

    def __init__(self) -> None:
        missing = [key for key in STATEMENTS if key not in self.ops]
        if missing:
            raise ContractError(
                f"{type(self).__name__}.ops has no text for {', '.join(map(repr, missing))}",
                why="every kernel is made of these statements",
                fix="add the keys; the docstring of vendor_sdk.TableEmitter has their fields",
            )

    @abc.abstractmethod
    def head(self, kernel: LoopKernel) -> str:
        """The lines before the body: the kernel's name, buffers (``kernel.params``) and numbers (``kernel.symbols``, each
        named as ``number`` says)."""

    def tail(self, kernel: LoopKernel) -> str:
        """The lines after the body."""
        return ""

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        """A number of the target: as Python writes it, so floats may be ``inf``, ``-inf`` or ``nan``; bool as 0 or 1."""
        return repr(float(value)) if dtype.is_floating_point else repr(int(value))

    def number(self, symbol: Symbol) -> str:
        """The name of a number of the call."""
        return symbol.name if symbol.role == "size" else f"arg_{symbol.name}"

    def index(self, expression: ix.Int) -> str | None:
        """An index as an expression of the target. None, as here: the table's ``add``, ``mul``, ``floordiv``, ``mod``, ``min``,
        ``max`` and ``const`` of int64 compute it into a register.

        ``vendor_sdk.index`` writes it. ``to_c`` is for languages whose integers divide as C's do; what it writes may call
        ``floor_div``, ``floor_mod``, ``min_int`` and ``max_int``, which you define. For others ``fold(expression, leaf,
        combine)``: ``leaf`` writes a name or a number, ``combine(op, a, b)`` one of the six operations, rounding down.
        """
        return None

    def emit(self, kernel: LoopKernel) -> str:
        return "\n".join((self.head(kernel), *_Writer(self, kernel).lines, self.tail(kernel))).strip("\n") + "\n"


class _Writer:
    """The lines of one kernel's body."""

    def __init__(self, emitter: TableEmitter, kernel: LoopKernel) -> None:
        self.emitter = emitter
        self.numbers = {s.name: emitter.number(s) for s in kernel.symbols}
        self.dtypes = dtypes(kernel) | {s.name: s.dtype for s in kernel.symbols}
        self.lines: list[str] = []
        self.depth = 1
        self.made = self.texts = 0
        for param in kernel.scratch:
            self.buffer("scratch", param)
        self.body(kernel.body)

    def type(self, dtype: torch.dtype) -> str:
        return self.emitter.types[dtype]

    def text(self, key: str, *args: str, **fields: str | int) -> str:
        self.texts += 1
        return self.emitter.ops[key].format(*args, args=", ".join(args), n=self.texts, **fields)

    def put(self, text: str) -> None:
        self.lines += ["    " * self.depth + line for line in text.splitlines()]

    def body(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, s: Stmt) -> None:
        if isinstance(s, Load):
            fields = {"to": s.to, "param": s.param, "index": self.index(s.index), "R": self.type(s.dtype)}
            if s.mask and s.other:
                self.put(self.text("load.masked", mask=s.mask, other=s.other, **fields))
            else:
                self.put(self.text("load", **fields))
        elif isinstance(s, Store):
            key = "store" if s.mode == "set" else f"store.{s.mode}"
            store = self.text(key, s.value, param=s.param, index=self.index(s.index), T=self.type(self.dtypes[s.value]))
            self.put(self.text("store.masked", store=store, mask=s.mask) if s.mask else store)
        elif isinstance(s, Const):
            self.const(s.to, s.value, s.dtype)
        elif isinstance(s, Scalar):
            self.put(self.text("move", self.numbers[s.symbol], to=s.to, R=self.type(s.dtype)))
        elif isinstance(s, Index):
            self.put(self.text("move", self.index(s.index), to=s.to, R=self.type(s.dtype)))
        elif isinstance(s, Compute):
            self.compute(s.op, s.args, s.to, self.type(self.dtypes[s.args[-1]]), self.type(s.dtype))
        elif isinstance(s, Local):
            self.buffer("local", s.param)
        elif isinstance(s, Nest):
            self.loops(s.ranges, s.body)
        elif isinstance(s, Reduce):
            self.loops(s.ranges, s.body, "reduce", s.accumulators)
        else:
            self.loops((s.range,), s.body, "scan", s.accumulators, s.then)

    def const(self, to: str, value: bool | int | float, dtype: torch.dtype) -> None:
        self.put(self.text("const", to=to, value=self.emitter.literal(value, dtype), R=self.type(dtype)))

    def compute(self, op: str, args: Sequence[str], to: str, operand: str, result: str) -> None:
        text = self.text(op, *args, to=to, T=operand, R=result)
        self.put(self.text("compute", to=to, expression=text, R=result) if "compute" in self.emitter.ops else text)

    def buffer(self, key: str, param: Param) -> None:
        self.put(self.text(key, param=param.name, size=self.index(param.size), T=self.type(param.dtype)))

    def loops(
        self,
        ranges: Sequence[Range],
        body: Sequence[Stmt],
        kind: str = "",
        accumulators: Sequence[Accumulator] = (),
        then: Sequence[Stmt] = (),
    ) -> None:
        if "accumulator" in self.emitter.ops:
            for to, value in ((to, v) for a in accumulators for to, v in zip(a.to, self.starts(a, kind), strict=False)):
                self.put(self.text("accumulator", to=to, value=value, R=self.type(self.dtypes[to])))
        sizes = [self.index(r.size) for r in ranges]
        for r, size in zip(ranges, sizes, strict=True):
            self.put(self.text("loop", var=r.var, size=size))
            self.depth += 1
        self.body(body)
        for a in accumulators:
            start, of = self.starts(a, kind)[0], self.type(a.dtype)
            self.put(self.text(f"{kind}.{a.op}", *a.args, to=a.to[0], at=a.to[-1], start=start, rank=len(ranges), T=of, R=of))
        if kind == "scan":
            self.results(accumulators)
        self.body(then)
        for r, size in zip(reversed(ranges), reversed(sizes), strict=True):
            self.depth -= 1
            self.put(self.text("end", var=r.var, size=size))
        if kind == "reduce":
            self.results(accumulators)

    def results(self, accumulators: Sequence[Accumulator]) -> None:
        if "result" in self.emitter.ops:
            for to in (to for a in accumulators for to in a.to):
                self.put(self.text("result", to=to, R=self.type(self.dtypes[to])))

    def starts(self, a: Accumulator, kind: str) -> list[str]:
        """Results over nothing; the position of an extreme starts after all others, in a scan before them."""
        position = 2**63 - 1 if kind == "reduce" else 0
        return [
            self.emitter.literal(COMBINE[a.op].identity(a.dtype), a.dtype),
            self.emitter.literal(position, torch.int64),
        ]

    def index(self, expression: ix.Int) -> str:
        return self.emitter.index(expression) or ix.fold(expression, self.leaf, self.arithmetic)

    def leaf(self, value: str | int) -> str:
        if isinstance(value, str):
            return self.numbers.get(value, value)
        to = self.fresh()
        self.const(to, value, torch.int64)
        return to

    def arithmetic(self, op: str, left: str, right: str) -> str:
        to, kind = self.fresh(), self.type(torch.int64)
        self.compute(op, (left, right), to, kind, kind)
        return to

    def fresh(self) -> str:
        self.made += 1
        return f"index{self.made}"
