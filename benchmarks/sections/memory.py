"""Peak bytes during a call, beyond parameters and inputs, by counting allocations of every contestant in the same way.

Each contestant runs in a process of its own with ``allocations.cpp`` preloaded: it sees tensors, arenas, scratch memory and
packed weights alike, whoever allocates them. Zero is what lives when model and inputs exist, libraries are loaded and nothing
has run. The peak is that of the third call, when everything that is made once has been made, and includes what is kept between
calls.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import vendor_sdk
from benchmarks import native
from benchmarks.contestants import Contestant, Unsupported, contestants, is_sdk_backend, name_of
from benchmarks.imports import import_all, imported_by
from benchmarks.networks import NETWORKS
from benchmarks.program import Mode, Program
from benchmarks.results import BYTES, Figures, RowResult, State
from benchmarks.sections.contest import reason_of
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting, job

TITLE = "Peak memory of a call"
OWN_PROCESS = False
INFERENCE, BOTH = "inference", "forward and backward"
CALLS_BEFORE = 2
LOWER_BOUND, PLANNED = "lower bound", "planned"
KEPT = "kept between calls"


def rows(selection: Selection) -> list[Row]:
    """Every network, inference and training; the quick mode has training alone."""
    return [
        Row("memory", each.name, variant=variant)
        for each in NETWORKS.values()
        if ("memory" in each.quick or not selection.quick) and not each.name.endswith("batch 1")
        for variant in ((BOTH,) if selection.quick else (INFERENCE, BOTH))
    ]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One result; counts repeat exactly, so there is one sample."""
    result = row.result()
    result.unit = BYTES
    library = native.build("allocations", Path(setting.folder))
    extra = {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"}
    for each in contestants(setting.backend, setting.peers):
        during(each.name)
        if missing := each.missing():
            result.contestants[each.name] = Figures(State.MISSING, missing)
            continue
        modules = _modules(each.name, replace(setting, skip=()))
        arguments = {"network": row.name, "variant": row.variant, "contestant": each.name, "modules": modules}
        ended = job("peak", arguments, setting, extra=extra)
        found = ended.found or {"state": State.FAILED, "reason": ended.how}
        samples = [float(found["peak"])] if "peak" in found else []
        result.contestants[each.name] = Figures(State(found["state"]), found["reason"], samples)
        result.facts.update(found.get("facts", {}))
    return [result]


@functools.cache
def _modules(contestant: str, setting: Setting) -> list[str]:
    ended = job("imports", {"contestant": contestant}, setting)
    return list(ended.found or ())


def imports(arguments: Mapping[str, Any], setting: Setting, _during: During) -> list[str]:
    """The job: what the contestant imports."""
    return imported_by(_named(arguments["contestant"], setting))


def _named(name: str, setting: Setting) -> Contestant:
    (contestant,) = (each for each in contestants(setting.backend, setting.peers) if each.name == name)
    return contestant


def peak(arguments: Mapping[str, Any], setting: Setting, _during: During) -> dict[str, Any]:
    """The job: bytes at the peak of the third call, and what the backend planned."""
    program = _program(arguments)
    contestant = _named(arguments["contestant"], setting)
    import_all(arguments["modules"])  # Libraries map memory of their own when they load.
    counter = ctypes.CDLL(None)
    for name in ("benchmark_live_bytes", "benchmark_peak_bytes"):
        getattr(counter, name).restype = ctypes.c_int64
    gc.collect()
    zero = counter.benchmark_live_bytes()
    try:
        with torch.set_grad_enabled(program.mode is not Mode.INFERENCE):
            call = contestant.prepare(program).call
            for _ in range(CALLS_BEFORE):
                call()
            gc.collect()
            kept = counter.benchmark_live_bytes() - zero
            counter.benchmark_reset_peak()
            call()
            highest = counter.benchmark_peak_bytes() - zero
    except Unsupported as error:
        return {"state": State.UNSUPPORTED, "reason": str(error)}
    except Exception as error:
        return {"state": State.FAILED, "reason": reason_of(error)}
    facts = {f"{contestant.name}: {KEPT}": kept}
    if contestant.name == name_of(setting.backend) and is_sdk_backend(setting.backend):
        facts.update(_plan(program, setting.backend))
    return {"state": State.OK, "reason": "", "peak": highest, "facts": facts}


def _program(arguments: Mapping[str, Any]) -> Program:
    network = NETWORKS[arguments["network"]]
    return network.gradients() if arguments["variant"] == BOTH else network.inference()


def _plan(program: Program, backend: str) -> dict[str, float]:
    """What ``explain`` says of the graphs' memory: the planned peak, and the largest sum of bytes that live at once."""
    with torch.set_grad_enabled(program.mode is not Mode.INFERENCE):
        explanation = vendor_sdk.explain(program.function, *program.inputs, backend=backend, show=False)
    graphs = json.loads(explanation.to_json())["graphs"]
    told = {
        name: [graph[key] for graph in graphs if graph.get(key) is not None]
        for name, key in ((PLANNED, "planned_peak_bytes"), (LOWER_BOUND, "lower_bound_bytes"))
    }
    return {name: float(max(values)) for name, values in told.items() if values}
