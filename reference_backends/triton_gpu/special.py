"""Special functions that NVIDIA's library has not: device functions that generated kernels call.

All take blocks or scalars of float32 or float64, and compute in float64, so that float32 results are as good as rounded ones.
"NIST" is the Digital Library of Mathematical Functions, dlmf.nist.gov.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call"
# ruff: noqa: RET505
# Triton compiles these functions itself, see ``base``.

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from reference_backends.triton_gpu import base

PI = tl.constexpr(3.141592653589793)
TINY = tl.constexpr(1e-17)
"""A term so small beside the sum does not count."""
MOST = tl.constexpr(100000)
"""Terms, at most."""


@triton.jit
def _infinite(a):
    return tl.abs(a) == float("inf")


@triton.jit
def _whole(a):
    return a == libdevice.floor(a)


@triton.jit
def _pi_fraction(a):
    """pi times the distance to the nearest whole number."""
    return (a - libdevice.floor(a + 0.5)) * PI


# Derivatives of the logarithm of the gamma function, and zeta


@triton.jit
def _digamma_positive(a):
    """Recurrence up to 16, then the asymptotic series; NIST 5.5.2, 5.11.2."""
    y = a
    shift = a * 0.0
    for _ in range(16):
        low = y < 16.0
        shift = tl.where(low, shift + 1.0 / y, shift)
        y = tl.where(low, y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * -0.4432598039215686 + 0.08333333333333333
    series = series * z - 0.021092796092796094
    series = series * z + 0.007575757575757576
    series = series * z - 0.004166666666666667
    series = series * z + 0.003968253968253968
    series = series * z - 0.008333333333333333
    series = series * z + 0.08333333333333333
    return libdevice.log(y) - 0.5 / y - series * z - shift


@triton.jit
def digamma(x):
    a = x.to(tl.float64)
    reflected = _digamma_positive(1.0 - a) - PI / libdevice.tan(_pi_fraction(a))
    result = tl.where(a < 0.0, tl.where(_whole(a), float("nan"), reflected), _digamma_positive(tl.where(a < 0.0, 1.0, a)))
    result = tl.where(a == 0.0, libdevice.copysign(a * 0.0 + float("inf"), a * -1.0), result)
    result = tl.where(_infinite(a), tl.where(a > 0.0, float("inf"), float("nan")), result)
    return tl.where(a != a, a, result).to(x.dtype)


@triton.jit
def _trigamma_positive(a):
    """As ``_digamma_positive``; NIST 5.15.5, 5.15.8."""
    y = a
    shift = a * 0.0
    for _ in range(16):
        low = y < 16.0
        shift = tl.where(low, shift + 1.0 / (y * y), shift)
        y = tl.where(low, y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * -7.092156862745098 + 1.1666666666666667
    series = series * z - 0.2531135531135531
    series = series * z + 0.07575757575757576
    series = series * z - 0.03333333333333333
    series = series * z + 0.023809523809523808
    series = series * z - 0.03333333333333333
    series = series * z + 0.16666666666666666
    return 1.0 / y + z * 0.5 + series * z / y + shift


@triton.jit
def trigamma(x):
    a = x.to(tl.float64)
    low = a < 0.5
    sine = libdevice.sin(_pi_fraction(a))
    rest = _trigamma_positive(tl.where(low, 1.0 - a, a))
    result = tl.where(low, tl.where(_whole(a), float("inf"), PI * PI / (sine * sine) - rest), rest)
    result = tl.where(a == float("inf"), 0.0, result)
    return tl.where(a != a, a, result).to(x.dtype)


@triton.jit
def _corrected(total, factor, term, number, k, s, z):
    """The sum with Euler's and Maclaurin's correction k, whose B(2k + 2) / (2k + 2)! is ``number``; the next one's parts."""
    return total + number * factor * term, factor * (s + (2 * k + 1)) * (s + (2 * k + 2)), term * z


@triton.jit
def zeta(x, q):
    """Hurwitz's zeta function by Euler and Maclaurin; NIST 25.11.5."""
    s, y = tl.broadcast(x.to(tl.float64), q.to(tl.float64))
    start = y
    order = s
    good = (s > 1.0) & (y == y) & ((y > 0.0) | (_whole(s) & (y != libdevice.floor(y)))) & (_infinite(y) == 0)
    y = tl.where(good, y, 20.0)
    s = tl.where(good, s, 2.0)
    total = y * 0.0
    n = 0
    below = y < 16.0
    while base.some(below) & (n < MOST):
        total = tl.where(below, total + libdevice.pow(y, s * -1.0), total)
        y = tl.where(below, y + 1.0, y)
        below = y < 16.0
        n += 1
    power = libdevice.pow(y, s * -1.0)
    total += power * y / (s - 1.0) + power * 0.5
    z = 1.0 / (y * y)
    term = power / y
    factor = s
    total, factor, term = _corrected(total, factor, term, 0.08333333333333333, 0, s, z)
    total, factor, term = _corrected(total, factor, term, -0.001388888888888889, 1, s, z)
    total, factor, term = _corrected(total, factor, term, 3.306878306878307e-05, 2, s, z)
    total, factor, term = _corrected(total, factor, term, -8.267195767195768e-07, 3, s, z)
    total, factor, term = _corrected(total, factor, term, 2.08767569878681e-08, 4, s, z)
    total, factor, term = _corrected(total, factor, term, -5.284190138687493e-10, 5, s, z)
    total, factor, term = _corrected(total, factor, term, 1.3382536530684679e-11, 6, s, z)
    total, factor, term = _corrected(total, factor, term, -3.3896802963225827e-13, 7, s, z)
    known = tl.where(start == float("inf"), 0.0, tl.where(_whole(start) & (start <= 0.0), float("inf"), float("nan")))
    known = tl.where(order == 1.0, float("inf"), tl.where(order < 1.0, float("nan"), known))
    known = tl.where((order != order) | (start != start), float("nan"), known)
    return tl.where(good, total, known).to(x.dtype)


# Incomplete gamma functions


@triton.jit
def _gamma_parts(a, x):
    """``(P, Q)`` of finite positive numbers: a series for P below x = a + 1, Lentz's continued fraction for Q above it; NIST
    8.7.3, 8.9.2."""
    prefix = libdevice.exp(a * libdevice.log(x) - x - libdevice.lgamma(a + 1.0))
    low = x < a + 1.0
    term = x * 0.0 + 1.0
    total = term
    n = a
    k = 0
    open = low
    while base.some(open) & (k < MOST):
        n += 1.0
        term = tl.where(open, term * x / n, term)
        total = tl.where(open, total + term, total)
        open = open & (term > total * TINY)
        k += 1
    b = x + 1.0 - a
    b = tl.where(low, 1.0, b)
    c = x * 0.0 + 1e300
    d = 1.0 / b
    h = d
    k = 0
    step = x * 0.0
    open = low == 0
    while base.some(open) & (k < MOST):
        step += 1.0
        k += 1
        factor = step * (a - step)
        b += 2.0
        d = factor * d + b
        d = tl.where(tl.abs(d) < 1e-300, 1e-300, d)
        c = b + factor / c
        c = tl.where(tl.abs(c) < 1e-300, 1e-300, c)
        d = 1.0 / d
        change = d * c
        h = tl.where(open, h * change, h)
        open = open & (tl.abs(change - 1.0) > 2e-16)
    first = total * prefix
    second = h * prefix * a
    return tl.where(low, first, 1.0 - second), tl.where(low, 1.0 - first, second)


@triton.jit
def _gamma(first, second, upper):
    """P or Q of any numbers."""
    a, x = tl.broadcast(first.to(tl.float64), second.to(tl.float64))
    good = (a > 0.0) & (x > 0.0) & (_infinite(a) == 0) & (_infinite(x) == 0)
    p, q = _gamma_parts(tl.where(good, a, 1.0), tl.where(good, x, 1.0))
    # Where x or a is at an end of its range, P is 0 or 1.
    none = ((x == 0.0) & (a > 0.0)) | ((a == float("inf")) & (x < float("inf")))
    all_ = ((a == 0.0) & (x > 0.0)) | ((x == float("inf")) & (a < float("inf")))
    none = none & (a >= 0.0) & (x >= 0.0)
    all_ = all_ & (a >= 0.0) & (x >= 0.0)
    p = tl.where(good, p, tl.where(none, 0.0, tl.where(all_, 1.0, float("nan"))))
    q = tl.where(good, q, tl.where(none, 1.0, tl.where(all_, 0.0, float("nan"))))
    if upper:
        return q
    else:
        return p


@triton.jit
def igamma(a, x):
    return _gamma(a, x, False).to(a.dtype)


@triton.jit
def igammac(a, x):
    return _gamma(a, x, True).to(a.dtype)


# Bessel functions


@triton.jit
def _scaled_i(a, order):
    """exp(-a) I(a), a >= 0, order 0 or 1: the power series below 30, the asymptotic one above; NIST 10.25.2, 10.40.1."""
    low = a < 30.0
    small = tl.where(low, a, 1.0)
    square = small * small * 0.25
    term = small * 0.0 + 1.0
    if order == 1:
        term = small * 0.5
    total = term
    k = 0.0
    for _ in range(90):
        k += 1.0
        term = term * square / (k * (k + order))
        total += term
    near = libdevice.exp(small * -1.0) * total
    large = tl.where(low, 30.0, a)
    mu = 4.0 * order
    term = large * 0.0 + 1.0
    total = term
    k = 0.0
    for _ in range(30):
        k += 1.0
        odd = 2.0 * k - 1.0
        term = term * (odd * odd - mu) / (k * 8.0 * large)
        total += term
    far = total / (libdevice.sqrt(large) * 2.5066282746310002)
    return tl.where(low, near, tl.where(a == float("inf"), 0.0, far))


@triton.jit
def i0e(x):
    a = tl.abs(x.to(tl.float64))
    return tl.where(a != a, a, _scaled_i(a, 0)).to(x.dtype)


@triton.jit
def i1e(x):
    a = tl.abs(x.to(tl.float64))
    return libdevice.copysign(tl.where(a != a, a, _scaled_i(a, 1)).to(x.dtype), x)


@triton.jit
def _scaled_k(order, x):
    """exp(x) K(x), x of at least 0.6 and finite, any order below 2: the trapezoidal rule on the integral of
    exp(-x (cosh t - 1)) cosh(order t), whose error falls as exp(-pi^2 / step) (NIST 10.32.9); the asymptotic series beyond 25
    (NIST 10.40.2)."""
    far = x > 25.0
    large = tl.where(far, x, 30.0)
    mu = 4.0 * order * order
    term = large * 0.0 + 1.0
    total = term
    k = 0.0
    for _ in range(30):
        k += 1.0
        odd = 2.0 * k - 1.0
        term = term * (mu - odd * odd) / (k * 8.0 * large)
        total += term
    beyond = total * libdevice.sqrt(1.5707963267948966 / large)
    small = tl.where(far, 20.0, x)
    total = small * 0.0 + 0.5
    t = small * 0.0
    for _ in range(40):  # to t = 5, beyond which no term counts
        t += 0.125
        half = libdevice.sinh(t * 0.5)
        total += libdevice.exp(small * -2.0 * half * half) * libdevice.cosh(t * order)
    return tl.where(far, beyond, total * 0.125)


@triton.jit
def _small_k(order, x):
    """K(x), 0 < x <= 1, order 0 or 1: the power series with the logarithm; NIST 10.31.1, 10.31.2."""
    square = x * x * 0.25
    log = libdevice.log(x * 0.5)
    # ``whole`` is digamma(k + 1), for order 1 with digamma(k + 2).
    if order == 1:
        whole = x * 0.0 - 0.15443132980306573
        term = x * 0.5
    else:
        whole = x * 0.0 - 0.5772156649015329
        term = x * 0.0 + 1.0
    i = term
    part = term * whole
    k = 0.0
    for _ in range(12):
        k += 1.0
        term = term * square / (k * (k + order))
        whole += 1.0 / (x * 0.0 + k)
        if order == 1:
            whole += 1.0 / (x * 0.0 + k + 1.0)
        i += term
        part += term * whole
    if order == 1:
        return 1.0 / x + log * i - part * 0.5
    else:
        return part - log * i


@triton.jit
def _bessel_k(x, order, scaled):
    a = x.to(tl.float64)
    good = (a > 0.0) & (a < float("inf"))
    low = good & (a <= 1.0)
    near = _small_k(order, tl.where(low, a, 1.0))
    high = tl.where(good & (a > 1.0), a, 2.0)
    value = _scaled_k(order, high)
    if scaled:
        value = tl.where(low, near * libdevice.exp(tl.where(low, a, 1.0)), value)
    else:
        value = tl.where(low, near, value * libdevice.exp(high * -1.0))
    known = tl.where(a == 0.0, float("inf"), tl.where(a == float("inf"), 0.0, float("nan")))
    return tl.where(good, value, known).to(x.dtype)


@triton.jit
def bessel_k0(x):
    return _bessel_k(x, 0, False)


@triton.jit
def bessel_k1(x):
    return _bessel_k(x, 1, False)


@triton.jit
def bessel_k0e(x):
    return _bessel_k(x, 0, True)


@triton.jit
def bessel_k1e(x):
    return _bessel_k(x, 1, True)


@triton.jit
def spherical_bessel_j0(x):
    a = x.to(tl.float64)
    near = 1.0 - a * a / 6.0 * (1.0 - a * a / 20.0)
    value = tl.where(tl.abs(a) < 1e-3, near, libdevice.sin(a) / a)
    return tl.where(_infinite(a), 0.0, value).to(x.dtype)


# Airy's function


@triton.jit
def _airy_steps(x):
    """Taylor steps of y'' = x y from zero, which are stable left of it, where both solutions oscillate."""
    y = x * 0.0 + 0.3550280538878172
    slope = x * 0.0 - 0.2588194037928068
    at = x * 0.0
    steps = libdevice.floor(tl.abs(x)) + 1.0
    h = x / steps
    n = x * 0.0
    while base.some(n < steps):
        before = x * 0.0
        first = y
        second = slope
        power = x * 0.0 + 1.0
        value = before
        derivative = before
        k = 0.0
        for _ in range(40):
            value += first * power
            derivative += second * (k + 1.0) * power
            third = (at * first + before) / ((k + 2.0) * (k + 1.0))
            before = first
            first = second
            second = third
            power = power * h
            k += 1.0
        open = n < steps
        y = tl.where(open, value, y)
        slope = tl.where(open, derivative, slope)
        at = tl.where(open, at + h, at)
        n += 1.0
    return y


@triton.jit
def airy_ai(x):
    """Right of 1 through K of order 1/3 (NIST 9.6.2), far left the asymptotic series (NIST 9.7.9), Taylor steps between."""
    a = x.to(tl.float64)
    right = (a > 1.0) & (a <= 120.0)
    r = tl.where(right, a, 1.0)
    z = 2.0 * r * libdevice.sqrt(r) / 3.0
    decaying = libdevice.sqrt(r / 3.0) / PI * _scaled_k(0.3333333333333333, z) * libdevice.exp(z * -1.0)
    middle = (a <= 1.0) & (a > -30.0)
    stepped = _airy_steps(tl.where(middle, a, 0.0))
    left = tl.where(a <= -30.0, a * -1.0, 30.0)
    z = 2.0 * left * libdevice.sqrt(left) / 3.0
    u = z * 0.0 + 1.0
    even = u
    odd = z * 0.0
    sign = 1.0
    k = 0.0
    for _ in range(6):
        k += 1.0
        u = u * (6.0 * k - 5.0) * (6.0 * k - 3.0) * (6.0 * k - 1.0) / (216.0 * k * (2.0 * k - 1.0)) / z
        odd += sign * u
        sign = -sign
        k += 1.0
        u = u * (6.0 * k - 5.0) * (6.0 * k - 3.0) * (6.0 * k - 1.0) / (216.0 * k * (2.0 * k - 1.0)) / z
        even += sign * u
    phase = z - PI / 4.0
    waves = libdevice.cos(phase) * even + libdevice.sin(phase) * odd
    waves = waves / (libdevice.sqrt(libdevice.sqrt(left)) * 1.7724538509055159)
    result = tl.where(right, decaying, tl.where(middle, stepped, tl.where(a > 120.0, 0.0, waves)))
    return tl.where((a != a) | (a == float("-inf")), float("nan"), result).to(x.dtype)
