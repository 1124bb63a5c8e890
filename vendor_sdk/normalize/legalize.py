"""Legalization: removes from a graph what the backend does not want to handle (``contract.backend.Legalization``).

Broadcasting, type promotion and Python-number operands exist in pointwise and comparison prims only; everything they mean
becomes a node of its own. Contiguity and integer width concern values at run time and are met by placement and transfers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.backend import Legalization
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.normalize.aligned import align_products
from vendor_sdk.normalize.bias import add_biases, sum_biases
from vendor_sdk.normalize.canonicalize import drop_dead
from vendor_sdk.normalize.channels import channels_last
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.row import Result, Shape

aten = torch.ops.aten


def legalize(graph: PrimGraph, wants: Legalization) -> PrimGraph:
    """Rewrites convolutions, images, operands of products and of every broadcasting prim; the graph's meaning is unchanged."""
    if wants.separate_bias:
        add_biases(graph)
    if wants.channels_last:
        channels_last(graph)
    if wants.separate_bias:
        sum_biases(graph)
    if wants.row_alignment > 1:
        align_products(graph.graph, wants.row_alignment)
        drop_dead(graph)
    if not (wants.explicit_broadcast or wants.explicit_promotion or wants.no_scalars):
        return graph
    for node in list(graph.calls()):
        row = BY_TARGET.get(node.target)
        if row is None or row.shape is not Shape.BROADCAST or not isinstance(node.meta["val"], torch.Tensor):
            continue
        dtype = _computation_dtype(node, row.result)
        with graph.graph.inserting_before(node):
            node.args = tuple(_operand(graph, node, argument, index, dtype, wants) for index, argument in enumerate(node.args))
    graph.module.recompile()
    return graph


def _computation_dtype(node: fx.Node, rule: Result) -> torch.dtype:
    """The dtype in which torch computes: the promoted dtype of the operands (of the values, for ``where``)."""
    operands = node.args[1:] if node.target is aten.where.self else node.args
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in operands]
    numeric = [v for v in values if isinstance(v, torch.Tensor | bool | int | float | torch.SymInt | torch.SymFloat)]
    dtype = torch_private.promote(numeric)
    if rule is Result.FLOAT and not (dtype.is_floating_point or dtype.is_complex):
        return torch.get_default_dtype()
    return dtype


def _operand(graph: PrimGraph, node: fx.Node, argument: Any, index: int, dtype: torch.dtype, wants: Legalization) -> Any:
    shape = list(node.meta["val"].shape)
    condition = node.target is aten.where.self and index == 0
    if isinstance(argument, fx.Node) and isinstance(argument.meta["val"], torch.Tensor):
        value = argument.meta["val"]
        if wants.explicit_promotion and not condition and value.dtype != dtype:
            argument = _insert(graph, node, aten._to_copy.default, (argument,), {"dtype": dtype})
        if wants.explicit_broadcast and not _has_shape(value, shape):
            argument = _insert(graph, node, aten.expand.default, (argument, _sizes(graph, node)), {})
        return argument
    number = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    takes_tensor = str(node.target._schema.arguments[index].type) == "Tensor"  # type: ignore[union-attr]
    if wants.no_scalars and takes_tensor and isinstance(number, bool | int | float | torch.SymInt | torch.SymFloat):
        sizes = _sizes(graph, node) if wants.explicit_broadcast else []
        device = node.meta["val"].device
        return _insert(graph, node, aten.full.default, (sizes, argument), {"dtype": dtype, "device": device})
    return argument


def _has_shape(value: torch.Tensor, shape: list[Any]) -> bool:
    return value.dim() == len(shape) and all(torch_private.surely_equal(a, b) for a, b in zip(value.shape, shape, strict=True))


def _sizes(graph: PrimGraph, node: fx.Node) -> list[Any]:
    """The sizes of ``node``'s result as arguments: numbers, or ``sym_size`` nodes of the operands that have them."""
    sizes: list[Any] = []
    shape = node.meta["val"].shape
    operands = [n for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
    for dim, size in enumerate(shape):
        if isinstance(size, int):
            sizes.append(size)
            continue
        for operand in operands:
            own = dim - (len(shape) - operand.meta["val"].dim())
            if own >= 0 and torch_private.surely_equal(operand.meta["val"].shape[own], size):
                sizes.append(_insert(graph, node, aten.sym_size.int, (operand, own), {}))
                break
        else:
            raise AssertionError(f"no operand of {node.name} has its result's size {size}")
    return sizes


def _insert(graph: PrimGraph, before: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    node = graph.graph.call_function(target, args, kwargs)
    fake = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    with torch_private.fake_mode_of(before.meta["val"]):
        node.meta["val"] = target(*fake[0], **fake[1])
    node.meta["stack_trace"] = before.meta.get("stack_trace")
    return node
