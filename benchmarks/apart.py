"""Many things judged one after the other, each in a process that may die of it."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

STATES = "ok", "wrong", "torch's", "failed", "not built"


@dataclass
class Outcome:
    """What became of one.

    Attributes:
        state: one of ``STATES``.
        why: of others than "ok".
        errors: by result: distances of eager's and of the backend's from float64, relative to the largest element.
        seconds: for all of it.
    """

    name: str
    state: str
    why: str = ""
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0


Judge = Callable[[str], Outcome]
"""Judges what has this name. It crosses between processes."""


def outcomes(wanted: Sequence[str], judge: Judge, seconds: float) -> Iterator[Outcome]:
    """One after the other, in a process that another takes the place of when it dies or takes more than ``seconds``, and after
    20 of them."""

    def pool() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), _quiet, max_tasks_per_child=20)

    workers = pool()
    for name in wanted:
        start = time.perf_counter()
        try:
            yield workers.submit(judge, name).result(seconds)
        except Exception as error:  # a judge that raises may have left its process unusable: an error on a GPU stays
            why = f"{type(error).__name__}: {error}".strip()[:600]
            if isinstance(error, BrokenProcessPool | TimeoutError):
                why = f"longer than {seconds:g} s" if isinstance(error, TimeoutError) else "the process died"
            for process in list(workers._processes.values()):
                process.kill()
            workers.shutdown(wait=False, cancel_futures=True)
            workers = pool()
            yield Outcome(name, "failed", why, seconds=time.perf_counter() - start)
    workers.shutdown()


def _quiet() -> None:
    """What is said while things are built and traced would hide what is printed here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def run(what: str, wanted: Sequence[str], judge: Judge, seconds: float, path: Path | None) -> bool:
    """Judges all that do not stand in ``path`` yet, writes them there as they come, one a line, and prints what is not right.
    Returns whether nothing is wrong or failed."""
    done = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()] if path and path.exists() else []
    known = {outcome.name for outcome in done}
    rest = [name for name in wanted if name not in known]
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=len(rest))
        for outcome in outcomes(rest, judge, seconds):
            done.append(outcome)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            progress.advance(task)
    for outcome in done:
        if outcome.state in ("wrong", "torch's", "failed"):
            click.echo(f"{outcome.name}: {outcome.state}: {outcome.why}")
    count = Counter(outcome.state for outcome in done)
    click.echo(", ".join(f"{count[state]} {state}" for state in STATES if count[state] or state != "torch's"))
    return not (count["wrong"] or count["failed"])
