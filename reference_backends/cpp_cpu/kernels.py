"""Kernels beside the emitter's: contractions and convolutions through torch's oneDNN and BLAS paths.

Each takes the prim's arguments and returns its result, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Tensor = torch.Tensor


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
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
    result = torch.ops.aten.convolution.default(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    contiguous: Tensor = result.contiguous()
    return contiguous


def _convolution_backward(*args: Any) -> tuple[Tensor | None, ...]:
    results = torch.ops.aten.convolution_backward.default(*args)
    return tuple(r if r is None else r.contiguous() for r in results)


KERNELS: Mapping[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
"""Prim to kernel; the presence of a key is the capability."""
