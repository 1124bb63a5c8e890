"""Index expressions as Triton text."""

from __future__ import annotations

from collections.abc import Callable, Container

from reference_backends.triton_gpu.analysis import divides
from vendor_sdk import index


def text(expression: index.Int) -> str:
    """Triton source over values of the dtype of indices, which a launch chooses so that it holds every place in memory. Triton
    divides toward zero: where an operand may be negative, functions of ``base`` round down instead."""
    return _sum(expression, _atom)


def value(expression: index.Int, sizes: Container[str] = ()) -> str:
    """As ``text``, of an expression that is a value itself: in int64, since the dtype of indices may be int32. Powers of two
    divide by bits, of which the compiler may know the lowest: what neighbours have in common is computed once.

    Args:
        sizes: symbols that the function knows a divisor of (``analysis.sizes_told``).
    """
    if _is_place(expression) or not expression.terms:
        return f"tl.cast({text(expression)}, tl.int64)"
    return _sum(expression, lambda atom: _wide(atom, sizes))


def _sum(expression: index.Int, atom_text: Callable[[index.Atom], str]) -> str:
    parts: list[str] = []
    for atom, coefficient in expression.terms:
        factor = atom_text(atom)
        term = factor if abs(coefficient) == 1 else f"{abs(coefficient)} * {factor}"
        if parts:
            parts.append(f" {'-' if coefficient < 0 else '+'} {term}")
        else:
            parts.append(f"-{term}" if coefficient < 0 else term)
    if not parts:
        return str(expression.constant)
    if expression.constant:
        parts.append(f" {'-' if expression.constant < 0 else '+'} {abs(expression.constant)}")
    return "".join(parts)


def _is_place(expression: index.Int) -> bool:
    """Whether the dtype of indices certainly holds an expression and what it is made of: one symbol, as loop variables are
    counted in it, or what has bounds within 32 bits."""
    atoms = [atom for atom, _ in expression.terms]
    if not all(map(_is_small, atoms)):
        return False
    if len(atoms) == 1 and abs(expression.terms[0][1]) == 1 and not expression.constant:
        return True
    numbers = [expression.constant, *(coefficient for _, coefficient in expression.terms)]
    return _in_32_bits(*index.bounds(expression), *numbers)


def _is_small(atom: index.Atom) -> bool:
    if isinstance(atom, index.Symbol):
        return True
    if isinstance(atom, index.Product):
        return all(map(_is_small, atom.key)) and _in_32_bits(*atom.bounds())
    return all(_is_place(each) for each in atom.key[-2:])


def _in_32_bits(*numbers: int | None) -> bool:
    return all(number is not None and -(2**31) <= number < 2**31 for number in numbers)


def _wide(atom: index.Atom, sizes: Container[str]) -> str:
    if _is_small(atom):
        return f"tl.cast({_atom(atom)}, tl.int64)"
    if isinstance(atom, index.Product):
        return " * ".join(_wide(factor, sizes) for factor in atom.key)
    if divides(atom):
        return _of_bits(atom, atom.key[-1].value, sizes)
    return _of_two(atom, lambda each: value(each, sizes))


def _of_bits(atom: index.Atom, divisor: int, sizes: Container[str]) -> str:
    """A quotient, or a remainder, of a power of two. Rows that are multiples of it may be divided apart from what is inside."""
    left: index.Int = atom.key[0]
    bits, whole = divisor.bit_length() - 1, isinstance(atom, index.Div)
    known = {
        each: factor.name
        for each, _ in left.terms
        for factor in each.factors
        if isinstance(factor, index.Symbol) and factor.name in sizes
    }
    far = index.Int(tuple(term for term in left.terms if term[0] in known), 0)
    near = left - far
    if not known or not near.terms:
        return f"(({value(left, sizes)}) {f'>> {bits}' if whole else f'& {divisor - 1}'})"
    apart = " & ".join(f"({name}_by % {divisor} == 0)" for name in dict.fromkeys(known.values()))
    return f"base.{'quotient' if whole else 'remainder'}({value(near, sizes)}, {value(far, sizes)}, {bits}, {apart})"


def _atom(atom: index.Atom) -> str:
    if isinstance(atom, index.Symbol):
        return atom.name
    if isinstance(atom, index.Product):
        return " * ".join(map(_atom, atom.key))
    return _of_two(atom, text)


def _of_two(atom: index.Atom, text: Callable[[index.Int], str]) -> str:
    left, right = atom.key[-2:]
    if isinstance(atom, index.Extreme):
        return f"base.{'smaller' if atom.key[0] == 'min' else 'larger'}({text(left)}, {text(right)})"
    whole = isinstance(atom, index.Div)
    if index.nonnegative(left) and index.nonnegative(right):
        return f"(({text(left)}) {'//' if whole else '%'} ({text(right)}))"
    return f"base.{'floor_div' if whole else 'floor_mod'}({text(left)}, {text(right)})"
