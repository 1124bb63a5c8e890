"""The only home of private torch names: a torch upgrade is this file's work.

Each function says what it wraps; all were checked on torch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._decomp import _core_aten_decompositions_post_autograd, core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.backends.common import aot_autograd as _aot_autograd
from torch._dynamo.callback import callback_handler
from torch._dynamo.source import ConstantSource
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._functorch.aot_autograd import aot_function as _aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph as invoke_subgraph
from torch._higher_order_ops.while_loop import while_loop_op as while_loop_op
from torch._inductor import config as inductor_config
from torch._inductor.codecache import FxGraphHashDetails
from torch._inductor.output_code import OutputCode
from torch._ops import OpOverload as OpOverload
from torch._prims.rng_prims import run_and_save_rng_state as run_and_save_rng_state
from torch._prims.rng_prims import run_with_rng_state as run_with_rng_state
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    guard_or_false,
    statically_known_true,
)
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._sympy.printers import PythonPrinter

pytree = _pytree

PROFILER = torch.autograd.profiler
PROFILING = "_is_profiler_enabled"
"""The attribute of ``PROFILER`` that says whether a profiler of torch runs, in any thread (torch 2.11 and 2.13)."""
profiler_event = torch._C._profiler._RecordFunctionFast
"""``with profiler_event(name, (), arguments)``: an event of torch's profiler, with ``arguments`` (numbers and texts by name)
where that was told to record shapes."""

Table = Mapping[Any, Callable[..., Any]]


def fake_mode_of(values: Any) -> FakeTensorMode:
    """The fake mode that ``values`` (and the compilation under way) belong to, or a new one."""
    return detect_fake_mode(values) or new_fake_mode()


def new_fake_mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Inside the compiler callbacks torch.empty and its like make fake tensors; not in here."""
    with unset_fake_temporarily():
        yield


@contextlib.contextmanager
def a_trace_of_its_own() -> Iterator[None]:
    """Inside compiler callbacks fake tensors are taken for those of the graph under way; not in here."""
    with unset_fake_temporarily(), tracing(None):
        yield


def decompose(module: fx.GraphModule, fake_inputs: Sequence[Any], table: Table) -> fx.GraphModule:
    """Retraces ``module`` with ``table``; nodes keep the user's source lines.

    With symbolic sizes under ``torch._dispatch.python.enable_python_dispatcher``, as AOTAutograd traces: composite operators
    that torch.export leaves whole (``gru``) are then taken apart by rules for such sizes, not by kernels that ask for numbers.
    """
    symbolic = any(_is_symbolic(value) for value in fake_inputs)
    dispatcher = enable_python_dispatcher() if symbolic else contextlib.nullcontext()
    with fx.traceback.preserve_node_meta(), _use_lazy_graph_module(True), dispatcher:
        traced: fx.GraphModule = make_fx(fx.Interpreter(module).run, decomposition_table=dict(table))(*fake_inputs)
    for node in traced.graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("val", None)  # operators that return nothing (assertions) get none from make_fx
    return traced


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, torch.SymInt)


def functional_trace(function: Callable[..., Any], fake_inputs: Sequence[Any]) -> fx.GraphModule:
    """Traces a plain function of tensors into an ATen graph with fake values."""
    return make_fx(function)(*fake_inputs)


def attribute(module: torch.nn.Module, path: str) -> Any:
    """``module.a.b`` by its dotted path."""
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, equal for views of one storage while it lives (fake tensors too)."""
    return int(tensor.untyped_storage()._cdata)


def around_compilations(start: Callable[[Any], None], end: Callable[[Any], None]) -> None:
    """Has Dynamo call ``start`` and ``end`` around each of its compilations, those of other backends too, until
    ``torch._dynamo.reset``. Asking again changes nothing.

    Wraps ``torch._dynamo.callback_handler``, behind ``torch._dynamo.on_compile_start`` (torch 2.11 and 2.13).
    """
    if start not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(start)
        callback_handler.register_end_callback(end)


Simplify = Callable[[fx.Graph], None]
"""Changes a graph of aten operators in place."""


def aot_autograd(
    forward: Callable[..., Any], backward: Callable[..., Any], inference: Callable[..., Any], table: Table, joint: Simplify
) -> Callable[..., Any]:
    """A Dynamo backend: AOTAutograd with the min-cut partitioner around three graph compilers; ``joint`` sees what is to be
    partitioned.

    Their graphs end with ``copy_(input, value)`` for inputs that the program mutates. A backward graph is compiled with its
    forward graph (``torch._functorch.config.force_non_lazy_backward_lowering``), not in the first backward call: target
    compilers work on the one meanwhile.
    """
    compile_pair = _aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=dict(table),
        partition_fn=_partitioner(joint),
        keep_inference_input_mutations=True,
    )

    def compile_now(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with functorch_config.patch(force_non_lazy_backward_lowering=True):
            compiled: Callable[..., Any] = compile_pair(module, example_inputs)
        return compiled

    return compile_now


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _attention(*args: Any, **kwargs: Any) -> Any:
    return _ATTENTION(*args, **kwargs)


def _partitioner(joint: Simplify) -> Callable[..., tuple[fx.GraphModule, fx.GraphModule]]:
    """The min-cut partitioner, told that views cost nothing: what several saved values show is saved once.

    Random operators that are computed again get the state of the generator as a tensor, on all devices. That of attention,
    which torch has tagged as random, draws nothing.
    """

    @functools.wraps(min_cut_rematerialization_partition)
    def partition(module: fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint(module.graph)
        _retarget(module, _ATTENTION, _attention)
        with functorch_config.patch(recompute_views=True, graphsafe_rng_functionalization=False):
            parts = min_cut_rematerialization_partition(module, *args, **kwargs)
        for part in parts:
            _retarget(part, _attention, _ATTENTION)
        return parts

    return partition


def _retarget(module: fx.GraphModule, before: Callable[..., Any], after: Callable[..., Any]) -> None:
    found = [node for node in module.graph.nodes if node.target is before]
    for node in found:
        node.target = after
    if found:
        module.recompile()


class StoredCode(OutputCode):
    """What a graph compiler under ``cached_aot_autograd`` leaves in AOTAutograd's cache: how to make its function again.

    Wraps ``torch._inductor.output_code.OutputCode``, which AOTAutograd's cache asks for (torch 2.11 and 2.13).

    Args:
        stored: picklable; ``restore(stored)`` makes the compiled function, in another process too.
    """

    def __init__(self, restore: Callable[[Any], Callable[..., Any] | None], stored: Any) -> None:
        self._restore, self._stored = restore, stored
        self._run: Callable[..., Any] | None = None
        self._boxed_call = True

    def __call__(self, inputs: Any) -> Any:
        return self._run(inputs)  # type: ignore[misc]

    def __getstate__(self) -> Any:
        return self._restore, self._stored

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def prepare_for_serialization(self) -> None: ...

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        with real_tensors():
            self._run = self._restore(self._stored)
        if self._run is None:
            raise FXGraphCacheMiss

    def set_triton_bundle(self, triton_bundle: Any) -> None: ...


Stored = tuple[Callable[..., Any], Any]
"""A compiled function, and what ``restore`` makes it from; None for the second where nothing does."""


def cached_aot_autograd(
    forward: Callable[..., Stored],
    backward: Callable[..., Stored],
    inference: Callable[..., Stored],
    table: Table,
    joint: Simplify,
    restore: Callable[[Any], Callable[..., Any] | None],
    key: str,
) -> Callable[..., Any]:
    """``aot_autograd`` with AOTAutograd's own cache (``torch._functorch.config.enable_autograd_cache``): on a hit nothing is
    traced, partitioned or compiled, and the functions come from ``restore``.

    Wraps ``SerializableAOTDispatchCompiler``, ``bundled_autograd_cache`` and ``torch.compiler.config.cache_key_tag``; the two
    settings hold during the compilations of this backend only.

    Args:
        forward, backward, inference: graph compilers.
        restore: a function of a module, or a ``partial`` of picklable arguments; answers None where what it needs is gone.
        key: whatever beside the graph decides what is compiled.
    """

    def serializable(compiler: Callable[..., Stored]) -> SerializableAOTDispatchCompiler:
        def compile_stored(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            run, stored = compiler(module, inputs)
            # Where the cache looks for what it writes.
            run.__wrapped__ = _Unstored() if stored is None else StoredCode(restore, stored)  # type: ignore[attr-defined]
            return run

        return SerializableAOTDispatchCompiler(OutputCode, compile_stored)  # type: ignore[arg-type]

    def compile_pair(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        tag = f"{torch.compiler.config.cache_key_tag}|{key}"
        with (
            functorch_config.patch(bundled_autograd_cache=True),
            torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
            _short_keys(),
        ):
            compilers = serializable(forward), serializable(backward), serializable(inference)
            compiled: Callable[..., Any] = aot_autograd(*compilers, table, joint)(module, example_inputs)
        return compiled

    return compile_pair


class _Keys(threading.local):
    short = False


_keys = _Keys()


@contextlib.contextmanager
def _short_keys() -> Iterator[None]:
    """Inside, this thread's keys of AOTAutograd's cache leave out what Inductor alone depends on.

    Those are hashes of the files of torch and Triton, and the registry of Inductor's backends: 0.4 s of a process's first key,
    and 0.8 s of imports.
    """
    _let_keys_be_short()
    before, _keys.short = _keys.short, True
    try:
        yield
    finally:
        _keys.short = before


@functools.cache
def _let_keys_be_short() -> None:
    """Replaces ``torch._inductor.codecache.FxGraphHashDetails.__init__`` (torch 2.11 and 2.13), whose attributes are the key;
    outside ``_short_keys`` it does what it did."""
    whole = FxGraphHashDetails.__init__

    def init(self: Any, gm: fx.GraphModule, example_inputs: Sequence[Any], *more: Any) -> None:
        # Without a tensor among the inputs the current device decides; Inductor's part of the key says which that is.
        tensors = any(isinstance(x, torch.Tensor) for x in example_inputs)
        plain = tensors and all(isinstance(x, _KEYED) for x in example_inputs) and not _has_triton_kernels(gm)
        if not (_keys.short and plain):
            whole(self, gm, example_inputs, *more)
            return
        environment = getattr(TracingContext.try_get(), "fake_mode", None)
        hints = getattr(getattr(environment, "shape_env", None), "var_to_hint_override", None) or {}
        self.gm = gm
        self.example_inputs = list(example_inputs)
        self.cache_key_tag = torch.compiler.config.cache_key_tag
        self.settings = (
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            sorted((str(symbol), hint) for symbol, hint in hints.items()),
        )
        self.inductor_config = inductor_config.save_config_portable()

    FxGraphHashDetails.__init__ = init  # type: ignore[method-assign, assignment]


_KEYED = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool, type(None))
"""Inputs whose keys say all about them."""


def _has_triton_kernels(module: fx.GraphModule) -> bool:
    graphs = (part for part in module.modules() if isinstance(part, fx.GraphModule))
    return any("triton_kernel" in str(node.target) for graph in graphs for node in graph.graph.nodes)


class _Unstored(OutputCode):
    """Of a graph that cannot be stored: the cache leaves the whole entry out."""

    def prepare_for_serialization(self) -> None:
        raise BypassAOTAutogradCache("the compiled graph cannot be stored")


def own_tensors(module: fx.GraphModule) -> bool:
    """Whether a graph of Dynamo holds tensors itself, which no key of AOTAutograd's cache knows the contents of."""
    return any(
        isinstance(attribute(module, str(node.target)), torch.Tensor) for node in module.graph.nodes if node.op == "get_attr"
    )


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def fake_tensor(
    mode: FakeTensorMode, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A fake tensor of its own storage. Wraps ``FakeTensor(mode, meta, device)``."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else offset - 1
    meta = torch.empty(last + 1, dtype=dtype, device="meta").as_strided(shape, strides, offset)
    fake: torch.Tensor = FakeTensor(mode, meta, device)
    return fake


def fake_like(value: torch.Tensor) -> torch.Tensor:
    """A fake tensor that lies like another, in storage of its own."""
    mode = fake_mode_of(value)
    with unset_fake_temporarily():  # with the mode on, each step of it is dispatched
        return fake_tensor(mode, value.shape, value.stride(), int(value.storage_offset()), value.dtype, value.device)


def lazy_graph_module(root: Any, graph: fx.Graph) -> fx.GraphModule:
    """A graph module whose Python text is made when it is first run (``torch.fx._lazy_graph_module``)."""
    with _use_lazy_graph_module(True):
        module: fx.GraphModule = _make_graph_module(root, graph)
    return module


def static_input_indices() -> frozenset[int]:
    """Inputs of the graph being compiled that AOTAutograd knows to be parameters or buffers."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def dim_names(fakes: Sequence[Any]) -> dict[str, str]:
    """Symbol of a size to the name of the ``torch.export.Dim`` that a user gave it (``ShapeEnv.source_name_to_debug_name``,
    ``var_to_sources``; torch 2.11 and 2.13). Without those attributes there are no names."""
    mode = detect_fake_mode(fakes)
    env = getattr(mode, "shape_env", None)
    given, sources = getattr(env, "source_name_to_debug_name", None) or {}, getattr(env, "var_to_sources", None) or {}
    found = {}
    for symbol, places in sources.items():
        for source in places:
            name = source.name() if callable(source.name) else source.name
            if name in given:
                found[str(symbol)] = str(given[name])
    return found


def donated_input_indices(inputs: Sequence[Any]) -> frozenset[int]:
    """Inputs of the backward graph being compiled that only it will read (``ViewAndMutationMeta.bw_donated_idxs``): activations
    that alias no input and no output, of a backward that runs once. AOTAutograd refuses ``retain_graph=True`` for such graphs.

    Of several that share memory none counts.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    indices = getattr(metadata, "bw_donated_idxs", None) or ()
    keys = [storage_key(value) if isinstance(value, torch.Tensor) else None for value in inputs]
    return frozenset(i for i in indices if i < len(keys) and keys[i] is not None and keys.count(keys[i]) == 1)


def tangents(module: fx.GraphModule) -> list[int]:
    """Inputs of a backward graph of AOTAutograd that are gradients of the forward graph's outputs: its partitioners know them
    by the same names."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [index for index, node in enumerate(placeholders) if "tangents" in str(node.target)]


def undefined_gradients(run: Callable[..., Any], module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """``run``, compiled by AOTAutograd of ``module``, so that autograd passes None rather than zeros for outputs that nobody
    differentiates to a backward function with a true attribute ``undefined_gradients``.

    ``CompiledFunction.compiled_bw`` of AOTAutograd says which function that is; the node in the graph of autograd is the
    context that ``set_materialize_grads`` is documented for.
    """
    (results,) = module.graph.output_node().args
    several = isinstance(results, list | tuple) and len(results) > 1
    if not several or not torch.is_grad_enabled() or not any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return run

    @functools.wraps(run)
    def call(*args: Any) -> Any:
        outputs = run(*args)
        for output in outputs:
            node: Any = output.grad_fn if isinstance(output, torch.Tensor) else None
            function = getattr(type(node), "_forward_cls", None)
            if getattr(getattr(function, "compiled_bw", None), "undefined_gradients", False):
                node.set_materialize_grads(False)
                break
        return outputs

    return call


def saved_outputs() -> dict[int, int]:
    """Of the forward graph being compiled: input of its backward graph, where that is donated, to the output that becomes it.

    Empty where the two do not correspond one to one (symbolic sizes, effect tokens among the outputs).
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    others = ("num_symints_saved_for_bw", "num_opaque_objects_saved_for_bw", "tokens")
    if metadata is None or any(getattr(metadata, name, None) for name in others):
        return {}
    return {index: metadata.num_forward + index for index in getattr(metadata, "bw_donated_idxs", None) or ()}


def sympy_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """The sympy expression of a symbolic number, with the shape environment's replacements applied."""
    return value.node.expr


def trace_call(
    rule: Callable[..., Any], args: Any, kwargs: Any, inputs: Sequence[fx.Node], table: Table
) -> fx.GraphModule | None:
    """Traces ``rule(*args, **kwargs)``, where nodes of a graph stand among the arguments, as a function of ``inputs``.

    ``None`` when the rule answers ``NotImplemented`` for these arguments.
    """
    refused = False

    def call(*values: Any) -> Any:
        nonlocal refused
        of = dict(zip(inputs, values, strict=True))
        result = rule(*fx.node.map_arg(args, of.__getitem__), **fx.node.map_arg(kwargs, of.__getitem__))
        refused = result is NotImplemented
        return () if refused else result

    fakes = [node.meta["val"] for node in inputs]
    with fake_mode_of(fakes):
        traced: fx.GraphModule = make_fx(call, decomposition_table=dict(table))(*fakes)
    return None if refused else traced


def surely_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever their symbols; adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return statically_known_true(a == b)


def equal_from_now_on(a: Any, b: Any) -> bool:
    """Whether two sizes are equal in this call; where their symbols leave it open, a guard keeps the answer. Sizes that only
    the data tells are equal if that is known."""
    return guard_or_false(a == b)


def promote(values: Sequence[Any]) -> torch.dtype:
    """torch's promoted dtype of tensors and Python numbers (a number never widens a tensor within its category)."""
    numbers = [float(1) if isinstance(v, torch.SymFloat) else 1 if isinstance(v, torch.SymInt) else v for v in values]
    _, dtype = elementwise_dtypes(*numbers, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)
    return dtype


def core_aten_table() -> dict[OpOverload, Callable[..., Any]]:
    """Torch's own core ATen decompositions, for graphs that were dispatched to their end (a fresh dict).

    Wraps ``torch._decomp._core_aten_decompositions_post_autograd`` (torch 2.11 and 2.13).
    """
    return _overloads(_core_aten_decompositions_post_autograd())


def exported_table() -> dict[OpOverload, Callable[..., Any]]:
    """``core_aten_table``, and what ``torch.export`` keeps whole although the dispatcher would take it apart (a fresh dict).

    Torch looks through every operator of every library for them: 0.1 s.
    """
    return _overloads(core_aten_decompositions())


def _overloads(table: Mapping[Any, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    return {key: rule for key, rule in table.items() if isinstance(key, OpOverload)}


def registered_table() -> dict[OpOverload, Callable[..., Any]]:
    """Every decomposition torch has registered, core or not, reference implementations included (a fresh dict).

    Some end in ``torch.ops.prims`` operators instead of ATen ones.
    """
    importlib.import_module("torch._refs")  # registers the reference implementations
    return {key: rule for key, rule in decomposition_table.items() if isinstance(key, OpOverload)}


def plain_allocator(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """``allocate(shape, strides, dtype)`` on the current device of a type, in half the time of ``torch.empty``; None for
    devices that have none, or of which one is named.

    Wraps ``torch._C._dynamo.guards._empty_strided_cuda`` and its like, which Inductor's wrappers call.
    """
    if device.index is not None:
        return None
    return getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)


tensor_inside: Callable[[torch.Tensor, Sequence[int], Sequence[int], int], torch.Tensor]
tensor_inside = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
"""A tensor of these sizes and strides in the memory of another, so many elements from its first: of its own, with a version
of its own and no view that autograd knows of, in two thirds of the time of ``as_strided``. Inductor's wrappers call it."""


def tensor_version(tensor: torch.Tensor) -> int | None:
    """The version counter that every in-place operation moves (``Tensor._version``), shared by views of one tensor.

    ``None`` for an inference tensor, which has none.
    """
    return None if tensor.is_inference() else int(tensor._version)


def as_function(target: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """``target(*args, **kwargs)`` as a function of the tensors among its arguments, with those tensors."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    where = [index for index, value in enumerate(flat) if isinstance(value, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        values = list(flat)
        for index, tensor in zip(where, tensors, strict=True):
            values[index] = tensor
        call_args, call_kwargs = pytree.tree_unflatten(values, spec)
        return target(*call_args, **call_kwargs)

    return function, [flat[index] for index in where]


class DynamoEvents:
    """Graph breaks and recompilations since it was made, as Dynamo gives their reasons."""

    def __init__(self) -> None:
        self._breaks = len(dynamo_utils.graph_break_reasons)
        self._metrics = len(dynamo_utils.get_compilation_metrics())

    @property
    def graph_breaks(self) -> list[str]:
        lines = []
        for reason in dynamo_utils.graph_break_reasons[self._breaks :]:
            frame = reason.user_stack[-1] if reason.user_stack else None
            where = f"{frame.filename}:{frame.lineno} in {frame.name}: " if frame is not None else ""
            lines.append(where + str(reason.reason).splitlines()[0])
        return lines

    @property
    def recompiles(self) -> list[str]:
        metrics = dynamo_utils.get_compilation_metrics()[self._metrics :]
        return [f"{m.co_name}: {reason}" for m in metrics if (reason := getattr(m, "recompile_reason", None))]


@contextlib.contextmanager
def dynamo_events() -> Iterator[DynamoEvents]:
    """Collects what Dynamo does inside the ``with`` block."""
    yield DynamoEvents()


def operator_database() -> list[Any]:
    """Torch's operator database: about 700 entries with ``full_name``, ``dtypes`` and ``sample_inputs``."""
    module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    return list(module.op_db)


def aot_function(function: Callable[..., Any], compiler: Callable[..., Any], table: Table) -> Callable[..., Any]:
    """``function`` captured by AOTAutograd at its first call: ``compiler`` gets the forward and the backward graph."""
    return _aot_function(
        function,
        fw_compiler=compiler,
        bw_compiler=compiler,
        decompositions=dict(table),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=False,
    )


def is_export_limit(error: BaseException) -> bool:
    """Whether ``error`` says that a result's size or a branch depends on data, which no static graph can hold."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException | GuardOnDataDependentSymNode)


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiler callback returns: takes its inputs as one list, which AOTAutograd lets it empty."""
    return make_boxed_func(function)  # type: ignore[no-any-return]


def operator_names(prefix: str) -> list[str]:
    """All operators torch has whose qualified name (``"aten::add.Tensor"``) begins so (``_dispatch_get_all_op_names``)."""
    return sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix))


def without_effect_tokens(module: fx.GraphModule) -> fx.GraphModule:
    """``with_effects(token, operator, *args)`` to the bare operator: a prim graph runs in order, so it needs no tokens.

    ``torch.ops.higher_order.with_effects``, ``prims._make_token``, ``prims._sink_tokens``; ``module`` itself stays as it was.
    """
    effects = getattr(torch.ops.higher_order, "with_effects", None)
    if not any(node.target is effects for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    outputs = graph.graph_copy(module.graph, val_map={})
    graph.output(outputs)
    for node in list(graph.nodes):
        if node.target is not effects:
            continue
        token, operation, *args = node.args
        with graph.inserting_before(node):
            call = graph.call_function(operation, tuple(args), dict(node.kwargs))
        call.meta.update({key: value for key, value in node.meta.items() if key != "val"})
        several = len(operation._schema.returns) > 1
        for user in list(node.users):
            position = user.args[1]
            if position == 0:
                user.replace_all_uses_with(token)
            elif not several:
                user.replace_all_uses_with(call)
            else:
                user.args = (call, position - 1)
                continue
            graph.erase_node(user)
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if str(node.target) in ("prims._sink_tokens.default", "prims._make_token.default") and not node.users:
            graph.erase_node(node)
    return fx.GraphModule(module, graph)


def tensor_leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples, dictionaries and registered output classes."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def forget_compiled() -> None:
    """Drops everything Dynamo has compiled in this process (``torch._dynamo.reset``)."""
    torch._dynamo.reset()


def surely_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor is row-major contiguous whatever its symbols; adds no guard."""
    expected: Any = 1
    for size, stride in reversed(list(zip(tensor.shape, tensor.stride(), strict=True))):
        if not surely_equal(size, 1):
            if not surely_equal(stride, expected):
                return False
            expected = expected * size
    return True


def functional_collectives() -> Any:
    """``torch.ops._c10d_functional`` with its meta kernels, which an import of the private module defines."""
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional


def flash_statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """dtype of the logsumexp that the meta kernel of torch's CPU flash attention gives for a query of ``dtype``."""
    with new_fake_mode():
        x = torch.empty(1, 1, 1, 1, dtype=dtype)
        statistics: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(x, x, x)[1]
    return statistics.dtype


def storage_handles(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    """What ``storage_uses`` takes for storages, as long as they exist."""
    return [storage._cdata for storage in storages]


def storage_uses(handles: Sequence[int]) -> list[int]:
    """How many tensors, and Python objects of storages, refer to each storage."""
    return [*map(torch._C._storage_Use_Count, handles)]


def size_text(size: torch.SymInt | torch.SymFloat) -> tuple[set[str], str]:
    """The symbols of a symbolic size, and Python text that computes it from them with the ``math`` module."""
    expression = sympy_of(size)
    return {str(symbol) for symbol in expression.free_symbols}, PythonPrinter().doprint(expression)


def known_while_traced(size: int | torch.SymInt) -> bool:
    """Whether a size has a value while its graph is traced, which data alone may tell later. Wraps ``SymNode.has_hint``."""
    return not isinstance(size, torch.SymInt) or size.node.has_hint()


def size_hint(tensor: torch.Tensor, unknown: int = 4096) -> int:
    """Elements of a fake tensor as traced; a size that only data tells counts as ``unknown``. Wraps ``SymNode.hint``."""
    elements = 1
    for size in tensor.shape:
        if isinstance(size, torch.SymInt):
            elements *= int(size.node.hint) if known_while_traced(size) else unknown
        else:
            elements *= size
    return elements


def symbol_hints(values: Sequence[Any]) -> dict[str, int]:
    """The shape symbols in symbolic sizes, with the numbers they had while tracing."""
    hints: dict[str, int] = {}
    for value in values:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            for symbol in value.node.expr.free_symbols:
                environment = value.node.shape_env
                known = getattr(environment, "backed_var_to_val", None) or environment.var_to_val
                hints[str(symbol)] = int(known.get(symbol, 2))
    return hints


def symbolic_numbers(hints: Mapping[str, int]) -> tuple[FakeTensorMode, dict[str, torch.SymInt]]:
    """A fake mode, and a shape symbol for each name: equal numbers stay different symbols, and 0 and 1 are symbols too."""
    environment = ShapeEnv()
    numbers: dict[str, Any] = {}
    for name, hint in hints.items():
        source = ConstantSource(name)
        symbol = environment.create_symbol(
            hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, do_not_specialize_zero_one=True
        )
        numbers[name] = environment.create_symintnode(symbol, hint=hint, source=source)
    return FakeTensorMode(shape_env=environment, allow_non_fake_inputs=False), numbers


def in_transform(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to a transform of ``torch.func`` (``torch._C._functorch.is_functorch_wrapped_tensor``)."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def draws_numbers(target: Any) -> bool:
    """Whether an operator's results are random (``torch.Tag.nondeterministic_seeded``), or replayed from a state."""
    if target is run_and_save_rng_state or target is run_with_rng_state:
        return True
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


ARTIFACTS = "vendor_sdk"
"""Type of our artefacts in what ``torch.compiler.save_cache_artifacts`` returns."""


def carry_artifacts(populate: Callable[[str, bytes], None]) -> bool:
    """Lets ``torch.compiler.load_cache_artifacts`` hand recorded artefacts to ``populate(name, content)``.

    Wraps ``torch.compiler._cache.CacheArtifact`` and ``CacheArtifactFactory.register`` (torch 2.11 and 2.13). Returns whether
    this torch has them; without them artefacts stay on this machine.
    """
    try:
        from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

        class Artifact(CacheArtifact):
            @staticmethod
            def type() -> str:
                return ARTIFACTS

            def populate_cache(self) -> None:
                populate(self.key, self.content)

        CacheArtifactFactory.register(Artifact)
    except (ImportError, AttributeError, AssertionError, TypeError):
        return False
    return True


def record_artifact(name: str, content: bytes) -> None:
    """Adds an artefact to what ``torch.compiler.save_cache_artifacts`` returns (``CacheArtifactManager.record_artifact``)."""
    with contextlib.suppress(ImportError, AttributeError, AssertionError, TypeError):
        from torch.compiler._cache import CacheArtifactManager

        CacheArtifactManager.record_artifact(ARTIFACTS, name, content)
