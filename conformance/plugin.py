"""The suite as pytest sees it: options, one test item a case, the report at the end.

Items only wait: the cases run in the suite's own worker processes, several at a time, from the moment collection is done.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance import console, journal, page, report
from conformance.cases import TIMED, Case, SelectionError, shard_of
from conformance.expectations import ExpectationsError, read
from conformance.levels import LEVELS, NONE
from conformance.pool import StartError
from conformance.profiles import FULL, PROFILES
from conformance.session import Session
from conformance.worker import Settings

EFFORTS = ("quick", "standard", "full")
CASES = pytest.StashKey[list[Case]]()
SESSION = pytest.StashKey[Session]()
REPORT = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance of a PyTorch backend")
    group.addoption("--backend", help="what to certify: a vendor_sdk backend, or torch:NAME for one of torch.compile")
    group.addoption("--effort", choices=EFFORTS, default="standard", help="how much to try (default: standard)")
    group.addoption("--prims", default="", help="globs of prims, separated by commas (default: all)")
    group.addoption("--patterns", default="", help="globs of fused patterns; kinds without a glob are not run then")
    group.addoption("--models", default="", help="globs of models of the zoo")
    group.addoption("--profile", choices=PROFILES, default=FULL, help="only what is part of this workload (default: full)")
    group.addoption("--level", choices=LEVELS, help="fail unless the profile reaches this level")
    group.addoption("--dtypes", default="", help="dtypes, separated by commas (default: all)")
    group.addoption("--workers", type=int, default=os.cpu_count() or 1, help="worker processes (default: one a CPU)")
    group.addoption("--output", type=Path, help="folder for report.json and the logs of failed cases")
    group.addoption("--seed", type=int, help="all values follow from it (default: a new one each run, in the report)")
    group.addoption("--sample", type=int, help="run only this sample of each case")
    group.addoption("--case-timeout", type=float, default=report.Run.timeout, help="seconds for one case (default: 120)")
    group.addoption("--plugin", action="append", default=[], help="module or .py file of a plugin that is not installed")
    group.addoption(
        "--backend-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the backend; VALUE as JSON or as text",
    )
    group.addoption("--shard", metavar="I/N", help="only this part of the selection; needs --seed, equal for all parts")
    group.addoption("--numerics", action="store_true", help="run the probes (by default where nothing is selected)")
    group.addoption("--resume", action="store_true", help="go on with the interrupted run in the folder of --output")
    group.addoption("--expectations", type=Path, help="TOML file: declined prims, known failures, waivers")
    group.addoption("--update-expectations", action="store_true", help="rewrite that file to say what this run finds")
    group.addoption("--conformance-console", action="store_true", help="the suite's own progress in place of that of pytest")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    options = config.option
    if options.help:
        return
    if not options.backend:
        raise pytest.UsageError("conformance: say what to certify with --backend NAME (`vendor-sdk list` shows the backends)")
    if hasattr(config, "workerinput") or getattr(options, "numprocesses", None):
        raise pytest.UsageError("conformance: the suite has worker processes of its own: use --workers N in place of -n N")
    if options.workers < 1:
        raise pytest.UsageError("conformance: --workers must be at least 1")
    resumed = None
    if options.resume:
        if options.output is None:
            raise pytest.UsageError("conformance: --resume needs --output DIR, the folder of the run")
        try:
            resumed = journal.read(options.output)
        except journal.ResumeError as error:
            raise pytest.UsageError(f"conformance: {error}") from error
        if options.seed is None:
            options.seed = resumed.identity["seed"]
    if options.shard and options.seed is None:
        raise pytest.UsageError("conformance: --shard needs --seed N, the same for all shards of a run")
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    run = report.Run(
        Settings(
            options.backend,
            tuple(_plugin(name) for name in options.plugin),
            options.effort,
            seed,
            tuple(options.backend_option),
        ),
        _split(options.prims),
        _split(options.dtypes),
        options.sample,
        options.case_timeout,
        options.workers,
        options.expectations.resolve() if options.expectations else None,
        options.shard,
        options.numerics or not _partial(options),
        _split(options.patterns),
        _split(options.models),
        options.profile,
    )
    if options.update_expectations and not run.expectations:
        raise pytest.UsageError("conformance: --update-expectations needs --expectations FILE, the file to update")
    try:
        chosen = run.selection.cases()
        if run.only is not None:
            chosen = [case for case in chosen if case.kind not in TIMED]
        config.stash[CASES] = shard_of(chosen, run.shard)
        expected = read(run.expectations) if run.expectations else None
    except (SelectionError, ExpectationsError) as error:
        raise pytest.UsageError(f"conformance: {error}") from error
    if options.output is not None:
        make_folder(options.output)
    screen = _Screen() if options.conformance_console else None
    config.stash[SESSION] = Session(run, options.output, screen.show if screen else lambda entry: None, expected, resumed)
    if screen:
        # Progress of cases, in the order in which they finish, takes the place of pytest's progress of items.
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(screen, "conformance-screen")


def pytest_unconfigure(config: pytest.Config) -> None:
    if SESSION in config.stash:
        config.stash[SESSION].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = metafunc.config.stash[CASES]
        metafunc.parametrize("case", cases, ids=[f"{case.id.partition('[')[0]}-{case.dtype}" for case in cases])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    cases = [item.callspec.params["case"] for item in session.items if _is_case(item)]  # type: ignore[attr-defined]
    try:
        session.config.stash[SESSION].begin(cases)
    except StartError as error:
        raise pytest.UsageError(f"conformance: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    running = session.config.stash[SESSION]
    if not running.order:
        return
    made = running.report()
    session.config.stash[REPORT] = made
    if running.folder is not None:
        report.write(running.folder, made)
        page.write(running.folder, made)
        running.written()
    if session.config.option.update_expectations and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        running.update_expectations()
    if exitstatus == pytest.ExitCode.OK and not made["summary"]["claims_hold"]:
        broken = made["summary"]["stale_expectations"] or made["summary"]["numerics_disagree"]
        broken = broken or any(map(report.broken, made["cases"]))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if broken else pytest.ExitCode.NO_TESTS_COLLECTED
    wanted = session.config.option.level
    if exitstatus == pytest.ExitCode.OK and wanted:
        reached = made["summary"]["levels"][running.run.profile]["level"]
        if [NONE, *LEVELS].index(reached) < [NONE, *LEVELS].index(wanted):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def make_folder(path: Path) -> None:
    """Makes the folder of the report before anything runs. Raises ``UsageError`` where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise pytest.UsageError(f"conformance: --output {path}: {error.strerror}; name a folder to write to") from error


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if REPORT in config.stash:
        terminalreporter.section("conformance")
        _summarize(config, Console(file=terminalreporter._tw._file, width=terminalreporter._tw.fullwidth))


@pytest.fixture(scope="session")
def certification(request: pytest.FixtureRequest) -> Session:
    """The run under way: ``certification.entry(case)`` waits for a case's entry in the report."""
    return request.config.stash[SESSION]


class _Screen:
    """Takes the place of pytest's terminal reporter under ``vendor-sdk conformance``."""

    def __init__(self) -> None:
        self.console = Console(width=None if sys.stdout.isatty() else console.PIPED_WIDTH)
        self.live: console.Live | None = None

    def show(self, entry: Mapping[str, Any]) -> None:
        if self.live:
            self.live.show(entry)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Any:
        running = session.config.stash[SESSION]
        settings = running.run.settings
        self.console.print(
            f"{settings.backend}: {len(running.order)} cases, effort {settings.effort}, seed {settings.seed}, "
            f"{running.run.workers} workers",
            highlight=False,
        )
        if running.entries:
            self.console.print(f"resumed: {len(running.entries)} cases are done", highlight=False)
        with console.Live(self.console, len(running.order) - len(running.entries)) as self.live:
            return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if REPORT in session.config.stash:
            _summarize(session.config, self.console)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if isinstance(excinfo.value, pytest.exit.Exception):
            self.console.print(str(excinfo.value.msg), highlight=False, markup=False, soft_wrap=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.console.print(str(report.longrepr), highlight=False, markup=False)


def _summarize(config: pytest.Config, screen: Console) -> None:
    folder = config.stash[SESSION].folder
    made: dict[str, Any] = config.stash[REPORT]
    console.summary(screen, made, str(folder) if folder else None)


def _is_case(item: pytest.Item) -> bool:
    return isinstance(getattr(getattr(item, "callspec", None), "params", {}).get("case"), Case)


def _partial(options: Any) -> bool:
    """Whether something was selected, so that the run says little of the whole."""
    chosen = (options.prims, options.dtypes, options.shard, options.patterns, options.models)
    return any(chosen) or options.sample is not None


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _plugin(name: str) -> str:
    """A file's absolute path: a reproducer works from any folder."""
    return str(Path(name).resolve()) if name.endswith(".py") else name
