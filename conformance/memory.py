"""By how much memory grows meanwhile, at most."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import vendor_sdk


@dataclass
class Peak:
    """By how many bytes memory grew at most; ``None`` where nobody says."""

    bytes: int | None = None


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measures what the block allocates at most, beyond what was allocated before."""
    peak = Peak()
    if device.type != "cpu":
        module = torch.get_device_module(device.type)
        module.reset_peak_memory_stats()
        allocated = module.memory_allocated()
        yield peak
        peak.bytes = module.max_memory_allocated() - allocated
        return
    vendor_sdk.release_memory()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    before = _resident("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back, see proc(5)
    yield peak
    if before is not None:
        peak.bytes = max(0, (_resident("VmHWM") or before) - before)


def _resident(which: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{which}:")), None)
