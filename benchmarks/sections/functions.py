"""Functions at one size each, with and without gradients."""

from __future__ import annotations

from benchmarks.contestants import contestants
from benchmarks.functions import FUNCTIONS, LEARNED
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Functions"
OWN_PROCESS = True


def rows(selection: Selection) -> list[Row]:
    """Every function; those that are learned through also with gradients."""
    chosen = [each for each in FUNCTIONS.values() if each.quick or not selection.quick]
    gradients = [Row("functions", each.name, variant=LEARNED) for each in chosen if each.learned]
    return [*(Row("functions", each.name) for each in chosen), *gradients]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest."""
    program = FUNCTIONS[row.name].program(gradients=row.variant == LEARNED)
    return [contest(row.result(), program, contestants(setting.backend, setting.peers), setting, during)]
