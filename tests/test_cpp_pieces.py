"""The tables of ``piecewise.h`` for registers of 32 bytes and less, made again: polynomials at Chebyshev's nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

import reference_backends.cpp_cpu as cpp_cpu

PIECES = 8
FITS: dict[str, tuple[Callable[[Any], Any], float, int]] = {
    "TANH": (mpmath.tanh, 1.25, 10),
    "ERF": (mpmath.erf, 0.53125, 7),
}
"""Function, width of a piece, degree."""


def coefficients(function: Callable[[Any], Any], width: float, degree: int) -> list[list[float]]:
    """By powers of the distance to ``k`` widths, of each piece ``k``; the first of (function - x) / x, for positive x alone."""
    half = mpmath.mpf(width) / 2
    columns = []
    for k in range(PIECES):
        count = degree + (k > 0)
        places = [half * mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
        if k == 0:
            places = [(half + x) / 2 for x in places]
        values = [function(k * mpmath.mpf(width) + x) if k else (function(x) - x) / x for x in places]
        matrix = mpmath.matrix([[x**j for j in range(count)] for x in places])
        found = list(mpmath.lu_solve(matrix, mpmath.matrix(values)))
        columns.append(found if k else [mpmath.mpf(0), *found])
    return [[float(np.float32(float(column[j]))) for column in columns] for j in range(degree + 1)]


def text_of(name: str) -> str:
    """The table as the header has it."""
    function, width, degree = FITS[name]
    with mpmath.workdps(40):
        rows = coefficients(function, width, degree)
    lines = ["  {" + ", ".join(f"{np.float32(x)!s}f" for x in row) + "}," for row in rows]
    return "\n".join(
        (f"static const float {name}_WIDTH = {width}f;", f"static const Pieces<{degree}> {name}_PIECES = {{", *lines, "};")
    )


@pytest.mark.parametrize("name", FITS)
def test_tables_of_eight_pieces(name: str) -> None:
    header = (Path(cpp_cpu.__file__).parent / "piecewise.h").read_text()
    (found,) = re.findall(rf"^static const float {name}_WIDTH = {FITS[name][1]}f;\n.*?^}};", header, re.MULTILINE | re.DOTALL)
    assert found == text_of(name)


if __name__ == "__main__":
    print("\n".join(map(text_of, FITS)))
