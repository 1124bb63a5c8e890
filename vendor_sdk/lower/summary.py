"""What one node reads and costs, without building a kernel: its lowering run on the side, for one element.

The scheduler fuses by these summaries, so what it knows of a prim is what its lowering does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Load, Param
from vendor_sdk.ir.loop_ops import cost
from vendor_sdk.lower.build import Block, Builder, Layout, Lowering, Node, Request, Value
from vendor_sdk.prims.opset import BY_TARGET

OWN = "."
"""Stands in the names of a node's own variables and values, behind the node's; symbols of sizes have none."""


@dataclass(frozen=True)
class Read:
    """One operand as it is read: the value itself, below any views, and the index in it.

    ``index`` is in the summary's ``variables`` and ``reduced``, or in names of their own where the data decides."""

    node: Node
    index: tuple[Int, ...]


@dataclass(frozen=True)
class Summary:
    """A node whose results are computed element by element.

    Attributes:
        shape: of its results.
        variables: the index of the element, one a dimension (zero where the dimension has one element).
        reduced: loop variables of its reductions; of all of them where several run over equal ranges.
        sizes: what they run over.
        reads: operands, each place once.
        cost: of one element, or of one step of its reductions, in additions.
        combines: ops of its reductions, in order.
        steps: how many reductions run one after the other.
        statements: loads and computations.
        random: whether it draws random numbers.
        ops: what an emitter must have to compute one element where it is read: that can be more than the prim's own kernel
            needs (``cat`` alone copies, inside another kernel it compares positions).
    """

    shape: tuple[Int, ...]
    variables: tuple[Int, ...]
    reduced: tuple[Int, ...]
    sizes: tuple[Int, ...]
    reads: tuple[Read, ...]
    cost: int
    combines: tuple[str, ...]
    steps: int
    statements: int
    random: bool
    ops: frozenset[str]

    def depends_on_data(self, read: Read) -> bool:
        """Whether where an operand is read is itself computed from operands: a gather costs more than a load."""
        own = {name for i in (*self.variables, *self.reduced) for name in ix.symbols(i)}
        return any(OWN in name for i in read.index for name in ix.symbols(i).keys() - own)


class _OtherShape(Exception):
    """The lowering is not one nest over the results that stores each element once."""


def summarize(node: Node, lowerings: Mapping[str, Lowering], foldable: Callable[[Node], bool]) -> Summary | None:
    """The node's summary; None when it is not computed element by element, or not lowered at all.

    Args:
        foldable: whether a node is a view to be read through.
    """
    row = BY_TARGET.get(node.target)
    if row is None or row.name not in lowerings:
        return None
    recorder = _Recorder(node, "summary", lambda n: None if foldable(n) and n is not node else Layout(()))
    try:
        return recorder.run(lowerings[row.name])
    except (_OtherShape, LoweringError):
        return None


class _Recorder(Builder):
    """Runs one lowering for a symbolic element, noting what it reads."""

    def run(self, lowering: Lowering) -> Summary:
        shapes = {spec.shape for spec in self.outputs}
        if len(shapes) != 1:
            raise _OtherShape
        (shape,) = shapes
        prefix = f"{self.node.name}{OWN}"
        variables = tuple(ix.ZERO if size == 1 else ix.variable(f"{prefix}{d}", size) for d, size in enumerate(shape))
        self.element_shape = shape
        self.reads: dict[Read, None] = {}
        self.combines: list[str] = []
        self.reduced: tuple[Int, ...] = ()
        self.sizes_reduced: tuple[Int, ...] = ()
        self.cost = 0
        self.steps = 0
        self.statements = 0
        self.ops: set[str] = set()
        self._request = Request(variables)
        self._stack = [Block()]
        lowering(self)
        if len(self._request.values) != len(self.outputs):
            raise _OtherShape
        return Summary(
            shape,
            variables,
            self.reduced,
            self.sizes_reduced,
            tuple(self.reads),
            self.cost,
            tuple(self.combines),
            self.steps,
            self.statements,
            bool(self._symbols) and any(s.role == "seed" for s in self._symbols.values()),
            frozenset(self.ops),
        )

    def _fresh(self, prefix: str) -> str:
        return f"{self.node.name}{OWN}{super()._fresh(prefix)}"  # indices that data decides differ between nodes

    @contextmanager
    def nest(
        self, sizes: Sequence[Int], back: Callable[[tuple[Int, ...]], tuple[Int, ...]] = lambda index: index
    ) -> Iterator[tuple[Int, ...]]:
        assert self._request is not None
        index = back(self._request.index)
        if self._request.opened or tuple(sizes) != tuple(self._sizes_of(index, sizes)):
            raise _OtherShape
        self._request.opened = True
        yield index

    def _sizes_of(self, index: Sequence[Int], sizes: Sequence[Int]) -> Sequence[Int]:
        """Sizes that the index can take; a nest that is not over the results has others."""
        if len(index) != len(sizes):
            return ()
        known = dict(zip(self._request.index, self.element_shape, strict=True)) if self._request else {}
        return [ix.ONE if i == ix.ZERO and s == 1 else known.get(i, ix.ZERO) for i, s in zip(index, sizes, strict=True)]

    def reduce(self, sizes: Sequence[Int], body: Callable[[tuple[Int, ...]], Sequence[tuple[Any, ...]]]) -> Any:
        if self.steps and tuple(sizes) != self.sizes_reduced:
            raise _OtherShape
        if not self.steps:
            self.sizes_reduced = tuple(sizes)
            prefix = f"{self.node.name}{OWN}r"
            self.reduced = tuple(ix.ZERO if n == 1 else ix.variable(f"{prefix}{d}", n) for d, n in enumerate(sizes))
        self.steps += 1
        combined = body(self.reduced)
        self.combines += [op for op, *_ in combined]
        return tuple(
            tuple(self._value(v.dtype, depth=0) for v in values) if len(values) > 1 else self._value(values[0].dtype, depth=0)
            for _, *values in combined
        )

    def scan(self, *args: Any, **kwargs: Any) -> None:
        raise _OtherShape

    def buffer(self, size: Int, dtype: torch.dtype) -> Param:
        raise _OtherShape

    def store(self, output: int, index: Sequence[Int], value: Value, mode: Any = "set", mask: Value | None = None) -> None:
        if mode != "set" or mask is not None:
            raise _OtherShape
        super().store(output, index, value)

    def compute(self, op: str, *args: Value, dtype: torch.dtype | None = None) -> Value:
        self.cost += cost(op)
        self.statements += 1
        self.ops.add(op)
        return super().compute(op, *args, dtype=dtype)

    def is_fused(self, node: Node) -> bool:
        return True

    def _load_fused(self, root: Node, index: tuple[Int, ...], mask: Value | None, other: Any) -> Value:
        self.shape(root)  # refuses sizes that index expressions cannot say
        self.reads[Read(root, index)] = None
        if mask is not None:
            self.ops.add("bitand")  # masks of what is computed inside one another are joined
        self.cost += 1
        self.statements += 1
        dtype = self.dtype(root)
        return self._pure(("read", root, index, mask), dtype, (), lambda to: Load(to, "", ix.ZERO, dtype))
