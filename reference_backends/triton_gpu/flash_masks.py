"""Masks that the functions of attention compute where they need them, from loops (``vendor_sdk.Computed``).

The text of such a mask is a module with a device function of an element, and with ``forward``, ``by_query`` and ``by_key`` as
``flash.py`` and ``flash_backward.py`` have them: in place of the mask they take what it is made of, its numbers follow all
others. Where a condition says which elements are hidden, ``bounded`` (``flash_lists.py``) finds blocks of them by its
bounds (``flash_bounds.py``), or ``listed`` by each element where these are not known.

Equal loops have equal text, and so one module.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from reference_backends.triton_gpu import compiler
from reference_backends.triton_gpu.flash_bounds import UNKNOWN, Bounds
from reference_backends.triton_gpu.functions import given, numbers_text, symbol_name
from reference_backends.triton_gpu.statements import R, Statements, X
from reference_backends.triton_gpu.table import HALVES, OPS, TYPES
from vendor_sdk import Computed, LoopKernel, index, loop

MOST = 24
"""Operations for each row and key that a mask may take, about as many as the softmax does: one in memory is read in less."""
KINDS = (torch.bool, torch.float32, *HALVES)
"""Dtypes of masks."""
PLACES = ("batch", "head", "row", "key")
"""Parameters of an element's function, one for each dimension."""
HEADER = """\
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from reference_backends.triton_gpu import base, flash, flash_backward, flash_lists, special
"""


def takes(loops: LoopKernel) -> bool:
    """Whether the functions of attention can compute this mask, and are faster so: another one for each row and key, with few
    operations."""
    (nest,) = loops.body
    *body, store = nest.body
    if not 2 <= len(nest.ranges) <= 4 or any(r.size == 1 for r in nest.ranges[-2:]) or loops.scratch:
        return False
    if not isinstance(store, loop.Store) or store.mode != "set" or store.mask or loops.params[-1].dtype not in KINDS:
        return False
    if any(s.role == "seed" for s in loops.symbols) or not loop.required_types(loops) <= TYPES.keys():
        return False
    straight = all(isinstance(s, loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Compute) for s in body)
    # Indices of which nobody knows that they are inside have assertions.
    if not straight or not loop.stated_ops(loops) <= OPS.keys() - {"wrap_index"}:
        return False
    along, costs = variables(nest), {r.var for r in nest.ranges[-2:]}
    each = [s for s in body if any(costs <= along[name] for name in loop.makes(s))]
    loads = [s for s in each if isinstance(s, loop.Load)]
    # What is read for each row and key is no more than the mask would be, and not from a place that is itself computed.
    made = {name for s in body for name in loop.makes(s)}
    gathers = any(made & index.symbols(s.index).keys() for s in loads)
    if gathers or sum(s.dtype.itemsize for s in loads) > loops.params[-1].dtype.itemsize:
        return False
    return sum(isinstance(s, loop.Compute) for s in each) <= MOST


def variables(nest: loop.Nest) -> Mapping[str, set[str]]:
    """Along which ranges each value varies."""
    found = {r.var: {r.var} for r in nest.ranges}
    for s in nest.body:
        of_parts = set[str]().union(*(found.get(name, set()) for name in loop.reads(s)))
        found.update(dict.fromkeys(loop.makes(s), of_parts))
    return found


def module(mask: Computed) -> ModuleType:
    """The functions for a mask."""
    return _module(_Same(mask.loops), any(each.numel() >= 2**31 for each in mask.buffers))


class _Same:
    """Loops, known by their identity: they are compared for every launch."""

    def __init__(self, loops: LoopKernel) -> None:
        self.loops = loops

    def __hash__(self) -> int:
        return id(self.loops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.loops is other.loops


@functools.lru_cache(1024)
def _module(loops: _Same, wide: bool) -> ModuleType:
    from reference_backends.triton_gpu import flash, flash_backward, flash_lists

    made = compiler.load(text(loops.loops, wide=wide))
    # A function has another key in Triton's cache where it is the first to ask for that of one it calls (3.6).
    called = flash.forward, flash_backward.by_query, flash_backward.by_key, flash_lists.listed, flash_lists.bounded
    for function in (*called, *(getattr(made, name, None) for name in ("element", "seen", "bounds"))):
        getattr(function, "cache_key", None)
    return made


def text(loops: LoopKernel, *, wide: bool) -> str:
    """Of a mask's module.

    Args:
        wide: whether indices need 64 bits.
    """
    from reference_backends.triton_gpu import flash, flash_backward, flash_lists

    (nest,) = loops.body
    *body, store = nest.body
    assert isinstance(store, loop.Store)
    hides = conditions(nest)
    listed = _listed(nest, hides)
    bounds, looks = _bounds(loops, body, hides)
    # Launchers know what they have compiled by the module: texts must differ where dtypes do.
    buffers = ", ".join(f"{p.name}: {TYPES[p.dtype]}" for p in loops.params)
    constants = f"DIFFERS, BOUNDED, LOOKS = {listed}, {bounds is not None}, {looks}"
    parts = [
        HEADER,
        f"INDEX = tl.constexpr(tl.int{64 if wide else 32})\n{constants}\n# {buffers}\n",
        _function(loops, "element", body, [(store.value, True)]),
        _entry(loops, flash.forward, "element"),
        _entry(loops, flash_backward.by_query, "element"),
        _entry(loops, flash_backward.by_key, "element"),
    ]
    if listed is not None:
        parts.append(_function(loops, "seen", body, hides))
    if listed is not None and bounds is not None:
        parts += [bounds, _entry(loops, flash_lists.bounded, "seen", "bounds")]
    elif listed is not None:
        parts.append(_entry(loops, flash_lists.listed, "seen"))
    return "\n\n".join(parts)


class Elements(Statements):
    """Statements for a block of rows (the axis *x*) and keys (*r*), of one head."""

    def __init__(self, kernel: LoopKernel) -> None:
        super().__init__(kernel)
        (nest,) = kernel.body
        self.x_mask = ""
        for line in numbers_text(kernel):
            self.out(line)
        for r, place in zip(nest.ranges, PLACES[-len(nest.ranges) :], strict=True):
            if r.size == 1:
                self.places[r.var] = index.ZERO
            else:
                self.out(f"{r.var} = tl.cast({place}, INDEX)")
        rows, keys = nest.ranges[-2:]
        self.axes = {rows.var: X, keys.var: R}

    def shape(self, axes: frozenset[str]) -> str:
        return {X: "row.shape", R: "key.shape", X | R: "(row + key).shape"}.get(axes, "[]")


def _function(loops: LoopKernel, name: str, body: Sequence[loop.Stmt], results: Sequence[tuple[str, bool]]) -> str:
    """A function of the position of elements, and of what they are made of: one value, or whether all are as they are here."""
    elements = Elements(loops)
    elements.body(_needed(body, results))
    result = " & ".join(value if holds else f"({value} == 0)" for value, holds in results)
    taken = ", ".join(["row", "key", "batch", "head", *_given(loops)])
    return "\n".join(["@triton.jit", f"def {name}({taken}):", *elements.out.lines, f"    return {result}", ""])


def _bounds(loops: LoopKernel, body: Sequence[loop.Stmt], results: Sequence[tuple[str, bool]]) -> tuple[str | None, bool]:
    """A function of the rows and keys of blocks, and of the first and last of them: whether all elements of each block are as
    they are here, and whether some may be (None: it would know nothing); and whether it looks at rows or keys one by one."""
    elements = Elements(loops)
    variables = [r.var for r in loops.body[0].ranges[-2:]]
    for variable, place in zip(variables, PLACES[-2:], strict=True):
        for end in ("first", "last"):
            elements.out(f"{variable}_{end} = tl.cast({place}_{end}, INDEX)")
    bounds = Bounds(elements, *variables)
    bounds.body(_needed(body, results))
    found = [(bounds.holds(value), holds) for value, holds in results]
    everywhere = " & ".join(pair[0] if holds else f"({pair[1]} == 0)" for pair, holds in found)
    anywhere = " & ".join(pair[1] if holds else f"({pair[0]} == 0)" for pair, holds in found)
    ends = "row_first", "row_last", "key_first", "key_last"
    taken = ", ".join(["row", "key", *ends, "batch", "head", "ROW: tl.constexpr", *_given(loops)])
    lines = "@triton.jit", f"def bounds({taken}):", *elements.out.lines, f"    return {everywhere}, {anywhere}", ""
    return None if all(pair == UNKNOWN for pair, _ in found) else "\n".join(lines), bounds.looks


def _needed(body: Sequence[loop.Stmt], results: Sequence[tuple[str, bool]]) -> list[loop.Stmt]:
    """The statements that results follow from."""
    needed = {value for value, _ in results}
    kept = []
    for s in reversed(body):
        if needed.intersection(loop.makes(s)):
            needed.update(loop.reads(s))
            kept.append(s)
    return kept[::-1]


def _entry(loops: LoopKernel, function: Any, *elements: str) -> str:
    """A function of attention under its own name, with what a mask is made of in its place, and the functions of elements."""
    *parameters, last = list(inspect.signature(function.fn).parameters.values())[: 1 - len(elements) or None]
    assert last.name == "ELEMENT", last
    inputs = [p.name for p in loops.params[:-1]]
    numbers = [symbol_name(s) for s in loops.symbols]
    fixed = ", ".join(f'"{symbol_name(s)}"' for s in loops.symbols if s.role != "size")
    names = [p.name for p in parameters if p.annotation is inspect.Parameter.empty]
    constants = [p.name for p in parameters if p.name not in names]
    taken = [each for name in names for each in (inputs if name == "mask" else [name])]
    tuple_ = f"({''.join(f'{name}, ' for name in _given(loops))})"
    passed = [tuple_ if name == "mask" else name for name in names]
    signature = ", ".join([*taken, *numbers, *(f"{name}: tl.constexpr" for name in constants)])
    home = function.fn.__module__.rpartition(".")[2]
    return "\n".join(
        [
            f"@triton.jit(do_not_specialize=[{fixed}])" if fixed else "@triton.jit",
            f"def {function.fn.__name__}({signature}):",
            f"    {home}.{function.fn.__name__}({', '.join([*passed, *constants, *elements])})",
            "",
        ]
    )


def _given(loops: LoopKernel) -> list[str]:
    """What elements are made of: buffers, but for the mask itself, and numbers."""
    return [name for name in given(loops) if name != loops.params[-1].name]


def conditions(nest: loop.Nest) -> list[tuple[str, bool]]:
    """Bools of which each is as it stands here wherever an element is not hidden: true, or not minus infinity."""
    made = {name: s for s in nest.body for name in loop.makes(s)}
    store = nest.body[-1]
    assert isinstance(store, loop.Store)
    if getattr(made[store.value], "dtype", None) == torch.bool:
        return [(store.value, True)]
    return list(_hidden(store.value, made))


def _hidden(name: str, made: Mapping[str, loop.Stmt]) -> Iterator[tuple[str, bool]]:
    s = made[name]
    if not isinstance(s, loop.Compute):
        return
    if s.op == "where":
        condition, *branches = s.args
        known = made[condition]
        for branch, other, holds in zip(branches, branches[::-1], (True, False), strict=True):
            if isinstance(known, loop.Const):
                if known.value == holds:
                    yield from _hidden(branch, made)
            elif _lowest(other, made):
                yield condition, holds
                yield from _hidden(branch, made)
    elif s.op in ("convert", "add"):
        for each in s.args:
            yield from _hidden(each, made)


def _lowest(name: str, made: Mapping[str, loop.Stmt]) -> bool:
    s = made[name]
    if isinstance(s, loop.Compute) and s.op == "convert":
        return _lowest(s.args[0], made)
    return isinstance(s, loop.Const) and s.value == -math.inf


def _listed(nest: loop.Nest, hides: Sequence[tuple[str, bool]]) -> tuple[bool, bool] | None:
    """Whether what is hidden differs from batch to batch, and from head to head; None: not even from key to key."""
    along = variables(nest)
    found = set[str]().union(*(along[name] for name, _ in hides))
    *outer, rows, keys = (r.var in found for r in nest.ranges)
    batch, head = [False] * (2 - len(outer)) + outer
    return (batch, head) if rows or keys else None
