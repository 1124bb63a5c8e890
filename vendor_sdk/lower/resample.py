"""Sampling images at the points of a grid, two- and three-dimensional: bilinear and nearest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Builder, Lowering, Value, opmath
from vendor_sdk.lower.copy import all_of
from vendor_sdk.lower.pointwise import like, select

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _coordinate(k: Builder, x: Value, size: Int) -> tuple[Value, Value]:
    """A grid coordinate in [-1, 1] as a position in pixels, and the derivative of the latter by the former."""
    extent = k.const(size.value, x.dtype) if size.value is not None else k.convert(k.index(size), x.dtype)
    one, half = like(k, x, 1), like(k, x, 0.5)
    last = k.compute("sub", extent, one)
    shifted = k.compute("add", x, one)
    if k.args["align_corners"]:
        position = k.compute("mul", k.compute("mul", shifted, half), last)
        slope = k.compute("mul", last, half)
    else:
        position = k.compute("mul", k.compute("sub", k.compute("mul", shifted, extent), one), half)
        slope = k.compute("mul", extent, half)
    padding = k.args["padding_mode"]
    if padding == REFLECTION:
        position, slope = _reflected(k, position, slope, last, extent)
    if padding in (BORDER, REFLECTION):
        zero = like(k, x, 0)
        outside = k.compute("bitor", k.compute("le", position, zero), k.compute("ge", position, last))
        slope = select(k, outside, zero, slope)
        # fmax and fmin: a NaN coordinate samples the border, as torch's does.
        position = k.compute("fmin", last, k.compute("fmax", position, zero))
    return position, slope


def _reflected(k: Builder, x: Value, slope: Value, last: Value, extent: Value) -> tuple[Value, Value]:
    aligned = k.args["align_corners"]
    low = like(k, x, 0.0 if aligned else -0.5)
    span = last if aligned else extent
    from_low = k.compute("sub", x, low)
    size = k.compute("abs", from_low)
    slope = select(k, k.compute("lt", from_low, like(k, x, 0)), k.compute("neg", slope), slope)
    extra = k.compute("fmod", size, span)
    flips = k.compute("floor", k.compute("div", size, span))
    odd = k.compute("ne", k.compute("fmod", flips, like(k, x, 2)), like(k, x, 0))
    back = k.compute("add", k.compute("sub", span, extra), low)
    position = select(k, odd, back, k.compute("add", extra, low))
    empty = k.compute("eq", span, like(k, x, 0))
    zero = like(k, x, 0)
    slope = select(k, odd, k.compute("neg", slope), slope)
    return select(k, empty, zero, position), select(k, empty, zero, slope)


@dataclass(frozen=True)
class Corner:
    """One of the pixels that a sample reads: its index, whether it is in the image, its weight, and the weight's derivatives by
    the position along each dimension."""

    index: tuple[Int, ...]
    inside: Value
    weight: Value
    slopes: tuple[Value, ...]


def _corners(k: Builder, n: int, at: Sequence[Int], spatial: Sequence[Int], dtype: torch.dtype) -> list[Corner]:
    mode = k.args["interpolation_mode"]
    if mode not in (BILINEAR, NEAREST):
        raise k.fail("bicubic interpolation")
    int64 = torch.int64
    places: list[list[tuple[Int, Value, Value, Value]]] = []
    for d in range(n):
        # The grid's last dimension starts with the innermost coordinate.
        x = k.convert(k.load(k.args["grid"], (*at, ix.wrap(n - 1 - d))), dtype)
        position, slope = _coordinate(k, x, spatial[d])
        whole = k.compute("round" if mode == NEAREST else "floor", position)
        # Far outside, and NaN: any pixel outside will do, and none may overflow.
        limit = like(k, x, 2.0**30)
        safe = k.compute("fmax", k.compute("fmin", whole, limit), k.compute("neg", limit))
        first = k.convert(safe, int64)
        fraction = k.compute("sub", position, whole)
        one = like(k, x, 1)
        choices = [(0, k.compute("sub", one, fraction), k.compute("neg", slope)), (1, fraction, slope)]
        if mode == NEAREST:
            choices = [(0, one, like(k, x, 0))]
        row = []
        for offset, weight, by in choices:
            place = k.compute("add", first, k.const(offset, int64))
            low = k.compute("ge", place, k.const(0, int64))
            inside = k.compute("bitand", low, k.compute("lt", place, k.index(spatial[d])))
            row.append((k.as_index(place), inside, weight, by))
        places.append(row)
    corners = []
    for choice in itertools.product(*places):
        index, insides, weights, slopes = zip(*choice, strict=True)
        inside_all = all_of(k, list(insides))
        assert inside_all is not None
        derivatives = tuple(_product(k, [slopes[e] if e == d else weights[e] for e in range(n)]) for d in range(n))
        corners.append(Corner(index, inside_all, _product(k, list(weights)), derivatives))
    return corners


def _product(k: Builder, values: list[Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        result = k.compute("mul", result, value)
    return result


def _sample(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["input"]
        spatial = k.shape(source)[2:]
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            total = k.const(0, dtype)
            for corner in _corners(k, n, (i[0], *i[2:]), spatial, dtype):
                pixel = k.convert(k.load(source, (i[0], i[1], *corner.index), corner.inside), dtype)
                total = k.compute("add", total, k.compute("mul", pixel, corner.weight))
            k.store(0, i, total)

    return lowering


def _sample_backward(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source, gradient = k.args["input"], k.args["grad_output"]
        shape = k.shape(source)
        spatial = shape[2:]
        wanted = k.args["output_mask"]
        if not all(wanted):
            raise k.fail("a gradient that is not wanted")
        k.accumulate(0)
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(shape) as i:
            k.store(0, i, k.const(0, dtype))
        with k.nest(k.shape(gradient)) as i:
            g = k.convert(k.load(gradient, i), dtype)
            for corner in _corners(k, n, (i[0], *i[2:]), spatial, dtype):
                k.store(0, (i[0], i[1], *corner.index), k.compute("mul", g, corner.weight), "add", corner.inside)
        grid = k.outputs[1].shape
        with k.nest(grid[:-1]) as i:
            corners = _corners(k, n, i, spatial, dtype)

            def along(r: tuple[Int, ...]) -> list[tuple[str, Value]]:
                g = k.convert(k.load(gradient, (i[0], r[0], *i[1:])), dtype)
                sums: list[Value] = [k.const(0, dtype)] * n
                for corner in corners:
                    pixel = k.convert(k.load(source, (i[0], r[0], *corner.index), corner.inside), dtype)
                    contribution = k.compute("mul", g, pixel)
                    for d in range(n):
                        sums[d] = k.compute("add", sums[d], k.compute("mul", contribution, corner.slopes[d]))
                return [("sum", s) for s in sums]

            for d, total in enumerate(k.reduce((shape[1],), along)):
                assert isinstance(total, Value)
                k.store(1, (*i, ix.wrap(n - 1 - d)), total)

    return lowering


LOWERINGS: Mapping[str, Lowering] = {
    "grid_sampler_2d": _sample(2),
    "grid_sampler_3d": _sample(3),
    "grid_sampler_2d_backward": _sample_backward(2),
    "grid_sampler_3d_backward": _sample_backward(3),
}
