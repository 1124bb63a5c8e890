"""Seconds until the first result, in new processes: cold with empty caches, warm with the caches that the cold process left.

The clock starts when the model and its inputs exist and every module that compilation will need is imported (an untimed first
process finds out which), and stops with the first result; in variant ``forward and backward``, with the first gradients. In
variant ``as a file`` the backend exports the model instead, as its peers do, and ONNX Runtime runs the file.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.contestants import Contestant, Eager, Unsupported, contestants, exporters
from benchmarks.imports import import_all, imported
from benchmarks.networks import NETWORKS
from benchmarks.program import Mode, Program
from benchmarks.results import Figures, RowResult, State
from benchmarks.sections.contest import reason_of
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting, job

TITLE = "Compilation, first result in a new process, without imports"
OWN_PROCESS = False
COLD, WARM = "cold", "warm"
INFERENCE, BOTH, FILE = "inference", "forward and backward", "as a file"
ROUNDS = 3
"""At most: a round starts two processes per contestant."""


def rows(selection: Selection) -> list[Row]:
    """Every network; the quick mode has inference alone."""
    variants = (INFERENCE,) if selection.quick else (INFERENCE, BOTH, FILE)
    return [
        Row("compile", each.name, variant=variant)
        for each in NETWORKS.values()
        if ("compile" in each.quick or not selection.quick) and not each.name.endswith("batch 1")
        for variant in variants
    ]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """Two results, cold and warm; one where nothing is kept between processes, none where the backend has nothing like it."""
    kept = (COLD,) if row.variant == FILE else (COLD, WARM)
    results = [RowResult("compile", f"{row.title}, {which}", row.dtype) for which in kept]
    modules: dict[str, list[str]] = {}
    taking_part = _taking_part(row.variant, setting)
    for each in taking_part:
        during(each.name)
        with tempfile.TemporaryDirectory(dir=setting.folder) as caches:
            found = _start(row, each, setting, caches, ())
        if each is taking_part[0] and found["state"] == State.UNSUPPORTED:
            return []
        modules[each.name] = found.get("modules", [])
        for result in results:
            result.contestants[each.name] = Figures(State(found["state"]), found["reason"])
    order = random.Random(0)
    for _ in range(1 if setting.quick else min(ROUNDS, setting.rounds)):
        order.shuffle(taking_part)
        for each in taking_part:
            during(each.name)
            with tempfile.TemporaryDirectory(dir=setting.folder) as caches:
                for result in results:
                    _add(result, each, row, setting, caches, modules[each.name])
    return results


def _taking_part(variant: str, setting: Setting) -> list[Contestant]:
    found = exporters if variant == FILE else contestants
    return [each for each in found(setting.backend, setting.peers) if not isinstance(each, Eager)]


def _add(result: RowResult, contestant: Contestant, row: Row, setting: Setting, caches: str, modules: Sequence[str]) -> None:
    """One more sample, unless the contestant has failed already or fails now."""
    if result.contestants[contestant.name].state is not State.OK:
        return
    found = _start(row, contestant, setting, caches, modules)
    if found["state"] == State.OK:
        result.contestants[contestant.name].samples.append(found["seconds"])
    else:
        result.contestants[contestant.name] = Figures(State(found["state"]), found["reason"])


def _start(row: Row, contestant: Contestant, setting: Setting, caches: str, modules: Sequence[str]) -> dict[str, Any]:
    if missing := contestant.missing():
        return {"state": State.MISSING, "reason": missing}
    arguments = {"network": row.name, "variant": row.variant, "contestant": contestant.name, "modules": list(modules)}
    ended = job("first call", arguments, setting, caches=Path(caches))
    found: dict[str, Any] = ended.found or {"state": State.FAILED, "reason": ended.how}
    return found


def first_call(arguments: Mapping[str, Any], setting: Setting, _during: During) -> dict[str, Any]:
    """The job: seconds of preparation and first call, and the modules that were imported by then."""
    network = NETWORKS[arguments["network"]]
    program: Program = network.gradients() if arguments["variant"] == BOTH else network.inference()
    (contestant,) = (c for c in _taking_part(arguments["variant"], setting) if c.name == arguments["contestant"])
    import_all(arguments["modules"])
    try:
        with torch.set_grad_enabled(program.mode is not Mode.INFERENCE):
            start = time.perf_counter()
            contestant.prepare(program).call()
            seconds = time.perf_counter() - start
    except Unsupported as error:
        return {"state": State.UNSUPPORTED, "reason": str(error)}
    except Exception as error:
        return {"state": State.FAILED, "reason": reason_of(error)}
    return {"state": State.OK, "reason": "", "seconds": seconds, "modules": imported()}
