"""Questions about nests that decide the shape of the code."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from reference_backends.triton_gpu.launch import DEEP, TURN, VECTOR
from vendor_sdk import LoopKernel, index, loop, online, split

SHORT = 32
"""Iterations up to which an inner loop runs one after the other, so that the block's lanes lie along the nest."""

COSTLY = {
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("erf", "erfc", "erfinv", "exp", "exp2", "expm1", "expsum", "lgamma", "log", "log10", "log1p", "log2", "pow", "philox"),
}
"""Ops that take many instructions."""

Loop = loop.Reduce | loop.Scan | loop.Nest


def plain(body: Sequence[loop.Stmt]) -> bool:
    """Whether a body has no loops inside."""
    return not any(isinstance(s, Loop) for s in body)


def ranges_of(s: Loop) -> tuple[loop.Range, ...]:
    return (s.range,) if isinstance(s, loop.Scan) else s.ranges


def body_of(s: Loop) -> tuple[loop.Stmt, ...]:
    return (*s.body, *s.then) if isinstance(s, loop.Scan) else s.body


def length_of(s: Loop) -> index.Int:
    return index.product([r.size for r in ranges_of(s)])


def tiled(s: loop.Stmt) -> bool:
    """Whether an inner loop's iterations lie along the axis r."""
    if isinstance(s, loop.Scan):
        return plain(body_of(s))
    if not isinstance(s, loop.Reduce | loop.Nest) or not s.ranges or not plain(s.body):
        return False
    size = length_of(s).value
    return isinstance(s, loop.Nest | split.Heard) or size is None or size > SHORT


def inner_loops(nest: loop.Nest) -> list[Loop]:
    """The inner loops that become tiles."""
    return [s for s in loop.walk(nest.body) if isinstance(s, Loop) and tiled(s)]


def divides(atom: index.Atom) -> bool:
    """Whether it is a quotient or a remainder of a power of two."""
    divisor = atom.key[-1].value if isinstance(atom, index.Div | index.Mod) else None
    return divisor is not None and divisor > 1 and divisor.bit_count() == 1


def sizes_told(kernel: LoopKernel, nest: loop.Nest) -> list[str]:
    """The sizes of which a nest's function gets a divisor as a constant (``NAME_by``): ``launch.VECTOR``, or 1. Triton itself
    tells multiples of 16 from others; rows of multiples of eight halves begin with a vector, too.

    They are those that places of neighbours follow from, and those where loops end that walk along these: any of them may be a
    multiple or not, and the function is compiled for each such case that comes.
    """
    along = not plain(nest.body) and not walks_across(nest)  # Else neighbours are iterations of the nest.
    found = {name for r in nest.ranges[1 if along else 0 :] for name in index.symbols(r.size)}
    for s in loop.walk(nest.body):
        if isinstance(s, loop.Load | loop.Store | loop.Index):
            # Of other numbers, those that powers of two divide.
            near = (atom for atom, c in s.index.terms if c % VECTOR and (not isinstance(s, loop.Index) or divides(atom)))
            found |= {name for atom in near for name in index.symbols(index.wrap_atom(atom))}
        elif isinstance(s, Loop) and plain(body_of(s)) and along:
            found |= {name for r in ranges_of(s) for name in index.symbols(r.size)}
    return [s.name for s in kernel.symbols if s.role == "size" and s.name in found]


def heard(body: Sequence[loop.Stmt]) -> dict[str, list[str]]:
    """What the programs of a row tell each other: the scratch buffers, and the values that are loaded from them."""
    found: dict[str, list[str]] = {}
    for s in loop.walk(tuple(body)):
        if isinstance(s, split.Heard):
            for each in s.body:
                if isinstance(each, loop.Load):
                    found.setdefault(each.param, []).append(each.to)
    return found


def walks_across(nest: loop.Nest) -> bool:
    """Whether inner loops walk across memory that the nest's last range walks along."""
    if not nest.ranges:
        return False
    along = nest.ranges[-1].var
    for s in inner_loops(nest):
        last = ranges_of(s)[-1].var
        for access in body_of(s):
            if isinstance(access, loop.Load | loop.Store) and step(access.index, along) == 1:
                return step(access.index, last) not in (0, 1)
    return False


def rows_of(nest: loop.Nest) -> int:
    """Operands of which each iteration of the nest reads a row of its own."""
    loads = [s for each in inner_loops(nest) for s in body_of(each) if isinstance(s, loop.Load)]
    return len({s.param for s in loads if len(index.symbols(s.index)) > 1})


def keeps_rows(nest: loop.Nest) -> bool:
    """Whether rows of several operands are read by several loops, and no program goes through rows one after the other."""
    found = inner_loops(nest)
    direct = {id(s) for s in nest.body if isinstance(s, Loop)}
    return len(found) > 1 and {*map(id, found)} == direct and rows_of(nest) > 1


def reads_again(nest: loop.Nest) -> bool:
    """Whether several inner loops read one operand."""
    loops = [{s.param for s in body_of(each) if isinstance(s, loop.Load)} for each in inner_loops(nest)]
    return sum(map(len, loops)) > len(set().union(*loops))


def several_results(nest: loop.Nest) -> bool:
    """Whether an inner loop has several running results: with those of a large tile, few programs fit on a multiprocessor."""
    return any(isinstance(s, loop.Reduce) and len(s.accumulators) > 1 for s in inner_loops(nest))


def manner(nest: loop.Nest) -> Literal["along", "scan", "lean", "again", "costly", "heavy", "across", "deep"]:
    """How inner loops are taken that are too long for a tile."""
    found, several = inner_loops(nest), rows_of(nest) > 1
    if walks_across(nest):
        lengths = [length_of(s).value or 1 for s in found]
        masked = any(isinstance(s, loop.Load | loop.Store) and s.mask for each in found for s in body_of(each))
        return "across" if masked or several_results(nest) or any(n < DEEP or n % TURN for n in lengths) else "deep"
    ops = {s.op for each in found for s in body_of(each) if isinstance(s, loop.Compute)}
    ops |= {a.op for each in found for a in getattr(each, "accumulators", ())}
    if ops & COSTLY:
        return "heavy" if several or len(found) == 1 else "costly"
    if len(found) == 1:
        return "scan" if isinstance(found[0], loop.Scan) else "along"
    return "again" if several else "lean"


def transposed(nest: loop.Nest) -> loop.Nest | None:
    """A nest without inner loops with the range that some access walks along as an inner loop, where others walk along the
    last range: tiles of both then read and write whole lines. (So they do along a short range, if the last goes on where that
    ends.) None where all walk along the last."""
    if len(nest.ranges) < 2 or not plain(nest.body):
        return None
    last = nest.ranges[-1].var
    for access in nest.body:
        if not isinstance(access, loop.Load | loop.Store) or step(access.index, last) in (0, 1):
            continue
        for r in nest.ranges[:-1]:
            if step(access.index, r.var) == 1 and (
                (r.size.value or SHORT) >= SHORT or step(access.index, last) == r.size.value
            ):
                others = tuple(other for other in nest.ranges if other is not r)
                return loop.Nest(others, (loop.Nest((r,), nest.body),))
    return None


def only_rounded(body: Sequence[loop.Stmt]) -> set[str]:
    """Values that are only converted to bfloat16."""
    rounded: set[str] = set()
    others: set[str] = set()
    for s in loop.walk(tuple(body)):
        narrows = isinstance(s, loop.Compute) and s.op == "convert" and s.dtype == torch.bfloat16
        (rounded if narrows else others).update(loop.reads(s))
    return rounded - others


SMOOTH = frozenset(("add", "sub", "mul", "div", "neg", "log", "where"))
"""Ops that pass on what a weight was rounded by."""


@dataclass(frozen=True)
class Weights:
    """Exponentials of gaps to a row's largest value, of which only halves follow: one is exactly 1, and what the others miss by
    counts as little as they do.

    Attributes:
        names: the exponentials, and sums of such (``expsum``).
        summed: whether they are added up and nothing else, so that the smallest may be zero.
    """

    names: frozenset[str]
    summed: bool


def weights(body: Sequence[loop.Stmt]) -> Weights:
    """Those of a nest."""
    gaps = online.gaps(body)
    found: set[str] = set()
    every = list(loop.walk(tuple(body)))
    said = heard(body)
    passed = {s.value: said[s.param] for s in every if isinstance(s, loop.Store) and s.param in said}
    totals = [a for s in every for a in getattr(s, "accumulators", ())]
    users = _users(every, said)
    for a in totals:
        found.update(a.to[1:] if a.op == "expsum" and a.dtype == torch.float32 else ())
    for s in every:
        if isinstance(s, loop.Compute) and s.dtype == torch.float32 and s.op == "exp" and s.args[0] in gaps:
            found.add(s.to)

    @functools.cache
    def halved(name: str) -> bool:
        return all(
            (isinstance(user, loop.Compute) and (_halves(user) or (user.op in SMOOTH and halved(user.to))))
            or (isinstance(user, loop.Accumulator) and user.op in ("sum", "expsum") and halved(user.to[-1]))
            for user in users.get(name, ())
        ) and all(map(halved, passed.get(name, ())))

    names = frozenset(filter(halved, found))
    powers = names.difference(*(a.to for a in totals))
    return Weights(names, all(isinstance(user, loop.Accumulator) for name in powers for user in users.get(name, ())))


def above_one(body: Sequence[loop.Stmt]) -> dict[str, str]:
    """Values ``1 + erf(u)`` of float32, by what they are called, with the name of ``u``: those of which only halves follow, by
    ops that leave relative errors as they are (of gelu)."""
    every = list(loop.walk(tuple(body)))
    users = _users(every)
    made = {name: s for s in every for name in loop.makes(s)}

    def halved(name: str) -> bool:
        return all(
            isinstance(user, loop.Compute) and (_halves(user) or (user.op in ("mul", "neg") and halved(user.to)))
            for user in users.get(name, ())
        )

    found: dict[str, str] = {}
    for s in made.values():
        if isinstance(s, loop.Compute) and s.op == "add" and s.dtype == torch.float32 and halved(s.to):
            one, other = sorted((made.get(name) for name in s.args), key=lambda each: not isinstance(each, loop.Const))
            if isinstance(one, loop.Const) and one.value == 1 and isinstance(other, loop.Compute) and other.op == "erf":
                found[s.to] = other.args[0]
    return found


def _users(every: Sequence[loop.Stmt], told: Collection[str] = ()) -> dict[str, list[loop.Stmt | loop.Accumulator]]:
    """Who takes each value: statements, but for stores to ``told``, and the running results of loops."""
    users: dict[str, list[loop.Stmt | loop.Accumulator]] = {}
    for s in every:
        for a in getattr(s, "accumulators", ()):
            for name in a.args:
                users.setdefault(name, []).append(a)
        if not isinstance(s, Loop) and not (isinstance(s, loop.Store) and s.param in told):
            for name in loop.reads(s):
                users.setdefault(name, []).append(s)
    return users


def _halves(s: loop.Compute) -> bool:
    return s.op == "convert" and s.dtype in (torch.bfloat16, torch.float16)


def reads_steadily(s: Loop) -> bool:
    """Whether a loop does nothing but read at places one step apart and compute with that. (Triton 3.6 made wrong code of
    divisions by constants of the iterations' numbers, where these were written out.)"""
    return all(
        isinstance(each, loop.Compute | loop.Const)
        or (
            isinstance(each, loop.Load) and each.mask is None and all(step(each.index, r.var) is not None for r in ranges_of(s))
        )
        for each in body_of(s)
    )


def reads_around(nest: loop.Nest) -> bool:
    """Whether an inner loop reads elements that its other iterations read too: those of windows that overlap."""
    for s in inner_loops(nest):
        places: dict[str, set[index.Int]] = {}
        for each in body_of(s):
            if isinstance(each, loop.Load):
                places.setdefault(each.param, set()).add(each.index)
        if any(len(found) > 1 for found in places.values()):
            return True
    return False


def written_out(nest: loop.Nest) -> int:
    """How many iterations of a loop stand in the body: how often it stores to one buffer."""
    return max(Counter(s.param for s in nest.body if isinstance(s, loop.Store)).values(), default=1)


def late(body: Sequence[loop.Stmt]) -> frozenset[int]:
    """Stores, by identity, over content that was loaded and that their values do not follow from. The thread that stores an
    element need not be the one that loads it: where the stored value does not wait for the loaded one, the store must."""
    stored = {s.param for s in loop.walk(tuple(body)) if isinstance(s, loop.Store)}
    pending: dict[str, set[str]] = {name: set() for name in stored}
    behind: dict[str, frozenset[str]] = {}
    found = set[int]()

    def origins(names: Sequence[str]) -> frozenset[str]:
        return frozenset[str]().union(*(behind.get(name, frozenset()) for name in names))

    def visit(body: Sequence[loop.Stmt]) -> None:
        for s in body:
            if isinstance(s, Loop):
                visit(s.body)
                for a in getattr(s, "accumulators", ()):
                    behind.update(dict.fromkeys(a.to, origins(a.args)))
                visit(s.then if isinstance(s, loop.Scan) else ())
            elif isinstance(s, loop.Store):
                if pending[s.param] - origins(loop.reads(s)):
                    found.add(id(s))
                    for names in pending.values():
                        names.clear()
            elif made := loop.makes(s):
                own = made if isinstance(s, loop.Load) and s.param in stored else ()
                behind[made[0]] = origins(loop.reads(s)).union(own)
                if own and isinstance(s, loop.Load):
                    pending[s.param].update(own)

    visit(body)
    return frozenset(found)


def step(expression: index.Int, variable: str) -> int | None:
    found = index.stride(expression, variable)
    return None if found is None else found.value


def names_in(body: Sequence[loop.Stmt]) -> set[str]:
    """The loop variables and values that statements, and those inside them, make."""
    return {name for s in loop.walk(tuple(body)) for name in (*loop.loop_variables(s), *loop.makes(s))}


def apart(body: Sequence[loop.Stmt], variable: str) -> tuple[list[loop.Stmt], list[loop.Stmt], set[str]]:
    """Numbers in a body that do not change with ``variable``; the rest; and names of the values that change."""
    before: list[loop.Stmt] = []
    inside: list[loop.Stmt] = []
    varying = {variable, *names_in(body)}
    for s in body:
        if isinstance(s, loop.Const | loop.Index) and not varying & set(loop.reads(s)):
            before.append(s)
            varying.discard(s.to)
        else:
            inside.append(s)
    return before, inside, varying
