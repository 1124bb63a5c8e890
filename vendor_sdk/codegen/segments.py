"""Native segments: consecutive launches as one ``Program``, which the emitter may link into one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk.codegen.text import Text
from vendor_sdk.codegen.values import Arena, InBank, Inside, Values
from vendor_sdk.contract.emitter import Launch
from vendor_sdk.contract.program import Argument, Buffer, Entry, Number, Offset, Program, Result, Spare, Step
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import LoopKernel, Symbol
from vendor_sdk.ir.memory import BANK, Place, Slot


@dataclass(frozen=True)
class NativeLaunch:
    """How the wrapper launches a native kernel of the backend.

    Attributes:
        launch: the compiled kernel.
        inputs: nodes whose buffers it gets, in order; those of the node's results follow.
        numbers: what else it gets.
    """

    launch: Launch
    inputs: tuple[fx.Node, ...]
    numbers: tuple[int | float | Int, ...]

    @property
    def nbytes(self) -> int | None:
        """Bytes that it touches; None: unknown."""
        return None


@dataclass(frozen=True)
class EmittedCall:
    """How the wrapper launches one emitted kernel.

    Attributes:
        launch: the compiled kernel.
        kernel: its loops: params are ``inputs``, then the node's results.
        inputs: nodes whose buffers it reads, in parameter order.
    """

    launch: Launch
    kernel: LoopKernel
    inputs: tuple[fx.Node, ...]

    @property
    def numbers(self) -> tuple[Symbol, ...]:
        """The kernel's symbols."""
        return self.kernel.symbols

    @property
    def nbytes(self) -> int | None:
        """Bytes that it touches; None where sizes are symbolic."""
        total = 0
        for param in self.kernel.params:
            if param.size.value is None:
                return None
            total += param.size.value * param.dtype.itemsize
        return total


LaunchedCall = EmittedCall | NativeLaunch


@dataclass
class Segment:
    """A run of launches.

    Attributes:
        nodes: the steps.
        program: what the emitter is offered.
        inputs: variables of the tensors that are passed, in order.
        results: variables of the tensors that come back, in order.
        arguments: Python text of the numbers that are passed, in order.
        entry: the linked program; None when Python launches the steps one by one.
    """

    nodes: list[fx.Node]
    program: Program
    inputs: list[str]
    results: list[str]
    arguments: list[str]
    entry: Entry | None = None


@dataclass
class Segments:
    """Builds programs for the steps of one graph.

    Args:
        values: where each value is.
        text: writes sizes.
        launched: the launch of each node that has one.
        seeds: variable of each seed symbol, by node and symbol.
        as_traced: see ``Program``.
        lends: whether there is memory ``REST`` beside the bank.
        seeds_in_memory: whether seeds are tensors (``Emitter.seeds_in_memory``).
    """

    values: Values
    text: Text
    launched: Mapping[fx.Node, LaunchedCall]
    seeds: Callable[[fx.Node, str], str]
    as_traced: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    lends: bool
    seeds_in_memory: bool
    ready: set[Slot] = field(default_factory=set)
    """owners of memory that steps before have allocated"""

    def build(self, nodes: Sequence[fx.Node]) -> Segment:
        return _Builder(self, nodes).build()


class _Builder:
    def __init__(self, segments: Segments, nodes: Sequence[fx.Node]) -> None:
        self.of, self.nodes = segments, list(nodes)
        self.inputs: dict[str, int] = {}
        self.strides: list[tuple[int | Argument, ...] | None] = []
        self.results: dict[Slot, int] = {}
        self.arguments: dict[tuple[str, bool], int] = {}

    def build(self) -> Segment:
        steps = tuple(map(self._step, self.nodes))
        values = self.of.values
        results = tuple(self._result(slot) for slot in self.results)
        program = Program(
            inputs=tuple(self.strides),
            results=results,
            numbers=tuple(is_float for _, is_float in self.arguments),
            steps=steps,
            nbytes=self._nbytes(),
            as_traced=self.of.as_traced,
        )
        return Segment(
            nodes=self.nodes,
            program=program,
            inputs=list(self.inputs),
            results=[values.variable(slot) for slot in self.results],
            arguments=[text for text, _ in self.arguments],
        )

    def _step(self, node: fx.Node) -> Step:
        call = self.of.launched[node]
        buffers = [self._operand(source) for source in call.inputs]
        buffers += [self._allocated(slot) for slot in results_of(node)]
        return Step(
            call.launch,
            tuple(buffers),
            tuple(self._number(node, number) for number in call.numbers),
            tuple(self._spare(node)),
        )

    def _spare(self, node: fx.Node) -> Iterator[Spare]:
        found = self.of.values.spare(node)
        if found is not None:
            yield Spare(self._placed(found.place), found.nbytes)
        if self.of.lends:
            yield Spare(self._input("REST", None), self._argument("REST_BYTES", False))

    def _number(self, node: fx.Node, number: Symbol | Int | float) -> Number:
        if isinstance(number, Symbol):
            if number.role != "seed":
                return self._argument(number.name, number.dtype == torch.float64)
            name = self.of.seeds(node, number.name)
            return self._argument(f"{name}.data_ptr()" if self.of.seeds_in_memory else name, False)
        if isinstance(number, Int):
            return number.value if number.value is not None else self._argument(self.of.text.index(number), False)
        return number

    def _operand(self, source: fx.Node) -> Buffer:
        values = self.of.values
        slots = values.shares.of(source)
        if len(slots) == 1 and values.allocated(slots[0][0]) and (source is slots[0][0] or values.folded(source)):
            return self._allocated(slots[0])
        strides = None
        if source.op == "placeholder" and (source, 0) not in values.users:
            strides = tuple(map(self._size, source.meta["val"].stride()))
        return self._input(values.name(source), strides)

    def _allocated(self, slot: Slot) -> Buffer:
        """The bytes of a result that the SDK allocates."""
        where = self.of.values.where(slot)
        if isinstance(where, Arena):
            fixed = self.of.values.plan.fixed
            return Buffer("arena", 0, Offset(where.number) if fixed is None else fixed.places[where.number].offset)
        if isinstance(where, InBank):
            return self._shift(self._input("BANK", None), where.offset)
        return self._inside(where)

    def _placed(self, place: Place) -> Buffer:
        """What is at a place of a static plan."""
        if place.block is None:
            return Buffer("arena", 0, place.offset)
        if place.block == BANK:
            return self._shift(self._input("BANK", None), place.offset)
        return self._inside(Inside(self.of.values.plan.buffers[place.block].slots[-1], place.offset))

    def _inside(self, where: Inside) -> Buffer:
        """What is in the memory of a result or of an input."""
        there = not self.of.values.allocated(where.owner[0])
        if there or (where.owner in self.of.ready and where.owner not in self.results):
            return self._shift(self._input(self.of.values.variable(where.owner), None), where.offset)
        self.of.ready.add(where.owner)
        return Buffer("result", self.results.setdefault(where.owner, len(self.results)), where.offset)

    @staticmethod
    def _shift(buffer: Buffer, offset: int) -> Buffer:
        return Buffer(buffer.base, buffer.index, offset)

    def _input(self, name: str, strides: tuple[int | Argument, ...] | None) -> Buffer:
        if name not in self.inputs:
            self.inputs[name] = len(self.inputs)
            self.strides.append(strides)
        return Buffer("input", self.inputs[name], 0)

    def _size(self, value: Any) -> int | Argument:
        return value if isinstance(value, int) else self._argument(self.of.text.size(value), False)

    def _argument(self, text: str, is_float: bool) -> Argument:
        return Argument(self.arguments.setdefault((text, is_float), len(self.arguments)))

    def _result(self, slot: Slot) -> Result:
        tensor = self.of.values.tensor(slot)
        return Result(tensor.dtype, tuple(map(self._size, tensor.shape)), self.of.values.passing(slot))

    def _nbytes(self) -> int | None:
        sizes = [self.of.launched[node].nbytes for node in self.nodes]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def results_of(node: fx.Node) -> list[Slot]:
    """The results that a kernel fills; the operator may leave some out."""
    value = node.meta["val"]
    values = value if isinstance(value, list | tuple) else [value]
    return [(node, index) for index, tensor in enumerate(values) if tensor is not None]


def runs(order: Sequence[fx.Node], launched: Mapping[fx.Node, Any], phase: Callable[[fx.Node], int]) -> list[list[fx.Node]]:
    """The steps cut into runs of consecutive launches in one phase; every other step stands alone."""
    found: list[list[fx.Node]] = []
    for node in order:
        if node in launched and found and found[-1][0] in launched and phase(found[-1][0]) == phase(node):
            found[-1].append(node)
        else:
            found.append([node])
    return found
