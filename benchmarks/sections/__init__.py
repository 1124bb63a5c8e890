"""The sections of the benchmark, in order of printing: a file each, with what ``row.Section`` asks for."""

from __future__ import annotations

from typing import cast

from benchmarks.sections import compile_time, dynamic, functions, kernels, memory, models, overhead, training, user
from benchmarks.sections.row import Section

_MODULES = {
    "kernels": kernels,
    "functions": functions,
    "models": models,
    "training": training,
    "compile": compile_time,
    "overhead": overhead,
    "memory": memory,
    "dynamic": dynamic,
    "user": user,
}
SECTIONS = {name: cast(Section, module) for name, module in _MODULES.items()}
