"""Products of numbers of eight bits through torch's operators for tensor cores, where they take the sizes and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.triton_gpu.machine import Machine
from vendor_sdk import Decline, Kernel, NodeContext, TensorInfo

Tensor = torch.Tensor
aten = torch.ops.aten

INTEGERS, SCALED = "int_mm", "scaled_mm"
NAMES = frozenset((INTEGERS, SCALED))
MULTIPLE = {INTEGERS: 8, SCALED: 16}
"""What torch's operators want edges to be multiples of."""
LEAST_ROWS = 17
"""Of the first factor of integers."""
CAPABILITY = (8, 9)
"""From which on there are tensor cores for floats of eight bits."""


def declined(node: NodeContext, gpu: Machine) -> Decline | None:
    """Why no kernel here takes ``node`` on a GPU, or None."""
    if node.prim not in NAMES:
        return None
    tensors = [v for v in (*node.args, *node.kwargs.values()) if isinstance(v, TensorInfo)]
    (rows, terms), (_, columns) = tensors[0].shape, tensors[1].shape
    of = MULTIPLE[node.prim]
    if not all(isinstance(edge, int) and edge and edge % of == 0 for edge in (terms, columns)):
        return Decline(f"torch's operator wants edges that are multiples of {of}")
    if node.prim == INTEGERS:
        few = not isinstance(rows, int) or rows < LEAST_ROWS
        return Decline(f"torch's operator wants {LEAST_ROWS} rows and more") if few else None
    if gpu.capability < CAPABILITY:
        return Decline("tensor cores for floats of eight bits came with compute capability 8.9")
    if not isinstance(rows, int) or rows == 0:
        return Decline("how many rows there are is known at the call")
    if any(len(t.shape) == 2 and t.shape != (1, 1) for t in tensors[2:4]):
        return Decline("torch's operator takes scales of rows and columns on some GPUs and for some results only")
    if all(t.dtype == torch.float8_e5m2 for t in tensors[:2]):
        return Decline("tensor cores multiply no two factors of float8_e5m2")
    if node.outputs[0].dtype != torch.bfloat16 or any(t.dtype != torch.bfloat16 for t in tensors[4:]):
        return Decline("tensor cores sum products of floats of eight bits in fewer digits than float32 has")
    return None


def int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    """The kernel of that composite. cuBLAS multiplies integers where the second factor lies column by column."""
    return aten._int_mm.default(self.contiguous(), _columns(mat2))  # type: ignore[no-any-return]


def scaled_mm(self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, *rest: object, **named: object) -> Tensor:
    """The kernel of that composite."""
    scales = (scale.reshape([]) for scale in (scale_a, scale_b))
    return aten._scaled_mm.default(self.contiguous(), _columns(mat2), *scales, *rest, **named)  # type: ignore[no-any-return]


def _columns(factor: Tensor) -> Tensor:
    """A matrix that lies column by column."""
    return factor.t().contiguous().t()


KERNELS: Mapping[str, Kernel | Callable[..., Any]] = {INTEGERS: int_mm, SCALED: scaled_mm}
