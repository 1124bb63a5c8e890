"""Antialiased resampling (``antialias.cpp``) and embedding bags (``bags.cpp``): weighted sums over windows and over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_backends.cpp_cpu import compiler
from reference_backends.cpp_cpu.written import Written

Tensor = torch.Tensor


_antialias_library = Written("base.h", "antialias.cpp")
_bags_library = Written("base.h", "vector.h", "bags.cpp")


def _step(inputs: int, outputs: int, aligned: bool, factor: float | None) -> float:
    """Input elements per output element, as torch's interpolation defines it; ``factor`` is the user's scale, if any."""
    if aligned:
        return (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    return 1 / factor if factor is not None and factor > 0 else inputs / outputs


def _resample(name: str, source: Tensor, out: Tensor, large: Sequence[int], small: Sequence[int], *rest: Any) -> Tensor:
    aligned, *factors = rest
    steps = [_step(i, o, aligned, factor) for i, o, factor in zip(large, small, factors, strict=True)]
    scales = torch.tensor(steps, dtype=torch.float64)
    planes = math.prod(out.shape[:2])
    compiler.call(_antialias_library(), name, source.dtype, source.contiguous(), out, planes, *large, *small, scales)
    return out


def _antialias(
    x: Tensor, size: Sequence[int], aligned: bool, vertical: float | None = None, horizontal: float | None = None
) -> Tensor:
    out = torch.empty((*x.shape[:2], *size), dtype=x.dtype)
    return _resample("antialias", x, out, x.shape[2:], size, aligned, vertical, horizontal)


def _antialias_backward(
    gradient: Tensor,
    size: Sequence[int],
    shape: Sequence[int],
    aligned: bool,
    vertical: float | None = None,
    horizontal: float | None = None,
) -> Tensor:
    out = torch.empty(tuple(shape), dtype=gradient.dtype)
    return _resample("antialias_backward", gradient, out, shape[2:], size, aligned, vertical, horizontal)


SUM, MEAN, MAX = 0, 1, 2


def _whole(index: Tensor) -> Tensor:
    return index.to(torch.int64).contiguous()


def _refuse(status: int) -> None:
    if status:
        raise IndexError("embedding_bag: an index names no row, or the offsets are not ascending from 0")


def _bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    direct, weight, entries, first = weight, weight.contiguous(), _whole(indices), _whole(offsets)
    bags, (rows, width) = first.shape[0] - int(include_last_offset), weight.shape
    out = torch.empty((bags, width), dtype=weight.dtype)
    bag_of, sizes = torch.empty_like(entries), torch.empty(bags, dtype=torch.int64)
    places = torch.empty((bags, width), dtype=torch.int64) if mode == MAX else None
    factor = None if per_sample_weights is None else per_sample_weights.contiguous()
    results = (out, bag_of, sizes, places)
    numbers = (bags, entries.shape[0], rows, width, mode, padding_idx)
    _refuse(compiler.call(_bags_library(), "bag_forward", weight.dtype, weight, entries, first, factor, *results, *numbers))
    if mode == SUM and _offsets_suffice(direct, per_sample_weights, padding_idx):
        bag_of = bag_of[:0].clone()
    return out, bag_of, sizes, sizes.clone() if places is None else places


def _offsets_suffice(weight: Tensor, factor: Tensor | None, padding: int) -> bool:
    """Whether torch announces an empty offset2bag for a sum on the CPU; the SDK holds kernels to the shapes announced."""
    narrow = weight.dtype in (torch.float32, torch.float16)
    return narrow and padding < 0 and weight.stride(1) == 1 and (factor is None or factor.stride(0) == 1)


def _bag_backward(
    gradient: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    gradient, entries = gradient.contiguous(), _whole(indices)
    bag_of = _known(offset2bag, entries)
    bags, width = gradient.shape
    out = torch.empty((num_weights, width), dtype=gradient.dtype)
    factor = None if per_sample_weights is None else per_sample_weights.contiguous()
    inputs = (entries, _whole(offsets), bag_of, _whole(bag_size), _whole(maximum_indices), factor)
    numbers = (bags, entries.shape[0], num_weights, width, mode, int(scale_grad_by_freq), padding_idx)
    _refuse(compiler.call(_bags_library(), "bag_backward", gradient.dtype, gradient, *inputs, out, *numbers))
    return out


def _known(offset2bag: Tensor, entries: Tensor) -> Tensor | None:
    """The bag of each entry, or None where the forward left it out and the offsets say it."""
    return _whole(offset2bag) if offset2bag.numel() == entries.numel() else None


def _bag_weights_backward(
    gradient: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    if mode != SUM:
        raise RuntimeError("embedding_bag: per-sample weights go with mode 'sum' only")
    gradient, weight, entries = gradient.contiguous(), weight.contiguous(), _whole(indices)
    out = torch.empty(entries.shape[0], dtype=gradient.dtype)
    inputs = (gradient, weight, entries, _whole(offsets), _known(offset2bag, entries))
    numbers = (gradient.shape[0], entries.shape[0], *weight.shape, padding_idx)
    _refuse(compiler.call(_bags_library(), "bag_weights", gradient.dtype, *inputs, out, *numbers))
    return out


KERNELS: Mapping[str, Callable[..., Any]] = {
    "_upsample_bilinear2d_aa": _antialias,
    "_upsample_bilinear2d_aa_backward": _antialias_backward,
    "_embedding_bag": _bag,
    "_embedding_bag_backward": _bag_backward,
    "_embedding_bag_per_sample_weights_backward": _bag_weights_backward,
}
"""Prim to kernel."""

LIBRARIES: Mapping[str, Written] = {
    name: _antialias_library if name.startswith("_upsample") else _bags_library for name in KERNELS
}
"""Prim to the library that its kernel calls."""
