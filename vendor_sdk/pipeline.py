"""The stages in order: the table of contents of the compiler.

capture     Dynamo and AOTAutograd give an ATen graph; it becomes a prim graph          aot.py, capture/graph.py
normalize   composites recognised, constants folded, equal nodes merged                 normalize/
legalize    what the backend does not want to see is spelled out                        normalize/legalize.py
place       who runs each node, with the reason; decompose or host where nobody does    partition/place.py
            outputs that the caller was promised in another order of memory             partition/outputs.py
            parameters that products read in panels                                     partition/parameters.py
partition   nodes on the graph route join into partitions                               partition/segments.py
transfer    copies between host and device become nodes                                 partition/transfers.py
schedule    nodes on the emitter route join into fused groups                           schedule/
lower       prims and groups on the emitter route become loop kernels                   lower/
plan        lifetimes, kernels that work in place, offsets in one arena                 plan/
emit        loop kernels become target code, compiled together                          the backend's emitter
wrap        one Python function runs it all, native runs of launches linked             codegen/wrapper.py
"""

from __future__ import annotations

import functools
import operator
import re
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from vendor_sdk import debug, guards, launches, torch_private
from vendor_sdk.capture.graph import trace as trace_function
from vendor_sdk.check import Compiled
from vendor_sdk.codegen.ahead import ahead
from vendor_sdk.codegen.values import Values
from vendor_sdk.codegen.wrapper import STORAGE_ARGUMENTS, EmittedCall, NativeLaunch, Wrapper, generate
from vendor_sdk.contract.backend import Target
from vendor_sdk.contract.device import Device, TorchDevice
from vendor_sdk.contract.loader import LoadedBackend, Session, load
from vendor_sdk.contract.placement import Kind, NodePlacement, Placement, Route
from vendor_sdk.errors import LoweringError, MachineError, UnsupportedPrimError
from vendor_sdk.ir import loop_print
from vendor_sdk.ir.fused import Computing, Fused
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.memory import MemoryPlan, Slot
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.ir.rewrite import erase, inline
from vendor_sdk.lower import Lowered, lower, lower_group, lower_operand
from vendor_sdk.lower.native import LoweredCall, native_call
from vendor_sdk.normalize.canonicalize import canonicalize, drop_copies, drop_dead
from vendor_sdk.normalize.decompose import prim_table
from vendor_sdk.normalize.legalize import legalize
from vendor_sdk.normalize.order import in_order
from vendor_sdk.normalize.pairs import in_pairs
from vendor_sdk.normalize.products import join_products
from vendor_sdk.normalize.steps import join_steps
from vendor_sdk.partition.outputs import store_as_promised
from vendor_sdk.partition.parameters import make_panels
from vendor_sdk.partition.place import context, place, placement_of
from vendor_sdk.partition.recordable import why_not_recorded
from vendor_sdk.partition.segments import Partition, join_segments
from vendor_sdk.partition.transfers import insert_transfers
from vendor_sdk.plan.activations import Activations
from vendor_sdk.plan.apart import better_alone, set_apart
from vendor_sdk.plan.inplace import Rewritten, work_in_place
from vendor_sdk.plan.liveness import Aliases, last_reads, plan_memory
from vendor_sdk.plan.offsets import CLOSE, activations_of, bank_of, lay_out
from vendor_sdk.plan.order import steps_of
from vendor_sdk.plan.rooms import make_rooms
from vendor_sdk.plan.spare import spare
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET, COMPOSITES, OPSET
from vendor_sdk.prims.row import Prim
from vendor_sdk.prims.samples import Effort, SampleContext
from vendor_sdk.routes import Routes, layout_of, targets
from vendor_sdk.run.arena import Frames, keepers
from vendor_sdk.run.bank import Bank
from vendor_sdk.run.compiled import CompiledGraph
from vendor_sdk.run.control import bodies, operator_of
from vendor_sdk.run.kept import kept
from vendor_sdk.run.memory import DeviceMemory
from vendor_sdk.run.recorded import Recorded, Run, Traits
from vendor_sdk.run.steps import OwnMemoryRuntime, Runtime, TorchRuntime
from vendor_sdk.schedule import Refusal, Schedule, schedule, usable
from vendor_sdk.watch import Watch

Options = Mapping[str, Any]


def trace(function: Callable[..., Any], example_inputs: Sequence[torch.Tensor], *, composites: Iterable[str] = ()) -> PrimGraph:
    """The prim graph of a function of tensors, with static shapes and without autograd.

    Args:
        function: called with fake tensors like ``example_inputs``; returns a tensor, or a tuple or list of them. Tensors that
            it closes over, a module's parameters too, are constants of the graph.
        example_inputs: tensors whose shapes, strides and dtypes the graph takes.
        composites: names of composites to keep whole, as for a backend that claims them.

    Raises:
        CaptureError: the function writes to a tensor that it closes over.
    """
    with torch_private.a_trace_of_its_own():  # a plugin may trace while its user's graph is captured
        graph = trace_function(function, example_inputs, prim_table(targets(composites)))
    _recognize(graph, composites)
    return graph


def compile_graph(graph: PrimGraph, *, backend: str, options: Options | None = None) -> CompiledGraph:
    """Compiles a prim graph for ``backend``: the part of ``torch.compile`` after capture.

    Raises:
        the errors of ``vendor_sdk.load``; ``UnsupportedPrimError`` under ``options={"fallback": "error"}``;
        ``CompilerError`` when the backend's compiler fails.
    """
    return compile_prim_graph(graph.copy(), load(backend, options).session(options))


def compile_prim_graph(
    graph: PrimGraph, session: Session, watch: Watch | None = None, activations: Activations | None = None
) -> CompiledGraph:
    """All stages after capture, in order. ``graph`` is consumed; ``activations`` is what the plan of a forward graph tells that
    of its backward graph."""
    watch = watch or watch_of(session, graph.backward)
    with torch_private.real_tensors(), watch.failures():
        return finish(decide(graph, session, watch, activations or Activations()), session, watch)


def placed(
    graph: PrimGraph, session: Session, watch: Watch, *, exported: bool = False
) -> tuple[PrimGraph, list[NodePlacement]]:
    """The stages up to placement: every node of the graph says who runs it, or that a file can hold it."""
    loaded = session.loaded
    watch.captured(graph)
    drop_copies(graph)
    _recognize(graph, loaded.backend.composites)
    graph = canonicalize(graph)
    if not loaded.backend.legalize.complex_numbers:
        graph = in_pairs(graph)
    if session.emitter is not None:  # a backend of kernels alone may have no ``cat``
        graph = join_steps(join_products(graph))
        if not isinstance(session.device, Device) and not loaded.backend.legalize.channels_last:
            graph = in_order(graph)
    graph = _after("normalize", graph, loaded)
    watch.stage("normalized", graph)
    graph = _after("legalize", legalize(graph, loaded.backend.legalize), loaded)
    watch.stage("legalized", graph)
    placements = place(graph, Routes(session, exported=exported))
    drop_dead(graph)
    _store_as_promised(graph, session)
    _make_panels(graph, session)
    graph = _after("place", graph, loaded)
    watch.stage("placed", graph)
    return graph, placements


def decide(graph: PrimGraph, session: Session, watch: Watch, activations: Activations) -> Decided:
    """The stages up to the text of the kernels."""
    loaded = session.loaded
    graph, placements = placed(graph, session, watch)
    if session.graph_compiler is not None:
        join_segments(graph, session.graph_compiler)
        watch.stage("partitioned", graph)
    own_memory = _state(session).memory is not None
    if own_memory:
        insert_transfers(graph, narrow_int64=loaded.backend.legalize.no_int64)
        watch.stage("transferred", graph)
    graph.verify()
    for number, node in enumerate(node for node in graph.calls() if torch_private.draws_numbers(node.target)):
        node.meta["seed"] = number
    scheduled = _schedule(graph, session)
    taken_over = {node.name for node in scheduled.taken_over}
    placements = [replace(p, placement=_EMITTED) if p.name in taken_over else p for p in placements]
    watch.scheduled(graph, scheduled)
    lowered = _lower_all(graph, session, own_memory=own_memory)
    watch.lowered(lowered)
    return _plan(graph, lowered, session, watch, activations, placements=tuple(placements), refusals=tuple(scheduled.refusals))


def finish(decided: Decided, session: Session, watch: Watch) -> CompiledGraph:
    """Compiles the kernels, which the backend may have from before, and writes the wrapper."""
    state = _state(session)
    inside = bodies(decided.graph, session.loaded.host_fallback) if state.memory is None else []
    calls, resources = _launched(decided, session)
    wrapper, frames = _wrap(decided, session, state, calls, _watching(session))
    _watched(decided, session, state, calls, watch, wrapper)
    loops = {node: call.kernel for node, call in calls.items() if isinstance(call, EmittedCall)}
    if session.target is not None:
        computed = _operands_computed(decided.graph)
        resources |= ahead(decided.graph, session.loaded.kernels, computed, session.target, STORAGE_ARGUMENTS)
    not_recorded, recorded = _recording(decided, session, state, watch, wrapper)
    compiled = CompiledGraph(
        decided.graph,
        decided.placements,
        wrapper,
        session.loaded.backend.name,
        frames,
        state.memory,
        loops=loops,
        refusals=decided.refusals,
        not_recorded=not_recorded,
        recorded=recorded,
        profiled=functools.partial(_profiled, decided.graph_alone(), session, calls) if _profilable(session) else None,
        between_zones=functools.partial(_guarded, decided.graph_alone(), session, calls),
        resources=resources,
        elsewhere=None if session.target is None else functools.partial(_elsewhere, session),
        examined=watch.examined,
        unchecked=watch.unchecked,
        tell=watch.tell,
    )
    for sink in list(_sinks):
        sink(compiled)
    for body in inside:
        body.runs[body.module] = compile_prim_graph(body.graph, session)
    return compiled


def _elsewhere(session: Session) -> MachineError:
    """Why a graph that was compiled for a target cannot be called."""
    backend, target = session.loaded.backend, session.target
    ((name, option),) = [each for each in backend.options.items() if isinstance(each[1], Target)]
    here = backend.requires()
    return MachineError(
        f"{backend.name}: this graph was compiled for {target!r}, and is not run on this machine"
        + (f", which lacks what that needs: {here}" if here else ""),
        why=f"option {name!r} {option.help}",
        fix=f"Look at the kernels with vendor_sdk.explain(model, *inputs, backend={backend.name!r}, options={{{name!r}: "
        f"{target!r}}}); on a machine with such a device leave the option out.",
    )


def _recording(
    decided: Decided, session: Session, state: _State, watch: Watch, wrapper: Wrapper
) -> tuple[str | None, Callable[[Run], Recorded] | None]:
    """Why launches are not recorded (None: the device does not record), and what records them."""
    if state.recorder is None or session.target is not None:
        return None, None
    assert isinstance(state.runtime, TorchRuntime)
    graph = decided.graph
    why = why_not_recorded(graph, graph.known_symbols(), state.runtime.device.type, wrapper.launches[0])
    if not why and wrapper.seeds and not state.runtime.seeds_in_memory:
        why = "seeds of random numbers are arguments of launches"
    if not why and (watch.active or _watching(session)):
        why = "somebody watches each launch"
    if why:
        return why, None
    passed = [node for node in graph.placeholders if node.name not in graph.constants]
    numbers = {node: index for index, node in enumerate(passed)}
    traits = Traits(
        static=frozenset(numbers[graph.placeholders[i]] for i in graph.static_inputs),
        sized=tuple(i for node, i in numbers.items() if _has_open_sizes(node.meta["val"])),
        written=tuple(numbers[node] for node, _ in graph.written),
        gathered=frozenset() if graph.backward else frozenset(range(len(graph.returned))) - set(graph.saved_outputs.values()),
        seeds=wrapper.seeds,
        saved=frozenset(numbers[graph.placeholders[i]] for i in graph.donated_inputs),
    )
    return "", functools.partial(Recorded, recorder=state.recorder, traits=traits, seeds=state.runtime, device=state.arena)


def _has_open_sizes(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))


@contextmanager
def recording(sink: Callable[[CompiledGraph], None]) -> Iterator[None]:
    """Calls ``sink`` with every graph compiled meanwhile, by any thread: autograd may compile backward graphs in its own."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)


_sinks: list[Callable[[CompiledGraph], None]] = []


@contextmanager
def observing(observe: launches.Observe) -> Iterator[None]:
    """Graphs compiled meanwhile launch one kernel at a time, through what ``observe`` makes of it."""
    _observers.append(observe)
    try:
        yield
    finally:
        _observers.remove(observe)


_observers: list[launches.Observe] = []


def _watching(session: Session) -> list[launches.Observe]:
    """Who sees each launch of what is compiled now."""
    if session.target is not None or not debug.guarding():
        return list(_observers)
    return [*_observers, guards.guarding(_state(session).memory, guards.refuse)]


def device_memory(backend: str, options: Options | None = None) -> DeviceMemory | None:
    """The device memory that graphs compiled for ``backend`` with ``options`` share; ``None`` on torch's own devices,
    and on one that is elsewhere."""
    session = load(backend, options).session(options)
    return None if session.target is not None else _state(session).memory


def static_support(loaded: LoadedBackend, options: Options | None = None) -> Mapping[str, Placement]:
    """What the backend does with each prim, found by placing a sample of it.

    The sample is the first of the first dtype that the backend has; a prim without samples (collectives, control flow) is
    judged by its name alone.
    """
    session = loaded.session(options)
    return {name: _sample_placement(row, session) for name, row in OPSET.items()}


def _sample_placement(row: Prim, session: Session) -> Placement:
    dtypes = [d for d in row.dtypes if d in session.loaded.backend.dtypes] or list(row.dtypes)
    for dtype in dtypes[:1]:
        sample = next(iter(row.samples(SampleContext.make(dtype, Effort.QUICK))), None)
        if sample is None:
            break
        try:
            graph = trace_function(*torch_private.as_function(row.target, sample.args, sample.kwargs), {})
            with torch_private.real_tensors():
                placements = place(graph, Routes(session))
        except UnsupportedPrimError as error:
            return Placement(Kind.DECLINED, reason=error.why)
        return next((p.placement for p in placements if p.prim == row.name), placements[-1].placement)
    if row.name in session.loaded.kernels:
        return Placement(Kind.NATIVE, Route.KERNEL)
    if row.result == "scalar":
        return Placement(Kind.WRAPPER)
    return Placement(Kind.HOST, reason="no route offers it")


# One stage each


_EMITTED = Placement(Kind.NATIVE, Route.EMITTER)


def _after(stage: str, graph: PrimGraph, loaded: LoadedBackend) -> PrimGraph:
    """Runs the plugins' passes for a stage; the graph is verified after the stage and after each of them."""
    graph.verify()
    for graph_pass in loaded.passes(stage):
        graph = graph_pass(graph)
        graph.verify()
    return graph


def _recognize(graph: PrimGraph, composites: Iterable[str]) -> None:
    """Finds composites that have no single operator, then decomposes what was left whole only for that search."""
    claimed = sorted(composites)
    for name in claimed:
        recognize = COMPOSITES[name].recognize
        if recognize is not None:
            recognize(graph.module)
    table = prim_table(targets(()))
    dead: set[fx.Node] = set()
    for node in list(graph.calls()):
        composite = COMPOSITE_BY_TARGET.get(node.target)
        if composite is None or composite.name in claimed:
            continue
        inputs = list(node.all_input_nodes)
        traced = torch_private.trace_call(composite.targets[node.target], node.args, node.kwargs, inputs, table)
        if traced is not None:
            dead |= inline(graph, node, PrimGraph(traced), inputs)[1]
    erase(graph, dead)


def _store_as_promised(graph: PrimGraph, session: Session) -> None:
    """Outputs leave a device of its own through transfers; elsewhere the emitter may write them as the caller wants them."""
    if session.emitter is not None and not isinstance(session.device, Device):
        store_as_promised(graph, _emitted(graph, session))


def _make_panels(graph: PrimGraph, session: Session) -> None:
    """A device with memory of its own has parameters in it already, as the host has them."""
    if session.emitter is None or isinstance(session.device, Device):
        return
    emitter, keep = session.emitter, bool(session.options["keep"])
    make_panels(graph, emitter.panel, emitter.reads_along, keep=keep, emitted=_emitted(graph, session))


def _emitted(graph: PrimGraph, session: Session) -> Callable[[fx.Node], bool]:
    """Whether a node that a stage after placement adds can run on the emitter route."""
    routes = Routes(session)
    return lambda node: placement_of(node, graph, routes).route is Route.EMITTER


def _schedule(graph: PrimGraph, session: Session) -> Schedule:
    """Fuses the nodes on the emitter route, as far as the emitter has what their kernels need."""
    if session.emitter is None or not session.options["fuse"]:
        return Schedule()
    emitter, routes = session.emitter, Routes(session)
    kernels = [node for node in graph.calls() if "placement" in node.meta and node.meta["placement"].route is Route.KERNEL]
    plan = schedule(
        graph,
        emitter.limits,
        emitter.ops.keys(),
        rivals={node for node in kernels if routes.yields(node, prim_name(node))},
        takes_over=lambda node, *saved: emitter.takes_over(context(node, prim_name(node), graph), *saved),
        computes=_computing(kernels, session),
        lower_operand=_operand_loops,
        takes_operand=functools.partial(_takes_operand, graph, session.loaded),
        fuel=debug.fuel(),
    )
    graph.verify()
    return plan


def _computing(kernels: Sequence[fx.Node], session: Session) -> Mapping[fx.Node, Collection[str]]:
    """Nodes whose kernels can compute operands, and which."""
    if isinstance(session.device, Device):
        return {}
    table = session.loaded.kernels
    return {node: names for node in kernels if (prim := prim_name(node)) in table and (names := table[prim].computes.keys())}


def _takes_operand(graph: PrimGraph, loaded: LoadedBackend, node: fx.Node, operand: str, loops: Lowered) -> bool:
    """Whether a kernel would compute an operand so."""
    prim = prim_name(node)
    return loaded.kernels[prim].computes[operand](context(node, prim, graph), loops.kernel)


def _operand_loops(target: Computing, given: Sequence[Any], operand: str) -> Lowered | None:
    """An operand that a group computes from these nodes, as loops, if it can be lowered."""
    try:
        return lower_operand(target, given, operand, functools.partial(layout_of, own_memory=False))
    except LoweringError:
        return None


def _operands_computed(graph: PrimGraph) -> dict[fx.Node, dict[str, Lowered]]:
    """The loops of operands that kernels compute, by name."""
    found: dict[fx.Node, dict[str, Lowered]] = {}
    for node in graph.calls():
        if isinstance(node.target, Computing):
            found[node] = {name: _operand_computed(node, node.target, name) for name in node.target.computed}
    return found


def _operand_computed(node: fx.Node, target: Computing, name: str) -> Lowered:
    if name not in target.lowered:
        loops = _operand_loops(target, node.args, name)
        assert loops is not None, f"{node} computes {name}"
        target.lowered[name] = loops, tuple(map(node.args.index, loops.inputs))
    loops, positions = target.lowered[name]
    assert isinstance(loops, Lowered)
    return replace(loops, inputs=tuple(node.args[position] for position in positions))


def _lower_all(graph: PrimGraph, session: Session, *, own_memory: bool) -> dict[fx.Node, Lowered]:
    """Loop kernels of the nodes on the emitter route, each named after its place and its prims (``k3_exp_sum``)."""
    layout = functools.partial(layout_of, own_memory=own_memory)
    lowered: dict[fx.Node, Lowered] = {}
    for node in graph.calls():
        if "placement" not in node.meta or node.meta["placement"].route is not Route.EMITTER or node.target is operator.getitem:
            continue
        assert session.emitter is not None
        name = f"k{len(lowered)}_{re.sub('[^0-9A-Za-z]+', '_', prim_name(node)).strip('_')}"
        ops = session.emitter.ops.keys()
        limits = usable(session.emitter.limits, ops)
        if isinstance(node.target, Fused):
            lowered[node] = lower_group(node, name, layout, limits, inner_nests="nest" in ops)
        else:
            lowered[node] = lower(node, name, layout, limits)
    return lowered


@dataclass
class Decided:
    """A graph after all stages that need no target compiler: what another process can go on from.

    Attributes:
        graph: placed and scheduled.
        placements, refusals: see ``CompiledGraph``.
        order: the nodes that run.
        kernels: of each node on the emitter route that runs, with the nodes whose buffers it reads.
        texts: target text of the distinct kernels.
        text_of: node to its place in ``texts``.
        in_place: result to the one whose memory it takes.
        plan: buffers, with offsets where all sizes are static.
        lowered: the kernels before any of them worked in place, for debugging; not stored.
        native: launches of the backend's own kernels; not stored, for they have addresses.
    """

    graph: PrimGraph
    placements: tuple[NodePlacement, ...]
    refusals: tuple[Refusal, ...]
    order: tuple[fx.Node, ...]
    kernels: Mapping[fx.Node, tuple[LoopKernel, tuple[fx.Node, ...]]]
    texts: Sequence[tuple[LoopKernel, str]]
    text_of: Mapping[fx.Node, int]
    in_place: Mapping[Slot, Slot]
    plan: MemoryPlan
    lowered: Mapping[fx.Node, Lowered]
    native: Mapping[fx.Node, LoweredCall] | None

    def storable(self) -> Decided:
        """Without what only this process knows; ``finish`` finds it again."""
        return replace(self, lowered={}, native=None)

    def graph_alone(self) -> Decided:
        """Without the kernels, once they are compiled."""
        return replace(self, texts=(), lowered={}, native=None)


def _allocated(loaded: LoadedBackend, emitted: Container[fx.Node], node: fx.Node) -> bool:
    """Whether the SDK allocates a node's results, rather than whoever runs it."""
    if node in emitted:
        return True
    placement = node.meta.get("placement") if node.op == "call_function" else None
    if placement is None or placement.route is not Route.KERNEL or node.target is operator.getitem:
        return False
    return loaded.kernels[prim_name(node)].destination


def _fresh(loaded: LoadedBackend, node: fx.Node) -> bool:
    """Whether a node that allocates its results itself returns memory that nobody else has."""
    placement = node.meta.get("placement") if node.op == "call_function" else None
    native = placement is not None and placement.route is Route.KERNEL and node.target is not operator.getitem
    return native and loaded.kernels[prim_name(node)].fresh


def _plan(
    graph: PrimGraph,
    lowered: Mapping[fx.Node, Lowered],
    session: Session,
    watch: Watch,
    activations: Activations,
    *,
    placements: tuple[NodePlacement, ...],
    refusals: tuple[Refusal, ...],
) -> Decided:
    """Orders the steps, plans memory (some kernels then work in place) and emits the kernels."""
    loaded, state = session.loaded, _state(session)
    policy = loaded.backend.memory
    arena = policy.arena and state.memory is None
    native = _native_calls(graph, session)
    allocated = functools.partial(_allocated, loaded, {*lowered, *native})

    def reads(node: fx.Node) -> list[fx.Node]:
        if node in native:
            return list(native[node].inputs)
        if node not in lowered:
            return list(node.all_input_nodes)
        numbers = [n for n in node.all_input_nodes if not tensors_of(n.meta.get("val"))]
        return [*lowered[node].inputs, *numbers]

    def folded(node: fx.Node) -> bool:
        return node.target is operator.getitem and allocated(node.args[0])  # type: ignore[arg-type]

    steps = steps_of(graph, reads, folded)
    running = set(steps.order)
    loops = {node: (one.kernel, one.inputs) for node, one in lowered.items() if node in running}
    # Recorded results lie where they lay.
    banks = arena and state.arena.type == "cpu" and state.recorder is None
    saved = _saved(graph, Aliases()) if banks and not graph.backward else {}

    def planned(own: Collection[Slot]) -> tuple[dict[Slot, Slot], Mapping[fx.Node, Rewritten], MemoryPlan]:
        in_place: dict[Slot, Slot] = {}
        rewritten: Mapping[fx.Node, Rewritten] = {}
        if arena and policy.in_place:
            # Activations in the forward graph's bank leave their memory to whatever fits best, when they die.
            lent = set(activations.places) if graph.backward else set()
            fresh = functools.partial(_fresh, loaded)
            in_place, rewritten = work_in_place(graph, steps, loops, allocated=allocated, fresh=fresh, lent=lent, own=own)
        plan = plan_memory(
            graph,
            steps,
            allocated=allocated,
            in_place=in_place,
            known=graph.known_symbols(),
            alignment=policy.alignment,
            arena=arena,
        )
        if plan.symbols:
            return in_place, rewritten, plan
        sizes = plan.sizes({})
        lay = functools.partial(lay_out, plan, sizes, borrow=policy.borrow)
        if graph.backward and banks:
            plan.lender = activations.lender(graph, last_reads(graph, steps, in_place))
            together = bank_of(plan, sizes, policy.bank)
            plan.fixed = set_apart(plan, sizes, functools.partial(lay, together=together))
        else:
            together = activations_of(plan, sizes, saved, policy.bank)
            plan.fixed = set_apart(plan, sizes, functools.partial(lay, together=together, downward=bool(together)))
            if arena and policy.borrow and _serves_any_size(state.arena):
                either = [functools.partial(lay_out, plan, borrow=borrow) for borrow in (True, False)]
                plan.fixed = make_rooms(plan, sizes, plan.fixed, either)
        return in_place, rewritten, plan

    in_place, rewritten, plan = planned(())
    if own := better_alone(plan):
        other = planned(own)
        if plan.fixed is not None and other[2].fixed is not None and other[2].fixed.peak * CLOSE < plan.fixed.peak:
            in_place, rewritten, plan = other
    loops |= {node: (one.kernel, one.inputs) for node, one in rewritten.items()}
    if plan.fixed is not None:
        if not (graph.backward and banks):
            activations.note(plan, saved)
        plan.spare = spare(plan)
    watch.planned(plan, [one.kernel for one in rewritten.values()])
    texts, text_of = _emit(loops, session, watch)
    return Decided(graph, placements, refusals, steps.order, loops, texts, text_of, in_place, plan, lowered, native)


def _serves_any_size(device: torch.device) -> bool:
    """Whether memory that is freed within a call serves what is allocated next. The host's blocks serve their own size."""
    return device.type != "cpu"


Launched = Mapping[fx.Node, EmittedCall | NativeLaunch]


def _launched(decided: Decided, session: Session) -> tuple[Launched, dict[fx.Node, Mapping[str, int]]]:
    """Compiles the kernels: how each node on the emitter route is launched, and each with a native kernel; and what each takes
    of the device."""
    emitter = session.emitter
    calls: dict[fx.Node, EmittedCall | NativeLaunch] = {}
    resources: dict[fx.Node, Mapping[str, int]] = {}
    if decided.texts:
        assert emitter is not None
        made = emitter.compile(decided.texts)
        for node, (kernel, inputs) in decided.kernels.items():
            launch = made[decided.text_of[node]]
            resources[node] = emitter.resources(launch)
            calls[node] = EmittedCall(launch, kernel, inputs)
    native = _native_calls(decided.graph, session) if decided.native is None else decided.native
    for node, one in native.items():
        calls[node] = NativeLaunch(one.call.launch, one.inputs, one.call.numbers)
    keepers.add(kept.release)
    if emitter is not None:
        keepers.add(emitter.release)
    return calls, resources


def _wrap(
    decided: Decided, session: Session, state: _State, calls: Launched, observers: Sequence[launches.Observe]
) -> tuple[Wrapper, Frames]:
    """Writes the wrapper. With observers its steps run one at a time, each through what they make of it."""
    loaded, graph, plan, emitter = session.loaded, decided.graph, decided.plan, session.emitter
    # Native code finds outputs by fixed offsets: with symbolic sizes only the arena has run-time ones.
    frames = Frames(plan, functools.partial(lay_out, plan, borrow=False), state.arena, pooled=state.recorder is not None)
    links = emitter is not None and state.memory is None and not observers
    computed = _operands_computed(graph)

    def seen(node: fx.Node, name: str, kind: str, operands: Sequence[fx.Node], fills: str, run: Callable[..., Any]) -> Any:
        launch = launches.Launch(name, kind, node, graph, tuple(operands), fills)
        return launches.observed(observers, session, launch, run)

    def called(node: fx.Node, call: EmittedCall | NativeLaunch) -> EmittedCall | NativeLaunch:
        name = call.kernel.name if isinstance(call, EmittedCall) else prim_name(node)
        return replace(call, launch=seen(node, name, "kernel", call.inputs, "last", call.launch))

    def function(node: fx.Node) -> Callable[..., Any]:
        operands = launches.tensor_arguments(node, computed.get(node, {}))
        if node.meta["placement"].kind is Kind.HOST:
            return seen(node, prim_name(node), "host", operands, "", _host_operator(loaded, node))  # type: ignore[no-any-return]
        if isinstance(node.target, Partition):
            return seen(node, str(node.target), "partition", operands, "", node.target)  # type: ignore[no-any-return]
        kernel = loaded.kernels[prim_name(node)]
        fills = "first" if kernel.destination else ""
        return seen(node, prim_name(node), "kernel", operands, fills, kernel.call)  # type: ignore[no-any-return]

    wrapper = generate(
        graph,
        state.runtime,
        loaded.kernels,
        {node: called(node, call) for node, call in calls.items()} if observers else calls,
        function,
        computed=computed,
        steps=decided.order,
        values=Values(plan, Aliases(), functools.partial(_allocated, loaded, calls), decided.in_place),
        link=emitter.link if emitter is not None and links else lambda program: None,
        frames=frames,
        bank=Bank(),
        profiled=not observers and _profilable(session),
    )
    return wrapper, frames


def _profilable(session: Session) -> bool:
    """Whether calls under torch's profiler run a wrapper of their own. A recording holds the addresses of the one that it was
    taken of, and what it replays the profiler shows as the device sees it."""
    return not _watching(session) and session.target is None and _state(session).recorder is None


def _profiled(decided: Decided, session: Session, calls: Launched) -> Wrapper:
    """The wrapper whose launches are events of torch's profiler."""
    return launches.aside(_wrap, decided, session, _state(session), calls, [launches.event])[0]  # type: ignore[no-any-return]


def _guarded(decided: Decided, session: Session, calls: Launched, tell: guards.Tell) -> Wrapper:
    """The wrapper whose launches run between guard zones."""
    state = _state(session)
    return _wrap(decided, session, state, calls, [guards.guarding(state.memory, tell)])[0]


def _watched(decided: Decided, session: Session, state: _State, calls: Launched, watch: Watch, wrapper: Wrapper) -> None:
    """Shows the wrapper to debugging."""
    emitted = {node: call for node, call in calls.items() if isinstance(call, EmittedCall)}
    compiled = functools.partial(
        Compiled,
        decided.graph,
        decided.order,
        session.loaded.kernels,
        decided.lowered,
        _operands_computed(decided.graph),
        emitted,
        decided.in_place,
        state.runtime,
        session.emitter,
    )
    watch.compiled(compiled, wrapper.source, wrapper.namespace)


def _saved(graph: PrimGraph, shares: Aliases) -> dict[Slot, int]:
    """Results that a forward graph returns for its backward graph alone, and which input of that they are."""
    owners = [shares.of(value) if isinstance(value, fx.Node) else () for value in graph.outputs]
    returned = Counter(slot for slots in owners for slot in slots)
    found: dict[Slot, int] = {}
    for index, output in graph.saved_outputs.items():
        slots = owners[output] if output < len(owners) else ()
        if len(slots) == 1 and slots[0][0].op == "call_function" and returned[slots[0]] == 1:
            found[slots[0]] = index
    return found


def _native_calls(graph: PrimGraph, session: Session) -> dict[fx.Node, LoweredCall]:
    """Nodes on the kernel route whose kernels are launched like emitted ones."""
    loaded = session.loaded
    if session.emitter is None or _state(session).memory is not None:
        return {}
    layout = functools.partial(layout_of, own_memory=False)
    found: dict[fx.Node, LoweredCall] = {}
    for node in graph.calls():
        placement = node.meta.get("placement")
        on_kernel = placement is not None and placement.route is Route.KERNEL and node.target is not operator.getitem
        if on_kernel and not isinstance(node.target, Computing):
            call = native_call(node, loaded.kernels[prim_name(node)], layout, STORAGE_ARGUMENTS)
            if call is not None:
                found[node] = call
    return found


def watch_of(session: Session, backward: bool) -> Watch:
    return Watch(session.loaded.backend.name, session.options, backward)


def _emit(
    loops: Mapping[fx.Node, tuple[LoopKernel, Sequence[fx.Node]]], session: Session, watch: Watch
) -> tuple[list[tuple[LoopKernel, str]], dict[fx.Node, int]]:
    """The distinct kernels with their target text, and which of them each node launches."""
    if not loops:
        return [], {}
    emitter = session.emitter
    assert emitter is not None
    # Kernels that are equal up to names (the layers of a transformer) are emitted once; the first lends its own.
    of = {node: _content(kernel) for node, (kernel, _) in loops.items()}
    kernels: dict[str, LoopKernel] = {}
    for node, (kernel, _) in loops.items():
        kernels.setdefault(of[node], kernel)
    texts = [(kernel, emitter.emit(kernel)) for kernel in kernels.values()]
    numbers = {content: number for number, content in enumerate(kernels)}
    text_of = {node: numbers[content] for node, content in of.items()}
    watch.emitted({kernel.name: texts[text_of[node]][1] for node, (kernel, _) in loops.items()})
    return texts, text_of


def _content(kernel: LoopKernel) -> str:
    """What a kernel does, whatever it and its seeds are called."""
    text = loop_print.text(replace(kernel, name=""))
    for number, symbol in enumerate(s for s in kernel.symbols if s.role == "seed"):
        text = text.replace(repr(symbol.name), repr(f"seed {number}"))
    return text


def _host_operator(loaded: LoadedBackend, node: fx.Node) -> Callable[..., Any]:
    name = prim_name(node)
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    if node.target not in BY_TARGET:
        return target  # composites have several operators, foreign ones no row: each runs itself
    return operator_of(node) or loaded.host_fallback(name) or target


# State that belongs to a session, made once


class _State:
    """Memory and runtime of one session; all its compiled graphs share them."""

    def __init__(self, session: Session) -> None:
        wants = session.loaded.backend.legalize
        self.memory: DeviceMemory | None = None
        self.runtime: Runtime
        self.arena = torch.device(session.device.type if isinstance(session.device, TorchDevice) else "cpu")
        self.recorder = session.device.recorder if isinstance(session.device, TorchDevice) else None
        if isinstance(session.device, TorchDevice):
            in_memory = session.emitter is not None and session.emitter.seeds_in_memory
            self.runtime = TorchRuntime(torch.device(session.device.type), wants.contiguous_inputs, in_memory)
        else:
            self.memory = DeviceMemory(session.device)
            kernel = session.loaded.kernels.get("clone")
            copies = kernel.call if kernel is not None and kernel.destination else None
            self.runtime = OwnMemoryRuntime(self.memory, copies, wants.contiguous_inputs)


_states: weakref.WeakKeyDictionary[LoadedBackend, dict[int, _State]] = weakref.WeakKeyDictionary()


def _state(session: Session) -> _State:
    by_session = _states.setdefault(session.loaded, {})
    return by_session.setdefault(id(session), _State(session)) if id(session) not in by_session else by_session[id(session)]
