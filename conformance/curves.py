"""Error against input: of a prim of one floating tensor that is called with inputs of its whole range, the largest error in
each part of that range.

The parts are the values whose bit patterns have the same upper byte, in the order of the values: 256 whatever the dtype, each
a quarter of a binade of float16, two binades of bfloat16 and of float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

from conformance.exhibit import number
from conformance.judge import Expectation, compared
from conformance.subnormals import NOWHERE, Flushing
from vendor_sdk import EVERYWHERE, Row, Sample

PARTS = 256
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Curve = Sequence[float | None]
"""By part, from the lowest values to the highest: the largest error in units of the bound; ``None`` where no input lies."""


def curve(
    row: Row,
    sample: Sample,
    expectation: Expectation,
    tensors: Sequence[torch.Tensor],
    flushing: Flushing = NOWHERE,
) -> Curve | None:
    """Of a call with inputs everywhere; ``None`` for other calls, and where results are exact or several.

    Args: as of ``judge``, of results whose shapes and dtypes are right.
    """
    operand = sample.args[0] if sample.label == EVERYWHERE else None
    if not isinstance(operand, torch.Tensor) or str(operand.dtype).removeprefix("torch.") not in CODES:
        return None
    result, *others = compared(row, sample, expectation, tensors, flushing)
    if others or result is None or result.allowed is None or result.errors.shape != operand.shape:
        return None
    told = ~operand.isnan()
    errors = torch.full((PARTS,), -1.0, dtype=torch.float64)
    errors.scatter_reduce_(0, part_of(operand)[told], result.errors.to(torch.float64)[told], "amax")
    return [None if error < 0 else error for error in errors.tolist()]


def part_of(values: torch.Tensor) -> torch.Tensor:
    """In which part each of ``values``, floating, lies: int64 of their shape."""
    width = values.dtype.itemsize
    upper = values.contiguous().view(BITS[width]).to(torch.int64) >> (8 * width - 8)  # -128 to -1 where the sign is set
    return torch.where(upper >= 0, upper + PARTS // 2, -1 - upper)


def larger(one: Curve | None, other: Curve | None) -> Curve | None:
    """Of two calls, the larger error in each part."""
    if one is None or other is None:
        return one if other is None else other
    return [b if a is None else a if b is None else max(a, b) for a, b in zip(one, other, strict=True)]


def record(found: Curve | None) -> list[float | str | None] | None:
    """As the report has it, in two digits."""
    if found is None:
        return None
    return [None if e is None else number(float(f"{e:.2g}")) for e in found]


CODES = {"float16": ("<e", 1), "bfloat16": ("<f", 3), "float32": ("<f", 3), "float64": ("<d", 7)}
"""Format of ``struct`` for a value of the dtype, or for one with the same upper byte, and where that byte stands."""


def edges(dtype: str) -> list[float]:
    """The least magnitude of each part of the positive values, and the infinite one behind them: 129 numbers, with those of
    NaN infinite too. The parts of negative values have the same, the other way round."""
    code, place = CODES[dtype]
    found = []
    for byte in range(PARTS // 2):
        pattern = bytearray(place + 1)
        pattern[place] = byte
        (value,) = struct.unpack(code, bytes(pattern))
        found.append(math.inf if math.isnan(value) else value)
    return [*found, math.inf]
