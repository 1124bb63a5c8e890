"""What debugging keeps of a compilation: dumps of each stage, copies of the graphs for the check. Nothing unless asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import fx

from vendor_sdk import debug, torch_private
from vendor_sdk.check import Checked, Compiled
from vendor_sdk.dump.folder import Dump
from vendor_sdk.dump.program import CONSTANTS, program
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.memory import MemoryPlan
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.lower import Lowered
from vendor_sdk.schedule import Schedule

Run = Callable[[list[Any]], list[Any]]


class Watch:
    """One compilation, watched. Every method does nothing when neither dumps nor checks are on."""

    def __init__(self, backend: str, options: Mapping[str, Any], backward: bool) -> None:
        root = debug.directory()
        self.backend, self.options = backend, options
        self.dump = None if root is None else Dump(root, f"{backend}_{'backward' if backward else 'forward'}")
        self.checked = Checked(backend) if debug.checking() else None

    @property
    def active(self) -> bool:
        """Whether dumps or checks are on."""
        return self.dump is not None or self.checked is not None

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Errors inside say where the dump is."""
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        if self.dump is not None:
            self.dump.tell(error)

    def aten(self, module: fx.GraphModule) -> None:
        """The graph as AOTAutograd gave it."""
        self.stage("aten", PrimGraph(torch_private.without_effect_tokens(module)))

    def captured(self, graph: PrimGraph) -> None:
        self.stage("captured", graph)
        if self.dump is not None:
            text, constants = program(graph, self.backend, self.options)
            self.dump.text("repro.py", text)
            if constants is not None:
                self.dump.data(CONSTANTS, constants)

    def stage(self, name: str, graph: PrimGraph) -> None:
        """The graph after a stage."""
        if self.dump is not None:
            self.dump.graph(name, graph)
        if self.checked is not None:
            self.checked.stages.append((name, graph.copy()))

    def scheduled(self, graph: PrimGraph, schedule: Schedule) -> None:
        if self.dump is not None:
            self.dump.schedule(graph, schedule)
        if self.checked is not None:
            self.checked.stages.append(("scheduled", graph))

    def lowered(self, lowered: Mapping[fx.Node, Lowered]) -> None:
        if self.dump is not None:
            self.dump.kernels("lowered", [each.kernel for each in lowered.values()])

    def planned(self, plan: MemoryPlan, rewritten: list[LoopKernel]) -> None:
        """The memory plan, and the kernels that work in place in it."""
        if self.dump is not None:
            self.dump.kernels("in_place", rewritten)
            self.dump.plan(plan)

    def emitted(self, texts: Mapping[str, str]) -> None:
        """Target text by kernel, before it is compiled."""
        if self.dump is not None:
            self.dump.targets(texts)

    def compiled(self, compiled: Callable[[], Compiled], source: str, namespace: Mapping[str, Any]) -> None:
        if self.dump is not None:
            self.dump.wrapper(source, namespace)
        if self.checked is not None:
            self.checked.compiled = compiled()

    def examined(self, run: Run) -> Run:
        """``run``, with its first call checked where that was asked for."""
        return run if self.checked is None else self.checked.first_call(run, self.tell)

    def unchecked(self) -> str:
        """What the check of the first call stopped at; "" where it did not."""
        return "" if self.checked is None else self.checked.stopped
