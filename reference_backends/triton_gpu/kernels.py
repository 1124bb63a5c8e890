"""Kernels beside the emitter's: contractions and convolutions through torch's cuBLAS and cuDNN paths, and other libraries'.

Matrix products are computed where the memory plan wants them, and yield to fused kernels where those pay (``products.py``).
Convolutions return their results, with the channels last where their operands have them there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.triton_gpu import attention, grouped, quantized
from reference_backends.triton_gpu.library import LIBRARY
from vendor_sdk import Kernel

Tensor = torch.Tensor
HALVES = (torch.bfloat16, torch.float16)


def _whole(dtype: torch.dtype) -> bool:
    """Whether operands are integers, for which cuBLAS has no products."""
    return not (dtype.is_floating_point or dtype.is_complex)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product of integers, which wraps; the terms of all sums are in memory at once."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2, dtype=torch.int64).to(a.dtype)


def _multiply(library: Callable[..., Tensor]) -> Kernel:
    """``mm`` or ``bmm``."""

    def call(out: Tensor, a: Tensor, b: Tensor) -> None:
        if _whole(a.dtype):
            out.copy_(_product(a, b))
        else:
            library(a, b, out=out)

    return _yielding(call)


def rounded_once(out: Tensor, c: Tensor, product: Tensor, beta: float, alpha: float) -> None:
    """``beta * c + alpha * product`` of a product in float32, which this overwrites, in the halves of ``out``."""
    torch.add(product if alpha == 1 else product.mul_(alpha), c, alpha=beta, out=out)


ALIGNMENT = 16
"""Of the rows of an operand, in bytes, that cuBLAS's kernels for tensor cores of compute capability 9.0 take."""


def _aligned(*tensors: Tensor) -> bool:
    bits = 0
    for x in tensors:
        size = x.element_size()
        bits |= x.data_ptr()
        for stride in x.stride():
            if stride != 1:
                bits |= stride * size
    return bits % ALIGNMENT == 0


def _in_float32(out: Tensor, c: Tensor, a: Tensor, b: Tensor, beta: float) -> bool:
    """Whether a product in float32, to which a second launch adds, takes the place of the library's call.

    cuBLAS, told to store halves, may round a product, or parts of its sum, before it adds to them. What is not one row for all
    torch copies to ``out`` first, and has cuBLAS add to that: two launches as well. A row is added by the product's own
    epilogue, where a launch of its own would cost more; there parts of sums are added as torch's
    ``allow_bf16_reduced_precision_reduction`` says, as in eager. Not so where rows are not aligned: older kernels take those,
    which were seen to add parts in halves whatever it says (4 units in the last place at 4,096 terms).
    """
    if a.dtype not in HALVES or beta == 0 or (c.dim() == 1 and _aligned(out, a, b)):
        return False
    return out.is_cuda and out.numel() > 0 and a.numel() > 0


def _multiply_add(library: Callable[..., Tensor], product: Callable[..., Tensor]) -> Kernel:
    """``addmm`` or ``baddbmm``."""

    def call(out: Tensor, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> None:
        if _whole(a.dtype):
            out.copy_((beta * c if beta else 0) + alpha * _product(a, b))
        elif _in_float32(out, c, a, b, beta):
            rounded_once(out, c, product(a, b, out_dtype=torch.float32), beta, alpha)
        else:
            library(c, a, b, beta=beta, alpha=alpha, out=out)

    return _yielding(call)


def _yielding(call: Callable[..., None]) -> Kernel:
    def without_gradients(*args: Any, **kwargs: Any) -> None:
        """Torch fills no tensor that is given where an operand wants a gradient."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                call(*args, **kwargs)
        else:
            call(*args, **kwargs)

    return Kernel(without_gradients, destination=True, yields=True)


KERNELS: Mapping[str, Kernel | Callable[..., Any]] = {
    **LIBRARY,
    "mm": _multiply(torch.mm),
    "bmm": _multiply(torch.bmm),
    "addmm": _multiply_add(torch.addmm, torch.mm),
    "baddbmm": _multiply_add(torch.baddbmm, torch.bmm),
    "convolution": Kernel(torch.convolution, fresh=True, orders="channels_last"),
    "convolution_backward": Kernel(torch.ops.aten.convolution_backward.default, fresh=True, orders="channels_last"),
    **attention.KERNELS,
    grouped.NAME: grouped.grouped_mm,
    **quantized.KERNELS,
}
"""Prim to kernel; the presence of a key is the capability."""
