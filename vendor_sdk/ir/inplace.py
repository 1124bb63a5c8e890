"""Whether a loop kernel may write a result over an operand, and the kernel that does.

It may when every iteration of the outer loops has read all it needs of the operand before it writes the result, and what it
reads lies where it writes. Then no iteration reads what another one wrote, in whatever order they run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vendor_sdk.ir.index import Int, substitute, symbols, variable
from vendor_sdk.ir.loop import Load, LoopKernel, Nest, Range, Reduce, Scan, Stmt, Store, walk


def may_overwrite(kernel: LoopKernel, operand: str, result: str) -> bool:
    """Whether the "out" param ``result`` of ``kernel`` may be the memory of its "in" param ``operand``."""
    source, target = kernel.param(operand), kernel.param(result)
    if source.role != "in" or target.role != "out" or source.dtype != target.dtype or source.size != target.size:
        return False
    readers = [n for n, nest in enumerate(kernel.body) if _touches(nest.body, operand)]
    writers = [n for n, nest in enumerate(kernel.body) if _touches(nest.body, result)]
    if len(readers) != 1 or not writers or writers[0] != readers[0]:
        return False
    sizes = {symbol.name for symbol in kernel.symbols}
    return _Walk(operand, result, sizes).allows(kernel.body[readers[0]])


def overwrite(kernel: LoopKernel, operand: str, result: str) -> LoopKernel:
    """``kernel`` without the param ``operand``: it reads its old content from ``result``, which becomes "inout"."""

    def body(statements: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return tuple(map(statement, statements))

    def statement(s: Stmt) -> Stmt:
        if isinstance(s, Load):
            return dataclasses.replace(s, param=result) if s.param == operand else s
        if isinstance(s, Reduce | Nest):
            return dataclasses.replace(s, body=body(s.body))
        if isinstance(s, Scan):
            return dataclasses.replace(s, body=body(s.body), then=body(s.then))
        return s

    params = tuple(dataclasses.replace(p, role="inout") if p.name == result else p for p in kernel.params if p.name != operand)
    nests = [nest for nest in body(kernel.body) if isinstance(nest, Nest) and not _copies_itself(nest)]
    return dataclasses.replace(kernel, params=params, body=tuple(nests))


def _copies_itself(nest: Nest) -> bool:
    """What is left of a nest that copied the operand, for later nests to update."""
    if len(nest.body) != 2:
        return False
    load, store = nest.body
    return (
        isinstance(load, Load)
        and isinstance(store, Store)
        and (load.param, load.index, load.to, load.mask) == (store.param, store.index, store.value, store.mask)
    )


def _touches(body: Sequence[Stmt], param: str) -> bool:
    return any(isinstance(s, Load | Store) and s.param == param for s in walk(tuple(body)))


class _Walk:
    """One pass over a nest in the order in which its statements run."""

    def __init__(self, operand: str, result: str, sizes: set[str]) -> None:
        self.operand, self.result, self.sizes = operand, result, sizes
        self.reads: list[tuple[Int, tuple[Range, ...]]] = []
        self.writes: list[tuple[Int, tuple[Range, ...]]] = []
        self.allowed = True

    def allows(self, nest: Nest) -> bool:
        self._body(nest.body, ())
        if not self.allowed or len(self.writes) != 1:
            return False
        position, inner = self.writes[0]
        # A position that does not follow every loop, or follows loaded values, may be written twice.
        loops = {r.var for r in (*nest.ranges, *inner)}
        needed = {r.var for r in (*nest.ranges, *inner) if r.size.value != 1}
        if not needed <= symbols(position).keys() <= loops | self.sizes:
            return False
        written = _canonical(position, inner)
        return all(_canonical(*read) == written for read in self.reads)

    def _body(self, body: Sequence[Stmt], inner: tuple[Range, ...]) -> None:
        for s in body:
            if isinstance(s, Load) and s.param == self.operand:
                self.allowed &= not self.writes  # a read behind the write would see the result
                self.reads.append((s.index, inner))
            elif isinstance(s, Load) and s.param == self.result:
                self.allowed = False
            elif isinstance(s, Store) and s.param == self.result:
                # Inside an inner loop that also reads, each of its iterations reads its own element first.
                self.allowed &= s.mode == "set"
                self.writes.append((s.index, inner))
            elif isinstance(s, Nest | Reduce):
                self._body(s.body, (*inner, *s.ranges))
            elif isinstance(s, Scan):
                self._body(s.body, (*inner, s.range))
                self._body(s.then, (*inner, s.range))


def _canonical(position: Int, inner: tuple[Range, ...]) -> tuple[Int, tuple[Int, ...]]:
    """A position with its inner loops' variables named by their depth: equal ones cover equal elements."""
    names = {r.var: variable(f"inner{depth}", r.size) for depth, r in enumerate(inner)}
    return substitute(position, names), tuple(r.size for r in inner)
