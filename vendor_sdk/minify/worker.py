"""Runs programs in a process that a vendor's code may kill or hang, and says how each ended.

here -> worker    {"path", "seed"}
worker -> here    {"ready"} once; then {} | {"kind", "stage"} | {"unchecked"} | {"refused"} for each program
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from vendor_sdk.errors import BackendNameCollisionError, BackendNotFoundError, OptionError, PluginLoadError, WrongResultError
from vendor_sdk.resting import without_collections

START_SECONDS = 300
"""What importing torch and loading the plugins may take."""


@dataclass(frozen=True)
class Failure:
    """How a program failed.

    Attributes:
        kind: name of the error, ``"signal SIGSEGV"``, ``"exit status 3"`` or ``"timeout"``.
        stage: of the compiler, for wrong numbers.
    """

    kind: str
    stage: str = ""

    def __str__(self) -> str:
        return f"{self.kind} at stage {self.stage!r}" if self.stage else self.kind


class Pool:
    """One worker, and its successors, of which the next is started when the first died.

    Args:
        plugins: modules or files of plugins that are not installed, as ``vendor-sdk conformance --plugin`` takes them.
        seconds: for one program.
        log: where workers print.

    Attributes:
        unchecked: what the check of a program stopped at, where one did: that it did not fail says nothing then.
    """

    def __init__(self, plugins: Sequence[str], seconds: float, log: IO[Any] | int = subprocess.DEVNULL) -> None:
        self.plugins, self.seconds, self.log = plugins, seconds, log
        self.worker: subprocess.Popen[str] | None = None
        self.spare: subprocess.Popen[str] | None = None
        self.unchecked: dict[Path, str] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in (self.worker, self.spare):
            if child is not None:
                _end(child)

    def run(self, path: Path, seed: int) -> Failure | None:
        """How the program fails; None when it does not, as far as it was checked (``unchecked``)."""
        worker = self._ready()
        assert worker.stdin is not None
        worker.stdin.write(json.dumps({"path": str(path), "seed": seed}) + "\n")
        worker.stdin.flush()
        answer, late = _answer(worker, self.seconds)
        if answer is None:
            _end(worker)
            self.worker, code = None, worker.returncode
            # It may well die again: the next one imports torch while somebody else is at work.
            self.worker, self.spare = self.spare, self._start()
            if late:
                return Failure("timeout")
            return Failure(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}")
        if "refused" in answer:
            raise OptionError(answer["refused"], fix="Name a plugin that is not installed with --plugin FILE.")
        if "unchecked" in answer:
            self.unchecked[path] = answer["unchecked"]
            return None
        return Failure(**answer) if answer else None

    def _ready(self) -> subprocess.Popen[str]:
        if self.worker is None:
            self.worker = self._start()
        if self.worker not in self._loaded:
            answer, _ = _answer(self.worker, START_SECONDS)
            if answer is None:
                raise OptionError(
                    "the process that runs the graphs ended before it ran one",
                    why="a plugin ended or hung it while it was loaded",
                    fix="See `vendor-sdk list --check`, or import the files given with --plugin.",
                )
            self._loaded = [self.worker]
        return self.worker

    _loaded: Sequence[subprocess.Popen[str]] = ()

    def _start(self) -> subprocess.Popen[str]:
        search = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
        return subprocess.Popen(
            [sys.executable, "-m", "vendor_sdk.minify.worker", *self.plugins],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
        )  # fmt: skip


def _answer(child: subprocess.Popen[str], seconds: float) -> tuple[dict[str, Any] | None, bool]:
    """The next answer, None when the child died; it is killed when it takes longer, and the second says so."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(seconds, kill)
    timer.start()
    assert child.stdout is not None
    line = child.stdout.readline()
    timer.cancel()
    return json.loads(line) if line else None, late.is_set()


def _end(child: subprocess.Popen[str]) -> None:
    if child.stdout is not None and child.stdout.closed:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)  # one that dies by itself tells how
    child.kill()
    child.communicate()


def _main(plugins: Sequence[str]) -> None:
    # Answers go where stdout was; what a vendor's code prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with without_collections():
        from vendor_sdk import repro, script

        for plugin in plugins:
            script.load_plugin(plugin)
        gc.freeze()  # what is loaded stays: no collection looks at it again
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        task, answer = json.loads(line), {}
        try:
            stopped = repro.read(Path(task["path"])).run(task["seed"]).unchecked
            answer = {"unchecked": stopped} if stopped else {}
        except WrongResultError as error:
            answer = {"kind": type(error).__name__, "stage": error.stage}
        except (BackendNotFoundError, BackendNameCollisionError, PluginLoadError) as error:
            answer = {"refused": str(error)}  # says nothing of the graph
        except Exception as error:
            answer = {"kind": type(error).__name__}
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
