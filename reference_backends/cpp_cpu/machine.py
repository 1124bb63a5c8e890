"""What the generated code wants to know of the machine it runs on."""

from __future__ import annotations

import functools
from pathlib import Path


def multiplies_pairs() -> bool:
    """Whether the processor multiplies bfloat16s in pairs, and adds up their products in float32 (AVX512_BF16)."""
    return "avx512_bf16" in flags()


def tile_bytes() -> int:
    """Bytes of a tile's columns (``gemm.h``) with the registers of AVX2 or AVX-512; a multiple of them with others."""
    return 64 if "avx2" in flags() and "avx512f" not in flags() else 256


@functools.cache
def flags() -> frozenset[str]:
    """What Linux says that the processor can, in its words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


_TYPICAL = {1: 1 << 15, 2: 1 << 20, 3: 1 << 25}


@functools.cache
def cache_bytes(level: int) -> int:
    """Bytes of one data cache of ``level`` 1 to 3 as Linux tells them; a typical size where it does not. Of a machine without
    that level, the largest."""
    found: dict[int, int] = {}
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            text = (entry / "size").read_text().strip()
            unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:])
            size = int(text[:-1]) * unit if unit else int(text)
            found[int((entry / "level").read_text())] = size
        except (OSError, ValueError):
            continue
    if not found:
        return _TYPICAL[level]
    return found.get(level, found[max(found)])
