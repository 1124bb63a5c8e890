"""Prims that move data into a new contiguous result: clone, flip, cat, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Argument, Builder, Lowering, Value, opmath
from vendor_sdk.lower.view import VIEWS


def copy(k: Builder, source: Argument) -> None:
    """``source`` (a view, read through its index map) into a contiguous result of the same shape, converted to its dtype."""
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.load(source, i))


def _copy(k: Builder) -> None:
    copy(k, k.args["self"])


def _flip(k: Builder) -> None:
    """Torch has no strides for it, so that it is a result; who reads it folds it all the same."""
    source, shape = k.args["self"], k.outputs[0].shape
    with k.nest(shape) as i:
        k.store(0, i, k.load(source, VIEWS["flip"](k, k.args, k.shape(source), shape, i)))


def _cat(k: Builder) -> None:
    shape = k.outputs[0].shape
    # Torch skips 1-d empty tensors whatever their rank says.
    parts = [t for t in k.args["tensors"] if len(k.shape(t)) == len(shape) and k.shape(t) != (ix.ZERO,)]
    if not parts:
        with k.nest(shape) as i:
            k.store(0, i, k.const(0, k.outputs[0].dtype))
        return
    dim = k.args["dim"] % len(shape)
    if k.is_element:
        with k.nest(shape) as i:
            k.store(0, i, _cat_element(k, parts, dim, i))
        return
    offset = ix.ZERO
    for part in parts:
        with k.nest(k.shape(part)) as i:
            target = (*i[:dim], i[dim] + offset, *i[dim + 1 :])
            k.store(0, target, k.load(part, i))
        offset = offset + k.shape(part)[dim]


def _cat_element(k: Builder, parts: Sequence[Argument], dim: int, i: tuple[Int, ...]) -> Value:
    """One element, chosen among the parts; a part that the index cannot be in costs nothing."""
    dtype = opmath(k.outputs[0].dtype)
    chosen: Value | None = None
    offset = ix.ZERO
    for part in parts:
        size = k.shape(part)[dim]
        position = i[dim] - offset
        offset = offset + size
        if _outside(position, size):
            continue
        within = all_of(k, inside(k, position, size))
        value = k.convert(k.load(part, (*i[:dim], position, *i[dim + 1 :]), within, 0), dtype)
        if within is None:
            return value
        chosen = value if chosen is None else k.compute("where", within, value, chosen)
    # Nobody asks for an element of an empty result, which no part has.
    return k.const(0, k.outputs[0].dtype) if chosen is None else chosen


def all_of(k: Builder, conditions: list[Value]) -> Value | None:
    """Conjunction of bool values; None for none."""
    result: Value | None = None
    for condition in conditions:
        result = condition if result is None else k.compute("bitand", result, condition)
    return result


def inside(k: Builder, position: Int, size: Int) -> list[Value]:
    """Bool values that say ``0 <= position < size``, leaving out what is always true."""
    conditions = []
    if not ix.nonnegative(position):
        k.split_at(position, ix.ZERO)
        conditions.append(k.compute("ge", k.index(position), k.const(0, torch.int64)))
    if not ix.less(position, size):
        k.split_at(position, size)
        conditions.append(k.compute("lt", k.index(position), k.index(size)))
    return conditions


def _outside(position: Int, size: Int) -> bool:
    """Whether ``position`` is never one of ``size``."""
    return ix.less(position, 0) or ix.nonnegative(position - size)


def _pad(k: Builder) -> None:
    source = k.args["self"]
    shape, pad = k.shape(source), k.sizes(k.args["pad"])
    before = [ix.ZERO] * len(shape)
    for pair in range(len(pad) // 2):
        before[len(shape) - 1 - pair] = pad[2 * pair]
    with k.nest(k.outputs[0].shape) as i:
        position = tuple(a - b for a, b in zip(i, before, strict=True))
        filler = k.operand(k.args["value"], (), k.dtype(source))
        conditions = [c for p, size in zip(position, shape, strict=True) for c in inside(k, p, size)]
        if any(map(_outside, position, shape)):
            k.store(0, i, filler)
        else:
            k.store(0, i, k.load(source, position, all_of(k, conditions), filler))


LOWERINGS: Mapping[str, Lowering] = {
    "clone": _copy,
    "flip": _flip,
    "cat": _cat,
    "constant_pad_nd": _pad,
}
