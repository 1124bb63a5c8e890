"""Prim graph to ONNX: one rule a prim, from the tables of the families; a rule's presence is the capability."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from reference_backends.onnxruntime import (
    bits,
    composite,
    contraction,
    control,
    in_torch,
    indexing,
    pieces,
    pointwise,
    pooling,
    random,
    reduction,
    sorting,
    special,
    view,
)
from reference_backends.onnxruntime.builder import Builder, Operand, Operator, Outline, Rule, Untranslatable, Value, static
from vendor_sdk import COMPOSITES, FLOAT8, OPSET, LoweringError, NodeContext, PrimGraph, TensorInfo, trace


def traced(builder: Builder, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """A function of torch on operands: traced to prims, which become part of the graph.

    Raises:
        Untranslatable: a size is dynamic, the function does not take these arguments, or a prim of it has no translation.
    """
    operands: list[Operand] = []
    flat, spec = tree_flatten(_plain((args, kwargs)))
    places = [index for index, value in enumerate(flat) if isinstance(value, Value)]
    for index in places:
        if not isinstance(flat[index], Operand):
            raise Untranslatable("a number known at run time only has no translation here")
        static(flat[index].shape, "a rule written in torch")
        operands.append(flat[index])
    outlines = tuple((each.shape, each.dtype) for each in operands)
    rest = tuple(None if index in places else value for index, value in enumerate(flat))
    # As text too: 1, 1.0 and True are equal, and so are zeros of both signs.
    graph = _graph(function, outlines, rest, tuple(places), spec, f"{rest} {torch.get_default_dtype()}")
    constants = [builder.constant(_array(value), value.dtype) for value in graph.constants.values()]
    shaped = [
        Operand(each.name, each.dtype, tuple(v.shape)) for each, v in zip(constants, graph.constants.values(), strict=True)
    ]
    return run(graph, builder, [*operands, *shaped])


def _plain(value: Any) -> Any:
    """Lists and dictionaries of nodes, types of their own in ``fx``, as Python's: ``_graph`` has one entry for both."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return tuple(map(_plain, value)) if type(value) is tuple else value


Shaped = tuple[tuple[Any, ...], torch.dtype]


@functools.lru_cache(256)
def _graph(
    function: Callable[..., Any],
    outlines: tuple[Shaped, ...],
    rest: tuple[Any, ...],
    places: tuple[int, ...],
    spec: TreeSpec,
    _text: str,
) -> PrimGraph:
    """The trace of a function; a node is translated once to ask the provider, and once more in its partition."""

    def call(*tensors: torch.Tensor) -> Any:
        values = list(rest)
        for index, tensor in zip(places, tensors, strict=True):
            values[index] = tensor
        given, named = tree_unflatten(values, spec)
        result = function(*given, **named)
        found = result if isinstance(result, tuple | list) else (result,)
        return [each for each in found if each is not None]

    try:
        return trace(torch.func.functionalize(call), [torch.empty(shape, dtype=dtype) for shape, dtype in outlines])
    except NotImplementedError as error:
        raise Untranslatable(str(error)) from error


def _array(value: torch.Tensor) -> Any:
    return (value.float() if value.dtype in (torch.bfloat16, *FLOAT8) else value).numpy()  # which numpy itself does not have


def _in_torch(function: Callable[..., Any]) -> Rule:
    def rule(builder: Builder, out: Any, *args: Any, **kwargs: Any) -> Any:
        results = traced(builder, function, *args, **kwargs)
        if not isinstance(out, tuple):
            return results[0]
        return tuple(_emptied(builder, value, one) for value, one in zip(results, out, strict=True))

    return rule


def _emptied(builder: Builder, value: Operand, expected: Outline | None) -> Value:
    """A value, or nothing where nothing is expected: torch leaves out what it does not need."""
    if expected is None or 0 not in expected.shape or value.shape == expected.shape:
        return value
    return builder.repeated(builder.constant(0, expected.dtype), list(expected.shape))


RULES: Mapping[str, Rule] = {
    **pointwise.RULES,
    **reduction.RULES,
    **view.RULES,
    **indexing.RULES,
    **contraction.RULES,
    **pooling.RULES,
    **sorting.RULES,
    **special.RULES,
    **bits.RULES,
    **control.RULES,
    **random.RULES,
    **composite.RULES,
    **{name: _in_torch(function) for name, function in in_torch.FUNCTIONS.items()},
}
"""Name of a prim or composite to its rule."""

CLAIMED = frozenset(composite.RULES)
"""The composites among them."""

_NAMES = {row.target: name for name, row in OPSET.items()} | {
    target: name for name, row in COMPOSITES.items() for target in row.targets
}

aten = torch.ops.aten
_ARITHMETIC = frozenset(
    {
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.linear.default,
    }
)

_STORAGE_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit"})
"""Keyword arguments about storage: values have none."""


def translate(graph: PrimGraph, *, guarded: bool = False, has: Callable[[Operator], bool] | None = None) -> onnx.ModelProto:
    """A partition as a model: an input a placeholder, an output an output, in order. Outputs of static sizes may have their
    elements in another shape.

    Args:
        guarded, has: as ``Builder``'s.

    Raises:
        LoweringError: a node has no translation, which the ``supports`` hook should have said.
    """
    builder = Builder(guarded=guarded, has=has)
    inputs = []
    for node in graph.placeholders:
        fake = node.meta["val"]
        tensor = isinstance(fake, torch.Tensor)
        inputs.append(builder.operand(fake.dtype, fake.shape) if tensor else builder.number(fake))
    try:
        results = run(graph, builder, inputs)
    except Untranslatable as error:
        raise LoweringError(f"onnxruntime: {builder.scope} has no translation: {error}") from error
    outlines = [outline(node.meta["val"]) for node in graph.outputs]
    return builder.model(list(zip(results, outlines, strict=True)), exact_shapes=False)


def run(
    graph: PrimGraph, builder: Builder, operands: Sequence[Any], symbols: Callable[[torch.SymInt], Value] | None = None
) -> list[Any]:
    """Translates a graph, or the subgraph of a control prim, into ``builder``; returns its outputs.

    Args:
        symbols: gives the value of a size that a node computes, which in partitions is an input.
    """
    values: dict[fx.Node, Any] = dict(zip(graph.placeholders, operands, strict=True))
    cuts = pieces.cuts(graph)
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            values[node] = functools.partial(run, PrimGraph(getattr(graph.module, str(node.target))))
        if node.op != "call_function":
            continue
        if symbols is not None and isinstance(node.meta["val"], torch.SymInt):
            values[node] = symbols(node.meta["val"])
            continue
        if node in cuts:
            if node not in values:
                builder.scope = node.name
                values.update(_cut(builder, cuts[node], values[cuts[node].source]))
            continue
        args: Any = fx.node.map_arg(node.args, values.__getitem__)
        kwargs: Any = fx.node.map_arg(dict(node.kwargs), values.__getitem__)
        if node.target is operator.getitem:
            source, index = args
            values[node] = source[index]
            continue
        prim = _named(node.target)
        builder.scope = node.name
        builder.goes_on = _goes_on(node)
        values[node] = _apply(builder, prim, args, kwargs, _outlines(node))
    results: Any = graph.graph.output_node().args[0]
    return [values[node] for node in ([results] if isinstance(results, fx.Node) else results)]


def _named(target: Any) -> str:
    if target not in _NAMES or _NAMES[target] not in RULES:
        raise Untranslatable(f"its subgraph has {target}, which has no translation")
    return _NAMES[target]


def _goes_on(node: fx.Node) -> bool:
    return bool(node.users) and all(user.target in _ARITHMETIC for user in node.users)


def _cut(builder: Builder, cut: pieces.Cut, whole: Operand) -> dict[fx.Node, Operand]:
    """The values of all parts of a cut."""
    if cut.function is not None:
        builder.goes_on = all(map(_goes_on, cut.nodes))
        dtype = next(cut.nodes).meta["val"].dtype
        whole = _apply(builder, _named(cut.function), [whole], {}, Outline(dtype, whole.shape))
    parts = view.parts(builder, whole, cut.dim, [width for width, _ in cut.parts], lost=cut.lost)
    return {
        node: _shaped(part, outline(node.meta["val"]))
        for part, (_, nodes) in zip(parts, cut.parts, strict=True)
        for node in nodes
    }


def single(node: NodeContext, *, random: bool = True, has: Callable[[Operator], bool] | None = None) -> onnx.ModelProto:
    """A model of one node, each of its operands an input.

    Args:
        random, has: as ``Builder``'s.

    Raises:
        Untranslatable: the rules do not translate it; the message says why.
    """
    builder = Builder(random=random, has=has)

    def value(argument: Any) -> Any:
        if isinstance(argument, TensorInfo):
            return builder.operand(argument.dtype, argument.shape)
        if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
            return builder.number(argument)
        if isinstance(argument, list | tuple):
            return [value(item) for item in argument]
        return functools.partial(run, argument) if isinstance(argument, PrimGraph) else argument

    args = [value(argument) for argument in node.args]
    kwargs = {name: value(argument) for name, argument in node.kwargs.items()}
    outlines = tuple(Outline(info.dtype, info.shape) for info in node.outputs)
    several = len(outlines) != 1
    result = _apply(builder, node.prim, args, kwargs, outlines if several else outlines[0])
    results = [each for each in (result if several else [result]) if each is not None]
    return builder.model(list(zip(results, outlines, strict=True)))


def outline(fake: torch.Tensor) -> Outline:
    return Outline(fake.dtype, tuple(fake.shape))


def _outlines(node: fx.Node) -> Any:
    """The outlines of a node's results; ``None`` stands for a result that the node leaves out or that nobody reads."""
    fake = node.meta["val"]
    if not isinstance(fake, list | tuple):
        return outline(fake)
    read = {user.args[1] for user in node.users}
    return tuple(None if each is None or index not in read else outline(each) for index, each in enumerate(fake))


def _apply(builder: Builder, prim: str, args: Sequence[Any], kwargs: Mapping[str, Any], outlines: Any) -> Any:
    """Runs a prim's rule; the results are ``Operand`` with the shapes of ``outlines``.

    A result without elements is just that: ONNX Runtime's kernels refuse some operands without any, and constants (a divisor of
    zero) that are right where nothing is divided.
    """
    if isinstance(outlines, Outline) and all(isinstance(each, int) for each in outlines.shape) and 0 in outlines.shape:
        return _shaped(builder.repeated(builder.constant(0, outlines.dtype), outlines.shape), outlines)
    named = {name: value for name, value in kwargs.items() if name not in _STORAGE_ARGUMENTS}
    result = RULES[prim](builder, outlines, *args, **named)
    if isinstance(outlines, tuple):
        if isinstance(result, tuple) and len(result) != len(outlines):  # a context lists only the results that exist
            result = tuple(each for each in result if each is not None)
        return tuple(
            None if value is None or one is None else _shaped(value, one) for value, one in zip(result, outlines, strict=True)
        )
    if isinstance(result, tuple):
        (result,) = (each for each in result if each is not None)
    return _shaped(result, outlines)


def _shaped(value: Value, expected: Outline) -> Operand:
    if value.dtype != expected.dtype:
        raise AssertionError(f"rule gave {value.dtype} where {expected.dtype} is expected")
    return Operand(value.name, value.dtype, expected.shape)
