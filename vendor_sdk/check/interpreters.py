"""Interpreters of prim graphs at any stage: with torch operators, in float64, and in float64 with other roundings.

Fused groups and partitions are interpreted as the graphs they stand for. Random prims take the numbers that the compiled
kernels will draw in the call, so that all stages of one graph compute with the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop_interpreter import interpret as interpret_loops
from vendor_sdk.ir.primgraph import STRIDED, PrimGraph
from vendor_sdk.ir.transfer import TRANSFERS
from vendor_sdk.lower import Layout, lower
from vendor_sdk.lower.build import contiguous_strides
from vendor_sdk.prims.bounds import Accumulated, Exact, Property, Ulp
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET
from vendor_sdk.prims.reference import OwnDtype, evaluate, flat, float64_by_default, target_of, upcast

RUNS = 3
"""Interpretations with other roundings."""
ROUNDED = frozenset(("add", "sub", "mul"))
"""Prims whose results are exact but for the last rounding; the others that are exact move numbers, or choose among them."""


@dataclass
class Draws:
    """The numbers that random prims give in one call.

    Attributes:
        seeds: by node name, for those that run in emitted kernels.
        sizes: the call's values of shape symbols.
        values: what has been drawn, by node name.
    """

    seeds: Mapping[str, int]
    sizes: dict[str, int]
    values: dict[str, Any] = field(default_factory=dict)

    def known(self, graph: PrimGraph) -> bool:
        """Whether an earlier stage has drawn all of a stage's random numbers."""
        return all(name in self.values for name in random_nodes(graph))

    def draw(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if node.name not in self.values:
            self.values[node.name] = self._fresh(node, args, kwargs)
        return self.values[node.name]

    def _fresh(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        seed = self.seeds.get(node.name, len(self.values))
        try:
            lowered = lower(node, "draw", lambda n: Layout(contiguous_strides([ix.from_size(s) for s in n.meta["val"].shape])))
        except LoweringError:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed % (1 << 63))
                return node.target(*args, **kwargs)  # type: ignore[operator]
        of = {n: value for n, value in zip(node.args, args, strict=True) if isinstance(n, fx.Node)}
        (spec,) = lowered.outputs
        result = torch.empty([ix.evaluate(size, self.sizes) for size in spec.shape], dtype=spec.dtype)
        buffers = [of[n].cpu().contiguous().reshape(-1) for n in lowered.inputs]
        symbols = [seed if s.role == "seed" else self.sizes[s.name] for s in lowered.kernel.symbols]
        interpret_loops(lowered.kernel, [*buffers, result.reshape(-1)], symbols)
        return result.to(node.meta["val"].device)


def is_random(node: fx.Node) -> bool:
    """Whether a node draws numbers; attention and dropout that drop nothing do not."""
    if not torch_private.draws_numbers(node.target):
        return False
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    return given.get("dropout_p", 1) != 0 and given.get("train", True) is not False and given.get("training", True) is not False


def random_nodes(graph: PrimGraph) -> dict[str, fx.Node]:
    """The random prims of a graph and its fused groups, by name."""
    found: dict[str, fx.Node] = {}
    for node in graph.calls():
        inner = getattr(node.target, "graph", None)
        if isinstance(inner, PrimGraph):
            found |= random_nodes(inner)
        elif is_random(node):
            found[node.name] = node
    return found


class Eager(fx.Interpreter):
    """With torch operators, in the graph's own dtypes; ``values`` keeps the value of every node by name.

    Args:
        logical: whether strides are those of row-major tensors, as they are from normalization on, rather than torch's own.
    """

    def __init__(self, module: fx.GraphModule, draws: Draws, *, logical: bool = True) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.draws, self.logical = draws, logical
        self.values: dict[str, Any] = {}

    def run_node(self, node: fx.Node) -> Any:
        if node.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            value = self.call(node, args, kwargs)
        else:
            value = self.given(super().run_node(node))
        self.values[node.name] = value
        return value

    def given(self, value: Any) -> Any:
        """A value from outside."""
        return value

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner = getattr(node.target, "graph", None)
        if isinstance(inner, PrimGraph):
            results = self.inside(inner).run(*args)
            return results[0] if isinstance(node.meta["val"], torch.Tensor) else tuple(results)
        if is_random(node):
            return self.draws.draw(node, args, kwargs)
        if node.target in TRANSFERS:
            return self.transfer(node, args[0])
        if node.target is torch.ops.aten.view.default:
            return args[0].reshape(args[1])  # Where dtypes or kernels are others than in the trace, strides may be, too.
        if self.logical and node.target in _OF_STRIDES:
            args = (args[0].contiguous(), *args[1:])
        return self.compute(node, args, kwargs)

    def inside(self, graph: PrimGraph) -> Eager:
        return Eager(graph.module, self.draws)

    def transfer(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        return value.to(node.meta["val"].dtype)

    def compute(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _called(node.target, args, kwargs)


class Wide(Eager):
    """In float64. With ``noise``, every rounding of the graph's own dtypes goes at random."""

    def __init__(
        self, module: fx.GraphModule, draws: Draws, noise: torch.Generator | None = None, *, logical: bool = True
    ) -> None:
        super().__init__(module, draws, logical=logical)
        self.noise = noise

    def given(self, value: Any) -> Any:
        return same_strides(value, upcast) if isinstance(value, torch.Tensor) else upcast(value)

    def inside(self, graph: PrimGraph) -> Eager:
        return Wide(graph.module, self.draws, self.noise)

    def transfer(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        return value if value.is_floating_point() else super().transfer(node, value)

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = upcast(super().call(node, args, kwargs))
        computed = not isinstance(getattr(node.target, "graph", None), PrimGraph) and node.target not in TRANSFERS
        return self._rounded(node, args, kwargs, value) if self.noise is not None and computed else value

    def compute(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        row = BY_TARGET.get(node.target)
        if row is not None and not isinstance(row.reference, OwnDtype):
            try:
                return evaluate(row, args, kwargs)
            except (TypeError, RuntimeError):
                pass  # arguments of storage that the definition does not have; operators without float64
        if row is None or not isinstance(row.reference, OwnDtype):
            try:
                with float64_by_default():
                    return node.target(*args, **upcast(kwargs))  # type: ignore[operator]
            except (TypeError, RuntimeError, NotImplementedError):
                pass
        own = _narrowed(node, args, kwargs)
        return _called(node.target, *own)

    def _rounded(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
        if isinstance(value, list | tuple):
            outs = node.meta["val"]
            return tuple(self._moved(node, args, kwargs, v, o, k) for k, (v, o) in enumerate(zip(value, outs, strict=True)))
        return self._moved(node, args, kwargs, value, node.meta["val"], 0)

    def _moved(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any, fake: Any, index: int) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        row = BY_TARGET.get(node.target) or COMPOSITE_BY_TARGET.get(node.target)
        dtype = fake.dtype.to_real() if fake.dtype.is_complex else fake.dtype
        converts = any(
            n.meta["val"].dtype != fake.dtype for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)
        )
        exact = row is not None and isinstance(row.bound, Exact)
        if row is not None and exact and not converts and row.name not in ROUNDED:
            return value
        unit = torch.finfo(dtype).eps
        size = value.abs()
        scale = unit * size
        if exact:
            scale = torch.where(value.to(fake.dtype).to(value.dtype) == value, 0.0, scale)
        if row is not None and isinstance(row.bound, Ulp):
            units = row.bound.by_dtype.get(fake.dtype, row.bound.units)
            scale = unit * (max(units, 1.0) * size + row.bound.absolute)
        elif row is not None and isinstance(row.bound, Accumulated):
            summed = min(torch.finfo(torch.float32).eps, unit)
            scale = scale + _summing(row, row.bound, node, args, kwargs, index, size, summed)
        random = torch.rand(value.shape, generator=self.noise, dtype=torch.float64).to(value.device)
        return value + scale.nan_to_num(0, 0, 0) * (2 * random - 1)


def _called(target: Any, args: Any, kwargs: Any) -> Any:
    """What an operator computes; on the CPU where it is one of the CPU alone, as torch's attention of two results is."""
    try:
        return target(*args, **kwargs)
    except NotImplementedError:
        tensors = [x for x in torch_private.pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if all(x.device.type == "cpu" for x in tensors):
            raise
        results = target(*_moved_to("cpu", args), **_moved_to("cpu", kwargs))
        return _moved_to(tensors[0].device, results)


def _moved_to(device: Any, values: Any) -> Any:
    return torch_private.pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), values)


_OF_STRIDES = STRIDED | {torch.ops.aten.view.dtype}
"""Operators for which strides count."""


def same_strides(value: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A copying function of a tensor's elements that keeps its strides, also where elements overlap."""
    if value.numel() == 0:
        return function(value)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return function(value.as_strided((extent,), (1,))).as_strided(value.shape, value.stride())


def _summing(
    row: Any, bound: Accumulated, node: fx.Node, args: Any, kwargs: Any, index: int, size: torch.Tensor, unit: float
) -> torch.Tensor:
    """Rounding errors of a sum: of as many terms as the prim's bound says, of the magnitude that it says."""
    if target_of(row) is not node.target:
        return 64 * unit * size
    try:
        terms = max(bound.terms(*args, **kwargs), 1)
        if bound.magnitude is not None:
            magnitudes = flat(bound.magnitude(*args, **kwargs))
        else:
            magnitudes = flat(evaluate(row, _absolute(args), _absolute(kwargs)))
        magnitude: torch.Tensor = magnitudes[index].abs().double()
    except (TypeError, RuntimeError, IndexError, AttributeError):
        return 64 * unit * size
    return bound.constant * math.sqrt(terms) * unit * magnitude


def _absolute(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.abs() if value.is_floating_point() or value.is_complex() else value
    if isinstance(value, dict):
        return {key: _absolute(item) for key, item in value.items()}
    return type(value)(map(_absolute, value)) if type(value) in (list, tuple) else value


def _narrowed(node: fx.Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments in the dtypes that the node has in the graph."""
    given = torch_private.pytree.tree_leaves((args, kwargs))
    wanted, spec = torch_private.pytree.tree_flatten((node.args, node.kwargs))
    own = [
        one.to(source.meta["val"].dtype)
        if isinstance(source, fx.Node) and isinstance(one, torch.Tensor) and isinstance(source.meta.get("val"), torch.Tensor)
        else one
        for one, source in zip(given, wanted, strict=True)
    ]
    back: tuple[Any, Any] = torch_private.pytree.tree_unflatten(own, spec)
    return back


def interpret(graph: PrimGraph, inputs: Sequence[Any], draws: Draws | None = None) -> list[Any]:
    """The outputs of a graph at any stage, by torch operators."""
    eager = Eager(graph.module, draws or Draws({}, sizes_of(graph, inputs)))
    return list(eager.run(*inputs, *graph.constants.values()))


def may_choose(node: fx.Node) -> bool:
    """Whether a node's results, or those of a prim inside, are right only up to a choice (the order of ties)."""
    inner = getattr(node.target, "graph", None)
    if isinstance(inner, PrimGraph):
        return any(map(may_choose, inner.calls()))
    row = BY_TARGET.get(node.target) or COMPOSITE_BY_TARGET.get(node.target)
    return row is not None and isinstance(row.bound, Property)


def sizes_of(graph: PrimGraph, inputs: Sequence[Any], values: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The values of a graph's shape symbols in a call; with the values of its nodes, those too that only data tells."""
    found: dict[str, int] = {}

    def bind(size: Any, value: Any) -> None:
        if isinstance(size, torch.SymInt | torch.SymFloat) and torch_private.sympy_of(size).is_symbol:
            found.setdefault(str(torch_private.sympy_of(size)), value)

    for node, value in zip(graph.placeholders, inputs, strict=False):
        fake = node.meta["val"]
        bind(fake, value)
        if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor):
            for size, number in zip((*fake.shape, *fake.stride()), (*value.shape, *value.stride()), strict=True):
                bind(size, number)
    for node in graph.calls() if values is not None else ():
        value = values.get(node.name) if values is not None else None
        for fake, one in zip(flat(node.meta.get("val")), flat(value), strict=False):
            bind(fake, one)
            if isinstance(fake, torch.Tensor) and isinstance(one, torch.Tensor):
                for size, number in zip(fake.shape, one.shape, strict=True):
                    bind(size, number)
    return found
