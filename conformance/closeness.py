"""Whether a pattern's results are right: held against torch's own, which once are computed in float64 too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from conformance import roofline
from conformance.patterns import Pattern
from conformance.values import flat

Tensor = torch.Tensor

LIMITS = {torch.float32: 64.0, torch.bfloat16: 6.0, torch.float16: 8.0}
"""Largest error in units of the dtype's epsilon times (magnitude of the element + root mean square of all). Rounding to half
precision costs float32 results thousands of them."""
OFF_BY_ONE = 1e-3
"""Part of integer results that may be off by one: rounding decides them."""
PART = 1 << 17
"""Elements compared at a time, so that they stay in a cache."""
ITEMS = 64
"""Of patterns that are ``itemwise``, computed in float64 at a time."""
TINY = 1e-37
"""Added to magnitudes that are divided by."""


@dataclass
class Judge:
    """Compares results with torch's own, which once is computed in float64 too."""

    pattern: Pattern
    dtype: torch.dtype
    worst: float = 0.0
    compared: int = 0
    eager_error: float | None = None
    before: list[list[Tensor]] = field(default_factory=list)
    """What was right in earlier rounds, at the places that are read."""

    def expected(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Torch's results; the first time in float64."""
        if self.eager_error is not None or self.pattern.check is not None:
            return flat(self.pattern(*inputs))
        exact = self._exact(inputs)
        plain = flat(self.pattern(*inputs))
        self.eager_error = max(error(a, b, self.dtype)[0] for a, b in zip(plain, exact, strict=True))
        return [e.to(p.dtype) if not p.is_floating_point() else e for p, e in zip(plain, exact, strict=True)]

    def _exact(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """In float64. Independent items a few at a time, since what lies between (scores) is much larger than the results."""
        items = [torch.split(x, ITEMS if self.pattern.itemwise else max(1, len(x))) for x in inputs]
        wide = [[x.double() if x.is_floating_point() else x for x in part] for part in zip(*items, strict=True)]
        parts = [flat(self.pattern(*part)) for part in wide]
        return parts[0] if len(parts) == 1 else [torch.cat(each) for each in zip(*parts, strict=True)]

    def problem(self, results: Sequence[Tensor], inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
        """What is wrong, ``""`` when nothing is."""
        if len(results) != len(expected):
            return f"{len(results)} results, expected {len(expected)}"
        for index, (one, wanted) in enumerate(zip(results, expected, strict=True)):
            if type(one) is not Tensor:
                return f"result {index} is a {type(one).__name__}, which may compute when it is read"
            shape = f"{roofline.name(one.dtype)}{list(one.shape)}"
            if one.shape != wanted.shape or (one.dtype != wanted.dtype and wanted.dtype != torch.float64):
                return f"result {index} is {shape}, expected {list(wanted.shape)}"
        if self.pattern.check is not None:
            self.compared += 1
            return self.pattern.check(results, inputs)
        limit = LIMITS[self.dtype] + (self.eager_error or 0.0)
        for index, (one, wanted) in enumerate(zip(results, expected, strict=True)):
            found, where = error(one, wanted, self.dtype)
            self.worst = max(self.worst, found / limit)
            if not found <= limit:
                return f"result {index} is off by {found:.3g} units at {where}, allowed are {limit:.3g}"
        self.compared += 1
        return ""


def error(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> tuple[float, list[int]]:
    """The largest error of a result in the units of ``LIMITS``, and where it is. Integers may be off by one in few places."""
    if found.shape != wanted.shape or not found.numel():
        return (0.0 if found.shape == wanted.shape else math.inf), []
    parts = list(zip(torch.split(found.reshape(-1), PART), torch.split(wanted.reshape(-1), PART), strict=True))
    if not found.is_floating_point():
        steps = [(one.long() - other.long()).abs() for one, other in parts]
        most, where = max((int(each.max()), number) for number, each in enumerate(steps))
        many = sum(int((each > 0).sum()) for each in steps) > OFF_BY_ONE * found.numel() + 1
        return (math.inf if most > 1 or many else 0.0), _index(where * PART + int(steps[where].argmax()), found.shape)
    kind = torch.float64 if wanted.dtype is torch.float64 else torch.float32
    total = sum(float(other.to(kind).square().sum()) for _, other in parts)
    magnitude = math.sqrt(total / found.numel()) if math.isfinite(total) else 0.0
    worst, place = 0.0, 0
    for number, (one, other) in enumerate(parts):
        reference = other.to(kind)
        off = torch.sub(one.to(kind), reference).abs_().div_(reference.abs().add_(magnitude + TINY))
        largest, at = off.max(0)
        if not float(largest) <= worst:  # NaN too
            off = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, off.nan_to_num_(nan=math.inf))
            largest, at = off.max(0)
            worst, place = max((worst, place), (float(largest), number * PART + int(at)))
    return worst / torch.finfo(dtype).eps, _index(place, found.shape)


def _index(place: int, shape: torch.Size) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(place % size)
        place //= size
    return found[::-1]


def alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether two readings of results are of the same ones, up to rounding."""
    if len(some) != len(others) or not any(one.numel() for one in some):
        return False
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5) for a, b in zip(some, others, strict=True)
    )
