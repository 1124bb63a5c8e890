"""Rules of the special functions, which ONNX does not have: formulas in float64, rounded to float32 or less.

Functions without a short formula are tables: on each of many equal pieces of an interval, the polynomial through the function's
values at Chebyshev nodes. The values come from the prims' own references when a rule is first used, so that no number is copied
from anywhere. What is tabulated is the function over its growth, smooth to the interval's ends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev

from reference_backends.onnxruntime.builder import Builder, Outline, Rule, Untranslatable, Value
from reference_backends.onnxruntime.pointwise import erfcx_of_positive
from vendor_sdk import OPSET

BOOL, DOUBLE, FLOAT, INT64 = torch.bool, torch.float64, torch.float32, torch.int64
Array = np.ndarray[Any, Any]
Formula = Callable[[Builder, Value], Value]


def _rule(formula: Formula) -> Rule:
    """A formula in float64 of a number that is not NaN; NaN stays NaN."""

    def rule(b: Builder, out: Outline, x: Value) -> Value:
        if out.dtype == DOUBLE:
            raise Untranslatable("its formula here is exact to float32 only")
        value = b.cast(x, DOUBLE)
        if not x.dtype.is_floating_point:
            return b.cast(formula(b, value), out.dtype)
        nan = b.is_nan(value)
        result = formula(b, b.select(nan, _c(b, 1), value))
        return b.cast(b.select(nan, _c(b, math.nan), result), out.dtype)

    return rule


def _c(b: Builder, value: float) -> Value:
    return b.constant(value, DOUBLE)


def _add(b: Builder, *terms: Value | float) -> Value:
    return functools.reduce(lambda left, right: b.op("Add", left, right), (b.tensor(each, DOUBLE) for each in terms))


def _mul(b: Builder, *factors: Value | float) -> Value:
    return functools.reduce(lambda left, right: b.op("Mul", left, right), (b.tensor(each, DOUBLE) for each in factors))


def _div(b: Builder, left: Value | float, right: Value | float) -> Value:
    return b.op("Div", b.tensor(left, DOUBLE), b.tensor(right, DOUBLE))


def _less(b: Builder, left: Value, right: float) -> Value:
    return b.compare("Less", left, _c(b, right))


def _polynomial(b: Builder, x: Value, coefficients: list[float] | tuple[float, ...]) -> Value:
    """By Horner's rule, the constant first."""
    total: Value = _c(b, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = _add(b, _mul(b, total, x), coefficient)
    return total


# Tables


@dataclass(frozen=True)
class _Table:
    """A smooth function on [start, end).

    Attributes:
        function: values at float64 points.
        pieces: how many equal parts have a polynomial each.
        degree: of the polynomials.
    """

    function: Callable[[Array], Array]
    start: float
    end: float
    pieces: int
    degree: int = 9

    @functools.cached_property
    def coefficients(self) -> Array:
        """(degree + 1, pieces): for t in [-1, 1] over each piece."""
        nodes = np.cos(np.pi * (np.arange(self.degree + 1) + 0.5) / (self.degree + 1))
        width = (self.end - self.start) / self.pieces
        centres = self.start + width * (np.arange(self.pieces) + 0.5)
        values = self.function((centres[:, None] + nodes * width / 2).reshape(-1)).reshape(self.pieces, -1)
        assert np.isfinite(values).all()
        fits = chebyshev.chebfit(nodes, values.T, self.degree)
        found = [chebyshev.cheb2poly(fit) for fit in fits.T]  # which drops last coefficients of zero
        return np.stack([np.pad(polynomial, (0, self.degree + 1 - len(polynomial))) for polynomial in found], axis=1)

    def at(self, b: Builder, x: Value) -> Value:
        """The function, that at the ends beyond them."""
        scale = self.pieces / (self.end - self.start)
        place = _mul(b, _add(b, x, -self.start), scale)
        place = b.op("Min", b.where(b.compare("Greater", place, _c(b, 0)), place, _c(b, 0)), _c(b, self.pieces))  # of NaN 0
        piece = b.op("Min", b.op("Floor", place), _c(b, self.pieces - 1))
        t = _add(b, _mul(b, b.op("Sub", place, piece), 2), -1)
        index = b.cast(piece, INT64)
        rows = [b.op("Gather", b.constant(row, DOUBLE), index, axis=0) for row in self.coefficients]
        total = rows[-1]
        for row in reversed(rows[:-1]):
            total = _add(b, _mul(b, total, t), row)
        return total


def _of(prim: str) -> Callable[[Array], Array]:
    """A prim in float64, as its row has it."""

    def function(x: Array) -> Array:
        row = OPSET[prim]
        value = torch.from_numpy(np.ascontiguousarray(x))
        result: Array = np.asarray((row.reference or row.target)(value))
        return result

    return function


# Gamma


def _sine_of_pi(b: Builder, r: Value) -> Value:
    """sin(pi r) for r in [-1/2, 1/2]."""
    y = _mul(b, r, math.pi)
    square = _mul(b, y, y)
    return _mul(b, y, _polynomial(b, square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]))


def _cosine_of_pi(b: Builder, r: Value) -> Value:
    """cos(pi r) for r in [-1/2, 1/2]."""
    return _sine_of_pi(b, b.op("Sub", _c(b, 0.5), b.op("Abs", r)))


def _from_whole(b: Builder, x: Value) -> Value:
    """The distance to the nearest whole number, with its sign."""
    return b.op("Sub", x, b.op("Round", x))


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
"""B(2), B(4), ..."""
_SHIFT = 8
"""Below it, recurrences bring an argument up by as much: Stirling's series is exact to 1e-12 from there on."""


def _log_gamma_of_positive(b: Builder, x: Value) -> Value:
    small = _less(b, x, _SHIFT)
    base = b.where(small, x, _c(b, 1))
    product = base
    for step in range(1, _SHIFT):
        product = _mul(b, product, _add(b, base, step))
    z = _add(b, x, b.where(small, _c(b, _SHIFT), _c(b, 0)))
    inverse = _div(b, 1, z)
    series = [number / (2 * k * (2 * k - 1)) for k, number in enumerate(_BERNOULLI[:6], start=1)]
    correction = _mul(b, inverse, _polynomial(b, _mul(b, inverse, inverse), series))
    main = b.op("Sub", _mul(b, _add(b, z, -0.5), b.op("Log", z)), z)
    value = _add(b, main, correction, 0.5 * math.log(2 * math.pi))
    return b.op("Sub", value, b.where(small, b.op("Log", product), _c(b, 0)))


def _lgamma(b: Builder, x: Value) -> Value:
    """For x < 1/2 by reflection: gamma(x) gamma(1 - x) = pi / sin(pi x). Whole numbers below 1 are poles, 1 and 2 are roots."""
    low = _less(b, x, 0.5)
    value = _log_gamma_of_positive(b, b.where(low, b.op("Sub", _c(b, 1), x), x))
    sine = b.op("Abs", _sine_of_pi(b, _from_whole(b, x)))
    mirrored = b.op("Sub", b.op("Log", _div(b, math.pi, sine)), value)
    infinite = b.op("IsInf", x, dtype=BOOL)
    pole = b.op("And", low, b.compare("Equal", sine, _c(b, 0)))
    root = b.compare("Equal", b.op("Abs", _add(b, x, -1.5)), _c(b, 0.5))
    value = b.where(root, _c(b, 0), value)
    return b.where(b.op("Or", infinite, pole), _c(b, math.inf), b.where(low, mirrored, value))


def _digamma_of_positive(b: Builder, x: Value) -> Value:
    small = _less(b, x, _SHIFT)
    base = b.where(small, x, _c(b, 1))
    steps = _add(b, *(_div(b, 1, _add(b, base, step)) for step in range(_SHIFT)))
    z = _add(b, x, b.where(small, _c(b, _SHIFT), _c(b, 0)))
    inverse = _div(b, 1, z)
    square = _mul(b, inverse, inverse)
    series = [number / (2 * k) for k, number in enumerate(_BERNOULLI[:6], start=1)]
    tail = _add(b, _mul(b, inverse, 0.5), _mul(b, square, _polynomial(b, square, series)))
    return b.op("Sub", b.op("Sub", b.op("Log", z), tail), b.where(small, steps, _c(b, 0)))


def _digamma(b: Builder, x: Value) -> Value:
    """For x < 0 by reflection; NaN at the negative whole numbers, an infinity at zero, with the sign against zero's."""
    below = _less(b, x, 0)
    value = _digamma_of_positive(b, b.where(below, b.op("Sub", _c(b, 1), x), x))
    r = _from_whole(b, x)
    mirrored = b.op("Sub", value, _div(b, _mul(b, _cosine_of_pi(b, r), math.pi), _sine_of_pi(b, r)))
    mirrored = b.where(b.compare("Equal", r, _c(b, 0)), _c(b, math.nan), mirrored)
    regular = b.where(below, mirrored, value)
    return b.where(b.compare("Equal", x, _c(b, 0)), _div(b, -1, x), regular)


def _zeta_tail(b: Builder, s: Value, a: Value) -> Value:
    """The sum over k >= 0 of (k + a)**-s for a >= 9, by Euler and Maclaurin."""
    power = b.op("Pow", a, b.op("Neg", s))
    total = _add(b, _div(b, _mul(b, power, a), _add(b, s, -1)), _mul(b, power, 0.5))
    factor = _div(b, _mul(b, power, s), a)
    for k, number in enumerate(_BERNOULLI, start=1):
        total = _add(b, total, _mul(b, factor, number / math.factorial(2 * k)))
        rising = _mul(b, _add(b, s, 2 * k - 1), _add(b, s, 2 * k))
        factor = _div(b, _mul(b, factor, rising), _mul(b, a, a))
    return total


def _zeta_of_positive(b: Builder, s: Value, q: Value) -> Value:
    power = b.op("Neg", s)
    terms = [b.op("Pow", _add(b, q, k), power) for k in range(9)]
    return _add(b, *terms, _zeta_tail(b, s, _add(b, q, 9)))


def _zeta(b: Builder, out: Outline, s: Any, q: Any) -> Value:
    """Infinite at s = 1 and at whole q <= 0; NaN for s < 1, and for q < 0 where s is no whole number.

    Terms with a negative base are, but for the sign of an odd s, those of zeta(s, 1 - f) up to where 1 - q begins, with f the
    fraction of q: zeta(s, q) = zeta(s, f) + (-1)**s (zeta(s, 1 - f) - zeta(s, 1 - q)).
    """
    if out.dtype == DOUBLE:
        raise Untranslatable("its formula here is exact to float32 only")
    order, start = b.tensor(s, DOUBLE), b.tensor(q, DOUBLE)
    nan = b.op("Or", b.is_nan(order), b.is_nan(start))
    negative = _less(b, start, 0)
    floor = b.op("Floor", start)
    whole = b.compare("Equal", start, floor)
    least = _c(b, 1e-300)
    fraction_of_q = b.op("Max", b.op("Sub", start, floor), least)
    half = _mul(b, order, 0.5)
    sign = b.where(b.compare("Equal", half, b.op("Floor", half)), _c(b, 1), _c(b, -1))
    mirrored = _zeta_of_positive(b, order, b.op("Max", b.op("Sub", _c(b, 1), fraction_of_q), least))
    both = _add(b, _zeta_of_positive(b, order, fraction_of_q), _mul(b, sign, mirrored))
    beyond = _zeta_of_positive(b, order, b.op("Sub", _c(b, 1), b.where(negative, start, _c(b, 0))))
    below = b.op("Sub", both, _mul(b, sign, beyond))
    value = b.where(negative, below, _zeta_of_positive(b, order, b.op("Max", start, least)))
    fraction = b.invert(b.compare("Equal", order, b.op("Floor", order)))
    value = b.where(b.op("And", negative, fraction), _c(b, math.nan), value)
    pole = b.op("And", b.op("Or", negative, b.compare("Equal", start, _c(b, 0))), whole)
    value = b.where(pole, _c(b, math.inf), value)
    value = b.where(b.compare("Equal", order, _c(b, 1)), _c(b, math.inf), value)
    undefined = b.op("Or", nan, _less(b, order, 1))
    return b.cast(b.where(undefined, _c(b, math.nan), value), out.dtype)


def _cotangent_derivative(order: int) -> list[float]:
    """Coefficients of d^order/dx^order cot(pi x) as a polynomial in c = cot(pi x), by c' = -pi (1 + c**2)."""
    polynomial = np.array([0.0, 1.0])
    for _ in range(order):
        polynomial = np.polynomial.polynomial.polymul(np.polynomial.polynomial.polyder(polynomial), [-np.pi, 0, -np.pi])
    return [float(each) for each in polynomial]


def _polygamma(b: Builder, out: Outline, n: int, x: Value) -> Value:
    """(-1)**(n+1) n! zeta(n + 1, x); for x < 0 by reflection."""
    if n == 0:
        return _rule(_digamma)(b, out, x)  # type: ignore[no-any-return]

    def formula(b: Builder, x: Value) -> Value:
        sign, scale = (-1) ** (n + 1), float(math.factorial(n))
        below = _less(b, x, 0)
        order = _c(b, n + 1)
        value = _mul(b, _zeta_of_positive(b, order, b.where(below, b.op("Sub", _c(b, 1), x), x)), sign * scale)
        r = _from_whole(b, x)
        cotangent = _div(b, _cosine_of_pi(b, r), _sine_of_pi(b, r))
        slope = _polynomial(b, cotangent, _cotangent_derivative(n))
        # (-1)**n polygamma(1 - x) - polygamma(x) = pi d^n/dx^n cot(pi x)
        mirrored = b.op("Sub", _mul(b, value, (-1) ** n), _mul(b, slope, math.pi))
        mirrored = b.where(b.compare("Equal", r, _c(b, 0)), _c(b, sign * math.inf), mirrored)
        regular = b.where(below, mirrored, value)
        endless = b.compare("Equal", x, _c(b, math.inf))
        return b.where(endless, _c(b, 0), regular)

    return _rule(formula)(b, out, x)  # type: ignore[no-any-return]


# Inverse error function


def _normal_quantile(w: Array) -> Array:
    """x / erf(x) at the x for which 1 - erf(x)**2 = exp(-w)."""
    size = np.sqrt(-np.expm1(-w))
    chance = np.exp(-w) / (2 * (1 + size))
    return _of("special_ndtri")(chance) / (-math.sqrt(2) * size)


_QUANTILE = _Table(_normal_quantile, 0, 106, 53)
"""Down to probabilities of 1e-46, less than any in float32."""


def _inverse_erf(b: Builder, x: Value, tails: Value) -> Value:
    """erfinv(x); ``tails`` is 1 - x**2."""
    value = _mul(b, x, _QUANTILE.at(b, b.op("Neg", b.op("Log", tails))))
    value = b.where(b.compare("Equal", tails, _c(b, 0)), _mul(b, x, math.inf), value)
    return b.where(_less(b, tails, 0), _c(b, math.nan), value)


def _erfinv(b: Builder, x: Value) -> Value:
    return _inverse_erf(b, x, _mul(b, b.op("Sub", _c(b, 1), x), _add(b, x, 1)))


def _ndtri(b: Builder, p: Value) -> Value:
    x = _add(b, _mul(b, p, 2), -1)
    return _mul(b, _inverse_erf(b, x, _mul(b, p, b.op("Sub", _c(b, 1), p), 4)), math.sqrt(2))


def _erfcx(b: Builder, x: Value) -> Value:
    size = b.op("Abs", x)
    value = erfcx_of_positive(b, size)
    mirrored = b.op("Sub", _mul(b, b.op("Exp", _mul(b, size, size)), 2), value)
    return b.where(_less(b, x, 0), mirrored, value)


# Bessel functions of imaginary arguments


def _scaled_i0(s: Array) -> Array:
    x = 1 / s - 1
    return _of("special_i0e")(x) * np.sqrt(1 + x)


def _scaled_i1(s: Array) -> Array:
    x = 1 / s - 1
    return _of("special_i1e")(x) / x * (1 + x) ** 1.5


_I0, _I1 = _Table(_scaled_i0, 0, 1, 48), _Table(_scaled_i1, 0, 1, 48)
"""Over s = 1 / (1 + |x|)."""


def _i0e(b: Builder, x: Value) -> Value:
    s = _div(b, 1, _add(b, b.op("Abs", x), 1))
    return _mul(b, _I0.at(b, s), b.op("Sqrt", s))


def _i1e(b: Builder, x: Value) -> Value:
    s = _div(b, 1, _add(b, b.op("Abs", x), 1))
    value = _mul(b, b.op("Mul", _I1.at(b, s), b.op("Sqrt", s)), _mul(b, x, s))
    return b.where(b.op("IsInf", x, dtype=BOOL), _c(b, 0), value)


def _unscaled(scaled: Formula) -> Formula:
    """exp(|x|) times a function; NaN at the infinities, as torch has it."""

    def formula(b: Builder, x: Value) -> Value:
        return _mul(b, scaled(b, x), b.op("Exp", b.op("Abs", x)))

    return formula


def _scaled_k(prim: str) -> Callable[[Array], Array]:
    return lambda u: _of(prim)(np.exp2(u)) * np.sqrt(np.exp2(u))


_TINY = -16
_K0 = _Table(_scaled_k("special_scaled_modified_bessel_k0"), _TINY, 24, 80)
_K1 = _Table(_scaled_k("special_scaled_modified_bessel_k1"), _TINY, 24, 80)
"""Over the binary logarithm of x. Before them stand the limits at zero, behind them that at infinity."""
_EULER = 0.5772156649015329


def _k(table: _Table, limit: Formula) -> Formula:
    def formula(b: Builder, x: Value) -> Value:
        positive = b.op("Max", x, _c(b, 2.0**_TINY))
        exponent = _div(b, b.op("Log", positive), math.log(2))
        value = _div(b, table.at(b, exponent), b.op("Sqrt", positive))
        value = b.where(_less(b, x, 2.0**_TINY), limit(b, b.op("Abs", x)), value)
        return b.where(_less(b, x, 0), _c(b, math.nan), value)

    return formula


def _k0_at_zero(b: Builder, x: Value) -> Value:
    """exp(x) (log(2 / x) - Euler's constant), to the second order."""
    log = b.op("Sub", _c(b, math.log(2) - _EULER), b.op("Log", x))
    return _mul(b, log, _add(b, x, 1))


def _k1_at_zero(b: Builder, x: Value) -> Value:
    return _add(b, _div(b, 1, x), 1)


def _times_decay(scaled: Formula) -> Formula:
    """exp(-x) times a function."""

    def formula(b: Builder, x: Value) -> Value:
        return _mul(b, scaled(b, x), b.op("Exp", b.op("Neg", x)))

    return formula


_k0e, _k1e = _k(_K0, _k0_at_zero), _k(_K1, _k1_at_zero)


# Bessel functions of real arguments: tables up to 8, amplitude and phase beyond


_NEAR = 8.0


def _y0_rest(x: Array) -> Array:
    return _of("special_bessel_y0")(x) - 2 / np.pi * np.log(x / 2) * _of("special_bessel_j0")(x)


def _y1_rest(x: Array) -> Array:
    j1 = _of("special_bessel_j1")(x)
    return (_of("special_bessel_y1")(x) - 2 / np.pi * (np.log(x / 2) * j1 - 1 / x)) / x


def _amplitude(order: int) -> Callable[[Array], Array]:
    """sqrt(x (J**2 + Y**2)) over s = 8 / x."""

    def function(s: Array) -> Array:
        x = _NEAR / s
        return np.sqrt(x) * np.hypot(_of(f"special_bessel_j{order}")(x), _of(f"special_bessel_y{order}")(x))

    return function


def _phase(order: int) -> Callable[[Array], Array]:
    """The angle of (J, Y) minus x over s = 8 / x, near its limit -(2 order + 1) pi / 4."""

    def function(s: Array) -> Array:
        x = _NEAR / s
        angle = np.arctan2(_of(f"special_bessel_y{order}")(x), _of(f"special_bessel_j{order}")(x)) - x
        limit = -(2 * order + 1) * np.pi / 4
        return limit + np.remainder(angle - limit + np.pi, 2 * np.pi) - np.pi

    return function


_J_NEAR = (
    _Table(_of("special_bessel_j0"), 0, _NEAR, 32),
    _Table(lambda x: _of("special_bessel_j1")(x) / x, 0, _NEAR, 32),
)
_Y_NEAR = _Table(_y0_rest, 0, _NEAR, 32), _Table(_y1_rest, 0, _NEAR, 32)
_AMPLITUDE = _Table(_amplitude(0), 0, 1, 8), _Table(_amplitude(1), 0, 1, 8)
_PHASE = _Table(_phase(0), 0, 1, 8), _Table(_phase(1), 0, 1, 8)


def _wave(b: Builder, angle: Value, kind: str) -> Value:
    """Sine or cosine of an angle, brought near zero first."""
    turns = b.op("Round", _mul(b, angle, 1 / (2 * math.pi)))
    rest = b.op("Sub", angle, _mul(b, turns, 2 * math.pi))
    return b.cast(b.op(kind, b.cast(rest, FLOAT)), DOUBLE)


def _far(b: Builder, size: Value, order: int, kind: str) -> Value:
    """From 8 on; NaN at infinity, as torch has it."""
    x = b.op("Max", size, _c(b, _NEAR))
    s = _div(b, _NEAR, x)
    angle = _add(b, x, _PHASE[order].at(b, s))
    return _div(b, _mul(b, _AMPLITUDE[order].at(b, s), _wave(b, angle, kind)), b.op("Sqrt", x))


def _j(order: int) -> Formula:
    def formula(b: Builder, x: Value) -> Value:
        size = b.op("Abs", x)
        near = _J_NEAR[order].at(b, size)
        if order == 1:
            near = _mul(b, near, b.op("Min", size, _c(b, _NEAR)))
        value = b.where(_less(b, size, _NEAR), near, _far(b, size, order, "Cos"))
        return value if order == 0 else b.where(_less(b, x, 0), b.op("Neg", value), value)

    return formula


def _y(order: int) -> Formula:
    """-infinity at zero, NaN below."""

    def formula(b: Builder, x: Value) -> Value:
        near = b.op("Min", x, _c(b, _NEAR))
        log, j, rest = b.op("Log", _mul(b, near, 0.5)), _J_NEAR[order].at(b, near), _Y_NEAR[order].at(b, near)
        if order == 0:
            value = _add(b, _mul(b, log, j, 2 / math.pi), rest)
        else:
            inner = b.op("Sub", _mul(b, log, j, near), _div(b, 1, near))
            value = _add(b, _mul(b, inner, 2 / math.pi), _mul(b, rest, near))
        value = b.where(_less(b, x, _NEAR), value, _far(b, x, order, "Sin"))
        value = b.where(b.compare("Equal", x, _c(b, 0)), _c(b, -math.inf), value)
        return b.where(_less(b, x, 0), _c(b, math.nan), value)

    return formula


_AIRY = _Table(_of("special_airy_ai"), -16, 8, 96)


def _airy(b: Builder, x: Value) -> Value:
    """Its asymptotic series outside of the table. https://dlmf.nist.gov/9.7"""
    size = b.op("Min", b.op("Max", b.op("Abs", x), _c(b, 1)), _c(b, 1e100))
    zeta = _mul(b, size, b.op("Sqrt", size), 2 / 3)
    root = _mul(b, b.op("Sqrt", b.op("Sqrt", size)), math.sqrt(math.pi))
    inverse = _div(b, 1, zeta)
    decay = _div(b, _mul(b, b.op("Exp", b.op("Neg", zeta)), 0.5, _polynomial(b, inverse, [1, -5 / 72, 385 / 10368])), root)
    angle, square = _add(b, zeta, -math.pi / 4), _mul(b, inverse, inverse)
    even = _mul(b, _wave(b, angle, "Cos"), _polynomial(b, square, [1, -385 / 10368]))
    odd = _mul(b, _wave(b, angle, "Sin"), inverse, _polynomial(b, square, [5 / 72, -85085 / 2239488]))
    value = b.where(_less(b, x, 8), _AIRY.at(b, x), decay)
    value = b.where(_less(b, x, -16), _div(b, _add(b, even, odd), root), value)
    return b.where(b.op("IsInf", x, dtype=BOOL), _c(b, 0), value)


RULES: Mapping[str, Rule] = {
    "lgamma": _rule(_lgamma),
    "digamma": _rule(_digamma),
    "polygamma": _polygamma,
    "special_zeta": _zeta,
    "erfinv": _rule(_erfinv),
    "special_ndtri": _rule(_ndtri),
    "special_erfcx": _rule(_erfcx),
    "i0": _rule(_unscaled(_i0e)),
    "special_i0e": _rule(_i0e),
    "special_i1": _rule(_unscaled(_i1e)),
    "special_i1e": _rule(_i1e),
    "special_modified_bessel_i0": _rule(_unscaled(_i0e)),
    "special_modified_bessel_i1": _rule(_unscaled(_i1e)),
    "special_modified_bessel_k0": _rule(_times_decay(_k0e)),
    "special_modified_bessel_k1": _rule(_times_decay(_k1e)),
    "special_scaled_modified_bessel_k0": _rule(_k0e),
    "special_scaled_modified_bessel_k1": _rule(_k1e),
    "special_bessel_j0": _rule(_j(0)),
    "special_bessel_j1": _rule(_j(1)),
    "special_bessel_y0": _rule(_y(0)),
    "special_bessel_y1": _rule(_y(1)),
    "special_airy_ai": _rule(_airy),
}
