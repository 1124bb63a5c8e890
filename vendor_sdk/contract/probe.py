"""Which installed backends are ready: each plugin is loaded in a child process, so that none can hide another; what their
metadata alone says; and whether the devices of those that are ready keep what is copied to them.

A plugin that raises is reported with its error; one that kills the interpreter or hangs is reported as that, and the next child
goes on with the rest. The parent imports neither torch nor any plugin.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vendor_sdk.contract import discovery

SECONDS = 120
"""What a plugin may take to load, and its device to answer, before it counts as hung."""
PAGE = 4096
"""Bytes that a device is tried with."""

MENDS = {
    "device": "let the `device` hook answer a Device with the default options, or `Backend.requires` what this machine lacks",
    "properties": "let Device.properties() answer DeviceProperties(name=...)",
    "allocate": f"let Device.allocate({PAGE}) answer a buffer; see whether other processes hold the device's memory",
    "copy": "let copy_in and copy_out move bytes in the order issued, and copy_out wait for what it depends on",
    "free": "let Device.free(buffer) take back what allocate answered",
}
"""The steps in which a device is tried, each with what to mend where it fails."""


@dataclass(frozen=True)
class Step:
    """One step of trying a device.

    Attributes:
        name: a key of ``MENDS``.
        found: what was seen; where it failed, why.
        failed: whether it did; then no other step follows.
    """

    name: str
    found: str
    failed: bool = False


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
        device: how trying its device went; empty unless that was asked for and it is ready.
    """

    name: str
    distributions: tuple[str, ...]
    state: str
    reason: str = ""
    version: str = ""
    dtypes: tuple[str, ...] = ()
    hint: str = ""
    plugin: str = ""
    device: tuple[Step, ...] = ()


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


def statuses(installed: discovery.Installed, seconds: float = SECONDS, *, devices: bool = False) -> list[Status]:
    """The state of every installed backend, in order of name; ``devices``: those that are ready have their devices tried."""
    answers = _load_all([name for name in installed.names if len(installed.named(name)) == 1], seconds, devices)
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
                    **{
                        **answer,
                        "dtypes": tuple(answer.get("dtypes", ())),
                        "device": tuple(Step(**step) for step in answer.get("device", ())),
                    },
                    hint=offers[0].hint,
                    plugin=offers[0].plugin,
                )
            )
    return result


def _load_all(names: Sequence[str], seconds: float, devices: bool) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    done: set[str] = set()
    while len(done) < len(names):
        rest = [name for name in names if name not in done]
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "vendor_sdk.contract.probe", str(int(devices)), *rest],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            hung = threading.Event()
            for answer in _answers(child, seconds, hung):
                name, last = answer.pop("name"), answer.pop("last")
                done |= {name} if last else set()
                answers.setdefault(name, {}).update(answer)
            code = child.wait()
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip().splitlines()[-3:]
        left = [name for name in rest if name not in done]
        if left:
            # The child answers in order, so the first without an answer is the one that ended it.
            name, loaded = left[0], left[0] in answers
            late = f"did not {'answer' if loaded else 'load'} within {seconds:g} seconds"
            end = late if hung.is_set() else f"ended the interpreter ({_ending(code)})"
            reason = "\n".join(
                [f"{name}: its {'device' if loaded else 'plugin'} {end}", *(f"  stderr: {word}" for word in words)]
            )
            done.add(name)
            if loaded:
                answers[name]["device"] = [vars(Step("device", reason, failed=True))]
            else:
                answers[name] = {"state": "broken", "reason": reason}
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


def _child(names: Sequence[str], devices: bool) -> None:
    """Loads the backends in order and writes one JSON line each, and one of the device of each that is ready; what plugins
    print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def answer(name: str, last: bool, **found: Any) -> None:
            out.write(json.dumps({"name": name, "last": last, **found}) + "\n")
            out.flush()

        for name in names:
            found = _try(name)
            tried = devices and found["state"] == "ready"
            answer(name, not tried, **found)
            if tried:
                answer(name, True, device=[vars(step) for step in _tried(name)])


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


def _tried(name: str) -> list[Step]:
    """The steps of trying a backend's device, as far as they go."""
    from vendor_sdk.contract.loader import load

    found: list[Step] = []

    def step(step: str, call: Callable[[], Any], told: Callable[[Any], str] = lambda value: "") -> Any:
        try:
            value = call()
            found.append(Step(step, told(value)))
        except Exception as error:
            found.append(Step(step, str(error) or repr(error), failed=True))
            raise _Failed from error
        return value

    with contextlib.suppress(_Failed):
        session = step("device", lambda: load(name).session(None), lambda session: type(session.device).__name__)
        if session.target is not None:
            return found  # of a device that is elsewhere
        _trials(session.device, step)
    return found


class _Failed(Exception):
    """A step failed, and is noted."""


def _trials(device: Any, step: Callable[..., Any]) -> None:
    import torch

    from vendor_sdk.contract.device import Device, DeviceProperties

    pattern = bytes(range(256)) * (PAGE // 256)
    if not isinstance(device, Device):
        ones = torch.frombuffer(bytearray(pattern), dtype=torch.uint8)
        there = step("allocate", lambda: torch.empty(PAGE, dtype=torch.uint8, device=device.type), lambda _: f"{PAGE} bytes")
        step("copy", lambda: _same(there.copy_(ones).cpu().numpy().tobytes(), pattern), lambda _: "to it and back")
        return

    def properties() -> DeviceProperties:
        found = device.properties()
        if not isinstance(found, DeviceProperties):
            raise TypeError(f"properties() answered {type(found).__name__}")
        return found

    def copied() -> None:
        back = bytearray(PAGE)
        device.copy_in(memoryview(pattern), buffer, 0)
        device.copy_out(buffer, 0, memoryview(back))
        device.synchronize()
        _same(bytes(back), pattern)

    step(
        "properties", properties, lambda found: f"{found.name}, {found.memory_bytes >> 20:,} MiB, aligned to {found.alignment}"
    )
    buffer = step("allocate", lambda: device.allocate(PAGE), lambda _: f"{PAGE} bytes")
    step("copy", copied, lambda _: "to it and back")
    step("free", lambda: device.free(buffer))


def _same(found: bytes, expected: bytes) -> None:
    wrong = [place for place, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(expected)} bytes came back changed, the first at {wrong[0]}")


if __name__ == "__main__":
    _child(sys.argv[2:], devices=sys.argv[1] == "1")
