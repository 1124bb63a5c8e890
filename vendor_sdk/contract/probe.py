"""Which installed backends are ready: each plugin is loaded in a child process, so that none can hide another; and what their
metadata alone says.

A plugin that raises is reported with its error; one that kills the interpreter or hangs is reported as that, and the next child
goes on with the rest. The parent imports neither torch nor any plugin.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vendor_sdk.contract import discovery

SECONDS = 120
"""What a plugin may take to load before it counts as hung."""


@dataclass(frozen=True)
class Status:
    """A backend name as ``vendor-sdk list`` shows it.

    Attributes:
        name: of the backend.
        distributions: who offers it; several when they collide.
        state: ``"ready"``, ``"unavailable"`` (this machine lacks what it needs), ``"broken"`` or ``"collision"``; of one that
            was not loaded ``"installed"``, ``"broken"`` or ``"collision"``.
        reason: why it is not ready, the whole error.
        version: of the plugin, ``""`` unless ready.
        dtypes: what the device computes in, empty unless ready.
        hint: what to mend although it can be loaded.
        plugin: where its code is, ``package.module``.
    """

    name: str
    distributions: tuple[str, ...]
    state: str
    reason: str = ""
    version: str = ""
    dtypes: tuple[str, ...] = ()
    hint: str = ""
    plugin: str = ""


def unloaded(installed: discovery.Installed) -> list[Status]:
    """What metadata says of every installed backend, in order of name; nothing is imported."""
    result = []
    for name in installed.names:
        offers = installed.named(name)
        distributions, plugin = tuple(offer.distribution for offer in offers), offers[0].plugin
        package = plugin.partition(":")[0].partition(".")[0]
        state, reason, hint = "installed", "", offers[0].hint
        if len(offers) > 1:
            state, reason, hint = "collision", f"{discovery.collision(offers)}; uninstall one of them", ""
        elif name in discovery.TORCH_BACKENDS:
            state, reason = "broken", f"the name {name!r} belongs to a backend of torch itself; rename it"
        elif not _exists(package):
            state, reason = "broken", f"its package {package!r} is not there; reinstall {distributions[0]}"
        result.append(Status(name, distributions, state, reason, hint=hint, plugin=plugin))
    return result


def _exists(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def statuses(installed: discovery.Installed, seconds: float = SECONDS) -> list[Status]:
    """The state of every installed backend, in order of name."""
    answers = _load_all([name for name in installed.names if len(installed.named(name)) == 1], seconds)
    result = []
    for name in installed.names:
        offers = installed.named(name)
        distributions = tuple(offer.distribution for offer in offers)
        if len(offers) > 1:
            result.append(Status(name, distributions, "collision", f"{discovery.collision(offers)}; uninstall one of them"))
        else:
            answer = answers[name]
            result.append(
                Status(
                    name,
                    distributions,
                    **{**answer, "dtypes": tuple(answer.get("dtypes", ()))},
                    hint=offers[0].hint,
                    plugin=offers[0].plugin,
                )
            )
    return result


def _load_all(names: Sequence[str], seconds: float) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    while len(answers) < len(names):
        rest = [name for name in names if name not in answers]
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "vendor_sdk.contract.probe", *rest],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            hung = threading.Event()
            for answer in _answers(child, seconds, hung):
                answers[answer.pop("name")] = answer
            code = child.wait()
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip().splitlines()[-3:]
        left = [name for name in rest if name not in answers]
        if left:
            # The child answers in order, so the first without an answer is the one that ended it.
            end = f"did not load within {seconds:g} seconds" if hung.is_set() else f"ended the interpreter ({_ending(code)})"
            reason = "\n".join([f"{left[0]}: its plugin {end}", *(f"  stderr: {word}" for word in words)])
            answers[left[0]] = {"state": "broken", "reason": reason}
    return answers


def _answers(child: subprocess.Popen[bytes], seconds: float, hung: threading.Event) -> Iterator[dict[str, Any]]:
    """The lines of the child, which is killed when one takes longer than ``seconds``."""

    def give_up() -> None:
        hung.set()
        child.kill()

    assert child.stdout is not None
    with child.stdout as lines:
        while True:
            timer = threading.Timer(seconds, give_up)
            timer.start()
            line = lines.readline()
            timer.cancel()
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def _child(names: Sequence[str]) -> None:
    """Loads the backends in order and writes one JSON line each; what plugins print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        for name in names:
            out.write(json.dumps({"name": name, **_try(name)}) + "\n")
            out.flush()


def _try(name: str) -> dict[str, Any]:
    from vendor_sdk.contract.loader import load
    from vendor_sdk.errors import MachineError

    try:
        backend = load(name).backend
    except MachineError as error:
        return {"state": "unavailable", "reason": str(error)}
    except Exception as error:
        return {"state": "broken", "reason": str(error) or repr(error)}
    dtypes = sorted(str(dtype).removeprefix("torch.") for dtype in backend.dtypes)
    return {"state": "ready", "version": backend.version, "dtypes": dtypes}


if __name__ == "__main__":
    _child(sys.argv[1:])
