"""Images whose channels lie last in memory, as values whose last dimension is the channels (``Legalization.channels_last``).

The values of a graph are row-major. One that torch would give the strides of ``channels_last`` becomes the view of a value
``(images, rows, columns, channels)`` here, and pointwise prims, reductions and concatenations compute on those: they read and
write memory in order, and what stands between two convolutions moves nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.orders import CHANNELS_LAST, channels_lie_last, inverse
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.row import Family, Shape

aten = torch.ops.aten

_BACK = inverse(CHANNELS_LAST)
CONVOLUTIONS: Mapping[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}
"""How many of the first arguments are images; a weight follows. Kernels return images, and gradients of weights, as torch's own
do."""
_ELEMENTWISE = frozenset((Family.POINTWISE, Family.COMPARISON, Family.CONVERSION))


def elementwise(node: fx.Node) -> bool:
    """Whether each element of a prim's result follows from those in its place."""
    row = BY_TARGET.get(node.target)
    return row is not None and row.family in _ELEMENTWISE and row.shape in (Shape.BROADCAST, Shape.SAME)


def channels_last(graph: PrimGraph) -> PrimGraph:
    """Rewrites a graph with convolutions."""
    calls = list(graph.calls())
    if any(node.target in CONVOLUTIONS for node in calls):
        images = _Images(graph)
        for node in calls:
            images.visit(node)
        images.output()
        graph.module.recompile()
    return graph


class _Images:
    """Images by the nodes that stand for them, and their values with the channels last."""

    def __init__(self, graph: PrimGraph) -> None:
        self.graph = graph
        self.last: dict[fx.Node, fx.Node] = {}
        self.copied: dict[fx.Node, fx.Node] = {}
        """Images that lie otherwise, with what convolutions get for them."""

    def visit(self, node: fx.Node) -> None:
        """One node, after all that it reads."""
        row = BY_TARGET.get(node.target)
        if node.target in CONVOLUTIONS:
            self._convolve(node)
        elif row is not None and row.shape is Shape.REDUCE:
            self._reduce(node)
        elif node.target is aten.permute.default and list(node.args[1]) == _BACK and _is_stored(node.args[0]):  # type: ignore[arg-type]
            self.last[node] = node.args[0]  # type: ignore[assignment]
        elif not _lies_last(node) or _by_convolution(node) or (row is not None and row.is_view):
            return
        elif elementwise(node):
            self._rewrite(node, *fx.map_arg(node.args, lambda value: self._aligned(value, node)))
        elif node.target is aten.cat.default:
            (values, *dim) = node.args
            along = CHANNELS_LAST.index(dim[0] % 4 if dim else 0)  # type: ignore[operator]
            self._rewrite(node, [self._of(value, node) for value in values], along)  # type: ignore[arg-type, union-attr]
        else:
            users, place = list(node.users), node.next
            image = self._image(self._copy(node, place), place)
            for user in users:
                user.replace_input_with(node, image)

    def _convolve(self, node: fx.Node) -> None:
        count = CONVOLUTIONS[node.target]
        if not any(_lies_last(value) for value in (node, *node.args[:count])):
            return
        # Libraries convert weights in each call that lie otherwise; the same is done here, where kernels are fused.
        for position, value in enumerate(node.args[: count + 1]):
            assert isinstance(value, fx.Node)
            if not self._known(value) and not (position == count and _lies_both_ways(value)):
                node.update_arg(position, self._moved(value, node))

    def output(self) -> None:
        """What is to be returned with its channels last is returned so where it is known so."""
        output = self.graph.graph.output_node()
        promised = [layout.strides for layout in self.graph.output_layouts] or [None] * len(self.graph.outputs)
        output.args = (
            tuple(
                self.copied[value] if value in self.copied and _is_last(value, strides) else value
                for value, strides in zip(self.graph.outputs, promised, strict=True)
            ),
        )

    def _reduce(self, node: fx.Node) -> None:
        source, dims, *rest = [*node.args, None]  # over everything, where no dimensions are given
        if not (isinstance(source, fx.Node) and self._known(source) and isinstance(dims, list) and dims):
            return
        rest = rest[: len(node.args) - 2]
        keep = bool(rest and rest[0]) or bool(node.kwargs.get("keepdim"))
        over = {dim % 4 for dim in dims}
        left = [dim for dim in CHANNELS_LAST if dim not in over]
        if not keep and left != sorted(left):
            return
        self._rewrite(node, self._of(source, node), sorted(map(CHANNELS_LAST.index, over)), *rest, image=keep)

    def _known(self, image: fx.Node) -> bool:
        """Whether an image's channels do lie last in memory."""
        return image in self.last or (_lies_last(image) and (image.op == "placeholder" or _by_convolution(image)))

    def _of(self, image: fx.Node, place: fx.Node) -> fx.Node:
        """A view of an image, its channels the last dimension."""
        return self.last.get(image) or call_before(place, aten.permute.default, image, list(CHANNELS_LAST))

    def _aligned(self, value: fx.Node, place: fx.Node) -> fx.Node:
        """An operand that broadcasts with images."""
        tensor = value.meta["val"]
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
            return value
        for _ in range(4 - tensor.dim()):
            value = call_before(place, aten.unsqueeze.default, value, 0)
        return self._of(value, place)

    def _copy(self, image: fx.Node, place: fx.Node) -> fx.Node:
        return call_before(place, aten.clone.default, self._of(image, place))

    def _moved(self, image: fx.Node, place: fx.Node) -> fx.Node:
        """An image or weight that lies otherwise, as convolutions want it: the first of them is at ``place``."""
        if image not in self.copied:
            self.copied[image] = self._image(self._copy(image, place), place)
        return self.copied[image]

    def _image(self, made: fx.Node, place: fx.Node) -> fx.Node:
        """The image whose value with the channels last is ``made``."""
        image = call_before(place, aten.permute.default, made, _BACK)
        self.last[image] = made
        return image

    def _rewrite(self, node: fx.Node, *args: Any, image: bool = True) -> None:
        """Computes a node of other arguments, which give its result with the channels last; or, for none that is an ``image``,
        as it is."""
        made = call_before(node, node.target, *args, **node.kwargs)  # type: ignore[arg-type]
        node.replace_all_uses_with(self._image(made, node) if image else made)
        self.graph.graph.erase_node(node)


def _lies_last(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and channels_lie_last(value)


def _lies_both_ways(weight: fx.Node) -> bool:
    """Whether a weight has the order that convolutions want, if not that alone: one of a single pixel, say."""
    return torch_private.surely_contiguous(weight.meta["val"].permute(CHANNELS_LAST))


def _is_stored(value: Any) -> bool:
    """Whether a value is row-major in memory of its own."""
    if value.op == "placeholder":
        return torch_private.surely_contiguous(value.meta["val"])
    row = BY_TARGET.get(value.target)
    return not (row is not None and row.is_view) and not _by_convolution(value)


def _is_last(image: fx.Node, strides: Any) -> bool:
    value = image.meta["val"]
    return strides is not None and channels_lie_last(value.new_empty_strided(value.shape, strides))


def _by_convolution(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, fx.Node) and source.target in CONVOLUTIONS
