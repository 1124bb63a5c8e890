"""What ``torch.compile`` calls: AOTAutograd around the stages of the pipeline, and compiled graphs that come back from disk.

A stored graph is what the stages decided, before its kernels become addresses (``pipeline.Decided``): an artefact of our cache,
of which AOTAutograd's cache holds the key. On a hit nothing is traced, partitioned, scheduled or lowered.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vendor_sdk import debug, pipeline, resting, torch_private
from vendor_sdk.capture.attention import keep_attention
from vendor_sdk.capture.channels import lie_channels_last
from vendor_sdk.capture.composed import recognize_attention
from vendor_sdk.capture.corrected import correct
from vendor_sdk.capture.flex import spell_out_flex_attention
from vendor_sdk.capture.foresee import foreseen
from vendor_sdk.capture.graph import to_prim_graph, without_writes
from vendor_sdk.capture.heads import share_heads
from vendor_sdk.capture.masks import compute_masks_again, know_masks
from vendor_sdk.capture.multihead import open_attention
from vendor_sdk.capture.norms import save_less_of_norms
from vendor_sdk.capture.pooled import save_less_of_pools
from vendor_sdk.capture.sparse import without_sparse
from vendor_sdk.capture.unread import drop_unread
from vendor_sdk.capture.whole import drop_whole_slices
from vendor_sdk.capture.windows import know_windows
from vendor_sdk.contract.artifacts import Artifacts
from vendor_sdk.contract.loader import LoadedBackend, Session, load
from vendor_sdk.contract.placement import Route
from vendor_sdk.ir import pickled
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.lower import LOWERINGS
from vendor_sdk.lower.summary import summarize
from vendor_sdk.normalize.aligned import align_products
from vendor_sdk.normalize.decompose import capture_table
from vendor_sdk.normalize.undefined import expected, without_gradients
from vendor_sdk.plan.activations import Activations
from vendor_sdk.routes import Routes, table_of, targets
from vendor_sdk.run.compiled import CompiledGraph
from vendor_sdk.run.gradients import Backward, Zeros, zeros_of
from vendor_sdk.run.sparse import WithSparse
from vendor_sdk.torch_private import dynamo as torch_dynamo
from vendor_sdk.watch import Watch

Options = Mapping[str, Any]


def compile_dynamo(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, backend: str, options: Options | None = None
) -> Callable[..., Any]:
    """What ``torch.compile(backend=...)`` calls with each graph that Dynamo captured."""
    session = load(backend, options).session(options)
    correct(module)
    spell_out_flex_attention(module)
    open_attention(module)
    recognize_attention(module, session.loaded.backend.composites)
    keep_attention(module, everywhere=session.target is not None)
    know_windows(module)
    if session.emitter is not None:
        session.emitter.foresee(foreseen(module))
    key = _stored_key(session) if _worth_storing(module, example_inputs) else None
    activations = Activations()

    def capture(
        captured: fx.GraphModule, fake_inputs: Sequence[Any], watch: Watch, backward: bool, training: bool
    ) -> PrimGraph:
        static = frozenset() if backward else torch_private.static_input_indices()
        dense, parts = without_sparse(captured)
        functional, writes = without_writes(dense)
        if not (backward or training) and wants.channels_last:
            lie_channels_last(functional.graph)
        watch.aten(functional)
        graph = to_prim_graph(
            functional,
            _fakes(captured, fake_inputs),
            table_of(session.loaded),
            backward=backward,
            static_inputs=static - set(writes),
            writes=writes,
            inline=session.graph_compiler is None,
        )
        if backward:
            graph.donated_inputs = torch_private.donated_input_indices(fake_inputs)
        else:
            graph.training = training
            graph.saved_outputs = torch_private.saved_outputs()
        graph.sparse = parts
        return graph

    wants = session.loaded.backend.legalize

    def joint(graph: fx.Graph, outputs: int) -> None:
        drop_unread(graph)
        drop_whole_slices(graph)
        know_masks(graph)
        if any(kernel.computes for kernel in session.loaded.kernels.values()):
            compute_masks_again(graph)
        share_heads(graph)
        if wants.row_alignment > 1:
            align_products(graph, wants.row_alignment)
        if wants.channels_last:
            lie_channels_last(graph)
        if session.emitter is not None:
            save_less_of_norms(graph, outputs, targets(session.loaded.backend.composites))
            save_less_of_pools(graph, _computed_in(session), functools.partial(_fuses, Routes(session)))

    def compiler(*, backward: bool = False, training: bool = False) -> Callable[..., Any]:
        def compile_captured(captured: fx.GraphModule, fake_inputs: Sequence[Any]) -> Any:
            watch = pipeline.watch_of(session, backward)
            with watch.failures():
                graph = capture(captured, fake_inputs, watch, backward=backward, training=training)
            with torch_private.real_tensors(), watch.failures():
                graph, whole = _expected(graph, torch_private.tangents(captured)) if backward else (graph, None)
                decided = pipeline.decide(graph, session, watch, activations)
                # Compilers of the target may work on while the rest is done here.
                passes_on = not (backward or training) and torch_dynamo.passes_on(captured)
                run = _run(decided, whole, session, watch, passes_on=passes_on)
                return run if key is None else (run, _store(decided, whole, session, passes_on=passes_on))

        return compile_captured

    compilers = compiler(training=True), compiler(backward=True), compiler()
    table = _capture_table(frozenset(session.loaded.backend.composites))
    if key is None:
        compile_pair = torch_dynamo.aot_autograd(*compilers, table, joint)
    else:
        restore = functools.partial(_restore, backend, dict(options or {}))
        compile_pair = torch_dynamo.cached_aot_autograd(*compilers, table, joint, restore, key)
    resting.rest_in_dynamo()  # again: resets forget it
    with resting.without_collections():
        run = compile_pair(module, example_inputs)
    return torch_private.undefined_gradients(_direct(run, example_inputs), module, example_inputs)


def _direct(run: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """What AOTAutograd made of a graph, or for inference the graph itself where there is nothing to do around it: its wrapper
    takes three times as long as a small graph."""
    gradients = torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    if gradients or torch_private.autocasts():  # Inside, it turns them off. Dynamo guards both.
        return run
    inside = torch_dynamo.inside(run)
    graph = getattr(inside, "compiled_graph", None)
    if not (isinstance(graph, CompiledGraph) and inside is graph.boxed() and getattr(inside, "passes_on", False)):
        return run

    @functools.wraps(getattr(run, "__wrapped__", run))  # what torch.compiler.disable wrapped: Dynamo takes that off
    def call(*args: Any) -> Any:
        return inside([*args])

    return call


WORTH_STORING = 30
"""Calls in a graph of Dynamo from which AOTAutograd's cache is asked: a smaller graph goes through the stages in the time that
torch takes for its key and entry."""
DIFFERENTIATED = 5
"""A call that is differentiated counts as so many: it is traced three times, and goes through the stages in two graphs."""
_ENTRY = ".graph"


def _worth_storing(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph is large enough to be kept, and its key says everything about it."""
    calls = sum(node.op in ("call_function", "call_method") for node in module.graph.nodes)
    if torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        calls *= DIFFERENTIATED
    return calls >= WORTH_STORING and not torch_private.own_tensors(module)


def _stored_key(session: Session) -> str | None:
    """What beside a graph decides how it is compiled; None where that cannot be said, or debugging wants to see all stages."""
    loaded = session.loaded
    if loaded.identity is None or debug.directory() is not None or debug.checking() or debug.fuel() is not None:
        return None
    return _artifacts(loaded).key("options", repr(sorted(session.options.items())))


def _artifacts(loaded: LoadedBackend) -> Artifacts:
    return Artifacts(loaded.backend.name, lambda: f"{loaded.backend.version} {loaded.fingerprint} {loaded.identity}")


@dataclass(frozen=True)
class Whole:
    """A backward graph from which inputs were taken.

    Attributes:
        graph: with all of them.
        without: the inputs that were taken.
        zeros: how to make those that autograd may leave out.
    """

    graph: PrimGraph
    without: tuple[int, ...]
    zeros: Mapping[int, Zeros]


def _expected(graph: PrimGraph, tangents: Sequence[int]) -> tuple[PrimGraph, Whole | None]:
    """A backward graph without the gradients that nobody is expected to ask for, and with them."""
    without = expected(graph, tangents)
    zeros = zeros_of(graph, tangents) if without else None
    reduced = without_gradients(graph, without) if zeros is not None else None
    if reduced is None or zeros is None:
        return graph, None
    return reduced, Whole(graph, without, zeros)


def _run(
    decided: pipeline.Decided, whole: Whole | None, session: Session, watch: Watch, *, passes_on: bool
) -> Callable[..., Any]:
    """The function of a compiled graph, in the form that AOTAutograd wants."""
    run = _run_dense(decided, whole, session, watch, passes_on=passes_on)
    parts = decided.graph.sparse
    return WithSparse(run, parts) if parts else run


def _run_dense(
    decided: pipeline.Decided, whole: Whole | None, session: Session, watch: Watch, *, passes_on: bool
) -> Callable[..., Any]:
    run = pipeline.finish(decided, session, watch).boxed()
    run.passes_on = passes_on  # type: ignore[attr-defined]
    if whole is None:
        return run

    def compile_whole() -> Callable[..., Any]:
        return pipeline.compile_prim_graph(whole.graph.copy(), session).boxed()

    return Backward(whole.without, run, compile_whole, whole.zeros)


def _store(decided: pipeline.Decided, whole: Whole | None, session: Session, *, passes_on: bool) -> str | None:
    """Keeps what ``pipeline.finish`` needs, under the key that is returned; None when no other process could read it."""
    try:
        content = pickled.dumps((decided.storable(), whole, passes_on))
    except pickled.NotPicklable:
        return None
    artifacts = _artifacts(session.loaded)
    key = artifacts.key("graph", hashlib.sha256(content).hexdigest())
    artifacts.keep(key, content, _ENTRY)
    return key


def _restore(backend: str, options: Options, key: str) -> Callable[..., Any] | None:
    """The function of a stored graph; None when its artefact is gone."""
    session = load(backend, options).session(options)
    content = _artifacts(session.loaded).read(key, _ENTRY)
    if content is None:
        return None
    decided, whole, passes_on = pickled.loads(content)
    watch = pipeline.watch_of(session, decided.graph.backward)
    with watch.failures():
        return _run(decided, whole, session, watch, passes_on=passes_on)


@functools.cache
def _capture_table(composites: frozenset[str]) -> Mapping[Any, Callable[..., Any]]:
    return capture_table(targets(composites))


def _computed_in(session: Session) -> frozenset[torch.dtype]:
    """What fused kernels compute in."""
    types = None if session.emitter is None else session.emitter.types
    dtypes = session.loaded.backend.dtypes
    return dtypes if types is None else dtypes.intersection(types)


def _fuses(routes: Routes, node: fx.Node) -> bool:
    """Whether an operator, which is a prim, is computed element by element in a kernel of the emitter's."""
    elementwise = summarize(node, LOWERINGS, lambda value: False) is not None
    return elementwise and routes.route(node, prim_name(node)) is Route.EMITTER


def _fakes(module: fx.GraphModule, fake_inputs: Sequence[Any]) -> list[Any]:
    """The fake values of a captured graph's placeholders (AOTAutograd passes real ones for some backward graphs)."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    return [given if value is None else value for value, given in zip(values, fake_inputs, strict=True)]
