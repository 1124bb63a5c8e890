"""Devices: where tensors live. A chip with its own memory implements ``Device``; CPU and CUDA use ``TorchDevice``.

Host data crosses only as bytes (``memoryview``): a device never sees a torch tensor or a host pointer it may keep.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vendor_sdk.contract.recording import Recorder


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of device memory: in use now, at the peak so far, and in all (0 when unknown)."""

    used: int
    peak: int
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What the chip is.

    Attributes:
        name: for reports (``"mychip rev B"``).
        memory_bytes: capacity, 0 when unknown.
        alignment: bytes to which every allocation is aligned.
        peaks: declared peaks by name and unit (``{"copy GB/s": 800.0, "float32 TFLOP/s": 10.0}``), for roofline figures.
    """

    name: str
    memory_bytes: int = 0
    alignment: int = 64
    peaks: Mapping[str, float] = field(default_factory=dict)


class Device(abc.ABC):
    """A chip whose memory the host cannot address.

    Buffers are whatever ``allocate`` returns: the SDK keeps them, hands them to kernels inside ``DeviceTensor`` and never
    looks into them. Calls arrive from several threads; a device that cannot take that serialises them itself. Copies and
    kernels are ordered as issued; ``copy_out`` waits for what it depends on.
    """

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """A buffer of ``nbytes`` (may be 0) uninitialised bytes. Raises ``DeviceError`` when memory is out."""

    @abc.abstractmethod
    def free(self, buffer: Any) -> None:
        """Gives ``buffer`` back; it is not used again."""

    @abc.abstractmethod
    def copy_in(self, source: memoryview, target: Any, offset: int) -> None:
        """Copies the bytes of ``source`` (contiguous, read-only) into ``target`` from byte ``offset``."""

    @abc.abstractmethod
    def copy_out(self, source: Any, offset: int, target: memoryview) -> None:
        """Fills ``target`` (contiguous, writable) with bytes of ``source`` from byte ``offset``."""

    @abc.abstractmethod
    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        """Copies within the device; ranges do not overlap."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Returns when all issued work is done; raises what a kernel failed with."""

    @abc.abstractmethod
    def memory_stats(self) -> MemoryStats: ...

    @abc.abstractmethod
    def properties(self) -> DeviceProperties: ...


@dataclass(frozen=True)
class TorchDevice:
    """Memory that torch itself owns (``"cpu"``, ``"cuda"``): tensors pass to kernels as ``torch.Tensor``, with no copies.

    Attributes:
        recorder: records the launches of a graph, to replay them as one; None: each is launched at every call.
    """

    type: str = "cpu"
    recorder: Recorder | None = None


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """A strided view of a device buffer: what a kernel of a ``Device`` backend receives in place of a tensor.

    It has the properties ``numel``, ``nbytes`` and ``contiguous`` as tensors do, and ``byte_offset``.

    Attributes:
        buffer: what ``Device.allocate`` returned.
        dtype: element type.
        shape: sizes.
        strides: in elements.
        offset: of the first element, in elements.
        owner: keeps ``buffer`` allocated for as long as a ``DeviceTensor`` refers to it; the SDK's business, not a kernel's. A
            tensor that a vendor makes (the result of a partition) has an object there that frees the buffer when it goes.
    """

    buffer: Any
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    owner: Any = field(default=None, repr=False)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (not of the buffer)."""
        return self.numel * self.dtype.itemsize

    @property
    def byte_offset(self) -> int:
        return self.offset * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Row-major with no gaps (sizes of one may have any stride)."""
        return self.numel == 0 or all(
            size == 1 or stride == expected
            for size, stride, expected in zip(self.shape, self.strides, contiguous_strides(self.shape), strict=True)
        )


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements, of a dense tensor of ``shape``."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
