"""Contrib: which operators of ONNX Runtime's own (domain ``com.microsoft``) a graph may have.

    rules       use one where it takes less time than what is standard, and is as exact (``Builder.contrib``)
    sessions    have those that the provider has a kernel for: it is asked, as it is about nodes of the program
    files       are standard ONNX, as not every runtime knows this domain; unless the user wants these operators there too

Where a rule can do without a standard operator, the provider of a session is asked for that as well (``Builder.runs``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import onnx
from onnx import helper

from reference_backends.onnxruntime.builder import CONTRIB, ELEMENT_TYPES, IR_VERSIONS, OPSET, Operator
from reference_backends.onnxruntime.plugin import FILES, NOWHERE
from reference_backends.onnxruntime.providers import Provider
from vendor_sdk import CompilerError

Kernels = Callable[[Operator], bool]


def in_sessions(provider: Provider) -> Kernels:
    return functools.partial(_has, provider)


def in_files(provider: Provider) -> Kernels | None:
    return functools.partial(_stands, provider) if provider.contrib == FILES else None


def _stands(provider: Provider, operator: Operator) -> bool:
    """A file need not run where it is written: what is standard may stand there."""
    return not operator.domain or _has(provider, operator)


def _has(provider: Provider, operator: Operator) -> bool:
    if operator.domain and provider.contrib == NOWHERE:
        return False
    key = repr(provider), operator
    if key not in _answers:
        _answers[key] = _asked(provider, operator)
    return _answers[key]


_answers: dict[tuple[str, Operator], bool] = {}


def _asked(provider: Provider, operator: Operator) -> bool:
    asked = provider.asked()
    try:
        asked.start(_model(operator).SerializeToString(), asked.session_options())
    except CompilerError:
        return False
    return True


def _model(operator: Operator) -> onnx.ModelProto:
    """The operator alone, with a result of any shape."""
    names = ["" if each is None else f"x{index}" for index, each in enumerate(operator.inputs)]
    inputs = [
        helper.make_tensor_value_info(name, ELEMENT_TYPES[each[0]], each[1])
        for name, each in zip(names, operator.inputs, strict=True)
        if each is not None
    ]
    node = helper.make_node(operator.kind, names, ["y"], domain=operator.domain, **dict(operator.attributes))
    result = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    return helper.make_model(
        helper.make_graph([node], "question", inputs, [result]),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
        ir_version=IR_VERSIONS[OPSET],
    )
