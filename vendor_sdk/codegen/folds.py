"""Chains of views, folded: where in the memory of its source a view lies, so that a step that reads it finds one tensor, and
one of the frame where the memory is the arena's. Views between others take no time then.

A view folds when its source is memory of a size known now, an input as it was traced or dense. Views that the graph returns
stay as the user wrote them, but for other shapes of what the call computes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.codegen.values import Values, is_view
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.ir.memory import Slot
from vendor_sdk.ir.orders import laid, order_of
from vendor_sdk.ir.primgraph import prim_name


@dataclass(frozen=True)
class Fold:
    """Where a view lies.

    Attributes:
        source: whose value it is a view of.
        slot: that value, if the SDK allocates it.
        shape, strides, offset: of the view, in elements from the first of the source.
        dtype: of both.
    """

    source: fx.Node
    slot: Slot | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype


def folds(order: Sequence[fx.Node], values: Values, returned: Iterable[object]) -> dict[fx.Node, Fold]:
    """The views among ``order`` that fold."""
    kept = set[fx.Node]()
    for value in returned:
        chain = list(_chain(value))
        if chain and not (prim_name(chain[0]) == "view" and _computed(chain[-1].args[0])):
            kept.update(chain)
    found: dict[fx.Node, Fold] = {}
    for node in order:
        if is_view(node) and node not in kept and not node.meta.get("on_device"):
            fold = _fold(node, values, found)
            if fold is not None:
                found[node] = fold
    return found


def _chain(value: object) -> Iterator[fx.Node]:
    """A view, what it is a view of, and so on; nothing of what is no view."""
    while isinstance(value, fx.Node) and is_view(value):
        yield value
        value = value.args[0]


def _computed(value: object) -> bool:
    return isinstance(value, fx.Node) and value.op == "call_function"


def read(
    order: Sequence[fx.Node], found: Mapping[fx.Node, Fold], reads: Callable[[fx.Node], Sequence[fx.Node]]
) -> set[fx.Node]:
    """The folded views that steps read: the rest needs no code."""
    return {value for node in order if node not in found for value in reads(node) if value in found}


def _fold(node: fx.Node, values: Values, found: Mapping[fx.Node, Fold]) -> Fold | None:
    (source, *rest), value = node.args, node.meta["val"]
    if not isinstance(source, fx.Node) or node.all_input_nodes != [source] or not isinstance(value, torch.Tensor):
        return None
    before = found.get(source)
    if before is None:
        before = _whole(source, values)
    # Strides of ``as_strided`` count in the elements of the logical tensor, which need not lie so.
    if before is None or value.dtype != before.dtype or prim_name(node) == "as_strided":
        return None
    memory = torch.empty(1, dtype=before.dtype, device="meta").as_strided(before.shape, before.strides, before.offset)
    if prim_name(node) == "view":
        seen = memory.reshape(*rest)  # type: ignore[arg-type]
    else:
        seen = node.target(memory, *rest, **node.kwargs)  # type: ignore[operator]
    if torch_private.storage_key(seen) != torch_private.storage_key(memory):
        return None  # this order of elements takes a copy
    return Fold(before.source, before.slot, tuple(seen.shape), seen.stride(), int(seen.storage_offset()), before.dtype)


def _whole(source: fx.Node, values: Values) -> Fold | None:
    """A value as a view of itself, if it is of known size, and an input or dense, when the view is made."""
    value = source.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return None
    slot: Slot | None = None
    if source.op == "placeholder":
        steps = tuple(value.stride())
        return Fold(source, slot, tuple(value.shape), steps, 0, value.dtype) if all(isinstance(n, int) for n in steps) else None
    if values.allocated(source):
        slot = source, 0
    elif values.folded(source):
        assert isinstance(source.args[0], fx.Node)
        slot = source.args[0], source.args[1]  # type: ignore[assignment]
    elif not _checked(source):
        return None
    shape = tuple(value.shape)
    strides = laid(torch.empty(shape, dtype=value.dtype, device="meta"), order_of(source)).stride()
    return Fold(source, slot, shape, strides, 0, value.dtype)


def _checked(node: fx.Node) -> bool:
    """Whether a value is what a kernel returned, which is made to lie as the kernel says."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    placement = node.meta.get("placement")
    return (
        placement is not None
        and placement.kind is Kind.NATIVE
        and placement.route is not Route.GRAPH
        and not node.meta.get("on_device")
    )
