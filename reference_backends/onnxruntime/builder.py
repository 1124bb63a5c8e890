"""Builder: grows one ONNX graph, node by node; what every translation rule speaks.

A rule gets a ``Builder``, the outline of the node's result and the node's arguments, and returns the result as values of the
graph. What ONNX cannot express exactly is refused by raising ``Untranslatable``, which becomes the ``Decline`` of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

OPSET = 23
"""ONNX opset of models: 20 brought the bool reductions that rules rely on, 23 Attention and RMSNormalization."""
NEWER = {"BitCast": 26}
"""Operators of later opsets: a model that has one is of that opset."""
CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
SEEDS = "seeds"
"""The input that comes after all others in a model with random numbers: an int64 for each random node."""
IR_VERSIONS = {23: 11, 26: 13}
"""The IR version that belongs to an opset; without it the onnx package writes its newest, which runtimes may not read."""

ELEMENT_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.float16: TensorProto.FLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
    torch.int16: TensorProto.INT16,
    torch.uint64: TensorProto.UINT64,
    torch.float8_e4m3fn: TensorProto.FLOAT8E4M3FN,
    torch.float8_e5m2: TensorProto.FLOAT8E5M2,
}
"""torch dtype to ONNX element type, for the dtypes of this backend; int16, which the bits of halves are read as; uint64, in
which random words are made."""

_DROPPED = {
    torch.float32: (torch.float16,),
    torch.float64: (torch.float16,),
    torch.float16: (torch.bfloat16,),
}
"""Conversions, by the dtype that they begin with, that ONNX Runtime's optimizers take back where others follow."""

WITHOUT = "vendor_sdk.without"
"""The key, in a model's metadata, of the optimizer of ONNX Runtime that its sessions do without: MatMulScaleFusion takes a
factor of a product of float64 as a float32 (``docs/found``: ``onnxruntime_matmul_scale.py``)."""

ARRAY_TYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.int16: np.int16,
    torch.uint64: np.uint64,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}


class Untranslatable(Exception):
    """A node that these rules do not translate; the message is the reason shown to users."""


@dataclass(frozen=True)
class Value:
    """A value of the ONNX graph."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Operand(Value):
    """A tensor of the prim graph, whose shape is known: sizes are ``int``, or ``torch.SymInt`` where dynamic."""

    shape: tuple[Any, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Number(Value):
    """A number known at run time only: a 0-d tensor (int64 for sizes, float64 for floats, bool)."""


@dataclass(frozen=True)
class Outline:
    """dtype and shape of a result, as torch's meta rule gives them."""

    dtype: torch.dtype
    shape: tuple[Any, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


def read(outlines: Sequence[Outline | None]) -> Outline:
    """One of the outlines of several results: those that nobody reads have none."""
    return next(each for each in outlines if each is not None)


Outlines = Sequence[Outline | None]
"""Those of the results of a prim with several; ``None`` for one that nobody reads."""


@dataclass(frozen=True)
class Operator:
    """What a kernel is asked for: an operator with one result, which has the dtype of its first input.

    Attributes:
        kind: its name.
        inputs: dtype of each, and its sizes where they are known, dynamic ones as expressions; None for one that is left out.
        attributes: names and values.
        domain: ``CONTRIB``, or "" for a standard one.
    """

    kind: str
    inputs: tuple[tuple[torch.dtype, tuple[int | str, ...] | None] | None, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    domain: str = ""

    @staticmethod
    def of(kind: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any], domain: str = "") -> Operator:
        return Operator(kind, tuple(map(_described, inputs)), tuple(attributes.items()), domain)


def _described(value: Value | None) -> tuple[torch.dtype, tuple[int | str, ...] | None] | None:
    if value is None:
        return None
    shape = value.shape if isinstance(value, Operand) else None
    return value.dtype, None if shape is None else tuple(size if isinstance(size, int) else str(size) for size in shape)


Subgraph = Callable[["Builder", Sequence[Value]], list["Operand"]]
"""The subgraph of a control prim as its rule gets it: translates it into a builder, on operands, and returns its outputs."""

Rule = Callable[..., Any]
"""Called as ``rule(builder, outline, *args, **kwargs)`` with the node's arguments: tensors as ``Operand``, run-time numbers as
``Number``, subgraphs as ``Subgraph``, the rest as it stands; ``outline`` is one ``Outline``, or for a prim with several results
a tuple, with ``None`` for a result that nobody reads. Returns a ``Value``, or a tuple of them."""


class Builder:
    """One ONNX graph under construction.

    Args:
        stem: begins every name in it.
        random: whether whoever runs it gives seeds.
        guarded: whether ONNX Runtime's CPU provider runs it, which computes float16 in float32: conversions to halves are kept
            from it, which it would drop before (``docs/found``: ``onnxruntime_half_conversion.py``,
            ``onnxruntime_half_round_trip.py``).
        has: whether whoever runs it has a kernel for an operator; None of standard ONNX, which anyone may run.
    """

    def __init__(
        self,
        stem: str = "",
        *,
        random: bool = True,
        guarded: bool = False,
        has: Callable[[Operator], bool] | None = None,
    ) -> None:
        self._stem, self._random, self._guarded, self._has = stem, random, guarded, has
        self.scope = ""  # names the node being translated; ONNX Runtime's messages show it
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[tuple[Any, ...], Value] = {}
        self._plain: set[str] = set()  # values known to hold no negative zero
        self._floored: set[str] = set()  # values known to hold nothing below zero
        self._unfolded: dict[str, tuple[Value, list[int]]] = {}  # reshaped values to what they were before, with its sizes
        self.goes_on = False  # the node being translated is read by floating point arithmetic alone
        self.doubles = False  # whether there are products of float64, whose factors an optimizer rounds
        self._count = 0
        self._drawn = 0
        self._transposed: dict[str, tuple[Value, list[int]]] = {}  # transposes to what they are of, with the order
        self.opset = OPSET
        self.standard = True  # no node is of ONNX Runtime's own

    # Boundary

    def operand(self, dtype: torch.dtype, shape: Sequence[Any], name: str = "") -> Operand:
        """A new graph input."""
        name = name or self._name("x")
        self.inputs.append(value_info(name, dtype, shape))
        return Operand(name, dtype, tuple(shape))

    def open_operand(self, dtype: torch.dtype) -> Value:
        """A new graph input of any shape."""
        name = self._name("x")
        self.inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], None))
        return Value(name, dtype)

    def number(self, value: Any) -> Number:
        """A new graph input for a run-time number of the kind of ``value`` (``torch.SymInt``, ``SymFloat``, ``SymBool``)."""
        if isinstance(value, torch.SymBool | bool):
            dtype = torch.bool
        elif isinstance(value, torch.SymFloat | float):
            dtype = torch.float64
        else:
            dtype = torch.int64
        name = self._name("n")
        self.inputs.append(value_info(name, dtype, ()))
        return Number(name, dtype)

    def seed(self) -> Value:
        """The seed of the node being translated, 0-d int64."""
        if not self._random:
            raise Untranslatable("random numbers, inside of a branch or loop or in a file, have no translation")
        self._drawn += 1
        place = self.constant(self._drawn - 1)
        return self.op("Gather", Value(SEEDS, torch.int64), place, axis=0)

    def model(self, results: Sequence[tuple[Value, Outline]], *, exact_shapes: bool = True) -> onnx.ModelProto:
        """The graph as a model with ``results`` as its outputs, in order.

        Args:
            exact_shapes: otherwise an output may have the elements in another shape, which saves ONNX Runtime a copy.
        """
        produced = {name for node in self.nodes for name in node.output}
        outputs = []
        for value, outline in results:
            while not exact_shapes and value.name in self._unfolded and self._unfolded[value.name][0].name in produced:
                value, sizes = self._unfolded[value.name]
                outline = Outline(outline.dtype, tuple(sizes))
            name = value.name
            if name in produced:
                produced.remove(name)
            else:  # an input, a constant, or an output listed before: a graph output must be a node's own
                name = self._name("y")
                self.nodes.append(helper.make_node("Identity", [value.name], [name], name=name))
            outputs.append(value_info(name, outline.dtype, outline.shape))
        if self._drawn:
            self.inputs.append(value_info(SEEDS, torch.int64, [self._drawn]))
        graph = self._graph("partition", outputs)
        model = helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid("", self.opset),
                *([] if self.standard else [helper.make_opsetid(CONTRIB, 1)]),
            ],
            ir_version=IR_VERSIONS[self.opset],
            producer_name="vendor_sdk",
        )
        if self.doubles:
            helper.set_model_props(model, {WITHOUT: "MatMulScaleFusion"})
        return model

    def child(self) -> Builder:
        """For a graph inside a node of this one; it may use this one's values."""
        return Builder(stem=self._name("g") + "_", random=False, guarded=self._guarded, has=self._has)

    def inner(self, child: Builder, name: str, results: Sequence[Value]) -> onnx.GraphProto:
        """The graph of a child, with ``results``, its own or this graph's values, as its outputs; shapes stay open."""
        self.opset = max(self.opset, child.opset)
        self.standard = self.standard and child.standard
        self.doubles |= child.doubles
        outputs = []
        for value in results:
            out = child.op("Identity", value)
            outputs.append(helper.make_tensor_value_info(out.name, ELEMENT_TYPES[out.dtype], None))
        return child._graph(name, outputs)

    def _graph(self, name: str, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
        """What ``outputs`` depend on, with all inputs: rules with several results compute some that nobody reads."""
        nodes = _needed(self.nodes, {each.name for each in outputs})
        read = {name for node in nodes for name in reads(node)}
        constants = [each for each in self.initializers if each.name in read]
        return helper.make_graph(nodes, name, self.inputs, outputs, initializer=constants)

    # Nodes

    def op(self, kind: str, *inputs: Value | None, dtype: torch.dtype | None = None, **attributes: Any) -> Value:
        """A node with one result. Its dtype is ``dtype``, or that of the first input; ``None`` is an input left out."""
        return self.ops(kind, *inputs, dtypes=[dtype or _first(inputs).dtype], **attributes)[0]

    def ops(self, kind: str, *inputs: Value | None, dtypes: Sequence[torch.dtype], **attributes: Any) -> tuple[Value, ...]:
        """A node with one result for each of ``dtypes``."""
        results = tuple(Value(self._name(kind.lower()), dtype) for dtype in dtypes)
        names = ["" if each is None else each.name for each in inputs]
        while names and not names[-1]:  # fusions of ONNX Runtime take a name of "" for an input
            del names[-1]
        name = f"{self.scope}/{results[0].name}"
        self.opset = max(self.opset, NEWER.get(kind, 0))
        self.doubles |= kind == "MatMul" and dtypes[0] == torch.float64
        self.nodes.append(helper.make_node(kind, names, [each.name for each in results], name=name, **attributes))
        return results

    def runs(self, kind: str, *inputs: Value | None, domain: str = "", **attributes: Any) -> bool:
        """Whether whoever runs the graph has a kernel for this node: for a rule that has another way."""
        return not domain if self._has is None else self._has(Operator.of(kind, inputs, attributes, domain))

    @property
    def branches(self) -> bool:
        """Whether a rule may have an If: the CPU provider runs it in place, others may leave it to that one."""
        return self._guarded

    def contrib(self, kind: str, *inputs: Value | None, **attributes: Any) -> Value | None:
        """As ``op``, of one of ONNX Runtime's own operators; None where whoever runs the graph has no kernel for it."""
        if not self.runs(kind, *inputs, domain=CONTRIB, **attributes):
            return None
        self.standard = False
        return self.op(kind, *inputs, domain=CONTRIB, **attributes)

    def constant(self, value: Any, dtype: torch.dtype = torch.int64) -> Value:
        """A constant tensor (an initializer); ``value`` is a number, a nested list or a numpy array."""
        array = np.asarray(value).astype(ARRAY_TYPES[dtype])
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._name("c")
            self.initializers.append(helper.make_tensor(name, ELEMENT_TYPES[dtype], array.shape, array.tobytes(), raw=True))
            self._constants[key] = Value(name, dtype)
            if not np.any((array == 0) & np.signbit(array.astype(np.float64))):
                self._plain.add(name)
        return self._constants[key]

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """``value`` in ``dtype``, by ONNX's conversion: defined for what fits the dtype."""
        if value.dtype == dtype:
            return value
        if dtype not in ELEMENT_TYPES:
            raise Untranslatable(f"no ONNX type for {str(dtype).removeprefix('torch.')}")
        return self.op("Cast", value, dtype=dtype, to=ELEMENT_TYPES[dtype])

    def rounded(self, value: Value, dtype: torch.dtype) -> Value:
        """As ``cast``, for a conversion that the program asks for: its result has the digits of ``dtype`` and no more."""
        result = self.cast(value, dtype)
        if not self._guarded or dtype not in _DROPPED.get(value.dtype, ()):
            return result
        bits = self.op("BitCast", result, dtype=torch.int16, to=TensorProto.INT16)
        return self.op("BitCast", bits, dtype=dtype, to=ELEMENT_TYPES[dtype])

    def tensor(self, value: Any, dtype: torch.dtype) -> Value:
        """An operand as a value of ``dtype``: tensors are cast, numbers become 0-d constants."""
        return self.cast(value, dtype) if isinstance(value, Value) else self.constant(value, dtype)

    # Shapes

    def sizes(self, sizes: Sequence[Any]) -> Value:
        """A 1-d int64 tensor of sizes, each an ``int`` or a ``Value`` (0-d int64)."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, dtype=np.int64))
        zero = self.constant([0])
        parts = [
            self.constant([size]) if isinstance(size, int) else self.op("Unsqueeze", self.cast(size, torch.int64), zero)
            for size in sizes
        ]
        return self.op("Concat", *parts, axis=0)

    def size(self, operand: Operand, dim: int) -> Any:
        """Size of a dimension: an ``int``, or a 0-d int64 ``Value`` where it is dynamic."""
        size = operand.shape[dim]
        if isinstance(size, int):
            return size
        shape = self.op("Shape", operand, dtype=torch.int64)
        return self.op("Gather", shape, self.constant(dim % operand.rank), axis=0)

    def shape(self, operand: Operand) -> Value:
        """The shape as a 1-d int64 tensor."""
        if all(isinstance(size, int) for size in operand.shape):
            return self.sizes(operand.shape)
        return self.op("Shape", operand, dtype=torch.int64)

    def count(self, operand: Operand, dims: Sequence[int]) -> Value:
        """The number of elements over ``dims``, 0-d int64."""
        known = 1
        unknown: list[Value] = []
        for dim in dims:
            size = self.size(operand, dim)
            if isinstance(size, int):
                known *= size
            else:
                unknown.append(size)
        total = self.constant(known)
        for size in unknown:
            total = self.op("Mul", total, size)
        return total

    def reshape(self, value: Value, sizes: Sequence[Any]) -> Value:
        """The elements in another shape; ``-1`` for one size may be used where no size is zero."""
        return self.op("Reshape", value, self.sizes(sizes), allowzero=int(-1 not in sizes))

    def folded(self, value: Value, before: Sequence[Any], sizes: Sequence[Any]) -> Value:
        """``reshape`` of a value whose sizes are ``before``."""
        result = self.reshape(value, sizes)
        if all(isinstance(size, int) for size in (*before, *sizes)):
            self._unfolded[result.name] = value, list(before)
        return result

    def flat(self, operand: Operand) -> Value:
        """The elements in row-major order, 1-d."""
        known = all(isinstance(size, int) for size in operand.shape)
        return self.reshape(
            operand, [int(np.prod(operand.shape, dtype=np.int64)) if known else self.count(operand, range(operand.rank))]
        )

    def squeeze(self, value: Value, *dims: int) -> Value:
        return self.op("Squeeze", value, self.constant(list(dims)))

    def unsqueeze(self, value: Value, *dims: int) -> Value:
        return self.op("Unsqueeze", value, self.constant(list(dims)))

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Dimensions reordered; nothing where they stay in place, or come back to it."""
        value, before = self._transposed.get(value.name, (value, list(range(len(order)))))
        order = [before[axis] for axis in order]
        if order == list(range(len(order))):
            return value
        result = self.op("Transpose", value, perm=order)
        self._transposed[result.name] = value, order
        return result

    def untransposed(self, value: Value, order: Sequence[int]) -> Value | None:
        """What ``value`` is the transpose of, by this order; None where it is none."""
        source, given = self._transposed.get(value.name, (value, []))
        return source if given == list(order) else None

    # Choices

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        """``yes`` where the condition holds, else ``no``; bool values pass as uint8, which Where has.

        ONNX Runtime's Where drops the sign of zeros that come from ``yes`` (it merges both sides by whether that one is zero):
        put the side that has no negative zeros there, or use ``select``.
        """
        if yes.dtype != torch.bool:
            return self.op("Where", condition, yes, no, dtype=yes.dtype)
        wide = (self.cast(each, torch.uint8) for each in (yes, no))
        return self.cast(self.op("Where", condition, *wide, dtype=torch.uint8), torch.bool)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """``where`` that keeps the signs of zeros from both sides."""
        if not yes.dtype.is_floating_point or self._never_negative_zero(yes):
            return self.where(condition, yes, no)
        other = self.opposite(condition)
        if self._never_negative_zero(no):
            return self.where(other, no, yes)
        one = self.constant(1, yes.dtype)
        chosen = self.where(other, one, yes)
        negative = self.compare("Less", self.op("Div", one, chosen), self.constant(0, yes.dtype))
        lost = self.op("And", negative, self.compare("Equal", chosen, self.constant(0, yes.dtype)))
        sign = self.op("Sub", one, self.op("Mul", self.cast(lost, yes.dtype), self.constant(2, yes.dtype)))
        return self.op("Mul", self.where(condition, yes, no), sign)

    def repeated(self, value: Value, sizes: Sequence[Any]) -> Value:
        """``value`` expanded to ``sizes``."""
        result = self.op("Expand", value, self.sizes(sizes)) if sizes else value
        if value.name in self._plain:
            self._plain.add(result.name)
        return result

    def floored(self, value: Value) -> Value:
        """``value``, which holds nothing below zero; a NaN it may hold."""
        self._floored.add(value.name)
        return value

    def is_floored(self, value: Value) -> bool:
        return value.name in self._floored

    def _never_negative_zero(self, value: Value) -> bool:
        return value.name in self._plain

    def compare(self, kind: str, left: Value, right: Value) -> Value:
        """``Equal``, ``Less``, ``LessOrEqual``, ``Greater`` or ``GreaterOrEqual``."""
        return self.op(kind, left, right, dtype=torch.bool)

    def invert(self, condition: Value) -> Value:
        return self.op("Not", condition)

    def opposite(self, condition: Value) -> Value:
        """``invert`` for a Where whose sides must stay: ONNX Runtime swaps the sides of a Where over a Not."""
        return self.op("Xor", condition, self.constant(True, torch.bool))

    def is_nan(self, value: Value) -> Value:
        return self.op("IsNaN", value, dtype=torch.bool)

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{self._stem}{stem}{self._count}"


def value_info(name: str, dtype: torch.dtype, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    """The declaration of a tensor; a dynamic size is a dimension parameter named by its expression."""
    if dtype not in ELEMENT_TYPES:
        raise Untranslatable(f"no ONNX type for {str(dtype).removeprefix('torch.')}")
    return helper.make_tensor_value_info(
        name, ELEMENT_TYPES[dtype], [size if isinstance(size, int) else str(size) for size in shape]
    )


def elsewhere(name: str, dtype: torch.dtype, shape: Sequence[int], **place: str | int) -> onnx.TensorProto:
    """The declaration of an initializer whose values are in another file, ``place``: location, offset and length in bytes."""
    tensor = onnx.TensorProto(name=name, data_type=ELEMENT_TYPES[dtype], dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (place or {"location": "static"}).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def static(shape: Sequence[Any], what: str) -> tuple[int, ...]:
    """``shape`` where every size is known; raises ``Untranslatable`` where one is dynamic."""
    if not all(isinstance(size, int) for size in shape):
        raise Untranslatable(f"{what} with dynamic sizes ({', '.join(map(str, shape))}) has no translation")
    return tuple(shape)


def normalized(dim: int, rank: int) -> int:
    """A dimension counted from the front; a 0-d tensor counts as having one dimension."""
    return dim % max(rank, 1)


def _needed(nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes that ``outputs`` depend on."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(reads(node))
            kept.append(node)
    return kept[::-1]


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node refers to, those inside its graphs too: these see the values around them."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from (output.name for output in attribute.g.output)
            for inner in attribute.g.node:
                yield from reads(inner)


def _first(inputs: Sequence[Value | None]) -> Value:
    return next(each for each in inputs if each is not None)
