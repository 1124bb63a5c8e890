"""Sessions on disk: what ONNX Runtime's optimizers made of a model, so that the next process need not optimize it again.

An entry is the optimized model, an artefact of the SDK's cache. What optimizers fold depends on the values of parameters, so
these belong to the key; those that came through unchanged are not part of the entry. Large models have none: to read their
parameters takes longer than to optimize them. Nor have small graphs, of which there may be many; nor those of other providers
than the CPU's, whose compiled parts have no form on disk.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime as ort
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from reference_backends.onnxruntime import plugin
from reference_backends.onnxruntime.builder import WITHOUT, elsewhere
from reference_backends.onnxruntime.providers import CPU, Provider
from reference_backends.onnxruntime.values import shared
from vendor_sdk import Artifacts, CompilerError

WORTH_STORING = 30
"""Nodes from which a graph has an entry."""
MOST_BYTES = 1 << 26
"""Bytes of parameters up to which a graph has an entry."""
_SUFFIX = ".onnx"


def session(model: onnx.ModelProto, provider: Provider, values: Mapping[str, torch.Tensor]) -> ort.InferenceSession:
    """A session of ``model``, optimized now or before.

    Args:
        values: contiguous tensors for the initializers that are elsewhere, by name.
    """
    text = model.SerializeToString()
    size = sum(value.nbytes for value in values.values())
    small = len(model.graph.node) < WORTH_STORING
    if small or size > MOST_BYTES or provider.name != CPU or provider.has("optimized_model_filepath"):
        return provider.start(text, _options(provider, values, model))
    try:
        return _stored(text, model, provider, values)
    except (OSError, CompilerError, DecodeError):  # no place for what comes of it, say: a session may do without
        return provider.start(text, _options(provider, values, model))


def _stored(
    text: bytes, model: onnx.ModelProto, provider: Provider, values: Mapping[str, torch.Tensor]
) -> ort.InferenceSession:
    """By its entry, or made and become one."""
    key = _ARTIFACTS.key("session", hashlib.sha256(text).hexdigest(), repr(provider), _digest(values))
    known = _ARTIFACTS.read(key, _SUFFIX)
    if known is not None:
        try:
            options = _options(provider, _elsewhere(known, values), model)
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            return provider.start(known, options)
        except (CompilerError, DecodeError):  # an entry that is whole, and yet nothing that this ONNX Runtime reads
            pass
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"optimized{_SUFFIX}"
        options = _options(provider, values, model)
        options.optimized_model_filepath = str(path)
        made = provider.start(text, options)
        _ARTIFACTS.keep(key, _without(onnx.load(path), values), _SUFFIX)
    return made


def _options(provider: Provider, values: Mapping[str, torch.Tensor], model: onnx.ModelProto) -> ort.SessionOptions:
    options = provider.session_options()
    for each in model.metadata_props:
        if each.key == WITHOUT:
            options.add_session_config_entry("optimization.disable_specified_optimizers", each.value)
    if values:
        options.add_external_initializers(list(values), [shared(value) for value in values.values()])
    return options


def _digest(values: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in values.items():
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}:".encode())
        digest.update(value.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _without(model: onnx.ModelProto, values: Mapping[str, torch.Tensor]) -> bytes:
    """The optimized model, with those of ``values`` that are in it elsewhere again."""
    for tensor in model.graph.initializer:
        if tensor.name in values:
            value = values[tensor.name]
            tensor.CopyFrom(elsewhere(tensor.name, value.dtype, value.shape))
    content: bytes = model.SerializeToString()
    return content


def _elsewhere(content: bytes, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of ``values`` that an optimized model still asks for."""
    asked = {
        each.name for each in onnx.load_from_string(content).graph.initializer if each.data_location == TensorProto.EXTERNAL
    }
    return {name: value for name, value in values.items() if name in asked}


_ARTIFACTS = Artifacts("onnxruntime", lambda: f"{plugin.VERSION} {plugin.fingerprint()}")
