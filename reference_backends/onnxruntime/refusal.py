"""Refusal: why a node cannot run here, or stand in a file.

    rules       translate the node, or say what ONNX cannot express
    provider    of a partition: starts a session of the one node, or says which part it has no kernel for
    format      of a file: its types, as ONNX's own checker knows them

A file need not run where it is written, so no provider is asked about one, but for operators of ONNX Runtime's own.
"""

from __future__ import annotations

import hashlib
import re

import onnx
import onnxruntime as ort

from reference_backends.onnxruntime import contrib
from reference_backends.onnxruntime.builder import Untranslatable
from reference_backends.onnxruntime.providers import CPU, Provider
from reference_backends.onnxruntime.translate import single
from vendor_sdk import CompilerError, Decline, NodeContext, Support, Supported


def support(reason: str) -> Support:
    return Decline(reason) if reason else Supported()


def refusal(node: NodeContext, provider: Provider) -> str:
    """Why ``provider`` cannot run a node, ``""`` when it can."""
    try:
        model = single(node, has=contrib.in_sessions(provider))
    except Untranslatable as error:
        return str(error)
    text = model.SerializeToString()
    key = repr(provider), hashlib.sha256(text).digest()
    if key not in _refusals:
        _refusals[key] = _asked(text, provider)
    return _refusals[key]


_refusals: dict[tuple[str, bytes], str] = {}


def _asked(model: bytes, provider: Provider) -> str:
    try:
        _start(model, provider.asked())
    except CompilerError as error:
        return _left(model, provider) or f"{provider.name}: {_PLACE.sub('', error.why.splitlines()[0])} (of {_types(model)})"
    return ""


_PLACE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : | node with name '[^']*'$")
"""Of what ONNX Runtime says, its number of the error and our name of the node."""


def _types(model: bytes) -> str:
    """The types of a model's inputs."""
    codes = dict.fromkeys(each.type.tensor_type.elem_type for each in onnx.load_from_string(model).graph.input)
    return ", ".join(onnx.TensorProto.DataType.Name(code).lower() for code in codes) or "constants"


def _left(model: bytes, provider: Provider) -> str:
    """What a provider would leave to the CPU provider, as a reason; "" where that does not help either."""
    if provider.name == CPU:
        return ""
    try:
        left = set(provider.left_to_cpu(_start(model, provider.asked(alone=False))))
    except CompilerError:
        return ""
    kinds = sorted({node.op_type for node in onnx.load_from_string(model).graph.node if node.name in left})
    return f"{provider.name} has no kernel for {', '.join(kinds)} (of {_types(model)})" if kinds else ""


def _start(model: bytes, provider: Provider) -> ort.InferenceSession:
    return provider.start(model, provider.session_options())


def unwritable(node: NodeContext, provider: Provider) -> str:
    """Why a node cannot stand in a file, ``""`` when it can."""
    try:
        model = single(node, random=False, has=contrib.in_files(provider))
        onnx.checker.check_model(model, full_check=True)
    except Untranslatable as error:
        return str(error)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return f"ONNX: {str(error).strip().splitlines()[0]}"
    return ""
