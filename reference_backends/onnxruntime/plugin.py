"""The ONNX Runtime backend: everything it tells the SDK."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Mapping
from typing import Any

import torch

from vendor_sdk import ALL, Backend, Decline, GraphCompiler, Legalization, NodeContext, Option, Supported, TorchDevice, hookimpl

VERSION = "0.1.0"


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


@hookimpl
def backend() -> Backend:
    return Backend(
        name="onnxruntime",
        version=VERSION,
        dtypes=frozenset(ALL) - {torch.bfloat16},
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
        },
        notes={
            "bfloat16": "not offered: ONNX Runtime's CPU provider has bfloat16 kernels for a few operators only",
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
def supports(node: NodeContext) -> Supported | Decline:
    from reference_backends.onnxruntime.session import refusal

    reason = refusal(node)
    return Decline(reason) if reason else Supported()


@hookimpl
def graph_compiler(options: Mapping[str, Any]) -> GraphCompiler:
    from reference_backends.onnxruntime.providers import Provider
    from reference_backends.onnxruntime.session import OnnxCompiler

    return OnnxCompiler(Provider.of(options), keep=options["keep"] is not False)


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
