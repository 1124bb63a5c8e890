"""Device buffers and when they die: a buffer is freed when the last ``DeviceTensor`` that refers to it is gone.

A buffer may lose its last reference at any instruction of any thread when the garbage collector breaks a cycle, also while
the same thread is inside the vendor's ``allocate``. Vendors need not be prepared for that: during a collection the buffer only
joins a queue, which the next ordinary call empties.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from vendor_sdk.contract.device import Device
from vendor_sdk.errors import DeviceError, DeviceMemoryError

_collecting: set[int] = set()
"""Threads that are inside a garbage collection."""


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    if phase == "start":
        _collecting.add(threading.get_ident())
    else:
        _collecting.discard(threading.get_ident())


gc.callbacks.append(_note_collection)


class DeviceBuffer:
    """Owner of one allocation. All ``DeviceTensor`` views of it refer to it, so Python's reference count is theirs."""

    __slots__ = ("__weakref__", "_allocator", "handle", "nbytes")

    def __init__(self, allocator: Allocator, handle: Any, nbytes: int) -> None:
        self._allocator = allocator
        self.handle = handle
        self.nbytes = nbytes

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the process gives everything back, and the vendor's module may be gone already
            self._allocator.discard(self.handle)


class Allocator:
    """Allocates from one device and frees what nobody refers to any more. Thread-safe.

    Args:
        device: the vendor's device.
        reclaim: called with the bytes still wanted when the device is out of memory; drops what can be dropped and says whether
            it dropped anything.
    """

    def __init__(self, device: Device, reclaim: Callable[[int], bool]) -> None:
        self._device = device
        self._reclaim = reclaim
        self._dead: deque[Any] = deque()

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """A buffer of ``nbytes`` uninitialised bytes. Raises ``DeviceMemoryError`` when the device is out of memory even
        after everything that only saves a later upload has been given up."""
        self.drain()
        while True:
            try:
                return DeviceBuffer(self, self._device.allocate(nbytes), nbytes)
            except DeviceError as error:
                if self._reclaim(nbytes):
                    self.drain()
                    continue
                memory = self._device.memory_stats()
                total = f" of {memory.total}" if memory.total else ""
                raise DeviceMemoryError(
                    f"{self._device.properties().name}: cannot allocate {nbytes} bytes with {memory.used}{total} bytes in use",
                    why=error.what,
                    fix="use a smaller batch or model, or free tensors that earlier calls returned",
                ) from error

    def discard(self, handle: Any) -> None:
        """Frees a buffer that nobody refers to: now, or after the garbage collection that found it."""
        self._dead.append(handle)
        if threading.get_ident() not in _collecting:
            self.drain()

    def drain(self) -> None:
        """Frees every buffer that waits in the queue."""
        while self._dead:
            try:
                handle = self._dead.popleft()
            except IndexError:  # another thread took the last one
                return
            self._device.free(handle)
