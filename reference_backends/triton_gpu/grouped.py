"""Products of groups of rows through torch's operator, where that asks for no group's size on the host."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from reference_backends.triton_gpu.machine import Machine
from vendor_sdk import Decline, NodeContext, TensorInfo

Tensor = torch.Tensor

NAME = "grouped_mm"
ALIGNMENT = 16
"""Bytes of which the operator wants rows, or columns, to be a multiple."""
CAPABILITY = (9, 0)
"""From which on its kernel reads the offsets on the GPU."""


def declined(node: NodeContext, gpu: Machine) -> Decline | None:
    """Why the kernel doesn't take ``node`` on a GPU, or None."""
    if node.prim != NAME:
        return None
    self, mat2, _ = (v for v in node.args if isinstance(v, TensorInfo))
    if self.dtype != torch.bfloat16:
        return Decline("torch's kernel for groups of rows that stays on the GPU is for bfloat16 alone")
    if gpu.capability < CAPABILITY:
        return Decline("before Hopper, torch's operator for groups of rows waits for the offsets on the host")
    edges = (self.shape[0] if len(mat2.shape) == 2 else self.shape[1], mat2.shape[-1])
    if not all(isinstance(edge, int) and edge and edge * self.dtype.itemsize % ALIGNMENT == 0 for edge in edges):
        return Decline(f"torch's kernel for groups of rows wants edges that are multiples of {ALIGNMENT} bytes")
    return None


def _aligned(x: Tensor) -> Tensor:
    """``x``, in an order of memory that the kernel takes."""
    if x.data_ptr() % ALIGNMENT == 0:
        for along, across in ((-1, -2), (-2, -1)):
            if x.stride(along) == 1 and x.stride(across) >= x.shape[along] and x.stride(across) * x.itemsize % ALIGNMENT == 0:
                return x
    if x.shape[-1] * x.itemsize % ALIGNMENT == 0:
        return x.clone(memory_format=torch.contiguous_format)
    return x.mT.clone(memory_format=torch.contiguous_format).mT


def grouped_mm(self: Tensor, mat2: Tensor, offs: Tensor) -> Tensor:
    """The composite's kernel."""
    rows = mat2.shape[0] if mat2.dim() == 2 else self.shape[0]
    if rows == 0:
        return torch.ops.vendor_sdk.grouped_mm(self, mat2, offs)  # type: ignore[no-any-return]
    result = F.grouped_mm(_aligned(self), _aligned(mat2), offs=offs.to(torch.int32))
    if mat2.dim() == 3:
        behind = torch.arange(rows, device=result.device) >= offs[-1]
        result.masked_fill_(behind.unsqueeze(1), 0)
    return result
