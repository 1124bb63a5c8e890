"""Values that are computed of parameters alone: made once, kept while the parameters stay as they are.

A kept value belongs to the storage of its parameter, to the place in it and the layout, and dies with it. It holds while the
parameter's version counter stands still, which every in-place operation moves. Writes that go past the counter (``.data``, an
array of numpy over the same memory) are invisible to it, as they are to autograd; two samples of the content are compared,
which tells when a whole tensor was written so. A write to a few elements must be announced with
``vendor_sdk.release_memory()``, and so it is for the user to ask for this: ``options={"keep": True}``.

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
Make = Callable[..., torch.Tensor]
Get = Callable[[torch.Tensor], torch.Tensor]


@dataclass(eq=False, slots=True)
class _Entry:
    """A kept value, and what the tensor that it was made of looked like."""

    version: int
    address: int
    samples: tuple[tuple[Any, bytes], tuple[Any, bytes]]
    value: torch.Tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        # The address comes first: what lay at an earlier one may be gone.
        return (
            tensor.data_ptr() == self.address
            and tensor._version == self.version
            and all(memory.raw == content for memory, content in self.samples)
        )


class _Known(dict[int, tuple[Any, ...]]):
    """What a getter needs to be quick: by the identity of the tensor, a reference to it and the parts of its entry."""


class Kept:
    """Kept values by parameter. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[Any, ...], tuple[weakref.ref[torch.UntypedStorage], _Entry]] = {}
        self._known: weakref.WeakValueDictionary[int, _Known] = weakref.WeakValueDictionary()

    def getter(self, make: Make, *args: Any) -> Get:
        """``get(tensor)``: ``make(tensor, *args)``, from an earlier call where the tensor has not changed since. Not to be
        written to; ``tensor`` is dense, ``args`` are hashable."""
        known = _Known()
        with self._lock:
            self._known[id(known)] = known

        def get(tensor: torch.Tensor) -> torch.Tensor:
            # Every call of a compiled graph comes here, for each of its parameters.
            found = known.get(id(tensor))
            if found is not None:
                reference, version, address, middle, in_middle, end, at_end, value = found
                if (
                    reference() is tensor
                    and tensor._version == version
                    and tensor.data_ptr() == address
                    and middle.raw == in_middle
                    and end.raw == at_end
                ):
                    return value  # type: ignore[no-any-return]
            return self._look_up(known, make, tensor, args)

        return get

    def _look_up(self, known: _Known, make: Make, tensor: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
        if tensor.is_inference():
            return make(tensor, *args)
        with self._lock:
            entry = self._entry(make, tensor, args)
            if entry is None:  # another thread writes to it
                return make(tensor, *args)
            key = id(tensor)
            reference = weakref.ref(tensor, functools.partial(_forget, known, key))
            known[key] = (reference, entry.version, entry.address, *entry.samples[0], *entry.samples[1], entry.value)
        return entry.value

    def _entry(self, make: Make, tensor: torch.Tensor, args: tuple[Any, ...]) -> _Entry | None:
        """Of any tensor that shows the same memory."""
        storage = tensor.untyped_storage()
        lying = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        key = (id(storage), lying, make, args)
        found = self._entries.get(key)
        if found is not None and found[0]() is storage and found[1].holds(tensor):
            return found[1]
        version = tensor_version(tensor)
        assert version is not None
        samples = _samples(tensor)
        with torch.no_grad():
            entry = _Entry(version, tensor.data_ptr(), samples, make(tensor.detach(), *args))
        if not entry.holds(tensor):
            return None
        self._entries[key] = weakref.ref(storage, functools.partial(_forget, self._entries, key)), entry
        return entry

    def release(self) -> int:
        """Forgets everything; the bytes that are free when no call holds the values any more."""
        with self._lock:
            values = {id(entry): entry.value for _, entry in list(self._entries.values())}
            self._entries.clear()
            for known in list(self._known.values()):
                known.clear()
        return sum(value.nbytes for value in values.values())


def _forget(entries: dict[Any, Any], key: Any, _: object) -> None:
    # Runs when a tensor or storage dies, at any point of any thread: only an atomic operation, no lock.
    entries.pop(key, None)


def _samples(tensor: torch.Tensor) -> tuple[tuple[Any, bytes], tuple[Any, bytes]]:
    """Memory in the middle and at the end of what a tensor on the host reaches, and what is there."""
    reach = 0
    if tensor.device.type == "cpu" and tensor.numel():
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    nbytes, address = reach * tensor.element_size(), tensor.data_ptr()
    length = min(_SAMPLE, nbytes)
    kind = ctypes.c_char * length
    places = (address + (nbytes - length) // 2, address + nbytes - length) if length else (0, 0)
    middle, end = (kind.from_address(place) if length else kind() for place in places)
    return (middle, middle.raw), (end, end.raw)


kept = Kept()
"""Those of this process."""
