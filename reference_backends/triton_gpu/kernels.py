"""Kernels beside the emitter's: contractions and convolutions through torch's cuBLAS and cuDNN paths, and other libraries'.

Each takes the prim's arguments and returns its results, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_backends.triton_gpu.library import LIBRARY

Tensor = torch.Tensor


def _whole(*tensors: Tensor) -> bool:
    """Whether the operands are integers, for which cuBLAS has no products."""
    return not any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product of integers, which wraps; the terms of all sums are in memory at once."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2, dtype=torch.int64).to(a.dtype)


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b) if _whole(a, b) else torch.mm(a, b)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b) if _whole(a, b) else torch.bmm(a, b)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _whole(c, a, b):
        return (beta * c if beta else 0) + alpha * _product(a, b)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _whole(c, a, b):
        return (beta * c if beta else 0) + alpha * _product(a, b)
    return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    result: Tensor = torch.ops.aten.convolution.default(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return result.contiguous()


def _convolution_backward(*args: Any) -> tuple[Tensor | None, ...]:
    results = torch.ops.aten.convolution_backward.default(*args)
    return tuple(r if r is None else r.contiguous() for r in results)


KERNELS: Mapping[str, Callable[..., Any]] = {
    **LIBRARY,
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
"""Prim to kernel; the presence of a key is the capability."""
