"""Programs: runs of consecutive launches, which an emitter may turn into one native call.

The wrapper is generated Python. Where several launches follow one another it offers them to ``Emitter.link`` as a ``Program``:
which kernels, where each finds its buffers, which numbers it gets, which results are to be allocated. An emitter that can
returns an ``Entry``, and the wrapper calls that instead of launching one by one.

    program = Program(inputs, results, numbers, steps)
    step    = Step(launch, buffers, numbers, spare)
    spare   = Spare(buffer, nbytes)             memory that the launch may use as it likes
    buffer  = Buffer(base, index, offset)       base: "arena" | "input" | "result"
    number  = int | Argument(index)             a constant, or a number of the call
    offset  = int | Offset(index)               a constant, or an entry of the call's offset table
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class Argument:
    """The number that the caller passes at ``index``."""

    index: int


@dataclass(frozen=True)
class Offset:
    """The entry at ``index`` of the table of int64 byte offsets that the caller passes."""

    index: int


Number = int | float | Argument
"""A seed in memory (``Emitter.seeds_in_memory``) is a number here too: its address."""


def float_bits(value: float) -> int:
    """The bits of a float64 as an int64."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


@dataclass(frozen=True)
class Result:
    """A contiguous tensor to allocate; a large one best in memory whose pages have been touched before.

    Attributes:
        passing: whether it dies within the call, for others to be allocated: its memory should be kept for nobody.
    """

    dtype: torch.dtype
    shape: tuple[int | Argument, ...]
    passing: bool = False


@dataclass(frozen=True)
class Buffer:
    """Where a launch finds a buffer: ``offset`` bytes behind the first element of an input, of a result, or of the arena."""

    base: Literal["arena", "input", "result"]
    index: int
    offset: int | Offset


@dataclass(frozen=True)
class Spare:
    """Memory of the call that nothing needs during one launch: ``nbytes`` from ``buffer`` on, aligned as buffers are. What is
    there before and after is undefined."""

    buffer: Buffer
    nbytes: int | Argument


@dataclass(frozen=True)
class Step:
    """One launch.

    Attributes:
        launch: what ``Emitter.compile`` returned for the kernel, or a native kernel's own (``NativeCall.launch``).
        buffers: in the order of ``LoopKernel.params``; of a native kernel its operands, then the node's results.
        numbers: in the order of ``LoopKernel.symbols`` or ``NativeCall.numbers``; float64 ones are floats.
        spare: what the launch may take its scratch memory from before it asks anybody else, one stretch or several; none where
            sizes are symbolic, and where the plan is full.
    """

    launch: Callable[..., None]
    buffers: tuple[Buffer, ...]
    numbers: tuple[Number, ...]
    spare: tuple[Spare, ...] = ()


@dataclass(frozen=True)
class Program:
    """A run of launches, in order.

    Attributes:
        inputs: for each tensor that the caller passes, the strides (in elements) with which launches read it; ``None`` where it
            surely has them. A tensor with others is replaced by ``as_traced(tensor, strides)``, a copy. Strides of dimensions
            of size 1, and of empty tensors, do not count.
        results: tensors that the entry allocates and returns.
        numbers: whether each number of the call is a float (float64) rather than an int (int64).
        steps: the launches.
        nbytes: bytes that the launches touch, where sizes are static; ``None`` otherwise. Below some tens of thousands it does
            not pay to let other threads of Python run meanwhile.
        as_traced: ``as_traced(tensor, strides)``.
    """

    inputs: tuple[tuple[int | Argument, ...] | None, ...]
    results: tuple[Result, ...]
    numbers: tuple[bool, ...]
    steps: tuple[Step, ...]
    nbytes: int | None
    as_traced: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]


Entry = Callable[..., Any]
"""``entry(arena, offsets, *inputs, *numbers)``: runs a program, from any thread, also several times at once.

``arena`` and ``offsets`` are the addresses (ints) of the arena and of the table of offsets, 0 where the program uses none.
Returns ``None`` without results, the tensor of a single one, else a tuple of them. What a launch raises comes as
``StepError``."""


class StepError(Exception):
    """A launch inside a program failed.

    Attributes:
        step: its position in ``Program.steps``.
        cause: what the launch would have raised by itself.
    """

    def __init__(self, step: int, cause: Exception) -> None:
        super().__init__(step, cause)
        self.step = step
        self.cause = cause
