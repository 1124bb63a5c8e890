"""A worker process: makes the subject once, then runs case after case as it is told.

Of the cases that it was handed, those of prims are begun as soon as they are known: their programs are with the subject's
compiler, which may work in the background, while earlier cases run.

It talks to the pool over a connection of its own (a file descriptor given at start), one JSON object a message, so that
whatever a vendor's code prints goes to the log and cannot be taken for an answer.

    pool -> worker   {"do": "case", "kind", "prim", "dtype", "only", "apart"}
    pool -> worker   {"do": "numerics"}
    worker -> pool   {"event": "ready", "description": {...}} | {"event": "refused", "error": "..."}       once, at start
                     {"event": "at", "case": "exp[float16]", "log": 4711, "held": 9}               before it begins, and goes on
                     {"event": "sample", "index": 3}                                                       before a lone sample
                     {"event": "done", "log": 5711, "outcome": {...}}                               of the case that it was at
                     {"event": "numerics", "found": [{...}]}

``log`` is how much the worker has printed, ``held`` how many bytes of memory it holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import vendor_sdk
from conformance.resident import resident


@dataclass(frozen=True)
class Settings:
    """What every worker of a run has in common.

    Attributes:
        backend: subject, as on the command line.
        plugins: modules or files to load first.
        effort: one of ``cases.EFFORTS``.
        seed: of the run.
        options: ``KEY=VALUE``, of the backend.
        memory: bytes that a case may take (``resident.allowance``); the pool says it to those that it starts.
        timeout: seconds that a case may take, said likewise; 0 for as long as it takes.
    """

    backend: str
    plugins: tuple[str, ...] = ()
    effort: str = "standard"
    seed: int = 0
    options: tuple[str, ...] = ()
    memory: int | None = None
    timeout: float = 0.0


def main(descriptor: int, settings: Settings) -> None:
    """Serves until the pool closes the connection."""
    for name in ("LD_PRELOAD", "MALLOC_CHECK_", "MALLOC_PERTURB_"):
        # For this process (``pool.CHECKED_HEAP``): compilers that a vendor starts run without.
        os.environ.pop(name, None)
    os.set_inheritable(descriptor, False)  # a compiler that a vendor starts must not keep the connection open
    connection = Connection(descriptor)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # the pool asks where it hangs before it kills
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(connection, settings)
    # Skips interpreter shutdown: a vendor's threads or atexit handlers may hang in it, and no result depends on it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve(connection: Connection, settings: Settings) -> None:
    def send(message: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(message).encode())

    try:
        with vendor_sdk.without_collections():
            import torch

            from conformance import subject as subjects  # imports ``witness``, which must see everything before any plugin does
            from conformance.cases import Case, effort_of
            from conformance.handed import Handed
            from conformance.probes import datasheet
            from conformance.stopwatch import Stopwatch

            subject = subjects.make(settings.backend, settings.plugins, settings.options)
            description = subject.describe()
            gc.freeze()  # what is loaded stays: no collection looks at it again
    except Exception as error:
        traceback.print_exc()
        send({"event": "refused", "error": f"{type(error).__name__}: {error}"})
        return
    device = torch.device(description.device_type)
    stopwatch = Stopwatch(subject, effort_of(settings.effort), settings.seed, device)
    send({"event": "ready", "description": dataclasses.asdict(description)})

    def at(case: Case) -> None:
        send({"event": "at", "case": case.id, "log": _printed(), "held": resident(os.getpid())})

    def announce(index: int) -> None:
        send({"event": "sample", "index": index})

    waiting: deque[Handed] = deque()
    while True:
        while not waiting or connection.poll():
            request = json.loads(connection.recv_bytes())
            if request["do"] == "numerics":
                send({"event": "numerics", "found": [dataclasses.asdict(each) for each in datasheet(subject, device)]})
                continue
            case = Case(request["prim"], request["dtype"], request["kind"])
            handed = Handed(subject, case, settings, device, stopwatch, request["only"], request["apart"], announce)
            if handed.early:
                at(case)
                handed.begin()
            waiting.append(handed)
        handed = waiting.popleft()
        at(handed.case)
        outcome = handed.finish()
        send({"event": "done", "log": _printed(), "outcome": outcome})


def _printed() -> int:
    """Bytes in the file that this process prints to."""
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fstat(LOG).st_size


LOG = 1
"""Descriptor of the log, which the pool made this process's standard output."""


if __name__ == "__main__":
    raw = json.loads(sys.argv[2])
    main(int(sys.argv[1]), Settings(**{**raw, "plugins": tuple(raw["plugins"]), "options": tuple(raw["options"])}))
