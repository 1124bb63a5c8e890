"""From C++ text to loaded library: finds the compiler, runs it in parallel processes, keeps what it made.

A library is found in the cache (``vendor_sdk.Artifacts``) by all that shaped it: text, flags, compiler, processor.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch  # Brings the OpenMP runtime that generated libraries must share; imported before any of them is loaded.

from vendor_sdk import Artifacts, CompilerError, cache_dir

FLAGS = (
    "-std=c++17",
    # What else GCC's -O3 does takes a seventh of the time to compile, and makes no kernel of the benchmarks faster: vectors and
    # tiles are written out. Loops over registers, though, must be unrolled whatever the size, as peeling does.
    "-O2",
    "-fpeel-loops",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    # Contraction would make the result depend on how an expression was split; where a fused multiply-add is wanted it is
    # written.
    "-ffp-contract=off",
    "-fno-builtin-fmod",
    "-fno-builtin-fmodf",
    "-fno-plt",
    "-w",
)
ALONE = ("-fno-exceptions",)
"""Besides, for sources that take nothing from C++'s library, which is not linked to them: GNU's linker reads its names longer
than it does all else."""
LINKED_ALONE = {"gnu": ("-nodefaultlibs", "-lgomp", "-lm", "-lc", "-lgcc"), "other": ("-nostdlib++",)}
"""What follows the source then, by whose compiler it is: GNU's before 13 does not have the second."""


@functools.cache
def compiler() -> str | None:
    """Path of the C++ compiler: ``$CXX``, else the first of g++, clang++, c++ on PATH; None when there is none."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def requires() -> str:
    """What is missing on this machine, or ``""``."""
    if compiler() is None:
        return "no C++ compiler on PATH: install g++ (apt install g++, dnf install gcc-c++) or clang++, or set CXX"
    return ""


@functools.cache
def toolchain() -> str:
    """Identity of compiler, flags and processor: part of every key."""
    path = compiler()
    if path is None:
        raise CompilerError("cpp_cpu: no C++ compiler on PATH", fix="install g++ or clang++, or set CXX to one")
    return "\n".join((path, _version(path), " ".join((*FLAGS, *ALONE, *_linked_alone(path))), _processor()))


@functools.cache
def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout


def _linked_alone(path: str) -> tuple[str, ...]:
    return LINKED_ALONE["gnu" if "Free Software Foundation" in _version(path) else "other"]


def command(path: str, text: Path, library: Path, *, alone: bool) -> list[str]:
    """What makes the library of a source; ``alone`` where it includes nothing."""
    more, linked = (ALONE, _linked_alone(path)) if alone else ((), ())
    return [path, *FLAGS, *more, str(text), "-o", str(library), *linked]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


ARTIFACTS = Artifacts("cpp_cpu", toolchain)
_SUFFIX = ".so"


def start(source: str) -> None:
    """Begins to compile ``source`` in the background, unless it is in the cache, as many at once as this process has cores;
    ``build`` waits for it."""
    _begin(source)


def submit(work: Callable[[], None]) -> None:
    """Has ``work`` done in the background, in turn with what ``start`` began."""
    _pool().submit(work)


def made(source: str) -> Path:
    """As ``build``, in this thread: for work that was submitted, which would wait for itself."""
    key = key_of(source)
    return found(key) or _compile(key, source)


Library = TypeVar("Library", bound=ctypes.CDLL)


def build(source: str) -> Path:
    """Path of the shared library for ``source``, compiled unless the cache has it.

    Raises ``CompilerError`` with the compiler's words, and leaves the source where the message says.
    """
    begun = _begin(source)
    return begun if isinstance(begun, Path) else begun.result()


def key_of(source: str) -> str:
    """The key of the library for ``source``."""
    return ARTIFACTS.key("library", source)


def found(key: str) -> Path | None:
    """The library of a key, if the cache has it."""
    return ARTIFACTS.find(key, _SUFFIX)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_lock = threading.Lock()
_running: dict[str, Future[Path]] = {}
"""Compilations under way, by key: whoever wants the same library meanwhile waits for it."""


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="cpp_cpu-compile", initializer=_stand_back)


NICE = 10
"""How much less urgent compilers are than the program, which traces, and runs the forward graph, meanwhile."""


def _stand_back() -> None:
    """Makes this thread, and the processes that it starts, less urgent: on Linux threads have priorities of their own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)


def _after_fork() -> None:
    """A forked child has none of the threads, and perhaps a lock that one of them held."""
    global _lock
    _lock = threading.Lock()
    _running.clear()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _begin(source: str) -> Path | Future[Path]:
    key = key_of(source)
    with _lock:
        running = _running.get(key)
    if running is not None:
        return running
    path = found(key)
    if path is not None:
        return path
    with _lock:
        if key not in _running:
            _running[key] = _pool().submit(_compile, key, source)
            _running[key].add_done_callback(lambda _: _running.pop(key, None))
        return _running[key]


def _compile(key: str, source: str) -> Path:
    with _in_turn(key):
        path = found(key)
        if path is not None:
            return path
        with tempfile.TemporaryDirectory(prefix="cpp_cpu-") as folder:
            return ARTIFACTS.keep(key, _library(key, source, Path(folder)).read_bytes(), _SUFFIX)


@contextlib.contextmanager
def _in_turn(key: str) -> Iterator[None]:
    """Waits while another process makes the same library, until it has it, is gone or takes longer than ``PATIENCE``."""
    try:
        import fcntl

        path = cache_dir("cpp_cpu") / f"{key}.lock"
        file = path.open("w")
    except (ImportError, OSError):  # no such locks, or no place for them
        yield
        return
    until = time.monotonic() + PATIENCE
    with file:
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


PATIENCE = 120.0
"""Seconds for another process to compile a library."""


def _library(key: str, source: str, folder: Path) -> Path:
    """Compiles ``source`` in ``folder``."""
    path = compiler()
    if path is None:
        raise CompilerError("cpp_cpu: no C++ compiler on PATH", fix="install g++ or clang++, or set CXX to one")
    text, library = folder / "kernels.cpp", folder / "kernels.so"
    text.write_text(source)
    try:
        made = command(path, text, library, alone="#include <" not in source)
        done = subprocess.run(made, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"cpp_cpu: {path} did not run", why=str(error)) from error
    if done.returncode != 0:
        raise CompilerError(
            f"cpp_cpu: {path} refused generated code",
            why=done.stderr.strip()[-4000:],
            where=str(_refused(key, source)),
            fix="report this with the source file; it is a defect of the emitter unless the compiler is older than g++ 10",
        )
    return library


def _refused(key: str, source: str) -> Path:
    """Keeps a source that its reader will want to see."""
    try:
        path = cache_dir("cpp_cpu") / f"{key}.failed.cpp"
        path.write_text(source)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="cpp_cpu-")) / f"{key}.failed.cpp"
        path.write_text(source)
    return path


def load(source: str, path: Path | None = None, kind: type[Library] = ctypes.CDLL) -> Library:  # type: ignore[assignment]
    """``source`` compiled and loaded; see ``build``. ``path``: where it was built already."""
    try:
        return loaded(path or build(source), kind)
    except FileNotFoundError:
        # Another process pruned the cache between the two, and may do so again: this library is for this process alone.
        with tempfile.TemporaryDirectory(prefix="cpp_cpu-") as folder:
            return loaded(_library(key_of(source), source, Path(folder)), kind)


def loaded(path: Path, kind: type[Library] = ctypes.CDLL) -> Library:  # type: ignore[assignment]
    """The library of an entry.

    Raises:
        CompilerError: the system does not load it.
        FileNotFoundError: it is gone.
    """
    assert torch.get_num_threads() > 0
    try:
        library = kind(str(path))
    except OSError as error:
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise CompilerError(f"cpp_cpu: {path} does not load", why=str(error), fix="delete the file and try again") from error
    if (keep := getattr(library, "keep_memory_at", None)) is not None:
        keep(ctypes.byref(_kept))
    _loaded[str(path)] = library
    return library


_loaded: dict[str, ctypes.CDLL] = {}
"""Libraries by path: none is ever unloaded."""
_kept = ctypes.c_void_p()
"""The block that they keep for their next launch (base.h)."""


def release() -> int:
    """Frees the memory that libraries keep for their next launch; the bytes given back."""
    for library in list(_loaded.values()):
        if (free := getattr(library, "free_kept_memory", None)) is not None:
            free.restype = ctypes.c_int64
            return int(free())
    return 0


def call(loaded: ctypes.CDLL, name: str, dtype: torch.dtype | None, *args: torch.Tensor | int | None) -> int:
    """Calls ``name_dtype`` (``name`` where there is no dtype) with tensors as addresses and numbers as int64; None is a null
    address."""
    suffix = f"_{str(dtype).removeprefix('torch.')}" if dtype is not None else ""
    function = getattr(loaded, f"{name}{suffix}")
    function.restype = ctypes.c_int64
    values = [
        ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else None if a is None else ctypes.c_int64(a) for a in args
    ]
    result: int = function(*values)
    return result
