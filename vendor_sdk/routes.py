"""Routes: what a session's backend can run, as the placement pass asks, and what lowering needs to know of operands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.backend import Decline, NodeContext, Support
from vendor_sdk.contract.device import Device
from vendor_sdk.contract.emitter import Emitter
from vendor_sdk.contract.kernel import Kernel
from vendor_sdk.contract.loader import LoadedBackend, Session
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir.index import from_size
from vendor_sdk.ir.loop import required_ops, required_types
from vendor_sdk.ir.orders import order_of, strides_of
from vendor_sdk.ir.primgraph import PrimGraph, describe, map_nodes, prim_name, tensors_of
from vendor_sdk.lower import LOWERINGS, VIEWS, Layout, lower
from vendor_sdk.lower.build import contiguous_strides
from vendor_sdk.normalize.decompose import prim_table
from vendor_sdk.normalize.legalize import legalize
from vendor_sdk.prims.opset import COMPOSITES
from vendor_sdk.run.control import DECIDED


def targets(composites: Iterable[str]) -> frozenset[Any]:
    """The operators to leave whole so that ``composites`` arrive: theirs, and those of what they are made of."""
    names = set(composites)
    names |= {part for name in names for part in COMPOSITES[name].made_of}
    return frozenset(target for name in names for target in COMPOSITES[name].targets)


def table_of(loaded: LoadedBackend) -> Mapping[Any, Callable[..., Any]]:
    """Decompositions to what the backend wants to see: prims, and the composites that it claims."""
    return prim_table(targets(loaded.backend.composites), channels_last=loaded.backend.legalize.channels_last)


def layout_of(node: fx.Node, *, own_memory: bool) -> Layout | None:
    """How an operand lies in memory: ``None`` for a view (the lowering folds it), strides for what has memory of its own."""
    placed = node.op == "call_function" and "placement" in node.meta
    if placed and node.meta["placement"].kind is Kind.VIEW and prim_name(node) in VIEWS:
        return None
    value = node.meta["val"]
    if node.op == "placeholder" and not own_memory:
        return Layout(tuple(from_size(stride) for stride in value.stride()))
    sizes, order = [from_size(size) for size in value.shape], order_of(node)
    return Layout(contiguous_strides(sizes) if order is None else strides_of(sizes, order))


class Routes:
    """A session as the placement pass sees it.

    Args:
        exported: whether the graph becomes a file: its graph compiler then says what it writes.
    """

    def __init__(self, session: Session, *, exported: bool = False) -> None:
        self.session, self._exported = session, exported
        self.backend = session.loaded.backend
        self.fallback: str = session.options["fallback"]
        self.compiles_graphs = session.graph_compiler is not None
        self.table = table_of(session.loaded)
        self._layout = functools.partial(layout_of, own_memory=isinstance(session.device, Device))
        self._probed: dict[str, Route | Decline] = {}
        self.device_type = session.tensors_on

    def supports(self, node: NodeContext) -> Support:
        if self._exported and self.session.graph_compiler is not None:
            answer = self.session.graph_compiler.saves(node)
            if answer is not None:
                return answer
        return self.session.loaded.supports(node, self.session.options)

    def decomposition(self, target: Any) -> Callable[..., Any] | None:
        return self.session.loaded.decomposition(target)

    def legalize(self, graph: PrimGraph) -> None:
        legalize(graph, self.backend.legalize)

    def route(self, node: fx.Node, name: str) -> Route | Decline:
        strays = _devices(node) - {self.device_type}
        if self.device_type and strays:
            return Decline(f"a tensor is on the device {sorted(strays)[0]!r}, and the backend's are on {self.device_type!r}")
        kernel = self.session.loaded.kernels.get(name)
        sized_by_data = _sized_by_data(node)
        if kernel is not None and not (kernel.destination and sized_by_data) and _is_for(kernel, node):
            return Route.KERNEL
        return self._other_route(node, name, sized_by_data)

    def yields(self, node: fx.Node, name: str) -> bool:
        """Whether a node on the kernel route could be on the emitter's."""
        kernel, sized_by_data = self.session.loaded.kernels.get(name), _sized_by_data(node)
        return kernel is not None and kernel.yields and self._other_route(node, name, sized_by_data) is Route.EMITTER

    def order(self, node: fx.Node, name: str, index: int, traced: torch.Tensor) -> tuple[int, ...] | None:
        """How a result of a node on the kernel route lies in memory, ``None`` for row-major."""
        return self.session.loaded.kernels[name].order(index, traced) if self.device_type else None

    def _other_route(self, node: fx.Node, name: str, sized_by_data: bool) -> Route | Decline:
        compiler, emitter = self.session.graph_compiler, self.session.emitter
        if compiler is not None and name in compiler.prims:
            return Route.GRAPH
        if sized_by_data:
            return Decline("the size of its result depends on data: only a kernel that returns its result can run it")
        if emitter is None:
            return Decline(f"the backend has no {'kernel' if compiler is None else 'translation'} for it")
        if node.target in DECIDED:
            return Decline("which of its graphs runs is decided on the host")
        if name not in LOWERINGS and name not in VIEWS:
            return Decline("the backend has no kernel for it, and it does not lower to loops")
        form = self._form(node, read=False)
        if form not in self._probed:
            self._probed[form] = self._probe(node, emitter)
        return self._probed[form]

    def _probe(self, node: fx.Node, emitter: Emitter) -> Route | Decline:
        try:
            loops = lower(node, "probe", self._layout).kernel
        except LoweringError as error:
            return Decline(error.what)
        missing = required_ops(loops) - set(emitter.ops)
        if missing:
            return Decline(f"the emitter lacks the loop ops {', '.join(sorted(missing))}")
        if emitter.types is not None and (unknown := required_types(loops) - set(emitter.types)):
            names = sorted(str(dtype).removeprefix("torch.") for dtype in unknown)
            return Decline(f"the emitter lacks the types {', '.join(names)}")
        return Route.EMITTER

    def _form(self, node: fx.Node, *, read: bool = True) -> str:
        """All that a lowering can see of a node: equal layers are lowered once to learn whether they can be.

        Args:
            read: as an operand; what lies in memory shows no more than its type.
        """
        value = node.meta["val"]
        layout = self._layout(node) if read and isinstance(value, torch.Tensor) else None
        if read and (layout is not None or not isinstance(value, torch.Tensor)):
            return f"{describe(value)} {layout}"
        operands = map_nodes((node.args, node.kwargs), self._form)
        return f"{describe(value)} = {node.target} {operands}"


def _is_for(kernel: Kernel, node: fx.Node) -> bool:
    """Whether all tensors of the node have dtypes that the kernel is for."""
    tensors = tensors_of([*(n.meta.get("val") for n in node.all_input_nodes), node.meta["val"]])
    return kernel.dtypes is None or all(t.dtype in kernel.dtypes for t in tensors)


def _sized_by_data(node: fx.Node) -> bool:
    """Whether only the data tells a size of the node's result (``nonzero``): its symbol is in no operand."""
    known = {name for source in node.all_input_nodes for name in _size_symbols(source.meta.get("val"))}
    return bool(_size_symbols(node.meta["val"]) - known)


def _size_symbols(value: Any) -> set[str]:
    sizes = [size for tensor in tensors_of(value) for size in (*tensor.shape, *tensor.stride())]
    if isinstance(value, torch.SymInt):
        sizes.append(value)
    return {name for size in sizes if isinstance(size, torch.SymInt) for name in torch_private.size_text(size)[0]}


def _devices(node: fx.Node) -> set[str]:
    """Where the tensors that a node reads and makes live, by type of device."""
    values = [n.meta.get("val") for n in node.all_input_nodes] + [node.meta["val"]]
    return {tensor.device.type for tensor in tensors_of(values)}
