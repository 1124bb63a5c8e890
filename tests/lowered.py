"""One prim as a graph of one node, lowered, for tests of the loop IR and its emitters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from vendor_sdk.ir import index as ix
from vendor_sdk.lower import Layout, Lowered, lower


@dataclass
class Call:
    """A lowered call of operators with its actual inputs."""

    node: torch.fx.Node
    lowered: Lowered
    inputs: list[torch.Tensor]
    sizes: dict[str, int]

    def outputs(self) -> list[torch.Tensor]:
        """Uninitialised results, poisoned so that an element nobody writes is seen."""
        made = []
        for spec in self.lowered.outputs:
            shape = [int(ix.evaluate(size, self.sizes)) for size in spec.shape]
            made.append(torch.empty(shape, dtype=spec.dtype).view(torch.uint8 if shape else spec.dtype))
            if shape:
                made[-1].fill_(0x7F)
                made[-1] = made[-1].view(spec.dtype)
        return made

    def results(self, outputs: Sequence[torch.Tensor]) -> Any:
        """``outputs`` as the operator returns them: alone, or several with None where it has none."""
        value = self.node.meta["val"]
        if not isinstance(value, tuple | list):
            return outputs[0]
        rest = iter(outputs)
        return tuple(None if v is None else next(rest) for v in value)

    def symbols(self, seed: int = 1234) -> list[int]:
        return [seed if s.role == "seed" else self.sizes[s.name] for s in self.lowered.kernel.symbols]


def call(target: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, *, dynamic: bool = False) -> Call:
    """``target(*args, **kwargs)`` lowered; tensors among the arguments become placeholders."""
    return chain(lambda step, *given: step(target, *given, **(kwargs or {})), args, dynamic=dynamic)


def chain(build: Callable[..., torch.fx.Node], args: Sequence[Any], *, dynamic: bool = False) -> Call:
    """``build(step, *nodes)`` adds nodes with ``step(target, ...)`` and returns the last, which is lowered; the nodes before it
    must be views, which fold."""
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    graph = torch.fx.Graph()
    actual: dict[torch.fx.Node, torch.Tensor] = {}

    def placeholder(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"arg{len(actual)}")
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * value.dim()) if dynamic else None
        node.meta["val"] = mode.from_tensor(value, symbolic_context=context)
        actual[node] = value
        return node

    def step(target: Any, *given: Any, **named: Any) -> torch.fx.Node:
        given, named = pytree.tree_map(placeholder, (given, named))
        node = graph.call_function(target, given, named)
        fakes = pytree.tree_map(lambda n: n.meta["val"] if isinstance(n, torch.fx.Node) else n, (given, named))
        with mode:
            node.meta["val"] = target(*fakes[0], **fakes[1])
        return node

    nodes = pytree.tree_map(placeholder, list(args))
    last = build(step, *nodes)

    def layout(node: torch.fx.Node) -> Layout | None:
        if node.op != "placeholder":
            return None
        return Layout(tuple(ix.from_size(s) for s in node.meta["val"].stride()))

    lowered = lower(last, "kernel", layout)
    sizes = {}
    for node, value in actual.items():
        for symbolic, size in zip(node.meta["val"].shape, value.shape, strict=True):
            if isinstance(symbolic, torch.SymInt):
                sizes[str(symbolic.node.expr)] = size
    return Call(last, lowered, [actual[n] for n in lowered.inputs], sizes)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The buffer of a tensor from its first element on, as the interpreter takes it."""
    if tensor.numel() == 0:
        return tensor.reshape(-1)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))
