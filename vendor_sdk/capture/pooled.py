"""What max pools save for their gradients: where in its window each maximum lies, a byte or two, and nothing of the image.

torch's indices are int64 and count in the whole plane, so that they are larger than the pool's result; the image, which is
larger still, the gradient is given for its shape alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before

aten, prims = torch.ops.aten, torch.ops.prims
Fuses = Callable[[fx.Node], bool]

_POOLS = {
    aten.max_pool2d_with_indices.default: (2, aten.max_pool2d_with_indices_backward.default),
    aten.max_pool3d_with_indices.default: (3, aten.max_pool3d_with_indices_backward.default),
}
"""Operators of pooling: over how many dimensions, and their gradients."""
_DIMS = {backward: dims for dims, backward in _POOLS.values()}
_IMAGE, _INDICES = 1, 7
"""Arguments of the gradients."""
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dimensions: what lies otherwise than row-major has its channels last."""


class _Window(NamedTuple):
    """Windows along one dimension: how many, the position of the first (in padding: negative), how far they are apart, how far
    the last element of one is from its first; ``step`` is what one position counts in the plane."""

    number: int
    first: int
    stride: int
    reach: int
    step: int


def save_less_of_pools(graph: fx.Graph, dtypes: Container[torch.dtype], fuses: Fuses) -> None:
    """Has the gradients of max pools read indices that were stored as distances from where their windows begin, and no image.

    What this adds is pointwise, and costs nothing in the kernels of the pool and of its gradient. Planes must be of known size;
    indices that something else reads too stay as they are.

    Args:
        graph: of aten operators, with ``meta["val"]``; a joint graph whose values lie as they will.
        dtypes: what fused kernels compute in.
        fuses: whether others fuse with an operator, before and after it.
    """
    for node in list(graph.nodes):
        if node.target in _POOLS and fuses(node):
            _store_distances(node, dtypes, fuses)
        elif node.target in _DIMS and fuses(node):
            _drop_image(node)


def _store_distances(pool: fx.Node, dtypes: Container[torch.dtype], fuses: Fuses) -> None:
    """Stores the indices of one pool for its gradients in as few bytes as they need."""
    dims, backward = _POOLS[pool.target]  # type: ignore[index]
    found = [user for user in pool.users if user.target is operator.getitem and user.args[1] == 1]
    windows = _windows(pool, dims)
    gradients = [reader for indices in found for reader in indices.users]
    if windows is None or not all(reader.target is backward and fuses(reader) for reader in gradients):
        return
    # In order of a window's elements, so that the last is farthest from the first.
    small = _dtype_of(sum(window.reach * window.step for window in windows), dtypes)
    if small is None:
        return
    for indices in found:
        readers, place = list(indices.users), indices.next
        apart = call_before(place, aten.sub.Tensor, indices, _begin(place, indices, windows), like=indices)
        distances = call_before(place, aten._to_copy.default, apart, dtype=small, like=indices)
        for reader in readers:
            wide = call_before(reader, aten._to_copy.default, distances, dtype=torch.int64)
            again = call_before(reader, aten.add.Tensor, wide, _begin(reader, indices, windows))
            reader.update_arg(_INDICES, again)


def _windows(pool: fx.Node, dims: int) -> list[_Window] | None:
    """The windows of a pool, outer dimension first; None where a size is a symbol."""
    plane, counts = (value.shape[-dims:] for value in (pool.args[0].meta["val"], pool.meta["val"][0]))  # type: ignore[union-attr]
    kernel, stride, padding, dilation = (_each(pool, place, dims) for place in (1, 2, 3, 4))
    numbers = [*plane, *counts, *kernel, *stride, *padding, *dilation]
    if not all(isinstance(number, int) for number in numbers):
        return None
    windows, step = [], 1
    for size, count, extent, apart, before, spread in zip(
        *map(reversed, (plane, counts, kernel, stride, padding, dilation)), strict=True
    ):
        windows.append(_Window(count, -before, apart, (extent - 1) * spread, step))
        step *= size
    return windows[::-1]


def _each(pool: fx.Node, place: int, dims: int) -> Sequence[Any]:
    """The argument of a pool at ``place`` for each dimension."""
    defaults = {2: pool.args[1], 3: 0, 4: 1}
    given = pool.args[place] if len(pool.args) > place else defaults[place]
    given = defaults[place] if isinstance(given, list | tuple) and not given else given
    values = list(given) if isinstance(given, list | tuple) else [given]
    return values * dims if len(values) == 1 else values


def _dtype_of(largest: int, dtypes: Container[torch.dtype]) -> torch.dtype | None:
    """The smallest dtype that has all numbers up to ``largest``. Of half the bytes the partitioner would take no advantage."""
    fitting = (d for d in (torch.uint8, torch.int16) if largest <= torch.iinfo(d).max and d in dtypes)
    return next(fitting, None) if torch.int64 in dtypes else None


def _begin(place: fx.Node, indices: fx.Node, windows: Sequence[_Window]) -> fx.Node:
    """The index in its plane of every window's first element, padding counted in: negative where that lies before the plane.

    A view of consecutive numbers, so that nothing is computed but the index of what is read.
    """
    first = sum(window.first * window.step for window in windows)
    apart = [window.stride * window.step for window in windows]
    counts = [window.number for window in windows]
    length = sum((count - 1) * stride for count, stride in zip(counts, apart, strict=True)) + 1
    device = indices.meta["val"].device
    numbers = call_before(
        place,
        prims.iota.default,
        length,
        start=first,
        step=1,
        dtype=torch.int64,
        device=device,
        requires_grad=False,
    )
    return call_before(place, aten.as_strided.default, numbers, counts, apart, 0)


def _drop_image(gradient: fx.Node) -> None:
    """Puts one number, seen as an image, in place of the image that a gradient is given for its shape."""
    image, result = (node.meta["val"] for node in (gradient.args[_IMAGE], gradient))  # type: ignore[union-attr]
    dims = _DIMS[gradient.target]  # type: ignore[index]
    if not all(isinstance(size, int) for size in image.shape[-dims:]):
        return
    lead = [
        size if isinstance(size, int) else call_before(gradient, aten.sym_size.int, gradient.args[0], dim)
        for dim, size in enumerate(image.shape[:-dims])
    ]
    number = call_before(gradient, aten.full.default, [], 0, dtype=image.dtype, device=image.device)
    blank = call_before(gradient, aten.expand.default, number, [*lead, *image.shape[-dims:]])
    if not torch_private.surely_contiguous(result):
        # A gradient lies as the image does.
        blank = call_before(gradient, aten.clone.default, blank, memory_format=_FORMATS[result.dim()])
    gradient.update_arg(_IMAGE, blank)
