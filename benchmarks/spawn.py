"""Starts the process of one job and brings back what it found, whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.timing import SAMPLE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
ROW_SECONDS = 1800
"""After this long the process of a row hangs."""
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VENDOR_SDK_CACHE_DIR": "vendor-sdk",
    "XDG_CACHE_HOME": "xdg",
}
"""Variables that say where compilers keep what they made: a folder of the run's own, so that the user's stays as it is."""


@dataclass(frozen=True)
class Setting:
    """How rows are measured.

    Attributes:
        backend, peers: who takes part.
        rounds: samples of each.
        threads: of every contestant.
        sample_seconds: see ``timing``.
        quick: the quick mode.
        folder: temporary, of this run: caches and compiled C++.
        skip: contestants that crashed this row's process before, with how.
    """

    backend: str
    peers: tuple[str, ...]
    rounds: int
    threads: int
    folder: str
    sample_seconds: float = SAMPLE_SECONDS
    quick: bool = False
    skip: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Setting:
        """Reads ``asdict``'s result back."""
        fields = dict(document)
        fields["peers"] = tuple(fields["peers"])
        fields["skip"] = tuple((name, why) for name, why in fields["skip"])
        return Setting(**fields)


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        found: what the job returned, None when it did not get there.
        during: the contestant it was busy with.
        how: why there is nothing, for people.
    """

    found: Any
    during: str = ""
    how: str = ""


def environment(caches: Path, threads: int) -> dict[str, str]:
    """Variables of a job's process."""
    paths = {variable: str(caches / name) for variable, name in CACHES.items()}
    return {
        **os.environ,
        **paths,
        "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        # Sizes that another row saw must not make this row's compilation dynamic.
        "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
    }


def job(
    name: str,
    arguments: Mapping[str, Any],
    setting: Setting,
    *,
    caches: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> Ended:
    """Runs ``worker.JOBS[name]`` on ``arguments`` in a new process.

    Args:
        caches: where compilers keep things; the run's folder by default.
        extra: more environment variables.
    """
    with tempfile.TemporaryDirectory(dir=setting.folder) as place:
        folder = Path(place)
        (folder / "job.json").write_text(json.dumps({"job": name, "arguments": arguments, "setting": asdict(setting)}))
        command = [sys.executable, "-m", "benchmarks.worker", str(folder)]
        variables = {**environment(caches or Path(setting.folder) / "caches", setting.threads), **(extra or {})}
        with open(folder / "output.txt", "wb") as output:
            process = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            how = ""
            try:
                code = process.wait(timeout=ROW_SECONDS)
            except subprocess.TimeoutExpired:
                how = f"no result after {ROW_SECONDS} s"
            finally:  # Compile workers of the process go with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        during = folder / "during"
        busy = during.read_text() if during.exists() else ""
        result = folder / "result.json"
        if not how and result.exists():
            return Ended(json.loads(result.read_text()), busy)
        if not how:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        text = (folder / "output.txt").read_text(errors="replace").strip().splitlines()
        return Ended(None, busy, "\n".join([how, *text[-8:]]))


def without(setting: Setting, name: str, how: str) -> Setting:
    """The setting for another try without the contestant that brought the process down."""
    return replace(setting, skip=(*setting.skip, (name, how)))
