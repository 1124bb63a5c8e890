"""Capture for a file: a model and its parameters as one prim graph, by ``torch.export``."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from vendor_sdk import torch_private
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.errors import CaptureError
from vendor_sdk.ir.primgraph import PrimGraph, mutates

Table = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class Exported:
    """A captured model.

    Attributes:
        graph: its placeholders are parameters, buffers and constants, then the inputs.
        names: of the placeholders, in order: as the model calls its parameters, as ``forward`` calls its inputs.
        values: of the placeholders that are no inputs, by index.
        outputs: names, in order.
        sizes: symbol of a dynamic size to its name, its least and its largest value (``None``: any).
    """

    graph: PrimGraph
    names: Sequence[str]
    values: Mapping[int, torch.Tensor]
    outputs: Sequence[str]
    sizes: Mapping[str, tuple[str, int, int | None]]


def capture_exported(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any, first: Table, table: Table
) -> Exported:
    """The prim graph of ``model(*args, **kwargs)``, without autograd.

    Args:
        dynamic: as ``dynamic_shapes`` of ``torch.export.export``, where a string names a size (``{"x": {0: "batch"}}``).
        first, table: decompositions of the two stages, see ``capture/graph.py``; a model that writes to nothing takes the
            second only.

    Raises:
        CaptureError: torch.export cannot capture the model, its sizes are not as ``dynamic`` says, it writes to what it reads,
            or it returns what is no tensor.
    """
    module = model if isinstance(model, nn.Module) else _Function(model)
    named: dict[str, Any] = {}
    with _exporting(model):
        program = torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=_dims(dynamic, named), strict=False)
        if _writes(program.graph_module):
            program = program.run_decompositions(dict(first))
    captured = _captured(program, table)
    if _writes(captured.graph.module):  # torch's own kernels of composite operators do, to what they make
        with _exporting(model):
            program = program.run_decompositions(dict(first))
        captured = _captured(program, table)
    return captured


@contextlib.contextmanager
def _exporting(model: Any) -> Iterator[None]:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # what torch.export itself uses of torch
            yield
    except Exception as error:
        said = str(error).strip().splitlines()
        raise CaptureError(
            f"{type(model).__name__} cannot be exported: {said[0] if said else type(error).__name__}",
            why="torch.export raised the exception above",
            fix="Where it names an argument, give `inputs` as the model is called. Where it names a size that is not as "
            "`dynamic` says, leave that size out or correct its range.",
        ) from error


def _writes(module: fx.GraphModule) -> bool:
    """Whether ``module`` needs torch to make it functional, which takes as long as everything else of a capture. Models for
    inference mostly write to nothing."""
    graphs = (part.graph for part in module.modules() if isinstance(part, fx.GraphModule))
    return any(mutates(node.target) for graph in graphs for node in graph.nodes)


class _Function(nn.Module):
    """A function as torch.export wants it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        with contextlib.suppress(TypeError, ValueError):  # a builtin has no signature
            inspect.signature(function)
            self.__dict__["forward"] = function  # inputs have the names of its parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _dims(dynamic: Any, named: dict[str, Any]) -> Any:
    """``dynamic`` with a ``Dim`` for each string, the same one for equal strings."""
    if isinstance(dynamic, str):
        return named.setdefault(dynamic, Dim(dynamic))
    if isinstance(dynamic, Mapping):
        return {key: _dims(value, named) for key, value in dynamic.items()}
    if isinstance(dynamic, list | tuple):
        return type(dynamic)(_dims(value, named) for value in dynamic)
    return dynamic


def _captured(program: ExportedProgram, table: Table) -> Exported:
    signature = program.graph_signature
    written = [spec for spec in signature.output_specs if spec.kind != OutputKind.USER_OUTPUT]
    if written:
        raise CaptureError(
            f"the model writes to {', '.join(str(spec.target) for spec in written)}",
            why="a model file has inputs and outputs, and no memory between calls",
            fix="Export it in evaluation mode (model.eval()), or return the new value as an output.",
        )
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    names, values = [], {}
    for index, (node, spec) in enumerate(zip(nodes, signature.input_specs, strict=True)):
        names.append(spec.target if spec.target is not None and spec.kind != InputKind.USER_INPUT else node.name)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target in program.state_dict:
            values[index] = program.state_dict[spec.target].detach()
        elif spec.kind != InputKind.USER_INPUT:
            values[index] = program.constants[str(spec.target)]
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        program.graph.erase_node(node)  # it asserts what capture has fixed: dtypes
    fakes = [node.meta["val"] for node in nodes]
    graph = to_prim_graph(program.graph_module, fakes, table)
    _check_boundary(graph, names, values)
    for offset, (name, value) in enumerate(graph.constants.items()):
        names.append(name)
        values[len(nodes) + offset] = value
    outputs = [f"output_{index}" if len(graph.outputs) > 1 else "output" for index in range(len(graph.outputs))]
    return Exported(graph, names, values, outputs, _sizes(program, fakes))


def _check_boundary(graph: PrimGraph, names: Sequence[str], values: Mapping[int, Any]) -> None:
    """Inputs and outputs are tensors; a number that the model was called with is part of what was captured."""
    for what, nodes in (("input", graph.placeholders[: len(names)]), ("output", graph.outputs)):
        for index, node in enumerate(nodes):
            value = node.meta.get("val") if isinstance(node, fx.Node) else node
            if not isinstance(value, torch.Tensor) and (what == "output" or index not in values):
                name = names[index] if what == "input" else index
                raise CaptureError(
                    f"{what} {name} of the model is {type(value).__name__}, no tensor",
                    why="what goes in and out of a model file are tensors",
                    fix="Wrap the model in a function of tensors that passes the rest itself.",
                )


def _sizes(program: ExportedProgram, fakes: Sequence[Any]) -> dict[str, tuple[str, int, int | None]]:
    """The symbols of dynamic sizes, each named as its ``Dim`` is, else as torch calls it."""
    names = torch_private.dim_names(fakes)
    sizes = {}
    for symbol, limits in program.range_constraints.items():
        most = int(limits.upper) if limits.upper.is_Integer else None
        sizes[str(symbol)] = (names.get(str(symbol), str(symbol)), int(limits.lower), most)
    return sizes
