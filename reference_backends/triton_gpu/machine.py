"""What is known of a GPU: of this machine's, or of one that is named because it is elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

KIB = 1024
PER_CLOCK = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192}
"""Operations of dense products of halves that a multiprocessor does in a clock, by compute capability; the others' are GPUs for
graphics."""
COPIED = 0.85
"""Part of the memory's peak that copies reach."""


@dataclass(frozen=True)
class Machine:
    """A GPU.

    Attributes:
        capability: compute capability.
        processors: multiprocessors.
        flops: of dense products of halves in a second.
        bytes: moved in a second.
        shared: bytes of shared memory that one program may have.
    """

    capability: tuple[int, int]
    processors: int
    flops: float
    bytes: float
    shared: int


TARGETS: Mapping[str, Machine] = {
    "cuda:80": Machine((8, 0), 108, 3.1e14, 1.7e12, 163 * KIB),
    "cuda:86": Machine((8, 6), 84, 1.5e14, 5.9e11, 99 * KIB),
    "cuda:89": Machine((8, 9), 142, 3.6e14, 7.3e11, 99 * KIB),
    "cuda:90": Machine((9, 0), 132, 9.9e14, 4.0e12, 227 * KIB),
    "cuda:100": Machine((10, 0), 148, 2.2e15, 6.8e12, 227 * KIB),
    "cuda:120": Machine((12, 0), 170, 2.1e14, 1.5e12, 99 * KIB),
}
"""By compute capability times ten, a large GPU of each: A100, A40, L40S, H200, B200, RTX 5090. Rates follow from its maker's
peaks, for sums in float32; none of them was measured here."""


@functools.cache
def machine() -> Machine:
    """The current GPU; where there is none, an H200. Rates are the peaks of its clocks, of memory what copies reach."""
    if not torch.cuda.is_available():
        return TARGETS["cuda:90"]
    import triton

    found = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
    capability = torch.cuda.get_device_capability()
    count = found["multiprocessor_count"]
    flops = count * found["sm_clock_rate"] * 1e3 * PER_CLOCK.get(capability, 1024)
    moved = 2 * found["mem_clock_rate"] * 1e3 * found["mem_bus_width"] / 8
    return Machine(capability, count, flops, COPIED * moved, found["max_shared_mem"])
