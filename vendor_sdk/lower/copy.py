"""Prims that move data into a new contiguous result: clone, cat, padding, repeat."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Argument, Builder, Lowering, Value


def copy(k: Builder, source: Argument) -> None:
    """``source`` (a view, read through its index map) into a contiguous result of the same shape, converted to its dtype."""
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.load(source, i))


def _copy(k: Builder) -> None:
    copy(k, k.args["self"])


def _cat(k: Builder) -> None:
    shape = k.outputs[0].shape
    # Torch skips 1-d empty tensors whatever their rank says.
    parts = [t for t in k.args["tensors"] if len(k.shape(t)) == len(shape) and k.shape(t) != (ix.ZERO,)]
    if not parts:
        with k.nest(shape) as i:
            k.store(0, i, k.const(0, k.outputs[0].dtype))
        return
    dim = k.args["dim"] % len(shape)
    offset = ix.ZERO
    for part in parts:
        with k.nest(k.shape(part)) as i:
            target = (*i[:dim], i[dim] + offset, *i[dim + 1 :])
            k.store(0, target, k.load(part, i))
        offset = offset + k.shape(part)[dim]


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
        conditions.append(k.compute("ge", k.index(position), k.const(0, torch.int64)))
    if not ix.less(position, size):
        conditions.append(k.compute("lt", k.index(position), k.index(size)))
    return conditions


def _pad(k: Builder) -> None:
    source = k.args["self"]
    shape, pad = k.shape(source), k.sizes(k.args["pad"])
    before = [ix.ZERO] * len(shape)
    for pair in range(len(pad) // 2):
        before[len(shape) - 1 - pair] = pad[2 * pair]
    with k.nest(k.outputs[0].shape) as i:
        position = tuple(a - b for a, b in zip(i, before, strict=True))
        conditions = [c for p, size in zip(position, shape, strict=True) for c in inside(k, p, size)]
        value = k.args["value"]
        filler = k.operand(value, (), k.dtype(source))
        k.store(0, i, k.load(source, position, all_of(k, conditions), filler))


LOWERINGS: Mapping[str, Lowering] = {
    "clone": _copy,
    "cat": _cat,
    "constant_pad_nd": _pad,
}
