"""Images with their channels last in memory: said of the whole graph before it is cut into forward and backward.

Convolutions of accelerators read the channels of a pixel at once (``Legalization.channels_last``). Which values lie so
follows by torch's own rules of strides: the operands of convolutions are asked for in that format, and every value after them
gets the strides that torch would give it. Activations that are saved for a backward graph then lie as it reads them.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.orders import CHANNELS_LAST, inverse, order_in_memory
from vendor_sdk.ir.primgraph import tensors_of

aten = torch.ops.aten
Tensor = torch.Tensor

_IMAGES = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
"""Operators of convolution, and which arguments are images."""
_BY_STRIDES = frozenset((aten.as_strided.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default))
"""Views that exist by the strides of what they show."""


def lie_channels_last(graph: fx.Graph) -> None:
    """Has a graph's two-dimensional convolutions work on images whose channels lie last; what the graph returns lies as before.

    A graph in which one of them has groups stays as it is: with few channels each, libraries are not faster so.

    Args:
        graph: of functional aten operators, with ``meta["val"]``; a joint graph, or one for inference.
    """
    convolutions = [node for node in graph.nodes if node.target in _IMAGES and _is_image(node.args[0])]
    if not convolutions or any(_groups(node) != 1 for node in convolutions):
        return
    asked = {image for node in convolutions for image in (node.args[i] for i in _IMAGES[node.target])}
    before = {node: node.meta.get("val") for node in graph.nodes}
    changed: set[fx.Node] = set()
    with torch_private.fake_mode_of([value for value in before.values() if isinstance(value, Tensor)]):
        for node in list(graph.nodes):
            if node.op == "output":
                node.args = (_as_before(node, node.args[0], before, changed),)
                continue
            if any(source in changed for source in node.all_input_nodes):
                _recompute(graph, node, before, changed)
            if (
                node in asked
                and _is_image(node)
                and not torch_private.surely_contiguous(node.meta["val"].permute(CHANNELS_LAST))
            ):
                _ask(node, changed)


def _is_image(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    # For float64, libraries have no such convolutions.
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point() and value.dtype != torch.float64


def _groups(node: fx.Node) -> Any:
    return node.args[8 if node.target is aten.convolution.default else 9]


def _ask(node: fx.Node, changed: set[fx.Node]) -> None:
    """Has the convolutions among the readers of an image read a copy that lies as they want it."""
    readers = [(user, images) for user in node.users if (images := _IMAGES.get(user.target))]  # type: ignore[call-overload]
    place = node
    while place.next.op == "placeholder" or place is node:
        place = place.next
    copy = call_before(place, aten.clone.default, node, memory_format=torch.channels_last, like=node)
    changed.add(copy)
    for reader, images in readers:
        reader.args = tuple(copy if value is node and i in images else value for i, value in enumerate(reader.args))


def _recompute(graph: fx.Graph, node: fx.Node, before: dict[fx.Node, Any], changed: set[fx.Node]) -> None:
    """The strides of a node's results, now that its operands lie otherwise."""
    target = node.target
    if target is operator.getitem:
        source, index = node.args
        value = source.meta["val"][index]  # type: ignore[union-attr]
    elif not isinstance(target, torch_private.OpOverload) or target._schema.is_mutable:
        return
    elif target in _BY_STRIDES:
        node.args = _as_before(node, node.args, before, changed)
        return
    else:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        value = target(*args, **kwargs)
    old = tensors_of(node.meta["val"])
    if not all(map(_lie_alike, tensors_of(value), old)):
        node.meta["val"] = value
        changed.add(node)


def _as_before(reader: fx.Node, values: Any, before: dict[fx.Node, Any], changed: set[fx.Node]) -> Any:
    """``values`` for ``reader``, those that lie otherwise now copied to where they were."""

    def restored(node: fx.Node) -> fx.Node:
        old, new = before.get(node), node.meta.get("val")
        if node not in changed or not isinstance(old, Tensor) or not isinstance(new, Tensor) or _lie_alike(old, new):
            return node
        order = order_in_memory(old.shape, old.stride())
        if order is None:
            return node
        call = partial(call_before, reader, like=node)
        made = call(aten.permute.default, node, order)
        return call(aten.permute.default, call(aten.clone.default, made, memory_format=torch.contiguous_format), inverse(order))

    return fx.map_arg(values, restored)


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether strides are equal, whatever their symbols; adds no guard."""
    return all(map(torch_private.surely_equal, one.stride(), other.stride()))
