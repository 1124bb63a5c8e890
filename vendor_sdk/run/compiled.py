"""A compiled graph: the wrapper with what is known about it, and errors that name the prim they come from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from torch import fx

from vendor_sdk.contract.placement import Kind, NodePlacement, Route
from vendor_sdk.contract.program import StepError
from vendor_sdk.errors import KernelError, VendorSDKError
from vendor_sdk.ir.fused import members
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.memory import Layout, MemoryPlan
from vendor_sdk.ir.primgraph import PrimGraph, describe, prim_name, user_line
from vendor_sdk.ir.transfer import TRANSFERS
from vendor_sdk.run.arena import Frames
from vendor_sdk.run.exhausted import out_of_memory
from vendor_sdk.run.memory import DeviceMemory
from vendor_sdk.run.recorded import Recorded
from vendor_sdk.run.zones import Breach


class WrapperCode(Protocol):
    """What ``CompiledGraph`` needs of the generated wrapper."""

    source: str
    filename: str
    nodes: Any
    namespace: dict[str, Any]
    launches: tuple[int, int]

    def compile(self, failed: Callable[[Exception], None]) -> Callable[[list[Any]], list[Any]]: ...


class Refusal(Protocol):
    """Why two neighbours are not one kernel (``vendor_sdk/schedule/fuse.py``): names of their nodes, and the reason."""

    @property
    def producer(self) -> str: ...
    @property
    def consumer(self) -> str: ...
    @property
    def reason(self) -> str: ...


Run = Callable[[list[Any]], list[Any]]


@dataclass(repr=False)
class CompiledGraph:
    """An executable graph.

    Attributes:
        graph: the placed graph it was compiled from.
        placements: one entry per node of the graph as captured, in order.
        wrapper: generated code.
        backend: name.
        memory: device memory, ``None`` on torch's own devices.
        frames: arenas of its calls.
        loops: the emitted kernels, as they run, by node.
        refusals: neighbours that the scheduler kept apart.
        not_recorded: why its launches are not recorded; None: nobody asked for that.
        recorded: makes of the function that runs the graph one that replays its launches, where they can be recorded.
        profiled: makes the wrapper that calls under torch's profiler run; None: they run the one wrapper.
        between_zones: makes the wrapper whose launches run between guard zones, and tell of what was written there.
        resources: what each compiled kernel takes of the device, by node, where the backend says so.
        elsewhere: the error that a call raises, since the graph was compiled for a device that this machine may lack; None: it
            can be called.
        examined: what debugging makes of the function that runs the graph.
        unchecked: what the check of the first call stopped at; "" where it did not, or where nobody asked for one.
        tell: what debugging adds to errors.
    """

    graph: PrimGraph
    placements: tuple[NodePlacement, ...]
    wrapper: WrapperCode
    backend: str
    frames: Frames
    memory: DeviceMemory | None = None
    loops: Mapping[fx.Node, LoopKernel] = field(default_factory=dict)
    refusals: Sequence[Refusal] = ()
    not_recorded: str | None = None
    recorded: Callable[[Run], Recorded] | None = None
    profiled: Callable[[], WrapperCode] | None = None
    between_zones: Callable[[Callable[[Breach], None]], WrapperCode] | None = None
    resources: Mapping[fx.Node, Mapping[str, int]] = field(default_factory=dict)
    elsewhere: Callable[[], VendorSDKError] | None = None
    examined: Callable[[Run], Run] = lambda run: run
    unchecked: Callable[[], str] = str
    tell: Callable[[Exception], None] = lambda error: None
    _run: Run = field(init=False)
    _wrappers: list[WrapperCode] = field(init=False)

    def __post_init__(self) -> None:
        self._wrappers = [self.wrapper]
        if self.profiled is not None:
            self.wrapper.namespace["PROFILED"] = self._run_profiled
        if self.elsewhere is not None:
            self._run = _raising(self.elsewhere)
            return
        self._run = self.examined(self.wrapper.compile(self._failed))
        if self.recorded is not None:
            self._run = self.recorded(self._run)

    def __repr__(self) -> str:
        return f"<CompiledGraph for {self.backend}: {len(self.placements)} prims, {self.wrapper.launches[0]} launches>"

    @property
    def launching(self) -> str:
        """How a call launches, in words; ``""`` where nobody asked for recordings."""
        if isinstance(self._run, Recorded):
            return f"one by one: {self._run.declined}" if self._run.declined else "recorded, replayed from the third call on"
        return "" if self.not_recorded is None else f"one by one: {self.not_recorded}"

    @property
    def source(self) -> str:
        """The generated wrapper."""
        return self.wrapper.source

    @property
    def plan(self) -> MemoryPlan:
        """Buffers, lifetimes and, for static shapes, offsets; ``plan.text()`` prints them."""
        return self.frames.plan

    @property
    def launches(self) -> int:
        """Kernel launches (and host operators) of one call."""
        return self.wrapper.launches[0]

    @property
    def native_calls(self) -> int:
        """Native calls that run the emitted launches, where the emitter links them; 0 where Python launches each."""
        return self.wrapper.launches[1]

    def layout(self, **sizes: int) -> Layout:
        """The memory plan in numbers.

        Args:
            sizes: the value of each shape symbol of ``plan.symbols``.
        """
        return self.frames.layout(*(sizes[name] for name in self.frames.symbols))

    def __call__(self, *inputs: Any) -> list[Any]:
        """Runs the graph; inputs are left as they were, save those that it writes to (``graph.writes``).

        Raises:
            KernelError: a vendor kernel raised, or returned something else than the prim's rule says.
            IndexError: an index in ``inputs``, or computed of them, is out of range.
            MachineError: it was compiled for a device that is elsewhere.
        """
        return self._run(list(inputs))

    def guarded(self, *inputs: Any) -> tuple[list[Any], list[Breach]]:
        """Runs the graph, each launch on copies of its tensors between guard zones.

        Returns:
            What a call returns, and what launches wrote to zones: a ``Breach`` for each tensor and side, in order.

        Raises:
            what a call raises.
        """
        if self.elsewhere is not None:
            raise self.elsewhere()
        assert self.between_zones is not None
        breaches: list[Breach] = []
        wrapper = self.between_zones(breaches.append)
        self._wrappers.append(wrapper)
        try:
            return wrapper.compile(self._failed)(list(inputs)), breaches
        finally:
            self._wrappers.remove(wrapper)

    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The form AOTAutograd wants: takes one list, which it empties."""
        self._run._boxed_call = True  # type: ignore[attr-defined]
        self._run.compiled_graph = self  # type: ignore[attr-defined]
        return self._run

    def _run_profiled(self, inputs: list[Any]) -> list[Any]:
        return self._profiled_run(inputs)

    @functools.cached_property
    def _profiled_run(self) -> Run:
        assert self.profiled is not None
        self._wrappers.append(self.profiled())
        return self._wrappers[-1].compile(self._failed)

    def _failed(self, error: Exception) -> None:
        """Raises what a step raised, with the prim it comes from; returns where the error comes from no step."""
        try:
            self._blame(error)
        except Exception as explained:
            self.tell(explained)
            raise
        self.tell(error)

    def _blame(self, error: Exception) -> None:
        nodes = self._nodes_at(error.__traceback__)
        if isinstance(error, StepError):
            self._explain(error.cause, nodes[error.step])
            raise error.cause from None
        if nodes:
            self._explain(error, nodes[0])

    def _nodes_at(self, trace: TracebackType | None) -> Sequence[fx.Node]:
        nodes: Sequence[fx.Node] = ()
        while trace is not None:
            for wrapper in self._wrappers:
                if trace.tb_frame.f_code.co_filename == wrapper.filename:
                    nodes = wrapper.nodes.get(trace.tb_lineno, nodes)
            trace = trace.tb_next
        return nodes

    def _explain(self, error: Exception, node: fx.Node) -> None:
        """Raises ``KernelError`` for a native node; adds a note to what the host or a transfer raised, to what says that memory
        ran out, which programs catch to try with less, and to ``IndexError``, by which kernels say that an index that they were
        given is out of range."""
        if node.op != "call_function" or node.target in TRANSFERS or "placement" not in node.meta:
            return
        name = prim_name(node)
        operands = ", ".join(describe(n.meta.get("val")) for n in node.all_input_nodes)
        whole = node.meta["placement"].route is Route.GRAPH
        inside = node.target.graph.calls() if whole else members(node)  # type: ignore[union-attr]
        prims = [each for each in dict.fromkeys(map(prim_name, inside)) if each != "getitem"]
        kind = "the partition of" if whole else f"kernel {name!r}, which fuses"
        fused = f"{kind} {_listed(prims)}," if whole or len(prims) > 1 else f"the kernel of prim {name!r}"
        on = f"on ({operands}) -> {describe(node.meta['val'])}"
        call = f"prim {name!r} {on}"
        if node.meta["placement"].kind is not Kind.NATIVE:
            error.add_note(f"raised on the host by {call}{_at(node)} (backend {self.backend})")
            return
        of_the_call = out_of_memory(error) or isinstance(error, IndexError)
        if of_the_call or (isinstance(error, VendorSDKError) and not isinstance(error, KernelError)):
            error.add_note(f"raised by {fused} {on}{_at(node)} (backend {self.backend})")
            return
        if isinstance(error, KernelError):
            raise KernelError(
                f"{self.backend}: {fused} {on} {error.what}", where=user_line(node), why=error.why, fix=error.fix
            ) from error.__cause__
        raise KernelError(
            f"{self.backend}: {fused} {on} raised {type(error).__name__}: {error}",
            where=user_line(node),
            why="the exception above came out of the vendor's code",
            fix=f"run {'each prim' if len(prims) > 1 else 'that prim'} alone with `vendor-sdk conformance --backend "
            f"{self.backend} --prims {','.join(prims)}`, or decline this case in the `supports` hook",
        ) from error


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most else names
    return " and ".join(shown)


def _raising(error: Callable[[], VendorSDKError]) -> Run:
    def run(inputs: list[Any]) -> list[Any]:
        raise error()

    return run


def _at(node: fx.Node) -> str:
    line = user_line(node)
    return f" at {line}" if line else ""
