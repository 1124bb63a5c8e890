"""Values that are computed of parameters alone: made once, kept while the parameters stay as they are.

What a tensor looked like is its ``Seal``: address, version counter, which every in-place operation moves, and samples of the
content. Writes that go past the counter (``.data``, an array of numpy over the same memory) are invisible to it, as they are to
autograd; the samples tell when a whole tensor was written so. A write to a few elements must be announced with
``vendor_sdk.release_memory()``, which breaks all seals, and so users have the say: ``options={"keep": ...}``.

A kept value belongs to the storage of its parameter, to the place in it and the layout, and dies with it. Inference tensors
have no version counter: nothing of them is kept.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.torch_private import tensor_version

_SAMPLE = 64
"""Bytes of a sample."""
Make = Callable[..., torch.Tensor]
Get = Callable[[torch.Tensor], torch.Tensor]


class Seal:
    """What a tensor on the host looked like. It holds as long as the tensor looks the same and ``vendor_sdk.release_memory()``
    was not called; of tensors without a version counter, never."""

    __slots__ = ("address", "samples", "since", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.version, self.address, self.since = tensor_version(tensor), tensor.data_ptr(), _broken[0]
        self.samples = _samples(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has not been written to, as far as can be told."""
        # The address comes first: what lay at an earlier one may be gone.
        return (
            tensor.data_ptr() == self.address
            and tensor_version(tensor) == self.version is not None
            and self.since == _broken[0]
            and all(memory.raw == content for memory, content in self.samples)
        )


_broken = [0]
"""How often all seals were broken."""


def sealed(tensors: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], bool]:
    """Seals tensors; the function tells of tensors, in the same order, whether all seals hold."""
    if any(tensor.is_inference() for tensor in tensors):
        return lambda given: False
    seals = [Seal(tensor) for tensor in tensors]
    since = _broken[0]
    # Every call of a compiled graph comes here, for each of its parameters: no bytecode runs for each.
    addresses, versions = [seal.address for seal in seals], [seal.version for seal in seals]
    memory = [place for seal in seals for place, _ in seal.samples]
    contents = b"".join(content for seal in seals for _, content in seal.samples)

    def hold(given: Sequence[torch.Tensor]) -> bool:
        try:
            return (  # The addresses come first: what lay at an earlier one may be gone.
                list(map(_address, given)) == addresses
                and list(map(_version, given)) == versions
                and b"".join(memory) == contents
                and since == _broken[0]
            )
        except RuntimeError:  # an inference tensor has no version
            return False

    return hold


_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclass(eq=False, slots=True)
class _Entry:
    """A kept value, and the seal of the tensor that it was made of."""

    seal: Seal
    value: torch.Tensor


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
            seal = entry.seal
            known[key] = (reference, seal.version, seal.address, *seal.samples[0], *seal.samples[1], entry.value)
        return entry.value

    def _entry(self, make: Make, tensor: torch.Tensor, args: tuple[Any, ...]) -> _Entry | None:
        """Of any tensor that shows the same memory."""
        storage = tensor.untyped_storage()
        lying = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        key = (id(storage), lying, make, args)
        found = self._entries.get(key)
        if found is not None and found[0]() is storage and found[1].seal.holds(tensor):
            return found[1]
        seal = Seal(tensor)
        with torch.no_grad():
            entry = _Entry(seal, make(tensor.detach(), *args))
        if not seal.holds(tensor):
            return None
        self._entries[key] = weakref.ref(storage, functools.partial(_forget, self._entries, key)), entry
        return entry

    def release(self) -> int:
        """Forgets everything; the bytes that are free when no call holds the values any more."""
        _broken[0] += 1
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
