"""C++ that the benchmark itself needs, compiled once per machine into the benchmark's temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.program import BenchmarkError

HERE = Path(__file__).resolve().parent


def build(name: str, folder: Path, *flags: str) -> Path:
    """``name.cpp`` of this package as a shared library in ``folder``.

    Raises:
        BenchmarkError: no compiler, or it refused.
    """
    library = folder / f"{name}.so"
    if library.exists():
        return library
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    compiler = next((found for each in names if each and (found := shutil.which(each))), None)
    if compiler is None:
        raise BenchmarkError(
            f"{name}.cpp cannot be compiled: no C++ compiler on PATH", fix="install g++ or clang++, or set CXX to one"
        )
    source, unfinished = HERE / f"{name}.cpp", folder / f"{name}.{os.getpid()}.so"
    command = [compiler, "-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", *flags, str(source), "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{compiler} refused {source}", why=done.stderr.strip()[-2000:], where=str(source))
    os.replace(unfinished, library)
    return library
