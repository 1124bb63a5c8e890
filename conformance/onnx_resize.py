"""Rules of ONNX's Resize: each dimension by itself, a matrix whose rows hold the weights of the elements that a result is of.

The matrix follows from sizes and attributes alone (https://onnx.ai/onnx/operators/onnx__Resize.html): it is computed in float64
when the graph is made. Where every row has one weight, which is one, the elements are picked instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from conformance.onnx_types import Array, Tensor, ints, refuse

STATIC: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2, 3), "Upsample": (1,)}


Kernel = Callable[[Array], Array]


def _centers(size: int, count: int, scale: float, roi: tuple[float, float], mode: str) -> Array:
    """Where the ``count`` results of a dimension lie among its ``size`` elements."""
    places = np.arange(count, dtype=np.float64)
    length = scale * size
    if mode == "align_corners":
        return places * (size - 1) / (length - 1) if length != 1 else np.zeros(count)
    if mode == "asymmetric":
        return places / scale
    if mode == "tf_crop_and_resize":
        start, end = roi[0] * (size - 1), roi[1] * (size - 1)
        return start + places * (end - start) / (length - 1) if length != 1 else np.full(count, (start + end) / 2)
    if mode == "pytorch_half_pixel" and length == 1:
        return np.full(count, -0.5)
    shift = size / 2 * (1 - count / length) if mode == "half_pixel_symmetric" else 0.0
    return shift + (places + 0.5) / scale - 0.5


def _triangle(distance: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(a: float) -> Kernel:
    """Keys' convolution kernel (IEEE Transactions on Acoustics, Speech and Signal Processing 29, 1981)."""

    def kernel(distance: Array) -> Array:
        d = np.abs(distance)
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        far = a * (d**3 - 5 * d**2 + 8 * d - 4)
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return kernel


_NEAREST: Mapping[str, Kernel] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _weights(centers: Array, size: int, reach: int, kernel: Kernel, stretch: float, *, outside: bool) -> Array:
    """(results, elements). What lies beyond an edge counts as the edge, or, where ``outside`` is false, not at all.

    Args:
        reach: the distance from which the kernel is zero.
        stretch: by which the kernel is as much wider as results are fewer, so that all elements count (antialiasing).
    """
    width = math.ceil(reach / stretch)
    taps = np.floor(centers)[:, None] + np.arange(-width, width + 1)
    values = kernel((taps - centers[:, None]) * stretch)
    inside = (taps >= 0) & (taps < size)
    if not outside:
        values = np.where(inside, values, 0.0)
    values = values / values.sum(1, keepdims=True)
    matrix = np.zeros((len(centers), size))
    np.add.at(matrix, (np.arange(len(centers))[:, None], np.clip(taps, 0, size - 1).astype(np.int64)), values)
    return matrix


def _resized(
    size: Sequence[int], axes: Sequence[int], scales: Array | None, sizes: Array | None, policy: str
) -> tuple[list[float], list[int]]:
    """Scale and size of the result along each of ``axes``."""
    own = [size[axis] for axis in axes]
    if sizes is None or not sizes.size:
        assert scales is not None
        factors = [float(each) for each in scales]
        return factors, [math.floor(factor * each) for factor, each in zip(factors, own, strict=True)]
    counts = ints(sizes)
    factors = [count / each for count, each in zip(counts, own, strict=True)]
    if policy != "stretch":
        one = min(factors) if policy == "not_larger" else max(factors)
        return [one] * len(own), [math.floor(one * each + 0.5) for each in own]
    return factors, counts


def _resize(
    x: Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    dims = [axis % x.dim() for axis in axes] if axes is not None else list(range(x.dim()))
    factors, counts = _resized(x.shape, dims, scales, sizes, keep_aspect_ratio_policy)
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    region = roi.tolist() if crops and roi is not None else [0.0] * len(dims) + [1.0] * len(dims)
    for place, (dim, scale, count) in enumerate(zip(dims, factors, counts, strict=True)):
        size = x.shape[dim]
        part = region[place], region[place + len(dims)]
        if scale == 1 and count == size and part == (0.0, 1.0):
            continue
        centers = _centers(size, count, scale, part, coordinate_transformation_mode)
        if mode == "nearest":
            picked = np.clip(_NEAREST[nearest_mode](centers), 0, size - 1).astype(np.int64)
            x = torch.index_select(x, dim, torch.from_numpy(picked))
        else:
            refuse(not x.is_floating_point(), "Resize of integers by weights")
            reach, kernel = (2, _cubic(cubic_coeff_a)) if mode == "cubic" else (1, _triangle)
            stretch = min(scale, 1.0) if antialias else 1.0
            matrix = _weights(centers, size, reach, kernel, stretch, outside=not exclude_outside)
            x = torch.matmul(x.movedim(dim, -1), torch.from_numpy(matrix.T.copy()).to(x.dtype)).movedim(-1, dim)
        if crops:
            beyond = torch.from_numpy((centers < 0) | (centers > size - 1))
            shape = [count if each == dim else 1 for each in range(x.dim())]
            x = torch.where(beyond.reshape(shape), torch.tensor(extrapolation_value, dtype=x.dtype), x)
    return x.contiguous()


def _upsample(x: Tensor, scales: Array, *, mode: str = "nearest") -> Tensor:
    return _resize(x, scales=scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


RULES: Mapping[str, Callable[..., Any]] = {"Resize": _resize, "Upsample": _upsample}
