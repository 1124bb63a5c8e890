"""Integer expressions: sizes, loop variables and indices, kept in a canonical form that simplifies itself.

Every expression is a sum of integer multiples of *atoms* plus a constant; an atom is a symbol, a product of atoms, a floor
division, a modulo, a minimum or a maximum. Two expressions that are built differently and have the same canonical form are
equal. Symbols carry what is known of their range, so that ``(4 * i + j) // 4`` is ``i`` when ``0 <= j < 4``, for symbolic sizes
too: a loop variable knows the size it runs below.

Division and modulo round toward minus infinity, as Python's do.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from typing import Any, Literal, TypeVar

import torch

from vendor_sdk import torch_private

T = TypeVar("T")


REMEMBERED = 1 << 14
"""Questions about expressions whose answers are kept: the same ones come again for every prim of a graph."""


class Int:
    """An integer expression. Immutable, hashable, compared by canonical form; supports ``+ - * // %`` with ints."""

    __slots__ = ("_hash", "_ranges", "constant", "terms")

    terms: tuple[tuple[Atom, int], ...]
    """``(atom, coefficient)`` pairs in canonical order, coefficients never zero."""
    constant: int

    def __init__(self, terms: tuple[tuple[Atom, int], ...], constant: int) -> None:
        self.terms = terms
        self.constant = constant
        self._hash = hash((terms, constant))
        self._ranges: tuple[Any, ...] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Int, (self.terms, self.constant)  # Hashes differ between processes.

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return not self.terms and self.constant == other
        if not isinstance(other, Int):
            return NotImplemented
        return self is other or (self._hash == other._hash and self.constant == other.constant and self.terms == other.terms)

    def __repr__(self) -> str:
        return to_python(self)

    @property
    def ranges(self) -> tuple[Any, ...]:
        """What is known of the symbols. Expressions that are equal may differ in this; if they do not, all that follows from
        one follows from the other."""
        if self._ranges is None:
            known = sorted(symbols(self).items())
            self._ranges = tuple((n, s.lower, s.upper, s.below, s.below and s.below.ranges) for n, s in known)
        return self._ranges

    @property
    def value(self) -> int | None:
        """The value of a constant expression, None for any other."""
        return None if self.terms else self.constant

    def __add__(self, other: Int | int) -> Int:
        other = wrap(other)
        if not other.terms:
            return Int(self.terms, self.constant + other.constant) if other.constant else self
        if not self.terms and not self.constant:
            return other
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        return _sum(terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Int:
        return self * -1

    def __sub__(self, other: Int | int) -> Int:
        return self + wrap(other) * -1

    def __rsub__(self, other: Int | int) -> Int:
        return wrap(other) + self * -1

    def __mul__(self, other: Int | int) -> Int:
        other = wrap(other)
        if other.terms and not self.terms:
            return other * self
        if not other.terms:
            factor = other.constant
            if factor == 1:
                return self
            if factor == 0:
                return ZERO
            return Int(tuple((atom, c * factor) for atom, c in self.terms), self.constant * factor)
        result = self * other.constant + other * self.constant - self.constant * other.constant
        for left, a in self.terms:
            for right, b in other.terms:
                result = result + _product((*left.factors, *right.factors)) * (a * b)
        return result

    __rmul__ = __mul__

    def __floordiv__(self, other: Int | int) -> Int:
        return floordiv(self, wrap(other))

    def __rfloordiv__(self, other: Int | int) -> Int:
        return floordiv(wrap(other), self)

    def __mod__(self, other: Int | int) -> Int:
        return mod(self, wrap(other))

    def __rmod__(self, other: Int | int) -> Int:
        return mod(wrap(other), self)


class Atom:
    """What an ``Int`` is a sum of. Subclasses: ``Symbol``, ``Product``, ``Div``, ``Mod``, ``Extreme``."""

    __slots__ = ("_hash", "key")

    key: tuple[Any, ...]

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self._hash = hash((type(self).__name__, key))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key,)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._hash == hash(other) and self.key == other.key)

    @property
    def factors(self) -> tuple[Atom, ...]:
        return (self,)

    def bounds(self) -> tuple[int | None, int | None]:
        """Known numeric range, inclusive; None means unbounded."""
        raise NotImplementedError


class Symbol(Atom):
    """A named integer: a size symbol, a loop variable, or an int64 value of a kernel's body.

    Attributes:
        name: identifier.
        lower, upper: inclusive numeric range, None where unknown.
        below: an expression that the symbol is known to be less than (the size of a loop variable's range).
    """

    __slots__ = ("below", "lower", "name", "upper")

    def __init__(self, name: str, lower: int | None = None, upper: int | None = None, below: Int | None = None) -> None:
        if below is not None and (limit := bounds(below)[1]) is not None:
            upper = limit - 1 if upper is None else min(upper, limit - 1)
        self.name, self.lower, self.upper, self.below = name, lower, upper, below
        super().__init__((name,))

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.name, self.lower, self.upper, self.below)

    def bounds(self) -> tuple[int | None, int | None]:
        return self.lower, self.upper


class Product(Atom):
    """Product of two or more atoms, none of them a product."""

    __slots__ = ()

    @property
    def factors(self) -> tuple[Atom, ...]:
        return self.key

    def bounds(self) -> tuple[int | None, int | None]:
        low: int | None = 1
        high: int | None = 1
        for factor in self.key:
            low, high = _multiply_bounds((low, high), factor.bounds())
        return low, high


class Div(Atom):
    """Floor division that does not simplify; ``key`` is (numerator, denominator)."""

    __slots__ = ()

    def bounds(self) -> tuple[int | None, int | None]:
        (low, high), (least, most) = bounds(self.key[0]), bounds(self.key[1])
        if least is None or least <= 0:
            return None, None
        if low is not None and low >= 0:
            return (low // most if most is not None else 0), (high // least if high is not None else None)
        return (low // least if low is not None else None), (high // least if high is not None and high >= 0 else None)


class Mod(Atom):
    """Modulo that does not simplify; ``key`` is (numerator, denominator)."""

    __slots__ = ()

    def bounds(self) -> tuple[int | None, int | None]:
        least, most = bounds(self.key[1])
        if least is None or least <= 0:
            return None, None
        low, high = bounds(self.key[0])
        top = most - 1 if most is not None else None
        if low is not None and low >= 0 and high is not None:
            top = high if top is None else min(top, high)
        return 0, top


class Extreme(Atom):
    """Minimum or maximum of two expressions; ``key`` is ("min" | "max", left, right)."""

    __slots__ = ()

    def bounds(self) -> tuple[int | None, int | None]:
        (a_low, a_high), (b_low, b_high) = bounds(self.key[1]), bounds(self.key[2])
        known_low, known_high = [v for v in (a_low, b_low) if v is not None], [v for v in (a_high, b_high) if v is not None]
        sign = [0] if self.key[1] == -self.key[2] else []  # an absolute value, or the negative of one
        if self.key[0] == "min":
            return (min(known_low) if len(known_low) == 2 else None), min([*known_high, *sign], default=None)
        return max([*known_low, *sign], default=None), (max(known_high) if len(known_high) == 2 else None)


def _multiply_bounds(
    left: tuple[int | None, int | None], right: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    if left[0] is not None and left[0] >= 0 and right[0] is not None and right[0] >= 0:
        high = left[1] * right[1] if left[1] is not None and right[1] is not None else None
        return left[0] * right[0], high
    if None in left or None in right:
        return None, None
    corners = [a * b for a in left for b in right if a is not None and b is not None]
    return min(corners), max(corners)


ZERO = Int((), 0)
ONE = Int((), 1)


def wrap(value: Int | int) -> Int:
    """``value`` as an expression."""
    return value if isinstance(value, Int) else Int((), int(value))


def symbol(name: str, lower: int | None = None, upper: int | None = None, below: Int | int | None = None) -> Int:
    """The expression that is one symbol; see ``Symbol``."""
    return Int(((Symbol(name, lower, upper, None if below is None else wrap(below)), 1),), 0)


def variable(name: str, size: Int | int) -> Int:
    """A loop variable: ``0 <= name < size``."""
    return symbol(name, 0, None, size)


def name_of(expression: Int) -> str:
    """Name of an expression that is one symbol."""
    if len(expression.terms) == 1 and not expression.constant:
        atom, coefficient = expression.terms[0]
        if isinstance(atom, Symbol) and coefficient == 1:
            return atom.name
    raise ValueError(f"{expression} is not a symbol")


@functools.lru_cache(REMEMBERED)
def _sort_key(atom: Atom) -> tuple[int, str]:
    if isinstance(atom, Symbol):
        return 0, atom.name
    return 1, _atom_text(atom, _PYTHON)


def _sum(terms: dict[Atom, int], constant: int) -> Int:
    kept = {atom: c for atom, c in terms.items() if c}
    for atom, c in kept.items():
        for factor in atom.factors:
            if not isinstance(factor, Mod):
                continue
            # x // c * c + x % c is x, each of them times something; where x is a quotient itself, x // c has one divisor.
            numerator: Int = factor.key[0]
            denominator: Int = factor.key[1]
            others = _without(atom, factor)
            whole = floordiv(numerator, denominator) * denominator * others
            if len(whole.terms) == 1 and not whole.constant:
                (whole_atom, scale) = whole.terms[0]
                if kept.get(whole_atom) == c * scale:
                    rest = {a: k for a, k in kept.items() if a not in (atom, whole_atom)}
                    return _sum(rest, constant) + numerator * others * c
            above = _digit_above(kept, c, factor, others)
            if above is not None:
                upper, modulus = above
                rest = {a: k for a, k in kept.items() if a not in (atom, upper)}
                return _sum(rest, constant) + mod(numerator, modulus) * others * c
    if len(kept) > 1:
        return Int(tuple(sorted(kept.items(), key=lambda item: _sort_key(item[0]))), constant)
    return Int(tuple(kept.items()), constant)


def _digit_above(terms: Mapping[Atom, int], coefficient: int, low: Mod, others: Int) -> tuple[Atom, Int] | None:
    """Of terms that hold ``x % c``, so many times ``others``, the one that holds ``(x // c) % d`` ``c`` times as often, and
    ``c * d``: together they are ``x % (c * d)``."""
    size = low.key[1].value
    if size is None:
        return None
    for atom, c in terms.items():
        for factor in atom.factors if c == coefficient * size else ():
            if isinstance(factor, Mod) and factor.key[0] == low.key[0] // size and _without(atom, factor) == others:
                return atom, factor.key[1] * size
    return None


def wrap_atom(atom: Atom) -> Int:
    return Int(((atom, 1),), 0)


def _product(factors: Iterable[Atom]) -> Int:
    ordered = sorted(factors, key=_sort_key)
    return wrap_atom(ordered[0]) if len(ordered) == 1 else wrap_atom(Product(tuple(ordered)))


def bounds(expression: Int) -> tuple[int | None, int | None]:
    """Known numeric range of an expression, inclusive; None where unbounded."""
    low: int | None = expression.constant
    high: int | None = expression.constant
    for atom, coefficient in expression.terms:
        atom_low, atom_high = atom.bounds()
        if coefficient < 0:
            atom_low, atom_high = atom_high, atom_low
        low = None if low is None or atom_low is None else low + atom_low * coefficient
        high = None if high is None or atom_high is None else high + atom_high * coefficient
    return low, high


def nonnegative(expression: Int, _depth: int = 6) -> bool:
    """Whether ``expression >= 0`` is provable from the symbols' ranges."""
    return _nonnegative(expression, expression.ranges, _depth) if expression.terms else expression.constant >= 0


@functools.lru_cache(REMEMBERED)
def _nonnegative(expression: Int, _ranges: tuple[Any, ...], _depth: int) -> bool:
    low, _ = bounds(expression)
    if low is not None:
        if low >= 0:
            return True
        if all(s.below is not None and not s.below.terms for s in symbols(expression).values()):
            return False
    if _depth == 0:
        return False
    for atom, coefficient in expression.terms:
        for factor in atom.factors:
            if not isinstance(factor, Symbol) or factor.lower is None or factor.below is None:
                continue
            if _others(atom, factor) is None or sum(factor.name in symbols(wrap_atom(a)) for a, _ in expression.terms) > 1:
                continue
            extreme = factor.below - 1 if coefficient < 0 else wrap(factor.lower)
            return nonnegative(substitute(expression, {factor.name: extreme}), _depth - 1)
    for atom, coefficient in expression.terms:
        for factor in atom.factors:
            if not isinstance(factor, Div | Mod):
                continue
            d, others = factor.key[1], _others(atom, factor)
            if others is None or not nonnegative(d - 1, _depth - 1):
                continue
            if isinstance(factor, Mod):
                rest = expression - wrap_atom(atom) * coefficient
                return nonnegative(rest + (d - 1) * others * coefficient if coefficient < 0 else rest, _depth - 1)
            # d * (n // d) lies in [n - d + 1, n], and an integer is not negative when d times it is above -d.
            worst = factor.key[0] if coefficient < 0 else factor.key[0] - (d - 1)
            rest = expression - wrap_atom(atom) * coefficient
            return nonnegative(rest * d + worst * others * coefficient + (d - 1), _depth - 1)
    return _grows(expression)


def _without(atom: Atom, factor: Atom) -> Int:
    """The product of an atom's factors but one."""
    others = list(atom.factors)
    others.remove(factor)
    return _product(others) if others else ONE


def _others(atom: Atom, factor: Atom) -> Int | None:
    """The product of an atom's factors but one, where none of them is negative or depends on that one."""
    rest = _without(atom, factor)
    if any((low := f.bounds()[0]) is None or low < 0 for a, _ in rest.terms for f in a.factors):
        return None
    return None if isinstance(factor, Symbol) and factor.name in symbols(rest) else rest


def _grows(expression: Int) -> bool:
    """Whether an expression is not negative where its symbols are least, and grows with each of them."""
    least = {s.name: symbol(s.name, 0) + s.lower for s in symbols(expression).values() if s.lower}
    low, _ = bounds(substitute(expression, least)) if least else (None, None)
    return low is not None and low >= 0


def less(left: Int | int, right: Int | int) -> bool:
    """Whether ``left < right`` is provable."""
    return nonnegative(wrap(right) - wrap(left) - 1)


def _divide_atom(atom: Atom, divisor: Atom) -> Int | None:
    remaining = list(atom.factors)
    for factor in divisor.factors:
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return _product(remaining) if remaining else ONE


def _split(numerator: Int, denominator: Int) -> tuple[Int, Int]:
    """``(q, r)`` with ``numerator == q * denominator + r`` and every divisible term in ``q``."""
    if not denominator.terms:
        d = denominator.constant
        whole = {atom: c // d for atom, c in numerator.terms if c % d == 0}
        rest = {atom: c for atom, c in numerator.terms if c % d}
        return _sum(whole, numerator.constant // d), _sum(rest, numerator.constant % d)
    if len(denominator.terms) == 1 and not denominator.constant:
        divisor, scale = denominator.terms[0]
        quotient, rest_terms = ZERO, dict[Atom, int]()
        for atom, c in numerator.terms:
            reduced = _divide_atom(atom, divisor) if c % scale == 0 else None
            if reduced is None:
                rest_terms[atom] = c
            else:
                quotient = quotient + reduced * (c // scale)
        return quotient, _sum(rest_terms, numerator.constant)
    if numerator == denominator:
        return ONE, ZERO
    return ZERO, numerator


def _gcd(expression: Int) -> int:
    return math.gcd(expression.constant, *(c for _, c in expression.terms))


def _apart(rest: Int, d: int) -> tuple[int, Int, Int] | None:
    """``(f, q, r)`` with ``rest == f * q + r``, ``f > 1`` a divisor of ``d``, and ``r`` from zero to below ``f``: of a number
    of several digits, those that ``d`` looks at, and the lower ones. None where no ``f`` is known."""
    for f in sorted({math.gcd(c, d) for _, c in rest.terms} - {1, d}, reverse=True):
        small = _sum({a: c for a, c in rest.terms if c % f}, rest.constant % f)
        if nonnegative(small) and less(small, f):
            return f, _sum({a: c // f for a, c in rest.terms if c % f == 0}, rest.constant // f), small
    return None


def floordiv(numerator: Int, denominator: Int) -> Int:
    """``numerator // denominator``, rounding down."""
    d = denominator.value
    if d == 0:
        raise ZeroDivisionError("integer expression divided by zero")
    if d == 1:
        return numerator
    if d is not None and d < 0:
        return floordiv(-numerator, wrap(-d))
    return _quotient(numerator, numerator.ranges, denominator, denominator.ranges)


@functools.lru_cache(REMEMBERED)
def _quotient(numerator: Int, _known: tuple[Any, ...], denominator: Int, _also: tuple[Any, ...]) -> Int:
    d = denominator.value
    quotient, rest = _split(numerator, denominator)
    if rest == ZERO:
        return quotient
    if nonnegative(rest) and less(rest, denominator):
        return quotient
    if d is not None and rest.value is not None:
        return quotient + rest.value // d
    if d is not None:
        common = math.gcd(d, *(c for _, c in rest.terms))
        if common > 1:
            reduced = _sum({a: c // common for a, c in rest.terms}, rest.constant // common)
            return quotient + floordiv(reduced, wrap(d // common))
    if d is not None and (parts := _apart(rest, d)) is not None:
        factor, whole, _ = parts
        return quotient + floordiv(whole, wrap(d // factor))
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and not rest.constant and isinstance(rest.terms[0][0], Div):
        inner, divisor = rest.terms[0][0].key
        if nonnegative(divisor - 1) and nonnegative(denominator - 1):
            return quotient + floordiv(inner, divisor * denominator)
    return quotient + wrap_atom(Div((rest, denominator)))


def mod(numerator: Int, denominator: Int) -> Int:
    """``numerator % denominator`` with the sign of the denominator."""
    d = denominator.value
    if d == 0:
        raise ZeroDivisionError("integer expression modulo zero")
    if d == 1:
        return ZERO
    return _remainder(numerator, numerator.ranges, denominator, denominator.ranges)


@functools.lru_cache(REMEMBERED)
def _remainder(numerator: Int, _known: tuple[Any, ...], denominator: Int, _also: tuple[Any, ...]) -> Int:
    d = denominator.value
    _, rest = _split(numerator, denominator)
    if rest == ZERO or (nonnegative(rest) and less(rest, denominator)):
        return rest
    if d is not None and rest.value is not None:
        return wrap(rest.value % d)
    if d is not None and d > 0:
        common = math.gcd(d, _gcd(rest))
        if common > 1:
            return mod(_sum({a: c // common for a, c in rest.terms}, rest.constant // common), wrap(d // common)) * common
        if len(rest.terms) == 1 and rest.terms[0][1] == 1 and not rest.constant and isinstance(rest.terms[0][0], Mod):
            inner, modulus = rest.terms[0][0].key
            if modulus.value is not None and modulus.value % d == 0:
                return mod(inner, denominator)
        if (parts := _apart(rest, d)) is not None:
            factor, whole, small = parts
            return mod(whole, wrap(d // factor)) * factor + small
    return wrap_atom(Mod((rest, denominator)))


def _extreme(kind: str, left: Int, right: Int) -> Int:
    if left == right or nonnegative(right - left):
        return left if kind == "min" else right
    if nonnegative(left - right):
        return right if kind == "min" else left
    first, second = sorted((left, right), key=to_python)
    return wrap_atom(Extreme((kind, first, second)))


def minimum(left: Int | int, right: Int | int) -> Int:
    return _extreme("min", wrap(left), wrap(right))


def maximum(left: Int | int, right: Int | int) -> Int:
    return _extreme("max", wrap(left), wrap(right))


def product(values: Iterable[Int | int]) -> Int:
    result = ONE
    for value in values:
        result = result * value
    return result


def rebuild(expression: Int, change: Callable[[Atom], Int | None]) -> Int:
    """``expression`` with what ``change`` says of its atoms, outer ones first, where that is not None; simplified again."""
    result = wrap(expression.constant)
    for atom, coefficient in expression.terms:
        term = ONE
        for factor in atom.factors:
            changed = change(factor)
            term = term * (_rebuild_factor(factor, change) if changed is None else changed)
        result = result + term * coefficient
    return result


def _rebuild_factor(atom: Atom, change: Callable[[Atom], Int | None]) -> Int:
    if isinstance(atom, Symbol):
        return wrap_atom(atom)
    if isinstance(atom, Div):
        return floordiv(rebuild(atom.key[0], change), rebuild(atom.key[1], change))
    if isinstance(atom, Mod):
        return mod(rebuild(atom.key[0], change), rebuild(atom.key[1], change))
    kind, left, right = atom.key
    return _extreme(kind, rebuild(left, change), rebuild(right, change))


def substitute(expression: Int, values: Mapping[str, Int | int]) -> Int:
    """``expression`` with symbols replaced by name, simplified again."""
    if not expression.terms:
        return expression
    return rebuild(expression, lambda s: wrap(values[s.name]) if isinstance(s, Symbol) and s.name in values else None)


def symbols(expression: Int) -> dict[str, Symbol]:
    """The symbols of an expression by name."""
    found: dict[str, Symbol] = {}

    def visit(e: Int) -> None:
        for atom, _ in e.terms:
            for factor in atom.factors:
                if isinstance(factor, Symbol):
                    found[factor.name] = factor
                else:
                    for part in factor.key:
                        if isinstance(part, Int):
                            visit(part)

    visit(expression)
    return found


def stride(expression: Int, name: str) -> Int | None:
    """How much ``expression`` grows when the symbol ``name`` grows by one; None when it is not affine in it."""
    result = ZERO
    for atom, coefficient in expression.terms:
        if name not in symbols(wrap_atom(atom)):
            continue
        factors = list(atom.factors)
        position = next((k for k, f in enumerate(factors) if isinstance(f, Symbol) and f.name == name), None)
        if position is None:
            return None
        del factors[position]
        rest = _product(factors) if factors else ONE
        if name in symbols(rest):
            return None
        result = result + rest * coefficient
    return result


_PYTHON = {"//": "({0} // {1})", "%": "({0} % {1})", "min": "min({0}, {1})", "max": "max({0}, {1})"}
_C = {"//": "floor_div({0}, {1})", "%": "floor_mod({0}, {1})", "min": "min_int({0}, {1})", "max": "max_int({0}, {1})"}


def _atom_text(atom: Atom, style: Mapping[str, str]) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if isinstance(atom, Product):
        return " * ".join(_atom_text(f, style) for f in atom.key)
    if isinstance(atom, Extreme):
        return style[atom.key[0]].format(_text(atom.key[1], style), _text(atom.key[2], style))
    numerator, denominator = atom.key
    sign = "//" if isinstance(atom, Div) else "%"
    pattern = style[sign]
    left, right = _text(numerator, style), _text(denominator, style)
    if style is _C and nonnegative(numerator) and nonnegative(denominator):
        pattern = "({0} / {1})" if sign == "//" else "({0} % {1})"
    if not pattern.startswith("("):
        return pattern.format(left, right)
    return pattern.format(_parenthesise(left, numerator), _parenthesise(right, denominator))


def _parenthesise(text: str, expression: Int) -> str:
    simple = not expression.terms or (len(expression.terms) == 1 and not expression.constant and expression.terms[0][1] == 1)
    return text if simple and not isinstance(expression.terms[0][0] if expression.terms else None, Product) else f"({text})"


def _text(expression: Int, style: Mapping[str, str]) -> str:
    parts: list[str] = []
    for atom, coefficient in expression.terms:
        text = _atom_text(atom, style)
        magnitude = text if abs(coefficient) == 1 else f"{abs(coefficient)} * {text}"
        if parts:
            parts.append(f" {'-' if coefficient < 0 else '+'} {magnitude}")
        else:
            parts.append(f"-{magnitude}" if coefficient < 0 else magnitude)
    if expression.constant or not parts:
        value = expression.constant
        parts.append((f" {'-' if value < 0 else '+'} {abs(value)}") if parts else str(value))
    return "".join(parts)


def to_python(expression: Int) -> str:
    """Python source of the expression, over its symbols' names and ``min``/``max``."""
    return _text(expression, _PYTHON)


def to_c(expression: Int) -> str:
    """C source over int64 variables; ``floor_div``, ``floor_mod``, ``min_int`` and ``max_int`` are the emitter's, and appear
    only where the operands' signs are unknown."""
    return _text(expression, _C)


Operation = Literal["add", "mul", "floordiv", "mod", "min", "max"]


def fold(expression: Int, leaf: Callable[[str | int], T], combine: Callable[[Operation, T, T], T]) -> T:
    """The expression in a language of your own, one operation after the other.

    Args:
        leaf: what a symbol's name, or a number, is there.
        combine: what an operation on two such values gives; the operations are those of ``Compute`` of the same names, int64.
    """

    def whole(e: Int) -> T:
        parts = [term(atom, coefficient) for atom, coefficient in e.terms]
        if e.constant or not parts:
            parts.append(leaf(e.constant))
        return reduce(partial(combine, "add"), parts)

    def term(atom: Atom, coefficient: int) -> T:
        parts = [factor(f) for f in atom.factors]
        if coefficient != 1:
            parts.append(leaf(coefficient))
        return reduce(partial(combine, "mul"), parts)

    def factor(atom: Atom) -> T:
        if isinstance(atom, Symbol):
            return leaf(atom.name)
        if isinstance(atom, Extreme):
            return combine(atom.key[0], whole(atom.key[1]), whole(atom.key[2]))
        return combine("floordiv" if isinstance(atom, Div) else "mod", whole(atom.key[0]), whole(atom.key[1]))

    return whole(expression)


def evaluate(expression: Int, values: Mapping[str, Any]) -> Any:
    """Value of the expression for ``values`` of its symbols: ints, or int64 tensors (broadcast, result a tensor)."""

    def combine(operation: Operation, left: Any, right: Any) -> Any:
        if operation in _INTEGER:
            return _INTEGER[operation](left, right)
        if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            pair = torch.as_tensor(left, dtype=torch.int64), torch.as_tensor(right, dtype=torch.int64)
            return torch.minimum(*pair) if operation == "min" else torch.maximum(*pair)
        return min(left, right) if operation == "min" else max(left, right)

    return fold(expression, lambda leaf: leaf if isinstance(leaf, int) else values[leaf], combine)


_INTEGER = {"add": operator.add, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod}


def from_size(size: Any) -> Int:
    """A size, stride or integer argument (``int`` or ``torch.SymInt``) as an expression.

    One that torch knows to be one is the number, whatever its symbols: whoever broadcasts asks whether it is.

    A symbolic expression outside the algebra (of floats, as where a size is scaled by one) is the number that it is now: torch
    guards it, and compiles again where it is another.

    Raises ``ValueError`` for such an expression of data.
    """
    # (A symbol that is one torch replaces by it.)
    if isinstance(size, torch.SymInt) and (size.node.expr.is_Symbol or not torch_private.surely_equal(size, 1)):
        node = size.node
        ranges = getattr(node.shape_env, "var_to_range", {})
        try:
            return _from_sympy(node.expr, ranges)
        except ValueError:
            if not torch_private.known_while_traced(size):
                raise
    return wrap(int(size))


def _finite(value: Any) -> int | None:
    try:
        number = int(value)
    except (AttributeError, TypeError, ValueError, OverflowError):  # how torch's infinities refuse varies
        return None
    return number if abs(number) < 2**62 else None


def _from_sympy(expression: Any, ranges: Mapping[Any, Any]) -> Int:
    # Torch's sympy functions are matched by class name: the classes themselves are private.
    kind = type(expression).__name__
    if expression.is_Integer:
        return wrap(int(expression))
    if expression.is_Symbol:
        known = ranges.get(expression)
        lower = _finite(known.lower) if known is not None else None
        if lower is None and (expression.is_positive or expression.is_nonnegative):
            lower = 1 if expression.is_positive else 0
        return symbol(str(expression), lower, _finite(known.upper) if known is not None else None)
    args = [_from_sympy(a, ranges) for a in expression.args if kind != "Pow"]
    if kind == "Add":
        result = ZERO
        for a in args:
            result = result + a
        return result
    if kind == "Mul":
        return product(args)
    if kind in ("Pow", "PowByNatural") and expression.args[1].is_Integer and int(expression.args[1]) >= 0:
        return product([_from_sympy(expression.args[0], ranges)] * int(expression.args[1]))
    if kind in ("FloorDiv", "CleanDiv"):
        return floordiv(*args)
    if kind in ("Mod", "PythonMod"):
        return mod(*args)
    if kind in ("Min", "Max"):
        result = args[0]
        for a in args[1:]:
            result = _extreme(kind.lower(), result, a)
        return result
    if kind == "ModularIndexing":
        return mod(floordiv(args[0], args[1]), args[2])
    if kind in ("Identity", "TruncToInt", "CeilToInt") and len(args) == 1:
        return args[0]
    raise ValueError(f"integer expression {expression} has no counterpart in index expressions")
