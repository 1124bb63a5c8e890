"""Masks that hold for one interval of a loop: windows that reach over the edge of a tensor.

A mask made of comparisons of index expressions that grow with the loop variable is true from one iteration to another. Outside
of them a masked load is its replacement value, so that often the whole body is a constant there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vendor_sdk import contraction, index, loop


@dataclass(frozen=True)
class Limit:
    """A condition under which an iteration is *outside*: ``expression relation 0``; ``expression`` grows by ``step`` an
    iteration. It is "<" for lower limits, ">=" for upper ones; without a step it concerns all iterations alike."""

    expression: index.Int
    relation: Literal["<", ">="]
    step: int


@dataclass(frozen=True)
class Interval:
    """A body whose loads share one mask, without it.

    Attributes:
        limits: an iteration is inside where none of them holds.
        inside, value: the body there, and its value.
        outside, blank: the same elsewhere; nothing in it depends on the loop variable.
        copied: the load, where the body is nothing else and ``blank`` is zero.
    """

    limits: tuple[Limit, ...]
    inside: tuple[loop.Stmt, ...]
    value: str
    outside: tuple[loop.Stmt, ...]
    blank: str
    copied: loop.Load | None


Value = loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute


def split(body: Sequence[loop.Stmt], value: str, variable: str) -> Interval | None:
    """The body of a loop over ``variable`` by the interval in which its mask holds; None when it is neither masked in this way
    nor a plain load. The body has no loops and no stores."""
    made = {s.to: s for s in body if isinstance(s, Value)}
    masks = {s.mask for s in made.values() if isinstance(s, loop.Load) and s.mask}
    if not masks:
        only = body[0]
        copied = only if len(body) == 1 and isinstance(only, loop.Load) else None
        return None if copied is None else Interval((), tuple(body), value, (), "0", copied)
    mask = masks.pop()
    limits = _limits(made, mask, variable)
    if masks or limits is None:
        return None
    inside, inner_value = _assume(made.values(), value, mask, True)
    outside, blank = _assume(made.values(), value, mask, False)
    if any(isinstance(s, loop.Load) or (isinstance(s, loop.Index) and variable in index.symbols(s.index)) for s in outside):
        return None
    zero = len(outside) == 1 and isinstance(outside[0], loop.Const) and outside[0].value == 0
    copied = inside[0] if zero and len(inside) == 1 and isinstance(inside[0], loop.Load) else None
    return Interval(limits, inside, inner_value, outside, blank, copied)


def _limits(made: Mapping[str, Value], mask: str, variable: str) -> tuple[Limit, ...] | None:
    s = made.get(mask)
    if not isinstance(s, loop.Compute):
        return None
    if s.op == "bitand":
        parts = [_limits(made, name, variable) for name in s.args]
        return None if None in parts else tuple(limit for part in parts if part is not None for limit in part)
    if s.op not in ("ge", "lt"):
        return None
    sides = []
    for side in (made.get(name) for name in s.args):
        if isinstance(side, loop.Index):
            sides.append(side.index)
        elif isinstance(side, loop.Const):
            sides.append(index.wrap(int(side.value)))
    if len(sides) != 2:
        return None
    difference = sides[0] - sides[1]
    step = index.stride(difference, variable)
    if step is None or step.value is None or step.value < 0 or made.keys() & index.symbols(difference):
        return None
    return (Limit(difference, "<" if s.op == "ge" else ">=", step.value),)


def _assume(body: Iterable[Value], value: str, mask: str, truth: bool) -> tuple[tuple[loop.Stmt, ...], str]:
    """The statements that ``value`` needs where ``mask`` is known, and its name among them."""
    names: dict[str, str] = {}
    kept: list[loop.Stmt] = []
    for s in body:
        if isinstance(s, loop.Compute):
            s = replace(s, args=tuple(names.get(a, a) for a in s.args))
            if s.op == "where" and s.args[0] == mask:
                names[s.to] = s.args[1 if truth else 2]
                continue
        elif isinstance(s, loop.Load):
            s = replace(s, index=_renamed(s.index, names), other=names.get(s.other or "", s.other))
            if s.mask == mask and truth:
                s = replace(s, mask=None, other=None)
            elif s.mask == mask and s.other is not None:
                names[s.to] = s.other
                continue
        elif isinstance(s, loop.Index):
            s = replace(s, index=_renamed(s.index, names))
        kept.append(s)
    value = names.get(value, value)
    return contraction.needed(kept, (value,)), value


def _renamed(expression: index.Int, names: Mapping[str, str]) -> index.Int:
    return index.substitute(expression, {old: index.symbol(new) for old, new in names.items()})
