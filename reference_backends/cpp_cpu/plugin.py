"""The C++ CPU backend: everything it tells the SDK."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.cpp_cpu import attention, compiler, grouped, machine, program
from reference_backends.cpp_cpu.emitter import CppEmitter
from reference_backends.cpp_cpu.kernels import COMPLEX, KERNELS, libraries
from vendor_sdk import (
    STORED,
    Backend,
    Decline,
    Emitter,
    Kernel,
    NodeContext,
    Supported,
    TensorInfo,
    TorchDevice,
    hookimpl,
)

TAKES_COMPLEX = frozenset(("complex", "_conj_physical", "mm", "bmm", "addmm", "baddbmm"))
"""Prims whose kernels take or give complex numbers."""
OF_FLOATS = frozenset(("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward"))
"""Prims that torch also has for bytes, and the kernels here do not."""
SMALL_FACTORS = "flushed" if machine.multiplies_pairs() else "kept"
"""What becomes of bfloat16 subnormals in products: that instruction takes them for zero."""


@hookimpl
def backend() -> Backend:
    return Backend(
        name="cpp_cpu",
        version="0.1.0",
        dtypes=frozenset((*STORED, torch.int8, torch.int16, *COMPLEX)),
        requires=compiler.requires,
        composites=attention.COMPOSITES | grouped.COMPOSITES,
        numerics={
            **{f"add {dtype} rounding": "nearest, ties to even" for dtype in ("float32", "float16", "bfloat16")},
            **{f"{dtype} subnormals": "kept" for dtype in ("float32", "float16", "bfloat16")},
            **{f"mm {dtype} accumulator": "float32" for dtype in ("float32", "float16", "bfloat16")},
            "mm float32 operands": "float32",
            "sum float32 accumulator": "float64",
            "sum bfloat16 accumulator": "float64",
            **{f"{name} float32 accumulator": "float32" for name in ("bmm", "convolution", "scatter_add", "attention")},
            **{f"mean {dtype} accumulator": "float64" for dtype in ("float32", "bfloat16")},
            **{f"float32 to {dtype} rounding": "nearest, ties to even" for dtype in ("float16", "bfloat16")},
            **{f"float64 to {dtype} rounding": "nearest, ties to even, through float32" for dtype in ("float16", "bfloat16")},
            **{f"{name} float32 subnormals": "kept" for name in ("mm", "convolution", "sum", "cumsum", "amax", "gt")},
            **{f"{name} bfloat16 subnormals": SMALL_FACTORS for name in ("mm", "bmm", "convolution")},
            "mul+add float32 contraction": "never",
            **{f"{name} float32 determinism": "across batch sizes" for name in ("sum", "mean", "scatter_add", "embedding_bag")},
        },
        notes={
            "halves": "loaded and stored as such, computed in float32",
            "floats of eight bits": "loaded and stored as such, converted by way of float32",
            "sums": "float32 within blocks, float64 across them; the result does not depend on the number of threads",
            "attention": "blocked, float32 within blocks (float64 for float64); no scores in memory",
            "matrix products": "blocked, sums in float32 (float64 for float64) of at most 256 terms each; convolutions too. Of "
            "bfloat16, where the processor multiplies it (AVX512-BF16), with subnormals taken for zero",
            "3x3 convolutions": "float32: minimal filtering with tiles of 2x2, and plain sums where its results are not finite",
        },
    )


@hookimpl
def device(options: Mapping[str, Any]) -> TorchDevice:
    return TorchDevice("cpu")


@hookimpl
def kernels() -> Mapping[str, Kernel | Callable[..., Any]]:
    return KERNELS


@hookimpl
def supports(node: NodeContext) -> Supported | Decline:
    """Complex numbers are moved and conjugated; matrix products of them are torch's."""
    tensors = [v for v in (*node.args, *node.kwargs.values(), *node.outputs) if isinstance(v, TensorInfo)]
    if any(t.dtype in COMPLEX for t in tensors) and node.prim not in TAKES_COMPLEX:
        return Decline("complex numbers are not computed with here")
    if node.prim in OF_FLOATS and not all(t.dtype.is_floating_point for t in node.outputs[:1]):
        return Decline("resampled in floating point only")
    if node.prim == "_embedding_bag_backward" and node.args[9]:
        return Decline("a sparse gradient")
    for library in libraries(node):
        library.start()
    if node.prim in grouped.COMPOSITES:
        grouped.prepare(node.outputs[0].dtype)
    declined = attention.declined(node)
    if declined is None and node.prim in attention.COMPOSITES:
        attention.prepare(node.prim, node.outputs[0].dtype)
    return declined or Supported()


@hookimpl
def emitter(options: Mapping[str, Any]) -> Emitter:
    program.prepare()
    return CppEmitter()


@hookimpl
def fingerprint() -> str:
    return hashlib.sha256(f"{compiler.toolchain()}\n{torch.__version__}".encode()).hexdigest()[:16]
