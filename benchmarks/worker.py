"""The process of one job: ``python -m benchmarks.worker FOLDER`` reads ``job.json`` there and writes ``result.json``."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.sections import SECTIONS, compile_time, memory
from benchmarks.sections.row import Row
from benchmarks.spawn import Setting

Job = Callable[[Mapping[str, Any], Setting, Callable[[str], None]], Any]


def measure_row(arguments: Mapping[str, Any], setting: Setting, during: Callable[[str], None]) -> Any:
    """All results of one row."""
    row = Row(**arguments)
    return [asdict(result) for result in SECTIONS[row.section].measure(row, setting, during)]


JOBS: dict[str, Job] = {
    "row": measure_row,
    "first call": compile_time.first_call,
    "imports": memory.imports,
    "peak": memory.peak,
}


def main() -> None:
    """Runs the job."""
    folder = Path(sys.argv[1])
    description = json.loads((folder / "job.json").read_text())
    setting = Setting.from_json(description["setting"])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(setting.threads)
    found = JOBS[description["job"]](description["arguments"], setting, lambda name: _note(folder, name))
    unfinished = folder / "result.unfinished"
    unfinished.write_text(json.dumps(found))
    os.replace(unfinished, folder / "result.json")


def _note(folder: Path, name: str) -> None:
    (folder / "during").write_text(name)


if __name__ == "__main__":
    main()
    # Threads of the runtimes may still be busy with their own shutdown, which is no part of the result.
    sys.stdout.flush()
    os._exit(0)
