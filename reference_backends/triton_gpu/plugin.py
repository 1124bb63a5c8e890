"""The Triton GPU backend: everything it tells the SDK. Importing it needs neither triton nor a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_backends.triton_gpu import attention, compiler, grouped, quantized
from reference_backends.triton_gpu.emitter import TritonEmitter
from reference_backends.triton_gpu.graphs import CudaRecorder
from reference_backends.triton_gpu.kernels import KERNELS
from reference_backends.triton_gpu.library import COMPLEX, TAKES_COMPLEX
from reference_backends.triton_gpu.machine import TARGETS, machine
from vendor_sdk import (
    STORED,
    Backend,
    Decline,
    Emitter,
    Kernel,
    Legalization,
    NodeContext,
    Option,
    Support,
    Target,
    TensorInfo,
    TorchDevice,
    hookimpl,
)


@hookimpl
def backend() -> Backend:
    return Backend(
        name="triton_gpu",
        version="0.1.0",
        dtypes=frozenset((*STORED, torch.int8, torch.int16, *COMPLEX)),
        requires=compiler.requires,
        composites=attention.COMPOSITE_NAMES | {grouped.NAME} | quantized.NAMES,
        # Of tensor cores' operands: cuBLAS computes others' products several times slower.
        legalize=Legalization(row_alignment=16, channels_last=True, separate_bias=True),
        options={
            "mode": Option(
                default="default",
                choices=("default", "reduce-overhead", "max-autotune"),
                help="reduce-overhead records a graph's launches as a CUDA graph and replays them; max-autotune "
                "measures each shape of matrix products that could be fused, and remembers it on disk",
            ),
            "target": Target(
                choices=(None, *TARGETS),
                help="compiles for a GPU that this machine need not have (cuda:90: compute capability 9.0): nothing runs, and "
                "Triton's cache keeps the machine code",
                requires=compiler.compiles,
            ),
        },
        deterministic=False,
        # What its certificate shows: sums are exact in every dtype, and products and exponentials below the normal range too.
        numerics={
            **{f"add {dtype} rounding": "nearest, ties to even" for dtype in ("float32", "float16", "bfloat16")},
            **{f"{dtype} subnormals": "kept" for dtype in ("float32", "float16", "bfloat16")},
            **{f"sum {dtype} accumulator": "float32" for dtype in ("float32", "float16", "bfloat16")},
            **{f"mean {dtype} accumulator": "float32" for dtype in ("float32", "float16", "bfloat16")},
            **{f"float32 to {dtype} rounding": "nearest, ties to even" for dtype in ("float16", "bfloat16")},
            **{f"float64 to {dtype} rounding": "nearest, ties to even, through float32" for dtype in ("float16", "bfloat16")},
            **{f"{name} float32 subnormals": "kept" for name in ("sum", "mean", "cumsum", "amax", "gt")},
            "mul+add float32 contraction": "never",
            "softmax float32 determinism": "across batch sizes",
            # Few rows are taken by more threads each.
            **{f"{name} float32 determinism": "run to run" for name in ("sum", "mean", "layer_norm")},
        },
        notes={
            "halves": "loaded and stored as such, computed in float32",
            "floats of eight bits": "loaded and stored as their bits, converted by integer instructions, so on GPUs without "
            "such types too; products with one scale for each factor, to bfloat16, are cuBLAS's where tensor cores have them",
            "sums": "in float32 or float64, one running sum a lane; scattered sums are atomic, in no fixed order",
            "index out of range": "stops the kernel, and with it the process's use of the GPU, as torch's own kernels do",
            "integer division by zero": "gives any number, as torch's own kernels do",
            "matrix products": "cuBLAS and cuDNN, where TF32 follows torch's setting; of halves, fused with what follows where "
            "that pays, with sums in float32; where a matrix of halves is added, that is done before anything is rounded",
            "attention": "of halves and float32: the weights are rounded to halves before they multiply the values; which "
            "kernel computes it is decided for each shape",
            "convolutions": "of halves: as torch's own call of cuDNN gives them, which may be beyond the bounds",
            "sorting, transforms, linear algebra, sampling": "the libraries of CUDA, as torch calls them",
        },
    )


@hookimpl
def device(options: Mapping[str, Any]) -> TorchDevice:
    return TorchDevice("cuda", CudaRecorder() if options.get("mode") == "reduce-overhead" else None)


@hookimpl
def supports(node: NodeContext, options: Mapping[str, Any]) -> Support | None:
    tensors = [v for v in (*node.args, *node.kwargs.values(), *node.outputs) if isinstance(v, TensorInfo)]
    if any(t.dtype in COMPLEX for t in tensors) and node.prim not in TAKES_COMPLEX:
        return Decline("complex numbers are not computed with here")
    target = options.get("target")
    gpu = TARGETS[target] if target else machine()
    return attention.declined(node) or grouped.declined(node, gpu) or quantized.declined(node, gpu)


@hookimpl
def conformance() -> Mapping[str, str]:
    return {
        "convolution[bfloat16]": "beyond the bound; torch's own call of cuDNN gives the same bits",
        "convolution[float16]": "up to 33 times the bound; torch's own call of cuDNN gives the same bits",
        "convolution_backward[float16]": "up to 5 times the bound; torch's own call of cuDNN gives the same bits",
    }


@hookimpl
def kernels() -> Mapping[str, Kernel | Callable[..., Any]]:
    return KERNELS


@hookimpl
def emitter(options: Mapping[str, Any]) -> Emitter:
    return TritonEmitter(tune=options.get("mode") == "max-autotune", target=options.get("target"))


@hookimpl
def fingerprint() -> str:
    return hashlib.sha256(f"{compiler.toolchain()}\n{torch.__version__}".encode()).hexdigest()[:16]
