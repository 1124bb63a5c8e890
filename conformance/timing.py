"""Time, as the suite takes it: its own clock, the device waited for, outputs read before the clock stops, every answer checked.

Contestants take turns, in random order, on inputs that were never seen before, so that what disturbs the machine disturbs
all, and whoever answers from memory is wrong. What is said of two contestants is said of pairs of the same round.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from conformance.values import flat
from vendor_sdk import without_collections

Tensor = torch.Tensor

_clock = time.perf_counter
"""As it was before any plugin was imported."""

PROBES = 64
"""Elements of each output that are read before the clock stops; the last one is among them."""
RESAMPLES = 2000
"""Of the bootstrap."""
CONFIDENCE = 0.95
SETTLE_SECONDS, SETTLE_LIMIT = 0.002, 0.1
"""Before each sample: worker threads of the call before may still spin. So many seconds at a time, and at most so many,
until the process is idle."""


@dataclass(frozen=True)
class Interval:
    """A median with what the bootstrap says of it, from ``low`` to ``high`` with a confidence of 95 %."""

    median: float
    low: float
    high: float

    def record(self) -> dict[str, float]:
        """As it stands in a report."""
        return {"median": _digits(self.median), "low": _digits(self.low), "high": _digits(self.high)}


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Of the median of ``values``, by resampling (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13)."""
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(statistics.median(values), float(low), float(high))


def at_least(found: Interval, limit: float) -> str:
    """``pass`` when the interval is on the right side of ``limit``, ``fail`` when it is on the wrong one, else
    ``inconclusive``."""
    if found.low >= limit:
        return "pass"
    return "fail" if found.high < limit else "inconclusive"


@dataclass(frozen=True)
class Timed:
    """One sample: seconds a call, all results, and the elements of them that were read before the clock stopped."""

    seconds: float
    results: list[list[Tensor]]
    seen: list[list[Tensor]]


def timed(
    call: Callable[..., Any], sets: Sequence[Sequence[Tensor]], synchronize: Callable[[], None], places: Mapping[Any, Any]
) -> Timed:
    """Calls once for each set of inputs. The clock stops when elements of all results have reached the host.

    Args:
        call: returns a tensor or a sequence of them.
        sets: inputs of each call.
        synchronize: waits for the device.
        places: shape to where results of it are read, as ``probes`` gives it.
    """
    _settle()
    synchronize()
    with without_collections():
        start = _clock()
        results = [flat(call(*inputs)) for inputs in sets]
        synchronize()
        seen = [[read(tensor, places) for tensor in tensors] for tensors in results]
        seconds = (_clock() - start) / len(sets)
    return Timed(seconds, results, seen)


def probes(shapes: Sequence[torch.Size], generator: random.Random, device: torch.device) -> dict[torch.Size, Any]:
    """Where to read tensors of these shapes: an index that picks ``PROBES`` elements at random, and the last one."""
    places: dict[torch.Size, Any] = {}
    for shape in shapes:
        if 0 in shape:
            continue
        chosen = [tuple(generator.randrange(size) for size in shape) for _ in range(PROBES - 1)]
        chosen.append(tuple(size - 1 for size in shape))
        places[shape] = tuple(torch.tensor(axis, device=device) for axis in zip(*chosen, strict=True))
    return places


def read(tensor: Tensor, places: Mapping[Any, Any]) -> Tensor:
    """The elements at the places of its shape, on the host; all of a tensor of one element, none where no place is known."""
    if not isinstance(tensor, Tensor) or tensor.shape not in places:
        return torch.empty(0)
    index = places[tensor.shape]
    return (tensor[index] if index else tensor.detach().clone()).cpu()


@dataclass
class Race:
    """Samples of contestants, round by round.

    Attributes:
        seconds: of each contestant, one entry a round in which all that take part gave one.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, found: Mapping[str, float]) -> None:
        """A finished round."""
        for name, seconds in found.items():
            self.seconds.setdefault(name, []).append(seconds)

    def ratio(self, name: str, other: str, factor: float = 1.0) -> Interval:
        """Of the time of ``name`` to that of ``other`` in the same round, times ``factor``."""
        return interval([factor * a / b for a, b in zip(self.seconds[name], self.seconds[other], strict=True)])

    def rounds(self) -> dict[str, list[float]]:
        """All of it, as it stands in a report."""
        return {name: [_digits(each) for each in seconds] for name, seconds in self.seconds.items()}

    def spread(self, name: str) -> float:
        """Interquartile range of its times, in parts of the median."""
        low, middle, high = np.quantile(self.seconds[name], [0.25, 0.5, 0.75])
        return float((high - low) / middle)


def _settle() -> None:
    end = _clock() + SETTLE_LIMIT
    while True:
        busy, start = time.process_time(), _clock()
        time.sleep(SETTLE_SECONDS)
        if time.process_time() - busy <= 0.1 * (_clock() - start) or start > end:
            return


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
