"""The Triton GPU backend: everything it tells the SDK. Importing it needs neither triton nor a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.triton_gpu import compiler
from reference_backends.triton_gpu.emitter import TritonEmitter
from reference_backends.triton_gpu.kernels import KERNELS
from vendor_sdk import ALL, Backend, Decline, Emitter, Kernel, NodeContext, Support, TorchDevice, hookimpl

ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)
"""What the GPU adds to memory atomically (halves never come to that: their sums are kept in float32)."""
SCATTERS = ("scatter_add", "scatter_reduce", "index_put", "histc", "embedding_dense_backward")
"""Prims that may add to one element from several iterations."""


@hookimpl
def backend() -> Backend:
    return Backend(
        name="triton_gpu",
        version="0.1.0",
        dtypes=frozenset((*ALL, torch.int8, torch.int16)),
        requires=compiler.requires,
        deterministic=False,
        notes={
            "halves": "loaded and stored as such, computed in float32",
            "sums": "in float32 or float64, one running sum a lane; scattered sums are atomic, in no fixed order",
            "index out of range": "stops the kernel, and with it the process's use of the GPU, as torch's own kernels do",
            "integer division by zero": "gives any number, as torch's own kernels do",
            "matrix products": "cuBLAS and cuDNN; TF32 follows torch's setting",
        },
    )


@hookimpl
def device(options: Mapping[str, Any]) -> TorchDevice:
    return TorchDevice("cuda")


@hookimpl
def supports(node: NodeContext) -> Support | None:
    dtype = node.outputs[0].dtype if node.outputs else None
    if node.prim in SCATTERS and dtype not in ATOMIC and _adds(node):
        return Decline(f"the GPU has no atomic addition of {str(dtype).removeprefix('torch.')}")
    return None


def _adds(node: NodeContext) -> bool:
    if node.prim == "index_put":
        return bool(node.kwargs.get("accumulate", node.args[3] if len(node.args) > 3 else False))
    return True


@hookimpl
def kernels() -> Mapping[str, Kernel | Callable[..., Any]]:
    return KERNELS


@hookimpl
def emitter(options: Mapping[str, Any]) -> Emitter:
    return TritonEmitter()


@hookimpl
def fingerprint() -> str:
    return hashlib.sha256(f"{compiler.toolchain()}\n{torch.__version__}".encode()).hexdigest()[:16]
