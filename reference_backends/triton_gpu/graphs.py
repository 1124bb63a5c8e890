"""CUDA graphs: the launches of a compiled graph, recorded and replayed as one (``mode="reduce-overhead"``).

They are captured on a stream of their own, so that nothing else of the process gets among them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable

import torch

from vendor_sdk import Recorder, Recording, without_collections


@functools.cache
def _current() -> Callable[[], tuple[int, int]]:
    """What tells the current device and stream, as launches ask for them."""
    from triton.runtime import driver

    active = driver.active

    def current() -> tuple[int, int]:
        device = active.get_current_device()
        return device, active.get_current_stream(device)

    return current


class CudaRecorder(Recorder):
    """Records CUDA graphs, each with a memory pool of its own: what one leaves free is no place for another's results.

    Graphs that are replayed on one stream are captured on one: they share the workspaces that libraries keep for it.
    """

    def __init__(self) -> None:
        self._aside: dict[Hashable, torch.cuda.Stream] = {}

    def stream(self) -> Hashable:
        return _current()()

    def record(self, run: Callable[[], None]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        here = self.stream()
        aside = self._aside.get(here) or self._aside.setdefault(here, torch.cuda.Stream())  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        # What the garbage collector finds may want to wait for the device.
        with torch.cuda.stream(aside), without_collections():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that of the capture, which is why
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph
