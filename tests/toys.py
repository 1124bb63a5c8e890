"""Small backends for the SDK's own tests: one on torch's memory, one with memory of its own. Neither is a reference backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import vendor_sdk
from tests import toyloops
from vendor_sdk import (
    Backend,
    Device,
    DeviceError,
    DeviceProperties,
    DeviceTensor,
    Kernel,
    Legalization,
    MemoryStats,
    destination,
    hookimpl,
)
from vendor_sdk.contract import discovery, loader

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.int64, torch.bool})


class Toy:
    """Kernels on torch's own memory that return their results."""

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name="toy", version="1", dtypes=DTYPES)

    @hookimpl
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "add": torch.add,
            "mul": torch.mul,
            "mm": torch.mm,
            "tanh": torch.tanh,
            "exp": torch.exp,
            "div": torch.div,
            "max.dim": lambda x, dim, keepdim=False: tuple(torch.max(x, dim, keepdim)),
        }


class ToyMemory(Device):
    """Bytes reachable only by handle, poisoned when freed."""

    def __init__(self) -> None:
        self.buffers: dict[int, bytearray] = {}
        self.next = 1
        self.peak = 0
        self.lock = threading.Lock()

    def allocate(self, nbytes: int) -> int:
        with self.lock:
            handle, self.next = self.next, self.next + 1
            self.buffers[handle] = bytearray(b"\xab" * nbytes)
            self.peak = max(self.peak, sum(map(len, self.buffers.values())))
            return handle

    def free(self, buffer: int) -> None:
        with self.lock:
            if self.buffers.pop(buffer, None) is None:
                raise DeviceError(f"double free of {buffer}")

    def copy_in(self, source: memoryview, target: int, offset: int) -> None:
        memory = self.buffers[target]
        assert offset + len(source) <= len(memory)
        memory[offset : offset + len(source)] = source

    def copy_out(self, source: int, offset: int, target: memoryview) -> None:
        target[:] = self.buffers[source][offset : offset + len(target)]

    def copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        self.buffers[target][target_offset : target_offset + nbytes] = self.buffers[source][
            source_offset : source_offset + nbytes
        ]

    def synchronize(self) -> None:
        pass

    def memory_stats(self) -> MemoryStats:
        return MemoryStats(sum(map(len, self.buffers.values())), self.peak)

    def properties(self) -> DeviceProperties:
        return DeviceProperties(name="toy memory")

    def array(self, value: DeviceTensor) -> torch.Tensor:
        """A device value as the chip itself sees it."""
        flat = (
            torch.frombuffer(self.buffers[value.buffer], dtype=value.dtype)
            if self.buffers[value.buffer]
            else torch.empty(0, dtype=value.dtype)
        )
        return flat.as_strided(value.shape, value.strides, value.offset)


class ToyChip:
    """A chip with its own memory that wants everything spelled out and has no 64-bit types."""

    def __init__(self) -> None:
        self.memory = ToyMemory()

    @hookimpl
    def backend(self) -> Backend:
        return Backend(
            name="toychip",
            version="1",
            dtypes=frozenset({torch.float32, torch.int32, torch.bool}),
            legalize=Legalization(
                explicit_broadcast=True,
                explicit_promotion=True,
                no_scalars=True,
                contiguous_inputs=True,
                no_float64=True,
                no_int64=True,
            ),
        )

    @hookimpl
    def device(self) -> Device:
        return self.memory

    @hookimpl
    def kernels(self) -> Mapping[str, Kernel]:
        def elementwise(function: Callable[..., torch.Tensor]) -> Kernel:
            def run(out: DeviceTensor, *operands: DeviceTensor) -> None:
                for operand in operands:
                    assert operand.shape == out.shape
                    assert operand.contiguous
                    assert operand.dtype not in (torch.int64, torch.float64)
                self.memory.array(out).copy_(function(*map(self.memory.array, operands)))

            return destination(run)

        def mm(out: DeviceTensor, a: DeviceTensor, b: DeviceTensor) -> None:
            assert a.contiguous
            assert b.contiguous
            self.memory.array(out).copy_(self.memory.array(a) @ self.memory.array(b))

        def full(out: DeviceTensor, size: list[int], value: float, *, dtype: torch.dtype) -> None:
            self.memory.array(out).fill_(value)

        return {
            "add": elementwise(torch.add),
            "mul": elementwise(torch.mul),
            "tanh": elementwise(torch.tanh),
            "exp": elementwise(torch.exp),
            "mm": destination(mm),
            "full": destination(full),
        }


def register_toys() -> None:
    """Makes ``toy``, ``toychip`` and ``toyloops`` known to this process, once."""
    for name, plugin in (("toy", Toy), ("toychip", ToyChip), ("toyloops", lambda: toyloops)):
        if not loader.known(name):
            vendor_sdk.register(plugin())


def offer(name: str, plugin: str, folder: Path) -> Path:
    """Makes ``folder`` one that, on ``PYTHONPATH``, offers a backend to another process as an installed package would.

    Args:
        name: of the backend.
        plugin: its module.
    """
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    groups = {discovery.GROUP: plugin, discovery.DYNAMO_GROUP: f"vendor_sdk.dynamo:{name}"}
    lines = [f"[{group}]\n{name} = {target}\n" for group, target in groups.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    return folder


KINDS = ("toy", "toyloops", "toychip", "cpp_cpu", "onnxruntime")
"""Backends of each kind: kernels, an emitter, memory of its own; compiled code, whole graphs."""


def use_kind(name: str) -> str:
    """Makes one of ``KINDS`` ready, with nothing compiled before; skips the test where what it drives is not installed."""
    register_toys()
    torch._dynamo.reset()
    if name == "onnxruntime":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    return name
