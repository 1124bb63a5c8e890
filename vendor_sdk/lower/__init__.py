"""Lowering: a prim node, or a fused group of them, to one loop kernel. Views above its inputs fold into index maps.

``LOWERINGS`` has a key for every prim that lowers; ``VIEWS`` for every prim that folds. One file a family.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir.fused import Computing, Fused
from vendor_sdk.ir.loop import required_ops
from vendor_sdk.ir.loop_ops import ACCEPTS, NARROW
from vendor_sdk.ir.primgraph import tensors_of
from vendor_sdk.lower.build import Builder, Layout, LayoutOf, Lowered, Lowering, TensorSpec, arguments, result_of
from vendor_sdk.lower.contraction import LOWERINGS as _CONTRACTIONS
from vendor_sdk.lower.copy import copy
from vendor_sdk.lower.group import GroupBuilder
from vendor_sdk.lower.simplify import simplify
from vendor_sdk.lower.view import VIEWS
from vendor_sdk.prims.opset import BY_TARGET

__all__ = [
    "CONTRACTIONS",
    "LOWERINGS",
    "VIEWS",
    "Layout",
    "LayoutOf",
    "Lowered",
    "TensorSpec",
    "lower",
    "lower_group",
    "required_ops",
]

FAMILIES = (
    "pointwise",
    "reduction",
    "scan",
    "copy",
    "indexing",
    "distance",
    "pooling",
    "resample",
    "creation",
    "random",
    "contraction",
)


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
CONTRACTIONS = frozenset(_CONTRACTIONS)
"""Prims that are matrix products or convolutions: emitters have a template for them, or not."""
_PLAIN = Limits()


def lower(node: torch.fx.Node, name: str, layout: LayoutOf, limits: Limits = _PLAIN) -> Lowered:
    """The node as a loop kernel called ``name``.

    Args:
        node: a ``call_function`` node whose target is a prim in ``LOWERINGS`` or ``VIEWS`` (a view becomes a copy kernel), with
            ``meta["val"]`` fake values throughout.
        layout: for an input node, its ``Layout``, or None when it is itself a view to fold.
        limits: what the emitter allows.

    Raises ``LoweringError`` when this case (a dtype, a symbolic argument) is not lowered; the message says which.
    """
    row = BY_TARGET.get(node.target)
    for tensor in tensors_of([n.meta.get("val") for n in (*node.all_input_nodes, node)]):
        if tensor.dtype not in (*ACCEPTS["any"], *NARROW):
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
    return simplify(builder.finish(), limits)


def lower_group(node: torch.fx.Node, name: str, layout: LayoutOf, limits: Limits, *, inner_nests: bool) -> Lowered:
    """A fused group as a loop kernel called ``name``.

    Args:
        node: a call whose target is a ``Fused``.
        layout: of its operands, none of which is a view to fold.
        limits: what the emitter allows.
        inner_nests: whether it has them.
    """
    fused = node.target
    assert isinstance(fused, Fused)
    operands, layouts = _operands(fused, node.all_input_nodes, layout)
    for inner, outer in operands.items():
        is_tensor = isinstance(outer.meta["val"], torch.Tensor)
        assert inner in layouts or not is_tensor, f"{outer} is a view, which a group holds itself"
    if fused.loops:
        lowered = GroupBuilder(fused, name, layouts, LOWERINGS, inner_nests).build(limits)
    else:
        lowered = _lower_moved(fused, name, layouts, limits)
    return replace(lowered, inputs=tuple(operands[inner] for inner in lowered.inputs))


def lower_operand(target: Computing, given: Sequence[torch.fx.Node], operand: str, layout: LayoutOf) -> Lowered:
    """An operand that a kernel computes itself (``Kernel.computes``) as the loops that would fill it.

    Args:
        target: the prim with the operand.
        given: what it reads.
        layout: of these, but for views, which the operand does not read.
    """
    operands, layouts = _operands(target, given, layout)
    lowered = GroupBuilder(target, operand, layouts, LOWERINGS, inner_nests=False).elements(arguments(target.call)[operand])
    return replace(lowered, inputs=tuple(operands[inner] for inner in lowered.inputs))


def _operands(
    fused: Fused, given: Sequence[torch.fx.Node], layout: LayoutOf
) -> tuple[dict[torch.fx.Node, torch.fx.Node], dict[torch.fx.Node, Layout]]:
    """What the placeholders of a group stand for, and how those that are tensors, and no views, lie."""
    operands = dict(zip(fused.graph.placeholders, given, strict=True))
    layouts: dict[torch.fx.Node, Layout] = {}
    for inner, outer in operands.items():
        found = layout(outer) if isinstance(outer.meta["val"], torch.Tensor) else None
        if found is not None:
            layouts[inner] = found
    return operands, layouts


def _lower_moved(fused: Fused, name: str, layouts: Mapping[torch.fx.Node, Layout], limits: Limits) -> Lowered:
    """A group without loops of its own: a prim, and copies of its results in other orders, which it stores instead."""
    stored = [_before_copy(value) for value in fused.graph.outputs]
    node, _ = result_of(stored[0][0])
    builder = Builder(node, name, lambda n: layouts[n] if n.op == "placeholder" else None)
    whole = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else [node.meta["val"]]
    among = [k for k, each in enumerate(whole) if isinstance(each, torch.Tensor)]
    places = [among.index(result_of(value)[1]) for value, _ in stored]
    builder.orders = {place: order for place, (_, order) in zip(places, stored, strict=True) if order is not None}
    LOWERINGS[BY_TARGET[node.target].name](builder)
    lowered = builder.finish()
    inputs, results = lowered.kernel.params[: len(lowered.inputs)], lowered.kernel.params[len(lowered.inputs) :]
    kernel = replace(lowered.kernel, params=(*inputs, *(results[k] for k in places)))
    outputs = tuple(
        replace(spec, shape=spec.shape if order is None else tuple(spec.shape[dim] for dim in order))
        for spec, (_, order) in zip((lowered.outputs[k] for k in places), stored, strict=True)
    )
    return simplify(replace(lowered, kernel=kernel, outputs=outputs), limits)


def _before_copy(value: torch.fx.Node) -> tuple[torch.fx.Node, Sequence[int] | None]:
    """What a copy in another order was made of, and that order; a value that is no copy as it is."""
    if value.target is not torch.ops.aten.clone.default:
        return value, None
    (moved,) = value.all_input_nodes
    source, order = moved.args
    return source, order  # type: ignore[return-value]
