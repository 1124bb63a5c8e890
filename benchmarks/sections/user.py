"""The user's own: ``python -m benchmarks FILE.py:NAME``, where ``NAME()`` returns a function or module and its inputs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from benchmarks.contestants import contestants
from benchmarks.program import BenchmarkError, Program, leaves
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Own functions"
OWN_PROCESS = True


def rows(_selection: Selection) -> list[Row]:
    """None without a name."""
    return []


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest."""
    return [contest(row.result(), program(row.name), contestants(setting.backend, setting.peers), setting, during)]


def program(name: str) -> Program:
    """What ``FILE.py:NAME`` builds.

    Raises:
        BenchmarkError: there is no such file or name, or it builds something else.
    """
    path, _, attribute = name.rpartition(":")
    fix = f"define `def {attribute}(): return function, (input, ...)` there"
    if not Path(path).is_file():
        raise BenchmarkError(f"{path} is no file", where=name, fix="give FILE.py:NAME with a file that exists")
    specification = importlib.util.spec_from_file_location(f"benchmarked_{Path(path).stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # Dynamo looks modules up by name.
    specification.loader.exec_module(module)
    build = getattr(module, attribute, None)
    if not callable(build):
        raise BenchmarkError(f"{path} has no function {attribute!r}", where=name, fix=fix)
    built = build()
    if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0]) and isinstance(built[1], tuple)):
        raise BenchmarkError(
            f"{attribute} returned {type(built).__name__}", where=name, why="a function and its inputs are needed", fix=fix
        )
    function, inputs = built
    if not leaves(inputs):
        raise BenchmarkError(f"the inputs of {attribute} hold no tensor", where=name, fix=fix)
    return Program(function, inputs)
