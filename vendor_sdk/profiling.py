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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vendor_sdk import pipeline, terminal, torch_private
from vendor_sdk.contract.loader import Session
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.launches import COPY, Launch, Peaks, shape_of, waiting

ROWS = 25
BAR = 24


@dataclass(frozen=True)
class Event:
    """One launch.

    Attributes:
        name: of the kernel (``k3_exp_sum``), or of the prim.
        kind: ``"kernel"``, ``"host"`` or ``"partition"``.
        backend: name.
        graph: which of the compiled graphs, in the order of their first launches, and its direction (``"0 forward"``).
        start, seconds: on the clock ``time.perf_counter``, the device's work included.
        bytes: of the tensors it got and made, each counted whole and once.
        flops: of its matrix products and convolutions; a multiplication and an addition are two.
        shapes: of these tensors, with dtypes.
        at_peak: seconds that its bytes and products take at best; None on the host, and where no peak is known.
        first: whether it was the kernel's first launch, which may have waited for a compiler.
    """

    name: str
    kind: str
    backend: str
    graph: str
    start: float
    seconds: float
    bytes: int
    flops: int
    shapes: tuple[str, ...]
    at_peak: float | None
    first: bool = False

    @property
    def of_peak(self) -> float | None:
        """The fraction of the peak."""
        return _fraction([self])


@dataclass(frozen=True)
class Total:
    """All launches of one step of a graph, or of several that are alike, with the same shapes.

    Attributes:
        calls, seconds, bytes, flops: sums.
        share: of the time of all launches, from 0 to 1.
        of_peak: the time that bytes at the speed of a copy and products at their rate take, the longer, over that taken; None
            on the host, and where no peak is known.
        shapes: of what one launch reads and makes.
    """

    name: str
    kind: str
    backend: str
    graph: str
    calls: int
    seconds: float
    bytes: int
    flops: int
    share: float
    of_peak: float | None
    shapes: tuple[str, ...]


@dataclass(repr=False)
class Profile:
    """What ``profile`` saw. As a string it is what ``print`` shows.

    Attributes:
        events: launches, in order.
        peaks: those that launches were held against, by backend, in the terms of ``DeviceProperties.peaks``: what its device
            declares, else (for torch's own devices) as measured.
    """

    events: list[Event] = field(default_factory=list)
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Profile of {len(self.events)} launches>"

    def __str__(self) -> str:
        return terminal.as_text(self.print)

    def totals(self) -> list[Total]:
        """By graph, name, kind and shapes, the longest first. First launches count only where there are no others."""
        groups: dict[tuple[str, str, str, str, tuple[str, ...]], list[Event]] = collections.defaultdict(list)
        for event in self.events:
            groups[event.name, event.kind, event.backend, event.graph, event.shapes].append(event)
        groups = {key: [event for event in events if not event.first] or events for key, events in groups.items()}
        whole = sum(event.seconds for events in groups.values() for event in events) or 1.0
        totals = []
        for (name, kind, backend, graph, shapes), events in groups.items():
            seconds = sum(event.seconds for event in events)
            size, flops = (sum(each) for each in zip(*((event.bytes, event.flops) for event in events), strict=True))
            share, fraction = seconds / whole, _fraction(events)
            totals.append(Total(name, kind, backend, graph, len(events), seconds, size, flops, share, fraction, shapes))
        return sorted(totals, key=lambda total: -total.seconds)

    def to_json(self) -> str:
        """Totals and events as JSON text."""
        record: dict[str, Any] = {"peaks": self.peaks, "totals": list(map(vars, self.totals())), "events": []}
        record["events"] = [{**vars(event), "of_peak": event.of_peak} for event in self.events]
        return json.dumps(record, indent=2)

    def chrome_trace(self, path: str | Path) -> None:
        """Writes the events as a trace for chrome://tracing and ui.perfetto.dev."""
        first = min((event.start for event in self.events), default=0.0)
        trace = [
            {
                "name": event.name, "cat": event.kind, "ph": "X", "pid": event.backend, "tid": event.kind,
                "ts": (event.start - first) * 1e6, "dur": event.seconds * 1e6,
                "args": {
                    "graph": event.graph, "bytes": event.bytes, "flops": event.flops, "shapes": list(event.shapes),
                    "of peak": event.of_peak,
                },
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
        for column in ("graph", "kernel", "", "share", "calls", "ms", "MB", "GFLOP", "of peak", "shapes"):
            table.add_column(
                column, justify="left" if column in ("graph", "kernel", "", "shapes") else "right", overflow="fold"
            )
        for total in totals[:ROWS]:
            bar = "█" * max(round(total.share * BAR), 1)
            table.add_row(
                total.graph,
                total.name if total.kind == "kernel" else f"{total.name} ({total.kind})",
                bar,
                f"{total.share:.1%}",
                str(total.calls),
                f"{total.seconds * 1e3:.3f}",
                f"{total.bytes / 1e6:.3f}",
                f"{total.flops / 1e9:.3f}" if total.flops else "",
                "" if total.of_peak is None else f"{total.of_peak:.0%}",
                ", ".join(total.shapes),
            )
        console.print(table)
        if len(totals) > ROWS:
            console.print(f"and {len(totals) - ROWS} more, which to_json() lists")
        for backend, peaks in self.peaks.items():
            named = [f"{'products of ' if name != COPY else ''}{_figure(name, peak)}" for name, peak in peaks.items()]
            console.print(f"{backend}: the peak is {', '.join(named)}", markup=False, highlight=False)


@contextmanager
def profile() -> Iterator[Profile]:
    """Times every kernel of the graphs that are compiled meanwhile; what was compiled before is compiled anew.

        with vendor_sdk.profile() as seen:
            torch.compile(model, backend="mychip")(x)
        seen.print()

    Under ``torch.profiler.profile()`` each launch is an event of its own, ``mychip::k3_exp_sum``, with and without this.
    """
    seen = Profile()
    lock = threading.Lock()
    graphs: dict[int, tuple[str, PrimGraph]] = {}
    peaks: dict[str, Peaks] = {}

    def observe(session: Session, launch: Launch, function: Callable[..., Any]) -> Callable[..., Any]:
        backend = session.loaded.backend.name
        wait = waiting(session)
        known = peaks.setdefault(backend, Peaks(session, seen.peaks.setdefault(backend, {})))
        calls = itertools.count()

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            with torch_private.profiler_event(f"{backend}::{launch.name}", (), {}):
                started = time.perf_counter()
                result = function(*args, **kwargs)
                wait()
                seconds = time.perf_counter() - started
            given = args, kwargs
            tensors, products = launch.tensors(given, result), launch.products(given)
            size = sum(tensor.nbytes for tensor in tensors)
            best = known.seconds(size, products) if launch.kind != "host" else None
            with lock:
                number = f"{len(graphs)} {'backward' if launch.graph.backward else 'forward'}"
                graph, _ = graphs.setdefault(id(launch.graph), (number, launch.graph))
                seen.events.append(
                    Event(
                        launch.name, launch.kind, backend, graph, started, seconds, size, sum(products.values()),
                        tuple(map(shape_of, tensors)), best, next(calls) == 0,
                    )
                )  # fmt: skip
            return result

        return observed

    torch.compiler.reset()
    try:
        with pipeline.observing(observe):
            yield seen
    finally:
        torch.compiler.reset()


def _fraction(events: list[Event]) -> float | None:
    seconds = sum(event.seconds for event in events)
    known = [event.at_peak for event in events if event.at_peak is not None]
    return sum(known) / seconds if seconds and len(known) == len(events) else None


def _figure(name: str, peak: float) -> str:
    """``"copy at 31.2 GB/s"``."""
    what, unit = name.rsplit(" ", 1)
    return f"{what} at {peak:.3g} {unit}"
