"""The inner loops of a row, put in order: one pass over the row for all that can share it.

A row's body, as it was built on demand, holds one inner loop for each reduction and for the stores. ``arrange`` merges loops
over equal ranges that do not wait for each other (a *phase*), makes equal expressions of a phase one value, and keeps what an
earlier phase computed at some cost in a buffer of the row instead of computing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    Local,
    Nest,
    Param,
    Range,
    Reduce,
    Scalar,
    Scan,
    Stmt,
    Store,
    makes,
    needs,
    reads,
)
from vendor_sdk.ir.loop_ops import cost
from vendor_sdk.ir.ranges import renamed

KEEP = 6
"""Cost of an expression from which on a store and a load beside the arithmetic are cheaper than computing it again."""

Fresh = Callable[[str], str]
Loop = Reduce | Nest


def arrange(body: tuple[Stmt, ...], limits: Limits, fresh: Fresh) -> list[Stmt]:
    """``body``, of one row, with its inner loops merged and its shared values kept."""
    names: dict[str, str] = {}
    around = _Merged((), names)
    ordered: list[Stmt | _Merged] = []
    for scalars, loops in _phases(body):
        before = len(around.body)
        for stmt in scalars:
            around.append(renamed(stmt, names, {}))
        ordered.extend(around.body[before:])
        for same in _alike(loops):
            first = same[0]
            if not _mergeable(first):
                ordered.append(renamed(first, names, {}))
                continue
            one = _Merged(first.ranges, names)  # type: ignore[union-attr]
            for loop in same:
                one.add(loop)  # type: ignore[arg-type]
            ordered.append(one)
    merged = [item for item in ordered if isinstance(item, _Merged)]
    buffers = _keep(merged, limits, fresh) if limits.local_bytes else []
    return [*buffers, *(item.loop() if isinstance(item, _Merged) else item for item in ordered)]


# Order


def _phases(body: tuple[Stmt, ...]) -> list[tuple[list[Stmt], list[Stmt]]]:
    """The body as phases: what stands between loops, then loops that wait for nothing in their own phase."""
    ready: dict[str, int] = {}
    phases: list[tuple[list[Stmt], list[Stmt]]] = [([], [])]

    def at(phase: int) -> tuple[list[Stmt], list[Stmt]]:
        while len(phases) <= phase:
            phases.append(([], []))
        return phases[phase]

    for stmt in body:
        phase = max((ready.get(name, 0) for name in needs(stmt)), default=0)
        if isinstance(stmt, Reduce | Nest | Scan):
            at(phase)[1].append(stmt)
            phase += 1
        else:
            at(phase)[0].append(stmt)
        for name in makes(stmt):
            ready[name] = phase
    return phases


def _mergeable(stmt: Stmt) -> bool:
    return isinstance(stmt, Reduce | Nest) and not any(isinstance(s, Reduce | Nest | Scan | Local) for s in stmt.body)


def _alike(loops: Sequence[Stmt]) -> list[list[Stmt]]:
    """Loops of one phase by their ranges; what does not merge stands alone."""
    groups: dict[Any, list[Stmt]] = {}
    for loop in loops:
        key: Any = tuple(r.size for r in loop.ranges) if _mergeable(loop) else id(loop)  # type: ignore[union-attr]
        groups.setdefault(key, []).append(loop)
    return list(groups.values())


# One pass over the row


@dataclass
class _Merged:
    """Loops over equal ranges as one: statements by the expression they compute.

    Attributes:
        names: values that went away to those that stand for them, in the whole row.
    """

    ranges: tuple[Range, ...]
    names: dict[str, str]
    body: list[Stmt] = field(default_factory=list)
    accumulators: list[Accumulator] = field(default_factory=list)
    reduces: bool = False
    known: dict[Any, str] = field(default_factory=dict)

    def add(self, loop: Loop) -> None:
        moved = {b.var: ix.variable(a.var, a.size) for a, b in zip(self.ranges, loop.ranges, strict=True) if a.var != b.var}
        for stmt in loop.body:
            self.append(renamed(stmt, self.names, moved))
        if isinstance(loop, Reduce):
            self.reduces = True
            for a in loop.accumulators:
                self.accumulate(replace(a, args=tuple(self.names.get(n, n) for n in a.args)))

    def accumulate(self, one: Accumulator) -> None:
        for a in self.accumulators:
            if (a.op, a.args) == (one.op, one.args):
                self.names.update(zip(one.to, a.to, strict=True))
                return
        self.accumulators.append(one)

    def append(self, stmt: Stmt) -> None:
        if isinstance(stmt, Load | Const | Scalar | Index | Compute):
            key = _key(stmt)
            if key in self.known:
                self.names[stmt.to] = self.known[key]
                return
            self.known[key] = stmt.to
        self.body.append(stmt)

    def loop(self) -> Loop:
        body = tuple(self.body)
        return Reduce(self.ranges, body, tuple(self.accumulators)) if self.reduces else Nest(self.ranges, body)


def _key(stmt: Stmt) -> Any:
    if isinstance(stmt, Const):  # 0.0 is not -0.0, and NaN is itself
        return Const, repr(stmt.value), stmt.dtype
    return replace(stmt, to="")  # type: ignore[arg-type]


# Values kept from one pass to the next


def _keep(loops: Sequence[_Merged], limits: Limits, fresh: Fresh) -> list[Stmt]:
    """Replaces expressions that an earlier loop over equal ranges computed by loads of a buffer of the row, in place.
    Returns the buffers."""
    seen: dict[int, tuple[_Merged, str, Param | None]] = {}
    numbers: dict[Any, int] = {}
    room = limits.local_bytes
    made: list[Stmt] = []
    for loop in loops:
        sizes = tuple(r.size for r in loop.ranges)
        count = ix.product(sizes)
        computes = _Expressions(loop, sizes, numbers)
        for name in reversed(list(computes.made)):  # a reader before what it reads: the largest shared expression first
            if name not in computes.live():
                continue
            key, price = computes.keys[name], computes.costs[name]
            found = seen.get(key)
            if found is None or price < KEEP:
                continue
            first, value, param = found
            if param is None:
                bytes_ = _bytes(count, computes.dtypes[name].itemsize, limits)
                if bytes_ is None or bytes_ > room:
                    continue
                room -= bytes_
                param = Param(fresh("kept"), computes.dtypes[name], count, "local")
                made.append(Local(param))
                first.body.append(Store(param.name, _position(first.ranges), value))
                seen[key] = first, value, param
            computes.load(name, Load(name, param.name, _position(loop.ranges), param.dtype))
        live = computes.live()
        loop.body = computes.needed(live)
        for name in live:
            seen.setdefault(computes.keys[name], (loop, name, None))
    return made


def _bytes(count: Int, itemsize: int, limits: Limits) -> int | None:
    most = ix.bounds(count)[1]
    if most is None:
        return 0 if limits.local_dynamic else None
    return most * itemsize


def _position(ranges: Sequence[Range]) -> Int:
    flat = ix.ZERO
    for r in ranges:
        flat = flat * r.size + ix.variable(r.var, r.size)
    return flat


class _Expressions:
    """What the values of a loop's body compute: equal numbers for equal expressions, in all loops over equal ranges."""

    def __init__(self, loop: _Merged, sizes: tuple[Int, ...], numbers: dict[Any, int]) -> None:
        self.loop = loop
        self.keys: dict[str, int] = {}
        self.costs: dict[str, int] = {}
        self.dtypes: dict[str, Any] = {}
        self.made = {s.to: s for s in loop.body if isinstance(s, Load | Const | Scalar | Index | Compute)}
        common = {r.var: ix.variable(f"${k}", r.size) for k, r in enumerate(loop.ranges)}
        for name, stmt in self.made.items():
            read = [n for n in dict.fromkeys(reads(stmt)) if n in self.made]
            alike = renamed(stmt, {n: f"#{self.keys[n]}" for n in read}, common)
            self.keys[name] = numbers.setdefault((sizes, _key(alike)), len(numbers))
            own = cost(stmt.op) if isinstance(stmt, Compute) else 1 if isinstance(stmt, Load) else 0
            self.costs[name] = own + sum(self.costs[n] for n in read)
            self.dtypes[name] = stmt.dtype

    def load(self, name: str, stmt: Load) -> None:
        self.made[name] = stmt

    def live(self) -> set[str]:
        """Values that a store or an accumulator needs."""
        live: set[str] = set()
        stack = [n for s in self.loop.body if isinstance(s, Store) for n in reads(s)]
        stack += [n for a in self.loop.accumulators for n in a.args]
        while stack:
            name = stack.pop()
            if name in live or name not in self.made:
                continue
            live.add(name)
            stack.extend(reads(self.made[name]))
        return live

    def needed(self, live: set[str]) -> list[Stmt]:
        """The body without what no live value needs."""
        kept: list[Stmt] = []
        for stmt in self.loop.body:
            if isinstance(stmt, Store):
                kept.append(stmt)
            elif isinstance(stmt, Load | Const | Scalar | Index | Compute) and stmt.to in live:
                kept.append(self.made[stmt.to])
        return kept
