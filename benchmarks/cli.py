"""The command line: ``python -m benchmarks [SECTION|FILE.py:FUNCTION ...] [options]`` and ``python -m benchmarks docs``."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import pages, plots, report, run
from benchmarks.contestants import PEERS
from benchmarks.program import BenchmarkError
from benchmarks.results import Results, State
from benchmarks.sections import SECTIONS, user
from benchmarks.sections.row import Row, Selection
from benchmarks.spawn import Setting
from benchmarks.timing import SAMPLE_SECONDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
DEFAULT = "cpp_cpu"
RESULTS = Path(__file__).resolve().parent / "results"
SIZES, QUICK_SIZES = (1, 64, 256), (1, 64)
DTYPES, QUICK_DTYPES = ("float32", "bfloat16"), ("float32",)
ROUNDS, QUICK_ROUNDS = 15, 5
QUICK_PEERS = ("eager", "inductor", "onnxruntime")
PIPED_WIDTH = 220
"""Columns of tables that go to no terminal."""
CHOICES = [name for name in SECTIONS if name != "user"]


class _Commands(click.Group):
    """``run`` unless another command is named; errors without a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BenchmarkError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Time a backend against its peers; `python -m benchmarks run --help` for the options.

    The word `run` may be left out: `python -m benchmarks kernels models --quick`.
    """


def _list(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip())) if value is not None else None


@main.command("run")
@click.argument("what", nargs=-1)
@click.option("--quick", is_flag=True, help="A subset in under five minutes: see `Quick mode` in docs/performance.md.")
@click.option("--backend", default=DEFAULT, show_default=True, help="The torch.compile backend to compare.")
@click.option(
    "--peers", callback=_list, help=f"Comma-separated, of {', '.join(PEERS)}; by default all (quick: {', '.join(QUICK_PEERS)})."
)
@click.option("--only", callback=_list, help="Comma-separated globs: rows whose names match.")
@click.option("--sizes", callback=_list, help="Kernels' sizes in MiB; by default 1,64,256 (quick: 1,64).")
@click.option("--dtypes", callback=_list, help="Kernels' dtypes; by default float32,bfloat16 (quick: float32).")
@click.option(
    "--rounds", type=click.IntRange(min=1), help=f"Samples of each contestant; by default {ROUNDS} (quick: {QUICK_ROUNDS})."
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=os.cpu_count(), help="Of every contestant; by default all cores."
)
@click.option(
    "--sample",
    "sample_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SAMPLE_SECONDS,
    show_default=True,
    help="Seconds a sample takes at least.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here; rewritten after every row.",
)
@click.option(
    "--plots", "plots_path", type=click.Path(file_okay=False, path_type=Path), help="Write plots (SVG) into this folder."
)
@click.option("--list", "list_only", is_flag=True, help="Print the rows and measure nothing.")
def run_command(
    what: Sequence[str], quick: bool, backend: str, peers: Sequence[str] | None, only: Sequence[str] | None,
    sizes: Sequence[str] | None, dtypes: Sequence[str] | None, rounds: int | None, threads: int, sample_seconds: float,
    json_path: Path | None, plots_path: Path | None, list_only: bool,
) -> None:  # fmt: skip
    """Measure WHAT: sections (kernels, functions, models, training, compile, overhead, memory, dynamic), `all` (the default),
    or FILE.py:FUNCTION, a function without arguments that returns what to run and its inputs."""
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    selection = Selection(
        quick, _sizes(sizes) or (QUICK_SIZES if quick else SIZES), _dtypes(dtypes) or (QUICK_DTYPES if quick else DTYPES)
    )
    rows = _chosen(what or ("all",), selection, only)
    if list_only:
        for row in rows:
            console.print(f"{row.section}: {row.label}", markup=False, highlight=False)
        return
    setting = Setting(
        _backend(backend),
        _peers(peers, quick),
        rounds or (QUICK_ROUNDS if quick else ROUNDS),
        threads,
        "",
        sample_seconds,
        quick,
    )
    results = run.new_results(setting, sys.argv[1:])
    progress = Console(stderr=True)
    with run.temporary() as folder, progress.status("") as status:
        for number, row in enumerate(rows, 1):
            status.update(f"{number}/{len(rows)} {row.section}: {row.label}")
            results.rows += run.measure(row, replace(setting, folder=folder))
            if json_path is not None:
                json_path.write_text(results.to_json())
    report.show(results, console)
    if plots_path is not None:
        for path in plots.draw(results, plots_path):
            console.print(f"wrote {path}", highlight=False)
    failed = [row for row in results.rows if row.contestants[results.backend].state in (State.FAILED, State.WRONG)]
    if failed:
        click.echo(f"error: {results.backend} has no figure in {len(failed)} of {len(results.rows)} rows", err=True)
        sys.exit(1)


@main.command()
@click.argument("results_paths", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Write nothing; fail when the page is not what would be written.")
def docs(results_paths: tuple[Path, ...], check: bool) -> None:
    """Write the figures of docs/performance.md from RESULTS_PATHS, by default all of benchmarks/results, the newest first."""
    found = in_order(results_paths or RESULTS.glob("*.json"))
    parts = [pages.figures(results, _from_here(path)) for results, path in found]
    text = pages.rewrite(PAGE, "\n\n".join(parts) or pages.NOTHING)
    if not check:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        raise BenchmarkError(f"{PAGE} is out of date", where=str(PAGE), fix="run `python -m benchmarks docs`")


def in_order(paths: Iterable[Path]) -> list[tuple[Results, Path]]:
    """Results files with what they hold: those of the default backend, then the others, the newest first."""
    found = [(Results.from_json(path.read_text(), str(path)), path) for path in paths]
    return sorted(found, key=lambda each: (each[0].backend == DEFAULT, each[0].machine["date"], str(each[1])), reverse=True)


def _from_here(path: Path) -> str:
    """A path as the page names it."""
    root = PAGE.parent.parent
    return str(path.resolve().relative_to(root)) if path.resolve().is_relative_to(root) else path.name


def _chosen(what: Sequence[str], selection: Selection, only: Sequence[str] | None) -> list[Row]:
    rows: list[Row] = []
    for each in what:
        if ".py:" in each:
            user.program(each)
            rows.append(Row("user", each))
        elif each == "all":
            rows += [row for name in CHOICES for row in SECTIONS[name].rows(selection)]
        elif each in CHOICES:
            rows += SECTIONS[each].rows(selection)
        else:
            raise BenchmarkError(
                f"{each!r} is nothing to measure",
                where="WHAT",
                fix=f"give one of {', '.join(CHOICES)}, all, or FILE.py:FUNCTION",
            )
    rows = list(dict.fromkeys(rows))
    if only is None:
        return rows
    kept = [row for row in rows if any(fnmatch.fnmatch(row.title, pattern) for pattern in only)]
    if not kept:
        raise BenchmarkError(
            f"no row matches {', '.join(only)}", where="--only", fix="choose among what `python -m benchmarks --list` prints"
        )
    return kept


def _backend(name: str) -> str:
    import torch

    names = torch._dynamo.list_backends(exclude_tags=())
    if name not in names:
        raise BenchmarkError(
            f"there is no torch.compile backend {name!r}", where="--backend", fix=f"choose among {', '.join(names)}"
        )
    return name


def _peers(names: Sequence[str] | None, quick: bool) -> tuple[str, ...]:
    for name in names or ():
        if name not in PEERS:
            raise BenchmarkError(f"there is no peer {name!r}", where="--peers", fix=f"choose among {', '.join(PEERS)}")
    return tuple(names) if names is not None else QUICK_PEERS if quick else tuple(PEERS)


def _sizes(sizes: Sequence[str] | None) -> tuple[int, ...]:
    for each in sizes or ():
        if not each.isdecimal() or int(each) == 0:
            raise BenchmarkError(f"{each!r} is no size", where="--sizes", fix="give whole MiB: --sizes 1,64")
    return tuple(int(each) for each in sizes or ())


def _dtypes(dtypes: Sequence[str] | None) -> tuple[str, ...]:
    for each in dtypes or ():
        if each not in ("float32", "bfloat16", "float16"):
            raise BenchmarkError(
                f"kernels have no dtype {each!r}", where="--dtypes", fix="choose among float32, bfloat16, float16"
            )
    return tuple(dtypes or ())
