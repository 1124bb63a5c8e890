"""A run from what was asked for to its exit status: for the command line, and for pytest (``plugin``)."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from secrets import randbelow
from typing import Any

from rich.console import Console

from conformance import console, report
from conformance.cases import TIMED, Case, SelectionError, shard_of
from conformance.expectations import ExpectationsError, read
from conformance.journal import Journal, ResumeError
from conformance.levels import LEVELS, NONE
from conformance.pool import StartError
from conformance.profiles import FULL
from conformance.session import Session
from conformance.worker import Settings


class Status(IntEnum):
    """Exit statuses; those of pytest."""

    HOLDS = 0
    BROKEN = 1
    INTERRUPTED = 2
    DEFECT = 3
    USAGE = 4
    NOTHING = 5


class UsageError(ValueError):
    """What was asked for cannot be done; the message says why."""


@dataclass(frozen=True)
class Request:
    """What a run is asked for, as on the command line."""

    backend: str
    effort: str = "standard"
    prims: str = ""
    patterns: str = ""
    models: str = ""
    profile: str = FULL
    level: str | None = None
    dtypes: str = ""
    workers: int = 1
    output: Path | None = None
    seed: int | None = None
    shard: str | None = None
    numerics: bool = False
    resume: bool = False
    sample: int | None = None
    timeout: float = report.Run.timeout
    plugin: tuple[str, ...] = ()
    option: tuple[str, ...] = ()
    expectations: Path | None = None
    update_expectations: bool = False


def prepared(request: Request) -> tuple[Session, list[Case]]:
    """The session that will do it, and its cases. Raises ``UsageError`` where it cannot be done; nothing was written."""
    if request.workers < 1:
        raise UsageError("--workers must be at least 1")
    try:
        resumed = _resumed(request)
        seed = request.seed if request.seed is not None else resumed.identity["seed"] if resumed else None
        if request.shard and seed is None:
            raise UsageError("--shard needs --seed N, the same for all shards of a run")
        run = _run(request, randbelow(2**31) if seed is None else seed)
        if request.update_expectations and not run.expectations:
            raise UsageError("--update-expectations needs --expectations FILE, the file to update")
        chosen = [case for case in run.selection.cases() if run.only is None or case.kind not in TIMED]
        cases = shard_of(chosen, run.shard)
        expected = read(run.expectations) if run.expectations else None
    except (ResumeError, SelectionError, ExpectationsError) as error:
        raise UsageError(str(error)) from error
    if request.output is not None:
        make_folder(request.output)
    return Session(run, request.output, expected, resumed), cases


def concluded(session: Session, request: Request) -> tuple[dict[str, Any], Status]:
    """Writes what a run, stopped or not, has found; returns the report and what it says of the backend."""
    made = session.report()
    if session.folder is not None:
        session.write(made)
    if request.update_expectations and not session.interrupted:
        session.update_expectations()
    summary = made["summary"]
    if session.interrupted:
        return made, Status.INTERRUPTED
    if not summary["claims_hold"]:
        wrong = summary["stale_expectations"] or summary["numerics_disagree"] or any(map(report.broken, made["cases"]))
        return made, Status.BROKEN if wrong else Status.NOTHING
    reached = summary["levels"][session.run.profile]["level"]
    order = (NONE, *LEVELS)
    if request.level and order.index(reached) < order.index(request.level):
        return made, Status.BROKEN
    return made, Status.HOLDS


def certify(request: Request) -> Status:
    """Runs on the terminal: progress, then the summary.

    Raises:
        UsageError: it cannot be done, or the backend does not load.
    """
    screen = Console(width=None if sys.stdout.isatty() else console.PIPED_WIDTH)
    session, cases = prepared(request)
    try:
        return _certified(session, cases, request, screen)
    except StartError as error:
        raise UsageError(str(error)) from error
    except Exception:
        traceback.print_exc()
        return Status.DEFECT
    finally:
        session.close()


def _certified(session: Session, cases: list[Case], request: Request, screen: Console) -> Status:
    session.begin(cases)
    settings = session.run.settings
    screen.print(
        f"{settings.backend}: {len(cases)} cases, effort {settings.effort}, seed {settings.seed}, {request.workers} workers",
        highlight=False,
    )
    done = len(session.journal)
    if done:
        screen.print(f"resumed: {done} cases are done", highlight=False)
    lost: StartError | None = None
    with console.Live(screen, len(cases) - done) as live:
        session.show = live.show
        try:
            session.work()
        except KeyboardInterrupt:
            pass
        except StartError as error:
            lost = error
    made, status = concluded(session, request)
    console.summary(screen, made, str(session.folder) if session.folder else None)
    if lost is not None:
        raise StartError(f"the backend does not load any more: {lost}{_kept(session)}")
    return status


def _kept(session: Session) -> str:
    """What becomes of the results of a run that stopped."""
    done = f"{len(session.journal)} of {len(session.order)} cases have a result"
    if session.folder is None:
        return f"\n{done}, which are kept nowhere: --output DIR keeps them"
    return f"\n{done}, kept in {session.folder}: the same command with --resume runs the rest"


def make_folder(path: Path) -> None:
    """Makes the folder of the report before anything runs. Raises ``UsageError`` where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}; name a folder to write to") from error


def _resumed(request: Request) -> Journal | None:
    if not request.resume:
        return None
    if request.output is None:
        raise UsageError("--resume needs --output DIR, the folder of the run")
    return Journal.resumed(request.output)


def _run(request: Request, seed: int) -> report.Run:
    selected = (request.prims, request.dtypes, request.patterns, request.models, request.sample is not None)
    first = request.shard is None or request.shard.startswith("1/")
    return report.Run(
        Settings(request.backend, tuple(map(_plugin, request.plugin)), request.effort, seed, request.option),
        _split(request.prims),
        _split(request.dtypes),
        request.sample,
        request.timeout,
        request.workers,
        request.expectations.resolve() if request.expectations else None,
        request.shard,
        # A part says little of the whole; of the shards of a whole one is enough, which its merged report shows.
        request.numerics or (first and not any(selected)),
        _split(request.patterns),
        _split(request.models),
        request.profile,
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _plugin(name: str) -> str:
    """A file's absolute path: a reproducer works from any folder."""
    return str(Path(name).resolve()) if name.endswith(".py") else name
