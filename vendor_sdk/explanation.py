"""``vendor_sdk.explain``: what a backend does with a model, prim by prim and kernel by kernel, and why."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vendor_sdk import pipeline, terminal, torch_private
from vendor_sdk.contract.graph import GraphCompiler
from vendor_sdk.contract.loader import load
from vendor_sdk.contract.placement import Kind, NodePlacement
from vendor_sdk.errors import MachineError
from vendor_sdk.ir.primgraph import tensors_of
from vendor_sdk.ir.transfer import to_device, to_host
from vendor_sdk.kernel_report import Kernels, kernels_of
from vendor_sdk.partition.segments import Partition
from vendor_sdk.run.compiled import CompiledGraph
from vendor_sdk.torch_private import dynamo as torch_dynamo

ROWS = 30
"""Rows up to which a table of kernels or reasons is printed; the rest is counted."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that cross between host and device in one call of a graph, by direction; ``None`` where sizes are symbolic.

    Parameters and other values that are resident from an earlier call do not cross again; they count here as if they did, so
    this is what a first call moves.
    """

    to_device: int | None
    to_host: int | None


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph.

    Attributes:
        name: ``"forward 0"``, ``"backward 0"``, in order of compilation.
        placements: one entry per node as captured.
        traffic: bytes that cross.
        source: the generated wrapper.
        kernels: what each kernel fuses and moves, the memory plan's peak, and why neighbours were not fused.
        launching: whether launches are recorded and replayed, or why not; ``""`` on devices that do not record.
    """

    name: str
    placements: tuple[NodePlacement, ...]
    traffic: Traffic
    source: str
    kernels: Kernels
    launching: str = ""


@dataclass(frozen=True, repr=False)
class Explanation:
    """What ``explain`` found. As a string it is what ``print`` shows.

    Attributes:
        backend: name.
        graphs: compiled graphs in order.
        graph_breaks: reason of each graph break, in order.
        recompiles: reason of each recompilation (a guard that failed), in order.
        measured: bytes that really crossed during the explained call, ``None`` on torch's own devices and for a target.
        target: the device elsewhere for which all was compiled (``Target``), ``""``: none. For one nothing ran, and of a model
            with graph breaks the graphs are those before the first.
    """

    backend: str
    graphs: tuple[GraphReport, ...]
    graph_breaks: tuple[str, ...]
    recompiles: tuple[str, ...]
    measured: Traffic | None = None
    counts: dict[str, int] = field(default_factory=dict)
    target: str = ""

    def __repr__(self) -> str:
        return f"<Explanation of {len(self.graphs)} graphs on {self.backend}>"

    def __str__(self) -> str:
        return terminal.as_text(self.print)

    def placements(self) -> list[NodePlacement]:
        """All graphs' placements in one list."""
        return [placement for graph in self.graphs for placement in graph.placements]

    def to_json(self) -> str:
        """The explanation as JSON text."""
        return json.dumps(
            {
                "backend": self.backend,
                "target": self.target,
                "counts": self.counts,
                "graph_breaks": self.graph_breaks,
                "recompiles": self.recompiles,
                "graphs": [
                    {
                        "name": graph.name,
                        "to_device_bytes": graph.traffic.to_device,
                        "to_host_bytes": graph.traffic.to_host,
                        "placements": [
                            {
                                "node": p.name,
                                "prim": p.prim,
                                "kind": str(p.placement.kind),
                                "route": str(p.placement.route),
                                "reason": p.placement.reason,
                                "operands": p.operands,
                                "where": p.where,
                            }
                            for p in graph.placements
                        ],
                        "kernels": [vars(kernel) for kernel in graph.kernels.kernels],
                        "moved_bytes": graph.kernels.moved,
                        "ideal_bytes": graph.kernels.ideal,
                        "planned_peak_bytes": graph.kernels.peak,
                        "lower_bound_bytes": graph.kernels.bound,
                        "sizes": graph.kernels.sizes,
                        "launching": graph.launching,
                        "not_fused": [vars(each) for each in graph.kernels.apart],
                    }
                    for graph in self.graphs
                ],
            },
            indent=2,
        )

    def print(self, console: Console | None = None) -> None:
        """Prints the tables: prims by placement, reasons, kernels, why neighbours were not fused, bytes and memory by graph,
        graph breaks and recompilations."""
        console = console or terminal.console()
        console.print(self._placement_table())
        reasons = self._reason_table()
        if reasons.row_count:
            console.print(reasons)
        for graph in self.graphs:
            if graph.kernels.kernels:
                console.print(_kernel_table(graph))
        apart = self._apart_table()
        if apart.row_count:
            console.print(apart)
        console.print(self._graph_table())
        for graph in self.graphs:
            if graph.launching:
                console.print(f"Launches of {graph.name}: {graph.launching}", markup=False, highlight=False)
        if self.target:
            console.print(f"Compiled for {self.target}; nothing ran.", markup=False, highlight=False)
        for title, lines in (("Graph breaks", self.graph_breaks), ("Recompilations", self.recompiles)):
            console.print(f"{title}: {len(lines)}")
            for line in lines:
                console.print(f"  {line}", markup=False, highlight=False)

    def _placement_table(self) -> Table:
        table = Table(title=f"{self.backend}: prims by placement")
        for column in ("prim", *Kind):
            table.add_column(str(column), justify="left" if column == "prim" else "right")
        by_prim: dict[str, collections.Counter[Kind]] = {}
        for placement in self.placements():
            by_prim.setdefault(placement.prim, collections.Counter())[placement.placement.kind] += 1
        for prim, kinds in sorted(by_prim.items(), key=lambda item: (-item[1].total(), item[0])):
            table.add_row(prim, *(str(kinds[kind]) if kinds[kind] else "" for kind in Kind))
        table.add_section()
        table.add_row("all", *(str(self.counts.get(str(kind), 0)) for kind in Kind))
        return table

    def _reason_table(self) -> Table:
        table = Table(title="remarks, and why not native")
        for column in ("count", "prim", "placement", "reason", "first at"):
            table.add_column(column, overflow="fold")
        groups: dict[tuple[str, str, str], list[NodePlacement]] = {}
        for p in self.placements():
            if p.placement.reason:
                groups.setdefault((p.prim, str(p.placement.kind), p.placement.reason), []).append(p)
        for (prim, kind, reason), members in sorted(groups.items(), key=lambda item: -len(item[1])):
            table.add_row(str(len(members)), prim, kind, reason, _short(members[0].where))
        return table

    def _graph_table(self) -> Table:
        table = Table(title="graphs")
        columns = ("graph", "nodes", "kernels", "moved", "ideal", "peak", "lower bound", "to device", "to host", "sizes")
        dynamic = any(graph.kernels.sizes for graph in self.graphs)
        for column in columns if dynamic else columns[:-1]:
            table.add_column(column, justify="left" if column in ("graph", "sizes") else "right")
        for graph in self.graphs:
            kernels, traffic = graph.kernels, graph.traffic
            counts = (kernels.moved, kernels.ideal, kernels.peak, kernels.bound, traffic.to_device, traffic.to_host)
            sizes = [", ".join(f"{name}={value}" for name, value in kernels.sizes.items())] if dynamic else []
            table.add_row(graph.name, str(len(graph.placements)), str(len(kernels.kernels)), *map(_bytes, counts), *sizes)
        return table

    def _apart_table(self) -> Table:
        """Why neighbours were not fused, over all graphs."""
        totals: dict[tuple[str, str, str], int] = {}
        first: dict[tuple[str, str, str], str] = {}
        for each in (each for graph in self.graphs for each in graph.kernels.apart):
            key = (each.producer, each.consumer, each.reason)
            totals[key] = totals.get(key, 0) + each.count
            first.setdefault(key, each.where)
        table = Table(title="why neighbours are not one kernel")
        for column in ("count", "prim", "read by", "reason", "first at"):
            table.add_column(column, overflow="fold")
        ranked = sorted(totals.items(), key=lambda item: -item[1])
        for key, count in ranked[:ROWS]:
            table.add_row(str(count), *key, _short(first[key]))
        if len(ranked) > ROWS:
            rest = sum(count for _, count in ranked[ROWS:])
            table.add_row(str(rest), "...", "...", f"{len(ranked) - ROWS} more reasons, which to_json() lists", "")
        return table


class Observed:
    """What was compiled inside of a ``with observe()`` block, so far.

    Attributes:
        graphs: compiled graphs of SDK backends, in order; other backends of ``torch.compile`` leave none.
    """

    def __init__(self, events: torch_dynamo.DynamoEvents) -> None:
        self.graphs: list[CompiledGraph] = []
        self._events = events

    @property
    def graph_breaks(self) -> tuple[str, ...]:
        """Reason of each graph break of ``torch.compile``, whatever its backend, once each."""
        return tuple(dict.fromkeys(self._events.graph_breaks))

    @property
    def recompiles(self) -> tuple[str, ...]:
        """Reason of each recompilation (a guard that failed), whatever the backend, in order."""
        return tuple(self._events.recompiles)


@contextlib.contextmanager
def observe() -> Iterator[Observed]:
    """Watches what is compiled meanwhile, by any thread."""
    with torch_dynamo.dynamo_events() as events:
        observed = Observed(events)
        with pipeline.recording(observed.graphs.append):
            yield observed


def explain(
    model: Any, *inputs: Any, backend: str, options: dict[str, Any] | None = None, show: bool = True, **kwargs: Any
) -> Explanation:
    """Compiles ``model`` for ``backend``, runs it once on ``inputs`` (backward too when an output wants gradients), and tells
    what ran where, which kernels there are, what each fuses and moves, and why neighbours were not fused. The tables are
    printed here, not only returned: ``show=False`` leaves that out.

    Parameters, gradients and buffers of the model are left as they were. Where ``options`` name a device that this machine may
    lack (``Target``), all is compiled for that and nothing runs.

    Args:
        model: a module or function.
        inputs, kwargs: what it is called with.
        backend: name of an SDK backend.
        options: as in ``torch.compile``.
        show: whether the tables are printed.
    """
    torch.compiler.reset()
    owned = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
    leaves = [t for t in (*owned.parameters(), *_leaves((inputs, kwargs))) if t.requires_grad]
    buffers = [(buffer, buffer.detach().clone()) for buffer in owned.buffers()]
    memory = pipeline.device_memory(backend, options)
    before = memory.stats if memory is not None else None
    session = load(backend, options).session(options)
    with observe() as observed:
        compiled: Any = torch.compile(model, backend=backend, options=options)
        with contextlib.suppress(MachineError) if session.target is not None else contextlib.nullcontext():
            outputs = compiled(*inputs, **kwargs)
            wanted = [t for t in _leaves(outputs) if t.requires_grad]
            # Where there is a loss, training differentiates that.
            wanted = [t for t in wanted if not t.dim()] or wanted
            if wanted and leaves:
                torch.autograd.grad(wanted, leaves, [torch.ones_like(t) for t in wanted], allow_unused=True)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    measured = None
    if memory is not None and before is not None:
        after = memory.stats
        measured = Traffic(after.uploaded_bytes - before.uploaded_bytes, after.downloaded_bytes - before.downloaded_bytes)
    reports = tuple(_report(graph, index, session.graph_compiler) for index, graph in enumerate(observed.graphs))
    counts = collections.Counter(str(p.placement.kind) for report in reports for p in report.placements)
    explanation = Explanation(
        backend=backend,
        graphs=reports,
        graph_breaks=observed.graph_breaks,
        recompiles=observed.recompiles,
        measured=measured,
        counts=dict(counts),
        target="" if session.target is None else str(session.target),
    )
    if show:
        explanation.print()
    return explanation


def _report(graph: CompiledGraph, index: int, compiler: GraphCompiler | None) -> GraphReport:
    direction = "backward" if graph.graph.backward else "forward"
    placements = graph.placements if compiler is None else tuple(_remarked(graph, compiler))
    return GraphReport(f"{direction} ({index})", placements, _traffic(graph), graph.source, kernels_of(graph), graph.launching)


def _remarked(graph: CompiledGraph, compiler: GraphCompiler) -> Iterator[NodePlacement]:
    """The placements, with what the graph compiler says of nodes in its partitions."""
    remarks: dict[str, str] = {}
    for node in graph.graph.calls():
        if isinstance(node.target, Partition):
            remarks |= compiler.remarks(node.target.run)
    for each in graph.placements:
        remark = remarks.get(each.name, "") if each.placement.kind is Kind.NATIVE else ""
        yield replace(each, placement=replace(each.placement, reason=remark)) if remark else each


def _traffic(graph: CompiledGraph) -> Traffic:
    totals: dict[Any, int | None] = {to_device: 0, to_host: 0}
    for node in graph.graph.calls():
        if node.target in totals:
            (value,) = tensors_of(node.meta["val"])
            size = value.numel() * value.element_size()
            total = totals[node.target]
            totals[node.target] = total + size if isinstance(size, int) and total is not None else None
    return Traffic(totals[to_device], totals[to_host])


def _kernel_table(graph: GraphReport) -> Table:
    table = Table(title=f"{graph.name}: kernels")
    groups = graph.kernels.grouped()
    taken = list(dict.fromkeys(name for _, kernel in groups for name in kernel.resources))
    numbers = ("count", "reads", "writes", "scratch", *taken)
    for column in ("count", "kernel", "route", "prims", *numbers[1:], "at"):
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for count, kernel in groups[:ROWS]:
        lines = [_short(where) for where in kernel.where]
        more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
        table.add_row(
            f"x{count}" if count > 1 else "",
            kernel.name,
            kernel.route,
            _counted(kernel.prims),
            _bytes(kernel.read),
            _bytes(kernel.written),
            _bytes(kernel.scratch) if kernel.scratch != 0 else "",
            *(f"{kernel.resources[name]:,}" if name in kernel.resources else "" for name in taken),
            ", ".join(lines[:2]) + more,
        )
    if len(groups) > ROWS:
        rest = sum(count for count, _ in groups[ROWS:])
        more = f"{len(groups) - ROWS} more sorts of kernels, which to_json() lists"
        table.add_row(f"x{rest}", "...", "", more, *[""] * len(numbers))
    return table


def _counted(prims: Sequence[str]) -> str:
    """``add, mul, mul, add`` as ``add x2, mul x2``."""
    counts = collections.Counter(prims)
    return ", ".join(f"{prim} x{count}" if count > 1 else prim for prim, count in counts.items())


def _leaves(value: Any) -> Sequence[torch.Tensor]:
    return torch_private.tensor_leaves(value)


def _short(where: str) -> str:
    """``dir/file.py:12 in forward: x = y`` as ``file.py:12 in forward``, which fits a column."""
    place, _, _ = where.partition(": ")
    return place.rsplit("/", 1)[-1]


def _bytes(count: int | None) -> str:
    if count is None:
        return "dynamic"
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"
