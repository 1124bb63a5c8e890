"""Views as index maps: where element ``index`` of a view lies in what it views. No kernel, no copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.prims.opset import BY_TARGET

if TYPE_CHECKING:
    from vendor_sdk.lower.build import Builder

Position = tuple[Int, ...]
IndexMap = Callable[["Builder", Mapping[str, Any], Sequence[Int], Sequence[Int], Position], Position]
"""``map(builder, arguments, input shape, view shape, index in the view)`` gives the index in the input."""


def read_through(k: Builder, source: torch.fx.Node, index: Position) -> tuple[torch.fx.Node, Position]:
    """The materialised node that ``source`` is a view of, and the index in it."""
    from vendor_sdk.lower.build import arguments

    while k.layout(source) is None:
        row = BY_TARGET.get(source.target)
        if row is None or row.name not in VIEWS:
            raise k.fail(f"reads '{source.target}', which is neither materialised nor a view that folds")
        args = arguments(source)
        base = args["self"]
        index = VIEWS[row.name](k, args, k.shape(base), k.shape(source), index)
        source = base
    return source, index


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node is a view that index maps express: its readers fold it."""
    row = BY_TARGET.get(node.target)
    return row is not None and row.name in VIEWS


def flatten(index: Sequence[Int], shape: Sequence[Int]) -> Int:
    """Row-major position of ``index`` in ``shape``."""
    flat = ix.ZERO
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i
    return flat


def unflatten(flat: Int, shape: Sequence[Int]) -> Position:
    """Index in ``shape`` of a row-major position; 0 <= flat < number of elements is assumed."""
    index: list[Int] = []
    left = sum(size != 0 and size != 1 for size in shape)
    for size in reversed(shape):
        if size == 0 or size == 1:
            index.append(ix.ZERO)
            continue
        index.append(flat % size if left > 1 else flat)
        flat, left = flat // size, left - 1
    return tuple(reversed(index))


def reshape(old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    """Index in ``old`` of element ``index`` of the same row-major data in ``new``. Groups of dimensions with equal products are
    mapped one by one, so that a symbolic size in one group does not reach into another."""
    result: list[Int] = []
    a = b = 0
    while a < len(old) or b < len(new):
        start_a, start_b = a, b
        left = right = ix.ONE
        if a < len(old):
            left, a = left * old[a], a + 1
        if b < len(new):
            right, b = right * new[b], b + 1
        while left != right and (a < len(old) or b < len(new)):
            grow_left = a < len(old) and (b == len(new) or _smaller(left, right))
            if grow_left:
                left, a = left * old[a], a + 1
            else:
                right, b = right * new[b], b + 1
        if left != right:
            a, b = len(old), len(new)
        if (start_a, start_b) == (a, b):
            break
        result.extend(unflatten(flatten(index[start_b:b], new[start_b:b]), old[start_a:a]))
    return tuple(result)


def _smaller(left: Int, right: Int) -> bool:
    if left.value is not None and right.value is not None:
        return left.value < right.value
    # A product grows until it has the other's symbols: fewer factors first.
    return len(ix.symbols(left)) < len(ix.symbols(right)) or (
        len(ix.symbols(left)) == len(ix.symbols(right)) and not ix.less(right, left)
    )


def _view(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    return reshape(old, new, index)


def _permute(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    result = [ix.ZERO] * len(old)
    for position, dim in enumerate(args["dims"]):
        result[dim % len(old)] = index[position]
    return tuple(result)


def _expand(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    aligned = zip(old, new[len(new) - len(old) :], index[len(new) - len(old) :], strict=True)
    return tuple(ix.ZERO if size == 1 and wide != 1 else i for size, wide, i in aligned)


def normalised(k: Builder, position: Any, size: Int, default: Int) -> Int:
    """A slice bound by Python's rules: negative counts from the end, clamped to [0, size]."""
    if position is None:
        return default
    return ix.minimum(ix.maximum(_from_start(k.size(position), size), 0), size)


def _from_start(position: Int, size: Int) -> Int:
    """A position that counts from the end where it is negative, from the start."""
    if ix.nonnegative(position):
        return position
    negative = -ix.maximum(ix.minimum(position, 0), -1)  # 1 or 0
    return position + ix.product([negative, size])


def _slice(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    dim = args["dim"] % len(old)
    start = normalised(k, args["start"], old[dim], ix.ZERO)
    return (*index[:dim], start + index[dim] * k.size(args["step"]), *index[dim + 1 :])


def _select(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    dim = args["dim"] % len(old)
    return (*index[:dim], _from_start(k.size(args["index"]), old[dim]), *index[dim:])


def _squeeze(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    dims = {d % len(old) for d in args["dim"]} if old else set()
    remaining = iter(index)
    return tuple(ix.ZERO if d in dims and size == 1 else next(remaining) for d, size in enumerate(old))


def _unsqueeze(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    dim = args["dim"] % len(new)
    return (*index[:dim], *index[dim + 1 :])


def _diagonal(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    first, second = args["dim1"] % len(old), args["dim2"] % len(old)
    offset = k.integer(args["offset"])
    along = index[-1]
    others = iter(index[:-1])
    place = {first: along + max(-offset, 0), second: along + max(offset, 0)}
    return tuple(place[d] if d in place else next(others) for d in range(len(old)))


def _as_strided(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    flat = k.size(args["storage_offset"] or 0)
    for i, step in zip(index, args["stride"], strict=True):
        flat = flat + i * k.size(step)
    return unflatten(flat, old)


def _unfold(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    if not old:
        return ()
    dim = args["dimension"] % len(old)
    return (*index[:dim], index[dim] * k.size(args["step"]) + index[-1], *index[dim + 1 : -1])


def _flip(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    dims = {d % len(old) for d in args["dims"]} if old else set()
    return tuple(size - 1 - i if d in dims else i for d, (size, i) in enumerate(zip(old, index, strict=True)))


def _alias(k: Builder, args: Mapping[str, Any], old: Sequence[Int], new: Sequence[Int], index: Position) -> Position:
    return index


VIEWS: Mapping[str, IndexMap] = {
    "view": _view,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "diagonal": _diagonal,
    "as_strided": _as_strided,
    "unfold": _unfold,
    "flip": _flip,
    "alias": _alias,
}
"""View prim to its index map; the presence of a key is the capability."""
