"""Inference of whole models."""

from __future__ import annotations

from benchmarks.contestants import contestants
from benchmarks.networks import NETWORKS
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Models, inference"
OWN_PROCESS = True


def rows(selection: Selection) -> list[Row]:
    """Every network."""
    return [Row("models", each.name) for each in NETWORKS.values() if "models" in each.quick or not selection.quick]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest."""
    program = NETWORKS[row.name].inference()
    return [contest(row.result(), program, contestants(setting.backend, setting.peers), setting, during)]
