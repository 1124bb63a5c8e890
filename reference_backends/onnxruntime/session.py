"""Sessions: ONNX models run by ONNX Runtime on torch's memory, without copies for contiguous tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

from reference_backends.onnxruntime.builder import Untranslatable
from reference_backends.onnxruntime.translate import RULES, single, translate
from vendor_sdk import CompilerError, GraphCompiler, KernelError, NodeContext, PrimGraph

CPU = "CPUExecutionProvider"


class OnnxCompiler(GraphCompiler):
    """Compiles partitions for one execution provider."""

    prims = frozenset(RULES)

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
        """The partition as a session.

        Raises:
            CompilerError: the model breaks a rule of ONNX, or the provider does not take it.
        """
        model = translate(graph)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise CompilerError("onnxruntime: a translated partition is not valid ONNX", why=str(error)) from error
        try:
            session = ort.InferenceSession(model.SerializeToString(), _options(), providers=[self.provider])
        except Exception as error:  # ONNX Runtime has an exception class for each status code, with no base of their own
            raise CompilerError(f"onnxruntime: {self.provider} refused a partition", why=str(error)) from error
        if session.get_providers()[0] != self.provider:
            raise CompilerError(
                f"onnxruntime: {self.provider} did not start; ONNX Runtime offers {', '.join(session.get_providers())} instead",
                fix=f"install what {self.provider} needs, or choose another with options={{'provider': ...}}",
            )
        return _Partition(session)


class _Partition:
    """A session as the SDK calls it: values in, tensors out."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.session = session
        self.names = [each.name for each in session.get_inputs()]
        self.numbers = {each.name: _NUMBER_TYPES[each.type] for each in session.get_inputs() if each.type in _NUMBER_TYPES}

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        feeds = {
            name: value.detach().contiguous().numpy()
            if isinstance(value, torch.Tensor)
            else np.array(value, self.numbers[name])
            for name, value in zip(self.names, inputs, strict=True)
        }
        try:
            results = self.session.run(None, feeds)
        except Exception as error:  # see ``OnnxCompiler.compile``
            raise KernelError("failed in ONNX Runtime", why=str(error)) from error
        return [torch.from_numpy(np.asarray(result)) for result in results]


_NUMBER_TYPES = {"tensor(int64)": np.int64, "tensor(double)": np.float64, "tensor(bool)": np.bool_}
"""Types of the inputs that may stand for numbers."""


def _options(*, optimize: bool = True) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what is logged below that is raised as well, or is advice to whoever wrote the model
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # sessions share the cores, with torch and each other
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def refusal(node: NodeContext) -> str:
    """Why a node cannot run here, ``""`` when it can: the rules translate it, and ONNX Runtime has a kernel for each part.

    That is asked of ONNX Runtime, by a session of the one node on the CPU provider, to which every other provider leaves
    what it does not take.
    """
    try:
        model = single(node)
    except Untranslatable as error:
        return str(error)
    text = model.SerializeToString()
    key = hashlib.sha256(text).digest()
    if key not in _refusals:
        try:
            ort.InferenceSession(text, _options(optimize=False), providers=[CPU])
            _refusals[key] = ""
        except Exception as error:  # see ``OnnxCompiler.compile``
            _refusals[key] = f"ONNX Runtime: {str(error).splitlines()[0]}"
    return _refusals[key]


_refusals: dict[bytes, str] = {}
