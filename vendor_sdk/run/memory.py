"""Memory of a chip that the host cannot address: values go up and down as bytes, and never go up twice.

A value that has been uploaded or downloaded is *resident*: it exists on the device and on the host with equal bytes. Residency
is keyed by the host tensor's storage, place in it and layout, and holds while the tensor's version counter stands still. So a
parameter is uploaded once, an optimizer step (which moves the counter) is seen by the next call, and an activation that the
forward graph has saved is not uploaded again for the backward graph. Entries die with their host storage.

Two rules keep that true. Device values are immutable: nothing writes to a buffer after the kernel that produced it, so a kernel
that updates in place must be given a copy. Host writes that bypass the version counter (through ``tensor.data``, or a numpy
array over the same memory) are invisible here, as they are to autograd; ``invalidate`` announces them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from vendor_sdk.contract.device import Device, DeviceTensor, contiguous_strides
from vendor_sdk.errors import DeviceError
from vendor_sdk.run import hostbytes
from vendor_sdk.run.buffers import Allocator, DeviceBuffer
from vendor_sdk.run.hostbytes import convert, lend, require_host, with_strides
from vendor_sdk.run.views import VIEWS, View, run_offsets, runs, span
from vendor_sdk.torch_private import tensor_version

_RUN_BYTES = 4096
"""A stretch at least this long is worth a copy command of its own; shorter ones go to a kernel or cross as one span."""


def of_transfer(frame: FrameType) -> bool:
    """Whether what a Python frame calls of torch is the host's side of a transfer, to or from a device with memory of its own.

    Bytes are seen as another dtype there, converted, laid out anew. For those who watch torch's operators, to see whether the
    host computes what a device claims. The vendor's code that a transfer calls has frames of its own.
    """
    return frame.f_globals is globals() or frame.f_globals is vars(hostbytes)


@dataclass
class TransferStats:
    """What crossed between host and device. Written under the lock of its ``DeviceMemory``.

    Attributes:
        uploads, uploaded_bytes: copies to the device.
        upload_hits: uploads that residency made unnecessary.
        downloads, downloaded_bytes: copies from the device.
        round_trips: times a value went to the host and back because the device could not do something itself.
        resident_bytes: device bytes kept because a host tensor with the same content exists.
    """

    uploads: int = 0
    uploaded_bytes: int = 0
    upload_hits: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    round_trips: int = 0
    resident_bytes: int = 0


_Key = tuple[int, int, torch.dtype, torch.dtype, tuple[int, ...], tuple[int, ...]]


@dataclass(eq=False, slots=True)
class _Resident:
    storage: weakref.ref[torch.UntypedStorage]
    version: int
    value: DeviceTensor
    static: bool
    used: int


class DeviceMemory:
    """The memory of one device as generated wrappers use it. Thread-safe.

    Args:
        device: the vendor's device. Whatever it raises from a copy is reported as ``DeviceError``.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.RLock()
        self._stats = TransferStats()
        self._resident: dict[_Key, _Resident] = {}
        self._clock = itertools.count()
        reclaim = weakref.WeakMethod(self._reclaim)
        self._allocator = Allocator(device, lambda nbytes: bool((method := reclaim()) and method(nbytes)))

    @property
    def stats(self) -> TransferStats:
        """The counters at this moment (a copy)."""
        self._allocator.drain()
        with self._lock:
            resident = {id(entry.value.owner): entry.value.owner.nbytes for entry in self._resident.copy().values()}
            return TransferStats(**{**vars(self._stats), "resident_bytes": sum(resident.values())})

    def count_round_trip(self) -> None:
        """Records that a value goes to the host and back: for callers that run an operation there."""
        with self._lock:
            self._stats.round_trips += 1

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> DeviceTensor:
        """An uninitialised contiguous value. Raises ``DeviceError`` when memory is out."""
        shape = tuple(shape)
        strides = contiguous_strides(shape)
        elements = 1
        for size in shape:
            elements *= size
        buffer = self._allocator.allocate(elements * dtype.itemsize)
        return DeviceTensor(buffer.handle, dtype, shape, strides, 0, buffer)

    def upload(self, tensor: torch.Tensor, *, dtype: torch.dtype | None = None, static: bool = False) -> DeviceTensor:
        """The value of a host tensor on the device, contiguous whatever the host strides.

        The result may be shared with other calls and must not be written to.

        Args:
            tensor: dense, in host memory.
            dtype: of the device value when it is not the tensor's own; integers are range-checked.
            static: a parameter or buffer of the model: given up last when device memory runs out.

        Raises:
            DeviceError: memory is out, the copy failed, or a value does not fit ``dtype``.
        """
        require_host(tensor)
        target = dtype or tensor.dtype
        version = tensor_version(tensor)
        if version is None:  # an inference tensor: nobody can tell whether it has been written to
            return self._copy_in(tensor, target)
        key = _key(tensor, target)
        with self._lock:
            entry = self._resident.get(key)
            if entry is not None and entry.version == version:
                self._stats.upload_hits += 1
                entry.used = next(self._clock)
                entry.static |= static
                return entry.value
            value = self._copy_in(tensor, target)
            if tensor_version(tensor) == version:  # no other thread wrote to it meanwhile
                self._remember(key, tensor, version, value, static)
            return value

    def download(
        self, value: DeviceTensor, *, dtype: torch.dtype | None = None, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A new host tensor with the content of ``value``, which stays resident for it.

        Args:
            value: may be a view with any strides.
            dtype: of the host tensor when it is not the value's own; integers are range-checked.
            strides: of the host tensor, in elements; row-major by default. Elements may share memory (stride 0).

        Raises:
            DeviceError: the copy failed, or an element does not fit ``dtype``.
        """
        content = convert(self._copy_out(value), dtype or value.dtype)
        tensor = content if strides is None else with_strides(content, strides)
        version = tensor_version(tensor)
        # A small piece of a large buffer would keep all of it allocated: cheaper to upload the piece again.
        owner = value.owner
        if version is not None and value.contiguous and isinstance(owner, DeviceBuffer) and 2 * value.nbytes >= owner.nbytes:
            with self._lock:
                self._remember(_key(tensor, value.dtype), tensor, version, value, static=False)
        return tensor

    def view(self, prim: str, value: DeviceTensor, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> View:
        """The result of a view prim as metadata over the same buffer; ``None`` when strides cannot express it.

        Args:
            prim: name without overload (``"squeeze"``); see ``vendor_sdk.run.views.VIEWS``.
            args, kwargs: the prim's arguments after the tensor.
        """
        rule = VIEWS.get(prim)
        return None if rule is None else rule(value, *args, **(kwargs or {}))

    def contiguous(
        self, value: DeviceTensor, copy_kernel: Callable[[DeviceTensor, DeviceTensor], None] | None = None
    ) -> DeviceTensor:
        """``value`` itself when it is row-major contiguous, else a contiguous copy.

        Long stretches are copied by ``Device.copy``. What lies in shorter ones goes to ``copy_kernel``, and without one through
        the host, which is counted as a round trip.

        Args:
            copy_kernel: ``copy_kernel(out, value)`` fills ``out`` (contiguous) from ``value`` with any strides.
        """
        if value.contiguous:
            return value
        count, length = runs(value)
        if count > 1 and length * value.dtype.itemsize < _RUN_BYTES:
            if copy_kernel is None:
                self.count_round_trip()
                return self._copy_in(self._copy_out(value), value.dtype)
            result = self.empty(value.shape, value.dtype)
            copy_kernel(result, value)
            return result
        result = self.empty(value.shape, value.dtype)
        size = value.dtype.itemsize
        for index, start in enumerate(run_offsets(value)):
            with _reporting(self.device, "copy", length * size):
                self.device.copy(value.buffer, start * size, result.buffer, index * length * size, length * size)
        return result

    def invalidate(self, tensor: torch.Tensor) -> None:
        """Forgets what is resident for the storage of ``tensor``: for writes that its version counter does not show."""
        storage = id(tensor.untyped_storage())
        with self._lock:
            for key in [key for key in self._resident.copy() if key[0] == storage]:
                self._resident.pop(key, None)

    def release(self) -> None:
        """Frees everything resident. Values that callers still hold stay valid."""
        with self._lock:
            self._resident.clear()
        self._allocator.drain()

    def _copy_in(self, tensor: torch.Tensor, dtype: torch.dtype) -> DeviceTensor:
        content = convert(tensor, dtype)
        value = self.empty(tensor.shape, dtype)
        nbytes = value.nbytes

        def send(source: memoryview) -> None:
            with _reporting(self.device, "copy_in", nbytes):
                self.device.copy_in(source.toreadonly(), value.buffer, 0)

        if nbytes:
            lend(content, send)
        with self._lock:
            self._stats.uploads += 1
            self._stats.uploaded_bytes += nbytes
        return value

    def _copy_out(self, value: DeviceTensor) -> torch.Tensor:
        """A contiguous host tensor with the content of ``value``."""
        itemsize = value.dtype.itemsize
        reach = span(value)
        stretch = runs(value)[1] * itemsize
        if value.contiguous or (stretch >= _RUN_BYTES and reach > 2 * value.numel):
            landing = result = torch.empty(value.shape, dtype=value.dtype)
            starts = [start * itemsize for start in run_offsets(value)] if value.numel else []
        else:  # all the bytes from the first element to the last, sorted out here
            landing = torch.empty(reach, dtype=value.dtype)
            result = landing.as_strided(value.shape, value.strides)
            starts, stretch = [value.byte_offset], reach * itemsize

        def receive(target: memoryview) -> None:
            for index, start in enumerate(starts):
                with _reporting(self.device, "copy_out", stretch):
                    self.device.copy_out(value.buffer, start, target[index * stretch : (index + 1) * stretch])

        if starts:
            lend(landing, receive)
        with self._lock:
            self._stats.downloads += 1
            self._stats.downloaded_bytes += len(starts) * stretch
        return result.contiguous()

    def _remember(self, key: _Key, tensor: torch.Tensor, version: int, value: DeviceTensor, static: bool) -> None:
        forget = functools.partial(_forget, weakref.ref(self), key)
        storage = weakref.ref(tensor.untyped_storage(), forget)
        self._resident[key] = _Resident(storage, version, value, static, next(self._clock))

    def _reclaim(self, wanted: int) -> bool:
        """Gives up residency, least recently used first and parameters last, until ``wanted`` bytes are free (or nothing is
        resident); whether anything was given up."""
        with self._lock:
            order = sorted((entry.static, entry.used, key) for key, entry in self._resident.copy().items())
            keys = [key for _, _, key in order]
            freed = 0
            for key in keys:
                entry = self._resident.pop(key, None)
                if entry is None:
                    continue
                owner: DeviceBuffer = entry.value.owner
                nbytes, alive = owner.nbytes, weakref.ref(owner)
                del entry, owner
                if alive() is None:
                    freed += nbytes
                if freed >= wanted:
                    break
            return bool(keys)


def _key(tensor: torch.Tensor, dtype: torch.dtype) -> _Key:
    # The address stands for storage offset, and also changes when the storage is resized or its data are replaced.
    storage = id(tensor.untyped_storage())
    return storage, tensor.data_ptr(), tensor.dtype, dtype, tuple(tensor.shape), tuple(tensor.stride())


def _forget(memory: weakref.ref[DeviceMemory], key: _Key, _storage: object) -> None:
    # Runs when a host storage dies, at any point of any thread: only atomic operations, no lock.
    if (alive := memory()) is not None:
        alive._resident.pop(key, None)


@contextlib.contextmanager
def _reporting(device: Device, action: str, nbytes: int) -> Iterator[None]:
    """Turns what a vendor's copy raises into a ``DeviceError`` that names the device and the copy."""
    try:
        yield
    except Exception as error:
        raise DeviceError(
            f"{device.properties().name}: {action} of {nbytes} bytes failed: {error}",
            why=f"Device.{action} raised {type(error).__name__}",
            fix=f"see the traceback above for the vendor's code behind Device.{action}",
        ) from error
