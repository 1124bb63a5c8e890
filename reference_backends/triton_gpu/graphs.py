"""CUDA graphs: the launches of a compiled graph, recorded and replayed as one (``mode="reduce-overhead"``).

They are captured on a stream of their own, so that nothing else of the process gets among them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator

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


@contextlib.contextmanager
def _workspaces_of_its_own() -> Iterator[None]:
    """cuBLAS gets its workspace from the graph's pool, and forgets it afterwards.

    Torch keeps one for each stream. A graph that found one there would use memory which is freed with another graph, or by
    whoever clears workspaces. There is no public name for clearing them (torch 2.11 to 2.13).
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class CudaRecorder(Recorder):
    """Records CUDA graphs, each with a memory pool of its own: what one leaves free is no place for another's results."""

    def stream(self) -> Hashable:
        return _current()()

    def record(self, run: Callable[[], None]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        # What the garbage collector finds may want to wait for the device.
        with torch.cuda.stream(aside), without_collections(), _workspaces_of_its_own():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that of the capture, which is why
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph
