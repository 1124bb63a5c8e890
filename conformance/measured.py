"""What was measured of a pattern or of a model, as the page shows it of one: each number with what it is held against, and
every round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.console import percent, times
from conformance.levels import LEAST_EACH, LEAST_FRACTION
from conformance.models import BACKEND
from conformance.performance import FASTEST

MIB = 1 << 20
ROOM = 3.0
"""Of a chart's width, in percent, on both sides."""


@dataclass(frozen=True)
class Contestant:
    """The rounds of one contestant: where they are on an axis that all share, in percent of its width, and in words."""

    name: str
    rounds: Sequence[float]
    quartiles: tuple[float, float, float]
    text: str


@dataclass(frozen=True)
class Part:
    """A size of a pattern, or inference or training of a model.

    Attributes:
        label: which.
        gate: whether it is fast enough: ``pass``, ``fail``, ``inconclusive``.
        facts: what was measured, by name.
        contestants: those that took turns.
    """

    label: str
    gate: str
    facts: Sequence[tuple[str, str]]
    contestants: Sequence[Contestant]


def parts(entry: Mapping[str, Any]) -> list[Part]:
    """What was measured of an entry; nothing of prims, nor where the worker process ended."""
    measured = entry["performance"] or {}
    return [
        *(_part(size, _of_size(size, measured["limit"])) for size in measured.get("sizes", ())),
        *(_part(part, _of_model(part)) for part in measured.get("parts", ())),
    ]


def _part(found: Mapping[str, Any], facts: Mapping[str, str]) -> Part:
    taken = {"time": _time(found), **facts}
    shown = [(name, text) for name, text in taken.items() if text]
    return Part(found["label"], found["gate"], shown, _contestants(found.get("rounds", {})))


def _of_size(size: Mapping[str, Any], limit: str) -> dict[str, str]:
    return {
        "of the roofline": _roofline(size, limit),
        "over its prims one by one": times(size["unfused"]) and f"{times(size['unfused'])}, gate {size['gate']}",
        "kernels": _count(size["kernels"]),
        "bytes that must move": _rate(size, "bytes", "copy_bytes_per_second", "B", "a copy"),
        "products": _rate(size, "flops", "product_flops_per_second", "FLOP", "a product") if size["flops"] else "",
        "peak memory": _bytes(size["peak_bytes"]),
        "size": _dimensions(size),
        "recompilations": str(size["recompiles"]),
        "results compared": str(size["verified_results"]),
        "counters": ", ".join(f"{name} {count}" for name, count in size["counters"].items()),
    }  # fmt: skip


def _of_model(part: Mapping[str, Any]) -> dict[str, str]:
    hosted = f": {', '.join(part['host_prims'])}" if part["host_prims"] else ""
    return {
        "over eager": times(part["speedup"]) and f"{times(part['speedup'])}, gate {part['gate']}",
        "kernels": _count(part["kernels"]),
        "graphs": _count(part["graphs"]),
        "graph breaks": str(part["graph_breaks"]),
        "recompilations": str(part["recompiles"]),
        "nodes on the host": f"{part['host_nodes']}{hosted}",
        "peak memory": _bytes(part["peak_bytes"]),
        "results compared": str(part["verified_results"]),
        "loss": _losses(part["losses"]),
    }


def _time(found: Mapping[str, Any]) -> str:
    if not found["seconds"]:
        return ""
    own = found.get("rounds", {})
    rounds = own.get(FASTEST) or own.get(BACKEND) or []
    median = f"{_seconds(found['seconds']['median'])} in the median"
    if not rounds:
        return median
    low, _, high = _quartiles(rounds)
    return f"{median}, quartiles {_seconds(low)} and {_seconds(high)}, {len(rounds)} rounds"


def _roofline(size: Mapping[str, Any], limit: str) -> str:
    if not size["fraction"]:
        return ""
    gate = f"the mean of all patterns needs {LEAST_FRACTION[size['label']]:.0%}"
    if size["label"] == "large":
        reached = size["fraction"]["median"] >= LEAST_EACH
        gate = f"{LEAST_EACH:.0%} are needed: {'met' if reached else 'not met'}; {gate}"
    return f"{percent(size['fraction'])}, limited by {limit}; {gate}"


def _rate(size: Mapping[str, Any], amount: str, yardstick: str, unit: str, what: str) -> str:
    said = _scaled(size[amount], unit)
    if size["seconds"]:
        said += f", {_scaled(size[amount] / size['seconds']['median'], unit)}/s"
    return said + (f"; {what} has {_scaled(size[yardstick], unit)}/s" if size[yardstick] else "")


def _losses(losses: Sequence[Sequence[float | None]]) -> str:
    if not losses:
        return ""
    (first, _), (last, eager) = losses[0], losses[-1]
    ends = ["not finite" if each is None else f"{each:.4g}" for each in (first, last, eager)]
    return f"{ends[0]} at first, {ends[1]} after {len(losses)} steps (eager {ends[2]})"


def _contestants(rounds: Mapping[str, Sequence[float]]) -> list[Contestant]:
    every = [each for seconds in rounds.values() for each in seconds if each > 0]
    if not every:
        return []
    low, high = math.log(min(every)), math.log(max(every))

    def place(seconds: float) -> float:
        part = (math.log(seconds) - low) / (high - low) if high > low else 0.5
        return round(ROOM + (100 - 2 * ROOM) * part, 1)

    made = []
    for name, seconds in sorted(rounds.items(), key=lambda each: each[0] not in (FASTEST, BACKEND)):
        positive = [each for each in seconds if each > 0]
        if positive:
            first, middle, third = _quartiles(positive)
            made.append(
                Contestant(name, [*map(place, positive)], (place(first), place(middle), place(third)), _seconds(middle))
            )
    return made


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, middle, third


def _seconds(value: float) -> str:
    unit, name = next((each for each in ((1.0, "s"), (1e-3, "ms")) if value >= each[0]), (1e-6, "µs"))
    return f"{value / unit:.3g} {name}"


def _scaled(value: float, unit: str) -> str:
    power = min(4, max(0, int(math.log10(value)) // 3)) if value >= 1 else 0
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}{unit}"


def _bytes(value: int | None) -> str:
    return "" if value is None else f"{value / MIB:.4g} MiB"


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _dimensions(size: Mapping[str, Any]) -> str:
    factors = f", factors of {size['edge']} by {size['edge']}" if size["edge"] else ""
    return f"{size['rows']} by {size['columns']}{factors}"
