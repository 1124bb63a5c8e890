"""Distances between rows, and dot products of gathered rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Builder, Lowering, Value, opmath
from vendor_sdk.lower.indexing import indirect
from vendor_sdk.lower.pointwise import like, select, truth


def _cdist(k: Builder) -> None:
    left, right, p = k.args["x1"], k.args["x2"], float(k.args["p"])
    dtype = opmath(k.outputs[0].dtype)
    width = k.shape(left)[-1]
    with k.nest(k.outputs[0].shape) as i:
        lead, row, column = i[:-2], i[-2], i[-1]

        def gap(r: tuple[Int, ...]) -> Value:
            a = k.load(left, k.broadcast(k.shape(left), (*lead, row, r[0])))
            b = k.load(right, k.broadcast(k.shape(right), (*lead, column, r[0])))
            return k.compute("abs", k.compute("sub", k.convert(a, dtype), k.convert(b, dtype)))

        def power(r: tuple[Int, ...]) -> Value:
            d = gap(r)
            if p == 0:
                return k.convert(truth(k, d), dtype)
            if p in (1, math.inf):
                return d
            return k.compute("mul", d, d) if p == 2 else k.compute("pow", d, like(k, d, p))

        total = k.reduce1((width,), "max" if p == math.inf else "sum", power)
        if p == math.inf:
            # The identity of a maximum is -inf; of no differences the distance is zero.
            total = k.compute("max", total, like(k, total, 0))
        elif p == 2:
            total = k.compute("sqrt", total)
        elif p not in (0, 1):
            total = k.compute("pow", total, like(k, total, 1 / p))
        k.store(0, i, total)


def _cdist_backward(k: Builder) -> None:
    gradient, left, right, p, distance = k.args.values()  # torch 2.14 has another name for the first
    p = float(p)
    dtype = opmath(k.outputs[0].dtype)
    rows = k.shape(right)[-2]
    with k.nest(k.outputs[0].shape) as i:
        lead, row, column = i[:-2], i[-2], i[-1]

        def slope(r: tuple[Int, ...]) -> Value:
            pair = (*lead, row, r[0])
            g = k.convert(k.load(gradient, k.broadcast(k.shape(gradient), pair)), dtype)
            far = k.convert(k.load(distance, k.broadcast(k.shape(distance), pair)), dtype)
            a = k.convert(k.load(left, k.broadcast(k.shape(left), (*lead, row, column))), dtype)
            b = k.convert(k.load(right, k.broadcast(k.shape(right), (*lead, r[0], column))), dtype)
            d, zero = k.compute("sub", a, b), like(k, a, 0)
            sign, size = k.compute("sign", d), k.compute("abs", d)
            if p == 0:
                return zero
            if p == 1:
                return k.compute("mul", g, sign)
            if p == math.inf:
                return k.compute("mul", g, select(k, k.compute("eq", size, far), sign, zero))
            # d |d|**(p-2) / distance**(p-1), as a ratio that neither overflows nor loses digits.
            ratio = k.compute("div", size, far)
            steep = ratio if p == 2 else k.compute("pow", ratio, like(k, a, p - 1))
            value = k.compute("mul", g, k.compute("mul", sign, steep))
            still = k.compute("bitor", k.compute("eq", far, zero), k.compute("eq", d, zero))
            return select(k, still, zero, value)

        k.store(0, i, k.reduce1((rows,), "sum", slope))


def _bag_weights_backward(k: Builder) -> None:
    gradient, weight = k.args["grad"], k.args["weight"]
    if k.integer(k.args["mode"]) != 0:
        raise k.fail("per-sample weights with a mode other than sum")
    if k.shape(k.args["offset2bag"]) != k.shape(k.args["indices"]):
        raise k.fail("an offset2bag that torch's forward left out")
    padding = k.integer(k.args["padding_idx"])
    dtype = opmath(k.outputs[0].dtype)
    bags, (rows, width) = k.shape(gradient)[0], k.shape(weight)
    with k.nest(k.outputs[0].shape) as i:
        bag = indirect(k, k.args["offset2bag"], i, bags)
        row = indirect(k, k.args["indices"], i, rows)

        def product(r: tuple[Int, ...]) -> Value:
            a = k.convert(k.load(gradient, (bag, r[0])), dtype)
            return k.compute("mul", a, k.convert(k.load(weight, (row, r[0])), dtype))

        total = k.reduce1((width,), "sum", product)
        if padding >= 0:
            skipped = k.compute("eq", k.index(row), k.index(ix.wrap(padding)))
            total = select(k, skipped, like(k, total, 0), total)
        k.store(0, i, total)


LOWERINGS: Mapping[str, Lowering] = {
    "_cdist_forward": _cdist,
    "_cdist_backward": _cdist_backward,
    "_embedding_bag_per_sample_weights_backward": _bag_weights_backward,
}
