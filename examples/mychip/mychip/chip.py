"""The chip, simulated: a stand-in for a vendor's driver. It knows nothing of PyTorch or of vendor_sdk.

It has memory of its own, which the host cannot address. Buffers are opaque handles (integers that are no addresses); bytes go
in and out by ``write`` and ``read`` alone; work is a command: an opcode, then for each operand a handle and a byte offset,
then sizes and numbers.

    pointwise     out, x (, y (, z)), elements (, number)      packed operands of equal size
    matmul        out, a, b, batches, m, k, n                  (batches, m, k) @ (batches, k, n), row-major
    reduce        out, x, outer, reduced, inner                (outer, reduced, inner) over the middle one
    gather        out, x, width, sizes..., strides...          packs a strided operand of width bytes an element
    fill          out, elements, number
"""

from __future__ import annotations

import bisect
import functools
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ChipError(Exception):
    """The chip refused a command: unknown handle or opcode, range outside a buffer, memory full."""


@dataclass
class Statistics:
    """Counters since the chip was switched on. ``used`` and ``peak`` are bytes of memory; ``commands`` counts by opcode."""

    used: int = 0
    peak: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    commands: Counter[str] = field(default_factory=Counter)


class Chip:
    """One chip. Commands run in order, each before ``launch`` returns; threads take turns.

    Args:
        memory_bytes: size of its memory.
    """

    ALIGNMENT = 64

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self.memory_bytes = memory_bytes
        self.statistics = Statistics()
        self._arena: NDArray[np.uint8] = np.empty(memory_bytes, np.uint8)
        self._free = [(0, memory_bytes)]  # (start, size) by start; neighbours are merged
        self._buffers: dict[int, tuple[int, int]] = {}  # handle: (start, size)
        self._next_handle = 1
        self._lock = threading.Lock()

    # Memory

    def allocate(self, nbytes: int) -> int:
        """Handle of ``nbytes`` uninitialised bytes."""
        reserved = max(-(-nbytes // self.ALIGNMENT), 1) * self.ALIGNMENT
        with self._lock:
            index = next((index for index, (_, size) in enumerate(self._free) if size >= reserved), None)
            if index is None:
                raise ChipError(f"memory full: {nbytes} bytes wanted, {self.statistics.used} of {self.memory_bytes} in use")
            start, size = self._free.pop(index)
            if size > reserved:
                self._free.insert(index, (start + reserved, size - reserved))
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._buffers[handle] = (start, nbytes)
            self.statistics.used += reserved
            self.statistics.peak = max(self.statistics.peak, self.statistics.used)
            return handle

    def release(self, handle: int) -> None:
        """Gives a buffer back; its handle is never used again."""
        with self._lock:
            if handle not in self._buffers:
                raise ChipError(f"no buffer has handle {handle}")
            start, nbytes = self._buffers.pop(handle)
            size = max(-(-nbytes // self.ALIGNMENT), 1) * self.ALIGNMENT
            self.statistics.used -= size
            index = bisect.bisect(self._free, (start, 0))
            if index < len(self._free) and self._free[index][0] == start + size:
                size += self._free.pop(index)[1]
            if index > 0 and sum(self._free[index - 1]) == start:
                index -= 1
                start, size = self._free[index][0], self._free.pop(index)[1] + size
            self._free.insert(index, (start, size))

    def write(self, handle: int, offset: int, source: memoryview) -> None:
        """Copies host bytes into a buffer."""
        with self._lock:
            self._bytes(handle, offset, source.nbytes)[:] = np.frombuffer(source, np.uint8)
            self.statistics.bytes_in += source.nbytes

    def read(self, handle: int, offset: int, target: memoryview) -> None:
        """Copies bytes of a buffer to the host."""
        with self._lock:
            np.frombuffer(target, np.uint8)[:] = self._bytes(handle, offset, target.nbytes)
            self.statistics.bytes_out += target.nbytes

    def copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        """Copies within the chip."""
        with self._lock:
            self._bytes(target, target_offset, nbytes)[:] = self._bytes(source, source_offset, nbytes)

    def _bytes(self, handle: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        if handle not in self._buffers:
            raise ChipError(f"no buffer has handle {handle}")
        start, size = self._buffers[handle]
        if not 0 <= offset <= offset + nbytes <= size:
            raise ChipError(f"bytes {offset} to {offset + nbytes} are outside buffer {handle} of {size} bytes")
        return self._arena[start + offset : start + offset + nbytes]

    def _array(self, handle: int, offset: int, elements: int, dtype: str) -> Array:
        return self._bytes(handle, offset, elements * np.dtype(dtype).itemsize).view(dtype)

    # Commands

    def launch(self, opcode: str, *operands: int | float) -> None:
        """Runs one command; see the module's table. Arithmetic is float32, conditions are bytes."""
        with self._lock, np.errstate(all="ignore"):
            self.statistics.commands[opcode] += 1
            if opcode in POINTWISE:
                self._pointwise(opcode, *operands)
            elif opcode in REDUCE:
                self._reduce(opcode, *operands)
            elif opcode in OTHER:
                OTHER[opcode](self, *operands)
            else:
                raise ChipError(f"no such opcode: {opcode}")

    def _pointwise(self, opcode: str, *operands: Any) -> None:
        types, operation = POINTWISE[opcode]
        pairs, elements, numbers = operands[: 2 * len(types)], operands[2 * len(types)], operands[2 * len(types) + 1 :]
        arrays = [
            self._array(handle, offset, elements, dtype)
            for handle, offset, dtype in zip(pairs[::2], pairs[1::2], types, strict=True)
        ]
        arrays[0][:] = operation(*arrays[1:], *map(np.float32, numbers))

    def _reduce(self, opcode: str, *operands: Any) -> None:
        out, out_offset, x, x_offset, outer, reduced, inner = operands
        source = self._array(x, x_offset, outer * reduced * inner, "f4").reshape(outer, reduced, inner)
        self._array(out, out_offset, outer * inner, "f4").reshape(outer, inner)[:] = REDUCE[opcode](source)

    def _matmul(self, *operands: Any) -> None:
        out, out_offset, a, a_offset, b, b_offset, batches, m, k, n = operands
        left = self._array(a, a_offset, batches * m * k, "f4").reshape(batches, m, k)
        right = self._array(b, b_offset, batches * k * n, "f4").reshape(batches, k, n)
        np.matmul(left, right, out=self._array(out, out_offset, batches * m * n, "f4").reshape(batches, m, n))

    def _gather(self, *operands: Any) -> None:
        out, out_offset, x, x_offset, width, *layout = operands
        rank = len(layout) // 2
        sizes, strides = layout[:rank], layout[rank:]
        elements = math.prod(sizes)
        if elements:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
            source = self._array(x, x_offset, extent, f"V{width}")
            view = np.lib.stride_tricks.as_strided(source, sizes, [stride * width for stride in strides], writeable=False)
            self._array(out, out_offset, elements, f"V{width}").reshape(sizes)[...] = view

    def _fill(self, *operands: Any) -> None:
        out, out_offset, elements, number = operands
        self._array(out, out_offset, elements, "f4")[:] = number


F, B = "f4", "?"

POINTWISE: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "add": ((F, F, F), lambda x, y, alpha: x + (y if alpha == 1 else alpha * y)),
    "sub": ((F, F, F), lambda x, y, alpha: x - (y if alpha == 1 else alpha * y)),
    "mul": ((F, F, F), np.multiply),
    "div": ((F, F, F), np.divide),
    "maximum": ((F, F, F), np.maximum),
    "minimum": ((F, F, F), np.minimum),
    "neg": ((F, F), np.negative),
    "abs": ((F, F), np.abs),
    "relu": ((F, F), lambda x: np.maximum(x, np.float32(0))),
    "exp": ((F, F), functools.partial(np.exp, dtype="f8")),
    "log": ((F, F), functools.partial(np.log, dtype="f8")),
    "sqrt": ((F, F), np.sqrt),
    "rsqrt": ((F, F), lambda x: 1 / np.sqrt(x, dtype="f8")),
    "reciprocal": ((F, F), lambda x: np.float32(1) / x),
    "tanh": ((F, F), functools.partial(np.tanh, dtype="f8")),
    "eq": ((B, F, F), np.equal),
    "lt": ((B, F, F), np.less),
    "le": ((B, F, F), np.less_equal),
    "gt": ((B, F, F), np.greater),
    "ge": ((B, F, F), np.greater_equal),
    "where": ((F, B, F, F), np.where),
}
"""Opcode to the types of result and operands, and the arithmetic. Tables and accumulators are wider than the operands."""

REDUCE: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(1, dtype="f8"),
    "mean": lambda x: x.sum(1, dtype="f8") / np.float64(x.shape[1]),
    "amax": lambda x: x.max(1),
}

OTHER: dict[str, Callable[..., None]] = {"matmul": Chip._matmul, "gather": Chip._gather, "fill": Chip._fill}
