"""``vendor_sdk.profile``: time, bytes and shapes of each kernel, host operator and partition that compiled graphs run.

A profiled graph launches its kernels one at a time and waits for each: the times are those of kernels, not of whole calls.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vendor_sdk import pipeline, terminal, torch_private
from vendor_sdk.contract.device import Device, DeviceTensor, TorchDevice
from vendor_sdk.contract.loader import Session

COPY = "copy GB/s"
"""The peak of ``DeviceProperties.peaks`` that bytes are compared with."""
PROBE_BYTES = 1 << 26
"""Copied to measure the bandwidth of memory that torch owns."""
ROWS = 25
BAR = 24


@dataclass(frozen=True)
class Event:
    """One launch.

    Attributes:
        name: of the kernel (``k3_exp_sum``), or of the prim.
        kind: ``"kernel"``, ``"host"`` or ``"partition"``.
        backend: name.
        start, seconds: on the clock ``time.perf_counter``, the device's work included.
        bytes: of the tensors it got and made, each counted whole and once.
        shapes: of these tensors, with dtypes.
        first: whether it was the kernel's first launch, which may have waited for a compiler.
    """

    name: str
    kind: str
    backend: str
    start: float
    seconds: float
    bytes: int
    shapes: tuple[str, ...]
    first: bool = False


@dataclass(frozen=True)
class Total:
    """All launches of one name and kind.

    Attributes:
        calls, seconds, bytes: sums.
        share: of the time of all launches, from 0 to 1.
        of_peak: bytes over time, as a share of the copy bandwidth of the device; None where no peak is known.
        shapes: of its first launch.
    """

    name: str
    kind: str
    backend: str
    calls: int
    seconds: float
    bytes: int
    share: float
    of_peak: float | None
    shapes: tuple[str, ...]


@dataclass
class Profile:
    """What ``profile`` saw.

    Attributes:
        events: launches, in order.
        peaks: bytes per second of a copy, by backend: what its device declares, else (for torch's own devices) as measured.
    """

    events: list[Event] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)

    def totals(self) -> list[Total]:
        """By name and kind, the longest first. First launches count only where there are no others."""
        groups: dict[tuple[str, str, str], list[Event]] = collections.defaultdict(list)
        for event in self.events:
            groups[event.name, event.kind, event.backend].append(event)
        groups = {key: [event for event in events if not event.first] or events for key, events in groups.items()}
        whole = sum(event.seconds for events in groups.values() for event in events) or 1.0
        totals = []
        for (name, kind, backend), events in groups.items():
            seconds, size = sum(event.seconds for event in events), sum(event.bytes for event in events)
            peak = self.peaks.get(backend) if kind != "host" else None
            of_peak = size / seconds / peak if peak and seconds else None
            totals.append(Total(name, kind, backend, len(events), seconds, size, seconds / whole, of_peak, events[0].shapes))
        return sorted(totals, key=lambda total: -total.seconds)

    def to_json(self) -> str:
        """Totals and events as JSON text."""
        record = {"peaks": self.peaks, "totals": list(map(vars, self.totals())), "events": list(map(vars, self.events))}
        return json.dumps(record, indent=2)

    def chrome_trace(self, path: str | Path) -> None:
        """Writes the events as a trace for chrome://tracing and ui.perfetto.dev."""
        first = min((event.start for event in self.events), default=0.0)
        trace = [
            {
                "name": event.name, "cat": event.kind, "ph": "X", "pid": event.backend, "tid": event.kind,
                "ts": (event.start - first) * 1e6, "dur": event.seconds * 1e6,
                "args": {"bytes": event.bytes, "shapes": list(event.shapes)},
            }
            for event in self.events
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": trace, "displayTimeUnit": "ms"}))

    def print(self, console: Console | None = None) -> None:
        """Prints a bar for each kernel, the longest first."""
        console = console or terminal.console()
        totals = self.totals()
        calls, seconds = sum(total.calls for total in totals), sum(total.seconds for total in totals)
        table = Table(title=f"{calls} launches, {seconds * 1e3:.3f} ms; {len(self.events) - calls} first ones left out")
        for column in ("kernel", "", "share", "calls", "ms", "MB", "of peak", "shapes of the first"):
            table.add_column(
                column, justify="left" if column in ("kernel", "", "shapes of the first") else "right", overflow="fold"
            )
        for total in totals[:ROWS]:
            bar = "█" * max(round(total.share * BAR), 1)
            table.add_row(
                total.name if total.kind == "kernel" else f"{total.name} ({total.kind})",
                bar,
                f"{total.share:.1%}",
                str(total.calls),
                f"{total.seconds * 1e3:.3f}",
                f"{total.bytes / 1e6:.3f}",
                "" if total.of_peak is None else f"{total.of_peak:.0%}",
                ", ".join(total.shapes),
            )
        console.print(table)
        if len(totals) > ROWS:
            console.print(f"and {len(totals) - ROWS} more, which to_json() lists")
        for backend, peak in self.peaks.items():
            console.print(f"{backend}: the peak is a copy at {peak / 1e9:.1f} GB/s", markup=False, highlight=False)


@contextmanager
def profile() -> Iterator[Profile]:
    """Times every kernel of the graphs that are compiled meanwhile; what was compiled before is compiled anew.

        with vendor_sdk.profile() as seen:
            torch.compile(model, backend="mychip")(x)
        seen.print()

    Under ``torch.profiler.profile()`` each launch is an event of its own, ``mychip::k3_exp_sum``, too.
    """
    seen = Profile()
    lock = threading.Lock()
    bandwidth: dict[str, float] = {}

    def observe(session: Session, name: str, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        backend = session.loaded.backend.name
        wait = _wait(session)
        if backend not in seen.peaks and (peak := _peak(session, bandwidth)):
            seen.peaks[backend] = peak

        calls = itertools.count()

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            with torch.profiler.record_function(f"{backend}::{name}"):
                started = time.perf_counter()
                result = function(*args, **kwargs)
                wait()
                seconds = time.perf_counter() - started
            tensors = list({id(tensor): tensor for tensor in _tensors((args, kwargs, result))}.values())
            size = sum(tensor.nbytes for tensor in tensors)
            with lock:
                shapes = tuple(map(_shape, tensors))
                seen.events.append(Event(name, kind, backend, started, seconds, size, shapes, next(calls) == 0))
            return result

        return observed

    torch_private.forget_compiled()
    try:
        with pipeline.observing(observe):
            yield seen
    finally:
        torch_private.forget_compiled()


def _wait(session: Session) -> Callable[[], None]:
    device = session.device
    if isinstance(device, Device):
        return device.synchronize
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def _peak(session: Session, measured: dict[str, float]) -> float | None:
    """Bytes per second that a copy reads and writes."""
    device = session.device
    if isinstance(device, Device):
        declared = device.properties().peaks.get(COPY)
        return declared * 1e9 if declared else None
    if device.type not in measured:
        measured[device.type] = _copy_bandwidth(device)
    return measured[device.type]


def _copy_bandwidth(device: TorchDevice) -> float:
    source = torch.ones(PROBE_BYTES, dtype=torch.uint8, device=device.type)
    target = torch.empty_like(source)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 2 * PROBE_BYTES / min(times)


def _tensors(value: Any) -> Iterator[torch.Tensor | DeviceTensor]:
    if isinstance(value, torch.Tensor | DeviceTensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)


def _shape(tensor: torch.Tensor | DeviceTensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
