"""The tables of ``wide.h`` and ``gammas.h`` made again, polynomials at Chebyshev's nodes; the functions that they serve."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp
import pytest
import torch

import reference_backends.cpp_cpu as cpp_cpu
from tests.toys import use_kind

Tensor = torch.Tensor


def of_root(function: Callable[[Any], Any], at_zero: Any) -> Callable[[Any], Any]:
    """``function(sqrt(z))``, where that is whole."""
    return lambda z: function(mp.sqrt(z)) if z > mp.mpf(10) ** -30 else at_zero


def far(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function(1 / sqrt(w))``."""
    return lambda w: function(1 / mp.sqrt(w))


def stirling(x: Any) -> Any:
    return x * (mp.loggamma(x) - (x - mp.mpf("0.5")) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)


def erfinv_factor(w: Any) -> Any:
    """``erfinv(x) / x`` at the positive x of which ``w = -log(1 - x**2)``."""
    start = mp.sqrt(w) * mp.sqrt(mp.pi) / 2 if w < 3 else mp.sqrt(w - mp.log(w) / 2 - mp.mpf("0.5"))
    y = mp.findroot(lambda y: -mp.log(mp.erfc(y)) - mp.log(2 - mp.erfc(y)) - w, start)
    return y / mp.erf(y)


EIGHTH = mp.tan(mp.pi / 8)
FITS: dict[str, tuple[str, Callable[[Any], Any], Any, Any, int]] = {
    "LOG": ("wide.h", of_root(lambda s: 2 * mp.atanh(s) / s, 2), 0, (3 - 2 * mp.sqrt(2)) ** 2, 7),
    "EXP": (
        "wide.h",
        lambda r: (mp.exp(r) - 1 - r) / r**2 if abs(r) > mp.mpf(10) ** -9 else mp.mpf("0.5") + r / 6,
        -mp.log(2) / 2,
        mp.log(2) / 2,
        9,
    ),
    "SINE": ("wide.h", of_root(lambda r: mp.sin(r) / r, 1), 0, (mp.pi / 4) ** 2, 6),
    "COSINE": ("wide.h", of_root(mp.cos, 1), 0, (mp.pi / 4) ** 2, 7),
    "ASIN": ("wide.h", of_root(lambda y: mp.asin(y) / y, 1), 0, mp.mpf("0.25"), 9),
    "ATAN": ("wide.h", of_root(lambda t: mp.atan(t) / t, 1), 0, EIGHTH**2, 8),
    "SINH": ("wide.h", of_root(lambda x: mp.sinh(x) / x, 1), 0, 1, 6),
    "GAMMA": ("gammas.h", lambda t: (mp.gamma(2 + t) - 1 - t) / (t * (t - 1)), 0, 1, 13),
    "STIRLING": ("gammas.h", far(stirling), 0, mp.mpf(1) / 16, 7),
    "DIGAMMA": ("gammas.h", far(lambda y: (mp.log(y) - 1 / (2 * y) - mp.digamma(y)) * y**2), 0, mp.mpf(1) / 16, 8),
    "TRIGAMMA": ("gammas.h", far(lambda y: (mp.psi(1, y) - 1 / y - 1 / (2 * y**2)) * y**3), 0, mp.mpf(1) / 16, 7),
    "SINE_PI": ("gammas.h", of_root(lambda r: mp.sin(mp.pi * r) / r, mp.pi), 0, mp.mpf("0.25"), 8),
    "COSINE_PI": ("gammas.h", of_root(lambda r: mp.cos(mp.pi * r), 1), 0, mp.mpf("0.25"), 9),
    "ERFINV_NEAR": ("gammas.h", lambda u: erfinv_factor(u + mp.mpf("2.5")), mp.mpf("-2.5"), mp.mpf("2.5"), 12),
    "ERFINV_FAR": ("gammas.h", lambda u: erfinv_factor(1 / u**2) * u, 1 / mp.sqrt(17), 1 / mp.sqrt(5), 12),
    "ERFINV_FARTHER": ("gammas.h", lambda u: erfinv_factor(1 / u**2) * u, 1 / mp.sqrt(104), 1 / mp.sqrt(17), 10),
}
"""File, function, interval, number of coefficients."""


def coefficients(function: Callable[[Any], Any], low: Any, high: Any, count: int) -> list[float]:
    middle, half = (mp.mpf(high) + low) / 2, (mp.mpf(high) - low) / 2
    places = [middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    matrix = mp.matrix([[x**j for j in range(count)] for x in places])
    return [float(x) for x in mp.lu_solve(matrix, mp.matrix([function(x) for x in places]))]


def text_of(name: str) -> str:
    """The table as the header has it."""
    _, function, low, high, count = FITS[name]
    with mp.workdps(40):
        numbers = [repr(x) for x in coefficients(function, low, high, count)]
    rows = [", ".join(numbers[i : i + 5]) for i in range(0, count, 5)]
    return f"static const double {name}[] = {{\n    " + ",\n    ".join(rows) + "};"


@pytest.mark.parametrize("name", FITS)
def test_tables(name: str) -> None:
    header = (Path(cpp_cpu.__file__).parent / FITS[name][0]).read_text()
    (found,) = re.findall(rf"^static const double {name}\[\] = {{\n.*?}};", header, re.MULTILINE | re.DOTALL)
    assert found == text_of(name)


def trigamma(x: Any) -> Any:
    return mp.psi(1, x)


def ndtri(p: Any) -> Any:
    """From the nearer end."""
    x = mp.sqrt(2) * mp.erfinv(2 * p - 1) if 0.01 < p < 0.99 else None
    if x is None:
        tail = min(p, 1 - p)
        start = -mp.sqrt(-2 * mp.log(tail)) + mp.mpf("0.3")
        x = mp.findroot(lambda x: mp.log(mp.erfc(-x / mp.sqrt(2)) / 2) - mp.log(tail), start)
        x = x if p < 0.5 else -x
    return x


Domain = tuple[float, float]
LINE, WHOLE = (-math.inf, math.inf), (-300.0, math.inf)
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any], Domain]] = {
    "tan": (torch.tan, mp.tan, (-(2.0**20), 2.0**20)),
    "asin": (torch.asin, mp.asin, (-1, 1)),
    "acos": (torch.acos, mp.acos, (-1, 1)),
    "atan": (torch.atan, mp.atan, LINE),
    "sinh": (torch.sinh, mp.sinh, (-91, 91)),
    "cosh": (torch.cosh, mp.cosh, (-91, 91)),
    "asinh": (torch.asinh, mp.asinh, LINE),
    "acosh": (torch.acosh, mp.acosh, (1, math.inf)),
    "atanh": (torch.atanh, mp.atanh, (-1, 1)),
    "lgamma": (torch.lgamma, lambda x: mp.log(abs(mp.gamma(x))) if x < 100 else mp.loggamma(x), WHOLE),
    "digamma": (torch.digamma, mp.digamma, WHOLE),
    "trigamma": (lambda x: torch.polygamma(1, x), trigamma, WHOLE),
    "erfinv": (torch.erfinv, mp.erfinv, (-1, 1)),
    "ndtri": (torch.special.ndtri, ndtri, (0, 1)),
}
"""Function, its definition, where it has finite values but at whole numbers and ends."""
POINTS = [
    0.5,
    1.0,
    1.4616321,
    2.0,
    3.0,
    4.0,
    -2.4570248,
    -0.5040830,
    0.41421357,
    2.4142137,
    0.0078125,
    1e-30,
    1e-41,
    0.9983053,
    88.9,
]
"""Where the result is zero, where one formula follows another, and numbers without digits before them."""


def arguments(domain: Domain) -> Tensor:
    """Of all magnitudes in the domain, and beside what is particular."""
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(0x7F800000, (300,), generator=generator).int().view(torch.float32)
    near = torch.tensor(POINTS).view(torch.int32)[:, None] + torch.arange(-2, 3, dtype=torch.int32)
    spread = torch.cat((torch.rand(400, generator=generator), 10 * torch.rand(300, generator=generator)))
    x = torch.cat((bits, near.flatten().view(torch.float32), spread, 1 - bits[bits < 1]))
    x = torch.cat((x, -x))
    return x[(x > domain[0]) & (x < domain[1]) & ((x != x.round()) | (x > 0))]


def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, backend=use_kind("cpp_cpu"), dynamic=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nearly_all_are_rounded_once(name: str) -> None:
    function, exact, domain = FUNCTIONS[name]
    x = arguments(domain)
    found = compiled(function)(x)
    largest, smallest = torch.finfo(torch.float32).max, 2.0**-149
    for argument, result in zip(x.tolist(), found.tolist(), strict=True):
        with mp.workdps(60):
            wanted = exact(mp.mpf(argument))
            if abs(wanted) > largest:
                assert abs(result) >= largest, argument
                assert (result > 0) == (wanted > 0), argument
                continue
            unit = max(mp.mpf(2) ** (mp.floor(mp.log(abs(wanted), 2)) - 23), smallest) if wanted else smallest
            # Beside zeros elsewhere than at zero float64's digits end.
            assert abs(result - wanted) <= 0.52 * unit + 2.0**-50 * (abs(wanted) < 1e-6 < abs(argument)), (
                argument,
                result,
                float(wanted),
            )


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    3.0,
    -7.0,
    90.5,
    -90.5,
    3e38,
    -3e38,
    1e-45,
    -1e-45,
    math.inf,
    -math.inf,
    math.nan,
    -8388609.0,
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_torch(name: str) -> None:
    function, _, _ = FUNCTIONS[name]
    x = torch.tensor(SPECIAL)
    if name == "trigamma":  # of whole numbers left of zero torch's is finite, by the sine of a rounded multiple of pi
        x = x[~(x.signbit() & (x == x.round()))]
    found, wanted = compiled(function)(x), function(x.double()).float()
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=0, equal_nan=True)
    known = ~wanted.isnan()
    assert torch.equal(found[known].signbit(), wanted[known].signbit())


@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_two_operands(name: str) -> None:
    function = getattr(torch, name)
    values = torch.tensor(
        [*SPECIAL, *torch.randn(40).tolist(), *(torch.randn(20) * 1e-40).tolist(), *(torch.randn(20) * 1e38).tolist()]
    )
    x, y = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    torch._dynamo.reset()
    found = torch.compile(function, backend=use_kind("cpp_cpu"), dynamic=False)(x, y)
    wanted = function(x.double(), y.double()).float()
    # Rounded twice, the wanted one may be the neighbour.
    torch.testing.assert_close(found, wanted, rtol=1.3e-7, atol=2.0**-149, equal_nan=True)
    assert torch.equal(found.signbit()[~wanted.isnan()], wanted.signbit()[~wanted.isnan()])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectors_give_what_single_numbers_give(name: str) -> None:
    function, _, _ = FUNCTIONS[name]
    x = torch.cat((arguments(LINE), torch.tensor(SPECIAL)))
    x = x[: len(x) // 3 * 3]
    call = compiled(function)
    single = call(x.view(-1, 3).repeat(1, 2)[:, :3])
    torch.testing.assert_close(call(x), single.flatten(), rtol=0, atol=0, equal_nan=True)


if __name__ == "__main__":
    print("\n".join(map(text_of, FITS)))
