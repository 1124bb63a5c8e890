"""Capture: from an ATen graph (AOTAutograd's, or a plain function's) to a prim graph.

Two stages: AOTAutograd gets the core ATen table, so that min-cut's recompute rules still recognise operators; the prim table
is applied afterwards, here, inside the forward and backward compilers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from vendor_sdk import torch_private
from vendor_sdk.capture.expand import decompose
from vendor_sdk.capture.masks import know_masks
from vendor_sdk.errors import CaptureError
from vendor_sdk.ir.primgraph import OutputLayout, PrimGraph, describe, tensors_of
from vendor_sdk.ir.strided import count_in_elements, keep_counts

Table = Mapping[Any, Callable[..., Any]]


def without_writes(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """``copy_(input, value)`` at the end of a captured graph becomes one more output; ``module`` itself stays as it was.

    Where the graph returns what ``copy_`` returns, it returns the input.

    Returns:
        the functional graph, and the inputs to which its last outputs are to be written.
    """
    copy_into = torch.ops.aten.copy_.default
    if not any(node.target is copy_into for node in module.graph.nodes):
        return module, ()
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    outputs = graph.graph_copy(module.graph, nodes)
    inputs = {node: index for index, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    written: dict[int, fx.Node] = {}
    kept = {}
    for node in list(graph.nodes):
        if node.target is copy_into and node.args[0] in inputs:
            target, value = node.args[:2]
            written[inputs[target]] = value
            kept[node] = target
            node.replace_all_uses_with(value)
            graph.erase_node(node)
    returned = outputs if isinstance(outputs, list | tuple) else (outputs,)
    returned = fx.node.map_arg(tuple(returned), lambda node: kept.get(node, node))
    graph.output((*returned, *written.values()))
    return fx.GraphModule(module, graph), tuple(written)


def to_prim_graph(
    module: fx.GraphModule,
    fake_inputs: Sequence[Any],
    table: Table,
    *,
    backward: bool = False,
    static_inputs: frozenset[int] = frozenset(),
    writes: tuple[int, ...] = (),
    inline: bool = False,
) -> PrimGraph:
    """Decomposes ``module`` with ``table`` and records what the caller was promised about the outputs.

    Args:
        module: a functional ATen graph; its placeholders match ``fake_inputs`` in order.
        fake_inputs: fake tensors, symbolic or plain integers.
        table: ATen overload to decomposition.
        backward: whether the graph is a backward graph.
        static_inputs: indices of inputs that are the same tensors at every call.
        writes: inputs to which the last outputs are written (``PrimGraph.writes``).
        inline: write out what calls of subgraphs do (``torch.compiler.nested_compile_region``): for backends that would run
            these on the host.
    """
    module = torch_private.without_effect_tokens(module)
    layouts = _output_layouts(module, fake_inputs)
    fake_mode = torch_private.fake_mode_of(fake_inputs)
    with torch_private.real_tensors():
        module, constants = _lift_constants(module)
    fake_constants = [fake_mode.from_tensor(value, static_shapes=True) for value in constants.values()]
    lifted = [node for node in module.graph.nodes if node.op == "placeholder"][len(fake_inputs) :]
    for node, fake in zip(lifted, fake_constants, strict=True):
        node.meta["val"] = fake
    with fake_mode:
        keep_counts(module)
        traced = decompose(module, _each_its_own([*fake_inputs, *fake_constants]), table, inline=inline)
        _settle(traced.graph)
        count_in_elements(traced.graph)
    _check_counts(traced.graph)
    know_masks(traced.graph)
    names = [node.name for node in traced.graph.nodes if node.op == "placeholder"][len(fake_inputs) :]
    graph = PrimGraph(
        traced,
        constants=dict(zip(names, constants.values(), strict=True)),
        output_layouts=_as_traced(layouts, traced, fake_inputs),
        backward=backward,
        static_inputs=static_inputs,
        writes=writes,
    )
    graph.flatten_outputs()
    _check_outputs(module, graph)
    return graph


def _each_its_own(fakes: Sequence[Any]) -> list[Any]:
    """Fake tensors of which none is there twice: a trace knows operands by their tensors. What several calls of one subgraph
    saved for a backward graph has one fake tensor for all of them (``invoke_subgraph``)."""
    seen: set[int] = set()
    own = []
    for fake in fakes:
        again = isinstance(fake, torch.Tensor) and id(fake) in seen
        own.append(torch_private.fake_like(fake) if again else fake)
        seen.add(id(fake))
    return own


def _settle(graph: fx.Graph) -> None:
    """Sizes that torch knows for one number by now, as a guard has it that came after them, are that number."""
    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _settled(node.meta["val"])


def _settled(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_settled, value))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    if all(_number(each) is each for each in (*value.shape, *value.stride(), value.storage_offset())):
        return value
    shape, strides = [_number(size) for size in value.shape], [_number(stride) for stride in value.stride()]
    return value.as_strided(shape, strides, _number(value.storage_offset()))


def _number(size: int | torch.SymInt) -> int | torch.SymInt:
    return int(size) if isinstance(size, torch.SymInt) and torch_private.sympy_of(size).is_number else size


def _check_counts(graph: fx.Graph) -> None:
    """torch 2.11 announces ``bincount`` in the dtype of what is counted; others then read its numbers as what they are not."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.bincount.default):
        weights = node.args[1] if len(node.args) > 1 else node.kwargs.get("weights")
        weighed = weights.meta["val"].dtype if isinstance(weights, fx.Node) else None
        right = {None: torch.int64, torch.float32: torch.float32}.get(weighed, torch.float64)
        read = any(isinstance(user.meta.get("val"), torch.Tensor) for user in node.users)
        if read and node.meta["val"].dtype != right:
            raise CaptureError(
                f"torch {torch.__version__} announces {node.meta['val'].dtype} for a bincount that gives {right}",
                why="what reads it was traced for other numbers",
                fix="use torch 2.13, or leave it out of graphs: torch._dynamo.config.capture_dynamic_output_shape_ops = False",
            )


def _check_outputs(module: fx.GraphModule, graph: PrimGraph) -> None:
    """A decomposition that changes a shape or dtype is found here, not in the user's numbers."""
    values = module.graph.output_node().args[0]
    for before, after in zip(values if isinstance(values, list | tuple) else (values,), graph.outputs, strict=True):
        old, new = (item.meta.get("val") if isinstance(item, fx.Node) else item for item in (before, after))
        if (
            isinstance(old, torch.Tensor)
            and isinstance(new, torch.Tensor)
            and (old.dtype != new.dtype or old.dim() != new.dim())
        ):
            raise CaptureError(
                f"output {before} was {describe(old)} in the captured graph and is {describe(new)} in prims",
                why="a decomposition on the way to it returns another shape or dtype than its operator",
                fix="compare the decompositions of this graph's operators with torch (`vendor-sdk conformance` does)",
            )


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor], table: Table) -> PrimGraph:
    """The prim graph of a plain function of tensors (no autograd, static shapes), for conformance cases and passes' tests."""
    with torch_private.new_fake_mode(with_real=True) as fake_mode:
        fakes = [fake_mode.from_tensor(value, static_shapes=True) for value in inputs]
    with fake_mode:
        if isinstance(function, fx.GraphModule):  # a graph already, which need not be traced to become one
            traced = fx.GraphModule(function, copy.deepcopy(function.graph))
            FakeTensorProp(traced, fake_mode).propagate_dont_convert_inputs(*fakes)
        else:
            traced = torch_private.functional_trace(function, fakes)
    return to_prim_graph(traced, fakes, table)


def _lift_constants(module: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
    """Tensor attributes become trailing placeholders; the module itself is left as it was."""
    constants: dict[str, torch.Tensor] = {}
    names = {
        str(node.target)
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(torch_private.attribute(module, str(node.target)), torch.Tensor)
    }
    if not names:
        return module, constants
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, values)
    last = [node for node in graph.nodes if node.op == "placeholder"]
    outputs = next(node for node in module.graph.nodes if node.op == "output")
    graph.output(fx.node.map_arg(outputs.args[0], lambda node: values[node]))
    placeholders: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "get_attr" or str(node.target) not in names:
            continue
        name = str(node.target)
        if name not in placeholders:
            anchor = last[-1] if last else None
            with graph.inserting_after(anchor) if anchor is not None else graph.inserting_before(next(iter(graph.nodes))):
                placeholders[name] = graph.placeholder("constant_" + name.replace(".", "_").strip("_"))
            last.append(placeholders[name])
            constants[name] = torch_private.attribute(module, name).detach()
        node.replace_all_uses_with(placeholders[name])
        graph.erase_node(node)
    return fx.GraphModule(module, graph), constants


def _output_layouts(module: fx.GraphModule, fake_inputs: Sequence[Any]) -> list[OutputLayout]:
    output = next(node for node in module.graph.nodes if node.op == "output")
    values = output.args[0] if isinstance(output.args[0], list | tuple) else (output.args[0],)
    owners: dict[Any, list[tuple[str, int]]] = {}
    begin: dict[Any, Any] = {}
    for index, value in enumerate(fake_inputs):
        for tensor in tensors_of(value):
            owners.setdefault(torch_private.storage_key(tensor), []).append(("input", index))
            begin.setdefault(torch_private.storage_key(tensor), tensor.storage_offset())
    given = {name for value in fake_inputs for name in _symbols(value)}
    returned = _returned(module)
    strided = [value for value in returned if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    stored = Counter(map(torch_private.storage_key, strided))
    layouts = []
    for index, (item, value) in enumerate(zip(values, returned, strict=True)):
        if not isinstance(value, torch.Tensor):
            layouts.append(OutputLayout(None))
            continue
        if value.layout is not torch.strided:
            raise CaptureError(
                f"output {index} of a captured graph has layout {value.layout}",
                why="prim graphs hold strided tensors only",
                fix="convert to a dense tensor before the end of the compiled function, or exclude that part with "
                "torch.compiler.disable",
            )
        key = torch_private.storage_key(value)
        strides = tuple(value.stride())
        if _repeats(value) and not _may_repeat(item):
            strides = tuple(torch.empty_like(value, memory_format=torch.contiguous_format).stride())
        begins = _begins(value, begin.get(key, 0), given) if key in owners or stored[key] > 1 else None
        layouts.append(OutputLayout(strides, frozenset(owners.get(key, ())), begins))
        owners.setdefault(key, []).append(("output", index))
    return layouts


def _begins(view: torch.Tensor, base: Any, given: set[str]) -> Any:
    """How far from ``base`` a view begins; None where it begins there, and where no size is a symbol."""
    offset = view.storage_offset() - base
    known = given and _symbols(offset) <= given
    return offset if known and (isinstance(offset, torch.SymInt) or offset) else None


def _returned(module: fx.GraphModule) -> list[Any]:
    values = module.graph.output_node().args[0]
    listed = values if isinstance(values, list | tuple) else [values]
    return [item.meta.get("val") if isinstance(item, fx.Node) else item for item in listed]


def _as_traced(layouts: Sequence[OutputLayout], module: fx.GraphModule, fake_inputs: Sequence[Any]) -> list[OutputLayout]:
    """The layouts in the symbols of a trace: those of sizes that only data tells are new in each, so strides that have one
    are taken from it."""
    given = {name for value in fake_inputs for name in _symbols(value)}

    def renamed(layout: OutputLayout, value: Any) -> OutputLayout:
        own = {name for stride in layout.strides or () for name in _symbols(stride)}
        if own <= given or not isinstance(value, torch.Tensor):
            return layout
        return dataclasses.replace(layout, strides=tuple(value.stride()))

    return [renamed(layout, value) for layout, value in zip(layouts, _returned(module), strict=True)]


def _symbols(value: Any) -> set[str]:
    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return {name for size in sizes if isinstance(size, torch.SymInt) for name in torch_private.size_text(size)[0]}


_REPEATING = frozenset((torch.ops.aten.expand.default, torch.ops.aten.as_strided.default, torch.ops.aten.unfold.default))


def _repeats(value: torch.Tensor) -> bool:
    """Whether a stride of zero makes one element many."""
    shape_and_strides = zip(value.shape, value.stride(), strict=True)
    return any(
        isinstance(stride, int) and stride == 0 and (isinstance(size, torch.SymInt) or size != 1)
        for size, stride in shape_and_strides
    )


def _may_repeat(item: Any) -> bool:
    """Whether a value can have elements in common memory: only a view that makes them so, or an input, does. Meta rules that
    copy the strides of an expanded operand (slice_scatter's in torch 2.11) promise what no result in its own memory keeps."""
    while isinstance(item, fx.Node) and item.op == "call_function" and item.target not in _REPEATING:
        schema = getattr(item.target, "_schema", None)
        if schema is not None and not any(result.alias_info for result in schema.returns):
            return False
        item = next(iter(item.all_input_nodes), None)
    return True
