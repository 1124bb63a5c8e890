"""The ONNX Runtime backend: everything it tells the SDK."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vendor_sdk import STORED, Backend, GraphCompiler, Legalization, NodeContext, Option, Support, TorchDevice, hookimpl

if TYPE_CHECKING:
    from reference_backends.onnxruntime.providers import Provider

VERSION = "0.1.0"
NOWHERE, SESSIONS, FILES = "nowhere", "sessions", "files"
"""Where ONNX Runtime's own operators may stand; files means in sessions, too."""


def _requires() -> str:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return f"the package{'s' if len(missing) > 1 else ''} {' and '.join(missing)} missing: pip install 'vendor-sdk[onnx]'"


def _composites() -> frozenset[str]:
    if _requires():
        return frozenset()
    from reference_backends.onnxruntime.translate import CLAIMED

    return CLAIMED


HALVES_AND_SINGLE = ("float32", "float16", "bfloat16")


@hookimpl
def backend() -> Backend:
    return Backend(
        name="onnxruntime",
        version=VERSION,
        dtypes=frozenset(STORED),
        legalize=Legalization(explicit_promotion=True, no_scalars=True),
        composites=_composites(),
        requires=_requires,
        options={
            "provider": Option(
                default="CPUExecutionProvider",
                help="execution provider of ONNX Runtime that runs the partitions",
            ),
            "provider_options": Option(default={}, help="options of the provider, by its own names"),
            "provider_library": Option(default="", help="path of the plugin library that brings the provider"),
            "session_options": Option(
                default={}, help="attributes (intra_op_num_threads) and configuration keys (they have a dot) of SessionOptions"
            ),
            "contrib": Option(
                default=SESSIONS,
                help="where operators of ONNX Runtime's own (com.microsoft) may stand that the provider has kernels for; files "
                "are those of vendor_sdk.export, which other runtimes read only without them",
                choices=(NOWHERE, SESSIONS, FILES),
            ),
        },
        # Of ONNX Runtime's CPU provider.
        numerics={
            **{f"add {dtype} rounding": "nearest, ties to even" for dtype in HALVES_AND_SINGLE},
            **{f"{dtype} subnormals": "kept" for dtype in HALVES_AND_SINGLE},
            **{
                f"{name} {dtype} accumulator": "float32" for name in ("mm", "bmm", "convolution") for dtype in HALVES_AND_SINGLE
            },
            **{f"{name} float32 accumulator": "float32" for name in ("sum", "mean", "scatter_add", "attention")},
            **{f"float32 to {dtype} rounding": "nearest, ties to even" for dtype in ("float16", "bfloat16")},
            **{f"{name} float32 subnormals": "kept" for name in ("mm", "convolution", "sum", "cumsum", "amax", "gt")},
            "mm float32 operands": "float32",
            "mul+add float32 contraction": "never",
        },
        notes={
            "bfloat16": "as far as the provider has kernels: ONNX Runtime's CPU provider moves, converts and sums it, and "
            "multiplies matrices of it in float32",
            "float16": "ONNX Runtime computes it in float32 and may keep float32 between operators",
            "parameters in inference": "constants until version counter, address or samples of the content change; a write to "
            "a few elements by .data or numpy needs vendor_sdk.release_memory(), or options={'keep': False}",
            "positions out of range": "negative ones count from the end in gather and scatter prims, where torch raises",
            "transcendental functions": "computed in float64 where ONNX Runtime's float32 kernel is less accurate than torch's",
        },
    )


@hookimpl
def device(options: Mapping[str, Any]) -> TorchDevice:
    return TorchDevice("cpu")


@hookimpl
def supports(node: NodeContext, options: Mapping[str, Any]) -> Support:
    from reference_backends.onnxruntime.refusal import refusal, support

    return support(refusal(node, _provider(options)))


@hookimpl
def graph_compiler(options: Mapping[str, Any]) -> GraphCompiler:
    from reference_backends.onnxruntime.session import OnnxCompiler

    return OnnxCompiler(_provider(options), keep=options["keep"] is not False)


def _provider(options: Mapping[str, Any]) -> Provider:
    from reference_backends.onnxruntime.providers import Provider

    return Provider.of(options)


@hookimpl
def fingerprint() -> str:
    import onnx
    import onnxruntime

    from reference_backends.onnxruntime.builder import OPSET

    return f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, opset {OPSET}, {_processor()}"


def _processor() -> str:
    """What ONNX Runtime's layouts depend on: the instruction sets of the processor, as far as the system tells them."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line.partition(":")[2] for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"
