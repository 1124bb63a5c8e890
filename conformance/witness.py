"""What a backend does beside computing: torch's own operators that ran, memory that grew, clocks that were replaced."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import vendor_sdk

WINDOW = 8
"""Calls between two looks at the memory."""
WINDOWS = 3
"""Windows in a row in which memory must grow to make a leak likely."""
CONFIRMING = 4
"""A leak is confirmed over windows so many times longer, with Python's garbage collected before."""
LEAST_LEAK = 64
"""Bytes a call: the size of the smallest thing that a call can leave behind, a node of a list or a tensor's header."""

Memory = Callable[[], int]


class HostOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which of torch's operators ran on elements in host memory while the mode was on, but for those that the SDK calls
    to bring values to a device's memory and back.

    Attributes:
        seen: names of operators without overload (``"aten::add"``).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        found = result if isinstance(result, list | tuple) else (result,)
        if any(isinstance(item, torch.Tensor) and item.device.type == "cpu" and item.numel() for item in found):
            caller = _caller(sys._getframe(1))
            if caller is None or not vendor_sdk.of_transfer(caller):
                self.seen.add(func._schema.name)
        return result


def _caller(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not torch's own."""
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch":
        frame = frame.f_back
    return frame


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap() -> Memory | None:
    """Measures the bytes that this process has allocated with ``malloc``; ``None`` where the C library does not tell."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _MallocInfo

    def measure() -> int:
        info = function()
        return int(info.uordblks + info.hblkhd)

    return measure


def leak(call: Callable[[], object], memories: Sequence[Memory], window: int = WINDOW) -> int:
    """Bytes that each ``call`` leaves behind in one of ``memories``, 0 when memory stays level.

    Growth counts when it goes on in every window of calls; whatever is kept once (caches, pools) is not a leak.
    """

    def growth(measure: Memory, calls: int) -> int:
        before = measure()
        for _ in range(calls):
            call()
        return measure() - before

    for measure in memories:
        if all(growth(measure, window) >= window * LEAST_LEAK for _ in range(WINDOWS)):
            grown = []
            for _ in range(2):
                gc.collect()
                grown.append(growth(measure, CONFIRMING * window))
                gc.collect()
            if min(grown) >= CONFIRMING * window * LEAST_LEAK:
                return min(grown) // (CONFIRMING * window)
    return 0


_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep")
_ORACLE = ("violations", "reference", "outlined", "compile_graph", "trace", "OPSET")
_WATCHED: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in _CLOCKS),
    *((torch, name) for name in ("equal", "frombuffer")),
    *((vendor_sdk, name) for name in _ORACLE),
)
_ORIGINALS = [getattr(module, name) for module, name in _WATCHED]
"""As they were when this module was imported, which is before any plugin is."""


def replaced() -> list[str]:
    """Clocks and parts of the oracle that somebody has put something else in place of."""
    return [
        f"{module.__name__}.{name}"
        for (module, name), original in zip(_WATCHED, _ORIGINALS, strict=True)
        if getattr(module, name) is not original
    ]
