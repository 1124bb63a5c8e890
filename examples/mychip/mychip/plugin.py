"""Makes mychip a torch.compile backend: who it is, where its memory is, what it computes. Everything else runs on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mychip.chip import Chip, ChipError
from vendor_sdk import (
    Backend,
    Decline,
    Device,
    DeviceError,
    DeviceProperties,
    DeviceTensor,
    Kernel,
    Legalization,
    MemoryStats,
    NodeContext,
    Supported,
    TensorInfo,
    destination,
    hookimpl,
)

CHIP = Chip()


@hookimpl
def backend() -> Backend:
    return Backend(
        name="mychip",
        version="0.1.0",
        dtypes=frozenset({torch.float32, torch.bool}),
        legalize=Legalization(
            explicit_broadcast=True, explicit_promotion=True, no_scalars=True, contiguous_inputs=True, no_float64=True
        ),
        notes={"float32 sum": "accumulates in float64"},
    )


class MyDevice(Device):
    """The chip's memory: every method forwards to the driver. Buffers are the driver's handles."""

    def allocate(self, nbytes: int) -> int:
        try:
            return CHIP.allocate(nbytes)
        except ChipError as error:
            raise DeviceError(f"mychip: {error}") from error

    def free(self, buffer: int) -> None:
        CHIP.release(buffer)

    def copy_in(self, source: memoryview, target: int, offset: int) -> None:
        CHIP.write(target, offset, source)

    def copy_out(self, source: int, offset: int, target: memoryview) -> None:
        CHIP.read(source, offset, target)

    def copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        CHIP.copy(source, source_offset, target, target_offset, nbytes)

    def synchronize(self) -> None:
        """Commands are done when they return."""

    def memory_stats(self) -> MemoryStats:
        return MemoryStats(CHIP.statistics.used, CHIP.statistics.peak, CHIP.memory_bytes)

    def properties(self) -> DeviceProperties:
        return DeviceProperties(name="mychip", memory_bytes=CHIP.memory_bytes, alignment=Chip.ALIGNMENT)


@hookimpl
def device() -> Device:
    return MyDevice()


@hookimpl
def supports(node: NodeContext) -> Supported | Decline:
    tensors = [value for value in (*node.args, *node.outputs) if isinstance(value, TensorInfo)]
    numbers = tensors[1:] if node.prim == "where" else tensors[:-1] if node.prim in COMPARISONS else tensors
    if node.prim != "clone" and any(tensor.dtype != torch.float32 for tensor in numbers):
        return Decline("the arithmetic unit is float32")
    if node.prim in REDUCTIONS and not adjacent(dimensions(len(tensors[0].shape), node.args[1:], node.kwargs)):
        return Decline("the reduction unit takes adjacent dimensions only")
    return Supported()


def at(*tensors: DeviceTensor) -> list[int]:
    """Operands of a command: the handle and byte offset of each tensor."""
    return [number for tensor in tensors for number in (tensor.buffer, tensor.byte_offset)]


def pointwise(opcode: str, out: DeviceTensor, *operands: DeviceTensor) -> None:
    CHIP.launch(opcode, *at(out, *operands), out.numel)


def scaled(opcode: str, out: DeviceTensor, x: DeviceTensor, y: DeviceTensor, *, alpha: float = 1) -> None:
    CHIP.launch(opcode, *at(out, x, y), out.numel, alpha)


def matmul(out: DeviceTensor, a: DeviceTensor, b: DeviceTensor) -> None:
    CHIP.launch("matmul", *at(out, a, b), math.prod(a.shape[:-2]), *a.shape[-2:], b.shape[-1])


def reduce(opcode: str, out: DeviceTensor, x: DeviceTensor, *args: Any, **kwargs: Any) -> None:
    dims = dimensions(len(x.shape), args, kwargs)
    first, last = (dims[0], dims[-1] + 1) if dims else (0, 0)
    CHIP.launch(opcode, *at(out, x), *map(math.prod, (x.shape[:first], x.shape[first:last], x.shape[last:])))


def dimensions(rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """The dimensions that ``(dim, keepdim, ...)`` of a reduction names, counted from 0, in order; all of them for none."""
    dim = args[0] if args else kwargs.get("dim")
    named = range(rank) if dim in (None, []) else [dim] if isinstance(dim, int) else dim
    return sorted(d % rank for d in named) if rank else []


def adjacent(dims: Sequence[int]) -> bool:
    return not dims or list(dims) == list(range(dims[0], dims[-1] + 1))


def full(out: DeviceTensor, size: Sequence[int], value: float, **_: Any) -> None:
    CHIP.launch("fill", *at(out), out.numel, float(value))


def clone(out: DeviceTensor, x: DeviceTensor, **_: Any) -> None:
    CHIP.launch("gather", *at(out, x), x.dtype.itemsize, *x.shape, *x.strides)


COMPARISONS = ("eq", "lt", "le", "gt", "ge")
REDUCTIONS = ("sum", "mean", "amax")
UNARY = ("neg", "abs", "relu", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh")
BINARY = ("mul", "div", "maximum", "minimum", *COMPARISONS)


@hookimpl
def kernels() -> Mapping[str, Kernel]:
    table: dict[str, Callable[..., None]] = {"mm": matmul, "bmm": matmul, "full": full, "clone": clone}
    table |= {name: functools.partial(pointwise, name) for name in (*UNARY, *BINARY, "where")}
    table |= {name: functools.partial(scaled, name) for name in ("add", "sub")}
    table |= {name: functools.partial(reduce, name) for name in REDUCTIONS}
    return {name: destination(call) for name, call in table.items()}
