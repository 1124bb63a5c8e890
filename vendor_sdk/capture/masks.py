"""Attention masks that no input decides: none at all, or torch's causal one, which kernels know without reading it.

Models build their masks of positions and of what may see what, and skip them where they say nothing only in eager mode. Here a
mask is computed while the graph is compiled, if it follows from constants and sizes that are known; where sizes are symbols,
``positions.py`` says what it is, of some.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from vendor_sdk import torch_private
from vendor_sdk.capture.positions import visible
from vendor_sdk.contract.kernel import SMALLER
from vendor_sdk.ir.primgraph import leading_to, tensors_of
from vendor_sdk.prims import attention_operator

aten = torch.ops.aten
Tensor = torch.Tensor


class _Arguments(NamedTuple):
    """Where an operator of attention has query and key, whether it is causal, and its mask, where that is no keyword."""

    query: int
    key: int
    causal: int
    mask: int | None = None

    def mask_of(self, node: fx.Node) -> Any:
        """The mask of a call."""
        if self.mask is None:
            return node.kwargs.get("attn_mask")
        return node.args[self.mask] if len(node.args) > self.mask else None


_ARGUMENTS: Mapping[Any, _Arguments] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _Arguments(0, 1, 4),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _Arguments(1, 2, 7),
    attention_operator.OPERATOR: _Arguments(0, 1, 5, 6),
    attention_operator.BACKWARD_OPERATOR: _Arguments(1, 2, 8, 9),
}
LARGEST = 1 << 26
"""Elements of a value that is computed for this."""
SMALL = 64
"""How many times the bytes a mask has of what gradients may as well save."""
_ELEMENTWISE = frozenset(
    (aten._to_copy.default, aten.clone.default, aten.index.Tensor, aten.full.default, aten.arange.start_step)
)
"""Operators with a value for each element, which torch does not tag so."""


def know_masks(graph: fx.Graph) -> None:
    """Takes masks out of a graph's attention where it is known that they hide nothing, or what causal attention hides.

    Args:
        graph: of aten operators, with ``meta["val"]``; a joint graph, or one for inference.
    """
    masks = {
        node: mask
        for node in graph.nodes
        if node.target in _ARGUMENTS and isinstance(mask := _ARGUMENTS[node.target].mask_of(node), fx.Node)
    }
    if not masks:
        return
    known = _free(graph, set(masks.values()))
    with torch_private.real_tensors():
        values = _computed(graph, known)
        for node, mask in masks.items():
            if mask in values:
                _look(node, values[mask])
    if any(mask not in values for mask in masks.values()):
        causal = visible(graph)
        for node, mask in masks.items():
            if mask not in values and mask in causal:
                _take_out(node, causal[mask])
        above = leading_to(mask for mask in masks.values() if mask in causal)
        known |= {node for node in above if node.op == "call_function"}
    for node in reversed(graph.nodes):
        if node in known and not node.users:
            graph.erase_node(node)


def compute_masks_again(graph: fx.Graph) -> None:
    """Has gradients compute masks of attention again that follow element by element from little, rather than save them: kernels
    compute such masks where they need them (``Kernel.computes``).

    Args:
        graph: a joint graph of aten operators, with ``meta["val"]``.
    """
    masks = [_ARGUMENTS[node.target].mask_of(node) for node in graph.nodes if node.target in _ARGUMENTS]
    parts = [_of_little(mask) for mask in dict.fromkeys(mask for mask in masks if isinstance(mask, fx.Node))]
    inside = {node for every, _ in parts for node in every}
    for _, large in parts:
        readers = {user for node in large for user in node.users}
        if all(user in inside or user.target in _ARGUMENTS for user in readers):
            for node in large:
                node.meta.setdefault("recompute", CheckpointPolicy.PREFER_RECOMPUTE)


def _of_little(mask: fx.Node) -> tuple[set[fx.Node], set[fx.Node]]:
    """What a mask is computed of element by element, itself included, and what of that is not small beside it; nothing where it
    follows from much."""
    stored = mask
    while _is_view(stored):
        stored = stored.all_input_nodes[0]
    most = _bytes(stored)
    inside, given, stack = set[fx.Node](), set[fx.Node](), [mask]
    while stack:
        node = stack.pop()
        if node in inside or node in given:
            continue
        if _is_view(node) or _is_of_elements(node):
            inside.add(node)
            stack += node.all_input_nodes
        else:
            given.add(node)
    if SMALLER * sum(map(_bytes, given)) > most:
        return set(), set()
    return inside, {node for node in inside if SMALL * _bytes(node) > most}


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)


def _is_of_elements(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target in _ELEMENTWISE


def _bytes(node: fx.Node) -> int:
    """Of a value, as shapes were while tracing."""
    return sum(torch_private.size_hint(tensor) * tensor.dtype.itemsize for tensor in tensors_of(node.meta.get("val")))


def _look(node: fx.Node, mask: Tensor) -> None:
    """Takes the mask out of an operator, if it is one of the two."""
    at = _ARGUMENTS[node.target]
    hidden = _hidden(mask)
    if hidden is None:
        return
    rows, keys = (node.args[i].meta["val"].shape[-2] for i in (at.query, at.key))  # type: ignore[union-attr]
    hidden = hidden.expand(*hidden.shape[:-2], rows, keys)
    causal = bool((hidden == torch.ones(rows, keys, dtype=torch.bool).triu(1)).all())
    if causal or not hidden.any():
        _take_out(node, causal)


def _take_out(node: fx.Node, causal: bool) -> None:
    """Takes a mask out of an operator that is not causal, and makes it causal in its place."""
    target = node.target
    assert isinstance(target, torch_private.OpOverload)
    at = _ARGUMENTS[target]
    if len(node.args) > at.causal and node.args[at.causal]:
        return
    defaults = [argument.default_value for argument in target._schema.arguments[len(node.args) : at.causal]]
    node.args = (*node.args[: at.causal], *defaults, causal)
    if at.mask is None:
        node.kwargs = {**node.kwargs, "attn_mask": None}


def _hidden(mask: Tensor) -> Tensor | None:
    """Where a mask hides a key from a query; None where it does something else too."""
    if mask.dtype == torch.bool:
        return ~mask
    hides = mask <= torch.finfo(mask.dtype).min
    return hides if bool((hides | (mask == 0)).all()) else None


def _free(graph: fx.Graph, wanted: Iterable[fx.Node]) -> set[fx.Node]:
    """Those of ``wanted`` that no input decides, and what they are computed of."""
    free: set[fx.Node] = set()
    for node in graph.nodes:
        if _pure(node) and all(source in free for source in node.all_input_nodes):
            free.add(node)
    return leading_to(node for node in wanted if node in free)


def _computed(graph: fx.Graph, nodes: Container[fx.Node]) -> dict[fx.Node, Tensor]:
    """The values of nodes that need no others."""
    values: dict[fx.Node, Tensor] = {}
    for node in graph.nodes:
        if node in nodes:
            args, kwargs = fx.map_arg((node.args, {**node.kwargs, **_on_host(node)}), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


def _pure(node: fx.Node) -> bool:
    """Whether a node computes one tensor of known size from its operands alone."""
    value, target = node.meta.get("val"), node.target
    return (
        node.op == "call_function"
        and isinstance(target, torch_private.OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and isinstance(value, Tensor)
        and all(isinstance(size, int) for size in value.shape)
        and value.numel() <= LARGEST
    )


def _on_host(node: fx.Node) -> dict[str, Any]:
    return {"device": torch.device("cpu")} if node.kwargs.get("device") is not None else {}
