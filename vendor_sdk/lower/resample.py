"""Sampling images at the points of a grid, two- and three-dimensional: bilinear, nearest and, in two dimensions,
bicubic (Keys, IEEE Trans. ASSP 29(6), 1981, with a = -3/4)."""

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

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _extent(k: Builder, size: Int, dtype: torch.dtype) -> Value:
    return k.const(size.value, dtype) if size.value is not None else k.convert(k.index(size), dtype)


def _coordinate(k: Builder, x: Value, size: Int) -> tuple[Value, Value]:
    """A grid coordinate in [-1, 1] as a position in pixels, and the derivative of the latter by the former."""
    extent = _extent(k, size, x.dtype)
    one, half = like(k, x, 1), like(k, x, 0.5)
    last = k.compute("sub", extent, one)
    shifted = k.compute("add", x, one)
    if k.args["align_corners"]:
        position = k.compute("mul", k.compute("mul", shifted, half), last)
        slope = k.compute("mul", last, half)
    else:
        position = k.compute("mul", k.compute("sub", k.compute("mul", shifted, extent), one), half)
        slope = k.compute("mul", extent, half)
    return position, slope


def _padded(k: Builder, position: Value, slope: Value, size: Int) -> tuple[Value, Value]:
    """A position outside the image moved inside, as the padding mode says, and the slope after that."""
    extent = _extent(k, size, position.dtype)
    last = k.compute("sub", extent, like(k, position, 1))
    padding = k.args["padding_mode"]
    if padding == REFLECTION:
        position, slope = _reflected(k, position, slope, last, extent)
    if padding in (BORDER, REFLECTION):
        zero = like(k, position, 0)
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


Tap = tuple[Int, Value, Value, Value]
"""Along one dimension: a pixel, whether it is in the image, its weight, and the weight's derivative by the coordinate."""


def _tap(k: Builder, place: Value, size: Int, weight: Value, by: Value) -> Tap:
    zero, last = like(k, place, 0), k.compute("sub", _extent(k, size, place.dtype), like(k, place, 1))
    inside = k.compute("bitand", k.compute("ge", place, zero), k.compute("le", place, last))
    # Far outside, and NaN: any pixel of the image will do, since none is read. The last one's number may have been rounded up.
    near = k.convert(k.compute("fmax", k.compute("fmin", place, last), zero), torch.int64)
    return k.as_index(k.compute("min", near, k.index(size - 1)), 0, size), inside, weight, by


def _linear_taps(k: Builder, position: Value, slope: Value, size: Int) -> list[Tap]:
    position, slope = _padded(k, position, slope, size)
    nearest = k.args["interpolation_mode"] == NEAREST
    whole = k.compute("round" if nearest else "floor", position)
    one = like(k, position, 1)
    if nearest:
        return [_tap(k, whole, size, one, like(k, position, 0))]
    fraction = k.compute("sub", position, whole)
    return [
        _tap(k, whole, size, k.compute("sub", one, fraction), k.compute("neg", slope)),
        _tap(k, k.compute("add", whole, one), size, fraction, slope),
    ]


def _cubic_taps(k: Builder, position: Value, slope: Value, size: Int) -> list[Tap]:
    """Four pixels around the position; each is padded by itself, so the slope is that of the weights alone."""
    whole = k.compute("floor", position)
    fraction = k.compute("sub", position, whole)
    taps = []
    for offset in (-1, 0, 1, 2):
        place = k.compute("add", whole, like(k, whole, offset))
        away = k.compute("sub", fraction, like(k, fraction, offset))
        distance = away if offset < 1 else k.compute("neg", away)
        weight, by = (_polynomial(k, distance, c) for c in (_NEAR if offset in (0, 1) else _FAR))
        by = k.compute("mul", by if offset < 1 else k.compute("neg", by), slope)
        pixel, _ = _padded(k, place, slope, size)
        taps.append(_tap(k, pixel, size, weight, by))
    return taps


_NEAR = ((1.25, -2.25, 0.0, 1.0), (3.75, -4.5, 0.0))
"""Weight of a pixel less than one away, as a polynomial of the distance from the highest power down, and its derivative."""
_FAR = ((-0.75, 3.75, -6.0, 3.0), (-2.25, 7.5, -6.0))
"""The same for a pixel one to two away."""


def _polynomial(k: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    result = like(k, x, coefficients[0])
    for c in coefficients[1:]:
        result = k.compute("add", k.compute("mul", result, x), like(k, x, c))
    return result


def _corners(k: Builder, n: int, at: Sequence[Int], spatial: Sequence[Int], dtype: torch.dtype) -> list[Corner]:
    places: list[list[Tap]] = []
    for d in range(n):
        # The grid's last dimension starts with the innermost coordinate.
        x = k.convert(k.load(k.args["grid"], (*at, ix.wrap(n - 1 - d))), dtype)
        taps = _cubic_taps if k.args["interpolation_mode"] == BICUBIC else _linear_taps
        places.append(taps(k, *_coordinate(k, x, spatial[d]), spatial[d]))
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
