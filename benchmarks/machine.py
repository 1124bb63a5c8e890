"""Describes the machine, so that a figure can stand beside where it comes from."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

VERSIONS = ("torch", "vendor-sdk", "numpy", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "triton")
CPU = Path("/sys/devices/system/cpu")


def describe() -> dict[str, Any]:
    """Processor, cores, caches, memory, frequency governor, system, compiler, versions, date; what cannot be read is absent."""
    described: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "vector_extensions": _vectors(),
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "governor": _read(CPU / "cpu0/cpufreq/scaling_governor"),
        "transparent_hugepages": _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": platform.platform(),
        "python": platform.python_version(),
        "compiler": _compiler(),
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return {key: value for key, value in described.items() if value}


def sentence(machine: dict[str, Any]) -> str:
    """One line of it."""
    caches = ", ".join(f"{level} {size}" for level, size in machine.get("caches", {}).items())
    parts = [
        f"{machine['processor']}, {machine['cores']} cores",
        machine.get("vector_extensions", ""),
        caches,
        f"{machine.get('memory_gib', '?')} GiB",
        f"torch {machine['versions'].get('torch', '?')}",
        machine["date"][:10],
    ]
    return "; ".join(part for part in parts if part)


def _processor() -> str:
    fields = _cpuinfo()
    model = fields.get("model name", platform.processor() or platform.machine())
    numbers = [f"{label} {fields[key]}" for key, label in (("cpu family", "family"), ("model", "model")) if key in fields]
    return f"{model} ({', '.join(numbers)})" if numbers else model


def _cpuinfo() -> dict[str, str]:
    first = (_read(Path("/proc/cpuinfo")) or "").split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _vectors() -> str:
    flags = set(_cpuinfo().get("flags", _cpuinfo().get("Features", "")).split())
    known = {
        "avx512f": "AVX-512",
        "avx512_bf16": "AVX-512 BF16",
        "amx_tile": "AMX",
        "avx2": "AVX2",
        "sve": "SVE",
        "asimd": "NEON",
    }
    return ", ".join(name for flag, name in known.items() if flag in flags)


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted((CPU / "cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        if level and size and kind != "Instruction":
            found[f"L{level}"] = size
    return found


def _compiler() -> str:
    path = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if path is None:
        return ""
    lines = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[0] if lines else ""


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
