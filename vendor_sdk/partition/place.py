"""Placement: one linear pass decides who runs each node, and why; what no route takes is decomposed or goes to the host."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.backend import Backend, Decline, NodeContext, Support, TensorInfo
from vendor_sdk.contract.placement import Kind, NodePlacement, Placement, Route
from vendor_sdk.errors import UnsupportedPrimError
from vendor_sdk.ir.primgraph import PrimGraph, describe, map_nodes, prim_name, tensors_of, user_line
from vendor_sdk.ir.rewrite import erase, inline
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET
from vendor_sdk.prims.row import FLOAT8, Family


class Routes(Protocol):
    """What the placement pass asks of a loaded backend's session."""

    backend: Backend
    fallback: str
    compiles_graphs: bool
    table: Mapping[Any, Callable[..., Any]]

    def route(self, node: fx.Node, name: str) -> Route | Decline:
        """By which route the backend offers this node, or why by none."""

    def order(self, node: fx.Node, name: str, index: int, traced: torch.Tensor) -> tuple[int, ...] | None:
        """How a result of a node on the kernel route, to torch ``traced``, lies in memory; ``None`` for row-major."""

    def supports(self, node: NodeContext) -> Support: ...

    def decomposition(self, target: Any) -> Callable[..., Any] | None: ...

    def legalize(self, graph: PrimGraph) -> None:
        """Makes a decomposition legal for the backend, as the graph around it already is; in place."""


def place(graph: PrimGraph, routes: Routes) -> list[NodePlacement]:
    """Sets ``meta["placement"]`` on every call node of ``graph``, decomposing in place what is better decomposed.

    Returns one entry per node of the graph as captured: a decomposed node appears once, as decomposed.

    Raises:
        UnsupportedPrimError: a node would run on the host and the session's fallback is ``"error"``.
    """
    placements = []
    dead: set[fx.Node] = set()
    for node in list(graph.calls()):
        if node in dead:
            continue
        placement = placement_of(node, graph, routes)
        if placement.kind is Kind.HOST:
            parts = _decompose(node, graph, routes, dead)
            if parts is not None:
                placement = Placement(Kind.DECOMPOSED, reason=f"{placement.reason}; runs as {parts}")
        if placement.kind is Kind.HOST and routes.fallback == "error":
            raise unsupported(node, routes.backend.name, placement.reason)
        node.meta["placement"] = placement
        _note_order(node, routes)
        if node.target is not operator.getitem:
            placements.append(_report(node, placement))
    erase(graph, dead)
    return placements


def unsupported(node: fx.Node, backend: str, reason: str) -> UnsupportedPrimError:
    name = prim_name(node)
    operands = ", ".join(describe(n.meta.get("val")) for n in node.all_input_nodes)
    return UnsupportedPrimError(
        f"{backend}: prim {name!r} on ({operands}) -> {describe(node.meta['val'])} cannot run on the backend",
        where=user_line(node),
        why=reason,
        fix=f"register a kernel for {name!r}, or allow the host with options={{'fallback': 'host'}}",
    )


def placement_of(node: fx.Node, graph: PrimGraph, routes: Routes) -> Placement:
    """Where one node runs, as far as that does not depend on the others."""
    name = prim_name(node)
    if name == "getitem":
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return source.meta["placement"]  # type: ignore[no-any-return]
    row = BY_TARGET.get(node.target)
    view = row is not None and row.is_view
    if node.target in _SIZE_READS or (row is not None and row.family is Family.SYMBOLIC and not _dtypes(node)):
        return Placement(Kind.WRAPPER)
    if view and not routes.compiles_graphs:
        return Placement(Kind.VIEW)
    if row is None and node.target not in COMPOSITE_BY_TARGET:
        return Placement(Kind.HOST, reason=f"{name} is no prim of the opset")
    refusal = _dtype_refusal(node, routes.backend)
    if refusal:
        return Placement(Kind.HOST, reason=refusal)
    route = routes.route(node, name)
    if not isinstance(route, Decline):
        answer = routes.supports(context(node, name, graph))
        if not isinstance(answer, Decline):
            return Placement(Kind.NATIVE, route)
        route = answer
    return Placement(Kind.VIEW if view else Kind.HOST, reason=route.reason)


def _note_order(node: fx.Node, routes: Routes) -> None:
    """How the result of a kernel lies in memory, before those who read it are asked for their routes."""
    source, index = node.args[:2] if node.target is operator.getitem else (node, 0)
    assert isinstance(source, fx.Node)
    assert isinstance(index, int)
    if source.meta["placement"].route is Route.KERNEL and isinstance(value := node.meta["val"], torch.Tensor):
        order = routes.order(source, prim_name(source), index, value)
        if order is not None and len(order) == value.dim():
            node.meta["order"] = order


_SIZE_READS = frozenset(
    {
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_stride.int,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.sym_storage_offset.default,
    }
)


def _dtype_refusal(node: fx.Node, backend: Backend) -> str:
    allowed = set(backend.dtypes)
    if backend.legalize.no_float64:
        allowed.discard(torch.float64)
    if backend.legalize.no_int64 and torch.int32 in allowed:
        allowed.add(torch.int64)  # stands as int32 on the device
    elif backend.legalize.no_int64:
        allowed.discard(torch.int64)
    row = BY_TARGET.get(node.target)
    for dtype in _dtypes(node):
        name = str(dtype).removeprefix("torch.")
        if dtype not in allowed:
            return f"{name} is not among the backend's dtypes"
        if dtype in FLOAT8 and row is not None and not row.is_view and dtype not in row.dtypes:
            return f"{name} is stored and converted, and {row.name} computes"
    return ""


def _dtypes(node: fx.Node) -> tuple[torch.dtype, ...]:
    values = [n.meta.get("val") for n in node.all_input_nodes] + [node.meta["val"]]
    return tuple(dict.fromkeys(tensor.dtype for tensor in tensors_of(values)))


def context(node: fx.Node, name: str, graph: PrimGraph) -> NodeContext:
    """A node as backends are asked about it."""

    def info(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return TensorInfo(tuple(value.shape), value.dtype, contiguous=torch_private.surely_contiguous(value))
        return value

    def operand(n: fx.Node) -> Any:
        return PrimGraph(getattr(graph.module, str(n.target))) if n.op == "get_attr" else info(n.meta["val"])

    return NodeContext(
        prim=name,
        args=map_nodes(node.args, operand),
        kwargs=map_nodes(node.kwargs, operand),
        outputs=tuple(info(tensor) for tensor in tensors_of(node.meta["val"])),
        backward=graph.backward,
        where=user_line(node),
    )


def _decompose(node: fx.Node, graph: PrimGraph, routes: Routes, dead: set[fx.Node]) -> str | None:
    """Replaces ``node``'s uses by its decomposition when every part of it runs on the backend; returns the parts' names.

    ``node``, and what read its single results, are added to ``dead``.
    """
    rule = _rule(node, routes)
    if rule is None:
        return None
    inputs = list(node.all_input_nodes)
    traced = torch_private.trace_call(rule, node.args, node.kwargs, inputs, routes.table)
    if traced is None:
        return None
    inner = PrimGraph(traced, backward=graph.backward)
    routes.legalize(inner)
    inner_dead: set[fx.Node] = set()
    for part in list(inner.calls()):
        if part in inner_dead:
            continue
        part.meta["stack_trace"] = node.meta.get("stack_trace")
        placement = placement_of(part, inner, routes)
        if placement.kind is Kind.HOST and _decompose(part, inner, routes, inner_dead) is None:
            return None
        part.meta["placement"] = placement
    copies, replaced = inline(graph, node, inner, inputs, keep=lambda part: part not in inner_dead)
    dead |= replaced
    return ", ".join(sorted({prim_name(part) for part in copies if part.meta["placement"].kind is Kind.NATIVE}))


def _rule(node: fx.Node, routes: Routes) -> Callable[..., Any] | None:
    return routes.decomposition(node.target) if node.target in BY_TARGET or node.target in COMPOSITE_BY_TARGET else None


def _report(node: fx.Node, placement: Placement) -> NodePlacement:
    return NodePlacement(
        name=node.name,
        prim=prim_name(node),
        placement=placement,
        dtypes=_dtypes(node),
        operands=f"({', '.join(describe(n.meta.get('val')) for n in node.all_input_nodes)}) -> {describe(node.meta['val'])}",
        where=user_line(node),
    )
