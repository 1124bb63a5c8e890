"""The suite as pytest sees it: options, one test item a case, the report at the end.

Items only wait: the cases run in the suite's own worker processes, several at a time, from the moment collection is done.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance import console
from conformance.cases import EFFORTS, Case
from conformance.levels import LEVELS
from conformance.pool import StartError
from conformance.profiles import FULL, PROFILES
from conformance.run import Request, Status, UsageError, concluded, prepared
from conformance.session import Session

REQUEST = pytest.StashKey[Request]()
CASES = pytest.StashKey[list[Case]]()
SESSION = pytest.StashKey[Session]()
REPORT = pytest.StashKey[Mapping[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance of a PyTorch backend")
    group.addoption("--backend", help="what to certify: a vendor_sdk backend, or torch:NAME for one of torch.compile")
    group.addoption("--effort", choices=EFFORTS, default=Request.effort, help="how much to try (default: standard)")
    group.addoption("--prims", action="append", default=[], help="globs of prims, separated by commas (default: all)")
    group.addoption("--patterns", action="append", default=[], help="globs of fused patterns; other kinds are not run then")
    group.addoption("--models", action="append", default=[], help="globs of models of the zoo")
    group.addoption("--profile", choices=PROFILES, default=FULL, help="only what is part of this workload (default: full)")
    group.addoption("--level", choices=LEVELS, help="fail unless the profile reaches this level")
    group.addoption("--dtypes", action="append", default=[], help="dtypes, separated by commas (default: all)")
    group.addoption("--workers", type=int, default=os.cpu_count() or 1, help="worker processes (default: one a CPU)")
    group.addoption("--output", type=Path, help="folder for report.json and the logs of failed cases")
    group.addoption("--seed", type=int, help="all values follow from it (default: a new one each run, in the report)")
    group.addoption("--sample", type=int, help="run only this sample of each case")
    group.addoption("--case-timeout", type=float, default=Request.timeout, help="seconds for one case (default: 120)")
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


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    options = config.option
    if options.help:
        return
    if not options.backend:
        raise pytest.UsageError("conformance: say what to certify with --backend NAME (`vendor-sdk list` shows the backends)")
    if hasattr(config, "workerinput") or getattr(options, "numprocesses", None):
        raise pytest.UsageError("conformance: the suite has worker processes of its own: use --workers N in place of -n N")
    given = {name: getattr(options, name) for name in Request.__dataclass_fields__ if hasattr(options, name)}
    renamed = {"timeout": options.case_timeout, "option": tuple(options.backend_option), "plugin": tuple(options.plugin)}
    selected = {name: ",".join(getattr(options, name)) for name in ("prims", "patterns", "models", "dtypes")}
    request = Request(**{**given, **renamed, **selected})
    try:
        config.stash[SESSION], config.stash[CASES] = prepared(request)
    except UsageError as error:
        raise pytest.UsageError(f"conformance: {error}") from error
    config.stash[REQUEST] = request


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
    session.config.stash[REPORT], status = concluded(running, session.config.stash[REQUEST])
    if exitstatus == pytest.ExitCode.OK and status != Status.INTERRUPTED:
        session.exitstatus = int(status)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if REPORT in config.stash:
        terminalreporter.section("conformance")
        folder = config.stash[SESSION].folder
        screen = Console(file=terminalreporter._tw._file, width=terminalreporter._tw.fullwidth)
        console.summary(screen, config.stash[REPORT], str(folder) if folder else None)


@pytest.fixture(scope="session")
def certification(request: pytest.FixtureRequest) -> Session:
    """The run under way: ``certification.entry(case)`` waits for a case's entry in the report."""
    return request.config.stash[SESSION]


def _is_case(item: pytest.Item) -> bool:
    return isinstance(getattr(getattr(item, "callspec", None), "params", {}).get("case"), Case)
