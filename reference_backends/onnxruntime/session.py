"""Sessions: what ONNX Runtime makes of a partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime as ort
import torch

from reference_backends.onnxruntime import contrib
from reference_backends.onnxruntime.builder import ELEMENT_TYPES, SEEDS, elsewhere, reads
from reference_backends.onnxruntime.partition import Partition, Signature, Slot
from reference_backends.onnxruntime.providers import CPU, Provider
from reference_backends.onnxruntime.refusal import support, unwritable
from reference_backends.onnxruntime.saving import save
from reference_backends.onnxruntime.stored import session
from reference_backends.onnxruntime.translate import RULES, translate
from vendor_sdk import FLOAT8, CompilerError, GraphCompiler, ModelFile, NodeContext, PrimGraph, Support


class OnnxCompiler(GraphCompiler):
    """Compiles partitions for one execution provider."""

    prims = frozenset(RULES)
    suffixes = frozenset({".onnx"})

    def __init__(self, provider: Provider, *, keep: bool = True) -> None:
        self.provider, self._keep = provider, keep

    def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
        """The partition as a session, which is made in the first call where there are static inputs: it takes their values in.

        Raises:
            CompilerError: the model breaks a rule of ONNX, or the provider does not take it.
        """
        model = translate(graph, guarded=self.provider.name == CPU, has=contrib.in_sessions(self.provider))
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise CompilerError("onnxruntime: a translated partition is not valid ONNX", why=str(error)) from error
        partition = Partition(_signature(graph, model, keep=self._keep), Maker(model, self.provider))
        if not (partition.signature.static and self._keep):
            partition.sessions().outside()
        return partition

    def save(self, graph: PrimGraph, file: ModelFile) -> None:
        save(graph, file, contrib.in_files(self.provider))

    def saves(self, node: NodeContext) -> Support:
        return support(unwritable(node, self.provider))

    def remarks(self, executable: Any) -> Mapping[str, str]:
        """Nodes of a partition that the provider left to the CPU provider: a part of what they were translated to, or all."""
        assert isinstance(executable, Partition)
        left = {name.split("/")[0] for session in executable.made() for name in self.provider.left_to_cpu(session)}
        return dict.fromkeys(left, f"{self.provider.name} left it, or a part of it, to {CPU}")


def _signature(graph: PrimGraph, model: onnx.ModelProto, *, keep: bool) -> Signature:
    fakes = [node.meta["val"] for node in graph.outputs]
    outputs = tuple(_result(info, fake) for info, fake in zip(model.graph.output, fakes, strict=True))
    inputs = tuple(map(_slot, model.graph.input))
    return Signature(
        inputs=inputs,
        seeds=sum(each.type.tensor_type.shape.dim[0].dim_value for each in model.graph.input if each.name == SEEDS),
        outputs=outputs,
        static=tuple(index for index in sorted(graph.static_inputs) if inputs[index].dtype not in FLOAT8),
        training=graph.training,
        keep=keep,
        exact=all(slot.sizes is not None and slot.dtype == fake.dtype for slot, fake in zip(outputs, fakes, strict=True)),
    )


def _slot(info: onnx.ValueInfoProto) -> Slot:
    tensor = info.type.tensor_type
    sizes = tensor.shape.dim
    shape = None if any(size.HasField("dim_param") for size in sizes) else tuple(size.dim_value for size in sizes)
    return Slot(info.name, tensor.elem_type, _DTYPES[tensor.elem_type], shape)


def _result(info: onnx.ValueInfoProto, fake: torch.Tensor) -> Slot:
    slot = _slot(info)
    return slot if slot.shape is None else dataclasses.replace(slot, sizes=tuple(fake.shape))


_DTYPES: dict[int, torch.dtype] = {element: dtype for dtype, element in ELEMENT_TYPES.items()}


class Maker:
    """Makes the sessions of a model (see ``MakeSession``)."""

    def __init__(self, model: onnx.ModelProto, provider: Provider) -> None:
        self.model, self.provider = model, provider

    def __call__(self, static: Mapping[int, torch.Tensor]) -> ort.InferenceSession:
        # ONNX Runtime drops what nobody reads (an operand without elements, say), and then misses it.
        graph = self.model.graph
        read = {name for node in graph.node for name in reads(node)} | {each.name for each in graph.output}
        values = {name: t.contiguous() for index, t in static.items() if (name := graph.input[index].name) in read}
        return session(with_initializers(self.model, static, values), self.provider, values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _maker, (self.model.SerializeToString(), self.provider)


def _maker(model: bytes, provider: Provider) -> Maker:
    return Maker(onnx.load_from_string(model), provider)


def with_initializers(model: onnx.ModelProto, static: Collection[int], values: Mapping[str, torch.Tensor]) -> onnx.ModelProto:
    """``model`` without the inputs at these places, and with initializers in place of those in ``values``, where theirs are."""
    if not static:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for index in sorted(static, reverse=True):
        name = changed.graph.input[index].name
        if name in values:
            changed.graph.initializer.append(elsewhere(name, values[name].dtype, values[name].shape))
        del changed.graph.input[index]
    return changed
