"""Contractions: matrix products and convolutions, forward and backward, each a nest that ``vendor_sdk.ir.contraction`` matches.

Halves are multiplied and summed in float32 and rounded once; integers narrower than 32 bits are summed in int32, which wraps to
the same result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Argument, Builder, Lowering, Value, opmath
from vendor_sdk.lower.copy import all_of, inside


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """The dtype that products of ``dtype`` are summed in."""
    narrow = not dtype.is_floating_point and dtype.itemsize < 4
    return torch.int32 if narrow else opmath(dtype)


class _Sum:
    """Sums of products of two tensors in the accumulation dtype of result 0."""

    def __init__(self, k: Builder, dtype: torch.dtype) -> None:
        self.k, self.dtype = k, _accumulated(dtype)

    def load(self, source: Argument, index: Sequence[Int], mask: Value | None = None) -> Value:
        """An element of a factor, a number of the operand's own dtype also where it is computed here: hardware that multiplies
        matrices takes halves."""
        return self.k.convert(self.k.convert(self.k.load(source, index, mask), self.k.dtype(source)), self.dtype)

    def over(self, sizes: Sequence[Int], left: Callable[[tuple[Int, ...]], Value], right: Callable[..., Value]) -> Value:
        return self.k.reduce1(sizes, "sum", lambda r: self.k.compute("mul", left(r), right(r)))


# Matrix products


def _product(left: str, right: str) -> Lowering:
    """(..., n, k) times (..., k, m), plus ``beta * self`` and times ``alpha`` where the operator has them."""

    def lowering(k: Builder) -> None:
        a, b = k.args[left], k.args[right]
        dtype = k.outputs[0].dtype
        if dtype == torch.bool:
            raise k.fail("products of bool")
        total = _Sum(k, dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, row, column = i[:-2], i[-2], i[-1]
            product = total.over(
                k.shape(a)[-1:],
                lambda r: total.load(a, (*lead, row, *r)),
                lambda r: total.load(b, (*lead, *r, column)),
            )
            k.store(0, i, _affine(k, product, i, total.dtype))

    return lowering


def _affine(k: Builder, product: Value, i: Sequence[Int], dtype: torch.dtype) -> Value:
    """``beta * self + alpha * product``; ``self`` is not read when beta is 0."""
    alpha, beta = k.args.get("alpha", 1), k.args.get("beta", 0)
    if alpha != 1:
        product = k.compute("mul", product, k.operand(alpha, (), dtype))
    if beta == 0:
        return product
    added = k.operand(k.args["self"], i, dtype)
    if beta != 1:
        added = k.compute("mul", added, k.operand(beta, (), dtype))
    return k.compute("add", added, product)


# Convolutions


class _Geometry:
    """The shapes and steps of a convolution, whichever way it is used.

    ``wide`` is the tensor that windows slide over (n, groups * inner, *wide), ``narrow`` the one with an element per window (n,
    groups * outer, *narrow), and the weight is (groups * outer, inner, *kernel). A transposed convolution is the same with the
    names of its input and its result exchanged.
    """

    def __init__(self, k: Builder, wide: Sequence[Int], narrow: Sequence[Int], weight: Argument) -> None:
        self.k, self.weight = k, weight
        self.kernel = k.shape(weight)[2:]
        self.rank = len(self.kernel)
        self.stride, self.padding, self.dilation = (self._each(n) for n in ("stride", "padding", "dilation"))
        self.groups = k.integer(k.args["groups"])
        self.batch = wide[0]
        self.wide, self.narrow = tuple(wide[2:]), tuple(narrow[2:])
        self.inner = k.shape(weight)[1]
        self.outer = k.shape(weight)[0] // self.groups

    def _each(self, name: str) -> tuple[int, ...]:
        values = [self.k.integer(v) for v in self.k.args[name]]
        return tuple(values * self.rank if len(values) == 1 else values)

    @contextmanager
    def nest(self, channels: Int, positions: Sequence[Int]) -> Iterator[tuple[Int, Int, Int, tuple[Int, ...]]]:
        """Loops over the batch, the groups, the ``channels`` of each and positions. One group has no loop, nor has one channel:
        its nest is over the results, which is what others can be fused with."""
        if self.groups == 1:
            with self.k.nest((self.batch, channels, *positions)) as (b, channel, *o):
                yield b, ix.ZERO, channel, tuple(o)
        elif channels == 1:
            with self.k.nest((self.batch, ix.wrap(self.groups), *positions)) as (b, group, *o):
                yield b, group, ix.ZERO, tuple(o)
        else:
            with self.k.nest((self.batch, ix.wrap(self.groups), channels, *positions)) as (b, group, channel, *o):
                yield b, group, channel, tuple(o)

    def place(self, o: Sequence[Int], r: Sequence[Int]) -> tuple[Int, ...]:
        """Where offset ``r`` of window ``o`` lies in the wide tensor; possibly in the padding."""
        return tuple(
            out * s - p + off * d for out, off, s, p, d in zip(o, r, self.stride, self.padding, self.dilation, strict=True)
        )

    def window(self, place: Sequence[Int]) -> Value | None:
        """Whether a place lies inside the wide tensor; None when it always does."""
        return all_of(self.k, [c for p, n in zip(place, self.wide, strict=True) for c in inside(self.k, p, n)])


def _correlate(k: Builder, output: int, g: _Geometry, wide: Argument, bias: Argument) -> None:
    """narrow = sum over inner channels and window of wide * weight, plus ``bias``."""
    total = _Sum(k, k.outputs[output].dtype)
    with g.nest(g.outer, g.narrow) as (b, group, outer, o):

        def element(r: tuple[Int, ...]) -> Value:
            place = g.place(o, r[1:])
            return total.load(wide, (b, group * g.inner + r[0], *place), g.window(place))

        channel = group * g.outer + outer
        value = total.over((g.inner, *g.kernel), lambda r: total.load(g.weight, (channel, *r)), element)
        if bias is not None:
            value = k.compute("add", value, total.load(bias, (channel,)))
        k.store(output, (b, channel, *o), value)


class _Phase:
    """The positions of one dimension of the wide tensor that are congruent modulo the stride, and the ``taps`` offsets of
    windows that reach them: ``first + stride * q`` is at offset ``start + step * t`` of window ``q + shift - jump * t``."""

    def __init__(
        self, k: Builder, size: Int, narrow: Int, kernel: Int, stride: int, padding: int, dilation: int, first: int
    ) -> None:
        self.narrow, self.first, self.stride = narrow, first, stride
        self.count = (size - first + stride - 1) // stride
        self.start, self.step, self.taps = 0, 1, kernel
        if stride > 1:
            reached = [r for r in range(k.integer(kernel)) if (first + padding - r * dilation) % stride == 0]
            self.start = reached[0] if reached else 0
            self.step = reached[1] - reached[0] if len(reached) > 1 else 1
            self.taps = ix.wrap(len(reached))
        self.shift = (first + padding - self.start * dilation) // stride
        self.jump = self.step * dilation // stride


def _spread(k: Builder, output: int, g: _Geometry, narrow: Argument, bias: Argument) -> None:
    """wide = sum over outer channels and the windows that reach a position of narrow * weight, plus ``bias``.

    With a stride, positions that are congruent modulo it are reached by the same offsets of the window: a nest each, so that no
    product with a zero is computed.
    """
    total = _Sum(k, k.outputs[output].dtype)
    dimensions = [
        [_Phase(k, size, count, n, s, p, d, first) for first in range(s)]
        for size, count, n, s, p, d in zip(g.wide, g.narrow, g.kernel, g.stride, g.padding, g.dilation, strict=True)
    ]
    for phases in itertools.product(*dimensions):
        if any(phase.count == 0 for phase in phases):
            continue
        with g.nest(g.inner, [p.count for p in phases]) as (b, group, inner, q):

            def weight(r: tuple[Int, ...]) -> Value:
                offset = [p.start + t * p.step for p, t in zip(phases, r[1:], strict=True)]
                return total.load(g.weight, (group * g.outer + r[0], inner, *offset))

            def element(r: tuple[Int, ...]) -> Value:
                window = [n + p.shift - t * p.jump for p, n, t in zip(phases, q, r[1:], strict=True)]
                valid = all_of(k, [c for w, p in zip(window, phases, strict=True) for c in inside(k, w, p.narrow)])
                return total.load(narrow, (b, group * g.outer + r[0], *window), valid)

            channel = group * g.inner + inner
            if all(p.taps != 0 for p in phases):
                value = total.over((g.outer, *(p.taps for p in phases)), weight, element)
            else:
                value = k.const(0, total.dtype)
            if bias is not None:
                value = k.compute("add", value, total.load(bias, (channel,)))
            k.store(output, (b, channel, *(p.first + n * p.stride for p, n in zip(phases, q, strict=True))), value)


def _weight_gradient(k: Builder, output: int, g: _Geometry, wide: Argument, narrow: Argument) -> None:
    """weight = sum over batch and windows of narrow * wide."""
    total = _Sum(k, k.outputs[output].dtype)
    with k.nest((ix.wrap(g.groups), g.outer, g.inner, *g.kernel)) as (group, outer, inner, *r):
        channel = group * g.outer + outer

        def element(s: tuple[Int, ...]) -> Value:
            place = g.place(s[1:], r)
            return total.load(wide, (s[0], group * g.inner + inner, *place), g.window(place))

        value = total.over((g.batch, *g.narrow), lambda s: total.load(narrow, (s[0], channel, *s[1:])), element)
        k.store(output, (channel, inner, *r), value)


def _bias_gradient(k: Builder, output: int, gradient: Argument) -> None:
    batch, channels, *positions = k.shape(gradient)
    dtype = opmath(k.outputs[output].dtype)
    with k.nest((channels,)) as (c,):
        total = k.reduce1((batch, *positions), "sum", lambda r: k.convert(k.load(gradient, (r[0], c, *r[1:])), dtype))
        k.store(output, (c,), total)


def _convolution(k: Builder) -> None:
    source, weight, bias = k.args["input"], k.args["weight"], k.args["bias"]
    if k.args["transposed"]:
        _spread(k, 0, _Geometry(k, k.outputs[0].shape, k.shape(source), weight), source, bias)
    else:
        _correlate(k, 0, _Geometry(k, k.shape(source), k.outputs[0].shape, weight), source, bias)


def _convolution_backward(k: Builder) -> None:
    gradient, source, weight = k.args["grad_output"], k.args["input"], k.args["weight"]
    transposed = bool(k.args["transposed"])
    wide, narrow = (gradient, source) if transposed else (source, gradient)
    g = _Geometry(k, k.shape(wide), k.shape(narrow), weight)
    to_input, to_weight, to_bias = (bool(asked) for asked in k.args["output_mask"])
    output = 0
    if to_input:
        if transposed:
            _correlate(k, output, g, gradient, None)
        else:
            _spread(k, output, g, gradient, None)
        output += 1
    if to_weight:
        _weight_gradient(k, output, g, wide, narrow)
        output += 1
    if to_bias:
        _bias_gradient(k, output, gradient)


LOWERINGS: Mapping[str, Lowering] = {
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
