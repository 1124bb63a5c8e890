"""Rules of pooling prims, by one constant table: which positions of a plane each window reads.

ONNX's own pooling differs from torch's in the last window under ``ceil_mode``, in NaN, and in the meaning of indices; the table
is exact. Where they agree ONNX's takes less time. Sizes of planes must be known; batch and channels may be dynamic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Outline, Rule, Untranslatable, Value, read, static
from reference_backends.onnxruntime.reduction import extreme, position, wide

FLOAT = torch.float32
Array = np.ndarray[Any, Any]
Spans = Sequence[Sequence[Sequence[int]]]
"""For each dimension and each place of the result along it, the positions that its window reads; -1 is padding."""


@dataclass(frozen=True)
class _Windows:
    """The windows over a plane.

    Attributes:
        positions: flat positions in the plane, (windows, longest window); what is missing repeats a position of the window.
        valid: which of them count, same shape.
        plane: sizes of the plane.
        places: sizes of the result.
    """

    positions: Array
    valid: Array
    plane: tuple[int, ...]
    places: tuple[int, ...]


def _windows(plane: tuple[int, ...], spans: Spans) -> _Windows:
    places = tuple(len(each) for each in spans)
    lists: list[list[int]] = []
    for window in itertools.product(*spans):
        found = []
        for corner in itertools.product(*window):
            if min(corner) >= 0:
                found.append(int(np.ravel_multi_index(corner, plane)))
        lists.append(found)
    longest = max(map(len, lists), default=0)
    if any(not each for each in lists) or longest == 0:
        raise Untranslatable("pooling with a window that reads nothing has no translation")
    if len(lists) * longest > _MOST_READS:
        raise Untranslatable(f"pooling with {len(lists) * longest} reads a plane would need too large a table")
    positions = np.array([each + [each[0]] * (longest - len(each)) for each in lists], dtype=np.int64)
    valid = np.array([[True] * len(each) + [False] * (longest - len(each)) for each in lists])
    return _Windows(positions, valid, plane, places)


_MOST_READS = 1 << 22
"""Entries of the largest table: 32 MiB of constants in the model."""


def _sliding(
    plane: Sequence[int],
    places: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Spans:
    return [
        [
            [
                at if 0 <= (at := place * stride[d] - padding[d] + tap * dilation[d]) < plane[d] else -1
                for tap in range(kernel[d])
            ]
            for place in range(places[d])
        ]
        for d in range(len(plane))
    ]


def _adaptive(plane: Sequence[int], places: Sequence[int]) -> Spans:
    """Place o of n reads floor(o * size / n) to ceil((o + 1) * size / n)."""
    return [
        [list(range(place * size // count, -(-(place + 1) * size // count))) for place in range(count)]
        for size, count in zip(plane, places, strict=True)
    ]


def _taps(b: Builder, x: Operand, windows: _Windows) -> Value:
    """What each window reads: (batch and channels..., windows, longest window)."""
    plane = len(windows.plane)
    flat = _planes(b, x, plane)
    return b.op("Gather", flat, b.constant(windows.positions), axis=x.rank - plane)


def _planes(b: Builder, x: Operand, plane: int) -> Value:
    """``x`` with its last ``plane`` dimensions as one."""
    leading = [b.size(x, dim) for dim in range(x.rank - plane)]
    return b.op("Reshape", x, b.sizes([*leading, math.prod(x.shape[x.rank - plane :])]), allowzero=1)


def _unflattened(b: Builder, value: Value, like: Operand, windows: Sequence[int]) -> Value:
    leading = [b.size(like, dim) for dim in range(like.rank - len(windows))]
    return b.op("Reshape", value, b.sizes([*leading, *windows]), allowzero=1)


def _sizes(values: Sequence[int] | int, dims: int) -> list[int]:
    numbers = [values] if isinstance(values, int) else list(values)
    return numbers * dims if len(numbers) == 1 else numbers


# Averages

Shares = tuple[_Windows, Array]
"""Windows and by what each is divided."""


def _average_windows(dims: int) -> Callable[..., Shares]:
    def make(
        x: Operand,
        places: Sequence[Any],
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Shares:
        plane = static(x.shape[x.rank - dims :], "pooling")
        count = static(places, "pooling")
        kernel, pad = _sizes(kernel_size, dims), _sizes(padding, dims)
        step = _sizes(stride, dims) if stride else kernel
        windows = _windows(plane, _sliding(plane, count, kernel, step, pad, [1] * dims))
        if divisor_override is not None:
            return windows, np.full(math.prod(count), divisor_override)
        if not count_include_pad:
            return windows, windows.valid.sum(1)
        # Padding counts, but not what ceil_mode lets a window reach beyond it.
        reach = [
            [
                min(place * step[d] - pad[d] + kernel[d], plane[d] + pad[d]) - (place * step[d] - pad[d])
                for place in range(count[d])
            ]
            for d in range(dims)
        ]
        return windows, np.array([math.prod(each) for each in itertools.product(*reach)])

    return make


@dataclass(frozen=True)
class _Regular:
    """Windows of one shape, each a stride from the last, none of which reaches beyond the padding.

    Attributes:
        kernel, stride, padding: for each dimension.
        counts: whether what is read of the padding counts.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    counts: bool

    def averaged(self, b: Builder, x: Value) -> Value:
        return b.op(
            "AveragePool",
            x,
            kernel_shape=self.kernel,
            strides=self.stride,
            pads=self.padding * 2,
            count_include_pad=int(self.counts),
        )

    def tiles(self, plane: Sequence[int], places: Sequence[int]) -> bool:
        """Whether each position is in one window."""
        whole = all(size == count * k for size, count, k in zip(plane, places, self.kernel, strict=True))
        return whole and self.kernel == self.stride and not any(self.padding)

    def spread(self, b: Builder, grad: Value) -> Value:
        """The gradient of the average, where windows tile the plane: a share for each position of the window."""
        share = b.op("Div", grad, b.constant(math.prod(self.kernel), grad.dtype))
        scales = b.constant([1.0, 1.0, *self.kernel], FLOAT)
        how: dict[str, Any] = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return b.op("Resize", share, None, scales, **how)


def _regular(
    x: Operand,
    places: Sequence[Any],
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> _Regular | None:
    """The windows as ONNX knows them; None where it does not, or has no kernel for them."""
    dims = len(places)
    plane, count = static(x.shape[x.rank - dims :], "pooling"), static(places, "pooling")
    kernel, pad = _sizes(kernel_size, dims), _sizes(padding, dims)
    step = _sizes(stride, dims) if stride else kernel
    inside = all((n - 1) * s + k <= size + 2 * p for n, s, k, size, p in zip(count, step, kernel, plane, pad, strict=True))
    fits = all(n == (size + 2 * p - k) // s + 1 for n, s, k, size, p in zip(count, step, kernel, plane, pad, strict=True))
    if not (inside and fits and divisor_override is None and _has_kernel(x, dims)):
        return None
    return _Regular(tuple(kernel), tuple(step), tuple(pad), count_include_pad)


def _regular_parts(x: Operand, places: Sequence[Any]) -> _Regular | None:
    """The windows of adaptive pooling, where they are parts of one size."""
    dims = len(places)
    plane, count = static(x.shape[x.rank - dims :], "adaptive pooling"), static(places, "adaptive pooling")
    if not _has_kernel(x, dims) or 0 in count or any(size % n for size, n in zip(plane, count, strict=True)):
        return None
    kernel = tuple(size // n for size, n in zip(plane, count, strict=True))
    return _Regular(kernel, kernel, (0,) * dims, False)


def _has_kernel(x: Operand, dims: int) -> bool:
    return wide(x.dtype) == FLOAT and x.rank == dims + 2 and 0 not in x.shape


def _averaged(b: Builder, out: Outline, x: Operand, shares: Shares) -> Value:
    windows, divisors = shares
    value = b.cast(_taps(b, x, windows), wide(x.dtype))
    if not windows.valid.all():
        value = b.where(b.constant(windows.valid, torch.bool), value, b.constant(0, value.dtype))
    total = b.op("ReduceSum", value, b.constant([x.rank - len(windows.plane) + 1]), keepdims=0)
    mean = b.op("Div", total, b.constant(divisors, total.dtype))
    return b.cast(_unflattened(b, mean, x, windows.places), out.dtype)


def _spread(b: Builder, out: Outline, grad: Operand, x: Operand, shares: Shares) -> Value:
    """The gradient of an average: each window's share added to what it read."""
    windows, divisors = shares
    dims = len(windows.plane)
    dtype = wide(grad.dtype)
    share = b.op("Div", b.cast(_planes(b, grad, dims), dtype), b.constant(divisors, dtype))
    # Reads grouped by position: which windows read each position of the plane.
    readers: list[list[int]] = [[] for _ in range(math.prod(windows.plane))]
    for window, (row, counts) in enumerate(zip(windows.positions, windows.valid, strict=True)):
        for at in row[counts]:
            readers[int(at)].append(window)
    most = max(map(len, readers), default=0)
    table = np.array([each + [0] * (most - len(each)) for each in readers], dtype=np.int64).reshape(len(readers), most)
    valid = np.array([[True] * len(each) + [False] * (most - len(each)) for each in readers]).reshape(len(readers), most)
    taps = b.op("Gather", share, b.constant(table), axis=grad.rank - dims)
    kept = b.where(b.constant(valid, torch.bool), taps, b.constant(0, dtype))
    total = b.op("ReduceSum", kept, b.constant([grad.rank - dims + 1]), keepdims=0)
    return b.cast(_unflattened(b, total, x, windows.plane), out.dtype)


def _average(dims: int) -> Rule:
    make = _average_windows(dims)

    def rule(
        b: Builder,
        out: Outline,
        x: Operand,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        arguments = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        places = out.shape[out.rank - dims :]
        regular = _regular(x, places, *arguments)
        if regular is not None:
            return b.cast(regular.averaged(b, b.cast(x, FLOAT)), out.dtype)
        return _averaged(b, out, x, make(x, places, *arguments))

    return rule


def _average_backward(dims: int) -> Rule:
    make = _average_windows(dims)

    def rule(b: Builder, out: Outline, grad: Operand, x: Operand, *arguments: Any) -> Value:
        places = grad.shape[grad.rank - dims :]
        regular = _regular(x, places, *arguments)
        if regular is not None and regular.tiles(x.shape[2:], places):
            return b.cast(regular.spread(b, b.cast(grad, FLOAT)), out.dtype)
        return _spread(b, out, grad, x, make(x, places, *arguments))

    return rule


def _adaptive_shares(x: Operand, places: Sequence[Any]) -> Shares:
    plane = static(x.shape[x.rank - len(places) :], "adaptive pooling")
    windows = _windows(plane, _adaptive(plane, static(places, "adaptive pooling")))
    return windows, windows.valid.sum(1)


def _adaptive_average(b: Builder, out: Outline, x: Operand, output_size: Sequence[Any]) -> Value:
    regular = _regular_parts(x, output_size)
    if regular is not None:
        return b.cast(regular.averaged(b, b.cast(x, FLOAT)), out.dtype)
    return _averaged(b, out, x, _adaptive_shares(x, output_size))


def _adaptive_average_backward(b: Builder, out: Outline, grad: Operand, x: Operand) -> Value:
    places = grad.shape[grad.rank - 2 :]
    regular = _regular_parts(x, places)
    if regular is not None:
        return b.cast(regular.spread(b, b.cast(grad, FLOAT)), out.dtype)
    return _spread(b, out, grad, x, _adaptive_shares(x, places))


# Maxima


def _maximum(b: Builder, x: Operand, windows: _Windows) -> tuple[Value, Value]:
    """The maximum of each window and its flat position in the plane; what is missing repeats a position of the window."""
    taps = _taps(b, x, windows)
    last = x.rank - len(windows.plane) + 1
    value = extreme(b, taps, [last], False, largest=True)
    tap = position(b, taps, last, False, largest=True)
    first = np.arange(len(windows.positions), dtype=np.int64) * windows.positions.shape[1]
    index = b.op("Gather", b.constant(windows.positions.reshape(-1)), b.op("Add", tap, b.constant(first)), axis=0)
    return _unflattened(b, value, x, windows.places), _unflattened(b, index, x, windows.places)


def _largest(b: Builder, x: Operand, windows: Mapping[str, Any]) -> Value:
    """The maximum of each window, NaN where it holds one, over which ONNX's MaxPool passes.

    Where nothing is below zero, so little of the window's sum is added that only a NaN is seen of it: a convolution, to which
    ONNX Runtime adds the maximum in passing, and which leaves values in the blocked layout that it gives convolutions.
    """
    value = b.op("MaxPool", x, **windows)
    channels = x.shape[1]
    if b.is_floored(x) and isinstance(channels, int):
        little = b.constant(np.full((channels, 1, *windows["kernel_shape"]), _UNSEEN), x.dtype)
        return b.floored(b.op("Add", b.op("Conv", x, little, group=channels, **windows), value))
    marks = b.op("MaxPool", b.cast(b.is_nan(x), x.dtype), **windows)
    broken = b.compare("Greater", marks, b.constant(0, x.dtype))
    return b.where(broken, b.constant(math.nan, x.dtype), value)


_UNSEEN = 2.0**-60
"""Times a maximum and the size of any window, far less than half a unit in the last place of the maximum."""


def _placed(b: Builder, x: Operand, attributes: Mapping[str, Any], windows: _Windows) -> tuple[Value, Value]:
    """``_maximum`` by ONNX's MaxPool, which agrees where all numbers are finite: their sum tells, in a pass over them. Where it
    overflows, the table serves as well."""
    total = b.op("ReduceSum", x, keepdims=0)
    broken = b.op("Or", b.is_nan(total), b.op("IsInf", total, dtype=torch.bool))
    whole, table = b.child(), b.child()
    value, place = whole.ops("MaxPool", x, dtypes=[x.dtype, torch.int64], **attributes)
    graphs = [
        b.inner(child, "branch", results)
        for child, results in (
            (table, _maximum(table, x, windows)),
            (whole, (value, whole.op("Sub", place, _planes_before(whole, x, len(windows.plane))))),
        )
    ]
    value, place = b.ops("If", broken, dtypes=[x.dtype, torch.int64], then_branch=graphs[0], else_branch=graphs[1])
    return value, place


def _planes_before(b: Builder, x: Operand, dims: int) -> Value:
    """How many positions precede each plane: ONNX counts through all of a tensor where torch counts through the plane."""
    planes = b.count(x, range(x.rank - dims))
    number = b.op("Range", b.constant(0), planes, b.constant(1))
    before = b.op("Mul", number, b.constant(math.prod(x.shape[x.rank - dims :])))
    return b.reshape(before, [*(b.size(x, dim) for dim in range(x.rank - dims)), *[1] * dims])


def _max_pool(dims: int) -> Rule:
    def rule(
        b: Builder,
        out: Sequence[Outline | None],
        x: Operand,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value | None]:
        plane = static(x.shape[x.rank - dims :], "pooling")
        places = static(read(out).shape[x.rank - dims :], "pooling")
        kernel = _sizes(kernel_size, dims)
        step = _sizes(stride, dims) if stride else kernel
        before, apart = _sizes(padding, dims), _sizes(dilation, dims)
        last = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(places, step, apart, kernel, strict=True)]
        after = [max(0, end - size - pad) for end, size, pad in zip(last, plane, before, strict=True)]
        plain = x.dtype == torch.float32 and x.rank == dims + 2 and 0 not in (*x.shape, *places)
        known = plain and all(pad < reach for pad, reach in zip(after, kernel, strict=True))
        attributes = {"kernel_shape": kernel, "strides": step, "dilations": apart, "pads": [*before, *after]}
        if known and out[1] is None:
            return _largest(b, x, attributes), None
        windows = _windows(plane, _sliding(plane, places, kernel, step, before, apart))
        return _placed(b, x, attributes, windows) if known and b.branches else _maximum(b, x, windows)

    return rule


def _adaptive_max(dims: int) -> Rule:
    def rule(b: Builder, out: Sequence[Outline | None], x: Operand, output_size: Sequence[Any]) -> tuple[Value, Value]:
        plane = static(x.shape[x.rank - dims :], "adaptive pooling")
        return _maximum(b, x, _windows(plane, _adaptive(plane, static(_sizes(output_size, dims), "adaptive pooling"))))

    return rule


def _max_pool_backward(dims: int) -> Rule:
    """Gradients added at the positions of the maxima."""

    def rule(b: Builder, out: Outline, grad: Operand, x: Operand, *arguments: Any, indices: Operand | None = None) -> Value:
        places = indices if indices is not None else arguments[-1]
        plane = static(x.shape[x.rank - dims :], "pooling")
        dtype = wide(grad.dtype)
        leading = [b.size(x, dim) for dim in range(x.rank - dims)]
        start = b.op("Expand", b.constant(0, dtype), b.sizes([*leading, math.prod(plane)]))
        rows, positions = b.cast(_planes(b, grad, dims), dtype), _planes(b, places, dims)
        added = b.op("ScatterElements", start, positions, rows, axis=x.rank - dims, reduction="add")
        return b.cast(_unflattened(b, added, x, plane), out.dtype)

    return rule


RULES: Mapping[str, Rule] = {
    "avg_pool2d": _average(2),
    "avg_pool2d_backward": _average_backward(2),
    "avg_pool3d": _average(3),
    "avg_pool3d_backward": _average_backward(3),
    "_adaptive_avg_pool2d": _adaptive_average,
    "_adaptive_avg_pool2d_backward": _adaptive_average_backward,
    "max_pool2d_with_indices": _max_pool(2),
    "max_pool3d_with_indices": _max_pool(3),
    "max_pool2d_with_indices_backward": _max_pool_backward(2),
    "max_pool3d_with_indices_backward": _max_pool_backward(3),
    "adaptive_max_pool2d": _adaptive_max(2),
    "adaptive_max_pool3d": _adaptive_max(3),
}
