"""Kernels at one size and dtype, beside copies of as many bytes."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.contestants import contestants
from benchmarks.copying import copies
from benchmarks.kernels import KERNELS, Maker
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Kernels"
OWN_PROCESS = True


def rows(selection: Selection) -> list[Row]:
    """Every kernel in every size and dtype."""
    return [
        Row("kernels", kernel.name, dtype, size)
        for dtype in selection.dtypes
        for size in selection.sizes
        for kernel in KERNELS.values()
        if kernel.quick or not selection.quick
    ]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest."""
    assert row.mebibytes is not None
    nbytes = row.mebibytes << 20
    program = KERNELS[row.name].build(Maker(nbytes, getattr(torch, row.dtype)))
    result = row.result()
    result.copied_bytes = 2 * nbytes
    taking_part = contestants(setting.backend, setting.peers)
    return [contest(result, program, taking_part, setting, during, copies(nbytes, setting.threads, Path(setting.folder)))]
