"""Whether a loop kernel may write a result over an operand, and the kernel that does.

It may when every iteration of the outer loops has read all it needs of the operand before it writes the result, and what it
reads lies where it writes. Then no iteration reads what another one wrote, in whatever order they run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from vendor_sdk.ir.index import Int, stride, substitute, symbols, variable
from vendor_sdk.ir.loop import Load, LoopKernel, Nest, Range, Reduce, Scan, Stmt, Store, walk


class InPlace:
    """Which results of ``kernel`` may be the memory of which operands. Each pair is judged by itself: accesses of others do not
    count."""

    def __init__(self, kernel: LoopKernel) -> None:
        self._kernel = kernel
        self._sizes = {symbol.name for symbol in kernel.symbols}
        nests: dict[str, list[int]] = {}
        for n, nest in enumerate(kernel.body):
            for name in {s.param for s in walk(nest.body) if isinstance(s, Load | Store)}:
                nests.setdefault(name, []).append(n)
        self._alike: dict[str, tuple[int, torch.dtype, Int]] = {}
        self._operands: dict[tuple[int, torch.dtype, Int], list[str]] = {}
        for p in kernel.params:
            touched = nests.get(p.name, [])
            if p.role == "out" and touched:
                self._alike[p.name] = touched[0], p.dtype, p.size
            elif p.role == "in" and len(touched) == 1:
                self._alike[p.name] = touched[0], p.dtype, p.size
                self._operands.setdefault(self._alike[p.name], []).append(p.name)

    def candidates(self, result: str) -> Sequence[str]:
        """The "in" params, in order, of the dtype and size of the "out" param ``result`` that only the nest reads which is the
        first to write it."""
        return self._operands.get(self._alike[result], ()) if result in self._alike else ()

    def allows(self, operand: str, result: str) -> bool:
        """Whether the "out" param ``result`` may be the memory of ``operand``, one of its ``candidates``."""
        nest = self._kernel.body[self._alike[result][0]]
        return _Walk(operand, result, self._sizes).allows(nest)


def overwrite(kernel: LoopKernel, over: Mapping[str, str]) -> LoopKernel:
    """``kernel`` without the operands that ``over`` has: it reads the old content of each from the result that is named for it,
    which becomes "inout"."""
    results = set(over.values())

    def body(statements: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return tuple(map(statement, statements))

    def statement(s: Stmt) -> Stmt:
        if isinstance(s, Load):
            return dataclasses.replace(s, param=over[s.param]) if s.param in over else s
        if isinstance(s, Reduce | Nest):
            return dataclasses.replace(s, body=body(s.body))
        if isinstance(s, Scan):
            return dataclasses.replace(s, body=body(s.body), then=body(s.then))
        return s

    params = tuple(
        dataclasses.replace(p, role="inout") if p.name in results else p for p in kernel.params if p.name not in over
    )
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


class _Walk:
    """One pass over a nest in the order in which its statements run."""

    def __init__(self, operand: str, result: str, sizes: set[str]) -> None:
        self.operand, self.result, self.sizes = operand, result, sizes
        self.reads: list[tuple[Int, tuple[Range, ...]]] = []
        self.writes: list[tuple[Int, tuple[Range, ...]]] = []
        self.allowed = True

    def allows(self, nest: Nest) -> bool:
        self._body(nest.body, ())
        if not self.allowed or not self.writes or len({inner for _, inner in self.writes}) != 1:
            return False
        position, inner = self.writes[0]
        # A position that does not follow every loop, or follows loaded values, may be written twice.
        ranges = (*nest.ranges, *inner)
        needed = {r.var for r in ranges if r.size.value != 1}
        if not needed <= symbols(position).keys() <= {r.var for r in ranges} | self.sizes:
            return False
        if len(self.writes) > 1 and not apart([each for each, _ in self.writes], ranges):
            return False
        written = {_canonical(*write) for write in self.writes}
        return all(_canonical(*read) in written for read in self.reads)

    def _body(self, body: Sequence[Stmt], inner: tuple[Range, ...]) -> None:
        for s in body:
            if isinstance(s, Load) and s.param == self.operand:
                # A read behind the write would see the result.
                read = _canonical(s.index, inner)
                self.allowed &= all(inner == each and read != _canonical(write, each) for write, each in self.writes)
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


def apart(positions: Sequence[Int], ranges: Sequence[Range]) -> bool:
    """Whether no two iterations write one element, which neighbours that stand in one body (``lower/strides.py``) do not: their
    distances, one each way or two, are digits of a number whose other digits are the loops."""
    distances = [(position - positions[0]).value for position in positions]
    if None in distances:
        return False
    first, *others = sorted(distances)  # type: ignore[type-var]
    found = [each - first for each in others]  # type: ignore[operator]
    if not (len(found) == 1 or (len(found) == 3 and found[2] == found[0] + found[1])) or 0 in found:
        return False
    digits = [(distance, 2) for distance in found[:2]]
    for r in ranges:
        step = stride(positions[0], r.var)
        if step is None or step.value is None or r.size.value is None:
            return False
        digits.append((abs(step.value), r.size.value))
    below = 0
    for step_, size in sorted(digits):
        if step_ <= below:
            return False
        below += step_ * (size - 1)
    return True


def _canonical(position: Int, inner: tuple[Range, ...]) -> tuple[Int, tuple[Int, ...]]:
    """A position with its inner loops' variables named by their depth: equal ones cover equal elements."""
    names = {r.var: variable(f"inner{depth}", r.size) for depth, r in enumerate(inner)}
    return substitute(position, names), tuple(r.size for r in inner)
