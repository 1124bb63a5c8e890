"""Import: an ONNX graph as a prim graph, for inputs that are at hand.

static inputs   some of ONNX's inputs are sizes (``onnx_rules.STATIC``); they, and the inputs of the graph that they are
                computed from, are known, and so is what follows from known values alone
loops           a Loop whose count and end are known, and a Scan, stand in the graph as often as they run
branches        an If is the branch of a known condition; of another, the prim ``cond``
the rest        is traced, by the rules, with the known values as inputs
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper

import vendor_sdk
from conformance.onnx_rules import RULES, STATIC
from conformance.onnx_types import Array, NotImported, array_of, refuse, tensor_of
from vendor_sdk import PrimGraph

Values = Mapping[str, torch.Tensor]


def check(graph: onnx.GraphProto) -> None:
    """Raises ``NotImported`` where an operator has no rule."""
    for node in graph.node:
        if node.domain not in ("", "ai.onnx", "ai.onnx.preview") or node.op_type not in {*RULES, "If", "Loop", "Scan"}:
            raise NotImported(f"no rule for {node.op_type}")
        for body in _bodies(node).values():
            check(body)


def imported(graph: onnx.GraphProto, inputs: Values) -> tuple[PrimGraph, list[torch.Tensor]]:
    """The prim graph, and what to call it with.

    Raises:
        NotImported: a case of an operator that its rule leaves out, a size that depends on data, or nothing is left to compute.
    """
    reading = _Reading(graph, inputs)
    for node in graph.node:
        reading.take(node)
    outputs = [each.name for each in graph.output]
    read = dict.fromkeys([*(name for node in reading.traced for name in _reads(node)), *outputs])
    made = {name for node in reading.traced for name in node.output}
    operands = [name for name in read if name in reading.values and name not in made]
    refuse(not reading.traced, "known before there is a graph")

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        symbols = dict(zip(operands, tensors, strict=True))
        for node in reading.traced:
            symbols |= _applied(node, symbols, reading.sizes)
        return tuple(symbols[name] for name in outputs)

    tensors = [reading.values[name] for name in operands]
    return vendor_sdk.trace(function, tensors), tensors


class _Reading:
    """What is known of a graph while its nodes are taken, in order.

    Attributes:
        values: of everything, for the inputs at hand.
        sizes: of the static inputs.
        traced: the nodes that are no more than that: their values depend on data.
    """

    def __init__(self, graph: onnx.GraphProto, inputs: Values) -> None:
        constants = _constants(graph)
        self.values: dict[str, torch.Tensor] = {**inputs, **constants}
        self.sizes: dict[str, Array] = {}
        self.traced: list[onnx.NodeProto] = []
        self._known = {"", *constants} | _sources(graph)
        self._fresh = itertools.count()

    def take(self, node: onnx.NodeProto) -> None:
        for name in _static(node):
            refuse(name not in self._known, f"{node.op_type} with a size that depends on data")
            self.sizes[name] = array_of(self.values[name])
        if node.op_type == "Loop":
            self._loop(node)
        elif node.op_type == "Scan":
            self._scan(node)
        elif node.op_type == "If" and node.input[0] in self._known:
            branch = "then_branch" if self.values[node.input[0]].item() else "else_branch"
            results = self._inlined(_bodies(node)[branch], {})
            for name, result in zip(node.output, results, strict=True):
                self._emit("Identity", [result], name)
        else:
            if node.op_type == "If":
                node = self._hoisted(node)
            if node.op_type in ("Shape", "Size") or all(name in self._known for name in _reads(node)):
                self._known.update(node.output)
            else:
                self.traced.append(node)
            self.values |= _applied(node, self.values, self.sizes)  # of a traced node for the shapes of what follows

    def _emit(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Takes a node that the model does not have; its output."""
        output = output or f"imported.{next(self._fresh)}"
        self.take(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, value: Any) -> str:
        name = f"imported.{next(self._fresh)}"
        self.values[name] = torch.tensor(value)
        self._known.add(name)
        return name

    def _inlined(self, body: onnx.GraphProto, names: Mapping[str, str]) -> list[str]:
        """Takes the nodes of a graph inside a node, its inputs under the ``names`` that stand for them; its outputs."""
        prefix = f"imported.{next(self._fresh)}."
        own = dict(names)
        for name, value in _constants(body).items():
            own[name] = prefix + name
            self.values[own[name]] = value
            self._known.add(own[name])
        for node in body.node:
            own |= {name: prefix + name for name in node.output if name}
            self.take(_renamed(node, own))
        return [own.get(each.name, each.name) for each in body.output]

    def _hoisted(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node with the constants of its graphs outside of them, where they are inputs of the trace."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for body in _bodies(copy).values():
            found = _constants(body)
            for inner in body.node:
                if inner.op_type == "Constant":
                    found |= _applied(inner, {}, {})
            names = {name: f"imported.{next(self._fresh)}" for name in found}
            self.values |= {names[name]: value for name, value in found.items()}
            self._known.update(names.values())
            rest = [_renamed(inner, names) for inner in body.node if inner.op_type != "Constant"]
            del body.initializer[:], body.node[:]
            body.node.extend(rest)
            for output in body.output:
                output.name = names.get(output.name, output.name)
        return copy

    def _loop(self, node: onnx.NodeProto) -> None:
        body = _bodies(node)["body"]
        most, going, *state = node.input
        results: list[list[str]] = []
        going = going or self._constant(True)
        for count in itertools.count():
            refuse(going not in self._known, "a Loop whose end depends on data")
            if not self.values[going].item() or (most and count >= self.values[most].item()):
                break
            given = [self._constant(count), going, *state]
            going, *after = self._inlined(body, dict(zip((each.name for each in body.input), given, strict=True)))
            state, scanned = after[: len(state)], after[len(state) :]
            results.append(scanned)
        self._finish(node, state, list(zip(*results, strict=True)), [0] * (len(node.output) - len(state)))

    def _scan(self, node: onnx.NodeProto) -> None:
        attributes = {each.name: _attribute(each) for each in node.attribute}
        count = attributes["num_scan_inputs"]
        body = attributes["body"]
        refuse(len(body.input) != len(node.input), "a Scan of batches (opset 8)")
        state, scanned = list(node.input[: len(node.input) - count]), list(node.input[len(node.input) - count :])
        behind = len(node.output) - len(state)
        axes = attributes.get("scan_input_axes", [0] * count)
        backward = attributes.get("scan_input_directions", [0] * count)
        steps = self.values[scanned[0]].shape[axes[0]]
        results: list[list[str]] = []
        for step in range(steps):
            places = [steps - 1 - step if back else step for back in backward]
            parts = [self._part(each, axis, place) for each, axis, place in zip(scanned, axes, places, strict=True)]
            given = dict(zip((each.name for each in body.input), [*state, *parts], strict=True))
            after = self._inlined(body, given)
            state = after[: len(state)]
            results.append(after[len(state) :])
        flipped = attributes.get("scan_output_directions", [0] * behind)
        listed = [each[::-1] if back else each for each, back in zip(zip(*results, strict=True), flipped, strict=True)]
        self._finish(node, state, listed, attributes.get("scan_output_axes", [0] * behind))

    def _part(self, value: str, axis: int, place: int) -> str:
        """One element along a dimension, which goes."""
        start, end, dim = self._constant([place]), self._constant([place + 1]), self._constant([axis])
        return self._emit("Squeeze", [self._emit("Slice", [value, start, end, dim]), dim])

    def _finish(
        self, node: onnx.NodeProto, state: Sequence[str], scanned: Sequence[Sequence[str]], axes: Sequence[int]
    ) -> None:
        """The outputs of a loop: the last state, and what the iterations gave, stacked."""
        refuse(len(state) + len(scanned) != len(node.output), "a loop that never runs, and gives something in each iteration")
        for name, value in zip(node.output, state, strict=False):
            self._emit("Identity", [value], name)
        for name, values, axis in zip(node.output[len(state) :], scanned, axes, strict=True):
            place = self._constant([axis])
            rows = [self._emit("Unsqueeze", [value, place]) for value in values]
            self._emit("Concat", rows, name, axis=axis)


# Nodes


def _applied(node: onnx.NodeProto, values: Values, sizes: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """The node's outputs by name.

    Args:
        values: of its operands, or what stands for them in a trace.
        sizes: values of its static inputs.
    """
    if node.op_type == "If":
        return _branched(node, values)
    attributes = {each.name: _attribute(each) for each in node.attribute}
    if node.op_type == "Split" and "num_outputs" not in attributes:
        attributes["num_outputs"] = len(node.output)
    places = STATIC.get(node.op_type, ())
    operands = [None if not name else sizes[name] if place in places else values[name] for place, name in enumerate(node.input)]
    rule = RULES[node.op_type]
    _check_taken(node.op_type, rule, operands, attributes)
    result = rule(*operands, **attributes)
    results = result if isinstance(result, tuple) else (result,)
    refuse(len(results) < len(node.output), f"{node.op_type} with {len(node.output)} outputs")
    return {name: value for name, value in zip(node.output, results, strict=False) if name}


def _check_taken(kind: str, rule: Callable[..., Any], operands: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Raises ``NotImported`` where a rule does not know an operand or attribute. Torch's own functions have no signature and no
    attribute of ONNX's."""
    try:
        signature = inspect.signature(rule)
    except ValueError:
        refuse(attributes, f"{kind} with {', '.join(attributes)}")
        return
    try:
        signature.bind(*operands, **attributes)
    except TypeError as error:
        raise NotImported(f"{kind}: {error}") from error


def _branched(node: onnx.NodeProto, values: Values) -> dict[str, torch.Tensor]:
    bodies = _bodies(node)
    for body in bodies.values():
        refuse(any(_static(inner) or _bodies(inner) for inner in body.node), "sizes inside of a branch that depends on data")
    outer = [name for name in dict.fromkeys(_reads(node)) if name in values]

    def branch(body: onnx.GraphProto) -> Callable[..., tuple[torch.Tensor, ...]]:
        def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            inside = dict(zip(outer, tensors, strict=True))
            for inner in body.node:
                inside |= _applied(inner, inside, {})
            return tuple(inside[each.name].clone() for each in body.output)

        return function

    pred = values[node.input[0]].reshape(())
    then, other = branch(bodies["then_branch"]), branch(bodies["else_branch"])
    if type(pred) is torch.Tensor:  # a value at hand
        results = (then if pred.item() else other)(*(values[name] for name in outer))
    else:
        # The prim itself: ``torch.cond`` would have Dynamo read these functions.
        results = vendor_sdk.OPSET["cond"].target(pred, then, other, tuple(values[name] for name in outer))
    return dict(zip(node.output, results, strict=True))


def _static(node: onnx.NodeProto) -> list[str]:
    """The inputs that say sizes."""
    places = (0, 1) if node.op_type == "Loop" else STATIC.get(node.op_type, ())
    return [node.input[at] for at in places if at < len(node.input) and node.input[at]]


def _sources(graph: onnx.GraphProto) -> set[str]:
    """The inputs of a graph from which its sizes are computed, other than by way of shapes."""
    wanted = {name for node in graph.node for name in _static(node)}
    for node in reversed(graph.node):
        if wanted.intersection(node.output) and node.op_type not in ("Shape", "Size"):
            wanted.update(_reads(node))
    return wanted & {each.name for each in graph.input}


def _constants(graph: onnx.GraphProto) -> dict[str, torch.Tensor]:
    return {each.name: tensor_of(numpy_helper.to_array(each)) for each in graph.initializer}


def _bodies(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    return {each.name: each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH}


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node refers to, those inside of its graphs, which see the values around them, too."""
    yield from (name for name in node.input if name)
    for body in _bodies(node).values():
        made = {each.name for each in (*body.input, *body.initializer)} | {name for inner in body.node for name in inner.output}
        read = [*(name for inner in body.node for name in _reads(inner)), *(each.name for each in body.output)]
        yield from (name for name in read if name not in made)


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy under other names, in its graphs too, save where these have a value of that name themselves."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for listed in (copy.input, copy.output):
        listed[:] = [names.get(name, name) for name in listed]
    for body in _bodies(copy).values():
        made = {each.name for each in (*body.input, *body.initializer)} | {name for inner in body.node for name in inner.output}
        outer = {old: new for old, new in names.items() if old not in made}
        nodes = [_renamed(inner, outer) for inner in body.node]
        del body.node[:]
        body.node.extend(nodes)
        for output in body.output:
            output.name = outer.get(output.name, output.name)
    return copy


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return tensor_of(numpy_helper.to_array(value)) if isinstance(value, onnx.TensorProto) else value
