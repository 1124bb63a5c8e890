"""Right factors in the order of memory in which a matrix product reads them fastest.

An emitter whose products read the right factor in panels packs it at every call. Panels are values of the graph here, of which
the factor is a view, made where

- the factor is a parameter of a graph that is not trained and the user allows it: once, and kept (``run/kept.py``);
- many products of a graph have one right factor (an unrolled recurrent network): once a call, unless the emitter reads the
  factor as fast where it lies.
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
Along = Callable[[torch.dtype, int | None, int, int], bool]
_RIGHT = {aten.mm.default: 1, aten.addmm.default: 2}
"""Products of two matrices, and which argument is the right factor."""
SHARED = 4
"""Products with one right factor for which it is put in panels in every call: that takes about as long as 16 rows' products."""


def make_panels(graph: PrimGraph, panel: Panel, reads_along: Along, *, keep: bool, emitted: Callable[[fx.Node], bool]) -> None:
    """Lets the products of a placed graph that is not trained read inputs in panels.

    Args:
        panel: ``Emitter.panel``.
        reads_along: ``Emitter.reads_along``.
        keep: whether panels of parameters may be kept between calls.
        emitted: whether a node (a ``clone``) can run on the emitter route.
    """
    if graph.training or graph.backward:
        return
    static = {graph.placeholders[index] for index in graph.static_inputs} if keep else set()
    found: dict[tuple[fx.Node, int, bool], list[tuple[fx.Node, int]]] = {}
    for node in graph.calls():
        if node.target not in _RIGHT or node.meta["placement"].route is not Route.EMITTER:
            continue
        position = _RIGHT[node.target]
        place = _whole_factor(node, position)
        factor = place[0].args[place[1]]
        source = _input(factor)
        if source is None:
            continue
        steps, columns = factor.meta["val"].shape  # type: ignore[union-attr]
        if not isinstance(steps, int) or not isinstance(columns, int):
            continue
        rows = node.meta["val"].shape[0]
        product = (node.meta["val"].dtype, rows if isinstance(rows, int) else None, columns, steps)
        width = panel(*product)
        if not width:
            continue
        if source[0] in static or (columns % width == 0 and not (source[1] and reads_along(*product))):
            found.setdefault((source[0], width, source[1]), []).append(place)
    for (matrix, width, transposed), products in found.items():
        made: fx.Node | None = None
        if matrix in static:
            made = _kept(graph, matrix, width, transposed)
        elif len(products) >= SHARED:
            made = _copied(graph, matrix, width, transposed, emitted)
        if made is None:
            continue
        right = _matrix(graph, made, matrix.meta["val"].shape[0 if transposed else 1])
        for node, position in dict.fromkeys(products):
            factor = node.args[position]
            node.update_arg(position, right)
            # The views of the input that nothing else reads.
            while isinstance(factor, fx.Node) and factor.op == "call_function" and not factor.users:
                above = factor.args[0]
                graph.graph.erase_node(factor)
                factor = above
    if found:
        graph.module.recompile()


def _whole_factor(product: fx.Node, position: int) -> tuple[fx.Node, int]:
    """Where the right factor stands: among the arguments of the product, or of what takes some of its rows, which lie in panels
    as the whole does."""
    factor = product.args[position]
    rows = isinstance(factor, fx.Node) and factor.target is aten.slice.Tensor and len(factor.args) == 4 and factor.args[1] == 0
    return (factor, 0) if rows else (product, position)  # type: ignore[return-value]


def _input(factor: Any) -> tuple[fx.Node, bool] | None:
    """The input that a matrix is, and whether it is its transpose."""
    transposed = False
    while isinstance(factor, fx.Node) and factor.op == "call_function":
        if factor.target is not aten.permute.default:
            return None
        source, dims = factor.args
        transposed ^= [dim % 2 for dim in dims] == [1, 0]  # type: ignore[union-attr, operator]
        factor = source
    return (factor, transposed) if isinstance(factor, fx.Node) and factor.op == "placeholder" else None


_VIEW = Placement(Kind.VIEW)


def _node(graph: PrimGraph, target: Any, source: fx.Node, result: torch.Tensor, *args: Any) -> fx.Node:
    """A view behind ``source``."""
    with graph.graph.inserting_after(source if source.op == "call_function" else graph.placeholders[-1]):
        new = graph.graph.call_function(target, (source, *args))
    new.meta |= {"val": result, "placement": _VIEW}
    return new


def _kept(graph: PrimGraph, parameter: fx.Node, width: int, transposed: bool) -> fx.Node:
    """Its panels; made where the graph begins."""
    value = parameter.meta["val"]
    steps, columns = value.shape[::-1] if transposed else value.shape
    made = _node(graph, panels, parameter, value.new_empty(-(-columns // width), steps, width), width, transposed)
    del made.meta["placement"]
    return made


def _copied(
    graph: PrimGraph, matrix: fx.Node, width: int, transposed: bool, emitted: Callable[[fx.Node], bool]
) -> fx.Node | None:
    """Panels of which none is in part empty, copied by a kernel."""
    value = matrix.meta["val"]
    first = _node(graph, aten.permute.default, matrix, value.t(), [1, 0]) if transposed else matrix
    steps, columns = first.meta["val"].shape
    # The values of a graph are row-major, whatever lies below a view.
    cut = _node(
        graph, aten.view.default, first, value.new_empty(steps, columns // width, width), [steps, columns // width, width]
    )
    moved = _node(graph, aten.permute.default, cut, cut.meta["val"].permute(1, 0, 2), [1, 0, 2])
    copy = _node(graph, aten.clone.default, moved, value.new_empty(columns // width, steps, width))
    copy.meta["placement"] = Placement(Kind.NATIVE, Route.EMITTER)
    if emitted(copy):
        return copy
    for unused in (copy, moved, cut, first):
        if unused is not matrix:
            graph.graph.erase_node(unused)
    return None


def _matrix(graph: PrimGraph, made: fx.Node, columns: int) -> fx.Node:
    """The factor again, as a view of its panels."""
    value = made.meta["val"]
    count, steps, width = value.shape
    rows = _node(graph, aten.permute.default, made, value.permute(1, 0, 2), [1, 0, 2])
    matrix = _node(graph, aten.view.default, rows, value.new_empty(steps, count * width), [steps, count * width])
    if count * width == columns:
        return matrix
    return _node(graph, aten.slice.Tensor, matrix, value.new_empty(steps, columns), 1, 0, columns)
