"""Arenas at run time: each call borrows a frame, so calls from several threads, and calls inside calls, never share memory.

A frame is the arena's memory with the tensors in it that Python code needs. Frames of small static plans stay with their graph.
Larger memory is shared: one pool a device (and stream), which a call takes from and gives back to, so that all graphs
together hold what the largest of them needs, times the calls that run at once. ``release_memory`` frees what no call uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from vendor_sdk.ir.index import evaluate, from_size, symbols
from vendor_sdk.ir.memory import Layout, MemoryPlan
from vendor_sdk.run.blocks import BLOCKS, LARGE, shaped, tensor_over_block

SMALL = 1 << 18
"""Bytes of an arena up to which idle frames keep it."""
LAYOUTS = 64
"""Tuples of symbol values for which a graph remembers offsets."""


class FrameTensor(Protocol):
    """A tensor that frames hold: the buffer it lies in, its fake shape, its dtype; strides (``None``: contiguous) and offset,
    in elements."""

    @property
    def number(self) -> int: ...
    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def strides(self) -> tuple[int, ...] | None: ...
    @property
    def offset(self) -> int: ...


@dataclass(eq=False, slots=True)
class Frame:
    """What one call has for itself.

    Attributes:
        base: address of the arena.
        offsets: address of the table of offsets by buffer; 0 for a static plan, whose offsets are constants.
        tensors: in the arena, for Python code.
        lent: whether the memory is somebody else's, who wants it back at the end of the call.
    """

    base: int
    offsets: int
    tensors: list[torch.Tensor]
    memory: torch.Tensor
    layout: _Numbers
    lent: bool = False


@dataclass(eq=False)
class _Numbers:
    """A layout for one tuple of symbol values, with the table that native code reads."""

    layout: Layout
    shapes: list[tuple[int, ...]]
    offsets: Any
    idle: list[Frame] = field(default_factory=list)
    """frames whose memory is in the pool: their tensors serve again when they get the same"""


class Frames:
    """The frames of one compiled graph.

    Args:
        plan: its memory plan.
        lay_out: offsets for sizes of the plan's buffers.
        device: where the arena is.
        pooled: whether memory comes from the pool, however little it is.

    Attributes:
        symbols: names of the shape symbols whose values ``take`` gets.
        idle: frames that keep their memory, where one size serves all calls and is small; else None.
    """

    def __init__(
        self, plan: MemoryPlan, lay_out: Callable[[Sequence[int]], Layout], device: torch.device, *, pooled: bool = False
    ) -> None:
        self.plan, self.device = plan, device
        self.symbols: tuple[str, ...] = plan.symbols if plan.fixed is None else ()
        self._lay_out = lay_out
        self._wanted: list[FrameTensor] = []
        self._layouts: OrderedDict[tuple[int, ...], _Numbers] = OrderedDict()
        self._lock = threading.Lock()
        small = plan.fixed is not None and plan.fixed.arena_bytes <= SMALL and device.type == "cpu" and not pooled
        self.idle: list[Frame] | None = [] if small else None
        notify(self)

    def want(self, tensors: Sequence[FrameTensor]) -> None:
        """Says which tensors each frame holds; once, before the first call."""
        self._wanted = list(tensors)
        used = {name for t in tensors for size in t.shape for name in symbols(from_size(size))}
        self.symbols = tuple(sorted(used.union(self.symbols)))
        if self.symbols:  # of tensors without elements, where a plan of known sizes has them
            self.idle = None

    def layout(self, *values: int) -> Layout:
        """The offsets for values of ``symbols``."""
        return self._numbers(values).layout

    def take(self, *values: int) -> Frame:
        """A frame for one call with these values of ``symbols``."""
        numbers = self._numbers(values)
        nbytes = numbers.layout.arena_bytes
        if self.idle is not None:
            return self._frame(numbers, _fresh(nbytes, self.device, self.plan.alignment))
        memory = _pool(self.device).take(nbytes, self.plan.alignment)
        if (lent := getattr(_thread, "lent", None)) is not None:
            lent.append((_pool(self.device), memory))
        base = memory.data_ptr()
        try:
            frame = numbers.idle.pop()
        except IndexError:
            return self._frame(numbers, memory)
        return frame if frame.base == base else self._frame(numbers, memory)

    def within(self, memory: torch.Tensor | None) -> Frame:
        """A frame for one call of a static plan in ``memory``, flat and at least of the arena's size; as ``take`` without."""
        if memory is None:
            return self.take()
        frame = self._frame(self._numbers(()), memory)
        frame.lent = True
        return frame

    def give(self, frame: Frame) -> None:
        """Ends the call that ``frame`` was taken for."""
        if frame.lent:
            return
        _pool(self.device).give(frame.memory)
        frame.layout.idle.append(frame)

    def forget(self) -> None:
        """Drops idle frames, and with them what they refer to."""
        with self._lock:
            if self.idle is not None:
                self.idle.clear()
            for numbers in self._layouts.values():
                numbers.idle.clear()

    def _numbers(self, values: tuple[int, ...]) -> _Numbers:
        with self._lock:
            numbers = self._layouts.get(values)
            if numbers is not None:
                self._layouts.move_to_end(values)
                return numbers
        known = dict(zip(self.symbols, values, strict=True))
        layout = self.plan.fixed or self._lay_out(self.plan.sizes(known))
        table = None
        if self.plan.fixed is None:
            table = (ctypes.c_int64 * max(len(self.plan.buffers), 1))()
            for number, place in layout.places.items():
                table[number] = place.offset
        shapes = [tuple(evaluate(from_size(size), known) for size in t.shape) for t in self._wanted]
        numbers = _Numbers(layout, shapes, table)
        with self._lock:
            self._layouts[values] = numbers
            while len(self._layouts) > LAYOUTS:
                self._layouts.popitem(last=False)
        return numbers

    def _frame(self, numbers: _Numbers, memory: torch.Tensor) -> Frame:
        places = numbers.layout.places
        tensors = [
            shaped(memory, places[t.number].offset + t.offset * t.dtype.itemsize, shape, t.dtype, t.strides)
            for t, shape in zip(self._wanted, numbers.shapes, strict=True)
        ]
        table = ctypes.addressof(numbers.offsets) if numbers.offsets is not None else 0
        return Frame(memory.data_ptr(), table, tensors, memory, numbers)


class Pool:
    """Arena memory of one device and stream. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._idle: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int, alignment: int) -> torch.Tensor:
        """The memory last given back that is large enough; one that is too small makes way for a larger one."""
        with self._lock:
            for index in reversed(range(len(self._idle))):
                memory = self._idle[index]
                if memory.numel() >= nbytes and memory.data_ptr() % alignment == 0:
                    return self._idle.pop(index)
            outgrown = self._idle.pop() if self._idle else None
        if outgrown is not None:
            del outgrown
            _forget_all()  # idle frames refer to it
        return _fresh(nbytes, self.device, alignment)

    def give(self, memory: torch.Tensor) -> None:
        with self._lock:
            self._idle.append(memory)

    def claim(self, memory: torch.Tensor) -> bool:
        """Takes this very memory, if it is idle here; ``give`` ends it."""
        with self._lock:
            for index, idle in enumerate(self._idle):
                if idle is memory:
                    del self._idle[index]
                    return True
        return False

    def release(self) -> int:
        with self._lock:
            # Large memory of the host goes back to the pool of blocks, which counts it.
            freed = sum(m.numel() for m in self._idle if self.device.type != "cpu" or m.numel() < LARGE)
            self._idle.clear()
        return freed


def _fresh(nbytes: int, device: torch.device, alignment: int) -> torch.Tensor:
    """Flat uint8 memory, aligned."""
    spare = alignment if alignment > 64 else 0  # torch and the pool of blocks align to 64 and more
    size = max(nbytes + spare, 1)
    # Frames outlive an inference mode that they may be made in.
    with torch.inference_mode(False):
        warm = device.type == "cpu" and size >= LARGE
        flat = tensor_over_block(size) if warm else torch.empty(size, dtype=torch.uint8, device=device)
        start = -flat.data_ptr() % alignment
        return flat if start == 0 else flat[start:]


def _stream(device: torch.device) -> int:
    """What orders the work of one call before that of the next: memory serves calls on one stream only."""
    stream = getattr(_thread, "stream", None)
    if stream is not None:
        return int(stream)
    if device.type == "cpu":
        return 0
    return hash(torch.accelerator.current_stream(device))


def _pool(device: torch.device) -> Pool:
    key = (device, _stream(device))
    pool = _pools.get(key)
    return pool if pool is not None else _pools.setdefault(key, Pool(device))


@contextlib.contextmanager
def lending(device: torch.device) -> Iterator[list[tuple[Pool, torch.Tensor]]]:
    """What this thread's calls take meanwhile, with the pools it comes from: those of the current stream, even where calls are
    recorded on another."""
    _thread.stream = _stream(device)
    _thread.lent = []
    try:
        yield _thread.lent
    finally:
        _thread.lent = _thread.stream = None


class Forgetful(Protocol):
    """What refers to idle memory."""

    def forget(self) -> None: ...


def notify(who: Forgetful) -> None:
    """Asks ``who``, as long as it exists, to forget idle memory when that goes."""
    _everyone.add(who)


def _forget_all() -> None:
    for each in list(_everyone):
        each.forget()


_thread = threading.local()
_pools: dict[tuple[torch.device, int], Pool] = {}
_everyone: weakref.WeakSet[Forgetful] = weakref.WeakSet()
keepers: set[Callable[[], int]] = set()
"""what else frees memory kept between calls (``Emitter.release``)"""


def release_memory() -> int:
    """Frees the memory that compiled graphs keep between calls: idle arenas, and blocks of outputs that are gone.

    Calls that run meanwhile, and tensors that exist, are not touched. The next call of each graph allocates again.

    Returns:
        the bytes given back, as far as they are known (memory that small graphs keep is not counted).
    """
    _forget_all()
    return sum(pool.release() for pool in list(_pools.values())) + sum(free() for free in list(keepers)) + BLOCKS.release()
