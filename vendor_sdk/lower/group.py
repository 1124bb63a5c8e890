"""A fused group as one kernel: its loops, its stores, and members computed where they are read.

A group with totals (results that reduce over the rows) works on chunks of rows, each with partial results of its own, and
combines the chunks at the end: no two iterations that may run at once write one element, and the result does not depend on
how many run at once.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.fused import Fused, Loops, Total
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Nest, Param, Range, StoreMode
from vendor_sdk.ir.loop_ops import COMBINE
from vendor_sdk.lower.build import (
    Builder,
    Layout,
    Lowered,
    Lowering,
    Node,
    Request,
    TensorSpec,
    Value,
    combining,
    contiguous_strides,
)
from vendor_sdk.lower.phases import arrange
from vendor_sdk.lower.simplify import live, simplify
from vendor_sdk.lower.split import LINE
from vendor_sdk.lower.view import flatten, is_view, unflatten
from vendor_sdk.prims.opset import BY_TARGET

PARTS = 8
"""Loops that one loop may be cut into."""
TOTALS: Mapping[str, StoreMode] = {"sum": "add", "max": "max", "min": "min", "prod": "mul"}
"""Reductions that may run over the rows of a group, a step a row, and the stores that make the steps."""


@dataclass(frozen=True)
class _Part:
    """A loop variable that runs over ``size`` iterations of the loop ``var``, from ``start`` on: its part number ``place``.
    Parts of it have ``least`` iterations."""

    var: str
    place: int
    start: Int
    size: Int
    least: int

    def cuts_at(self, at: Int) -> bool:
        """Whether a cut lies within the part, in any order of magnitude of sizes, and pays. Where it may lie at an end, one
        loop may be empty."""
        rest = self.size - at
        if at == 0 or rest == 0 or not (ix.nonnegative(at) and ix.nonnegative(rest)):
            return False
        shortest = ix.bounds(ix.minimum(at, rest))[1]
        return shortest is None or shortest >= self.least


class _Split(Exception):
    """The loop that a part belongs to is better cut where ``at`` iterations of that part have run."""

    def __init__(self, part: _Part, at: Int) -> None:
        super().__init__(part, at)
        self.part, self.at = part, at


class _Stepped(Exception):
    """One step of a total is in the body; the rest of the member's lowering belongs after the last row."""


@dataclass
class _Partial:
    """The partial results of one accumulator of a total: ``chunks`` rows of ``width`` elements of ``dtype``, ``step`` apart."""

    op: str
    dtype: torch.dtype
    param: Param
    width: Int
    step: Int
    chunks: Int


_FRAMES = 16
"""Python frames that one member takes, computed inside its reader."""
_depth_lock = threading.Lock()
_deep: list[int] = []


@contextmanager
def _stack_for(members: int) -> Iterator[None]:
    """Room on Python's stack for a chain of so many members, each computed inside its reader."""
    wanted = 1000 + _FRAMES * members
    with _depth_lock:
        before = sys.getrecursionlimit()
        _deep.append(before)
        sys.setrecursionlimit(max(before, wanted))
    try:
        yield
    finally:
        with _depth_lock:
            if len(_deep) == 1:
                sys.setrecursionlimit(_deep[0])
            _deep.pop()


FEW_ROWS = 8
"""Of a chunk at least, however many chunks an emitter wants: partial results are written and read again."""


WIDE = 4096
"""Columns of rows by which those are measured of which only the call knows the length."""


class GroupBuilder(Builder):
    """Builds the kernel of a fused group; the group's subgraph is what its nodes belong to."""

    def __init__(
        self, fused: Fused, name: str, operands: Mapping[Node, Layout], lowerings: Mapping[str, Lowering], inner_nests: bool
    ) -> None:
        graph = fused.graph
        first = next(graph.calls())
        self.operands = operands
        self.lowerings = lowerings
        self.inner_nests = inner_nests
        super().__init__(first, name, self._layout_of)
        self.fused = fused
        self.results: list[TensorSpec] = []
        self._totals: dict[Node, Total] = {}
        self._partials: dict[Node, _Partial] = {}
        self._stepping: Callable[[tuple[Int, ...], Sequence[tuple[Any, ...]]], None] | None = None
        self._finishing: _Partial | None = None
        self._parts: dict[str, _Part] = {}
        """Loop variables that may be cut."""

    def _layout_of(self, node: Node) -> Layout | None:
        if node.op == "placeholder":
            return self.operands[node]
        return None if is_view(node) else Layout(())

    def is_fused(self, node: Node) -> bool:
        return node.op != "placeholder"

    def lower_node(self, node: Node) -> None:
        partial = self._partials.get(node)
        row = BY_TARGET[node.target]
        if partial is None:
            self.lowerings[row.name](self)
            return
        outside, self._finishing = self._finishing, partial
        try:
            self.lowerings[row.name](self)
        finally:
            self._finishing = outside

    def reduce(self, sizes: Sequence[Int], body: Callable[[tuple[Int, ...]], Sequence[tuple[Any, ...]]]) -> Any:
        if self._stepping is not None:
            step, self._stepping = self._stepping, None
            total = self._totals[self.node]
            step(total.reduced, body(total.reduced))
            raise _Stepped
        if self._finishing is not None:
            partial, self._finishing = self._finishing, None
            assert self._request is not None
            place = flatten(self._request.index, self.outputs[0].shape)

            def part(q: tuple[Int, ...]) -> list[tuple[str, Value]]:
                kept = self.load_buffer(partial.param, q[0] * partial.step + place)
                return [(partial.op, self.convert(kept, partial.dtype))]

            return super().reduce((partial.chunks,), part)
        return super().reduce(sizes, body)

    # The kernel

    def build(self, limits: Limits) -> Lowered:
        outputs: list[Node] = list(self.fused.graph.outputs)
        self.results = [TensorSpec(self.shape(node), self.dtype(node)) for node in outputs]
        by_name = {node.name: node for node in self.fused.graph.calls()}
        with _stack_for(len(by_name)):
            for loops in self.fused.loops:
                self._loops(loops, outputs, by_name, limits)
                for position, place in loops.results:
                    self._fill_margin(position, outputs[position], place.index)
        self.outputs = self.results
        self._request = None
        return simplify(self.finish(), limits)

    def elements(self, node: Node) -> Lowered:
        """A node of the group as a kernel of its own, not simplified: a loop for each dimension, and one store, the last."""
        self.results = [TensorSpec(self.shape(node), self.dtype(node))]
        ranges, index = self._ranges(self.results[0].shape, "at")
        with _stack_for(len(list(self.fused.graph.calls()))), self.loops(ranges):
            self.outputs = self.results
            self.store_flat(0, flatten(index, self.results[0].shape), self.load(node, index))
        self._request = None
        lowered = self.finish()
        body = tuple(nest for nest in live(lowered.kernel.body, set()) if isinstance(nest, Nest))
        return replace(lowered, kernel=replace(lowered.kernel, body=body))

    def _loops(self, loops: Loops, outputs: list[Node], by_name: Mapping[str, Node], limits: Limits) -> None:
        if not loops.totals and not loops.columns:
            self._elements(loops, outputs, limits.part)
            return
        if not loops.totals:
            self._rows(loops, loops.rows, {}, outputs, limits)
            return
        count = ix.product([r.size for r in loops.rows])
        self._totals = {by_name[total.name]: total for total in loops.totals}
        widths = [self._width(node) for node in self._totals]
        narrow = all(width == 1 for width in widths)
        most = limits.narrow_chunk if narrow else limits.chunk
        apart = limits.chunk_apart and not narrow and count != 0
        if apart:
            chunks = chunks_apart(count, limits.chunks, limits.chunks_at_once, functools.reduce(ix.maximum, widths))
            chunk = (count + (chunks - 1)) // chunks
        else:
            chunk, chunks = _chunks(count, most, limits.chunks)
        q, t = (Range(self._fresh("i"), size) for size in (chunks, chunk))
        inside = ix.variable(q.var, q.size)
        rest = (count - inside + (chunks - 1)) // chunks if apart else ix.minimum(chunk, count - inside * chunk)
        within = Range(t.var, rest if count != chunk * chunks else chunk)
        turn = ix.variable(within.var, within.size)
        row = turn * chunks + inside if apart else inside * chunk + turn
        # The position among all rows is below their number, which the chunk's own arithmetic does not tell.
        variables = dict(zip((r.var for r in loops.rows), unflatten(row, [r.size for r in loops.rows]), strict=True))
        steps = {node: self._partial(node, total, chunks) for node, total in self._totals.items()}
        with self.loops((q,)):
            for partial in steps.values():
                with self.nest((partial.width,)) as (i,):
                    value = self.const(COMBINE[partial.op].identity(partial.dtype), partial.dtype)
                    self.store_buffer(partial.param, inside * partial.step + i, value)
            self._rows(loops, (within,), variables, outputs, limits, steps, inside)
        self._partials.update(steps)
        columns = {r.var for r in loops.columns}
        finished = [(position, place.index) for position, place in loops.results if place.where == "column"]
        for ranges in (loops.columns, ()):
            stored = [(p, index) for p, index in finished if bool(ranges) == any(columns & ix.symbols(i).keys() for i in index)]
            if stored:
                with self.loops(ranges):
                    for position, index in stored:
                        self._store_result(position, outputs[position], index)

    def _elements(self, loops: Loops, outputs: list[Node], shortest: int) -> None:
        """The nest of a group without reductions. A loop over parts that compute different things (cat, pad) is cut into one
        for each part, inside the loops around it: what two parts read is still near when the second runs."""
        last = len(loops.rows) - 1
        whole = {
            r.var: _Part(r.var, 0, ix.ZERO, r.size, shortest if k == last else 1)
            for k, r in enumerate(loops.rows)
            if self.inner_nests or k == 0
        }
        cuts: list[Int] = []
        var = ""
        while True:
            self._parts = {} if len(cuts) >= PARTS else dict(whole)
            made = len(self._nests)
            try:
                self._cut_elements(loops, outputs, var, cuts, shortest)
            except _Split as split:
                del self._nests[made:]
                var, whole = split.part.var, {}
                cuts.insert(split.part.place, split.part.start + split.at)
            else:
                break
        self._parts = {}

    def _cut_elements(self, loops: Loops, outputs: list[Node], var: str, cuts: Sequence[Int], shortest: int) -> None:
        """The loops with the one over ``var`` cut at ``cuts``, which ascend."""
        if not cuts:
            with self.loops(loops.rows):
                self._store_all(loops, outputs, {})
            return
        position = next(k for k, r in enumerate(loops.rows) if r.var == var)
        around, cut, inside = loops.rows[:position], loops.rows[position], loops.rows[position + 1 :]
        with self.loops(around) if around else nullcontext():
            for place, (start, end) in enumerate(pairwise((ix.ZERO, *cuts, cut.size))):
                part = Range(self._fresh("i"), end - start)
                if len(cuts) < PARTS:
                    self._parts[part.var] = _Part(var, place, start, part.size, 1 if inside else shortest)
                with self.loops((part, *inside)):
                    self._store_all(loops, outputs, {var: ix.variable(part.var, part.size) + start})

    def _store_all(self, loops: Loops, outputs: list[Node], variables: Mapping[str, Int]) -> None:
        for position, place in loops.results:
            self._store_result(position, outputs[position], _moved(place.index, variables))

    def split_at(self, position: Int, bound: Int) -> None:
        for name in ix.symbols(position):
            part = self._parts.get(name)
            if part is None or ix.stride(position, name) != 1:
                continue
            at = bound - ix.substitute(position, {name: ix.ZERO})
            # A bound that moves with another loop is none to cut at.
            if not ix.symbols(at).keys() & self._depth.keys() and part.cuts_at(at):
                raise _Split(part, at)

    def _rows(
        self,
        loops: Loops,
        rows: tuple[Range, ...],
        variables: Mapping[str, Int],
        outputs: list[Node],
        limits: Limits,
        steps: Mapping[Node, _Partial] = {},
        chunk: Int = ix.ZERO,
    ) -> None:
        """The nest over rows: what is stored, in rows or elements, and a step of each total."""
        with self.loops(rows):
            block = self._stack[-1]
            for where in ("element", "row"):
                stored = [(position, place) for position, place in loops.results if place.where == where]
                stepped = [node for node in steps if self._totals[node].step == where]
                if not stored and not stepped:
                    continue
                inner = self.loops(loops.columns) if where == "element" and loops.columns else nullcontext()
                with inner:
                    for position, place in stored:
                        self._store_result(position, outputs[position], _moved(place.index, variables))
                    for node in stepped:
                        self._step(node, steps[node], variables, chunk)
            if len(block.stmts) > 1:
                block.stmts[:] = arrange(tuple(block.stmts), limits, self._fresh)

    def _fill_margin(self, position: int, node: Node, index: Sequence[Int]) -> None:
        """What the loops leave out of a padded result: per dimension, what lies behind the last index.

        The bounds of an open size are those of its symbol, so such padding stays a kernel of its own (schedule/group.py).
        """
        shape = self.results[position].shape
        if node.target is not torch.ops.aten.constant_pad_nd.default or any(size.value is None for size in shape):
            return
        ends = [end if end is None else ix.wrap(end + 1) for _, end in map(ix.bounds, index)]
        for dim, (end, size) in enumerate(zip(ends, shape, strict=True)):
            if end is None or end == size:
                continue
            inside = [size if e is None else e for e, size in zip(ends[:dim], shape, strict=False)]
            ranges = tuple(Range(self._fresh("i"), n) for n in (*inside, size - end, *shape[dim + 1 :]))
            where = [ix.variable(r.var, r.size) for r in ranges]
            where[dim] = where[dim] + end
            with self.loops(ranges):
                self._store_result(position, node, tuple(where))

    def _width(self, node: Node) -> Int:
        return ix.product(self.shape(node))

    def _store_result(self, position: int, node: Node, index: tuple[Int, ...]) -> None:
        value = self.element(node, index)
        spec = self.results[position]
        flat = ix.ZERO
        for i, step in zip(index, contiguous_strides(spec.shape), strict=True):
            flat = flat + i * step
        self.outputs = self.results
        self.store_flat(position, flat, value)

    # Totals

    def _partial(self, node: Node, total: Total, chunks: Int) -> _Partial:
        op, dtype = self._probe(node, total)
        width = self._width(node)
        step = width if width == 1 else (width + (LINE - 1)) // LINE * LINE
        return _Partial(op, dtype, self.buffer(chunks * step, combining(dtype)), width, step, chunks)

    def _probe(self, node: Node, total: Total) -> tuple[str, torch.dtype]:
        """What the member accumulates: its lowering is run on the side to see."""
        found: list[tuple[str, torch.dtype]] = []

        def note(at: tuple[Int, ...], combined: Sequence[tuple[Any, ...]]) -> None:
            (op, value), *others = combined
            if others or op not in TOTALS:
                raise LoweringError(f"'{node.target}' is no total: it combines with {op}")
            found.append((op, value.dtype))

        probe = GroupBuilder(self.fused, self.name, self.operands, self.lowerings, self.inner_nests)
        probe._totals = {node: total}
        with probe.nest(()):
            probe._run_step(node, total.index, note)
        return found[0]

    def _step(self, node: Node, partial: _Partial, variables: Mapping[str, Int], chunk: Int) -> None:
        total = self._totals[node]
        place = flatten(total.index, self.shape(node))

        def store(at: tuple[Int, ...], combined: Sequence[tuple[Any, ...]]) -> None:
            ((_, value),) = combined
            self.store_buffer(partial.param, chunk * partial.step + place, value, TOTALS[partial.op])

        moved = replace(total, reduced=_moved(total.reduced, variables))
        self._totals[node] = moved
        try:
            self._run_step(node, total.index, store)
        finally:
            self._totals[node] = total

    def _run_step(self, node: Node, index: tuple[Int, ...], step: Callable[..., None]) -> None:
        around = self.node, self.args, self.outputs, self._request
        self._request, self._stepping = Request(index), step
        try:
            self.enter(node)
            self.lowerings[BY_TARGET[node.target].name](self)
        except _Stepped:
            pass
        finally:
            self._stepping = None
            self.node, self.args, self.outputs, self._request = around


def _moved(index: Sequence[Int], variables: Mapping[str, Int]) -> tuple[Int, ...]:
    return tuple(ix.substitute(i, variables) for i in index) if variables else tuple(index)


def _chunks(count: Int, most: int, fewest: int) -> tuple[Int, Int]:
    """Rows a chunk, ``most`` or so, fewer where there would not be ``fewest`` chunks, and how many chunks; a divisor of a known
    count where one is near."""
    if most == 1:
        return ix.ONE, count
    if not count.value:
        return ix.wrap(most), (count + (most - 1)) // most
    aim = max(min(most, count.value // (2 * fewest)), 1)
    size = next((n for n in range(min(2 * aim, count.value), aim // 2, -1) if count.value % n == 0), aim)
    return ix.wrap(size), ix.wrap(-(-count.value // size))


def chunks_apart(count: Int, fewest: int, at_once: Callable[[int], int] | None, width: Int) -> Int:
    """How many chunks of rows that lie apart: as many as run at once, if they have ``FEW_ROWS``; at least ``2 * fewest`` where
    so many run at once; a multiple of ``LINE``."""
    chunks = ix.maximum(count // FEW_ROWS, 2 * fewest)
    if at_once is not None and width.value is not None:
        chunks = ix.minimum(chunks, at_once(max(width.value, 1)))
    elif at_once is not None:
        # As many elements at once as of rows of ``WIDE``.
        chunks = ix.minimum(chunks, ix.maximum(at_once(WIDE) * WIDE // ix.maximum(width, 1), fewest))
    return ix.maximum(ix.minimum(chunks, count) // LINE, 1) * LINE
