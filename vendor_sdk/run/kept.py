"""Values that are computed of parameters alone: made once, kept while the parameters stay as they are.

A kept value belongs to the storage of its parameter, to the place in it and the layout, and dies with it. It holds while the
parameter's version counter stands still, which every in-place operation moves. Writes that go past the counter (``.data``, an
array of numpy over the same memory) are invisible to it, as they are to autograd; two samples of the content are compared,
which tells when a whole tensor was written so. A write to a few elements must be announced with
``vendor_sdk.release_memory()``, or ``options={"keep": False}`` be given.

Inference tensors have no version counter: nothing of them is kept.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.torch_private import tensor_version

_SAMPLE = 64
"""Bytes of a sample."""


@dataclass(eq=False, slots=True)
class _Entry:
    version: int
    address: int
    samples: tuple[tuple[int, int, bytes], ...]
    value: torch.Tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        # The address comes first: what lay at an earlier one may be gone.
        return (
            tensor.data_ptr() == self.address
            and tensor._version == self.version
            and all(ctypes.string_at(place, length) == content for place, length, content in self.samples)
        )


class Kept:
    """Kept values by parameter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_tensor: dict[tuple[Any, ...], tuple[weakref.ref[torch.Tensor], _Entry]] = {}
        self._by_storage: dict[tuple[Any, ...], tuple[weakref.ref[torch.UntypedStorage], _Entry]] = {}

    def get(self, make: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        """``make(tensor, *args)``, from an earlier call where ``tensor`` has not changed since. Not to be written to.

        Args:
            tensor: dense.
            args: hashable.
        """
        key = (id(tensor), make, args)
        found = self._by_tensor.get(key)
        if found is not None and found[0]() is tensor and found[1].holds(tensor):
            return found[1].value
        if tensor.is_inference():
            return make(tensor, *args)
        with self._lock:
            entry = self._entry(make, tensor, args)
            if entry is None:  # another thread writes to it
                return make(tensor, *args)
            self._by_tensor[key] = weakref.ref(tensor, functools.partial(_forget, self._by_tensor, key)), entry
        return entry.value

    def _entry(self, make: Callable[..., torch.Tensor], tensor: torch.Tensor, args: tuple[Any, ...]) -> _Entry | None:
        """Of any tensor that shows the same memory."""
        storage = tensor.untyped_storage()
        lying = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        key = (id(storage), lying, make, args)
        found = self._by_storage.get(key)
        if found is not None and found[0]() is storage and found[1].holds(tensor):
            return found[1]
        version = tensor_version(tensor)
        assert version is not None
        samples = _samples(tensor)
        with torch.no_grad():
            entry = _Entry(version, tensor.data_ptr(), samples, make(tensor.detach(), *args))
        if not entry.holds(tensor):
            return None
        self._by_storage[key] = weakref.ref(storage, functools.partial(_forget, self._by_storage, key)), entry
        return entry

    def release(self) -> int:
        """Forgets everything; the bytes that are free when nobody holds the values any more."""
        with self._lock:
            entries = {id(entry): entry for _, entry in list(self._by_storage.values())}
            self._by_storage.clear()
            self._by_tensor.clear()
        return sum(entry.value.nbytes for entry in entries.values())


def _forget(entries: dict[tuple[Any, ...], Any], key: tuple[Any, ...], _: object) -> None:
    # Runs when a tensor or storage dies, at any point of any thread: only an atomic operation, no lock.
    entries.pop(key, None)


def _samples(tensor: torch.Tensor) -> tuple[tuple[int, int, bytes], ...]:
    """Bytes in the middle and at the end of what a tensor on the host reaches."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return ()
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    nbytes, address = reach * tensor.element_size(), tensor.data_ptr()
    length = min(_SAMPLE, nbytes)
    places = {address + (nbytes - length) // 2, address + nbytes - length}
    return tuple((place, length, ctypes.string_at(place, length)) for place in sorted(places))


kept = Kept()
"""Those of this process."""
