"""Private names of Dynamo, of AOTAutograd and of its cache."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk.torch_checked import private_names
from vendor_sdk.torch_private import OpOverload, Table, real_tensors

with private_names():
    from torch._dynamo import utils as dynamo_utils
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch._dynamo.backends.common import aot_autograd as _aot_autograd
    from torch._dynamo.callback import callback_handler
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._functorch.aot_autograd import aot_function as _aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import TracingContext
    from torch._inductor import config as inductor_config
    from torch._inductor.codecache import FxGraphHashDetails
    from torch._inductor.output_code import OutputCode


def elements_by_tensors() -> contextlib.AbstractContextManager[Any]:
    """Inside, ``tensor[place]`` with places of no dimensions reads elements there, and asks for no numbers, which a trace of
    ``torch.vmap`` does not have.

    Wraps ``TransformGetItemToIndex``, with which torch runs the graphs of FlexAttention (torch 2.11 to 2.14).
    """
    return TransformGetItemToIndex()


def around_compilations(start: Callable[[Any], None], end: Callable[[Any], None]) -> None:
    """Has Dynamo call ``start`` and ``end`` around each of its compilations, those of other backends too, until
    ``torch._dynamo.reset``. Asking again changes nothing.

    Wraps ``torch._dynamo.callback_handler``, behind ``torch._dynamo.on_compile_start`` (torch 2.11 to 2.14).
    """
    if start not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(start)
        callback_handler.register_end_callback(end)


Simplify = Callable[[fx.Graph, int], None]
"""Changes a joint graph of aten operators in place, of whose results so many are the forward graph's."""


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
        joint(module.graph, kwargs["num_fwd_outputs"])
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

    Wraps ``torch._inductor.output_code.OutputCode``, which AOTAutograd's cache asks for (torch 2.11 to 2.14).

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


def passes_on(captured: fx.GraphModule) -> bool:
    """Whether AOTAutograd hands the arguments of the inference graph being compiled to it as they are, and its results to the
    caller, as far as ``ViewAndMutationMeta`` tells: no argument is written to, no result is a view that autograd must know of,
    or has sizes to be marked, and the mode of gradients stays what it was.

    Not so for graphs with operators of others, whose results torch examines in the first call
    (``torch._functorch.config.check_custom_op_aliasing``).
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or metadata.grad_enabled_mutation is not None:
        return False
    more = any(getattr(metadata, name, True) for name in _MORE)
    return not more and all(_of_torch(node.target) for node in captured.graph.nodes if node.op == "call_function")


_MORE = (
    "mutated_inp_runtime_indices",
    "mutated_graph_handled_indices",
    "num_outputs_aliased",
    "num_intermediate_bases",
    "dynamic_outputs",
    "tokens",
    "is_rng_op_functionalized",
)
"""What ``ViewAndMutationMeta`` names that its wrapper has to do; a torch without one of the names may have another."""


def _of_torch(target: Any) -> bool:
    if isinstance(target, OpOverload):
        return target.namespace in ("aten", "prims")
    return target is operator.getitem


_LAYERS = frozenset({"forward", "SerializableCompiledFunction", "runtime_wrapper"})
"""What AOTAutograd puts around a graph for inference, by name."""
_IDLE_LAYERS = frozenset(
    {"EffectTokensWrapper.post_compile.<locals>.inner_fn", "FunctionalizedRngRuntimeWrapper.post_compile.<locals>.wrapper"}
)
"""What torch 2.11 puts there even if it does nothing, by qualified name of its code: it goes by the name of what it wraps."""


def inside(run: Callable[..., Any]) -> Any:
    """What a graph compiler for inference returned, or ``restore``, of what ``aot_autograd`` made of it; where AOTAutograd put
    more around it than around every graph (for tensor subclasses, for arguments given twice), one of its functions.

    Follows ``__wrapped__``, as ``aot_module_simplified`` does (torch 2.11 to 2.14).
    """
    function: Any = run
    while _is_layer(function):
        function = getattr(function, "__wrapped__", None)
    return function._run if isinstance(function, StoredCode) else function


def _is_layer(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return name in _LAYERS or getattr(code, "co_qualname", None) in _IDLE_LAYERS


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
    """Replaces ``torch._inductor.codecache.FxGraphHashDetails.__init__`` (torch 2.11 to 2.14), whose attributes are the key;
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
