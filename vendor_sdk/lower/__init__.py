"""Lowering: one prim node to one loop kernel. Views above its inputs fold into index maps.

``LOWERINGS`` has a key for every prim that lowers; ``VIEWS`` for every prim that folds. One file a family.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import torch

from vendor_sdk.errors import LoweringError
from vendor_sdk.ir.loop import required_ops
from vendor_sdk.ir.loop_ops import ACCEPTS, HALVES
from vendor_sdk.ir.primgraph import tensors_of
from vendor_sdk.lower.build import Builder, Layout, LayoutOf, Lowered, Lowering, TensorSpec
from vendor_sdk.lower.copy import copy
from vendor_sdk.lower.simplify import simplify
from vendor_sdk.lower.view import VIEWS
from vendor_sdk.prims.opset import BY_TARGET

__all__ = ["LOWERINGS", "VIEWS", "Layout", "LayoutOf", "Lowered", "TensorSpec", "lower", "required_ops"]

FAMILIES = ("pointwise", "reduction", "scan", "copy", "indexing", "distance", "pooling", "resample", "creation", "random")


def _table() -> dict[str, Lowering]:
    table: dict[str, Lowering] = {}
    for family in FAMILIES:
        rows: Mapping[str, Lowering] = importlib.import_module(f"vendor_sdk.lower.{family}").LOWERINGS
        twice = table.keys() & rows.keys()
        if twice:
            raise AssertionError(f"lowered twice: {sorted(twice)}")
        table.update(rows)
    return table


LOWERINGS: Mapping[str, Lowering] = _table()
"""Prim name to its lowering; the presence of a key is the capability."""


def lower(node: torch.fx.Node, name: str, layout: LayoutOf) -> Lowered:
    """The node as a loop kernel called ``name``.

    Args:
        node: a ``call_function`` node whose target is a prim in ``LOWERINGS`` or ``VIEWS`` (a view becomes a copy kernel), with
            ``meta["val"]`` fake values throughout.
        layout: for an input node, its ``Layout``, or None when it is itself a view to fold.

    Raises ``LoweringError`` when this case (a dtype, a symbolic argument) is not lowered; the message says which.
    """
    row = BY_TARGET.get(node.target)
    for tensor in tensors_of([n.meta.get("val") for n in (*node.all_input_nodes, node)]):
        if tensor.dtype not in (*ACCEPTS["any"], *HALVES):
            raise LoweringError(f"'{node.target}' on {tensor.dtype}: loops have no such values", fix="let it run on the host")
    if row is None:
        raise LoweringError(f"'{node.target}' is no prim", fix="decompose it first")
    if row.name in VIEWS:
        builder = Builder(node, name, lambda n: None if n is node else layout(n))
        copy(builder, node)
    elif row.name in LOWERINGS:
        builder = Builder(node, name, layout)
        LOWERINGS[row.name](builder)
    else:
        raise LoweringError(f"'{row.name}' has no lowering", fix="offer a kernel for it, or let it run on the host")
    return simplify(builder.finish())
