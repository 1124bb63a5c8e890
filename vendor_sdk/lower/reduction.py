"""Reductions: sums, products, extremes, truth, variance, norms, over any set of dimensions.

Halves accumulate in float32; bool and small integers in what the result's dtype says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import Node

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Argument, Builder, Lowering, Value, opmath
from vendor_sdk.lower.pointwise import truth
from vendor_sdk.lower.view import flatten


class Over:
    """The split of a tensor's dimensions into kept and reduced ones."""

    def __init__(self, k: Builder, source: Argument, dims: Sequence[int], keepdim: bool) -> None:
        self.k, self.source, self.reduced, self.keepdim = k, source, tuple(dims), keepdim
        self.shape = k.shape(source)
        self.kept_dims = tuple(d for d in range(len(self.shape)) if d not in self.reduced)
        self.kept = tuple(self.shape[d] for d in self.kept_dims)
        self.sizes = tuple(self.shape[d] for d in self.reduced)
        self.count = ix.product(self.sizes)

    def at(self, i: Sequence[Int], r: Sequence[Int]) -> tuple[Int, ...]:
        """Index in the source from kept and reduced loop variables."""
        place = dict(zip(self.kept_dims, i, strict=True)) | dict(zip(self.reduced, r, strict=True))
        return tuple(place[d] for d in range(len(self.shape)))

    def kept_of(self, index: tuple[Int, ...]) -> tuple[Int, ...]:
        """Kept loop variables of an index in the result: the inverse of ``out``."""
        return tuple(index[d] for d in self.kept_dims) if self.keepdim else index

    def out(self, i: Sequence[Int]) -> tuple[Int, ...]:
        """Index in the result from kept loop variables."""
        if not self.keepdim:
            return tuple(i)
        place = dict(zip(self.kept_dims, i, strict=True))
        return tuple(place.get(d, ix.ZERO) for d in range(len(self.shape)))

    def load(self, i: Sequence[Int], r: Sequence[Int], dtype: torch.dtype) -> Value:
        return self.k.convert(self.k.load(self.source, self.at(i, r)), dtype)


def over(k: Builder, *, empty_is_all: bool = True) -> Over:
    source = k.args["self"]
    rank = len(k.shape(source))
    return Over(k, source, k.dims(k.args.get("dim"), rank, empty_is_all=empty_is_all), bool(k.args.get("keepdim", False)))


def _simple(op: str, before: Callable[[Builder, Value], Value] = lambda k, v: v) -> Lowering:
    def lowering(k: Builder) -> None:
        split = over(k)
        dtype = opmath(k.outputs[0].dtype)
        joined = "min" if op == "prod" and dtype == torch.bool else op  # vectors of bools are not multiplied
        with k.nest(split.kept, split.kept_of) as i:
            k.store(0, split.out(i), k.reduce1(split.sizes, joined, lambda r: before(k, split.load(i, r, dtype))))

    return lowering


def _truth(op: str) -> Lowering:
    def lowering(k: Builder) -> None:
        split = over(k, empty_is_all=k.node.target._overloadname != "dims")  # type: ignore[union-attr]
        source = opmath(k.dtype(k.args["self"]))
        with k.nest(split.kept, split.kept_of) as i:
            k.store(0, split.out(i), k.reduce1(split.sizes, op, lambda r: truth(k, split.load(i, r, source))))

    return lowering


def as_float(k: Builder, count: Int, dtype: torch.dtype) -> Value:
    return k.const(count.value, dtype) if count.value is not None else k.convert(k.index(count), dtype)


def _mean(k: Builder) -> None:
    split = over(k)
    dtype = opmath(k.outputs[0].dtype)
    with k.nest(split.kept, split.kept_of) as i:
        total = k.reduce1(split.sizes, "sum", lambda r: split.load(i, r, dtype))
        k.store(0, split.out(i), k.compute("div", total, as_float(k, split.count, dtype)))


def _squared_deviations(k: Builder, split: Over, i: Sequence[Int], dtype: torch.dtype) -> Value:
    """Sum of squared deviations from the mean. Two passes: the one-pass formulas lose digits when the mean is large."""
    total = k.reduce1(split.sizes, "sum", lambda r: split.load(i, r, dtype))
    mean = k.compute("div", total, as_float(k, split.count, dtype))

    def square(r: tuple[Int, ...]) -> Value:
        d = k.compute("sub", split.load(i, r, dtype), mean)
        return k.compute("mul", d, d)

    return k.reduce1(split.sizes, "sum", square)


def _variance(k: Builder) -> None:
    split = over(k)
    correction = k.args.get("correction")
    dtype = opmath(k.outputs[0].dtype)
    with k.nest(split.kept, split.kept_of) as i:
        squares = _squared_deviations(k, split, i, dtype)
        count = as_float(k, split.count, dtype)
        subtracted = k.operand(1 if correction is None else correction, (), dtype)
        freedom = k.compute("max", k.compute("sub", count, subtracted), k.const(0, dtype))
        k.store(0, split.out(i), k.compute("div", squares, freedom))


def _arg(op: str, *, values: bool) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["self"]
        split = over(k)
        dtype = opmath(k.dtype(source))
        with k.nest(split.kept, split.kept_of) as i:
            (best,) = k.reduce(split.sizes, lambda r: [(op, split.load(i, r, dtype), k.index(flatten(r, split.sizes)))])
            assert isinstance(best, tuple)
            if values:
                k.store(0, split.out(i), best[0])
            k.store(1 if values else 0, split.out(i), best[1])

    return lowering


def _norm(k: Builder) -> None:
    split = over(k)
    order = k.args.get("ord", k.args.get("p", 2))
    if isinstance(order, Node):
        raise k.fail("an order that only the call knows")
    order = 2.0 if order is None else float(order)
    dtype = opmath(k.outputs[0].dtype)
    with k.nest(split.kept, split.kept_of) as i:

        def magnitude(r: tuple[Int, ...]) -> Value:
            return k.compute("abs", split.load(i, r, dtype))

        if math.isinf(order):
            result = k.reduce1(split.sizes, "max" if order > 0 else "min", magnitude)
        elif order == 0:
            result = k.reduce1(split.sizes, "sum", lambda r: k.convert(truth(k, split.load(i, r, dtype)), dtype))
        elif order == 1:
            result = k.reduce1(split.sizes, "sum", magnitude)
        elif order == 2:

            def square(r: tuple[Int, ...]) -> Value:
                value = split.load(i, r, dtype)
                return k.compute("mul", value, value)

            result = k.compute("sqrt", k.reduce1(split.sizes, "sum", square))
        else:
            total = k.reduce1(split.sizes, "sum", lambda r: k.compute("pow", magnitude(r), k.const(order, dtype)))
            result = k.compute("pow", total, k.const(1.0 / order, dtype))
        k.store(0, split.out(i), result)


LOWERINGS: Mapping[str, Lowering] = {
    "sum": _simple("sum"),
    "prod": _simple("prod"),
    "amax": _simple("max"),
    "amin": _simple("min"),
    "max.dim": _arg("argmax", values=True),
    "min.dim": _arg("argmin", values=True),
    "argmax": _arg("argmax", values=False),
    "argmin": _arg("argmin", values=False),
    "any": _truth("any"),
    "mean": _mean,
    "var": _variance,
    "linalg_vector_norm": _norm,
}
