"""Sizes that follow from a call's sizes by division, as symbols that the host computes once a launch.

A kernel divides in every thread otherwise. And a compiler that is told of an argument that it is a multiple of 16, so that it
may read in vectors, knows nothing of half of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vendor_sdk.ir import index as ix
from vendor_sdk.ir import ranges
from vendor_sdk.ir.index import Atom, Div, Extreme, Int, Mod
from vendor_sdk.ir.loop import LoopKernel, Nest, Param, Symbol, loop_variables, makes, walk


@dataclass(frozen=True)
class Hoisted:
    """A kernel with more "size" symbols, and what these are of the sizes that it had."""

    kernel: LoopKernel
    atoms: dict[Atom, str]

    @property
    def sizes(self) -> dict[str, Int]:
        """The symbols by name, in order."""
        return {name: ix.wrap_atom(atom) for atom, name in self.atoms.items()}

    def named(self, expression: Int) -> Int:
        """An expression of the sizes that the kernel had, with the symbols."""
        return ix.rebuild(expression, lambda atom: _symbol(atom, self.atoms.get(atom)))


def hoist(kernel: LoopKernel) -> Hoisted:
    """The kernel with a "size" symbol for each quotient, remainder, least or greatest of sizes that its loops and places in
    memory have. Only of these: places fit into the dtype of indices, other numbers may not. And none that may divide by zero: a
    loop of no iterations never asks for it."""
    sizes = {s.name for s in kernel.symbols if s.role == "size"}
    taken = {s.name for s in kernel.symbols} | {p.name for p in (*kernel.params, *kernel.scratch)}
    taken |= {name for stmt in walk(kernel.body) for name in (*makes(stmt), *loop_variables(stmt))}
    names = (name for n in range(1 << 30) if (name := f"d{n}") not in taken)
    found: dict[Atom, str] = {}

    def change(atom: Atom) -> Int | None:
        follows = isinstance(atom, Div | Mod | Extreme) and ix.symbols(ix.wrap_atom(atom)).keys() <= sizes
        if not follows or not _is_defined(atom):
            return None
        if atom not in found:
            found[atom] = next(names)
        return _symbol(atom, found[atom])

    body = ranges.changed(kernel.body, lambda e: ix.rebuild(e, change))
    hoisted = Hoisted(kernel, found)

    def resized(params: tuple[Param, ...]) -> tuple[Param, ...]:
        return tuple(replace(p, size=hoisted.named(p.size)) for p in params)

    more = (Symbol(name, lower=atom.bounds()[0], upper=atom.bounds()[1]) for atom, name in found.items())
    changed = replace(
        kernel,
        params=resized(kernel.params),
        symbols=(*kernel.symbols, *more),
        body=tuple(nest for nest in ranges.changed(body, hoisted.named, values=True) if isinstance(nest, Nest)),
        scratch=resized(kernel.scratch),
    )
    return replace(hoisted, kernel=changed)


def _is_defined(atom: Atom) -> bool:
    """Whether all divisors are certainly positive."""
    if isinstance(atom, Div | Mod) and not ix.nonnegative(atom.key[-1] - 1):
        return False
    parts = (part for part in atom.key if isinstance(part, Int)) if isinstance(atom, Div | Mod | Extreme) else ()
    return all(_is_defined(factor) for part in parts for each, _ in part.terms for factor in each.factors)


def _symbol(atom: Atom, name: str | None) -> Int | None:
    return None if name is None else ix.symbol(name, *atom.bounds())
