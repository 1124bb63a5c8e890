"""Compiler state to bytes and back, in another process too: graphs with their nodes, fake tensors, index expressions, loops.

    graph     one record a node, in order: (op, name, target, args, kwargs, meta), nodes among the arguments by their number
    node      elsewhere, (number of its graph, number in it); so a value that holds nodes comes after their graph
    operator  its name in ``torch.ops``
    tensor    a fake one by shape, strides and dtype; a real one whole

What is symbolic, or known only to this process (a closure, what a vendor's compiler returned), has no such form:
``NotPicklable`` says what it was.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private

META = ("val", "placement", "seed", "stack_trace", "on_device", "host_dtype", "order")
"""What a node keeps."""
_GRAPHS = "graphs"
"""Persistent identifier of the list of graphs read so far."""


class NotPicklable(Exception):
    """A value has no form that another process could read."""


class _Number:
    """A node among the arguments of another of its graph."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _Number, (self.number,)


def dumps(value: Any) -> bytes:
    """``value`` as bytes. Raises ``NotPicklable``."""
    file = io.BytesIO()
    try:
        with torch_private.real_tensors():  # the bytes of one on another device are a copy on the host
            _Writer(file).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise NotPicklable(str(error)) from error
    return file.getvalue()


def loads(content: bytes) -> Any:
    """What ``dumps`` was given. ``content`` must come from a trusted place: reading it can run code."""
    with torch_private.real_tensors():
        return _Reader(io.BytesIO(content)).load()


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._graphs: list[object] = []
        self.nodes: dict[fx.Node, tuple[int, int]] = {}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value not in self.nodes:
                raise NotPicklable(f"node {value.name} of a graph that is not written before it")
            return self.nodes[value]
        return _GRAPHS if value is self._graphs else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch._ops.OpOverload):
            return _operator, (value.namespace, value._schema.name.partition("::")[2], value._overloadname)
        if isinstance(value, torch._ops.HigherOrderOperator):
            return _higher_order, (value._name,)
        if isinstance(value, fx.GraphModule):
            return self._module(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise NotPicklable("a symbolic size")
        if isinstance(value, torch.Tensor) and torch_private.is_fake(value):
            for number in (*value.shape, *value.stride(), value.storage_offset()):
                if not isinstance(number, int):
                    raise NotPicklable("a symbolic size")
            return _fake, (self._graphs, tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device)
        return NotImplemented

    def _module(self, module: fx.GraphModule) -> Any:
        number = len(self._graphs)
        self._graphs.append(module)
        nodes = list(module.graph.nodes)
        for position, node in enumerate(nodes):
            self.nodes[node] = (number, position)

        def numbered(argument: Any) -> Any:
            return fx.node.map_aggregate(
                argument,
                lambda part: _Number(self.nodes[part][1]) if isinstance(part, fx.Node) else part,  # type: ignore[arg-type, return-value]
            )

        records = [
            (
                node.op,
                node.name,
                node.target,
                numbered(node.args),
                numbered(node.kwargs),
                {key: node.meta[key] for key in META if key in node.meta},
            )
            for node in nodes
        ]
        children = {name: getattr(module, name) for name in {str(node.target) for node in nodes if node.op == "get_attr"}}
        return _graph_module, (self._graphs, number, children, records)


class _Read:
    """What reading shares: the graphs, by number, and one mode for all fake tensors."""

    def __init__(self) -> None:
        self.graphs: dict[int, list[fx.Node]] = {}
        self.mode = torch_private.new_fake_mode()


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._read = _Read()

    def persistent_load(self, identifier: Any) -> Any:
        if identifier == _GRAPHS:
            return self._read
        graph, number = identifier
        return self._read.graphs[graph][number]


def _operator(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _higher_order(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


def _fake(read: _Read, shape: Any, strides: Any, offset: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch_private.fake_tensor(read.mode, shape, strides, offset, dtype, device)


def _graph_module(read: _Read, number: int, children: dict[str, Any], records: list[Any]) -> fx.GraphModule:
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def of(argument: Any) -> Any:
        return nodes[argument.number] if isinstance(argument, _Number) else argument

    for op, name, target, args, kwargs, meta in records:
        node = graph.create_node(op, target, fx.node.map_aggregate(args, of), fx.node.map_aggregate(kwargs, of), name)
        if node.name != name:
            raise ValueError(f"{name} is a node's name, and reads back as {node.name}")
        node.meta.update(meta)
        nodes.append(node)
    read.graphs[number] = nodes
    return torch_private.lazy_graph_module(children, graph)
