"""Index expressions as Triton text."""

from __future__ import annotations

from vendor_sdk import index


def text(expression: index.Int) -> str:
    """Triton source over int64 values. Triton divides toward zero: where an operand may be negative, functions of ``base``
    round down instead."""
    parts: list[str] = []
    for atom, coefficient in expression.terms:
        factor = _atom(atom)
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


def _atom(atom: index.Atom) -> str:
    if isinstance(atom, index.Symbol):
        return atom.name
    if isinstance(atom, index.Product):
        return " * ".join(map(_atom, atom.key))
    if isinstance(atom, index.Extreme):
        kind, left, right = atom.key
        return f"base.{'smaller' if kind == 'min' else 'larger'}({text(left)}, {text(right)})"
    numerator, denominator = atom.key
    whole = isinstance(atom, index.Div)
    if index.nonnegative(numerator) and index.nonnegative(denominator):
        return f"(({text(numerator)}) {'//' if whole else '%'} ({text(denominator)}))"
    return f"base.{'floor_div' if whole else 'floor_mod'}({text(numerator)}, {text(denominator)})"
