"""From C++ text to loaded library: finds the compiler, keeps results in a cache on disk.

An entry is one file, named by the hash of everything that shaped it (text, flags, compiler, processor), with the hash of its
own content at its end; it appears by an atomic rename. Many processes may build one entry at once: they write the same bytes.
An entry whose content does not match its hash is built anew.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch  # Brings the OpenMP runtime that generated libraries must share; imported before any of them is loaded.

from vendor_sdk import CompilerError, cache_dir

FLAGS = (
    "-std=c++17",
    "-O3",
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
_DIGEST = hashlib.sha256().digest_size


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
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return "\n".join((path, version, " ".join(FLAGS), _processor()))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def build(source: str) -> Path:
    """Path of the shared library for ``source``, compiled unless the cache has it.

    Raises ``CompilerError`` with the compiler's words, and leaves the source where the message says.
    """
    key = hashlib.sha256(f"{toolchain()}\n{source}".encode()).hexdigest()[:32]
    folder = cache_dir("cpp_cpu")
    entry = folder / f"{key}.so"
    if _intact(entry):
        return entry
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as build_dir:
        text, library = Path(build_dir) / "kernels.cpp", Path(build_dir) / "kernels.so"
        text.write_text(source)
        path = compiler()
        assert path is not None
        try:
            done = subprocess.run(
                [path, *FLAGS, str(text), "-o", str(library)], capture_output=True, text=True, check=False, timeout=600
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerError(f"cpp_cpu: {path} did not run", why=str(error)) from error
        if done.returncode != 0:
            kept = folder / f"{key}.failed.cpp"
            shutil.copyfile(text, kept)
            raise CompilerError(
                f"cpp_cpu: {path} refused generated code",
                why=done.stderr.strip()[-4000:],
                where=str(kept),
                fix="report this with the source file; it is a defect of the emitter unless the compiler is older than g++ 10",
            )
        content = library.read_bytes()
        with open(library, "ab") as file:
            file.write(hashlib.sha256(content).digest())
        os.replace(library, entry)
    return entry


def _intact(entry: Path) -> bool:
    try:
        content = entry.read_bytes()
    except OSError:
        return False
    return len(content) > _DIGEST and hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


def load(source: str) -> ctypes.CDLL:
    """``source`` compiled and loaded; see ``build``."""
    assert torch.get_num_threads() > 0
    entry = build(source)
    try:
        return ctypes.CDLL(str(entry))
    except OSError as error:
        raise CompilerError(f"cpp_cpu: {entry} does not load", why=str(error), fix="delete the file and try again") from error


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
