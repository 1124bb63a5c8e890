"""A case's samples as one graph: a call per sample, every tensor an input, every resulting tensor an output.

One graph per case means one backend compile per case instead of one per sample. The graph is built as fx, not traced from
Python, so that scalars, dtypes and lists stand in it as literals whatever compiles it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from conformance import values
from vendor_sdk import Sample

Path = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A function of tensors made of samples.

    Attributes:
        module: returns a tuple of tensors, the results of all samples one after the other.
        inputs: the tensors of all samples in order, each once (a tensor used twice is one input).
        owners: position of the sample that each input belongs to (the first, when several use it).
        counts: number of resulting tensors of each sample.
    """

    module: fx.GraphModule
    inputs: list[torch.Tensor]
    owners: list[int]
    counts: list[int]

    def split(self, outputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Flat results by sample."""
        if len(outputs) != sum(self.counts):
            raise ValueError(f"{len(outputs)} results came back, {sum(self.counts)} were asked for")
        rest = iter(outputs)
        return [[next(rest) for _ in range(count)] for count in self.counts]


def build(target: Any, samples: Sequence[Sample], outlines: Sequence[Any], device: torch.device) -> Program:
    """The program that calls ``target`` once per sample.

    Args:
        target: the operator of the prim.
        samples: the calls.
        outlines: a value per sample with the structure of its result, which tells how many tensors come back and where
            ``None`` stands instead of one.
        device: where inputs are put, what stands for the CPU in arguments that name a device, and where operators without
            inputs put their results.
    """
    graph = fx.Graph()
    places: dict[int, fx.Node] = {}
    owners: list[int] = []
    for position, sample in enumerate(samples):
        for tensor in tensors(sample):
            if id(tensor) not in places:
                owners.append(position)
                places[id(tensor)] = graph.placeholder(f"input_{len(places)}")

    def literal(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return places[id(value)]
        if isinstance(value, torch.device):
            return device
        if isinstance(value, list | tuple):
            return type(value)(literal(item) for item in value)
        return value

    results: list[fx.Node] = []
    counts: list[int] = []
    for sample, outline in zip(samples, outlines, strict=True):
        kwargs = {name: literal(value) for name, value in sample.kwargs.items()}
        if not tensors(sample) and _takes_device(target):
            kwargs.setdefault("device", device)
        call = graph.call_function(target, tuple(literal(value) for value in sample.args), kwargs)
        found = [_follow(graph, call, path) for path in paths(outline)]
        results += found
        counts.append(len(found))
    graph.output(tuple(results))
    return Program(fx.GraphModule(torch.nn.Module(), graph), inputs_of(samples, device), owners, counts)


def _takes_device(target: Any) -> bool:
    schema = getattr(target, "_schema", None)  # functions of symbols have none
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def tensors(sample: Sample) -> list[torch.Tensor]:
    """The tensors among a sample's arguments, in order, with repetitions."""
    return values.tensors((sample.args, sample.kwargs))


def paths(value: Any, prefix: Path = ()) -> list[Path]:
    """Where the tensors of a result stand, as indices into nested sequences."""
    if isinstance(value, torch.Tensor):
        return [prefix]
    if isinstance(value, list | tuple):
        return [path for index, item in enumerate(value) for path in paths(item, (*prefix, index))]
    return []


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on ``device`` with its strides and offset: a copy of the storage, never of the values alone, because what
    lies between the elements of a strided view must stay as it is too."""
    if tensor.device == device:
        return tensor
    storage = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return storage.to(device).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def interchangeable(first: Sample, second: Sample) -> bool:
    """Whether a program built for ``first`` may be called with the tensors of ``second``: equal shapes, strides and dtypes, the
    same tensors repeated, and equal values of everything that is no tensor."""
    return _same((first.args, first.kwargs), (second.args, second.kwargs)) and _repetitions(first) == _repetitions(second)


def inputs_of(samples: Sequence[Sample], device: torch.device) -> list[torch.Tensor]:
    """The inputs of the program of ``samples``: every tensor once, on ``device``."""
    unique = {id(tensor): tensor for sample in samples for tensor in tensors(sample)}
    return [to_device(tensor, device) for tensor in unique.values()]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and first.shape == second.shape
            and first.stride() == second.stride()
        )
    if isinstance(first, list | tuple):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(_same(one, other) for one, other in zip(first, second, strict=True))
        )
    if isinstance(first, Mapping):
        return isinstance(second, Mapping) and first.keys() == second.keys() and all(_same(first[k], second[k]) for k in first)
    return type(first) is type(second) and (first == second or (first != first and second != second))


def _repetitions(sample: Sample) -> list[int]:
    identities = [id(tensor) for tensor in tensors(sample)]
    return [identities.index(identity) for identity in identities]


def _follow(graph: fx.Graph, node: fx.Node, path: Path) -> fx.Node:
    for index in path:
        node = graph.call_function(operator.getitem, (node, index))
    return node
