"""Functions and models compiled for symbolic shapes, beside the same ones compiled for exactly the shapes at hand."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.contestants import Compiled, Contestant, contestants
from benchmarks.kernels import KERNELS, Maker
from benchmarks.networks import NETWORKS
from benchmarks.program import Program
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Dynamic shapes"
OWN_PROCESS = True
SUFFIX = ", dynamic"
KERNEL_NAMES = ("softmax", "layer_norm", "rms_norm", "bias + gelu (tanh)", "rope", "cross_entropy", "sum over dim 0")
QUICK_KERNEL = "softmax"
MEBIBYTES = 64


def rows(selection: Selection) -> list[Row]:
    """Some kernels, and the networks; the quick mode has one kernel."""
    kernels = [QUICK_KERNEL] if selection.quick else KERNEL_NAMES
    networks = [] if selection.quick else list(NETWORKS)
    return [
        *(Row("dynamic", name, mebibytes=MEBIBYTES) for name in kernels),
        *(Row("dynamic", name) for name in networks if not name.endswith("batch 1")),
    ]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest of those that compile, each with itself."""
    return [contest(row.result(), _program(row), list(_pairs(setting)), setting, during)]


def _program(row: Row) -> Program:
    if row.mebibytes is None:
        return NETWORKS[row.name].inference()
    return KERNELS[row.name].build(Maker(row.mebibytes << 20, torch.float32))


def _pairs(setting: Setting) -> Iterator[Contestant]:
    for each in contestants(setting.backend, setting.peers):
        if isinstance(each, Compiled):
            yield Compiled(each.name, keywords={**each.keywords, "dynamic": False})
            yield Compiled(each.name + SUFFIX, keywords={**each.keywords, "dynamic": True})
