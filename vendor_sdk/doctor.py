"""What of this machine the SDK and its backends need, each thing in order or with its mend: ``vendor-sdk doctor``.

Nothing here imports torch or a plugin: what must be loaded is loaded in child processes.
"""

from __future__ import annotations

import difflib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from vendor_sdk import __version__
from vendor_sdk.contract import cache, discovery, probe
from vendor_sdk.errors import VendorSDKError
from vendor_sdk.torch_checked import TORCH_CHECKED

State = Literal["ok", "warning", "failed"]

VARIABLES = frozenset(
    {
        cache.SIZE,
        "VENDOR_SDK_CACHE_DIR",
        "VENDOR_SDK_DEBUG",
        "VENDOR_SDK_DEBUG_CHECK",
        "VENDOR_SDK_DEBUG_GUARD",
        "VENDOR_SDK_FUEL",
    }
)
"""Environment variables that the SDK reads."""
PREFIX = "VENDOR_SDK_"
OLDEST_PYTHON = (3, 11)
SECONDS = 120
FUNCTION = "int f(){return 0;}"
"""What a compiler is tried with, in C and in C++."""


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        area: what it belongs to (``"versions"``).
        subject: what was looked at (``"torch"``).
        state: ``"failed"`` for what something installed here needs and has not; ``"warning"`` for what may be meant so.
        found: what is there.
        mend: what to do, ``""`` where it is in order.
    """

    area: str
    subject: str
    state: State
    found: str
    mend: str = ""


def examine(*, fast: bool = False, backend: str | None = None) -> Iterator[Finding]:
    """Every finding, as it is made.

    Args:
        fast: only what needs no import of torch or of plugins.
        backend: a backend that must be ready; of others it is no failure that this machine lacks what they need.
    """
    yield from _versions()
    yield from _compilers()
    yield from _backends(fast, backend)
    yield from _caches()
    yield from _variables()
    if not fast:
        yield from _devices()


def _versions() -> Iterator[Finding]:
    from packaging.requirements import Requirement
    from packaging.version import Version

    running = platform.python_version()
    if sys.version_info >= OLDEST_PYTHON:
        yield Finding("versions", "python", "ok", running)
    else:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield Finding("versions", "python", "failed", running, f"make the environment with Python {oldest} or newer")
    try:
        lines = metadata.requires("vendor-sdk") or []
        yield Finding("versions", "vendor-sdk", "ok", __version__)
    except metadata.PackageNotFoundError:
        lines = []
        mend = "install it (pip install vendor-sdk): entry points of its backends are found by its metadata"
        yield Finding("versions", "vendor-sdk", "warning", f"{__version__}, not installed", mend)
    for requirement in map(Requirement, lines):
        # Extras stand behind a marker; what no extra was asked for is needed always.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, wanted = requirement.name, str(requirement)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding("versions", name, "failed", "not installed", f"pip install '{wanted}'")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield Finding(
                "versions", name, "failed", f"{version}, but {requirement.specifier} is needed", f"pip install '{wanted}'"
            )
        elif name == "torch" and Version(Version(version).base_version) >= Version(_next_minor(TORCH_CHECKED[1])):
            mend = f"if compiling fails, take torch {TORCH_CHECKED[1]}; this SDK was checked on {' and '.join(TORCH_CHECKED)}"
            yield Finding("versions", name, "warning", f"{version}, newer than the SDK knows", mend)
        else:
            yield Finding("versions", name, "ok", version)


def _next_minor(version: str) -> str:
    major, minor = version.split(".")
    return f"{major}.{int(minor) + 1}"


def _compilers() -> Iterator[Finding]:
    chosen = {"C++ compiler": ("CXX", ("g++", "clang++", "c++")), "C compiler": ("CC", ("cc", "gcc", "clang"))}
    for subject, (variable, names) in chosen.items():
        given = (os.environ.get(variable) or "").split()
        tried = [given[0]] if given else list(names)
        found = next((path for name in tried if (path := shutil.which(name))), None)
        if found is None and given:
            yield Finding(
                "compilers", subject, "failed", f"{variable}={given[0]} is no program", f"correct or unset {variable}"
            )
        elif found is None:
            mend = f"install one where a backend compiles such code (apt-get install {names[0] if names[0] != 'cc' else 'gcc'})"
            yield Finding("compilers", subject, "warning", f"none of {', '.join(names)} on PATH", mend)
        else:
            command = [found, *given[1:]]
            status, words = _ran([*command, "--version"])
            version = words[0] if words and not status else "it does not say its version"
            if why := _cannot_compile(command, subject):
                mend = f"correct or unset {variable}" if given else f"install it anew, or set {variable} to another"
                yield Finding("compilers", subject, "failed", f"{' '.join(command)}: {version}; {why}", mend)
            else:
                yield Finding("compilers", subject, "ok", f"{' '.join(command)}: {version}")


def _backends(fast: bool, wanted: str | None) -> Iterator[Finding]:
    installed = discovery.installed()
    for unreadable in installed.unreadable:
        yield Finding("backends", unreadable.distribution, "failed", unreadable.reason, "reinstall the distribution")
    for offer in installed.partnerless:
        yield Finding(
            "backends",
            offer.name,
            "failed",
            f"{offer.distribution}: torch.compile finds it at {offer.dynamo!r}, and there is no plugin of that name",
            f'add {offer.name} = "package.module" under [project.entry-points."{discovery.GROUP}"], and reinstall',
        )
    for status in probe.unloaded(installed) if fast else probe.statuses(installed, devices=True):
        what = f"{', '.join(status.distributions)}: {status.state}"
        if status.state in ("installed", "ready"):
            yield Finding("backends", status.name, "warning" if status.hint else "ok", what, status.hint)
            for step in status.device:
                state: State = "failed" if step.failed else "ok"
                mend = probe.MENDS[step.name] if step.failed else ""
                yield Finding("devices", f"{status.name}: {step.name}", state, step.found, mend)
        else:
            lacking = status.state == "unavailable" and status.name != wanted
            text, _, mend = status.reason.partition("\n  fix: ")
            fix = mend or f"see `vendor-sdk list --check`; python -c 'import {status.plugin.partition(':')[0]}' shows more"
            yield Finding("backends", status.name, "warning" if lacking else "failed", text, fix)
    if wanted is not None and not installed.named(wanted):
        mend = f"install the distribution that offers it{discovery.suggestion(wanted, installed.names)}"
        yield Finding("backends", wanted, "failed", "not installed", mend)


def _caches() -> Iterator[Finding]:
    root = cache.cache_root()
    try:
        limit = cache.size_limit()
    except VendorSDKError as error:
        yield Finding("cache", cache.SIZE, "failed", error.what, "give a number such as 500M or 2G, or unset it")
        return
    place = next(path for path in (root, *root.parents) if path.exists())
    mend = "set VENDOR_SDK_CACHE_DIR to a directory that this user may write to"
    if limit == 0:
        yield Finding(
            "cache", str(root), "warning", f"off ({cache.SIZE}=0): every process compiles anew", f"unset {cache.SIZE}"
        )
        return
    if not place.is_dir() or not _writable(str(place)):
        yield Finding("cache", str(root), "failed", "cannot be written: every process compiles anew", mend)
        return
    if root.is_dir() and (who := _others(root)):
        yield Finding(
            "cache", str(root), "failed", f"{who}, and what lies in it is loaded as code", f"chmod go-w {root}, or {mend}"
        )
        return
    used = sum(each.bytes for each in cache.usage())
    free = shutil.disk_usage(place).free
    found = f"{used >> 20:,} of {limit >> 20:,} MiB in use, {free >> 20:,} MiB free on its disk"
    if free < max(limit - used, 0):
        yield Finding("cache", str(root), "warning", found, f"free some space, or set {cache.SIZE}; `vendor-sdk cache prune`")
    else:
        yield Finding("cache", str(root), "ok", found)


def _others(folder: Path) -> str:
    """Who else may write to ``folder``, "" for nobody but root."""
    if os.name != "posix":
        return ""
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user ({found.st_uid})"
    return "other users may write to it" if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX else ""


def _writable(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _variables() -> Iterator[Finding]:
    for name in sorted(name for name in os.environ if name.startswith(PREFIX)):
        value = os.environ[name]
        if name in VARIABLES:
            slow = name.startswith("VENDOR_SDK_DEBUG") or name == "VENDOR_SDK_FUEL"
            asked = value not in ("", "0") and slow
            mend = "unset it when you are done: compiled programs are slower with it" if asked else ""
            yield Finding("environment", name, "warning" if asked else "ok", value, mend)
        else:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            mend = f"the SDK reads no such variable{f'; did you mean {near[0]}?' if near else ''}"
            yield Finding("environment", name, "warning", value, mend)


def _devices() -> Iterator[Finding]:
    """In a child: importing torch takes seconds, and a broken driver may kill it."""
    program = (
        "import json, torch\n"
        "cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]\n"
        "print(json.dumps([torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), cuda]))\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(
            "devices", "torch", "failed", f"not imported within {SECONDS} seconds", "python -X faulthandler -c 'import torch'"
        )
        return
    if done.returncode:
        words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        yield Finding("devices", "torch", "failed", words, "python -c 'import torch' shows more; reinstall torch")
        return
    version, capability, threads, cuda = json.loads(done.stdout.splitlines()[-1])
    yield Finding("devices", "cpu", "ok", f"torch {version}, {capability}, {threads} threads")
    for name in cuda:
        yield Finding("devices", "cuda", "ok", name)


def _cannot_compile(command: list[str], subject: str) -> str:
    """Why a compiler makes no shared object of a function, "" where it does."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / ("f.cpp" if "++" in subject else "f.c")
        source.write_text(f"{FUNCTION}\n")
        made = source.with_name("f.so")
        status, words = _ran([*command, "-shared", "-fPIC", "-o", str(made), str(source)])
        if not status and made.is_file():
            return ""
    end = f"exit status {status}" if status else "exit status 0, and no file"
    return f"it does not compile {FUNCTION!r} ({end}){f': {words[-1]}' if words else ''}"


def _ran(command: list[str]) -> tuple[int, list[str]]:
    """Exit status of a program and the lines it wrote, those of an error last."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, [str(error)]
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()
