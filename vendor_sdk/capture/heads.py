"""Attention whose heads of queries share heads of keys: gradients come to what is shared.

Models repeat keys and values, a head for each of the queries', before they call attention. Without gradients, the composite is
found on what was repeated (``prims.recognize``). In a joint graph the repeated tensors would be saved, and gradients of their
size written and added up; but the operator takes fewer heads of keys, and gives gradients of as many.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.prims import attention_operator
from vendor_sdk.prims.recognize import unrepeated

aten = torch.ops.aten

_FORWARD_OF = {
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: aten._scaled_dot_product_flash_attention_for_cpu.default,
    attention_operator.BACKWARD_OPERATOR: attention_operator.OPERATOR,
}
"""Operators of attention, by those that differentiate them."""
_KEY, _VALUE = 1, 2
"""Places of keys and values among the operands that operators of both directions have, and of their gradients in the result."""


def share_heads(graph: fx.Graph) -> None:
    """Rewrites attention on repeated keys and values, with its gradients, to attention on what was repeated.

    Args:
        graph: a joint graph of aten operators, with ``meta["val"]``.
    """
    for backward in [node for node in graph.nodes if node.target in _FORWARD_OF]:
        forward = _FORWARD_OF[backward.target]
        repeated = backward.args[1 + _KEY], backward.args[1 + _VALUE]
        shared = [x for x in map(unrepeated, repeated) if x is not None]
        if len(shared) < 2 or not torch_private.surely_equal(*(x.meta["val"].shape[1] for x in shared)):
            continue
        sums = [
            found for place, x in zip((_KEY, _VALUE), shared, strict=True) if (found := _summed(backward, place, x)) is not None
        ]
        if len(sums) < 2:
            continue
        for node in (*(user for user in list(repeated[0].users) if user.target is forward), backward):
            first = int(node is backward)
            if node.args[first + _KEY] is repeated[0] and node.args[first + _VALUE] is repeated[1]:
                node.args = (*node.args[: first + _KEY], *shared, *node.args[first + _VALUE + 1 :])
        given = list(backward.meta["val"])
        for place, x, found in zip((_KEY, _VALUE), shared, sums, strict=True):
            given[place] = given[place].new_empty(x.meta["val"].shape)
            for gradient, total in found:
                gradient.meta["val"] = given[place]
                total.replace_all_uses_with(gradient)
                _erase(graph, total, gradient)
        backward.meta["val"] = tuple(given)
        for each in repeated:
            _erase(graph, each, None)


def _summed(backward: fx.Node, place: int, shared: Any) -> list[tuple[fx.Node, fx.Node]] | None:
    """The gradient by keys or values, and its sum over those that share a head; ``None`` where it is used otherwise."""
    found = []
    batch, heads, rows, width = shared.meta["val"].shape
    for gradient in backward.users:
        if gradient.target is not operator.getitem or gradient.args[1] != place:
            continue
        node = gradient
        for target in (aten.view.default, aten.sum.dim_IntList):
            if len(node.users) != 1 or next(iter(node.users)).target is not target:
                return None
            node = next(iter(node.users))
        grouped = _args(node)[0].meta["val"].shape
        if node.kwargs or _args(node)[1] != [2] or not _are(grouped, (batch, heads, None, rows, width)):
            return None
        if len(node.args) > 2 and node.args[2]:  # kept, to be squeezed
            if len(node.users) != 1:
                return None
            node = next(iter(node.users))
        if not _are(node.meta["val"].shape, (batch, heads, rows, width)):
            return None
        found.append((gradient, node))
    return found


def _are(shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether sizes are surely these, of which ``None`` is any."""
    return len(shape) == len(wanted) and all(
        b is None or torch_private.surely_equal(a, b) for a, b in zip(shape, wanted, strict=True)
    )


def _args(node: fx.Node) -> Any:
    return node.args


def _erase(graph: fx.Graph, node: fx.Node, until: fx.Node | None) -> None:
    """A chain of operators of which nothing is used any more, from its end."""
    while node is not until and node.op == "call_function" and not node.users:
        before = node.args[0]
        graph.erase_node(node)
        assert isinstance(before, fx.Node)
        node = before
