"""PrimGraph: an ``fx.Graph`` whose nodes are prims, with rules that every pass must leave true.

Rules, checked by ``PrimGraph.verify``:

1. ``call_function`` targets are prims of the opset, composites that the backend claims, ``operator.getitem`` on a multi-result
   node, transfers, panels, or *foreign* operators (no row; they always run on the host).
2. Every node but the output carries ``meta["val"]``: a fake tensor, a ``SymInt``, ``SymFloat`` or ``SymBool``, a Python number,
   ``None``, or a tuple of them.
3. The graph is functional: no node mutates an argument; what the caller wants written into inputs are its last outputs
   (``writes``). Values are logical tensors: shape and dtype count, strides do not
   (whatever is no view is row-major contiguous), except at placeholders (the caller's strides) and at outputs
   (``output_layouts``).
4. Tensor constants are placeholders whose value is in ``constants``; they follow the caller's inputs.

It prints as Python (``str(graph)``) and runs as it stands: ``graph.interpret`` calls the torch operators, node by node, and is
the definition of what a graph means.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.errors import GraphError
from vendor_sdk.ir.sparse import Parts
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET

STRIDED = frozenset((torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default))
"""Operators that count in the storage of their first operand; in a graph, in its elements, row-major."""


@dataclass(frozen=True)
class OutputLayout:
    """How an output lies in memory, as traced: what the caller was promised.

    Attributes:
        strides: in elements (``int`` or ``torch.SymInt``); ``None`` for an output that is no tensor.
        alias_of: indices of the inputs and outputs (``("input", 3)``) whose storage it shares; only these it may alias.
        offset: where it begins in storage that it shares, counted from the first input there (or from the storage's begin), if
            sizes are symbols: AOTAutograd goes by it when it makes a view anew.
    """

    strides: tuple[Any, ...] | None
    alias_of: frozenset[tuple[str, int]] = frozenset()
    offset: Any = None


@dataclass
class PrimGraph:
    """A graph of prims with what the compiler needs to know about its boundary.

    Attributes:
        module: holds the graph and, as attributes, the subgraphs of control-flow prims.
        constants: values of the trailing placeholders that the caller does not pass, by placeholder name.
        output_layouts: one entry an output.
        backward: whether it is the backward half of a training step.
        training: whether it is the forward half of a training step: what it reads of the model then changes between calls.
        static_inputs: indices of inputs that stay the same tensors from call to call (parameters, buffers).
        donated_inputs: indices of inputs that nobody reads after the call (activations saved for a backward graph): their
            memory may be written over.
        writes: inputs that the last outputs are written to, in the order of those outputs, once every input and output has been
            read; those outputs are not returned.
        saved_outputs: indices of outputs of a forward graph that only its backward graph gets, where they are donated; by the
            index that they have among its inputs.
        sparse: the sparse tensors that the SDK makes for the caller, each of two outputs.
    """

    module: fx.GraphModule
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    output_layouts: Sequence[OutputLayout] = ()
    backward: bool = False
    training: bool = False
    static_inputs: frozenset[int] = frozenset()
    donated_inputs: frozenset[int] = frozenset()
    writes: tuple[int, ...] = ()
    saved_outputs: Mapping[int, int] = field(default_factory=dict)
    sparse: tuple[Parts, ...] = ()

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[Any]:
        """Nodes, Python numbers or ``None``, in order."""
        (output,) = (node for node in self.graph.nodes if node.op == "output")
        return list(output.args[0])

    @property
    def returned(self) -> list[Any]:
        """The outputs that the caller gets."""
        outputs = self.outputs
        return outputs[: len(outputs) - len(self.writes)]

    @property
    def written(self) -> list[tuple[fx.Node, fx.Node]]:
        """Inputs and what is written to each, in order."""
        outputs, placeholders = self.outputs, self.placeholders
        values = outputs[len(outputs) - len(self.writes) :]
        return [(placeholders[index], value) for index, value in zip(self.writes, values, strict=True)]

    def calls(self) -> Iterator[fx.Node]:
        """The ``call_function`` nodes in order."""
        return (node for node in self.graph.nodes if node.op == "call_function")

    def __str__(self) -> str:
        return str(self.module.print_readable(print_output=False))

    def interpret(self, *inputs: Any) -> list[Any]:
        """Runs the graph with torch operators on ``inputs`` (constants are added), returning the outputs in order."""
        return list(_Logical(self.module).run(*inputs, *self.constants.values()))

    def known_symbols(self) -> set[str]:
        """Shape symbols that the inputs determine."""
        values = [node.meta["val"] for node in self.placeholders]
        sizes = [size for tensor in tensors_of(values) for size in (*tensor.shape, *tensor.stride())]
        numbers = [v for v in (*values, *sizes) if isinstance(v, torch.SymInt)]
        return {str(expression) for v in numbers if (expression := torch_private.sympy_of(v)).is_symbol}

    def flatten_outputs(self) -> None:
        """Has the graph return a tuple, also of one value."""
        output = self.graph.output_node()
        value = output.args[0]
        output.args = (tuple(value) if isinstance(value, list | tuple) else (value,),)
        self.module.recompile()

    def copy(self) -> PrimGraph:
        """A graph of its own nodes over the same subgraphs, constants and fake values."""
        nodes: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        result = graph.graph_copy(self.graph, nodes)
        graph.output(result)
        return dataclasses.replace(self, module=fx.GraphModule(self.module, graph))

    def verify(self) -> None:
        """Raises ``GraphError`` naming the first node that breaks a rule of this module's docstring."""
        try:
            self.graph.lint()
        except RuntimeError as error:
            raise GraphError(f"prim graph is not well-formed: {error}") from error
        for node in self.graph.nodes:
            if node.op not in ("placeholder", "call_function", "get_attr", "output"):
                raise GraphError(f"node {node.name} has op {node.op!r}", fix="use call_function with a prim")
            if node.op == "get_attr" and not isinstance(getattr(self.module, str(node.target), None), fx.GraphModule):
                raise GraphError(
                    f"node {node.name} reads attribute {node.target!r}, which is no subgraph",
                    fix="make tensor constants placeholders listed in PrimGraph.constants",
                )
            if node.op in ("placeholder", "call_function") and "val" not in node.meta:
                raise GraphError(
                    f"node {node.name} ({node.target}) has no meta['val']",
                    fix="a pass that makes a node must record the fake value it computes",
                )
            if node.op == "call_function" and mutates(node.target):
                raise GraphError(
                    f"node {node.name} calls {node.target}, which writes to its argument", fix="use the functional overload"
                )
        if len(self.output_layouts) not in (0, len(self.outputs)):
            raise GraphError(f"{len(self.outputs)} outputs but {len(self.output_layouts)} output layouts")


class _Logical(fx.Interpreter):
    """Runs a graph whose values have no layout, by operators some of which go by it."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in STRIDED:
            args = (args[0].contiguous(), *args[1:])
        return super().call_function(target, args, kwargs)


def mutates(target: Any) -> bool:
    """Whether a call of ``target`` writes to an argument."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


def prim_name(node: fx.Node) -> str:
    """The row's name for a call node: prim, composite, ``"getitem"``, or the operator's own name when it is foreign."""
    target = node.target
    if target in BY_TARGET:
        return BY_TARGET[target].name
    if target in COMPOSITE_BY_TARGET:
        return COMPOSITE_BY_TARGET[target].name
    if target is operator.getitem:
        return "getitem"
    return str(target)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a node's ``meta["val"]``, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def user_line(node: fx.Node) -> str:
    """The user's source line of a node (``model.py:12 in forward: x = self.a(x)``), ``""`` when fx did not keep it."""
    trace: str | None = node.meta.get("stack_trace")
    if not trace:
        return ""
    lines = [line.strip() for line in trace.strip().splitlines()]
    frames = [index for index, line in enumerate(lines) if line.startswith("File ")]
    if not frames:
        return ""
    last = frames[-1]
    location = lines[last].removeprefix("File ").replace('"', "").replace(", line ", ":").replace(", in ", " in ")
    code = lines[last + 1] if last + 1 < len(lines) else ""
    return f"{location}: {code}" if code else location


def describe(value: Any) -> str:
    """dtype and shape of a value for messages: ``float32[2, s0]``."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return f"({', '.join(describe(item) for item in value)})"
    return str(value)


def leading_to(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """``nodes``, and all that these are computed of."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def map_nodes(value: Any, function: Callable[[fx.Node], Any]) -> Any:
    """``value`` with every node in it replaced by ``function(node)``."""
    return fx.node.map_arg(value, function)
