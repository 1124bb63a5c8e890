"""Pooling and resampling prims, forward and backward.

Averages bound the sum over a window. Maxima move data: the value is exact and the index must point, inside the window, at
that value. Resampling interpolates at positions that are themselves rounded, so its bound also counts the slope of the
data times the error of the position.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import BY_DEFINITION, OF_PRODUCTS, OF_SUMS, Accumulated, Property
from vendor_sdk.prims.data_sets import NAN, sparse, with_specials, with_sums
from vendor_sdk.prims.reference import upcast
from vendor_sdk.prims.row import FLOATS, HALVES, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext

aten = torch.ops.aten

Tensor = torch.Tensor
Windows = Callable[[Sample, int, int, int], tuple[int, int]]
"""(sample, spatial dimension, output position, input size) -> first and last input position of the window."""


def _per_dim(argument: Any, dim: int, otherwise: int) -> int:
    """torch's int[n] arguments: one number for all dimensions, one each, or nothing."""
    if isinstance(argument, int):
        return argument
    if not argument:
        return otherwise
    return int(argument[dim if len(argument) > 1 else 0])


def _argument(sample: Sample, place: int, name: str, otherwise: Any) -> Any:
    return sample.kwargs.get(name, sample.args[place] if len(sample.args) > place else otherwise)


def _strided_window(sample: Sample, dim: int, position: int, size: int) -> tuple[int, int]:
    kernel = _per_dim(sample.args[1], dim, 1)
    stride = _per_dim(_argument(sample, 2, "stride", []), dim, kernel)
    padding = _per_dim(_argument(sample, 3, "padding", 0), dim, 0)
    dilation = _per_dim(_argument(sample, 4, "dilation", 1), dim, 1)
    first = position * stride - padding
    return max(first, 0), min(first + dilation * (kernel - 1), size - 1)


def _adaptive_window(sample: Sample, dim: int, position: int, size: int) -> tuple[int, int]:
    outputs = _per_dim(sample.args[1], dim, 1)
    return position * size // outputs, -(-(position + 1) * size // outputs) - 1


def _any_window(sample: Sample, dim: int, position: int, size: int) -> tuple[int, int]:
    """Fractional windows start where the random samples say; the value alone is checked against torch's."""
    return 0, size - 1


def _check_maxima(target: Callable[..., Any], dims: int, windows: Windows) -> Callable[[Any, Sample], str | None]:
    def check(result: Any, sample: Sample) -> str | None:
        found, place = result
        self = sample.args[0]
        expected, _ = target(*sample.args, **sample.kwargs)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"values are {found.dtype} {tuple(found.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
        if place.shape != expected.shape or place.dtype is not torch.int64:
            return f"indices are {place.dtype} {tuple(place.shape)}"
        if found.numel() == 0:
            return None
        # Where fractional windows begin hangs on a rounding: torch's, in the dtype, or that of more digits.
        exact, _ = target(*upcast(sample.args), **upcast(sample.kwargs))
        right = (found == expected) | (found == exact.to(found.dtype)) | (found.isnan() & expected.isnan())
        if not bool(right.all()):
            return "values differ"
        sizes = self.shape[-dims:]
        if bool(((place < 0) | (place >= math.prod(sizes))).any()):
            return "an index is out of range"
        taken = self.reshape(*self.shape[:-dims], -1).gather(-1, place.flatten(-dims)).reshape(place.shape)
        if not bool(((taken == found) | (taken.isnan() & found.isnan())).all()):
            return "an index does not point at its value"
        for dim in range(dims):
            inner = math.prod(sizes[dim + 1 :])
            coordinate = place // inner % sizes[dim]
            ends = torch.tensor([windows(sample, dim, o, sizes[dim]) for o in range(place.shape[dim - dims])])
            shape = [1] * dims
            shape[dim] = -1
            first, last = (ends[:, n].reshape(shape) for n in (0, 1))
            if bool(((coordinate < first) | (coordinate > last)).any()):
                return "an index lies outside its window"
        return None

    return check


def decompose_maxima_backward(dims: int, grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """Every gradient added at the flat position of its maximum, plane by plane."""
    planes, points = math.prod(self.shape[:-dims]), math.prod(self.shape[-dims:])
    start = aten.full.default([planes, points], 0, dtype=grad_output.dtype, device=grad_output.device)
    plane = aten.unsqueeze.default(aten.arange.start_step(0, planes, 1, dtype=torch.int64, device=grad_output.device), 1)
    outputs = [planes, math.prod(grad_output.shape[-dims:])]
    flat = (
        aten.view.default(aten.clone.default(t, memory_format=torch.contiguous_format), outputs) for t in (indices, grad_output)
    )
    place, grad = flat
    result: Tensor = aten.view.default(aten.index_put.default(start, [plane, place], grad, True), list(self.shape))
    return result


def decompose_max_pool2d_backward(
    grad: Tensor, self: Tensor, k: Any, s: Any, p: Any, d: Any, c: bool, indices: Tensor
) -> Tensor:
    return decompose_maxima_backward(2, grad, self, indices)


def decompose_max_pool3d_backward(
    grad: Tensor, self: Tensor, k: Any, s: Any, p: Any, d: Any, c: bool, indices: Tensor
) -> Tensor:
    return decompose_maxima_backward(3, grad, self, indices)


def decompose_adaptive_max_pool2d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    return decompose_maxima_backward(2, grad_output, self, indices)


def decompose_adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    return decompose_maxima_backward(3, grad_output, self, indices)


def decompose_fractional_max_pool2d_backward(grad: Tensor, self: Tensor, k: Any, output_size: Any, indices: Tensor) -> Tensor:
    return decompose_maxima_backward(2, grad, self, indices)


def decompose_fractional_max_pool3d_backward(grad: Tensor, self: Tensor, k: Any, output_size: Any, indices: Tensor) -> Tensor:
    return decompose_maxima_backward(3, grad, self, indices)


def _windows(like: Tensor, size: Any, outputs: Any) -> tuple[Tensor, Tensor]:
    """(outputs, 1) first and end positions of the adaptive windows of one dimension."""
    line = aten.arange.start_step(0, outputs, 1, dtype=torch.int64, device=like.device)
    first = aten.div.Tensor_mode(aten.mul.Tensor(line, size), outputs, rounding_mode="floor")
    top = aten.add.Tensor(aten.mul.Tensor(aten.add.Tensor(line, 1), size), outputs - 1)
    end = aten.div.Tensor_mode(top, outputs, rounding_mode="floor")
    return aten.unsqueeze.default(first, 1), aten.unsqueeze.default(end, 1)


def _in_windows(tensor: Tensor, dim: int, outputs: Any) -> Tensor:
    """Sums over the adaptive windows of one dimension. Only elements of a window are added: a product with weights, zero
    outside, would carry NaN and infinities into every sum."""
    size = tensor.shape[dim]
    first, end = _windows(tensor, size, outputs)
    widest = (size + outputs - 1) // outputs + 1
    steps = aten.arange.start_step(0, widest, 1, dtype=torch.int64, device=tensor.device)
    place = aten.add.Tensor(first, steps)
    inside = aten.lt.Tensor(place, end)
    place = aten.where.self(inside, place, aten.full.default([], 0, dtype=torch.int64, device=tensor.device))
    taken = aten.index.Tensor(tensor, [None] * dim + [place])
    inside = aten.view.default(inside, [outputs, widest, *[1] * (tensor.dim() - dim - 1)])
    kept = aten.where.self(inside, taken, aten.full.default([], 0, dtype=tensor.dtype, device=tensor.device))
    result: Tensor = aten.sum.dim_IntList(kept, [dim + 1])
    return result


def _shared_out(tensor: Tensor, dim: int, size: Any) -> Tensor:
    """One dimension's results divided by the number of elements in each of the windows over ``size`` elements."""
    first, end = _windows(tensor, size, tensor.shape[dim])
    count = aten._to_copy.default(aten.sub.Tensor(end, first), dtype=tensor.dtype)
    shape = [tensor.shape[dim], *[1] * (tensor.dim() - dim - 1)]
    result: Tensor = aten.div.Tensor(tensor, aten.view.default(count, shape))
    return result


def decompose_adaptive_avg_pool(self: Tensor, output_size: Sequence[Any]) -> Tensor:
    wide = self if self.dtype in (torch.float32, torch.float64) else aten._to_copy.default(self, dtype=torch.float32)
    dims = len(output_size)
    for n, outputs in enumerate(output_size):
        dim = self.dim() - dims + n
        wide = _shared_out(_in_windows(wide, dim, outputs), dim, self.shape[dim])
    result: Tensor = wide if wide.dtype == self.dtype else aten._to_copy.default(wide, dtype=self.dtype)
    return result


def _adaptive_avg_pool_backward(dims: int, grad_output: Tensor, self: Tensor) -> Tensor:
    """The windows that hold an element follow each other, and are the adaptive windows of as many outputs as elements."""
    halves = grad_output.dtype not in (torch.float32, torch.float64)
    wide = aten._to_copy.default(grad_output, dtype=torch.float32) if halves else grad_output
    for dim in range(self.dim() - dims, self.dim()):
        wide = _in_windows(_shared_out(wide, dim, self.shape[dim]), dim, self.shape[dim])
    result: Tensor = aten._to_copy.default(wide, dtype=grad_output.dtype) if halves else wide
    return result


def decompose_adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    return _adaptive_avg_pool_backward(2, grad_output, self)


def decompose_adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    return _adaptive_avg_pool_backward(3, grad_output, self)


def _plane(ctx: SampleContext, dims: int, *shape: int) -> Tensor:
    """Values for ``dims`` spatial dimensions from a 3-d description: the first is dropped for 2-d."""
    return draw.values(ctx, *shape[: len(shape) - 3], *shape[len(shape) - dims :])


def _avg_cases(ctx: SampleContext, dims: int) -> Iterator[tuple[Tensor, tuple[Any, ...], str]]:
    """(input, (kernel, stride, padding, ceil_mode, count_include_pad, divisor_override), label)."""
    last = slice(3 - dims, None)
    yield _plane(ctx, dims, 2, 3, 5, 11, 13), ([2, 3, 3][last], [1, 2, 2][last], [0, 1, 1][last], False, True, None), "padded"
    yield (
        _plane(ctx, dims, 1, 2, 6, 9, 7),
        ([2, 2, 3][last], [2, 2, 2][last], [0, 0, 1][last], True, False, None),
        "ceil, no pad",
    )
    yield _plane(ctx, dims, 3, 4, 5, 67), ([2, 2, 5][last], [2, 2, 5][last], [0] * dims, False, True, 7), "divisor, unbatched"
    yield _plane(ctx, dims, 2, 1, 4, 4, 4), ([2] * dims, [], [0] * dims, False, True, None), "default stride"
    yield (
        _plane(ctx, dims, 1, 3, 3, 4, 5).transpose(-1, -2),
        ([1] * dims, [1] * dims, [0] * dims, False, True, None),
        "transposed",
    )
    yield _plane(ctx, dims, 1, 1, 3, 3, 3), ([3] * dims, [3] * dims, [1] * dims, True, True, None), "window larger than rest"


def _avg(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, rest, label in _avg_cases(ctx, dims):
            yield Sample((self, *rest), label=label)

    return sampler


def _avg_backward(dims: int, target: Any) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, rest, label in _avg_cases(ctx, dims):
            grad = draw.values(ctx, *target(self.to("meta"), *rest).shape)
            yield Sample((grad, self, *rest), label=label)

    return sampler


def _max_cases(ctx: SampleContext, dims: int) -> Iterator[tuple[Tensor, tuple[Any, ...], str]]:
    """(input, (kernel, stride, padding, dilation, ceil_mode), label)."""
    last = slice(3 - dims, None)
    kernel, one, none = [2, 3, 3][last], [1] * dims, [0] * dims
    yield _plane(ctx, dims, 2, 3, 5, 11, 13), (kernel, [1, 2, 2][last], [1, 1, 1][last], one, False), "padded"
    yield _plane(ctx, dims, 1, 2, 7, 9, 12), ([2] * dims, [2, 1, 3][last], none, [1, 2, 3][last], True), "dilated, ceil"
    ties = _plane(ctx, dims, 3, 4, 6, 67).clamp(min=0)
    yield ties, (kernel, kernel, none, one, False), "ties, unbatched"
    yield _plane(ctx, dims, 2, 1, 4, 4, 4), ([2] * dims, [], none, one, False), "default stride"
    yield _plane(ctx, dims, 1, 3, 3, 4, 5).transpose(-1, -2), (one, one, none, one, False), "transposed"
    yield torch.full_like(_plane(ctx, dims, 1, 1, 3, 3, 3), -math.inf), (kernel, one, none, one, False), "infinities"


def _max(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, rest, label in _max_cases(ctx, dims):
            yield Sample((self, *rest), label=label, special=label == "infinities")

    return sampler


def _max_backward(dims: int, target: Any) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, rest, label in _max_cases(ctx, dims):
            found, place = target(self, *rest)
            yield Sample((draw.values(ctx, *found.shape), self, *rest, place), label=label)

    return sampler


def _adaptive_cases(ctx: SampleContext, dims: int) -> Iterator[tuple[Tensor, list[int], str]]:
    last = slice(3 - dims, None)
    yield _plane(ctx, dims, 2, 3, 5, 11, 13), [2, 4, 5][last], "overlapping windows"
    yield _plane(ctx, dims, 1, 2, 6, 9, 7), [1] * dims, "global"
    yield _plane(ctx, dims, 3, 4, 5, 67), [2, 5, 31][last], "unbatched"
    yield _plane(ctx, dims, 1, 2, 2, 3, 4), [3, 5, 9][last], "more outputs than inputs"
    yield _plane(ctx, dims, 1, 3, 3, 4, 5).transpose(-1, -2), [2] * dims, "transposed"


def _adaptive(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, sizes, label in _adaptive_cases(ctx, dims):
            yield Sample((self, sizes), label=label)

    return sampler


def _adaptive_avg_backward(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, sizes, label in _adaptive_cases(ctx, dims):
            yield Sample((draw.values(ctx, *self.shape[: self.dim() - dims], *sizes), self), label=label)

    return sampler


def _adaptive_max_backward(dims: int, target: Any) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, sizes, label in _adaptive_cases(ctx, dims):
            found, place = target(self, sizes)
            yield Sample((draw.values(ctx, *found.shape), self, place), label=label)

    return sampler


def _fractional_cases(ctx: SampleContext, dims: int) -> Iterator[tuple[Tensor, list[int], list[int], Tensor, str]]:
    last = slice(3 - dims, None)
    for shape, kernel, outputs, label in (
        ((2, 3, 6, 11, 13), [2, 2, 3], [3, 5, 4], "batched"),
        ((3, 5, 9, 67), [2, 3, 2], [2, 4, 31], "unbatched"),
        ((1, 1, 4, 5, 6), [1, 1, 1], [3, 4, 5], "windows of one"),
        ((1, 2, 4, 5, 6), [2, 2, 2], [1, 1, 1], "one output"),
    ):
        self = _plane(ctx, dims, *shape)
        batch, channels = (self.shape[0], self.shape[1]) if self.dim() == dims + 2 else (1, self.shape[0])
        samples = torch.rand(batch, channels, dims, generator=ctx.generator).to(ctx.dtype)
        yield self, kernel[last], outputs[last], samples.clamp(max=0.99), label


def _fractional(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, kernel, outputs, samples, label in _fractional_cases(ctx, dims):
            yield Sample((self, kernel, outputs, samples), label=label)

    return sampler


def _fractional_backward(dims: int, target: Any) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for self, kernel, outputs, samples, label in _fractional_cases(ctx, dims):
            found, place = target(self, kernel, outputs, samples)
            yield Sample((draw.values(ctx, *found.shape), self, kernel, outputs, place), label=label)

    return sampler


BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _grid(ctx: SampleContext, sizes: Sequence[int], counts: Sequence[int], aligned: bool, mode: int) -> Tensor:
    """Sampling positions inside and outside the image, none where the interpolation has a corner.

    Linear interpolation has its corners at pixel centres, the nearest one halfway between; a rounded position must not step
    over one, or result (nearest) and gradient (linear) would be those of another pixel.
    """
    coordinates = []
    for size in reversed(sizes):
        cell = torch.randint(-1, size, tuple(counts), generator=ctx.generator)
        part = 0.25 + 0.5 * torch.rand(tuple(counts), generator=ctx.generator, dtype=torch.float64)
        pixel = cell + (part - 0.5 if mode == NEAREST else part)
        unit = 2 * pixel / max(size - 1, 1) - 1 if aligned else (2 * pixel + 1) / size - 1
        coordinates.append(unit)
    return torch.stack(coordinates, dim=-1).unsqueeze(0).repeat(2, *[1] * (len(sizes) + 1)).to(ctx.dtype)


def _grid_cases(ctx: SampleContext, dims: int) -> Iterator[tuple[Tensor, Tensor, int, int, bool, str]]:
    sizes, counts = [4, 5, 7][3 - dims :], [2, 3, 11][3 - dims :]
    image = draw.values(ctx, 2, 3, *sizes)
    cases = [(BILINEAR, ZEROS, False), (NEAREST, BORDER, True), (BILINEAR, REFLECTION, True), (NEAREST, ZEROS, False)]
    cases += [(BILINEAR, BORDER, False), (NEAREST, REFLECTION, False)]
    if dims == 2:
        cases.insert(1, (BICUBIC, ZEROS, True))
        cases.append((BICUBIC, BORDER, False))
    for mode, padding, aligned in cases:
        yield image, _grid(ctx, sizes, counts, aligned, mode), mode, padding, aligned, f"mode {mode}, padding {padding}"


def _grid_sampler(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for *args, label in _grid_cases(ctx, dims):
            yield Sample(tuple(args), label=str(label))

    return sampler


def _grid_sampler_backward(dims: int) -> Callable[[SampleContext], Iterator[Sample]]:
    @draw.by_effort
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        for image, grid, mode, padding, aligned, label in _grid_cases(ctx, dims):
            grad = draw.values(ctx, *image.shape[:2], *grid.shape[1:-1])
            yield Sample((grad, image, grid, mode, padding, aligned, [True, True]), label=label)

    return sampler


_SLOPES = {BILINEAR: 1.0, NEAREST: 0.0, BICUBIC: 2.0}
"""By how much the weight of a pixel changes at most for each pixel that the position moves in one dimension."""
_BENDS = {BILINEAR: 1.0, NEAREST: 0.0, BICUBIC: 6.0}
"""And by how much that slope changes."""


def _bright_pixels(image: Tensor) -> Tensor:
    """(pixels, ...) float64: images of the size of ``image``, each with one pixel that is one. Dense, since the row's samples
    are small."""
    pixels = math.prod(image.shape[2:])
    return torch.eye(pixels, dtype=torch.float64).reshape(pixels, *image.shape[2:])


def _grid_weights(image: Tensor, grid: Tensor, *rest: Any) -> Tensor:
    """(n, pixels, positions) weights in float64."""
    bright = _bright_pixels(image)
    read = aten.grid_sampler_2d.default if image.dim() == 4 else aten.grid_sampler_3d.default
    result: Tensor = read(bright.expand(image.shape[0], *bright.shape), grid, *rest).flatten(2)
    return result


def _reach(image: Tensor) -> float:
    """A rounded position is off by up to 3 u times the image's size, in pixels; the rows' bounds multiply by 16 or more."""
    return max(image.shape[2:]) / 4


def _finite(values: Tensor) -> Tensor:
    """Absolute values, without those that are not finite: they must be in their places, and allow no error elsewhere."""
    return values.abs().nan_to_num(0.0, 0.0)


def _grid_magnitude(image: Tensor, grid: Tensor, mode: int, *rest: Any) -> Tensor:
    weights = _grid_weights(image, grid, mode, *rest)
    moved = (image.dim() - 2) * _SLOPES[mode] * _reach(image)
    total = _finite(image).flatten(2) @ (weights.abs() + moved * (weights != 0))
    return total.reshape(*image.shape[:2], *grid.shape[1:-1])


def _grid_backward_magnitude(grad: Tensor, image: Tensor, grid: Tensor, mode: int, *rest: Any) -> tuple[Tensor, Tensor]:
    weights, slopes = _grid_weights(image, grid, mode, *rest[:2]), _grid_slopes(image, grid, mode, *rest[:2])
    near, dims, reach = weights != 0, image.dim() - 2, _reach(image)
    image, grad = _finite(image), _finite(grad).flatten(2)
    by_pixel = grad @ (weights.abs() + dims * _SLOPES[mode] * reach * near).mT
    turned = dims * _BENDS[mode] * reach * max(image.shape[2:]) / 2
    steep = slopes.abs() + turned * near.unsqueeze(-1)
    by_position = torch.einsum("ncq,ncp,npqd->nqd", grad, image.flatten(2), steep)
    return by_pixel.reshape(image.shape), by_position.reshape(grid.shape)


def _grid_slopes(image: Tensor, grid: Tensor, *rest: Any) -> Tensor:
    """(n, pixels, positions, dims) derivatives of ``_grid_weights`` by grid."""
    dims, pixels = image.dim() - 2, math.prod(image.shape[2:])
    backward = aten.grid_sampler_2d_backward.default if dims == 2 else aten.grid_sampler_3d_backward.default
    bright = _bright_pixels(image).unsqueeze(1)
    one = torch.ones(pixels, 1, *grid.shape[1:-1], dtype=torch.float64)
    each = [
        backward(one, bright, positions.expand(pixels, *positions.shape), *rest, [False, True])[1].flatten(1, -2)
        for positions in grid
    ]
    return torch.stack(each)


def _grid_backward_terms(grad: Tensor, image: Tensor, grid: Tensor, *rest: Any) -> int:
    """Positions that one pixel is read at, or channels times the pixels that one position reads."""
    read = _grid_weights(image, grid, *rest[:3]) != 0
    return max(8, int(read.sum(2).max()), image.shape[1] * int(read.sum(1).max()))


def _antialias_cases(ctx: SampleContext) -> Iterator[tuple[list[int], list[int], bool, float | None, float | None, str]]:
    yield [2, 3, 11, 67], [5, 31], False, None, None, "smaller"
    yield [1, 2, 5, 7], [9, 13], True, None, None, "larger, aligned"
    yield [1, 1, 8, 8], [3, 20], False, None, None, "smaller and larger"
    yield [2, 1, 6, 9], [6, 9], False, None, None, "same size"
    yield [1, 2, 10, 10], [5, 5], False, 0.5, 0.5, "scales given"
    yield [1, 1, 4, 4], [1, 1], False, None, None, "one output"


@draw.by_effort
def _antialias(ctx: SampleContext) -> Iterator[Sample]:
    for shape, sizes, aligned, vertical, horizontal, label in _antialias_cases(ctx):
        yield Sample((draw.values(ctx, *shape), sizes, aligned, vertical, horizontal), label=label)


@draw.by_effort
def _antialias_backward(ctx: SampleContext) -> Iterator[Sample]:
    for shape, sizes, aligned, vertical, horizontal, label in _antialias_cases(ctx):
        yield Sample((draw.values(ctx, *shape[:2], *sizes), sizes, shape, aligned, vertical, horizontal), label=label)


def _triangles(size: int, outputs: int, aligned: bool, factor: float | None) -> tuple[Tensor, Tensor]:
    """(outputs, size) weights of antialiased linear resampling along one dimension, and what rounding may add to them, in units
    of the roundoff: a window's centre is off by u times the size, and each weight by that times the triangle's slope."""
    if aligned:
        step = (size - 1) / (outputs - 1) if outputs > 1 else 0.0
    else:
        step = 1 / factor if factor else size / outputs
    width = max(step, 1.0)
    centres = step * (torch.arange(outputs, dtype=torch.float64) + 0.5)
    distance = (torch.arange(size, dtype=torch.float64) + 0.5 - centres.unsqueeze(1)).abs() / width
    weights = (1 - distance).clamp(min=0)
    total = weights.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    # One pixel more on both sides: rounding decides whether the window's last pixel, of weight about zero, belongs to it.
    return weights / total, (distance <= 1 + 1 / width).double() * size / (width * total)


def _antialias_weights(
    shape: Sequence[int], sizes: Sequence[int], aligned: bool, factors: Sequence[float | None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of vertical and horizontal weights whose products add up to a pixel's weight and its error."""
    (down, down_error), (across, across_error) = (
        _triangles(size, outputs, aligned, factor) for size, outputs, factor in zip(shape[-2:], sizes, factors, strict=True)
    )
    yield down, across
    yield down_error, across
    yield down, across_error


def _antialias_magnitude(image: Tensor, sizes: Sequence[int], aligned: bool, *factors: float | None) -> Tensor:
    pairs = _antialias_weights(image.shape, sizes, aligned, factors)
    return torch.stack([down @ image.abs() @ across.mT for down, across in pairs]).sum(0)


def _antialias_backward_magnitude(
    grad: Tensor, sizes: Sequence[int], shape: Sequence[int], aligned: bool, *factors: float | None
) -> Tensor:
    pairs = _antialias_weights(shape, sizes, aligned, factors)
    return torch.stack([down.mT @ grad.abs() @ across for down, across in pairs]).sum(0)


def _antialias_backward_terms(grad: Tensor, sizes: Sequence[int], shape: Sequence[int], *rest: Any) -> int:
    """Windows that a pixel lies in: two times outputs / inputs a dimension where the image grows, two or three where not."""
    return math.prod(2 * math.ceil(max(o / i, 1.0)) + 1 for o, i in zip(sizes, shape[-2:], strict=True))


def _window_terms(place: int) -> Callable[..., int]:
    def terms(*args: Any, **kwargs: Any) -> int:
        return math.prod(int(size) for size in args[place]) + 1

    return terms


def _overlapping_terms(dims: int) -> Callable[..., int]:
    """Windows that an input element lies in, of the backward prims whose arguments begin as those of max_pool2d's: as many as
    strides go into the window, or into its dilated positions that lie a multiple of the stride apart."""

    def terms(grad: Tensor, self: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any = 1, *rest: Any) -> int:
        counts = []
        for dim in range(dims):
            size = _per_dim(kernel, dim, 1)
            step = _per_dim(stride, dim, size)
            apart = 1 if isinstance(dilation, bool) else _per_dim(dilation, dim, 1)
            counts.append(-(-size // (step // math.gcd(step, apart))))
        return math.prod(counts)

    return terms


def _adaptive_terms(dims: int) -> Callable[..., int]:
    def terms(self: Tensor, sizes: Sequence[int]) -> int:
        return math.prod(-(-n // o) + 1 for n, o in zip(self.shape[-dims:], sizes, strict=True)) + 1

    return terms


def _adaptive_backward_terms(dims: int) -> Callable[..., int]:
    """Windows that an input element lies in: at most ceil(outputs / inputs) + 1 a dimension."""

    def terms(grad: Tensor, self: Tensor, *rest: Any) -> int:
        return math.prod(-(-o // n) + 1 for n, o in zip(self.shape[-dims:], grad.shape[-dims:], strict=True)) + 1

    return terms


def _first_absolute(target: Callable[..., Any]) -> Callable[..., Any]:
    """The operation, linear in its first argument with non-negative weights, on absolute values."""

    def magnitude(first: Tensor, *rest: Any, **kwargs: Any) -> Any:
        return target(first.abs(), *rest, **kwargs)

    return magnitude


_FIRST = (0,)
"""Positions of the operands that get special values: of a gradient the others were saved, or say no more than a shape, and
coordinates that are not finite name no pixel."""


def _average(
    target: Any,
    summary: str,
    samples: Any,
    terms: Callable[..., int],
    decomposition: Any = None,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    own_dtype: tuple[torch.dtype, ...] = HALVES,
) -> Prim:
    return Prim(
        name=target._schema.name.removeprefix("aten::"),
        target=target,
        family=Family.POOLING,
        summary=summary,
        dtypes=dtypes,
        result=Result.SAME,
        shape=Shape.OPERATOR,
        bound=Accumulated(terms=terms, magnitude=_first_absolute(target), constant=2.0, own_dtype=own_dtype),
        samples=with_specials(with_sums(samples, terms, {0: -1}), sparse, _FIRST),
        decomposition=decomposition,
        source=OF_SUMS + ", a term an element of the window, or a window of the element; a rounded weight doubles the unit",
    )


def _maximum(
    target: Any, summary: str, samples: Any, dims: int, windows: Windows, dtypes: tuple[torch.dtype, ...] = FLOATS
) -> Prim:
    return Prim(
        name=target._schema.name.removeprefix("aten::"),
        target=target,
        family=Family.POOLING,
        summary=summary,
        dtypes=dtypes,
        result=Result.OPERATOR,
        shape=Shape.OPERATOR,
        bound=Property(_check_maxima(target, dims, windows)),
        samples=with_specials(samples, sparse, _FIRST),
        source=BY_DEFINITION + "; which of several equal elements an index names is free",
    )


_gradient = functools.partial(Prim, family=Family.POOLING, dtypes=FLOATS, result=Result.SAME, shape=Shape.OPERATOR)

_SINGLE_AND_DOUBLE = (torch.float32, torch.float64)


_CANDIDATES: tuple[Prim, ...] = (
    *(
        row
        for dims, forward, backward, dtypes in (
            (2, aten.avg_pool2d.default, aten.avg_pool2d_backward.default, FLOATS),
            # Torch has no CPU kernel for halves in three dimensions.
            (3, aten.avg_pool3d.default, aten.avg_pool3d_backward.default, _SINGLE_AND_DOUBLE),
        )
        for row in (
            _average(
                forward,
                f"mean (or sum / divisor_override) over {dims}-d windows, padding counted where count_include_pad",
                _avg(dims),
                _window_terms(1),
                dtypes=dtypes,
                own_dtype=(),
            ),
            _average(
                backward,
                f"gradient of {dims}-d average pooling",
                _avg_backward(dims, forward),
                _overlapping_terms(dims),
                dtypes=dtypes,
            ),
        )
    ),
    *(
        row
        for dims, forward, backward, decomposition in (
            (
                2,
                aten.max_pool2d_with_indices.default,
                aten.max_pool2d_with_indices_backward.default,
                decompose_max_pool2d_backward,
            ),
            (
                3,
                aten.max_pool3d_with_indices.default,
                aten.max_pool3d_with_indices_backward.default,
                decompose_max_pool3d_backward,
            ),
        )
        for row in (
            _maximum(
                forward,
                f"maximum over {dims}-d windows and its flat position in the plane; NaN wins",
                _max(dims),
                dims,
                _strided_window,
            ),
            _average(
                backward,
                f"gradient of {dims}-d max pooling: added at the maxima",
                _max_backward(dims, forward),
                _overlapping_terms(dims),
                decomposition,
            ),
        )
    ),
    *(
        row
        for dims, forward, backward, decomposition in (
            (
                2,
                aten._adaptive_avg_pool2d.default,
                aten._adaptive_avg_pool2d_backward.default,
                decompose_adaptive_avg_pool2d_backward,
            ),
            (
                3,
                aten._adaptive_avg_pool3d.default,
                aten._adaptive_avg_pool3d_backward.default,
                decompose_adaptive_avg_pool3d_backward,
            ),
        )
        for row in (
            _average(
                forward,
                f"{dims}-d mean over windows floor(o * size / outputs) to ceil((o + 1) * size / outputs)",
                _adaptive(dims),
                _adaptive_terms(dims),
                decompose_adaptive_avg_pool,
                own_dtype=() if dims == 2 else HALVES,
            ),
            _average(
                backward,
                f"gradient of {dims}-d adaptive average pooling",
                _adaptive_avg_backward(dims),
                _adaptive_backward_terms(dims),
                decomposition,
            ),
        )
    ),
    *(
        row
        for dims, forward, backward, decomposition in (
            (
                2,
                aten.adaptive_max_pool2d.default,
                aten.adaptive_max_pool2d_backward.default,
                decompose_adaptive_max_pool2d_backward,
            ),
            (
                3,
                aten.adaptive_max_pool3d.default,
                aten.adaptive_max_pool3d_backward.default,
                decompose_adaptive_max_pool3d_backward,
            ),
        )
        for row in (
            _maximum(
                forward,
                f"maximum over the windows of {dims}-d adaptive pooling and its flat position in the plane",
                _adaptive(dims),
                dims,
                _adaptive_window,
            ),
            _average(
                backward,
                f"gradient of {dims}-d adaptive max pooling: added at the maxima",
                _adaptive_max_backward(dims, forward),
                _adaptive_backward_terms(dims),
                decomposition,
            ),
        )
    ),
    *(
        row
        for dims, forward, backward, decomposition in (
            (
                2,
                aten.fractional_max_pool2d.default,
                aten.fractional_max_pool2d_backward.default,
                decompose_fractional_max_pool2d_backward,
            ),
            (
                3,
                aten.fractional_max_pool3d.default,
                aten.fractional_max_pool3d_backward.default,
                decompose_fractional_max_pool3d_backward,
            ),
        )
        for row in (
            _maximum(
                forward,
                f"maximum over {dims}-d windows at positions drawn by random_samples, and its flat position in the plane",
                _fractional(dims),
                dims,
                _any_window,
            ),
            _average(
                backward,
                f"gradient of {dims}-d fractional max pooling: added at the maxima",
                _fractional_backward(dims, forward),
                _window_terms(2),
                decomposition,
            ),
        )
    ),
    *(
        row
        for dims, forward, backward in (
            (2, aten.grid_sampler_2d.default, aten.grid_sampler_2d_backward.default),
            (3, aten.grid_sampler_3d.default, aten.grid_sampler_3d_backward.default),
        )
        for row in (
            _gradient(
                name=f"grid_sampler_{dims}d",
                target=forward,
                # In halves a position between -1 and 1 names a pixel of a small image only; torch's results are noise there.
                dtypes=_SINGLE_AND_DOUBLE,
                summary="input read at the positions of grid (in -1..1), interpolated: 0 linear, 1 nearest, 2 bicubic",
                bound=Accumulated(terms=lambda *args: 16, magnitude=_grid_magnitude, constant=2.0),
                source=OF_PRODUCTS + "; a position that is off by a unit of the image's size moves its weights by their slope",
                samples=with_specials(_grid_sampler(dims), sparse, _FIRST),
            ),
            _gradient(
                name=f"grid_sampler_{dims}d_backward",
                target=backward,
                dtypes=_SINGLE_AND_DOUBLE,
                summary=f"gradients of grid_sampler_{dims}d with respect to input and grid",
                result=Result.OPERATOR,
                bound=Accumulated(terms=_grid_backward_terms, magnitude=_grid_backward_magnitude, constant=2.0),
                source=OF_PRODUCTS + "; a position that is off by a unit of the image's size moves weights and slopes",
                samples=with_specials(_grid_sampler_backward(dims), NAN, _FIRST),
            ),
        )
    ),
    # No special values: the filter has weights of zero at its ends, and whether those are read is left open.
    _gradient(
        name="_upsample_bilinear2d_aa",
        target=aten._upsample_bilinear2d_aa.default,
        dtypes=_SINGLE_AND_DOUBLE,
        summary="linear resampling whose triangle filter widens when shrinking (antialiasing)",
        bound=Accumulated(terms=lambda *args: 16, magnitude=_antialias_magnitude, constant=2.0),
        source=OF_PRODUCTS + "; a window's centre that is off by a unit of the image's size moves its weights by their slope",
        samples=_antialias,
    ),
    _gradient(
        name="_upsample_bilinear2d_aa_backward",
        target=aten._upsample_bilinear2d_aa_backward.default,
        dtypes=_SINGLE_AND_DOUBLE,
        summary="gradient of _upsample_bilinear2d_aa",
        bound=Accumulated(terms=_antialias_backward_terms, magnitude=_antialias_backward_magnitude, constant=2.0),
        source=OF_PRODUCTS + "; a window's centre that is off by a unit of the image's size moves its weights by their slope",
        samples=_antialias_backward,
    ),
)

_DERIVED_NAMES = frozenset(
    (
        "_adaptive_avg_pool3d",
        "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward",
        "fractional_max_pool2d_backward",
        "fractional_max_pool3d_backward",
    )
)
"""Rare, and exactly other prims: described like prims, but never in a graph after decomposition."""

ROWS = tuple(row for row in _CANDIDATES if row.name not in _DERIVED_NAMES)
DERIVED = tuple(row for row in _CANDIDATES if row.name in _DERIVED_NAMES)
