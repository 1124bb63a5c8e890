"""Runs a row: in a process of its own, or where it starts its own processes, here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import machine
from benchmarks.contestants import contestants, name_of
from benchmarks.results import Figures, Results, RowResult, State, row_from_json
from benchmarks.sections import SECTIONS
from benchmarks.sections.row import Row
from benchmarks.spawn import Ended, Setting, job, without


def new_results(setting: Setting, command: Sequence[str]) -> Results:
    """Results without rows."""
    settings = {
        "rounds": setting.rounds, "threads": setting.threads, "sample_seconds": setting.sample_seconds,
        "quick": setting.quick, "command": list(command),
    }  # fmt: skip
    return Results(name_of(setting.backend), list(setting.peers), machine.describe(), settings)


def measure(row: Row, setting: Setting) -> list[RowResult]:
    """The row's results."""
    section = SECTIONS[row.section]
    return _in_process(row, setting) if section.OWN_PROCESS else section.measure(row, setting, _ignore)


def temporary() -> tempfile.TemporaryDirectory[str]:
    """The folder of a run; Inductor's workers may still write to it when it goes."""
    return tempfile.TemporaryDirectory(prefix=f"benchmarks-{os.getpid()}-", ignore_cleanup_errors=True)


def _in_process(row: Row, setting: Setting) -> list[RowResult]:
    """The row's results; a contestant that brings the process down has failed, and the row is measured without it."""
    names = [each.name for each in contestants(setting.backend, setting.peers)]
    for _ in range(len(names) + 1):
        ended: Ended = job("row", asdict(row), setting)
        if ended.found is not None:
            return [row_from_json(each) for each in ended.found]
        if not ended.during or ended.during in dict(setting.skip):
            break
        setting = without(setting, ended.during, ended.how)
    result = row.result()
    result.contestants = {name: Figures(State.FAILED, f"the row's process: {ended.how}") for name in names}
    return [result]


def _ignore(_name: str) -> None:
    """Rows that start their own processes see for themselves which of them ends badly."""
