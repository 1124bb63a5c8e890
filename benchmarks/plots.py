"""Plots of a run: one SVG per table, no other file needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchmarks.copying import NONTEMPORAL, PLAIN
from benchmarks.machine import sentence
from benchmarks.results import Results, RowResult
from benchmarks.sections import SECTIONS, dynamic

INCHES_A_BAR = 0.16
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""Paul Tol's bright scheme, told apart by colour-blind readers too. Source: https://personal.sron.nl/~pault/"""


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes the plots; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for stem, title, rows in _groups(results):
        figure = _ratios(title, rows, results)
        written.append(_save(figure, folder / f"{stem}.svg"))
        if any(row.copies for row in rows):
            written.append(_save(_bandwidths(title, rows, results), folder / f"{stem}-bandwidth.svg"))
    return written


def _groups(results: Results) -> Iterator[tuple[str, str, list[RowResult]]]:
    for name, section in SECTIONS.items():
        rows = results.section(name)
        if name != "kernels":
            if rows:
                yield name, section.TITLE, rows
            continue
        for size, dtype in dict.fromkeys((row.mebibytes, row.dtype) for row in rows):
            chosen = [row for row in rows if (row.mebibytes, row.dtype) == (size, dtype)]
            yield f"{name}-{size}-{dtype}", f"{section.TITLE}, {size} MiB, {dtype}", chosen


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    return path


def draw_gpu(name: str, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the plots of a file of `benchmarks/results/gpu`; returns their paths.

    Args:
        name: what the file names begin with.
        document: fractions of a copy, seconds, or rates, of each contestant by row.
    """
    device = f"{document['device']}, torch {document['torch']}, Triton {document['triton']}, {document['date']}"
    contestants = document.get("contestants", ())
    written = []

    def table(stem: str, title: str, rows: Mapping[str, Mapping[str, Any]], what: str) -> None:
        names = [each for each in contestants if any(each in row for row in rows.values())]
        names = names or list(dict.fromkeys(each for row in rows.values() for each in row))
        values = [[_number(row.get(each)) for row in rows.values()] for each in names]
        figure = _bars(list(rows), names, values, title, 0)
        figure.axes[0].set_xlabel(f"{what}\n{device}")
        written.append(_save(figure, folder / f"{name}-{stem}.svg"))

    for key in ("products", "forward", "backward"):
        if key in document:
            title = "Matrix products" if key == "products" else f"Attention, {key}"
            table(key, title, document[key], "TFLOP/s")
    rows = document.get("rows", {})
    first: Mapping[str, Any] = next(iter(rows.values()), {})
    if "copy GB/s" in first:
        for size in dict.fromkeys(label.rpartition(" ")[2] for label in rows):
            some = {label.rpartition(" ")[0]: row for label, row in rows.items() if label.endswith(f" {size}")}
            table(f"kernels-{size}", f"Fused kernels, {size}, {document['dtype']}", some, "fraction of a copy's bandwidth")
    elif any(isinstance(each, dict) for each in first.values()):
        times = {
            label: {each: cell["seconds"] * 1e3 for each, cell in row.items() if _number(cell.get("seconds"))}
            for label, row in rows.items()
        }
        for kind, training in (("inference", False), ("training", True)):
            some = {label: row for label, row in times.items() if ("train" in label) is training}
            if some:
                table(f"models-{kind}", f"Models, {kind}", some, "milliseconds; less is better")
    elif rows:
        times = {label: {each: time * 1e6 for each, time in row.items() if _number(time)} for label, row in rows.items()}
        table("calls", "Calls of tiny functions", times, "microseconds; less is better")
    return written


def _number(value: Any) -> float | None:
    """A figure; None for the words of one that is missing."""
    return float(value) if isinstance(value, int | float) else None


def _bars(
    labels: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float | None]], title: str, start: float
) -> Figure:
    """Grouped horizontal bars from ``start``, a group per label, a bar per name; no bar where there is no value."""
    thick = 0.8 / max(1, len(names))
    figure = Figure(figsize=(9, 1.2 + INCHES_A_BAR * len(labels) * (len(names) + 1)))
    axes = figure.subplots()
    for index, (name, column) in enumerate(zip(names, values, strict=True)):
        places = [place + (index - (len(names) - 1) / 2) * thick for place, value in enumerate(column) if value is not None]
        present = [value for value in column if value is not None]
        colour = COLOURS[index % len(COLOURS)]
        axes.barh(places, [value - start for value in present], thick, left=start, label=name, color=colour)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _labels(rows: Sequence[RowResult]) -> list[str]:
    return [row.name if row.section == "kernels" else row.label for row in rows]


def _ratios(title: str, rows: Sequence[RowResult], results: Results) -> Figure:
    names = list(dict.fromkeys(name for row in rows for name in row.contestants))
    peers = [name for name in names if name not in (results.backend, results.backend + dynamic.SUFFIX)]
    values = []
    for peer in peers:
        spreads = [row.ratio(peer, results.backend) for row in rows]
        values.append([spread.median if spread is not None else None for spread in spreads])
    figure = _bars(_labels(rows), peers, values, f"{title}: peers' figure over that of {results.backend}", 1)
    axes = figure.axes[0]
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)) if high > 5 * low else MaxNLocator(6))
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel(f"right of the line {results.backend} is ahead\n{sentence(results.machine)}")
    return figure


def _bandwidths(title: str, rows: Sequence[RowResult], results: Results) -> Figure:
    names = list(dict.fromkeys(name for row in rows for name in row.contestants))
    values = [[row.of_copy(name, PLAIN) for row in rows] for name in names]
    figure = _bars(_labels(rows), names, values, f"{title}: bandwidth as a fraction of a copy's", 0)
    axes = figure.axes[0]
    axes.axvline(1, color="black", linewidth=0.8)
    speeds = [_copy_speed(rows, kind) for kind in (PLAIN, NONTEMPORAL)]
    axes.set_xlabel(f"{', '.join(filter(None, speeds))}\n{sentence(results.machine)}")
    return figure


def _copy_speed(rows: Sequence[RowResult], kind: str) -> str:
    speeds = [row.copied_bytes / seconds / 1e9 for row in rows if row.copied_bytes for seconds in row.copies.get(kind, ())]
    return f"{kind} {sorted(speeds)[len(speeds) // 2]:.0f} GB/s" if speeds else ""
