"""Charts of the report's page, as numbers for its template to draw: no network, no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 44


@dataclass(frozen=True)
class Mark:
    """A pattern on the chart: where it is, where its roof is above it, and the id of its case."""

    x: float
    y: float
    roof: float
    case: str
    title: str
    colour: str


@dataclass(frozen=True)
class Tick:
    """A line across the chart with its label."""

    at: float
    text: str


@dataclass(frozen=True)
class Roofline:
    """Logarithmic both ways. ``roof`` are the points of a line."""

    marks: Sequence[Mark]
    roof: str
    across: Sequence[Tick]
    up: Sequence[Tick]
    bandwidth: str
    peak: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


COLOURS = {"pass": "good", "slow": "bad", "inconclusive": "known"}


def bars(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Patterns with the part of the roofline that they reach at their large size, the least first."""
    found = [
        {
            "case": entry["id"], "name": entry["prim"], "colour": COLOURS.get(entry["verdict"], "bad"),
            **{key: min(1.2, size["fraction"][key]) for key in ("median", "low", "high")},
            "text": f"{size['fraction']['median']:.0%}", "limit": entry["performance"]["limit"],
        }
        for entry in entries
        for size in (entry["performance"] or {}).get("sizes", ())
        if size["label"] == "large" and size["fraction"]
    ]  # fmt: skip
    return sorted(found, key=lambda bar: bar["median"])


def roofline(entries: Sequence[Mapping[str, Any]]) -> Roofline | None:
    """Operations a byte across, operations a second up, the measured copy and product as the roof.

    Operations are those of products, and one of every other prim for each element that it reads or makes.
    """
    large = [
        (entry, size)
        for entry in entries
        for size in (entry["performance"] or {}).get("sizes", ())
        if size["label"] == "large" and size["seconds"]
    ]
    products = [(entry, size) for entry, size in large if size["flops"]]
    if not large:
        return None
    bandwidth = median(size["copy_bytes_per_second"] for _, size in large)
    peak = median(size["product_flops_per_second"] for _, size in products) if products else 0.0
    points = []
    for entry, size in large:
        work = size["operations"]
        points.append((entry, size, work / size["bytes"], work / size["seconds"]["median"]))
    ceiling = peak or max(point[3] for point in points) * 2
    low_x, high_x = min(p[2] for p in points) / 3, max(max(p[2] for p in points) * 3, 4 * ceiling / bandwidth)
    low_y, high_y = min(p[3] for p in points) / 3, 2 * max(ceiling, *(p[3] for p in points))

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low_x) / math.log(high_x / low_x)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * math.log(value / low_y) / math.log(high_y / low_y)

    marks = [
        Mark(
            round(across(intensity), 1),
            round(up(rate), 1),
            round(up(min(bandwidth * intensity, ceiling)), 1),
            entry["id"],
            f"{entry['id']}: {size['fraction']['median']:.0%} of the roofline, {1e3 * size['seconds']['median']:.3g} ms",
            COLOURS.get(entry["verdict"], "bad"),
        )
        for entry, size, intensity, rate in points
    ]
    corners = [low_x, ceiling / bandwidth, high_x]
    roof = " ".join(f"{across(x):.1f},{up(max(low_y, min(bandwidth * x, ceiling))):.1f}" for x in corners)
    return Roofline(
        marks,
        roof,
        [Tick(round(across(v), 1), _power(v)) for v in _decades(low_x, high_x)],
        [Tick(round(up(v), 1), _power(v / 1e9)) for v in _decades(low_y, high_y)],
        f"{bandwidth / 1e9:.3g} GB/s",
        f"{peak / 1e9:.4g} GFLOP/s" if peak else "",
    )


def _decades(low: float, high: float) -> list[float]:
    return [10.0**e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _power(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}"
