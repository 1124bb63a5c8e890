"""The only home of private torch names: a torch upgrade is this package's work.

Each function says what it wraps; all were checked on torch 2.11 to 2.14. What Dynamo and AOTAutograd have is in ``dynamo.py``:
the two take nearly as long to import as torch, and much of the SDK does without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk.errors import CaptureError
from vendor_sdk.torch_checked import private_names

with private_names():
    from torch._decomp import _core_aten_decompositions_post_autograd, core_aten_decompositions, decomposition_table
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import TracingContext, detect_fake_mode, tracing
    from torch._higher_order_ops.invoke_subgraph import invoke_subgraph as invoke_subgraph
    from torch._higher_order_ops.while_loop import while_loop_op as while_loop_op
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
        free_unbacked_symbols,
        guard_or_false,
        statically_known_true,
    )
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._sympy.printers import PythonPrinter

pytree = _pytree

PROFILER = torch.autograd.profiler
PROFILING = "_is_profiler_enabled"
"""The attribute of ``PROFILER`` that says whether a profiler of torch runs, in any thread (torch 2.11 to 2.14)."""
profiler_event = torch._C._profiler._RecordFunctionFast
"""``with profiler_event(name, (), arguments)``: an event of torch's profiler, with ``arguments`` (numbers and texts by name)
where that was told to record shapes."""

Table = Mapping[Any, Callable[..., Any]]


def fake_mode_of(values: Any) -> FakeTensorMode:
    """The fake mode that ``values`` (and the compilation under way) belong to, or a new one."""
    return detect_fake_mode(values) or new_fake_mode()


def own_mode_of(fake: Any) -> FakeTensorMode:
    """The fake mode of one tensor (``FakeTensor.fake_mode``): values of Dynamo's graph have another than the compilation under
    way."""
    mode: FakeTensorMode = fake.fake_mode
    return mode


def new_fake_mode(*, with_real: bool = False) -> FakeTensorMode:
    """``with_real``: in which real tensors may be operands too."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=with_real)


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


class _Inlining(fx.Interpreter):
    """Runs calls of subgraphs as if these stood where they are called."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is invoke_subgraph:
            subgraph, _, *operands = args
            return _Inlining(subgraph).run(*operands)
        return super().call_function(target, args, kwargs)


def decompose(module: fx.GraphModule, fake_inputs: Sequence[Any], table: Table, *, inline: bool = False) -> fx.GraphModule:
    """Retraces ``module`` with ``table``; nodes keep the user's source lines. ``inline``: without calls of subgraphs.

    With symbolic sizes under ``torch._dispatch.python.enable_python_dispatcher``, as AOTAutograd traces: composite operators
    that torch.export leaves whole (``gru``) are then taken apart by rules for such sizes, not by kernels that ask for numbers.
    """
    symbolic = any(_is_symbolic(value) for value in fake_inputs)
    dispatcher = enable_python_dispatcher() if symbolic else contextlib.nullcontext()
    run = (_Inlining if inline else fx.Interpreter)(module).run
    with fx.traceback.preserve_node_meta(), _use_lazy_graph_module(True), dispatcher:
        traced: fx.GraphModule = make_fx(run, decomposition_table=dict(table))(*fake_inputs)
    for node in traced.graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("val", None)  # operators that return nothing (assertions) get none from make_fx
    return traced


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, torch.SymInt)


def is_composite(operator: OpOverload) -> bool:
    """Whether the dispatcher takes an operator apart for every backend (CompositeImplicitAutograd).

    Wraps ``OpOverload._can_decompose`` (torch 2.11 to 2.14).
    """
    return operator._can_decompose()


class _FindsWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses to write to memory of tensors that are not fake: while a function is traced, those that it closes over."""

    supports_higher_order_operators = True

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = fake_mode
        self.closed_over: dict[int, torch.Tensor] = {}
        """The fake tensors that stand for such ones, by where they lie."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                fake = self.fake_mode.from_tensor(value, static_shapes=True)
                self.closed_over[storage_key(fake)] = fake
        writes = self.closed_over and isinstance(func, OpOverload) and func._schema.is_mutable
        for index, argument in enumerate(func._schema.arguments if writes else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for each in pytree.tree_leaves(kwargs.get(argument.name, args[index] if index < len(args) else None)):
                    self._check(func, each)
        return func(*args, **kwargs)

    def _check(self, func: OpOverload, target: torch.Tensor) -> None:
        if not isinstance(target, FakeTensor) or storage_key(target) in self.closed_over:
            raise CaptureError(
                f"{func} writes to memory of a tensor that the traced function closes over, where it has {tuple(target.shape)}",
                why="a trace says what a function makes of its arguments, and such tensors are constants of it",
                fix="make it an argument of the function; a module that updates statistics does not in eval mode",
            )


def functional_trace(function: Callable[..., Any], fake_inputs: Sequence[Any]) -> fx.GraphModule:
    """Traces a plain function of tensors into an ATen graph with fake values, in which nothing is written to; real tensors that
    it closes over are attributes of the graph.

    Raises:
        CaptureError: it writes to such a one.
    """
    with _FindsWrites(fake_mode_of(fake_inputs)):
        traced: fx.GraphModule = make_fx(function)(*fake_inputs)
    if not any(isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in traced.graph.nodes):
        return traced  # Functionalization would ask branches for conditions that only data has.
    # It takes no tensors but its arguments.
    values = {str(node.target): attribute(traced, str(node.target)) for node in traced.graph.find_nodes(op="get_attr")}
    held = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    run = torch.func.functionalize(_Holding(traced, tuple(held)).run, remove="mutations")
    functional: fx.GraphModule = make_fx(run)(*fake_inputs, *held.values())
    placeholders = functional.graph.find_nodes(op="placeholder")
    for node, (name, value) in zip(placeholders[len(fake_inputs) :], held.items(), strict=True):
        functional.register_buffer(name, value)
        with functional.graph.inserting_before(node):
            node.replace_all_uses_with(functional.graph.get_attr(name))
        functional.graph.erase_node(node)
    functional.recompile()
    return functional


class _Holding(fx.Interpreter):
    """Runs a graph with its attributes of these names as its last arguments."""

    def __init__(self, module: fx.GraphModule, names: Sequence[str]) -> None:
        super().__init__(module)
        self.names = names

    def run(self, *args: Any) -> Any:  # type: ignore[override]
        inputs = len(args) - len(self.names)
        self.held = dict(zip(self.names, args[inputs:], strict=True))
        return super().run(*args[:inputs])

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.held[target] if target in self.held else super().get_attr(target, args, kwargs)


def attribute(module: torch.nn.Module, path: str) -> Any:
    """``module.a.b`` by its dotted path."""
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, equal for views of one storage while it lives (fake tensors too)."""
    return int(tensor.untyped_storage()._cdata)


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
    ``var_to_sources``; torch 2.11 to 2.14). Without those attributes there are no names."""
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
        # In a graph of prims values are as they lie in memory: none is conjugated when it is read.
        fakes = [fake.resolve_conj() if isinstance(fake, torch.Tensor) else fake for fake in fakes]
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

    Wraps ``torch._decomp._core_aten_decompositions_post_autograd`` (torch 2.11 to 2.14).
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


def operator_database() -> list[Any]:
    """Torch's operator database: about 700 entries with ``full_name`` and ``dtypes``; ``samples`` of each are below."""
    module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    return list(module.op_db)


def samples(entry: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[Any]:
    """The samples of an entry of the operator database, on the CPU; each is made after the same seed of torch's generator,
    Python's and NumPy's.

    ``entry.sample_inputs`` would look for the test that asks in the source of every function on the stack (torch 2.11 to 2.14).
    """
    seed = importlib.import_module("torch.testing._internal.common_utils").set_rng_seed
    seed(0)
    for sample in entry.sample_inputs_func(entry, "cpu", dtype, requires_grad):
        yield sample
        seed(0)


def is_export_limit(error: BaseException) -> bool:
    """Whether ``error`` says that a result's size or a branch depends on data, which no static graph can hold."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException | GuardOnDataDependentSymNode)


def boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiler callback returns: takes its inputs as one list, which AOTAutograd lets it empty where an attribute says
    so (``functorch.compile.make_boxed_func``, whose module takes a second to import)."""

    def run(inputs: Any) -> Any:
        return function(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


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
    x = torch.empty(1, 1, 1, 1, dtype=dtype, device="meta")
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
    """Whether a size has a value while its graph is traced, which data alone may tell later. Wraps ``SymNode.has_hint``, which
    in torch 2.11 has some hints of what is computed of data, and ``free_unbacked_symbols``."""
    return not isinstance(size, torch.SymInt) or (size.node.has_hint() and not free_unbacked_symbols(size))


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
                environment: Any = value.node.shape_env
                known = getattr(environment, "backed_var_to_val", None) or environment.var_to_val
                hints[str(symbol)] = int(known.get(symbol, 2))
    return hints


def symbolic_numbers(hints: Mapping[str, int]) -> tuple[FakeTensorMode, dict[str, torch.SymInt]]:
    """A fake mode, and a shape symbol for each name: equal numbers stay different symbols, and 0 and 1 are symbols too."""
    from torch._dynamo.source import ConstantSource

    environment = ShapeEnv()
    numbers: dict[str, Any] = {}
    for name, hint in hints.items():
        source = ConstantSource(name)
        symbol = environment.create_symbol(
            hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, do_not_specialize_zero_one=True
        )
        numbers[name] = environment.create_symintnode(symbol, hint=hint, source=source)
    return FakeTensorMode(shape_env=environment, allow_non_fake_inputs=False), numbers


def autocasts() -> bool:
    """Whether autocast is on for any device (``torch._C._is_any_autocast_enabled``)."""
    return torch._C._is_any_autocast_enabled()


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

    Wraps ``torch.compiler._cache.CacheArtifact`` and ``CacheArtifactFactory.register`` (torch 2.11 to 2.14). Returns whether
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
