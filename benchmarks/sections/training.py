"""Training steps with AdamW, as torch has it and with the optimizer compiled by the contestants that compile."""

from __future__ import annotations

from benchmarks.contestants import contestants
from benchmarks.networks import NETWORKS
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Training step with optimizer"
OWN_PROCESS = True
EAGER_OPTIMIZER, COMPILED_OPTIMIZER = "eager optimizer", "compiled optimizer"


def rows(selection: Selection) -> list[Row]:
    """Every network that one trains, which leaves out a batch of one; the quick mode has the compiled optimizer alone."""
    return [
        Row("training", each.name, variant=variant)
        for each in NETWORKS.values()
        if ("training" in each.quick or not selection.quick) and not each.name.endswith("batch 1")
        for variant in ((COMPILED_OPTIMIZER,) if selection.quick else (EAGER_OPTIMIZER, COMPILED_OPTIMIZER))
    ]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest."""
    program = NETWORKS[row.name].training(compiled_optimizer=row.variant == COMPILED_OPTIMIZER)
    return [contest(row.result(), program, contestants(setting.backend, setting.peers), setting, during)]
