"""Recorded launches: what a device that can replay a run of launches as one offers, as ``TorchDevice.recorder``.

The SDK then records a compiled graph once for each set of sizes, and replays it as long as its operands lie where they lay
(``vendor_sdk/run/recorded.py``). A recording holds addresses: of its results, which it allocated, of operands, and of the
arena. Numbers that a launch takes are part of it; seeds of random numbers are not, where the emitter reads them from memory
(``Emitter.seeds_in_memory``).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable
from typing import Protocol


class Recording(Protocol):
    """Launches that were recorded. Memory that was allocated meanwhile is its own until it is gone."""

    def replay(self) -> None:
        """Launches all of them on the current stream."""


class Recorder(abc.ABC):
    """Records launches of the current thread. Calls arrive from several threads."""

    @abc.abstractmethod
    def stream(self) -> Hashable:
        """What orders launches now: recordings are replayed where they were made. Asked at every call."""

    @abc.abstractmethod
    def record(self, run: Callable[[], None]) -> Recording:
        """Calls ``run`` once, and records its launches instead of doing them.

        ``run`` has run before with the same operands, so that whatever a first launch needs is there. It allocates from
        torch's allocator, and its arena is allocated already.

        Raises:
            whatever ``run`` raises; ``RuntimeError`` for launches that cannot be recorded. Afterwards the device must be
            usable: the SDK launches one by one then.
        """
