"""Blocks of memory that stay warm: what one call has let go, the next one gets.

Fresh pages cost the processor more than the arithmetic of a memory-bound kernel (a fault and a clearing of 4 KiB each), and the
C library maps large allocations anew every time. So arenas, and outputs above ``LARGE``, are cut from blocks that return here
when nobody refers to them any more. A tensor over a block is torch's own ``torch.frombuffer``: it keeps the ``Lease`` alive
through views, saved activations and other threads, and the lease's end is the block's return.

On other devices torch's allocator does the same itself, and blocks are tensors.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vendor_sdk import torch_private

LARGE = 1 << 20
"""Bytes from which an output comes from a block. Below, the C library's own caches are as good."""
PAGE = 1 << 21
"""Large blocks end at multiples of this: a huge page, where the system has them for everybody."""
SPARE = 512
"""Blocks are at most one part in so many larger than what is asked for, or a page of the processor."""
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Without these, Python maps memory that forked processes share."""
IDLE_LIMIT = 1 << 30
"""Idle bytes that are kept; the longest idle go first."""


class Blocks:
    """Idle blocks of host memory by size. Thread-safe; giving back is safe in finalizers."""

    def __init__(self, limit: int = IDLE_LIMIT) -> None:
        self.limit = limit
        self._idle: OrderedDict[int, mmap.mmap] = OrderedDict()  # by address, longest idle first
        self._returned: list[mmap.mmap] = []
        self._lock = threading.Lock()

    @property
    def idle_bytes(self) -> int:
        with self._lock:
            self._collect()
            return sum(map(len, self._idle.values()))

    def take(self, nbytes: int) -> mmap.mmap:
        """A block of at least ``nbytes`` and at most an eighth more than that needs; ``MemoryError`` where there is none."""
        grain = min(max(1 << (max(nbytes, 1) // SPARE).bit_length() >> 1, mmap.PAGESIZE), PAGE)
        size = -(-max(nbytes, 1) // grain) * grain
        with self._lock:
            self._collect()
            best = None
            for key in reversed(self._idle):
                length = len(self._idle[key])
                if size <= length <= size + size // 8 and (best is None or length < len(self._idle[best])):
                    best = key
                    if length == size:
                        break
            if best is not None:
                return self._idle.pop(best)
        return self._mapped(size)

    def _mapped(self, size: int) -> mmap.mmap:
        try:
            return mmap.mmap(-1, size, **_PRIVATE)
        except (OSError, OverflowError):  # what is idle is given up first
            self.release()
        try:
            return mmap.mmap(-1, size, **_PRIVATE)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"the host's memory has no {size} bytes for an arena or a result") from error

    def give(self, block: mmap.mmap) -> None:
        # Runs in finalizers, at any point of any thread, also while this thread holds the lock: appending alone is atomic.
        self._returned.append(block)

    def release(self) -> int:
        """Unmaps what is idle; the bytes that this frees."""
        with self._lock:
            self._collect()
            freed = sum(map(len, self._idle.values()))
            self._idle.clear()
        return freed

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.pop()
            self._idle[id(block)] = block
        total = sum(map(len, self._idle.values()))
        while total > self.limit and self._idle:
            total -= len(self._idle.popitem(last=False)[1])


BLOCKS = Blocks()


class _Lease:
    """What a tensor over a block refers to: a buffer of ctypes, with this class mixed in. Its end is the block's return."""

    block: mmap.mmap
    kept = True
    """whether the block serves again"""

    def __del__(self) -> None:
        if self.kept and not sys.is_finalizing():
            BLOCKS.give(self.block)


@functools.lru_cache(maxsize=256)
def _lease_type(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    array = ctypes.c_char * size
    return type("Lease", (_Lease, array), {})


def tensor_over_block(nbytes: int) -> torch.Tensor:
    """A flat uint8 tensor of ``nbytes`` (at least 1) uninitialised bytes, whose memory returns to the pool when the last tensor
    over it is gone."""
    return torch.frombuffer(lease(nbytes), dtype=torch.uint8, count=nbytes)


Part = tuple[int, tuple[int, ...], torch.dtype]
"""A contiguous tensor in a block: byte offset, shape, dtype."""


def tensors_over(lease: Any, start: int, nbytes: int, parts: Sequence[Part]) -> list[torch.Tensor]:
    """A flat uint8 tensor of ``nbytes`` from byte ``start`` of a leased block, then each of ``parts`` (offsets from there), on
    storages of their own."""
    flats = [torch.frombuffer(lease, dtype=torch.uint8, offset=start, count=nbytes)]
    for offset, shape, dtype in parts:
        length = math.prod(shape) * dtype.itemsize
        flat = torch.frombuffer(lease, dtype=torch.uint8, offset=start + offset, count=length)
        flats.append(shaped(flat, 0, shape, dtype))
    return flats


def lease(nbytes: int) -> Any:
    """A block of at least ``nbytes`` as a buffer, which returns to the pool when nothing refers to it any more."""
    block = BLOCKS.take(nbytes)
    leased = _lease_type(len(block)).from_buffer(block)
    leased.block = block  # type: ignore[attr-defined]
    return leased


def shaped(
    flat: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
) -> torch.Tensor:
    """A tensor over the bytes of ``flat`` (or of the storage it is at the start of) from byte ``offset``: with ``strides``, in
    elements, or contiguous.

    No view in the sense of autograd: a tensor of its own on the same storage.
    """
    if strides is None:
        strides = _contiguous(shape)
    start = flat.storage_offset() * flat.dtype.itemsize + offset
    if torch.is_inference_mode_enabled():
        # Tensors made in inference mode could not be written to outside of it, and frames outlive the mode.
        with torch.inference_mode(False):
            return shaped(flat, offset, shape, dtype, strides)
    empty = torch.empty(0, dtype=dtype, device=flat.device)
    return empty.set_(flat.untyped_storage(), start // dtype.itemsize, shape, strides)


def warm_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """``torch.empty(shape, dtype=dtype)`` on the host; large ones in warm memory."""
    nbytes, strides = _extent(shape, dtype)
    if nbytes < LARGE:
        return _allocate(shape, strides, dtype)
    return shaped(tensor_over_block(nbytes), 0, shape, dtype, strides)


def warm_allocator(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """``warm_empty`` of one shape and dtype, for whoever allocates it in every call."""
    nbytes, strides = _extent(shape, dtype)
    if nbytes < LARGE:
        return functools.partial(_allocate, shape, strides, dtype)
    return functools.partial(warm_empty, shape, dtype)


@functools.lru_cache(maxsize=4096)
def _extent(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, tuple[int, ...]]:
    """Bytes and strides of a contiguous tensor."""
    return math.prod(shape) * dtype.itemsize, _contiguous(shape)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def _allocated(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


_allocate = torch_private.plain_allocator(torch.device("cpu")) or _allocated
