"""Who takes part: eager, backends of torch.compile (Inductor, the SDK's), and runtimes that take an exported model.

``CONTESTANTS`` is the table of peers by the name used on the command line; any other name is a torch.compile backend.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vendor_sdk
from benchmarks.program import Call, Mode, Program, caller, leaves

Tensor = torch.Tensor


class Unsupported(Exception):
    """The contestant does not do this kind of program at all."""


@dataclass(frozen=True)
class Entry:
    """A contestant ready to run.

    Attributes:
        call: one call of the program.
        fetch: what ``call`` returned, as tensors.
    """

    call: Call
    fetch: Callable[[Any], list[Tensor]] = leaves


@dataclass(frozen=True)
class Contestant:
    """One way to run programs.

    Attributes:
        name: as on the command line and in results.
        requires: modules that must be installed.
    """

    name: str
    requires: tuple[str, ...] = ()

    def missing(self) -> str:
        """Which required module is not installed; empty when all are."""
        absent = [module for module in self.requires if importlib.util.find_spec(module) is None]
        return f"not installed: {', '.join(absent)} (pip install -e '.[bench]')" if absent else ""

    def prepare(self, program: Program) -> Entry:
        """Makes ``program`` callable; what compiles lazily does so in the first call.

        Raises:
            Unsupported: this contestant has nothing for programs like this one.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Eager(Contestant):
    """PyTorch as it is."""

    def prepare(self, program: Program) -> Entry:
        return Entry(caller(program, program.function))


@dataclass(frozen=True)
class Compiled(Contestant):
    """``torch.compile`` with some keywords."""

    keywords: Mapping[str, Any] = field(default_factory=dict)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled function; it shares no cache entry with other contestants that compile the same function."""

        def call(*inputs: Any) -> Any:
            return function(*inputs)

        # Dynamo keeps what it compiled with the code object, so an equal one must not be the same one.
        call.__code__ = call.__code__.replace()
        compiled: Callable[..., Any] = torch.compile(call, **self.keywords)
        return compiled

    def prepare(self, program: Program) -> Entry:
        return Entry(caller(program, self.compile(program.function), self.compile))


class _Module(nn.Module):
    """A function as exporters want it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _exportable(program: Program) -> nn.Module:
    if program.mode is not Mode.INFERENCE:
        raise Unsupported("it has no training")
    if program.mutates:
        raise Unsupported("it does not write to inputs")
    return program.function if isinstance(program.function, nn.Module) else _Module(program.function).eval()


@dataclass(frozen=True)
class OnnxRuntime(Contestant):
    """ONNX Runtime's CPU provider, the model exported by torch's own exporter; inputs and outputs bound, not copied."""

    requires: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")

    def export(self, program: Program, path: Path) -> None:
        """Writes the model's file."""
        exported = torch.onnx.export(_exportable(program), program.inputs, dynamo=True, verbose=False)
        assert exported is not None
        exported.save(str(path))

    def prepare(self, program: Program) -> Entry:
        import onnx
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            self.export(program, path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        tensors = [t.detach().contiguous() for t in program.tensors()]
        names = [each.name for each in session.get_inputs()]
        if len(names) != len(tensors):
            raise Unsupported(f"the exported model has {len(names)} inputs, the program {len(tensors)}")
        for name, tensor in zip(names, tensors, strict=True):
            element = onnx.helper.np_dtype_to_tensor_dtype(_numpy_dtype(tensor.dtype))
            binding.bind_input(name, "cpu", 0, element, list(tensor.shape), tensor.data_ptr())
        dtypes = [_torch_dtype(each.type) for each in session.get_outputs()]
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")

        def call() -> Any:
            session.run_with_iobinding(binding)
            return tensors, binding

        def fetch(_result: Any) -> list[Tensor]:
            return [_view(value.numpy(), dtype).clone() for value, dtype in zip(binding.get_outputs(), dtypes, strict=True)]

        return Entry(call, fetch)


@dataclass(frozen=True)
class Exported(OnnxRuntime):
    """The same of a file that ``vendor_sdk.export`` writes.

    Attributes:
        backend: whose lowering and format.
    """

    backend: str = "onnxruntime"

    def export(self, program: Program, path: Path) -> None:
        try:
            vendor_sdk.export(_exportable(program), program.inputs, path, backend=self.backend)
        except vendor_sdk.OptionError as error:
            raise Unsupported(error.what) from error


@dataclass(frozen=True)
class OpenVino(Contestant):
    """OpenVINO's CPU plugin on an exported program, told to keep the dtypes of the model."""

    requires: tuple[str, ...] = ("openvino",)

    def prepare(self, program: Program) -> Entry:
        import openvino

        module = _exportable(program)
        model = openvino.convert_model(torch.export.export(module, program.inputs))
        half = any(t.dtype is torch.bfloat16 for t in program.tensors())
        compiled = openvino.Core().compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            },
        )
        request = compiled.create_infer_request()
        tensors = [t.detach().contiguous() for t in program.tensors()]
        if len(compiled.inputs) != len(tensors):
            raise Unsupported(f"the converted model has {len(compiled.inputs)} inputs, the program {len(tensors)}")
        for index, tensor in enumerate(tensors):
            raw = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
            kind = compiled.inputs[index].element_type
            request.set_input_tensor(index, openvino.Tensor(raw.numpy(), list(tensor.shape), kind))

        def call() -> Any:
            request.infer()
            return tensors, request

        def fetch(_result: Any) -> list[Tensor]:
            outputs = [request.get_output_tensor(index) for index in range(len(compiled.outputs))]
            return [_view(each.data, _openvino_dtype(each)).clone() for each in outputs]

        return Entry(call, fetch)


def _openvino_dtype(tensor: Any) -> torch.dtype:
    name = tensor.element_type.get_type_name()
    return torch.bfloat16 if name == "bf16" else torch.from_numpy(tensor.data).dtype


def _numpy_dtype(dtype: torch.dtype) -> Any:
    import ml_dtypes
    import numpy

    return numpy.dtype(ml_dtypes.bfloat16) if dtype is torch.bfloat16 else torch.empty(0, dtype=dtype).numpy().dtype


def _torch_dtype(onnx_type: str) -> torch.dtype | None:
    """``tensor(bfloat16)`` needs a view; the others are what numpy says."""
    return torch.bfloat16 if onnx_type == "tensor(bfloat16)" else None


def _view(array: Any, dtype: torch.dtype | None) -> Tensor:
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array)


PEERS: dict[str, Contestant] = {
    "eager": Eager("eager"),
    "inductor": Compiled("inductor", keywords={"backend": "inductor"}),
    "inductor-max": Compiled("inductor-max", keywords={"backend": "inductor", "mode": "max-autotune"}),
    "onnxruntime": OnnxRuntime("onnxruntime"),
    "openvino": OpenVino("openvino"),
    # What runtimes that take an exported model do: weights are packed once, until something tells that they changed.
    "cpp_cpu-kept": Compiled("cpp_cpu-kept", keywords={"backend": "cpp_cpu", "options": {"keep": True}}),
}


def name_of(backend: str) -> str:
    """How results call the backend: a backend that drives a peer's runtime must not be taken for the peer."""
    return f"{backend} backend" if backend in PEERS else backend


def contestants(backend: str, peers: Sequence[str]) -> list[Contestant]:
    """The backend, then its peers by name."""
    return [Compiled(name_of(backend), keywords={"backend": backend}), *(PEERS[name] for name in peers)]


def exporters(backend: str, peers: Sequence[str]) -> list[Contestant]:
    """The backend as a writer of files, then those of its peers that run files."""
    runtimes = [PEERS[name] for name in peers if isinstance(PEERS[name], OnnxRuntime | OpenVino)]
    return [Exported(name_of(backend), backend=backend), *runtimes]


def is_sdk_backend(name: str) -> bool:
    """Whether the SDK knows this backend, and not only torch.compile."""
    try:
        vendor_sdk.load(name)
    except vendor_sdk.BackendNotFoundError:
        return False
    return True
