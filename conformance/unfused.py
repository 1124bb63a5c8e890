"""A pattern's prims one by one, each compiled alone: what fusing is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

import vendor_sdk
from conformance.patterns import Pattern
from conformance.program import build
from conformance.subject import Subject
from conformance.values import flat, tensors
from vendor_sdk import OPSET, Family, Sample

Tensor = torch.Tensor


def chain(subject: Subject, pattern: Pattern, inputs: Sequence[Tensor], device: torch.device) -> Callable[..., list[Tensor]]:
    """The prims of a pattern as a function that calls them one by one, each compiled alone. Views stay views.

    All are handed to the compiler before one is called: it may work in the background.
    """
    graph = vendor_sdk.trace(pattern.function, inputs)
    known = {row.target: row for row in OPSET.values()}
    made: dict[Any, Callable[..., Any]] = {}
    constants = dict(graph.constants)

    class Chain(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n.op == "placeholder" and n.target in constants:
                return constants[str(n.target)].to(device)
            return super().run_node(n)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            row = known.get(target)
            if row is None or row.family is Family.VIEW:
                return target(*args, **kwargs)
            sample = Sample(args, dict(kwargs))
            given = tensors((args, sample.kwargs))
            identities = [id(tensor) for tensor in given]
            repeated = [identities.index(identity) for identity in identities]
            key = target, str(repeated), str(_outline((args, sample.kwargs)))
            if preparing:
                result = target(*args, **kwargs)
                made[key] = made.get(key) or _alone(subject, target, sample, result, device)
                return result
            if key not in made:  # torch's own kernels leave results in other strides than the subject's
                made[key] = _alone(subject, target, sample, target(*args, **kwargs), device)
            return made[key](given)

    interpreter, preparing = Chain(graph.module), True
    interpreter.run(*inputs)
    preparing = False
    return lambda *given: flat(interpreter.run(*given))


def operations(pattern: Pattern, inputs: Sequence[Tensor], flops: int) -> int:
    """Operations of one call: of products as ``flops`` says, one of every other prim for each element that it has."""
    graph, views = vendor_sdk.trace(pattern.function, inputs), (Family.VIEW, Family.CONTRACTION, Family.CREATION)
    known = {row.target: row for row in OPSET.values()}
    total = flops
    for node in graph.graph.nodes:
        row = known.get(node.target)
        if row is not None and row.family not in views:
            touched = tensors([node.meta["val"], *(each.meta.get("val") for each in node.all_input_nodes)])
            total += max((int(tensor.numel()) for tensor in touched), default=0)
    return total


def _alone(subject: Subject, target: Any, sample: Sample, result: Any, device: torch.device) -> Callable[[list[Tensor]], Any]:
    """``target`` as a program of its own, a function of the tensors among its arguments; ``result`` is what it gives."""
    program = build(target, [sample], [result], device)
    compiled = subject.prepare(program.module, program.inputs)
    single = isinstance(result, Tensor)

    def call(tensors: list[Tensor]) -> Any:
        results = compiled.call(*{id(tensor): tensor for tensor in tensors}.values())
        return flat(results)[0] if single else tuple(flat(results))

    return call


def _outline(value: Any) -> Any:
    """What a compiled prim depends on: of tensors shape, strides and dtype, of the rest the value."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, Mapping):
        return {key: _outline(item) for key, item in value.items()}
    return [_outline(item) for item in value] if isinstance(value, list | tuple) else value
