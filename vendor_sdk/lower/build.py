"""Building one loop kernel from prim nodes: params, symbols, statements, and access to operands through views.

A lowering is written for one element of its result: it opens a nest over the result and stores. The same function serves a
node that stands alone (the nest becomes loops, the store a ``Store``) and a node inside a fused group (``element``: the nest
yields the index that a reader asked for, the store hands it the value). So fusion needs no second description of any prim.

Pure statements stand in the outermost body that has their operands, once: what does not depend on an inner loop is never
inside it, and equal expressions of one body are one value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    LoopKernel,
    Nest,
    Param,
    Range,
    Reduce,
    Scalar,
    Scan,
    Stmt,
    Store,
    StoreMode,
    Symbol,
)
from vendor_sdk.ir.loop_ops import ACCEPTS, NARROW, OPS
from vendor_sdk.ir.orders import strides_of
from vendor_sdk.lower.integers import CHECKED, COMPARISONS, EXTREMES, PLACES, SMALL, Affine, combined, fits, place
from vendor_sdk.lower.view import read_through
from vendor_sdk.prims.opset import BY_TARGET

Node = torch.fx.Node
Argument = Any
"""What stands in a node's arguments: a ``Node``, a Python number, a list of these, a dtype, None."""


@dataclass(frozen=True)
class Layout:
    """How a materialised value lies in its buffer: strides in elements, from the buffer's first element."""

    strides: tuple[Int, ...]


LayoutOf = Callable[[Node], Layout | None]
"""``None`` for a view node, to be folded into the index map of whoever reads it."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a result, which is contiguous."""

    shape: tuple[Int, ...]
    dtype: torch.dtype


@dataclass
class Block:
    """A body under construction, with the pure values it holds by what computes them."""

    stmts: list[Stmt] = field(default_factory=list)
    known: dict[Any, Any] = field(default_factory=dict)


@dataclass
class Request:
    """One element of a fused node's results that a reader asks for; ``values`` fills as the lowering stores."""

    index: tuple[Int, ...]
    opened: bool = False
    values: dict[int, Value] = field(default_factory=dict)


ROUNDS = frozenset(("_to_copy", "view.dtype"))
"""Prims whose half results are rounded inside a fused kernel too; between others the rounding to a half is left out."""
TRAPS = frozenset(("floordiv", "truncdiv", "mod", "fmod"))
"""Ops that report an integer divisor of zero: where a masked region does not run, they divide by one."""


@dataclass(frozen=True)
class Lowered:
    """A node as a kernel.

    Attributes:
        kernel: its params are ``inputs`` (role "in") followed by ``outputs`` (role "out").
        inputs: the materialised nodes to pass, each once.
        outputs: the results, in the order of the operator's.
        symbols: names of ``kernel.symbols``: shape symbols (role "size"), fx nodes that hold a number (role "scalar"), and
            "seed" numbers to draw for each call (role "seed").
    """

    kernel: LoopKernel
    inputs: tuple[Node, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A typed value of the body under construction."""

    name: str
    dtype: torch.dtype


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on ``dtype`` is done in: float32 for what is narrower, as torch does on the CPU."""
    return torch.float32 if dtype in NARROW else dtype


def contiguous_strides(shape: Sequence[Int]) -> tuple[Int, ...]:
    strides: list[Int] = []
    step = ix.ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def is_tensor(argument: Argument) -> bool:
    """Whether an argument is a node that stands for a tensor."""
    return isinstance(argument, Node) and isinstance(argument.meta["val"], torch.Tensor)


def fake(argument: Argument) -> Any:
    """The fake value of a node; anything else as it is."""
    return argument.meta["val"] if isinstance(argument, Node) else argument


def result_of(node: Node) -> tuple[Node, int]:
    """The node that computes a value, and which of its results the value is."""
    if node.target is operator.getitem:
        source, output = node.args
        assert isinstance(source, Node)
        assert isinstance(output, int)
        return source, output
    return node, 0


def arguments(node: Node) -> dict[str, Argument]:
    """The node's arguments by the names of its schema, defaults included."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        raise LoweringError(f"'{node.target}' has no operator schema", fix="lower only nodes whose target is an ATen overload")
    bound: dict[str, Argument] = {}
    for position, parameter in enumerate(schema.arguments):
        if position < len(node.args) and not parameter.kwarg_only:
            bound[parameter.name] = node.args[position]
        elif parameter.name in node.kwargs:
            bound[parameter.name] = node.kwargs[parameter.name]
        elif parameter.has_default_value():
            bound[parameter.name] = parameter.default_value
    return bound


class Builder:
    """One kernel under construction.

    Lowering functions open loops with ``nest``, make values with ``load``, ``const``, ``compute`` and ``reduce``, and write
    results with ``store``.
    """

    def __init__(self, node: Node, name: str, layout: LayoutOf) -> None:
        self.node = node
        self.name = name
        self.layout = layout
        self.args = arguments(node)
        self.outputs: list[TensorSpec] = [
            TensorSpec(self.sizes(v.shape), v.dtype) for v in self._results() if isinstance(v, torch.Tensor)
        ]
        self.orders: dict[int, Sequence[int]] = {}
        """Of results that are stored with their dimensions in another order."""
        self._inputs: dict[Node, Param] = {}
        self._scratch: dict[int, Param] = {}
        self._buffers: list[Param] = []
        self._symbols: dict[str, Symbol] = {}
        self._nests: list[Nest] = []
        self._stack: list[Block] = []
        self._depth: dict[str, int] = {}
        """Loop variables and values to the position in the stack of the body that has them."""
        self._whole: dict[str, Value] = {}
        """Floating point values that are integers, of ``BYTES``, by name."""
        self._count = 0
        self._request: Request | None = None
        self._made_of: dict[str, tuple[Int | Value | None, ...]] = {}
        """What pure values are made of, by name."""
        self._affine: dict[str, Affine] = {}
        """What is known of int64 values, by name."""
        self._places: dict[str, Int] = {}
        """Int64 values that are index expressions, by name."""
        self._mask: Value | None = None
        """Inside a masked read of a fused node: where its operands may be read."""

    def _results(self) -> tuple[Any, ...]:
        value = self.node.meta["val"]
        return tuple(value) if isinstance(value, tuple | list) else (value,)

    def fail(self, reason: str) -> LoweringError:
        """The error to raise when this node's case is not lowered."""
        return LoweringError(f"'{self.node.target}' is not lowered here: {reason}")

    # Sizes and shapes

    def size(self, value: Argument) -> Int:
        """A size or integer argument (int, SymInt or a node of one) as an index expression."""
        if isinstance(value, Int):
            return value
        value = fake(value)
        if not isinstance(value, int | torch.SymInt):
            raise self.fail(f"{value!r} is not an integer")
        try:
            return ix.from_size(value)
        except ValueError as error:
            raise self.fail(str(error)) from None

    def sizes(self, values: Sequence[Argument]) -> tuple[Int, ...]:
        return tuple(self.size(v) for v in values)

    def integer(self, value: Argument) -> int:
        """An integer argument that must be static."""
        constant = self.size(value).value
        if constant is None:
            raise self.fail("a symbolic argument where only a static one is lowered")
        return constant

    def shape(self, argument: Argument) -> tuple[Int, ...]:
        return self.sizes(fake(argument).shape)

    def dtype(self, argument: Argument) -> torch.dtype:
        dtype: torch.dtype = fake(argument).dtype
        return dtype

    def dims(self, dims: Argument, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
        """Dimension arguments as sorted non-negative ints; None (or empty, on request) means all."""
        if isinstance(dims, int):
            dims = [dims]
        if dims is None or (empty_is_all and not dims):
            return tuple(range(rank))
        return tuple(sorted({d % rank if rank else 0 for d in dims})) if rank else ()

    # Loops

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def _ranges(self, sizes: Sequence[Int], prefix: str) -> tuple[tuple[Range, ...], tuple[Int, ...]]:
        ranges = tuple(Range(self._fresh(prefix), size) for size in sizes)
        return ranges, tuple(ix.variable(r.var, r.size) for r in ranges)

    @contextmanager
    def _block(self, ranges: Sequence[Range] = ()) -> Iterator[Block]:
        block = Block()
        self._depth.update((r.var, len(self._stack)) for r in ranges)
        self._stack.append(block)
        try:
            yield block
        finally:
            self._stack.pop()

    @contextmanager
    def nest(
        self, sizes: Sequence[Int], back: Callable[[tuple[Int, ...]], tuple[Int, ...]] = lambda index: index
    ) -> Iterator[tuple[Int, ...]]:
        """Independent loops over ``sizes``; yields the loop variables. Inside a body it is an inner loop.

        Where the node is fused, the outermost nest of its lowering is no loop: it yields the loop variables of the one
        iteration that stores the element asked for, which ``back`` finds from the element's index.
        """
        if self._request is not None and not self._request.opened:
            self._request.opened = True
            yield back(self._request.index)
            return
        ranges, variables = self._ranges(sizes, "i")
        with self.loops(ranges):
            yield variables

    @contextmanager
    def loops(self, ranges: Sequence[Range]) -> Iterator[None]:
        """As ``nest``, over given ranges, never elided."""
        with self._block(ranges) as block:
            yield
        nest = Nest(tuple(ranges), tuple(block.stmts))
        if self._stack:
            self._stack[-1].stmts.append(nest)
        else:
            self._nests.append(nest)

    def reduce(
        self, sizes: Sequence[Int], body: Callable[[tuple[Int, ...]], Sequence[tuple[Any, ...]]]
    ) -> tuple[Value | tuple[Value, Value], ...]:
        """Reduces over ``sizes``. ``body`` receives the loop variables and returns ``(op, value)`` or ``(op, value, position)``
        for each accumulator; the results come back in that order, as pairs for the latter."""
        ranges, variables = self._ranges(sizes, "r")
        if not ranges:
            return tuple(self._of_one(*each) for each in body(variables))
        with self._block(ranges) as block:
            combined = body(variables)
        accumulators, results = self._accumulators(combined)
        self._emit(Reduce(ranges, tuple(block.stmts), accumulators))
        return results

    def _of_one(self, op: str, value: Value, position: Value | None = None) -> Value | tuple[Value, Value]:
        """What a reduction of one element results in; a sum begins with zero, so that it is never the negative one."""
        if op == "sum" and value.dtype.is_floating_point:
            return self.compute("add", value, self.const(0, value.dtype))
        return value if position is None else (value, position)

    def reduce1(self, sizes: Sequence[Int], op: str, body: Callable[[tuple[Int, ...]], Value]) -> Value:
        """As ``reduce``, with one accumulator of one result."""
        (result,) = self.reduce(sizes, lambda r: [(op, body(r))])
        assert isinstance(result, Value)
        return result

    def _accumulators(self, combined: Sequence[tuple[Any, ...]]) -> tuple[tuple[Accumulator, ...], tuple[Any, ...]]:
        accumulators, results = [], []
        for op, *values in combined:
            made = tuple(self._value(v.dtype, "a", len(self._stack) - 1) for v in values)
            accumulators.append(Accumulator(tuple(v.name for v in made), op, tuple(v.name for v in values), values[0].dtype))
            results.append(made[0] if len(made) == 1 else made)
        return tuple(accumulators), tuple(results)

    def scan(
        self,
        size: Int,
        body: Callable[[Int], Sequence[tuple[Any, ...]]],
        then: Callable[[Int, tuple[Any, ...]], None],
    ) -> None:
        """Runs along ``size`` in order; ``then`` receives the loop variable and the running results."""
        (loop,), (variable,) = self._ranges((size,), "r")
        with self._block((loop,)) as block:
            combined = body(variable)
            with self._block() as after:
                accumulators, results = self._accumulators(combined)
                then(variable, results)
        self._emit(Scan(loop, tuple(block.stmts), accumulators, tuple(after.stmts)))

    # Values

    def _emit(self, stmt: Stmt) -> None:
        if not self._stack:
            raise AssertionError("a statement outside any loop nest")
        self._stack[-1].stmts.append(stmt)

    def _value(self, dtype: torch.dtype, prefix: str = "v", depth: int | None = None) -> Value:
        value = Value(self._fresh(prefix), dtype)
        self._depth[value.name] = len(self._stack) - 1 if depth is None else depth
        return value

    def _depth_of(self, *parts: Int | Value | None) -> int:
        """Position in the stack of the outermost body that has all of these."""
        deepest = 0
        for part in parts:
            if isinstance(part, Value):
                deepest = max(deepest, self._depth[part.name])
            elif part is not None:
                deepest = max((deepest, *(self._depth.get(name, 0) for name in ix.symbols(part))))
        return deepest

    def _pure(self, key: Any, dtype: torch.dtype, parts: tuple[Int | Value | None, ...], make: Callable[[str], Stmt]) -> Value:
        """The value of a pure statement in the outermost body that has its ``parts``, where it stands once."""
        if not self._stack:
            raise AssertionError("a statement outside any loop nest")
        depth = self._depth_of(*parts)
        block = self._stack[depth]
        if key not in block.known:
            value = self._value(dtype, "v", depth)
            self._made_of[value.name] = parts
            block.stmts.append(make(value.name))
            block.known[key] = value
        known: Value = block.known[key]
        return known

    def _variables(self, *parts: Int | Value | None) -> set[str]:
        """The loop variables, and the values that no expression stands for (those of loops, those that buffers held), that
        these are made of."""
        found: set[str] = set()
        seen: set[str] = set()
        left = list(parts)
        while left:
            part = left.pop()
            names = [part.name] if isinstance(part, Value) else ix.symbols(part) if part is not None else ()
            for name in set(names) - seen:
                seen.add(name)
                if name in self._made_of:
                    left += self._made_of[name]
                elif name in self._depth:
                    found.add(name)
        return found

    def const(self, number: bool | int | float, dtype: torch.dtype) -> Value:
        """A Python number in ``dtype``, wrapped or rounded as torch does."""
        if dtype in NARROW:
            return self.convert(self.const(number, torch.float32), dtype)
        if dtype == torch.bool:
            number = bool(number)
        elif dtype.is_floating_point:
            number = float(number)
        elif dtype in ACCEPTS["number"]:
            if isinstance(number, float) and not math.isfinite(number):
                raise self.fail(f"{number} as {dtype}")
            bits = dtype.itemsize * 8
            number = int(number) & ((1 << bits) - 1)
            if dtype.is_signed and number >> (bits - 1):
                number -= 1 << bits
        else:
            raise self.fail(f"numbers of {dtype}")
        # repr tells -0.0 from 0.0 and knows NaN, which equality does not.
        value = self._pure((repr(number), dtype), dtype, (), lambda to: Const(to, number, dtype))
        if dtype == torch.int64:
            self._affine[value.name] = Affine("", dtype, ix.wrap(int(number)))
            self._places[value.name] = ix.wrap(int(number))
        return value

    def index(self, expression: Int) -> Value:
        """An index expression as an int64 value."""
        if expression.value is not None:
            return self.const(expression.value, torch.int64)
        value = self._pure(expression, torch.int64, (expression,), lambda to: Index(to, expression))
        self._affine[value.name] = Affine("", torch.int64, expression)
        self._places[value.name] = expression
        return value

    def as_index(self, value: Value, lower: int | None = None, below: Int | None = None) -> Int:
        """An int64 value as an index expression: the one that it is, or a symbol of which ``lower`` and ``below`` are known."""
        known = self._places.get(value.name)
        return ix.symbol(value.name, lower, None, below) if known is None else known

    def scalar(self, argument: Argument) -> Value:
        """A Python number, or a node of a SymInt, SymFloat or SymBool, as an int64, float64 or bool value."""
        number = fake(argument)
        if isinstance(number, bool):
            return self.const(number, torch.bool)
        if isinstance(number, int):
            return self.const(number, torch.int64)
        if isinstance(number, float):
            return self.const(number, torch.float64)
        if isinstance(number, torch.SymInt):
            try:
                return self.index(ix.from_size(number))
            except ValueError:
                pass
        if isinstance(argument, Node) and isinstance(number, torch.SymInt | torch.SymFloat):
            dtype = torch.int64 if isinstance(number, torch.SymInt) else torch.float64
            self._symbols.setdefault(argument.name, Symbol(argument.name, dtype, "scalar", None, None))
            name = argument.name
            return self._pure(("scalar", name), dtype, (), lambda to: Scalar(to, name, dtype))
        raise self.fail(f"a scalar operand {number!r}")

    def seed(self) -> Value:
        """An int64 drawn per call from the host's generator; one a random node, by ``meta["seed"]`` (its place among them)."""
        name = f"seed{self.node.meta.get('seed', 0)}"
        self._symbols.setdefault(name, Symbol(name, torch.int64, "seed", None, None))
        return self._pure(("scalar", name), torch.int64, (), lambda to: Scalar(to, name, torch.int64))

    def compute(self, op: str, *args: Value, dtype: torch.dtype | None = None) -> Value:
        """``op`` of the table ``OPS``; ``dtype`` only where the op's result rule is "given"."""
        row = OPS[op]
        assert len(args) == row.arity, f"{op} takes {row.arity} operands, not {len(args)}"
        operands = args[1:] if op == "where" else args
        for a in operands:
            if a.dtype not in ACCEPTS[row.kind] and op not in ("convert", "bitcast"):
                raise self.fail(f"loop op '{op}' on {a.dtype}")
            if op != "philox" and a.dtype != operands[0].dtype:
                raise AssertionError(f"{op} on {a.dtype} and {operands[0].dtype}")
        if row.result == "same":
            dtype = operands[0].dtype
        elif row.result != "given":
            dtype = {"bool": torch.bool, "int64": torch.int64, "int32": torch.int32}[row.result]
        assert dtype is not None, f"{op} needs a result dtype"
        if len(args) == 2 and operands[0].dtype == torch.int64 and (simpler := self._of_integers(op, *args)):
            return simpler
        known = self._place(op, args)
        if known is not None and (op in CHECKED or (op not in EXTREMES and all(self._is_index(a) for a in args))):
            return self.index(known)
        if self._mask is not None:
            args = self._guarded(op, args)
        names, result = tuple(a.name for a in args), dtype
        value = self._pure((op, names, dtype), dtype, args, lambda to: Compute(to, op, names, result))
        if known is not None:
            self._places[value.name] = known
        return value

    def _is_index(self, value: Value) -> bool:
        """Whether a value was made as an index expression: others are cheaper as the ops that they are."""
        known = self._affine.get(value.name)
        return known is not None and not known.value

    def _place(self, op: str, args: Sequence[Value]) -> Int | None:
        """What an op makes of index expressions, as one, where it does."""
        known = [self._places[a.name] for a in args if a.name in self._places]
        return place(op, *known) if op in PLACES and len(known) == len(args) else None

    def _of_integers(self, op: str, left: Value, right: Value) -> Value | None:
        """``op`` on two int64 values as less than that, if it is less."""
        a, b = (self._affine.get(v.name) or Affine(v.name, v.dtype, ix.ZERO) for v in (left, right))
        if op not in COMPARISONS:
            made = combined(op, a, b)
            if made is None:
                return None
            if not made.value:
                return self.index(made.offset)
            if made.offset == ix.ZERO:
                return self.convert(Value(made.value, made.dtype), torch.int64)
            names = left.name, right.name
            value = self._pure(
                (op, names, torch.int64), torch.int64, (left, right), lambda to: Compute(to, op, names, torch.int64)
            )
            self._affine[value.name] = made
            return value
        sides = [v for v in (a, b) if v.value]
        apart = b.offset - a.offset if a.value else a.offset - b.offset
        if not sides or any(v.dtype not in SMALL for v in sides) or not (apart == ix.ZERO if len(sides) == 2 else fits(apart)):
            return None
        small = [self.convert(Value(v.value, v.dtype) if v.value else self.index(apart), torch.int32) for v in (a, b)]
        return self.compute(op, *small)

    def _guarded(self, op: str, args: tuple[Value, ...]) -> tuple[Value, ...]:
        """Operands that raise no error where the mask is false, whatever was read there."""
        mask = self._mask
        assert mask is not None
        if op in TRAPS and not args[1].dtype.is_floating_point:
            return args[0], self._where(mask, args[1], self.const(1, args[1].dtype))
        if op == "wrap_index":
            return self._where(mask, args[0], self.const(0, args[0].dtype)), self._where(
                mask, args[1], self.const(1, args[1].dtype)
            )
        return args

    def _where(self, mask: Value, a: Value, b: Value) -> Value:
        names = (mask.name, a.name, b.name)
        return self._pure(("where", names, a.dtype), a.dtype, (mask, a, b), lambda to: Compute(to, "where", names, a.dtype))

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        """``value`` in another dtype; nothing when it has it already."""
        if value.dtype == dtype:
            return value
        if dtype.is_floating_point and value.name in self._whole:
            return self.convert(self._whole[value.name], dtype)
        for d in (value.dtype, dtype):
            if d not in (*ACCEPTS["any"], *NARROW):
                raise self.fail(f"values of {d}")
        if value.dtype in NARROW and dtype not in FLOAT_FROM_NARROW:
            value = self.convert(value, torch.float32)
        known = self._affine.get(value.name)
        if known and known.offset.value is not None and not known.value and dtype in SMALL:
            return self.const(known.offset.value, dtype)
        if known and known.value and known.offset == ix.ZERO and dtype in SMALL:
            return self.convert(Value(known.value, known.dtype), dtype)
        made = self.compute("convert", value, dtype=dtype)
        if value.dtype in BYTES and dtype.is_floating_point:
            self._whole[made.name] = value
        if value.dtype in SMALL and dtype == torch.int64:
            self._affine[made.name] = Affine(value.name, value.dtype, ix.ZERO)
        return made

    # Memory

    def input(self, root: Node) -> tuple[Param, Layout]:
        layout = self.layout(root)
        assert layout is not None
        if root not in self._inputs:
            shape = self.shape(root)
            strides = layout.strides
            if strides == contiguous_strides(shape):
                size = ix.product(shape)
            else:
                size = ix.ONE
                for n, step in zip(shape, strides, strict=True):
                    size = size + (n - 1) * step
            self._inputs[root] = Param(f"in{len(self._inputs)}", self.dtype(root), size, "in")
        return self._inputs[root], layout

    def load(
        self, source: Argument, index: Sequence[Int], mask: Value | None = None, other: bool | int | float | Value | None = 0
    ) -> Value:
        """Element ``index`` (one expression a dimension) of a tensor node, through whatever views are above it. Where ``mask``
        is false, ``other`` stands instead (``None``: anything) and memory is not read. The value has the node's dtype."""
        root, position = read_through(self, source, tuple(index))
        if self.is_fused(root):
            return self._load_fused(root, position, mask, other)
        param, layout = self.input(root)
        flat = ix.ZERO
        for i, step in zip(position, layout.strides, strict=True):
            flat = flat + i * step
        if param.dtype not in (*ACCEPTS["any"], *NARROW):
            raise self.fail(f"elements of {param.dtype}")
        filler = None
        if mask is not None:
            # An element of a fused half may come as float32.
            filler = self.convert(other, param.dtype) if isinstance(other, Value) else self.const(other or 0, param.dtype)
        if self._mask is not None and (mask is not None or not self._read_anyway(flat, param)):
            mask = self._mask if mask is None else self.compute("bitand", self._mask, mask)
            filler = self.const(0, param.dtype) if filler is None else filler
        masked = mask.name if mask else None
        filled = filler.name if filler else None
        return self._pure(
            ("load", param.name, flat, masked, filled),
            param.dtype,
            (flat, mask, filler),
            lambda to: Load(to, param.name, flat, param.dtype, masked, filled),
        )

    def _read_anyway(self, flat: Int, param: Param) -> bool:
        """Whether an element is there, and is read, whatever the mask says: the mask has none of its variables, so that it is
        true for others. Then all regions of a window share what they need of a channel, say."""
        inside = ix.nonnegative(flat) and ix.less(flat, param.size)
        return inside and not self._variables(self._mask) & self._variables(flat)

    # Fused nodes

    @property
    def is_element(self) -> bool:
        """Whether the lowering runs for one element that a reader asked for."""
        return self._request is not None

    def is_fused(self, node: Node) -> bool:
        """Whether a value is computed where it is read rather than loaded."""
        return False

    def element(self, node: Node, index: tuple[Int, ...]) -> Value:
        """Element ``index`` of a fused node, computed in the outermost body that has the index. A half may come as float32,
        not yet rounded."""
        node, output = result_of(node)
        depth = self._depth_of(*index, self._mask)
        block = self._stack[depth]
        key = ("element", node, index, self._mask)
        if key not in block.known:
            request = Request(index)
            around = self.node, self.args, self.outputs, self._stack, self._request
            self._stack = self._stack[: depth + 1]
            self._request = request
            try:
                self.enter(node)
                self.lower_node(node)
            finally:
                self.node, self.args, self.outputs, self._stack, self._request = around
            block.known[key] = request.values
        found: Value = block.known[key][output]
        return found

    def split_at(self, position: Int, bound: Int) -> None:
        """Says that the loops would do without a condition if they were cut where ``position`` reaches ``bound``."""

    def enter(self, node: Node) -> None:
        """Makes ``node`` the one that ``args`` and ``outputs`` speak of."""
        self.node, self.args = node, arguments(node)
        self.outputs = [TensorSpec(self.sizes(v.shape), v.dtype) for v in self._results() if isinstance(v, torch.Tensor)]

    def lower_node(self, node: Node) -> None:
        """Runs the node's lowering."""
        raise NotImplementedError

    def _load_fused(
        self, root: Node, index: tuple[Int, ...], mask: Value | None, other: bool | int | float | Value | None
    ) -> Value:
        if mask is None:
            return self.element(root, index)
        outside = self._mask
        self._mask = mask if outside is None else self.compute("bitand", outside, mask)
        try:
            value = self.element(root, index)
        finally:
            self._mask = outside
        if other is None:
            return value
        filler = other if isinstance(other, Value) else self.const(other, self.dtype(root))
        return self._where(mask, value, self.convert(filler, value.dtype))

    def operand(self, argument: Argument, index: Sequence[Int], dtype: torch.dtype | None = None) -> Value:
        """An operand of a broadcasting op at ``index`` of the result: a tensor node, loaded and converted, or a number."""
        if not is_tensor(argument):
            number = fake(argument)
            if dtype is not None and isinstance(number, bool | int | float):
                return self.const(number, dtype)
            value = self.scalar(argument)
            return value if dtype is None else self.convert(value, dtype)
        value = self.load(argument, self.broadcast(self.shape(argument), index))
        return value if dtype is None else self.convert(value, dtype)

    def broadcast(self, shape: Sequence[Int], index: Sequence[Int]) -> tuple[Int, ...]:
        """The index into a tensor of ``shape`` that broadcasts to where ``index`` points."""
        aligned = index[len(index) - len(shape) :]
        return tuple(ix.ZERO if n == 1 else i for n, i in zip(shape, aligned, strict=True))

    def store(
        self, output: int, index: Sequence[Int], value: Value, mode: StoreMode = "set", mask: Value | None = None
    ) -> None:
        """Writes element ``index`` of result number ``output``, converted to its dtype."""
        if self._request is not None:
            if mode != "set" or mask is not None:
                raise AssertionError(f"{self.node.target} does not store one element of one iteration")
            dtype = self.outputs[output].dtype
            kept = value.dtype == opmath(dtype) and dtype in NARROW and BY_TARGET[self.node.target].name not in ROUNDS
            self._request.values[output] = value if kept else self.convert(value, dtype)
            return
        flat, shape = ix.ZERO, self.outputs[output].shape
        for i, step in zip(index, strides_of(shape, self.orders.get(output, range(len(shape)))), strict=True):
            flat = flat + i * step
        self.store_flat(output, flat, value, mode, mask)

    def store_flat(self, output: int, flat: Int, value: Value, mode: StoreMode = "set", mask: Value | None = None) -> None:
        """As ``store``, at a row-major position."""
        target = self._scratch.get(output)
        value = self.convert(value, target.dtype if target else self.outputs[output].dtype)
        self._emit(Store(target.name if target else f"out{output}", flat, value.name, mode, mask.name if mask else None))

    def accumulate(self, output: int) -> None:
        """Says that stores to this result combine. Those that need a wider dtype go to a buffer of the kernel's own, which is
        copied to the result at the end."""
        spec = self.outputs[output]
        if (dtype := combining(spec.dtype)) != spec.dtype:
            self._scratch[output] = Param(f"wide{output}", dtype, ix.product(spec.shape), "scratch")

    def buffer(self, size: Int, dtype: torch.dtype) -> Param:
        """A buffer of the launch's own, undefined until it is written."""
        param = Param(f"buffer{len(self._buffers)}", dtype, size, "scratch")
        self._buffers.append(param)
        return param

    def load_buffer(self, buffer: Param, index: Int) -> Value:
        value = self._value(buffer.dtype)  # where it stands and every time: a buffer changes
        self._emit(Load(value.name, buffer.name, index, buffer.dtype))
        return value

    def store_buffer(self, buffer: Param, index: Int, value: Value, mode: StoreMode = "set", mask: Value | None = None) -> None:
        """Writes element ``index`` of a buffer, converted to its dtype."""
        value = self.convert(value, buffer.dtype)
        self._emit(Store(buffer.name, index, value.name, mode, mask.name if mask else None))

    def _round_scratch(self) -> None:
        for output, buffer in self._scratch.items():
            spec = self.outputs[output]
            with self.nest((buffer.size,)) as (i,):
                value = self.load_buffer(buffer, i)
                self._emit(Store(f"out{output}", i, self.convert(value, spec.dtype).name))

    # The finished kernel

    def finish(self) -> Lowered:
        self._round_scratch()
        outputs = tuple(Param(f"out{k}", spec.dtype, ix.product(spec.shape), "out") for k, spec in enumerate(self.outputs))
        for spec in self.outputs:
            if spec.dtype not in (*ACCEPTS["any"], *NARROW):
                raise self.fail(f"results of {spec.dtype}")
        params = (*self._inputs.values(), *outputs)
        sizes = dict[str, ix.Symbol]()
        for param in params:
            sizes.update(ix.symbols(param.size))
        for expression in _expressions(self._nests):
            sizes.update(ix.symbols(expression))
        symbols = dict(self._symbols)
        for name, s in sizes.items():
            if name not in self._depth:
                symbols[name] = Symbol(name, torch.int64, "size", s.lower, s.upper)
        ordered = tuple(sorted(symbols.values(), key=_place))
        kernel = LoopKernel(self.name, params, ordered, tuple(self._nests), (*self._scratch.values(), *self._buffers))
        return Lowered(kernel, tuple(self._inputs), tuple(self.outputs), tuple(s.name for s in ordered))


def combining(dtype: torch.dtype) -> torch.dtype:
    """What values of ``dtype`` are kept in while stores combine with them: a half would round at each store, and few processors
    combine less than 32 bits."""
    if dtype.itemsize >= 4:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int32


def _place(symbol: Symbol) -> tuple[int, str]:
    """Seeds come last, in the order in which they are drawn, so that equal layers have them in the same order."""
    return (len(symbol.name), symbol.name) if symbol.role == "seed" else (0, symbol.name)


BYTES = (torch.int8, torch.uint8)
"""Integers that every floating point type of loops holds exactly."""
FLOAT_FROM_NARROW = (torch.float32,)


def _expressions(body: Sequence[Stmt]) -> Iterator[Int]:
    for stmt in body:
        if isinstance(stmt, Load | Store | Index):
            yield stmt.index
        elif isinstance(stmt, Nest | Reduce):
            yield from (r.size for r in stmt.ranges)
            yield from _expressions(stmt.body)
        elif isinstance(stmt, Scan):
            yield stmt.range.size
            yield from _expressions((*stmt.body, *stmt.then))


Lowering = Callable[[Builder], None]
Table = Mapping[str, Lowering]
