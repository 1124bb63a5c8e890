"""Modules that a contestant imports on its first use: known beforehand, neither compile times nor memory include them."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable

import torch

from benchmarks.contestants import Contestant, Unsupported
from benchmarks.program import Mode, Program

ELEMENTS = 8


def import_all(modules: Iterable[str]) -> None:
    """Imports them; those that compilation itself makes exist in no file yet and are left out."""
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def imported() -> list[str]:
    """Names of what is imported by now."""
    return sorted(sys.modules)


def imported_by(contestant: Contestant) -> list[str]:
    """What is imported after the contestant has run and differentiated a small function."""
    for mode in (Mode.INFERENCE, Mode.GRADIENT):
        program = Program(torch.relu, (torch.ones(ELEMENTS, requires_grad=mode is Mode.GRADIENT),), mode)
        with contextlib.suppress(Unsupported), torch.set_grad_enabled(mode is Mode.GRADIENT):
            contestant.prepare(program).call()
    return imported()
