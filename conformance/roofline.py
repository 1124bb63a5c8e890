"""What a device can do at best, as it was measured in the same process: how fast it copies, how fast it multiplies matrices.

A pattern's *ideal time* is the longer of two: that of moving the bytes that must be moved at the speed of a copy, that of its
products at the rate of a plain product (Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009). Its *fraction* is the ideal
time over the measured one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.patterns import Size
from conformance.subject import Subject
from conformance.timing import timed
from vendor_sdk import Effort

Tensor = torch.Tensor

LEAST_BYTES = 1 << 26
MOST_BYTES = 1 << 29
"""Of the main tensor, unless the last cache asks for more."""
CACHES = 2
"""The main tensor is so many times as large as the last cache, if copying it takes no longer than ``MOST_SECONDS``: virtual
machines are told of the whole cache of a server of which they have a small part."""
MOST_SECONDS = 0.005
SHARE, HOST_SHARE = 16, 64
"""The main tensor is at most this part of the memory of the device, and of the host: patterns have several such, inputs for
two calls among them, and a simulated chip keeps its memory, and copies of it, in the host's too."""
QUICK_BYTES = LEAST_BYTES
"""Of the main tensor at most in a quick run. Caches may hold it: virtual machines of two cores report that of a hundred."""
LEAST_SECONDS = 1e-4
"""What copying the main tensor takes on fast devices."""
PRODUCT_SECONDS = 0.02
"""What a product of the size that products are timed at takes, about."""
COLUMNS = 4096
EDGES = 256, 8192
TRIALS = 3


@dataclass(frozen=True)
class Machine:
    """What sizes follow from.

    Attributes:
        cache_bytes: of the last cache, 0 where it is not known.
        copy_bytes: moved per second by a copy: what is read and what is written.
        product_flops: per second, by dtype name.
        most_bytes: of the main tensor, 0 for as many as it takes.
    """

    cache_bytes: int
    copy_bytes: float
    product_flops: dict[str, float]
    most_bytes: int = 0

    def size(self, dtype: torch.dtype, *, odd: bool = False) -> Size:
        """Past the last cache, where memory and time allow it; ``odd``: nothing about it is a multiple of anything."""
        least, most = (int(self.copy_bytes * seconds / 2) for seconds in (LEAST_SECONDS, MOST_SECONDS))
        nbytes = max(min(CACHES * self.cache_bytes, most), min(MOST_BYTES, least))
        nbytes = max(LEAST_BYTES, min(nbytes, self.most_bytes or nbytes))
        rows = nbytes // (COLUMNS * dtype.itemsize)
        edge = (self.product_flops[name(dtype)] * PRODUCT_SECONDS / 2) ** (1 / 3)
        edge = min(max(EDGES[0], int(edge) // 256 * 256), EDGES[1])
        return Size(rows - 1, COLUMNS + 1, edge + 1) if odd else Size(rows, COLUMNS, edge)


def name(dtype: torch.dtype) -> str:
    """``"float32"``."""
    return str(dtype).removeprefix("torch.")


def machine(subject: Subject, device: torch.device, dtypes: Sequence[torch.dtype], effort: Effort) -> Machine:
    """Measures the device once; what patterns are held against is measured again beside each of them."""
    source, target = (torch.ones(LEAST_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    seconds = min(best(copies(source, target), (), subject) for _ in range(TRIALS))
    rates = {}
    for dtype in dtypes:
        edge = EDGES[0]
        while True:
            factors = [torch.ones(edge, edge, dtype=dtype, device=device) for _ in range(2)]
            taken = min(best([torch.mm], factors, subject) for _ in range(TRIALS))
            rates[name(dtype)] = 2 * edge**3 / taken
            if taken > PRODUCT_SECONDS / 2 or edge >= EDGES[1]:
                break
            edge *= 2
    return Machine(last_cache(device), 2 * LEAST_BYTES / seconds, rates, most_bytes(subject, effort))


def best(calls: Sequence[Callable[..., Any]], inputs: Sequence[Tensor], subject: Subject) -> float:
    """Seconds of the fastest of ``calls``."""
    return min(timed(call, [inputs], subject.synchronize, {}).seconds for call in calls)


def copies(source: Tensor, target: Tensor) -> list[Callable[[], Tensor]]:
    """Ways to copy one tensor to another of its size: torch's, and on a CPU the C library's in all threads, which does not read
    what it overwrites."""
    ways: list[Callable[[], Tensor]] = [lambda: target.copy_(source)]
    if source.device.type == "cpu":
        threads, nbytes = torch.get_num_threads(), source.nbytes
        part = -(-nbytes // threads)
        pool = ThreadPoolExecutor(threads)

        def move(start: int) -> None:
            ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, min(part, nbytes - start))

        def parallel() -> Tensor:
            list(pool.map(move, range(0, nbytes, part)))
            return target

        ways.append(parallel)
    return ways


def most_bytes(subject: Subject, effort: Effort) -> int:
    """What the main tensor may have in the memory that there is, as far as device and host say; 0 where nobody does."""
    memory = int(subject.describe().device.get("memory_bytes", 0))
    found = [memory // SHARE, host_memory() // HOST_SHARE, QUICK_BYTES if effort is Effort.QUICK else 0]
    return min(filter(None, found), default=0)


def host_memory() -> int:
    """Bytes that this process may have: of the machine, or of the control group that it is in."""
    found = [0]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        found.append(int(text))
    return min(filter(lambda each: each > 0, found), default=0)


def last_cache(device: torch.device) -> int:
    """Bytes of the largest cache of the processor, or of a GPU as torch knows it; 0 where nobody says."""
    if device.type != "cpu":
        properties = torch.get_device_module(device.type).get_device_properties(device)
        return int(getattr(properties, "L2_cache_size", 0))
    found = [0]
    units = {"K": 10, "M": 20, "G": 30}
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        found.append(int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text))
    if max(found) == 0 and hasattr(os, "sysconf") and "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names:
        found.append(max(0, os.sysconf("SC_LEVEL3_CACHE_SIZE")))
    return max(found)
