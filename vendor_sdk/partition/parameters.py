"""Parameters in the order of memory in which a matrix product reads them fastest.

An emitter whose products read the right factor in panels packs it at every call. Where the factor is a parameter of a graph
that is not trained, the panels are made once and kept (``run/kept.py``): a node of the graph, of which the factor is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from vendor_sdk.contract.placement import Kind, Placement, Route
from vendor_sdk.ir.panels import panels
from vendor_sdk.ir.primgraph import PrimGraph

aten = torch.ops.aten

Panel = Callable[[torch.dtype, int | None, int, int], int]
_RIGHT = {aten.mm.default: 1, aten.addmm.default: 2}
"""Products of two matrices, and which argument is the right factor."""


def keep_panels(graph: PrimGraph, panel: Panel) -> None:
    """Lets the products of a placed graph read parameters in panels.

    Args:
        panel: ``Emitter.panel``.
    """
    if graph.training or graph.backward:
        return
    static = {graph.placeholders[index] for index in graph.static_inputs}
    made: dict[tuple[fx.Node, int, bool], fx.Node] = {}
    for node in list(graph.calls()):
        if node.target not in _RIGHT or node.meta["placement"].route is not Route.EMITTER:
            continue
        position = _RIGHT[node.target]
        factor = node.args[position]
        found = _parameter(factor)
        if found is None or found[0] not in static:
            continue
        parameter, transposed = found
        steps, columns = factor.meta["val"].shape  # type: ignore[union-attr]
        rows = node.meta["val"].shape[0]
        if not isinstance(steps, int) or not isinstance(columns, int):
            continue
        width = panel(node.meta["val"].dtype, rows if isinstance(rows, int) else None, columns, steps)
        if not width:
            continue
        key = (parameter, width, transposed)
        if key not in made:
            made[key] = _factor(graph, parameter, width, transposed, columns)
        node.update_arg(position, made[key])
        # The views of the parameter that nothing else reads.
        while isinstance(factor, fx.Node) and factor.op == "call_function" and not factor.users:
            source = factor.args[0]
            graph.graph.erase_node(factor)
            factor = source
    if made:
        graph.module.recompile()


def _parameter(factor: Any) -> tuple[fx.Node, bool] | None:
    """The input that a matrix is, and whether it is its transpose."""
    transposed = False
    while isinstance(factor, fx.Node) and factor.op == "call_function":
        if factor.target is not aten.permute.default:
            return None
        source, dims = factor.args
        transposed ^= [dim % 2 for dim in dims] == [1, 0]  # type: ignore[union-attr, operator]
        factor = source
    return (factor, transposed) if isinstance(factor, fx.Node) and factor.op == "placeholder" else None


def _factor(graph: PrimGraph, parameter: fx.Node, width: int, transposed: bool, columns: int) -> fx.Node:
    """The matrix again, as a view of its panels; made where the graph begins."""
    value = parameter.meta["val"]
    view = Placement(Kind.VIEW)

    def node(target: Any, source: fx.Node, result: torch.Tensor, *args: Any) -> fx.Node:
        new = graph.graph.call_function(target, (source, *args))
        new.meta |= {"val": result}
        if target is not panels:
            new.meta["placement"] = view
        return new

    steps = value.shape[0] if not transposed else value.shape[1]
    count = -(-columns // width)
    with graph.graph.inserting_after(graph.placeholders[-1]):
        made = node(panels, parameter, value.new_empty(count, steps, width), width, transposed)
    with graph.graph.inserting_after(made):
        rows = node(aten.permute.default, made, made.meta["val"].permute(1, 0, 2), [1, 0, 2])
    with graph.graph.inserting_after(rows):
        matrix = node(aten.view.default, rows, value.new_empty(steps, count * width), [steps, count * width])
    if count * width == columns:
        return matrix
    with graph.graph.inserting_after(matrix):
        return node(aten.slice.Tensor, matrix, value.new_empty(steps, columns), 1, 0, columns)
