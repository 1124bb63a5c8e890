"""The tables: on the terminal with rich, in documentation as Markdown; both from the same cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.copying import NONTEMPORAL, PLAIN
from benchmarks.machine import sentence
from benchmarks.results import BYTES, Results, RowResult, Spread, State, geometric_mean
from benchmarks.sections import SECTIONS, dynamic
from benchmarks.targets import Outcome, outcomes

BARELY = 0.97
"""A peer wins a row when the ratio is below this: closer is a draw."""
STYLES = {"wins": "red", "draw": "yellow", "ahead": "green", "failed": "bold red"}


@dataclass(frozen=True)
class Grid:
    """A table as text.

    Attributes:
        title: above it.
        head: column headings; all but the first are right-aligned.
        lines: cells, and the style of each line (a key of ``STYLES`` or empty).
        notes: below it: why there are no figures somewhere.
    """

    title: str
    head: list[str]
    lines: list[tuple[list[str], str]]
    notes: list[str]


def grids(results: Results) -> Iterator[Grid]:
    """One per section with rows; kernels one per size and dtype; the targets at the end."""
    for name, section in SECTIONS.items():
        rows = results.section(name)
        groups = dict.fromkeys((row.mebibytes, row.dtype) for row in rows) if name == "kernels" else {None: None}
        for group in groups:
            chosen = [row for row in rows if group is None or (row.mebibytes, row.dtype) == group]
            if chosen:
                title = section.TITLE if group is None else f"{section.TITLE}, {group[0]} MiB, {group[1]}"
                yield _grid(title, chosen, results)
    if reached := outcomes(results):
        yield Grid("Targets", ["what", "aim", "measured", ""], [_aimed(outcome) for outcome in reached], [])


def _aimed(outcome: Outcome) -> tuple[list[str], str]:
    unit = outcome.target.unit
    cells = [outcome.target.text, _figure(outcome.target.aim, unit), _figure(outcome.figure, unit)]
    return ([*cells, "reached"], "ahead") if outcome.reached else ([*cells, "missed"], "wins")


def legend(backend: str) -> str:
    """How to read the columns."""
    return (
        f"Medians over rounds, quartiles in brackets. `x peer`: the peer's figure over that of {backend} in the same round; "
        f"{backend} is ahead above 1. `of copy`: bytes that must move, over time, as a fraction of what a copy reached then."
    )


def show(results: Results, console: Console) -> None:
    """Prints machine, tables, notes."""
    console.print(sentence(results.machine), highlight=False)
    console.print(legend(results.backend), highlight=False)
    for grid in grids(results):
        table = Table(title=grid.title, title_justify="left", title_style="bold")
        for index, heading in enumerate(grid.head):
            table.add_column(heading, justify="left" if index == 0 else "right")
        for cells, style in grid.lines:
            table.add_row(*(Text(cell) for cell in cells), style=STYLES.get(style))
        console.print(table)
        for note in grid.notes:
            console.print(note, markup=False, highlight=False)


def markdown(results: Results) -> str:
    """The same tables in Markdown, without styles."""
    parts = []
    for grid in grids(results):
        lines = [f"### {grid.title}", "", _line(grid.head), _line([":--", *["--:"] * (len(grid.head) - 1)])]
        lines += [_line(cells) for cells, _ in grid.lines]
        if grid.notes:
            lines += ["", *(f"- {note}" for note in grid.notes)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _grid(title: str, rows: Sequence[RowResult], results: Results) -> Grid:
    names = list(dict.fromkeys(name for row in rows for name in row.contestants))
    backend, peers = results.backend, [name for name in names if name != results.backend]
    kinds = [kind for kind in (PLAIN, NONTEMPORAL) if any(row.of_copy(backend, kind) is not None for row in rows)]
    head = ["", *names, *(f"x {peer}" for peer in peers), *(f"of {kind}" for kind in kinds), "best"]
    lines: list[tuple[list[str], str]] = []
    notes: list[str] = []
    for row in rows:
        ratios = [row.ratio(peer, backend) for peer in peers]
        shares = [row.of_copy(backend, kind) for kind in kinds]
        word, style = _winner(row, backend, peers)
        cells = [_name(row)]
        cells += [_sampled(row, name) for name in names]
        cells += [_ratio(ratio) for ratio in ratios]
        cells += [f"{share:.0%}" if share is not None else "" for share in shares]
        lines.append(([*cells, word], style))
        notes += _notes(row)
    if len(rows) > 1:
        means = [_mean(rows, peer, backend) for peer in peers]
        lines.append((["geometric mean", *[""] * len(names), *means, *[""] * len(kinds), ""], ""))
    return Grid(title, head, lines, list(dict.fromkeys(notes)))


def _name(row: RowResult) -> str:
    return row.label if row.section != "kernels" else row.name


def _sampled(row: RowResult, name: str) -> str:
    figures = row.contestants.get(name)
    if figures is None:
        return ""
    if not row.measured(name):
        return str(figures.state) if figures.state is not State.OK else "-"
    spread, scale = figures.spread, _scale(row)
    quartiles = f" ({_short(spread.low * scale[0])}-{_short(spread.high * scale[0])})" if len(figures.samples) > 2 else ""
    return f"{_short(spread.median * scale[0])}{quartiles} {scale[1]}"


def _scale(row: RowResult) -> tuple[float, str]:
    """Factor and unit in which the whole row reads well."""
    if row.unit == BYTES:
        return 2.0**-20, "MiB"
    slowest = max((f.spread.median for f in row.contestants.values() if f.samples), default=1.0)
    return (1.0, "s") if slowest >= 2 else (1e3, "ms") if slowest >= 2e-3 else (1e6, "us")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ratio: Spread | None) -> str:
    return f"{ratio.median:.2f}" if ratio is not None else ""


def _mean(rows: Sequence[RowResult], peer: str, backend: str) -> str:
    ratios = [ratio.median for row in rows if (ratio := row.ratio(peer, backend)) is not None]
    mean = geometric_mean(ratios)
    return f"{mean:.2f}" if mean is not None else ""


def _winner(row: RowResult, backend: str, peers: Sequence[str]) -> tuple[str, str]:
    """Who is best, in words, and the style; the backend's own dynamic variant is no rival."""
    if not row.measured(backend):
        return "no figure", "failed"
    rivals = [peer for peer in peers if peer != backend + dynamic.SUFFIX]
    strongest = row.strongest(rivals, backend)
    if strongest is None:
        return backend, ""
    best, ratio = strongest
    if ratio.median < BARELY:
        return f"{best} wins {1 / ratio.median:.2f}x", "wins"
    if ratio.median <= 1 / BARELY:
        return f"draw with {best}", "draw"
    return backend, "ahead"


def _notes(row: RowResult) -> Iterator[str]:
    for name, figures in row.contestants.items():
        if figures.state in (State.WRONG, State.FAILED):
            yield f"{row.label}, {name}: {figures.state}: {' '.join(figures.reason.split())[:240]}"
        elif figures.state is State.MISSING:
            yield f"{name}: {figures.reason}"


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g}{unit}"
