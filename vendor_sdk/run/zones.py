"""Copies of tensors between zones of bytes of one kind: writes there are seen, reads give NaN (in integers -1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.contract.device import DeviceTensor
from vendor_sdk.run.blocks import shaped
from vendor_sdk.run.memory import DeviceMemory
from vendor_sdk.run.views import span

ZONE = 512
"""Bytes on each side, and what the copies' addresses are equal modulo of: kernels may count on how their operands lie."""
FILL = 0xFF
"""In every byte of a zone."""

Tensor = torch.Tensor | DeviceTensor
Change = tuple[str, int, int]
"""A side of a tensor, ``"before"`` or ``"behind"``; how many bytes changed there, and how far away the nearest lies."""


@dataclass(frozen=True)
class Breach:
    """Bytes beside a tensor that a launch changed.

    Attributes:
        kernel: name of the emitted kernel, of the prim, or of the partition.
        prims: what it computes.
        tensor: which of its tensors, as ``"result 0, float32[4, 5]"``.
        side: ``"before"`` or ``"behind"`` the tensor's memory.
        nbytes: how many changed, of ``ZONE`` on each side.
        distance: bytes from the tensor's memory to the nearest of them; 0: it lies beside it.
    """

    kernel: str
    prims: tuple[str, ...]
    tensor: str
    side: str
    nbytes: int
    distance: int

    def __str__(self) -> str:
        far = f", {self.distance} bytes away" if self.distance else ""
        count = "1 byte" if self.nbytes == 1 else f"{self.nbytes} bytes"
        return f"wrote {count} {self.side} the memory of {self.tensor}{far}"


@dataclass
class Region:
    """Bytes from ``begin`` to ``end`` of one allocation, and the tensors that lie there."""

    begin: int
    end: int
    tensors: list[Tensor]


def regions(tensors: Iterable[Tensor]) -> Iterator[Region]:
    """What the tensors touch, those of one allocation that overlap as one."""
    found: dict[Any, list[Region]] = {}
    for tensor in tensors:
        if isinstance(tensor, DeviceTensor):
            key, begin, count = id(tensor.buffer), tensor.byte_offset, span(tensor)
        elif tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            continue
        else:
            extents = zip(tensor.shape, tensor.stride(), strict=True)
            count = 1 + sum((size - 1) * stride for size, stride in extents) if tensor.numel() else 0
            key, begin = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()) * tensor.itemsize
        if count:
            found.setdefault(key, []).append(Region(begin, begin + count * tensor.dtype.itemsize, [tensor]))
    for there in found.values():
        there.sort(key=lambda region: region.begin)
        last = there[0]
        for region in there[1:]:
            if region.begin < last.end:
                last.end = max(last.end, region.end)
                last.tensors += region.tensors
            else:
                yield last
                last = region
        yield last


# Copies between zones


def enclosed(region: Region, memory: DeviceMemory | None) -> _Host | _Chip:
    first = region.tensors[0]
    if isinstance(first, DeviceTensor):
        assert memory is not None
        return _Chip(region, first, memory)
    return _Host(region, first)


def _changed(zone: torch.Tensor, side: str) -> Iterator[Change]:
    """Side, count and distance of the bytes of a zone that are not what they were."""
    places = (zone != FILL).nonzero().flatten()
    if len(places):
        yield side, len(places), zone.numel() - 1 - int(places[-1]) if side == "before" else int(places[0])


class _Host:
    """A region's copy in memory of torch's own."""

    def __init__(self, region: Region, first: torch.Tensor) -> None:
        self.region, size = region, region.end - region.begin
        self.outer = torch.full((size + 3 * ZONE,), FILL, dtype=torch.uint8, device=first.device)
        address = first.untyped_storage().data_ptr() + region.begin
        self.start = ZONE + (address - self.outer.data_ptr()) % ZONE
        whole = torch.empty(0, dtype=torch.uint8, device=first.device)
        with torch.inference_mode(False), torch.no_grad():
            self.original = whole.set_(first.untyped_storage(), region.begin, (size,), (1,))
            self.copy = self.outer[self.start : self.start + size].copy_(self.original)

    def holds(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, torch.Tensor)
        offset = self.start + int(tensor.storage_offset()) * tensor.itemsize - self.region.begin
        return shaped(self.outer, offset, tuple(tensor.shape), tensor.dtype, tensor.stride())

    def close(self) -> Iterator[Change]:
        with torch.inference_mode(False), torch.no_grad():
            if not torch.equal(self.copy, self.original):
                self.original.copy_(self.copy)
        end = self.start + self.copy.numel()
        yield from _changed(self.outer[self.start - ZONE : self.start], "before")
        yield from _changed(self.outer[end : end + ZONE], "behind")


class _Chip:
    """A region's copy in memory that the host cannot address."""

    def __init__(self, region: Region, first: DeviceTensor, memory: DeviceMemory) -> None:
        self.region, self.device, self.original = region, memory.device, first.buffer
        self.size = region.end - region.begin
        self.start = ZONE + region.begin % ZONE if region.begin else 0
        self.outer = memory.empty((self.start + self.size + ZONE,), torch.uint8)
        self.device.copy_in(memoryview(bytes([FILL]) * self.outer.nbytes).toreadonly(), self.outer.buffer, 0)
        self.device.copy(self.original, region.begin, self.outer.buffer, self.start, self.size)

    def holds(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, DeviceTensor)
        offset = (self.start + tensor.byte_offset - self.region.begin) // tensor.dtype.itemsize
        return DeviceTensor(self.outer.buffer, tensor.dtype, tensor.shape, tensor.strides, offset, self.outer.owner)

    def close(self) -> Iterator[Change]:
        found, before = bytearray(self.outer.nbytes), bytearray(self.size)
        self.device.copy_out(self.outer.buffer, 0, memoryview(found))
        self.device.copy_out(self.original, self.region.begin, memoryview(before))
        end = self.start + self.size
        if found[self.start : end] != before:
            self.device.copy(self.outer.buffer, self.start, self.original, self.region.begin, self.size)
        seen = torch.frombuffer(found, dtype=torch.uint8)
        yield from _changed(seen[: self.start], "before")
        yield from _changed(seen[end:], "behind")
