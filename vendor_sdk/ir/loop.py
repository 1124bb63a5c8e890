"""Loop IR: what emitters see. Straight-line bodies inside rectangular loops over integer ranges.

Grammar (one screen; every name is a class below, every tuple is ordered):

    kernel  = LoopKernel(name, params, symbols, body=(nest, ...), scratch)   nests run one after the other
    param   = Param(name, dtype, size, role)     role: "in" | "out" | "inout"; a flat buffer of `size` elements. Those in
                                                 `scratch` have role "scratch": the launch's own, undefined before and after
    symbol  = Symbol(name, dtype, role, lower, upper)   a run-time number: "size" (a shape symbol), "scalar" (a number of the
                                                 graph, int64 or float64), "seed" (drawn per call from the host's generator)
    nest    = Nest(ranges, body)                 ranges are independent: any order, in parallel
    range   = Range(var, size)                   0 <= var < size
    stmt    = Load(to, param, index, dtype, mask, other)    to = mask ? param[index] : other   (mask None: always)
            | Const(to, value, dtype)
            | Scalar(to, symbol, dtype)          a "scalar" or "seed" symbol as a value
            | Index(to, index)                   an index expression as an int64 value
            | Compute(to, op, args, dtype)       op from the table `loop_ops.OPS`; args name values of this or an outer body
            | Reduce(ranges, body, accumulators) runs over `ranges`, in any order; each
                  Accumulator(to, op, args, dtype)    is `to = op over all iterations of args`, visible after the Reduce
            | Scan(range, body, accumulators, then)   runs along `range`, in order; `then` sees the running value, per element
            | Nest(ranges, body)                 an inner loop, once per iteration of the outer one
            | Local(param)                       a buffer of this iteration alone, undefined at first; later statements of the
                                                 same body load and store it by name (a row kept near the arithmetic)
            | Store(param, index, value, mode, mask)  mode: "set" | "add" | "mul" | "max" | "min" (combining modes are atomic)
    index   = an expression of `vendor_sdk.ir.index` over loop variables, symbols of role "size" and int64 values of the body

Values are single-assignment, named, and typed by `dtype`. A body is a tuple of statements. Buffers never overlap, except that
an "inout" param is its own old content: an iteration may load an element and store a value there that does not follow from
it, so where several threads share an iteration, all must have loaded before one stores. Halves are values of their dtype and
are only loaded, stored and converted: lowering inserts the conversions, so `Compute` sees float32, float64, integers and
bool. A Reduce over zero iterations gives the operation's identity; accumulators of "argmax" and "argmin" have two results,
value and int64 position, and so has "expsum": the largest value and the sum of weights times exp(value - largest).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from vendor_sdk.ir.index import Int, symbols

Role = Literal["in", "out", "inout", "scratch", "local"]
SymbolRole = Literal["size", "scalar", "seed"]
StoreMode = Literal["set", "add", "mul", "max", "min"]


@dataclass(frozen=True)
class Param:
    """A flat buffer of ``size`` elements of ``dtype``, its first element at index 0."""

    name: str
    dtype: torch.dtype
    size: Int
    role: Role


@dataclass(frozen=True)
class Symbol:
    """A run-time number: int64, or float64 for a floating "scalar". ``lower`` and ``upper`` are what is known of a "size"."""

    name: str
    dtype: torch.dtype = torch.int64
    role: SymbolRole = "size"
    lower: int | None = 0
    upper: int | None = None


@dataclass(frozen=True)
class Range:
    """``0 <= var < size``; ``var`` names the loop variable, which index expressions use as ``index.variable(var, size)``."""

    var: str
    size: Int


@dataclass(frozen=True)
class Load:
    """``to = param[index]``; with ``mask`` (a bool value) false, ``to = other`` (a value) and memory is not touched."""

    to: str
    param: str
    index: Int
    dtype: torch.dtype
    mask: str | None = None
    other: str | None = None


@dataclass(frozen=True)
class Const:
    """``to = value``, a Python number representable in ``dtype`` (floats may be infinite or NaN)."""

    to: str
    value: bool | int | float
    dtype: torch.dtype


@dataclass(frozen=True)
class Scalar:
    """``to`` = the run-time number ``symbol``, of role "scalar" or "seed"; ``dtype`` is the symbol's."""

    to: str
    symbol: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Index:
    """``to`` = an index expression, int64."""

    to: str
    index: Int

    dtype = torch.int64


@dataclass(frozen=True)
class Compute:
    """``to = op(args)``, of ``dtype``; what dtypes ``op`` takes and gives is in ``loop_ops.OPS``."""

    to: str
    op: str
    args: tuple[str, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Accumulator:
    """One running result of a ``Reduce`` or ``Scan``.

    Attributes:
        to: names of its results; one, or (value, position) for "argmax" and "argmin", (largest, sum) for "expsum".
        op: "sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin", "expsum", "logaddexp" (the last for scans
            only).
        args: values that the body computes; one, or (value, position), (value, weight).
        dtype: of the first result, and of the sum; positions are int64.
    """

    to: tuple[str, ...]
    op: str
    args: tuple[str, ...]
    dtype: torch.dtype

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of its results, and of its operands."""
        return (self.dtype, self.dtype if self.op == "expsum" else torch.int64)[: len(self.to)]


@dataclass(frozen=True)
class Reduce:
    """Loops whose iterations are combined by ``accumulators``; the order of combination is free (rounding may differ)."""

    ranges: tuple[Range, ...]
    body: tuple[Stmt, ...]
    accumulators: tuple[Accumulator, ...]


@dataclass(frozen=True)
class Scan:
    """A loop in order; after each iteration of ``body`` the accumulators advance and ``then`` runs with their values."""

    range: Range
    body: tuple[Stmt, ...]
    accumulators: tuple[Accumulator, ...]
    then: tuple[Stmt, ...]


@dataclass(frozen=True)
class Store:
    """``param[index] = value`` or the atomic combination ``mode``; nothing happens where ``mask`` is false."""

    param: str
    index: Int
    value: str
    mode: StoreMode = "set"
    mask: str | None = None


@dataclass(frozen=True)
class Nest:
    """Independent loops: iterations run in any order and in parallel."""

    ranges: tuple[Range, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Local:
    """A buffer private to one iteration of the enclosing nest: what one inner loop leaves for a later one.

    ``param`` has role "local". Inner loops of the same body store it and load it back at equal positions, so that an emitter
    may keep it in a scratchpad, in a cache-sized array of the thread, or, as a tile, in registers.
    """

    param: Param


Stmt = Load | Const | Scalar | Index | Compute | Reduce | Scan | Nest | Local | Store


@dataclass(frozen=True)
class LoopKernel:
    """One kernel: nests that run one after the other over flat buffers."""

    name: str
    params: tuple[Param, ...]
    symbols: tuple[Symbol, ...]
    body: tuple[Nest, ...]
    scratch: tuple[Param, ...] = ()

    def param(self, name: str) -> Param:
        for p in (*self.params, *self.scratch):
            if p.name == name:
                return p
        return next(s.param for s in walk(self.body) if isinstance(s, Local) and s.param.name == name)


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a body, inner ones after the statement that holds them."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, Reduce | Nest):
            yield from walk(stmt.body)
        elif isinstance(stmt, Scan):
            yield from walk(stmt.body)
            yield from walk(stmt.then)


def loop_variables(stmt: Stmt) -> tuple[str, ...]:
    """Of a statement that is a loop; none of others."""
    if isinstance(stmt, Scan):
        return (stmt.range.var,)
    return tuple(r.var for r in stmt.ranges) if isinstance(stmt, Reduce | Nest) else ()


def reads(stmt: Stmt) -> list[str]:
    """Names that a statement itself uses, in order: values, variables and size symbols; not those of statements inside it."""
    names: list[str | None] = []
    if isinstance(stmt, Load | Store | Index):
        names += symbols(stmt.index)
    if isinstance(stmt, Load):
        names += stmt.mask, stmt.other
    elif isinstance(stmt, Store):
        names += stmt.value, stmt.mask
    elif isinstance(stmt, Compute):
        names += stmt.args
    elif isinstance(stmt, Reduce | Scan | Nest):
        ranges = (stmt.range,) if isinstance(stmt, Scan) else stmt.ranges
        names += (name for r in ranges for name in symbols(r.size))
        names += (name for a in getattr(stmt, "accumulators", ()) for name in a.args)
    return [name for name in names if name]


def needs(stmt: Stmt) -> Iterator[str]:
    """What a statement and those inside it read, their own values and loop variables included."""
    for s in walk((stmt,)):
        yield from reads(s)


def makes(stmt: Stmt) -> tuple[str, ...]:
    """Names of the values that a statement leaves to those after it."""
    if isinstance(stmt, Reduce | Scan):
        return tuple(name for a in stmt.accumulators for name in a.to)
    return (stmt.to,) if isinstance(stmt, Load | Const | Scalar | Index | Compute) else ()


def dtypes(kernel: LoopKernel) -> dict[str, torch.dtype]:
    """Of every value and loop variable of a kernel, by name: what instructions on typed registers need."""
    found: dict[str, torch.dtype] = {}
    for stmt in walk(kernel.body):
        found.update(dict.fromkeys(loop_variables(stmt), torch.int64))
        if isinstance(stmt, Reduce | Scan):
            for a in stmt.accumulators:
                found.update(zip(a.to, a.dtypes, strict=True))
        else:
            found.update(dict.fromkeys(makes(stmt), getattr(stmt, "dtype", torch.int64)))
    return found


def required_types(kernel: LoopKernel) -> frozenset[torch.dtype]:
    """What a kernel loads, computes and stores: dtypes of its buffers, numbers and values. Loop variables are apart."""
    variables = {name for stmt in walk(kernel.body) for name in loop_variables(stmt)}
    values = (dtype for name, dtype in dtypes(kernel).items() if name not in variables)
    return frozenset((*values, *(each.dtype for each in (*kernel.params, *kernel.scratch))))


def required_ops(kernel: LoopKernel) -> frozenset[str]:
    """What an emitter must have for this kernel: ``stated_ops``, and ``contraction`` for products of matrices."""
    from vendor_sdk.ir.contraction import match  # It reads nests, so it comes after this module.

    products = any((product := match(nest)) is not None and product.is_matrix_product for nest in kernel.body)
    return stated_ops(kernel) | {"contraction"} if products else stated_ops(kernel)


def stated_ops(kernel: LoopKernel) -> frozenset[str]:
    """What a kernel's statements say: names of computed ops, ``reduce.OP``, ``scan.OP``, ``store.MODE`` for combining stores,
    ``scratch`` for buffers of the launch's own, ``local`` for those of one iteration, ``nest`` for inner nests."""
    found: set[str] = {"scratch"} if kernel.scratch else set()
    for stmt in walk(tuple(s for nest in kernel.body for s in nest.body)):
        if isinstance(stmt, Compute):
            found.add(stmt.op)
        elif isinstance(stmt, Nest):
            found.add("nest")
        elif isinstance(stmt, Reduce):
            found.update(f"reduce.{a.op}" for a in stmt.accumulators)
        elif isinstance(stmt, Scan):
            found.update(f"scan.{a.op}" for a in stmt.accumulators)
        elif isinstance(stmt, Store) and stmt.mode != "set":
            found.add(f"store.{stmt.mode}")
        elif isinstance(stmt, Local):
            found.add("local")
    return frozenset(found)
