"""Memory that a process holds, and how much a worker may: what takes all of a machine's memory ends more than its own case."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

LEAST = 4 << 30
"""Bytes that a case in any worker may take."""
SHARE = 2
"""Of the memory that is available before workers start, the cases of all of them together may take one part in so many; the
rest is for what workers keep, for the compilers that they start, and for whatever else the machine does."""
CGROUP = Path("/sys/fs/cgroup")


def resident(process: int) -> int:
    """Bytes of physical memory that a process holds, without files that it has mapped, which may be libraries of gigabytes, and
    without processes that it started; 0 where the system does not say."""
    status = Path(f"/proc/{process}/status")
    return (_bytes(status, "RssAnon") or 0) + (_bytes(status, "RssShmem") or 0)


@dataclass(frozen=True)
class Allowance:
    """How much memory a case in each of several workers may take.

    Attributes:
        bytes: of memory, beyond what the worker held before the case.
        why: how that came about, in words.
    """

    bytes: int
    why: str


def allowance(workers: int) -> Allowance | None:
    """What a case in each of so many workers may take; ``None`` where the system does not say what is available."""
    free = available()
    if free is None:
        return None
    share = free // SHARE // workers
    found = f"{gibibytes(free)} that were available when the suite's workers started"
    if share < LEAST:
        return Allowance(LEAST, f"the least that any may, more than 1/{SHARE * workers} of the {found}")
    return Allowance(share, f"1/{SHARE * workers} of the {found}")


def gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def available() -> int | None:
    """Bytes of the machine's memory, in a container of its limit, that nobody needs; ``None`` where the system does not say."""
    free = _bytes(Path("/proc/meminfo"), "MemAvailable")
    if free is None:
        return None
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    return free


def first_to_go(process: int) -> None:
    """Where memory runs out all the same, Linux ends this process rather than the suite's own."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")


def _bytes(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)
