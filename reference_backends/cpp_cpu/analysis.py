"""Questions about loop bodies that decide the shape of the code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from reference_backends.cpp_cpu.table import COSTLY, LANE_BY_LANE
from vendor_sdk import index, loop

Leaf = loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute
"""Statements that make one value."""
Access = loop.Load | loop.Store


def plain(body: Iterable[loop.Stmt]) -> bool:
    """Whether a body has no loops and no buffers of its own inside."""
    return not any(isinstance(s, loop.Reduce | loop.Scan | loop.Nest | loop.Local) for s in body)


def loads(body: Sequence[loop.Stmt]) -> list[loop.Load]:
    return [s for s in loop.walk(tuple(body)) if isinstance(s, loop.Load)]


def stores(body: Sequence[loop.Stmt]) -> list[loop.Store]:
    return [s for s in loop.walk(tuple(body)) if isinstance(s, loop.Store)]


def used(body: Sequence[loop.Stmt]) -> set[str]:
    """Names of values that a body reads, those it makes itself included."""
    return {name for s in body for name in loop.needs(s)}


def stride_is(expression: index.Int, variable: str, *values: int) -> bool:
    step = index.stride(expression, variable)
    return step is not None and step.value in values


def hoist(body: Sequence[loop.Stmt], variable: str, given: Iterable[str] = ()) -> tuple[list[Leaf], list[loop.Stmt], set[str]]:
    """A body without loops cut into what does not change with ``variable``, and the rest; and the names of values that change,
    ``given`` ones among them.

    Loads of what the body itself writes stay inside.
    """
    written = {s.param for s in stores(body)}
    varying, pinned = {variable, *given}, set[str]()
    before: list[Leaf] = []
    inside: list[loop.Stmt] = []
    for s in body:
        if not isinstance(s, Leaf):
            inside.append(s)
            continue
        read = set(loop.reads(s))
        if read & varying:
            varying.add(s.to)
        elif read & pinned or (isinstance(s, loop.Load) and s.param in written):
            pinned.add(s.to)
        else:
            before.append(s)
            continue
        inside.append(s)
    return before, inside, varying


def scatters(body: Sequence[loop.Stmt]) -> list[loop.Store]:
    """Stores of which two iterations may write one element: combining ones, and those whose index is itself loaded."""
    values = {s.to for s in loop.walk(tuple(body)) if isinstance(s, loop.Load | loop.Compute)}
    private = {s.param.name for s in loop.walk(tuple(body)) if isinstance(s, loop.Local)}
    return [s for s in stores(body) if s.param not in private and (s.mode != "set" or values & index.symbols(s.index).keys())]


def apart(position: index.Int, r: loop.Range) -> bool:
    """Whether different values of the range's variable never give one position."""
    step = index.stride(position, r.var)
    if step is None or step == 0:
        return False
    rest = index.substitute(position, {r.var: index.wrap(0)})
    if index.nonnegative(rest) and index.less(rest, step):
        return True
    # The rest moves by whole rows of this range.
    return index.nonnegative(step) and index.mod(rest, step * r.size) == 0


def collides(nest: loop.Nest) -> bool:
    """Whether iterations of the outermost loop may write one element; then they run in order, which also keeps the result
    independent of the number of threads."""
    found = scatters(nest.body)
    return bool(found) and not (nest.ranges and all(apart(s.index, nest.ranges[0]) for s in found))


LOADS = 5
"""Of an iteration that count as another one."""


def work(body: Sequence[loop.Stmt]) -> index.Int:
    """Inner iterations of one iteration of a loop with this body, costly ones and those of many loads counted several times."""
    costly = sum(isinstance(s, loop.Compute) and s.op in COSTLY for s in body)
    total = index.wrap(1 + 8 * costly + sum(isinstance(s, loop.Load) for s in body) // LOADS)
    for s in body:
        if isinstance(s, loop.Reduce | loop.Nest):
            total = total + iterations(s.ranges, s.body)
        elif isinstance(s, loop.Scan):
            total = total + s.range.size * (work(s.body) + work(s.then))
    return total


def iterations(ranges: Sequence[loop.Range], body: Sequence[loop.Stmt]) -> index.Int:
    """Inner iterations of loops with this body. Sizes that depend on the loops' variables count as in the first iteration."""
    return index.product([r.size for r in ranges]) * index.substitute(work(body), {r.var: 0 for r in ranges})


def along(ranges: Sequence[loop.Range], body: Sequence[loop.Stmt]) -> int:
    """Position of the range to run in vectors: the one that most accesses walk along memory with, by every second element for
    want of a better one; of equals the last."""

    def score(position: int) -> tuple[int, int]:
        variable = ranges[position].var
        accesses = [s.index for s in body if isinstance(s, loop.Load | loop.Store)]
        contiguous = sum(stride_is(e, variable, 1) for e in accesses)
        across = sum(not stride_is(e, variable, -1, 0, 1, 2) for e in accesses)
        return contiguous - across, position

    return max(range(len(ranges)), key=score)


REPEATED = 16
"""Work of an iteration from which on it pays to do it once and not for each value of another loop's variable."""


def repeated(ranges: Sequence[loop.Range], inner: loop.Range, body: Sequence[loop.Stmt]) -> loop.Range | None:
    """A loop around the vector loop ``inner`` that does most of its work again in every iteration, such as the channels of an
    image that is sampled at the points of a grid: better each vector has that loop inside."""

    def saved(r: loop.Range) -> int:
        once, again, _ = hoist(body, r.var)
        # What does not change with the vector loop's variable either is done before that.
        _, each, _ = hoist(once, inner.var)
        first = _weight(each)
        # Threads share the outermost loop alone where iterations of others may meet.
        if r is ranges[0] and scatters(body):
            return 0
        return first if r.size.value not in (0, 1) and first >= max(REPEATED, _weight(again)) else 0

    best = max((r for r in ranges if r is not inner), key=saved, default=None)
    return best if best is not None and saved(best) else None


def _weight(body: Sequence[loop.Stmt]) -> int:
    return sum(
        9 if isinstance(s, loop.Compute) and s.op in COSTLY else not isinstance(s, loop.Const | loop.Index) for s in body
    )


def gathers(body: Sequence[loop.Stmt], variable: str) -> bool:
    """Whether most of the work is access to elements apart from each other, which vectors do not help."""
    _, inside, varying = hoist(body, variable)
    accesses = [s for s in inside if isinstance(s, loop.Load | loop.Store)]
    if _branches(inside, variable):
        return False
    paired = in_turn(inside, variable)
    others = varying - {variable}
    single = [
        s
        for s in accesses
        if id(s) not in paired
        and not _gathered(s, others)
        and (not _together(s, variable) or index.symbols(s.index).keys() & others)
    ]
    raising = [s for s in inside if isinstance(s, loop.Compute) and s.op in LANE_BY_LANE]
    return len(single) + len(raising) > min(6, max(2, len(inside) // 8))


def _branches(inside: Sequence[loop.Stmt], variable: str) -> bool:
    """Whether a compiler makes branches that nobody foresees: choices by what is loaded, in a loop that it leaves to scalars
    since processors do not gather elements of less than four bytes."""
    narrow, loaded = False, set[str]()
    for s in inside:
        if isinstance(s, loop.Load):
            narrow = narrow or (s.dtype.itemsize < 4 and not _together(s, variable))
            loaded.add(s.to)
        elif isinstance(s, loop.Compute) and loaded.intersection(s.args):
            loaded.add(s.to)
    return narrow and any(isinstance(s, loop.Compute) and s.op == "where" and s.args[0] in loaded for s in inside)


def _gathered(s: loop.Load | loop.Store, values: set[str]) -> bool:
    """Whether an instruction loads what lies where values of the body say (``load_at``)."""
    return isinstance(s, loop.Load) and s.dtype.itemsize >= 4 and not index.symbols(s.index).keys().isdisjoint(values)


def _together(s: loop.Load | loop.Store, variable: str) -> bool:
    """Whether lanes touch one element, neighbouring ones, or what vectors give when they are shuffled (``load_second``,
    ``load_back``)."""
    shuffled = isinstance(s, loop.Load) and s.dtype.itemsize <= 4
    return stride_is(s.index, variable, 0, 1, *((2, -1) if shuffled else ()))


MOST_LANES = 16
"""Of a vector of any machine: four-byte elements in 64 bytes."""


def in_turn(inside: Sequence[loop.Stmt], variable: str) -> dict[int, tuple[loop.Store, loop.Store] | None]:
    """Stores of every second element that stand in pairs, by identity: the later one with the pair, in order of their places,
    the earlier one with ``None``."""
    found: dict[int, tuple[loop.Store, loop.Store] | None] = {}
    waiting: dict[str, list[loop.Store]] = {}
    for s in inside:
        if isinstance(s, loop.Load) and s.param in waiting:
            waiting[s.param] = [other for other in waiting[s.param] if _misses(s.index, other.index, variable)]
        if not isinstance(s, loop.Store):
            continue
        others = waiting.setdefault(s.param, [])
        if s.mask is not None or s.mode != "set" or not stride_is(s.index, variable, 2):
            others.clear()
            continue
        for other in others:
            apart = (s.index - other.index).value
            if apart in (1, -1):
                found[id(other)], found[id(s)] = None, (other, s) if apart == 1 else (s, other)
                others.remove(other)
                break
        else:
            others.append(s)
    return found


def _misses(read: index.Int, written: index.Int, variable: str) -> bool:
    """Whether a step's lanes read, every second element, none of those that its lanes write."""
    apart = (read - written).value
    return stride_is(read, variable, 2) and apart is not None and (apart % 2 == 1 or abs(apart) >= 2 * MOST_LANES)


def light(body: Sequence[loop.Stmt]) -> bool:
    """Whether one iteration is so little work that a single chain of additions would wait for itself."""
    return len(body) <= 8 and not any(isinstance(s, loop.Compute) and s.op in COSTLY for s in body)


def blocked(a: loop.Accumulator) -> bool:
    """Whether a reduction sums in blocks: floats within, float64 across."""
    return a.op == "sum" and a.dtype == torch.float32
