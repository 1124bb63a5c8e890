"""Random graphs of prims: pointwise chains, reductions, views, conversions, joins, products with epilogues.

A graph is made by asking a source of numbers, so that hypothesis can draw it and shrink it, and a seed can repeat it. Every
draw of 0 means the simplest there is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk import OPSET

aten = torch.ops.aten

Pick = Callable[[int], int]
"""``pick(n)``: a number from 0 to n - 1."""

SIZES = (2, 3, 5, 1, 8, 17, 4, 33, 7, 67)
"""Of dimensions, the simplest first."""
LARGEST = 4096
"""Elements of a tensor."""
INPUTS, NODES = 4, 14
HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, *HALVES, torch.float64)


@dataclass(frozen=True)
class Kind:
    """What graphs of a kind are made of.

    Attributes:
        dtypes: of inputs and conversions, the simplest first; the first is that of most tensors.
        dynamic: no argument depends on a size, so that a graph fits inputs of other sizes.
    """

    dtypes: tuple[torch.dtype, ...]
    dynamic: bool = False


KINDS = {
    "float32": Kind((torch.float32, torch.bool, torch.int64)),
    "bfloat16": Kind((torch.bfloat16, torch.float32)),
    "float16": Kind((torch.float16, torch.float32)),
    "float64": Kind((torch.float64, torch.float32, torch.int32)),
    "mixed": Kind((*FLOATS, torch.int32, torch.bool, torch.uint8, torch.int64)),
    "int64": Kind((torch.int64, torch.int32, torch.bool, torch.uint8, torch.float32)),
    "dynamic": Kind((torch.float32, torch.bool, torch.bfloat16), dynamic=True),
}  # fmt: skip
"""By name."""


@dataclass(frozen=True)
class Input:
    """How an input is drawn: ``values`` follow from it alone.

    Attributes:
        shape: places in the list of sizes.
        style: 0 whole numbers and halves, 1 uniform, 2 wide, 3 with special values, 4 an index below ``high``.
        layout: 0 contiguous, 1 transposed, 2 strided slice, 3 expanded along the first dimension.
        seed: of the values.
        high: of an index.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    style: int
    layout: int
    seed: int
    high: int = 0

    def values(self, sizes: Sequence[int], again: int = 0) -> torch.Tensor:
        """The tensor for these sizes; ``again`` names other values of the same kind."""
        generator = torch.Generator().manual_seed(self.seed * 2 + again)
        shape = [sizes[place] for place in self.shape]
        if self.layout == 1:
            return self._dense(shape[::-1], generator).permute(*reversed(range(len(shape))))
        if self.layout == 2 and shape:
            return self._dense([*shape[:-1], 2 * shape[-1] + 1], generator)[..., 1::2]
        if self.layout == 3 and shape:
            return self._dense([1, *shape[1:]], generator).expand(shape)
        return self._dense(shape, generator)

    def _dense(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        if self.style == 4:
            return torch.randint(0, self.high, list(shape), generator=generator)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, list(shape), generator=generator).bool()
        if not self.dtype.is_floating_point:
            low = 0 if self.dtype == torch.uint8 else -9
            values = torch.randint(low, 10, list(shape), generator=generator)
            if self.style == 3 and values.numel():
                info = torch.iinfo(self.dtype)
                ends = torch.tensor([info.min, info.max, info.max - 1])
                places = torch.randint(0, values.numel(), (3,), generator=generator)
                values.view(-1)[places] = ends
            return values.to(self.dtype)
        if self.style == 0:
            return (torch.randint(-6, 7, list(shape), generator=generator) / 2).to(self.dtype)
        values = torch.rand(list(shape), generator=generator, dtype=torch.float64) * 6 - 3
        if self.style == 2:
            values = values * torch.exp2(torch.randint(-12, 10, list(shape), generator=generator).double())
        made = values.to(self.dtype)
        if self.style == 3 and made.numel():
            tiny = torch.finfo(self.dtype).tiny
            special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, tiny, 1.0], dtype=torch.float64)
            places = torch.randint(0, made.numel(), (special.numel(),), generator=generator)
            made.view(-1)[places] = special.to(self.dtype)
        return made


@dataclass
class Drawn:
    """A graph with its inputs.

    Attributes:
        module: calls prims; a node's ``meta["val"]`` is its value on the meta device.
        inputs: one for each placeholder.
        sizes: of dimensions, by place; ``other_sizes`` fit too where the kind is dynamic.
    """

    module: fx.GraphModule
    inputs: list[Input]
    sizes: list[int]
    other_sizes: list[int]

    @property
    def operators(self) -> int:
        return sum(node.op == "call_function" and node.target is not operator.getitem for node in self.module.graph.nodes)

    def values(self, again: int = 0, *, other: bool = False) -> list[torch.Tensor]:
        """Inputs: for other numbers ``again``, for the other sizes ``other``."""
        return [each.values(self.other_sizes if other else self.sizes, again) for each in self.inputs]


def draw(pick: Pick, kind: Kind) -> Drawn:
    """A graph of this kind."""
    return _Maker(pick, kind).made()


@dataclass
class _Maker:
    pick: Pick
    kind: Kind
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[Input] = field(default_factory=list)
    known: list[fx.Node] = field(default_factory=list)
    last: fx.Node | None = None
    """The last input."""

    def made(self) -> Drawn:
        pick = self.pick
        if self.kind.dynamic:
            self.sizes = [5 + pick(4), 9 + pick(3), 12 + pick(20)]
            self.other = [3, 2, 8 + pick(60)]
        else:
            self.sizes = [SIZES[pick(len(SIZES))] for _ in range(3)] + [1]
            if pick(3) == 2:
                self.sizes[1] = self.sizes[0]  # where a wrong order of dimensions fits too
            self.other = self.sizes
        for _ in range(1 + pick(INPUTS)):
            self.input(tuple(pick(len(self.sizes)) for _ in range((2, 1, 3, 0)[pick(4)])), self.dtype())
        for _ in range(1 + pick(NODES)):
            step = STEPS[pick(len(STEPS))]
            node = step(self, self.operand())
            if node is not None:
                self.known.append(node)
        return self.finished()

    def finished(self) -> Drawn:
        pick = self.pick
        computed = [node for node in self.known if node.op != "placeholder"]
        if not computed:
            computed = [self.call("neg" if self.known[0].meta["val"].dtype != torch.bool else "logical_not", self.known[0])]
        chosen = [computed[-1], *(computed[pick(len(computed))] for _ in range(pick(3)))]
        # Results of views alone would be aliases of inputs.
        results = [node if node.target in COMPUTING else self.call("clone", node) for node in dict.fromkeys(chosen)]
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()
        return pruned(fx.GraphModule(torch.nn.Module(), self.graph), self.inputs, self.sizes, self.other)

    # What steps use

    def dtype(self) -> torch.dtype:
        dtypes = self.kind.dtypes
        place = self.pick(len(dtypes) + 3)
        return dtypes[place - 3] if place > 3 else dtypes[0]

    def input(self, shape: tuple[int, ...], dtype: torch.dtype, high: int = 0, style: int | None = None) -> fx.Node:
        pick = self.pick
        style = style if style is not None else (4 if high else (0, 1, 1, 1, 1, 2, 3, 0)[pick(8)])
        layout = 0 if high else (0, 0, 0, 1, 2, 3)[pick(6)]
        drawn = Input(shape, dtype, style, layout if shape else 0, pick(1 << 16), high)
        with self.graph.inserting_after(self.last) if self.last is not None else self.graph.inserting_before(None):
            node = self.graph.placeholder(f"x{len(self.inputs)}")
        self.last = node
        node.meta["val"] = drawn.values(self.sizes).to("meta")
        node.meta["where"] = len(self.inputs)
        self.inputs.append(drawn)
        if not high:
            self.known.append(node)
        return node

    def operand(self, accept: Callable[[torch.Tensor], bool] = lambda value: True) -> fx.Node:
        found = [node for node in reversed(self.known) if accept(node.meta["val"])] or list(reversed(self.known))
        return found[min(self.pick(len(found)), self.pick(len(found)))]

    def call(self, prim: str, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of a prim. Raises ``TypeError`` for a dtype that its row does not have, and what torch raises."""
        row = OPSET[prim]
        data = args[0] if prim == "cat" else args[1:] if prim == "where" else args[:1] if "index" in prim else args
        found = {each.meta["val"].dtype for each in data if isinstance(each, fx.Node)}
        if not found.issubset(row.dtypes):
            raise TypeError(f"{prim} has not all of {found}")
        given, named = fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
        value = row.target(*given, **named)
        node = self.graph.call_function(row.target, args, kwargs)
        node.meta["val"] = value
        return node

    def attempt(self, prim: str, *args: Any, **kwargs: Any) -> fx.Node | None:
        """The call, where torch allows it and the result is of a fair size."""
        try:
            node = self.call(prim, *args, **kwargs)
        except (RuntimeError, TypeError, IndexError):
            return None
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and (value.numel() > LARGEST or value.dim() > 5):
            self.graph.erase_node(node)
            return None
        return node

    def to(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        return node if node.meta["val"].dtype == dtype else self.call("_to_copy", node, dtype=dtype)

    def floating(self, node: fx.Node) -> fx.Node:
        dtype = next((each for each in self.kind.dtypes if each.is_floating_point), torch.float32)
        return node if node.meta["val"].dtype.is_floating_point else self.to(node, dtype)

    def partner(self, node: fx.Node) -> fx.Node:
        """Another value that broadcasts with this one: the same at worst."""
        shape = node.meta["val"].shape

        def fits(value: torch.Tensor) -> bool:
            try:
                return math.prod(torch.broadcast_shapes(value.shape, shape)) <= LARGEST  # type: ignore[no-untyped-call]
            except RuntimeError:
                return False

        return self.operand(fits)

    def fresh(self, shape: Sequence[int], dtype: torch.dtype) -> fx.Node | None:
        """A new input of this shape, where its sizes have places."""
        if len(self.inputs) > 2 * INPUTS or any(size not in self.sizes for size in shape):
            return None
        return self.input(tuple(self.sizes.index(size) for size in shape), dtype)


def pruned(module: fx.GraphModule, inputs: Sequence[Input], sizes: list[int], other: list[int]) -> Drawn:
    """The graph without inputs that nothing reads."""
    kept = []
    for node in list(module.graph.nodes):
        if node.op != "placeholder":
            continue
        if node.users:
            kept.append(inputs[node.meta["where"]])
            node.meta["where"] = len(kept) - 1
        else:
            module.graph.erase_node(node)
    module.recompile()
    return Drawn(module, kept, sizes, other)


# Steps: each adds a node, or a few, or nothing

FINITE = (
    *("neg", "abs", "relu", "tanh", "sigmoid", "sin", "cos", "erf", "exp", "atan", "floor", "round", "sign", "ceil", "trunc"),
    *("expm1", "exp2", "asinh", "cosh"),
)
POSITIVE = ("sqrt", "rsqrt", "log", "reciprocal", "log1p", "log2", "log10")
ARITHMETIC = ("add", "mul", "sub", "maximum", "minimum", "div")
NUMBERS = (2, -1, 0.5, 1.5, 3, -0.25, 0)


def _unary(make: _Maker, x: fx.Node) -> fx.Node | None:
    value = x.meta["val"]
    if value.dtype == torch.bool:
        return make.call("logical_not", x)
    if not value.dtype.is_floating_point:
        return make.attempt(("neg", "abs", "bitwise_not", "relu", "sign")[make.pick(5)], x)
    if make.pick(3) == 2:
        positive = make.call("add", make.call("abs", x), (0.5, 1, 0.25)[make.pick(3)]) if make.pick(4) else x
        return make.call(POSITIVE[make.pick(len(POSITIVE))], positive)
    return make.call(FINITE[make.pick(len(FINITE))], x)


def _binary(make: _Maker, x: fx.Node) -> fx.Node | None:
    other = make.partner(x)
    if make.pick(4) == 3:
        value = x.meta["val"]  # a row or a column of its own
        shape = list(value.shape[-1:]) if make.pick(2) else [*value.shape[-2:-1], 1]
        fresh = make.fresh(shape, value.dtype)
        if fresh is not None:
            other = fresh
    prim = ARITHMETIC[make.pick(len(ARITHMETIC))]
    return make.attempt(prim, *((x, other) if make.pick(2) == 0 else (other, x)))


def _number(make: _Maker, x: fx.Node) -> fx.Node | None:
    number = NUMBERS[make.pick(len(NUMBERS))]
    if not x.meta["val"].dtype.is_floating_point:
        number = int(number * 4)
    return make.attempt(("add", "mul", "sub")[make.pick(3)], x, number)


def _compare(make: _Maker, x: fx.Node) -> fx.Node | None:
    return make.attempt(("lt", "ge", "gt", "le", "eq", "ne")[make.pick(6)], x, make.partner(x))


def _logic(make: _Maker, x: fx.Node) -> fx.Node | None:
    truth = make.operand(lambda value: value.dtype == torch.bool)
    other = make.partner(truth)
    if truth.meta["val"].dtype != torch.bool or other.meta["val"].dtype != torch.bool:
        return make.attempt(("bitwise_and", "bitwise_or", "bitwise_xor")[make.pick(3)], truth, other)
    return make.attempt(("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or")[make.pick(5)], truth, other)


def _select(make: _Maker, x: fx.Node) -> fx.Node | None:
    condition = make.operand(lambda value: value.dtype == torch.bool)
    if condition.meta["val"].dtype != torch.bool:
        condition = make.call("_to_copy", condition, dtype=torch.bool)
    return make.attempt("where", condition, x, make.partner(x))


def _reduce(make: _Maker, x: fx.Node) -> fx.Node | None:
    value = x.meta["val"]
    if not value.dim():
        return None
    dims = [make.pick(value.dim())] if make.pick(4) or value.dim() == 1 else list(range(value.dim()))
    dims = [value.dim() - 1 - dim for dim in dims]
    keep = bool(make.pick(2))
    prim = ("sum", "amax", "mean", "amin", "var", "any", "argmax", "max.dim", "cumsum")[make.pick(9)]
    if 0 in value.shape:
        return None
    if prim == "var":
        counted = math.prod(value.shape[dim] for dim in dims)
        return make.call(prim, make.floating(x), dims, correction=make.pick(2) if counted > 1 else 0, keepdim=keep)
    if prim == "argmax":
        return make.attempt(prim, x, dims[0], keep)
    if prim == "max.dim":
        pair = make.attempt(prim, x, dims[0], keep)
        if pair is None:
            return None
        part = make.pick(2)
        node = make.graph.call_function(operator.getitem, (pair, part))
        node.meta["val"] = pair.meta["val"][part]
        return node
    if prim == "cumsum":
        return make.call(prim, x if value.dtype != torch.bool else make.to(x, torch.int64), dims[0])
    if prim == "mean":
        x = make.floating(x)
    return make.attempt(prim, x, dims, keep)


def _view(make: _Maker, x: fx.Node) -> fx.Node | None:
    value, pick = x.meta["val"], make.pick
    choice = pick(9)
    dim = pick(value.dim()) if value.dim() else 0
    if choice == 0 and value.dim() > 1:
        order = list(range(value.dim()))
        order[dim], order[-1] = order[-1], order[dim]
        if order == sorted(order):
            order = order[::-1]
        return make.call("permute", x, order)
    if choice == 1:
        return make.attempt("unsqueeze", x, pick(value.dim() + 1))
    if choice == 2 and value.dim():
        return make.call("flip", x, [dim])
    if choice == 3 and value.dim() and value.shape[dim] > 1:
        return make.call("slice", x, dim, 1, 1 << 62, 1 + pick(2))
    if choice == 4 and value.dim():
        return make.call("select", x, dim, 0 if make.kind.dynamic else pick(value.shape[dim]) if value.shape[dim] else 0)
    if choice == 5 and not make.kind.dynamic:
        return make.attempt("view", make.call("clone", x), [value.numel()])
    if choice == 6 and not make.kind.dynamic and value.dim() > 1:
        shape = [value.shape[0] * value.shape[1], *value.shape[2:]]
        return make.attempt("view", make.call("clone", x), shape)
    if choice == 7 and not make.kind.dynamic:
        return make.attempt("expand", x, [(2, 3)[pick(2)], *value.shape])
    if choice == 8 and not make.kind.dynamic and value.dim() and value.shape[-1] % 2 == 0 and value.shape[-1]:
        return make.attempt("view", make.call("clone", x), [*value.shape[:-1], 2, value.shape[-1] // 2])
    return None


def _convert(make: _Maker, x: fx.Node) -> fx.Node | None:
    dtypes = [each for each in (*make.kind.dtypes, *HALVES, torch.float32) if each != x.meta["val"].dtype]
    dtype = dtypes[make.pick(len(dtypes))]
    if x.meta["val"].dtype.is_floating_point and dtype == torch.uint8:
        x = make.call("abs", x)  # what a negative number becomes is undefined
    node = make.call("_to_copy", x, dtype=dtype)
    # There and back is not nothing.
    return make.call("_to_copy", node, dtype=x.meta["val"].dtype) if make.pick(3) == 2 else node


def _join(make: _Maker, x: fx.Node) -> fx.Node | None:
    value, pick = x.meta["val"], make.pick
    if not value.dim():
        return None
    dim = pick(value.dim())
    if pick(3) == 2:
        pad = [0, 0] * (value.dim() - 1 - dim) + [(1, 0, 2)[pick(3)], (1, 2, 0)[pick(3)]]
        if not any(pad):
            return None
        return make.attempt("constant_pad_nd", x, pad, 0 if value.dtype == torch.bool else (0, 1)[pick(2)])
    others = [node for node in reversed(make.known) if _alike(node.meta["val"], value, dim)]
    parts = [x, *(others[pick(len(others))] for _ in range(1 + pick(2)))] if others else [x, x]
    return make.attempt("cat", parts, dim)


def _alike(one: torch.Tensor, other: torch.Tensor, dim: int) -> bool:
    """Whether tensors can be joined along a dimension."""
    if one.dim() != other.dim() or one.dtype != other.dtype:
        return False
    return all(a == b for place, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if place != dim)


def _index(make: _Maker, x: fx.Node) -> fx.Node | None:
    value, pick = x.meta["val"], make.pick
    if not value.dim() or make.kind.dynamic or 0 in value.shape:
        return None
    dim = pick(value.dim())
    places = (pick(len(make.sizes)),)
    index = make.input(places, torch.int64, high=value.shape[dim])
    if pick(2):
        return make.attempt("index_select", x, dim, index)
    return make.attempt("index", x, [*([None] * dim), index])


def _product(make: _Maker, x: fx.Node) -> fx.Node | None:
    x = make.floating(x)
    value, pick = x.meta["val"], make.pick
    if value.dim() not in (2, 3):
        return None
    width = make.sizes[pick(len(make.sizes))]
    shape = [*value.shape[:-2], value.shape[-1], width]
    fresh = make.fresh(shape, value.dtype)
    if fresh is None:
        order = list(range(value.dim()))
        order[-1], order[-2] = order[-2], order[-1]
        fresh = make.call("permute", x, order)
    found = make.attempt("mm" if value.dim() == 2 else "bmm", x, fresh)
    if found is None or pick(2) == 0:
        return found
    bias = make.fresh([found.meta["val"].shape[-1]], found.meta["val"].dtype)
    if bias is not None:
        found = make.call("add", found, bias)
    return make.call(("relu", "tanh", "sigmoid", "neg")[pick(4)], found)


def _softmax(make: _Maker, x: fx.Node) -> fx.Node | None:
    x = make.floating(x)
    value = x.meta["val"]
    if not value.dim() or 0 in value.shape:
        return None
    dim = value.dim() - 1 - make.pick(value.dim())
    powers = make.call("exp", make.call("sub", x, make.call("amax", x, [dim], True)))
    return make.call("div", powers, make.call("sum", powers, [dim], True))


def _normalized(make: _Maker, x: fx.Node) -> fx.Node | None:
    x = make.floating(x)
    value = x.meta["val"]
    if not value.dim() or 0 in value.shape:
        return None
    dim = value.dim() - 1 - make.pick(value.dim())
    if make.pick(2):
        size = make.call("mean", make.call("mul", x, x), [dim], True)
        return make.call("mul", x, make.call("rsqrt", make.call("add", size, 0.125)))
    middle = make.call("sub", x, make.call("mean", x, [dim], True))
    spread = make.call("var", x, [dim], correction=0, keepdim=True)
    return make.call("mul", middle, make.call("rsqrt", make.call("add", spread, 0.125)))


def _gated(make: _Maker, x: fx.Node) -> fx.Node | None:
    x = make.floating(x)
    if make.pick(2):
        return make.call("mul", x, make.call("sigmoid", x))
    inner = make.call("add", x, make.call("mul", make.call("mul", x, make.call("mul", x, x)), 0.03125))
    return make.call("mul", make.call("mul", x, 0.5), make.call("add", make.call("tanh", inner), 1))


STEPS: tuple[Callable[[_Maker, fx.Node], fx.Node | None], ...] = (
    _unary, _binary, _number, _reduce, _view, _convert, _binary, _select, _unary, _reduce, _join, _view, _compare, _softmax,
    _normalized, _gated, _product, _index, _logic, _convert, _binary, _view,
)  # fmt: skip
COMPUTING = frozenset(row.target for row in OPSET.values() if not row.is_view)
