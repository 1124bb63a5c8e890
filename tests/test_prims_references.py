"""The references of functions of one element, against mpmath with 200 bits: a reference that errs would fail what is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from vendor_sdk.prims.bounds import Ulp, allowances
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Effort, SampleContext

mpmath = pytest.importorskip("mpmath")
mp = mpmath.mp

VALUES = 40
"""Compared of each sample."""
LARGE = 1e6
"""From here on mpmath does not compute erfc, and two terms of its series are enough."""
SAME_NAME = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf", "erfinv", "exp", "expm1"),
    *("log", "log10", "log1p", "sin", "sinh", "tan", "tanh"),
)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(mp, name) for name in SAME_NAME},
    "erfc": lambda x: mp.erfc(x) if x < LARGE else mp.mpf(0),
    "exp2": lambda x: mp.mpf(2) ** x,
    "i0": lambda x: mp.besseli(0, x),
    "lgamma": lambda x: mp.loggamma(x).real,
    "log2": lambda x: mp.log(x, 2),
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "special_airy_ai": mp.airyai,
    "special_bessel_j0": lambda x: mp.besselj(0, x),
    "special_bessel_j1": lambda x: mp.besselj(1, x),
    "special_bessel_y0": lambda x: mp.bessely(0, x),
    "special_bessel_y1": lambda x: mp.bessely(1, x),
    "special_erfcx": lambda x: mp.erfc(x) * mp.exp(x * x) if x < LARGE else (1 - 1 / (2 * x * x)) / (x * mp.sqrt(mp.pi)),
    "special_i0e": lambda x: mp.besseli(0, x) * mp.exp(-abs(x)),
    "special_i1": lambda x: mp.besseli(1, x),
    "special_i1e": lambda x: mp.besseli(1, x) * mp.exp(-abs(x)),
    "special_modified_bessel_k0": lambda x: mp.besselk(0, x),
    "special_modified_bessel_k1": lambda x: mp.besselk(1, x),
    "special_scaled_modified_bessel_k0": lambda x: mp.besselk(0, x) * mp.exp(x),
    "special_scaled_modified_bessel_k1": lambda x: mp.besselk(1, x) * mp.exp(x),
    "special_spherical_bessel_j0": lambda x: mp.sin(x) / x if x else mp.mpf(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_reference_takes_at_most_half_of_what_its_bound_allows(name: str) -> None:
    """In float64, where a reference is no more precise than a result; in float32 it has 29 bits more."""
    row, exact = OPSET[name], FUNCTIONS[name]
    assert isinstance(row.bound, Ulp)
    compared, largest = 0, torch.finfo(torch.float64).max
    with mpmath.workprec(200):
        for sample in row.samples(SampleContext.make(torch.float64, Effort.STANDARD)):
            x = sample.args[0].reshape(-1)[:VALUES]
            (expected,) = reference(row, replace(sample, args=(x,)))
            (allowed,) = allowances(row.bound, row, sample, (expected,))
            assert allowed is not None
            for value, found, room in zip(x.tolist(), expected.value.tolist(), allowed.tolist(), strict=True):
                if not (math.isfinite(value) and math.isfinite(found)):
                    continue
                right = exact(mp.mpf(value))
                assert abs(max(min(right, largest), -largest) - found) <= 0.5 * room, f"{name}({value!r}) is not {found!r}"
                compared += 1
    assert compared > VALUES
