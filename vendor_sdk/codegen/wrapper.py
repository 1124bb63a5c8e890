"""The wrapper: one generated Python function per graph, which runs its steps in order and frees each value after its last use.

Every line belongs to one node, or to the nodes of one native segment, so an exception's line number (with the number of the
launch inside a segment) names the prim, its shapes and the user's source line; one ``try`` serves all steps. The function takes
its inputs as one list, which it empties (so that inputs die as early as possible).
"""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.codegen.folds import Fold, folds, read
from vendor_sdk.codegen.segments import EmittedCall, LaunchedCall, NativeLaunch, Segment, Segments, results_of, runs
from vendor_sdk.codegen.text import Text
from vendor_sdk.codegen.values import Arena, InBank, Inside, Values, is_view
from vendor_sdk.contract.kernel import Computed, Kernel
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.contract.program import Entry, Program
from vendor_sdk.ir.fused import Computing
from vendor_sdk.ir.index import Int, bounds, from_size, wrap
from vendor_sdk.ir.loop import Symbol
from vendor_sdk.ir.memory import Slot
from vendor_sdk.ir.orders import order_of
from vendor_sdk.ir.panels import panels
from vendor_sdk.ir.primgraph import OutputLayout, PrimGraph, prim_name, tensors_of
from vendor_sdk.ir.transfer import to_device, to_host
from vendor_sdk.lower.build import Lowered, arguments

__all__ = ["STORAGE_ARGUMENTS", "EmittedCall", "FrameTensor", "Frames", "NativeLaunch", "Runtime", "Wrapper", "generate"]


class Runtime(Protocol):
    """What the writer must know of the functions that wrapper text calls as ``RT`` (``vendor_sdk/run/steps.py`` lists them)."""

    contiguous_operands: bool
    """whether kernels and partitions take row-major contiguous operands only"""
    allocate: Callable[..., Any] | None
    """what makes a tensor of sizes and strides that are known, where that is quicker than ``RT.empty``"""

    seeds_in_memory: bool
    """whether seeds are tensors of the device"""

    def as_traced(self, value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor: ...
    def kept(self, make: Callable[..., torch.Tensor], *args: Any) -> Callable[[torch.Tensor], torch.Tensor]: ...


@dataclass(frozen=True)
class FrameTensor:
    """A tensor in the arena that wrapper text calls ``T[i]``: the buffer it lies in, its fake shape and its dtype; of views
    also strides (``None``: contiguous) and offset, in elements."""

    number: int
    shape: tuple[Any, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None
    offset: int = 0


class Frames(Protocol):
    """Gives a call its arena (``vendor_sdk/run/arena.py``): wrapper text calls ``take`` first and ``give`` last."""

    symbols: tuple[str, ...]
    """shape symbols that ``take`` gets the values of"""
    idle: list[Any] | None
    """frames that keep their memory between calls, when all calls need equal ones and little"""

    def want(self, tensors: Sequence[FrameTensor]) -> None:
        """Says which tensors each frame holds; once, before the first call."""


class Bank(Protocol):
    """Gives a call its bank (``vendor_sdk/run/bank.py``): wrapper text calls ``lend`` in forward graphs, ``take`` in backward
    ones."""

    def lend(self, nbytes: int, *parts: tuple[int, tuple[int, ...], torch.dtype]) -> list[torch.Tensor]: ...
    def room(self, bank: torch.Tensor, nbytes: int, alignment: int) -> tuple[torch.Tensor | None, torch.Tensor, int]: ...
    def take(
        self,
        nbytes: int,
        start: int,
        inputs: Sequence[tuple[torch.Tensor, int]],
        *parts: tuple[int, tuple[int, ...], torch.dtype],
    ) -> list[torch.Tensor]: ...


STORAGE_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format"})
"""Keyword arguments about storage: logical tensors have none, so kernels do not receive them."""


@dataclass
class Wrapper:
    """Generated source with what it refers to.

    Attributes:
        source: Python text of one function ``call(args)``.
        nodes: line number to the nodes it runs: one, or those of a native segment in the order of its launches.
        namespace: globals of the function.
        launches: how many kernel launches one call makes, and in how many native calls the emitted ones among them run.
        seeds: how many a call draws.
    """

    source: str
    nodes: Mapping[int, Sequence[fx.Node]]
    namespace: dict[str, Any]
    launches: tuple[int, int] = (0, 0)
    seeds: int = 0
    filename: str = field(default="")

    def compile(self, failed: Callable[[Exception], None]) -> Callable[[list[Any]], list[Any]]:
        """The function itself. Its source stays visible in tracebacks and debuggers.

        Args:
            failed: called with what a step raised, and may raise something that says more.
        """
        self.namespace["FAILED"] = failed
        self.filename = f"<vendor_sdk wrapper {id(self):x}>"
        linecache.cache[self.filename] = (len(self.source), None, self.source.splitlines(keepends=True), self.filename)
        exec(compile(self.source, self.filename, "exec"), self.namespace)
        return self.namespace["call"]  # type: ignore[no-any-return]


def generate(
    graph: PrimGraph,
    runtime: Runtime,
    kernels: Mapping[str, Kernel],
    launched: Mapping[fx.Node, LaunchedCall],
    function: Callable[[fx.Node], Callable[..., Any]],
    *,
    computed: Mapping[fx.Node, Mapping[str, Lowered]],
    steps: Sequence[fx.Node],
    values: Values,
    link: Callable[[Program], Entry | None],
    frames: Frames,
    bank: Bank,
    profiled: bool = False,
) -> Wrapper:
    """Writes the wrapper of a placed and planned graph.

    Args:
        runtime: allocation, transfers, views and checks for the session's device.
        kernels: the backend's kernels by prim.
        launched: how each emitted node, and each with a native kernel, is launched.
        function: what runs any other node that runs: a kernel, a partition, an operator on the host.
        computed: loops of the operands, by name, that kernels compute.
        steps: the nodes that run, in order.
        values: the memory plan.
        link: makes one native call of several launches, or declines.
        frames: gives each call its arena.
        bank: gives each call its bank.
        profiled: whether calls under torch's profiler go to the function that the namespace has as ``PROFILED``.
    """
    return _Writer(graph, runtime, kernels, launched, function, computed, steps, values, link, frames, bank).write(profiled)


class _Writer:
    def __init__(
        self,
        graph: PrimGraph,
        runtime: Runtime,
        kernels: Mapping[str, Kernel],
        launched: Mapping[fx.Node, LaunchedCall],
        function: Callable[[fx.Node], Callable[..., Any]],
        computed: Mapping[fx.Node, Mapping[str, Lowered]],
        steps: Sequence[fx.Node],
        values: Values,
        link: Callable[[Program], Entry | None],
        frames: Frames,
        bank: Bank,
    ) -> None:
        self.bank = bank
        self.graph, self.runtime, self.kernels, self.launched, self.function = graph, runtime, kernels, launched, function
        self.computed, self.values, self.link, self.frames = computed, values, link, frames
        self.lines: list[str] = []
        self.nodes: dict[int, Sequence[fx.Node]] = {}
        self.text = Text(graph.module, values.name)
        self.text.namespace["RT"] = runtime
        self.static = {graph.placeholders[index] for index in graph.static_inputs}
        self.seeds: dict[tuple[fx.Node, str], str] = {}
        self.allocated: set[Slot] = set()
        returned = [*graph.outputs, *(value for _, value in graph.written)]
        self.folds = folds(steps, values, returned)
        needed = {*returned} | read(steps, self.folds, self._reads)
        self.order = [node for node in steps if node not in self.folds or node in needed]
        self.uploaded = {read for node in steps if node.target is to_device for read in node.all_input_nodes}
        self.in_frame: dict[Slot, int] = {}
        self.folded_in_frame: dict[fx.Node, int] = {}
        self.shown: set[Slot] = set()
        self.defined: set[str] = set()
        self.parts: dict[str, dict[str, str]] = {}
        self.part_numbers = itertools.count()
        self.framed = False
        self.in_place = [node for node, value in graph.written if values.written_at(value) == (node, 0)]
        self.dies = self._deaths()
        # A forward graph's bank is part of the block that its backward graph will want.
        self.lends = bool(values.banked()) and not graph.backward

    def write(self, profiled: bool) -> Wrapper:
        self._sizes()
        segments = self._segments()
        self._frame_tensors(segments)
        self._prologue(segments)
        for segment in segments:
            if isinstance(segment, Segment):
                self._segment(segment)
            else:
                self._step(segment)
        self._epilogue()
        body = "".join(f"        {line}\n" for line in self.lines)
        # The handler costs nothing until it is needed; around the function, it would cost every call another one.
        check = ""
        if profiled:
            self.text.namespace["PROFILER"] = torch_private.PROFILER
            check = f"    if PROFILER.{torch_private.PROFILING}: return PROFILED(args)\n"
        source = (
            f"def call(args):\n{check}    try:\n{body}    except Exception as error:\n        FAILED(error)\n        raise\n"
        )
        launches = sum(1 for node in self.order if _launches(node))
        native = sum(1 for s in segments if isinstance(s, Segment) and s.entry is not None)
        return Wrapper(
            source,
            {index + 3 + bool(check): nodes for index, nodes in self.nodes.items()},
            self.text.namespace,
            (launches, native),
            len(self.seeds),
        )

    # Segments, and who needs what as a tensor

    def _segments(self) -> list[Segment | fx.Node]:
        """The steps, with consecutive launches linked; each segment knows which memory is new in it."""
        builder = Segments(
            self.values,
            self.text,
            self.launched,
            self._seed,
            self.runtime.as_traced,
            lends=self.lends,
            seeds_in_memory=self.runtime.seeds_in_memory,
            ready=self.allocated,
        )
        found: list[Segment | fx.Node] = []
        self.allocated.update(slot for slot, _ in self.values.banked())
        data_dependent = self.text.bound
        for run in runs(self.order, self.launched, self.values.phase):
            if run[0] in self.launched:
                self.text.bound = data_dependent | self._later_symbols()
                segment = builder.build(run)
                segment.entry = self.link(segment.program)
                found.append(segment)
            else:
                found.append(run[0])
                for slot in results_of(run[0]) if self.values.allocated(run[0]) else []:
                    where = self.values.where(slot)
                    if isinstance(where, Inside):
                        self.allocated.add(where.owner)
        self.text.bound = data_dependent
        self.allocated.clear()
        return found

    def _later_symbols(self) -> set[str]:
        """Symbols that steps will have bound by the time a segment runs: sizes that only data tell."""
        return {
            str(torch_private.sympy_of(size))
            for node in self.order
            for value in ([node.meta["val"]] if not isinstance(node.meta["val"], list | tuple) else node.meta["val"])
            for size in (value.shape if isinstance(value, torch.Tensor) else [value])
            if isinstance(size, torch.SymInt)
        }

    def _frame_tensors(self, segments: Sequence[Segment | fx.Node]) -> None:
        """Finds the results that Python code reads or fills, and gives a tensor of the frame to each in the arena."""
        tensors: list[FrameTensor] = []
        for segment in segments:
            nodes = [segment] if isinstance(segment, fx.Node) else segment.nodes if segment.entry is None else []
            for node in nodes:
                slots = [slot for read in self._reads(node) for slot in self.values.shares.of(read)]
                slots += results_of(node) if self.values.allocated(node) else []
                for slot in slots:
                    if slot in self.shown or not self.values.allocated(slot[0]):
                        continue
                    self.shown.add(slot)
                    where = self.values.where(slot)
                    if isinstance(where, Arena):
                        self.in_frame[slot] = len(tensors)
                        tensor = self.values.tensor(slot)
                        tensors.append(FrameTensor(where.number, tuple(tensor.shape), tensor.dtype))
        for node in self.order:
            fold = self.folds.get(node)
            if fold is not None and fold.slot is not None and isinstance(where := self.values.where(fold.slot), Arena):
                self.folded_in_frame[node] = len(tensors)
                tensors.append(FrameTensor(where.number, fold.shape, fold.dtype, fold.strides, fold.offset))
        self.frames.want(tensors)

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        fold = self.folds.get(node)
        if fold is not None:
            return [fold.source]
        call = self.launched.get(node)
        return list(node.all_input_nodes) if call is None else list(call.inputs)

    def _seed(self, node: fx.Node, symbol: str) -> str:
        return self.seeds.setdefault((node, symbol), f"seed{len(self.seeds)}")

    def _deaths(self) -> dict[fx.Node, list[str]]:
        """For each step the variables that nobody needs after it: whoever reads them, or memory that lies in theirs."""
        last: dict[str, fx.Node] = {}
        for node in self.order:
            for value in (*self._reads(node), node):
                if not tensors_of(value.meta.get("val")) or value.op == "get_attr":
                    continue
                if not self.values.allocated(value) and not self.values.folded(value):
                    last[value.name] = node
                for slot in self.values.shares.of(value):
                    if self.values.allocated(slot[0]) and isinstance(where := self.values.where(slot), Inside):
                        last[self.values.variable(where.owner)] = node
                    if self.values.allocated(slot[0]):
                        last[self.values.variable(slot)] = node
        for value in (*self.graph.outputs, *(node for node, _ in self.graph.written)):
            if isinstance(value, fx.Node):
                last.pop(self.values.name(value), None)
                for slot in self.values.shares.of(value):
                    if self.values.allocated(slot[0]):
                        last.pop(self.values.variable(slot), None)
        dies: dict[fx.Node, list[str]] = {}
        for name, node in last.items():
            dies.setdefault(node, []).append(name)
        return dies

    # Boundary

    def _sizes(self) -> None:
        """Shape symbols that the inputs determine become variables."""
        placeholders = self.graph.placeholders
        passed = [node for node in placeholders if node.name not in self.graph.constants]
        if passed:
            self._line(f"{', '.join(node.name for node in passed)}, = args")
        self._line("args.clear()")
        for name, value in self.graph.constants.items():
            self._line(f"{name} = {self.text.constant(value)}")
        self.defined |= {node.name for node in placeholders}
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
                self._bind(torch_private.sympy_of(value), node.name)
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        self._bind(torch_private.sympy_of(size), f"{node.name}.size({dim})")
                for dim, stride in enumerate(value.stride()):
                    if isinstance(stride, torch.SymInt):
                        self._bind(torch_private.sympy_of(stride), f"{node.name}.stride({dim})")

    def _base(self, layout: OutputLayout) -> fx.Node | None:
        """The input from whose begin a layout's offset counts."""
        inputs = [index for kind, index in layout.alias_of if kind == "input"]
        return self.graph.placeholders[min(inputs)] if inputs and layout.offset is not None else None

    def _begin(self, layout: OutputLayout) -> str:
        base = self._base(layout)
        return "" if base is None else f"begin_{base.name} + "

    def _prologue(self, segments: Sequence[Segment | fx.Node]) -> None:
        bases = filter(None, map(self._base, self.graph.output_layouts))
        for node in dict.fromkeys(bases):
            self._line(f"begin_{node.name} = {node.name}.storage_offset()", node)
        # Emitted loops index memory by the traced strides; everything else goes by the tensor's own. Linked segments see to it
        # themselves, except where a result goes over the input.
        indexed = {
            source
            for segment in segments
            if isinstance(segment, Segment)
            for node in segment.nodes
            for source in self.launched[node].inputs
            if segment.entry is None or (source, 0) in self.values.users
        }
        indexed |= {fold.source for node in self.order if (fold := self.folds.get(node)) is not None}
        for node in self.graph.placeholders:
            if node in indexed and node not in self.in_place:
                strides = self.text.tuple(node.meta["val"].stride())
                self._line(f"{node.name} = RT.as_traced({node.name}, {strides})", node)
        if self.in_place:
            names = "".join(f"{node.name}, " for node in self.in_place)
            strides = "".join(f"{self.text.tuple(node.meta['val'].stride())}, " for node in self.in_place)
            self._line(f"GIVEN = ({names})")
            self._line(f"{names}= WRITTEN = RT.for_writing(GIVEN, ({strides}))")
        for node in self.order:
            if node in self.launched:
                for symbol in self.launched[node].numbers:
                    if isinstance(symbol, Symbol) and symbol.role == "seed":
                        self._seed(node, symbol.name)
        if self.seeds:
            # In the order of the program, whatever was fused: then so are the random numbers.
            ordered = sorted(self.seeds.items(), key=lambda item: (len(item[0][1]), item[0][1]))
            self._line(f"{', '.join(name for _, name in ordered)}, = RT.seeds({len(ordered)})")
        self._bank()
        self.framed = any(isinstance(self.values.where(slot), Arena) for slot in self._slots())
        if not self.framed:
            return
        self.text.namespace["FRAMES"] = self.frames
        if self.frames.idle is None and self.lends and not self.frames.symbols:
            self._line("F = FRAMES.within(ROOM)")
        elif self.frames.idle is None:
            self._line(f"F = FRAMES.take({', '.join(self.frames.symbols)})")
        else:
            self.text.namespace["IDLE"] = self.frames.idle
            self._line("try: F = IDLE.pop()")
            self._line("except IndexError: F = FRAMES.take()")
        if self.in_frame or self.folded_in_frame:
            self._line("T = F.tensors")

    def _bank(self) -> None:
        """The allocation that outputs share, and their tensors in it."""
        banked = self.values.banked()
        if not banked:
            return
        fixed = self.values.plan.fixed
        assert fixed is not None
        names = [self.values.variable(slot) for slot, _ in banked]
        tensors = [(offset, self.values.tensor(slot)) for slot, offset in banked]
        texts = [f"({offset}, {self.text.tuple(t.shape)}, {self.text.constant(t.dtype)})" for offset, t in tensors]
        self.text.namespace["BANKS"] = self.bank
        arguments = [str(fixed.bank_bytes)]
        if self.graph.backward:
            lender = self.values.plan.lender if fixed.lender is not None else None
            values = lender.values if lender is not None else ()
            lent = [f"({self.graph.placeholders[value.index].name}, {value.offset}), " for value in values]
            arguments += [str(fixed.lender or 0), f"({''.join(lent)})"]
        method = "take" if self.graph.backward else "lend"
        self._line(f"BANK, {', '.join(names)} = BANKS.{method}({', '.join([*arguments, *texts])})")
        if self.lends:
            wanted = fixed.arena_bytes if self.frames.idle is None else 0
            self._line(f"ROOM, REST, REST_BYTES = BANKS.room(BANK, {wanted}, {self.values.plan.alignment})")
        self.allocated.update(slot for slot, _ in banked)
        self.defined.update(names)

    def _slots(self) -> list[Slot]:
        return [slot for node in self.order if self.values.allocated(node) for slot in results_of(node)]

    def _bind(self, expression: Any, text: str, *nodes: fx.Node) -> None:
        name = str(expression)
        if getattr(expression, "is_symbol", False) and name not in self.text.bound:
            self.text.bound.add(name)
            self._line(f"{name} = {text}", *nodes)

    def _epilogue(self) -> None:
        returned: list[str] = []
        layouts = self.graph.output_layouts
        owners: dict[fx.Node, list[tuple[str, int]]] = {}
        for index, node in enumerate(self.graph.placeholders):
            owners[node] = [("input", index)]
        for index, value in enumerate(self.graph.returned):
            if not isinstance(value, fx.Node) or not isinstance(value.meta["val"], torch.Tensor) or not layouts:
                returned.append(self.text.value(value))
                continue
            layout = layouts[index]
            assert layout.strides is not None
            shares = owners.setdefault(_root(value), [])
            fresh = bool(set(shares) - layout.alias_of)
            shares.append(("output", index))
            name = self.values.name(value)
            # An input handed back (torch's effect tokens are None here), or memory that the SDK has just allocated so.
            given = value.op == "placeholder" or (layout.offset is None and self._as_promised(value, layout.strides))
            if not fresh and given:
                returned.append(f"GIVEN[{self.in_place.index(value)}]" if value in self.in_place else name)
                continue
            begins = "" if layout.offset is None else f", {self._begin(layout)}{self.text.value(layout.offset)}"
            returned.append(f"RT.output({name}, {self.text.tuple(layout.strides)}, {fresh}{begins})")
        if self.framed:
            # Nothing of this call is read in the frame any more; an exception leaves the frame to the garbage collector.
            self._line("FRAMES.give(F)" if self.frames.idle is None else "IDLE.append(F)")
        end = self.graph.graph.output_node()
        if not self.graph.writes:
            self._line(f"return [{', '.join(returned)}]", end)
            return
        # What is returned must not see what is written, nor one written value another.
        self._line(f"R = [{', '.join(returned)}]", end)
        targets = {node for node, _ in self.graph.written}
        copied = [(node, value) for node, value in self.graph.written if node not in self.in_place]
        for number, (_, value) in enumerate(copied):
            name = self.values.name(value)
            read = [node.name for node, _ in self.values.shares.of(value) if node in targets]
            self._line(f"W{number} = " + (f"RT.own({name}, {', '.join(read)})" if read else name), end)
        for number, (node, _) in enumerate(copied):
            self._line(f"RT.write({node.name}, W{number})", end)
        if self.in_place:
            self._line("RT.wrote(GIVEN, WRITTEN)", end)
        self._line("return R", end)

    def _promised(self, node: fx.Node) -> Sequence[Any] | None:
        """The strides of an output that is a permutation of what a kernel stored for it."""
        if prim_name(node) != "permute" or list(node.users) != [self.graph.graph.output_node()]:
            return None
        for value, layout in zip(self.graph.outputs, self.graph.output_layouts, strict=False):
            if value is node and layout.strides is not None and self._as_promised(node, layout.strides):
                return layout.strides
        return None

    def _as_promised(self, value: fx.Node, strides: Sequence[Any]) -> bool:
        """Whether a value, or what it is a permutation of, is memory of this call that lies in the promised order."""
        if is_view(value) and prim_name(value) == "permute":
            source, dims = value.args
            assert isinstance(source, fx.Node)
            order = [dim % len(strides) for dim in dims]  # type: ignore[union-attr, operator]
            return self._as_promised(source, [strides[order.index(dim)] for dim in range(len(strides))])
        slots = self.values.shares.of(value)
        if len(slots) != 1 or is_view(value) or _on_device(value):
            return False
        if not self.values.allocated(slots[0][0]) and not _vouched_for(slots[0][0]):
            return False
        try:
            expected = wrap(1)
            for size, stride in reversed(list(zip(value.meta["val"].shape, strides, strict=True))):
                if from_size(stride) != expected:
                    return False
                length = from_size(size)
                if length.value is None and (bounds(length)[0] or 0) < 1:
                    return False  # may be empty, and torch counts an empty dimension as one element
                expected = expected * (1 if length.value == 0 else length)
        except ValueError:
            return False
        return True

    # Steps

    def _segment(self, segment: Segment) -> None:
        if segment.entry is None:
            for node in segment.nodes:
                self._launch(node)
                self._free(node)
            return
        used = [b for step in segment.program.steps for b in (*step.buffers, *(spare.buffer for spare in step.spare))]
        uses_arena = any(b.base == "arena" for b in used)
        frame = ["F.base", "F.offsets"] if uses_arena else ["0", "0"]
        call = f"{self.text.constant(segment.entry, 'E')}({', '.join([*frame, *segment.inputs, *segment.arguments])})"
        if segment.results:
            call = f"{', '.join(segment.results)} = {call}"
            self.defined.update(segment.results)
        for node in segment.nodes:
            self.allocated |= {w.owner for slot in results_of(node) if isinstance(w := self.values.where(slot), Inside)}
        self._line(call, *segment.nodes)
        for slot in [slot for node in segment.nodes for slot in results_of(node) if slot in self.shown]:
            if self.values.variable(slot) not in self.defined:
                self.lines[-1] += "".join(f"; {text}" for text in self._allocate(slot))
        for node in segment.nodes:
            self._free(node)

    def _step(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._line(f"{node.name} = {self._value(node.args[0])}[{node.args[1]!r}]", node)
        elif node.target is to_device:
            static = _root(node.args[0]) in self.static  # type: ignore[arg-type]
            dtype = self.text.constant(node.meta["val"].dtype)
            self._line(f"{node.name} = RT.to_device({self._value(node.args[0])}, {dtype}, {static})", node)
        elif node.target is panels:
            get = self.text.constant(self.runtime.kept(panels, *node.args[1:]), "K")
            self._line(f"{node.name} = {get}({self._value(node.args[0])})", node)
        elif node.target is to_host:
            dtype = self.text.constant(node.meta["val"].dtype)
            self._line(f"{node.name} = RT.to_host({self._value(node.args[0])}, {dtype})", node)
        else:
            placement = node.meta["placement"]
            {
                Kind.WRAPPER: self._number,
                Kind.VIEW: self._view,
                Kind.HOST: self._host,
                Kind.NATIVE: self._native,
            }[placement.kind](node)
        if not self.values.allocated(node):
            self.defined.add(node.name)
        self._bind_data_dependent(node)
        self._free(node)

    def _free(self, node: fx.Node) -> None:
        """Lets go of what nobody needs after this step."""
        for name in self.dies.get(node, ()):
            if name in self.defined:
                self.defined.discard(name)
                self.lines[-1] += "".join(f"; del {each}" for each in (name, *self.parts.pop(name, {}).values()))

    def _bind_data_dependent(self, node: fx.Node) -> None:
        """Sizes that only the value tells (of ``nonzero``) become variables as soon as it is there."""
        value = node.meta["val"]
        results = enumerate(value) if isinstance(value, list | tuple) else [(None, value)]
        for index, result in results:
            name = node.name if index is None else f"{node.name}[{index}]"
            if isinstance(result, torch.Tensor) and not self.values.allocated(node):
                for dim, size in enumerate(result.shape):
                    if isinstance(size, torch.SymInt):
                        self._bind(torch_private.sympy_of(size), f"{name}.shape[{dim}]", node)
            elif isinstance(result, torch.SymInt):
                self._bind(torch_private.sympy_of(result), name, node)

    def _number(self, node: fx.Node) -> None:
        value = node.meta["val"]
        # Sizes follow from symbols: no operator need be asked.
        known = isinstance(value, torch.SymInt) and torch_private.size_text(value)[0] <= self.text.bound
        text = self.text.size(value) if known else self._call(self.text.constant(node.target), node.args, node.kwargs)
        self._line(f"{node.name} = {text}", node)

    def _view(self, node: fx.Node) -> None:
        arguments = self.text.arguments(node.args, node.kwargs)
        if node in self.folded_in_frame:
            self._line(f"{node.name} = T[{self.folded_in_frame[node]}]", node)
        elif (fold := self.folds.get(node)) is not None:
            self._line(f"{node.name} = {self._folded(node, fold)}", node)
        elif _on_device(node):
            self._line(f"{node.name} = RT.view({prim_name(node)!r}, {arguments})", node)
        elif (strides := self._promised(node)) is not None:
            lying = f"{self.text.tuple(node.meta['val'].shape)}, {self.text.tuple(strides)}"
            self._line(f"{node.name} = RT.lying({self._value(node.args[0])}, {lying})", node)
        elif prim_name(node) == "view":
            self._line(f"{node.name} = {self._value(node.args[0])}.reshape({self._value(node.args[1])})", node)
        elif prim_name(node) == "as_strided":
            self._line(f"{node.name} = RT.as_strided({arguments})", node)
        else:
            call = self._call(self.text.constant(node.target), node.args, node.kwargs)
            source = node.all_input_nodes[0].meta["val"]
            # A view of another dtype folds into no index map: whoever reads it reads memory, which is contiguous.
            text = call if node.meta["val"].dtype == source.dtype else f"RT.contiguous({call})"
            self._line(f"{node.name} = {text}", node)

    def _host(self, node: fx.Node) -> None:
        call = self._call(self.text.constant(self.function(node)), node.args, node.kwargs)
        self._line(f"{node.name} = RT.contiguous({call})" if tensors_of(node.meta["val"]) else f"{node.name} = {call}", node)
        self._own(node)

    def _own(self, node: fx.Node) -> None:
        """A result that is one of the operands, or a view of one, is copied where others will write to that memory."""
        planned = [n for n in node.all_input_nodes if tensors_of(n.meta.get("val")) and self.values.planned(n)]
        if planned and tensors_of(node.meta["val"]):
            operands = ", ".join(self.values.name(n) for n in planned)
            self.lines[-1] += f"; {node.name} = RT.own({node.name}, {operands})"

    def _native(self, node: fx.Node) -> None:
        if node.meta["placement"].route is Route.GRAPH:
            inputs = self.text.arguments(node.args, {}, self._dense)
            self._line(f"{node.name} = {self.text.constant(self.function(node))}({inputs})", node)
            if _vouched_for(node):
                self._bind_data_dependent(node)
            else:
                self._check(node)
        else:
            self._kernel(node)

    def _kernel(self, node: fx.Node) -> None:
        kernel = self.kernels[prim_name(node)]
        name = self.text.constant(self.function(node))
        # ``clone`` is the one kernel that takes any strides: it is how operands become contiguous.
        operand: Callable[[fx.Node], str | None] = self._dense if prim_name(node) != "clone" else lambda _: None
        call = node
        if isinstance(node.target, Computing):
            call, operand = node.target.call, self._operands(node, operand).get
        kwargs = {key: value for key, value in call.kwargs.items() if key not in STORAGE_ARGUMENTS}
        given = self.text.arguments(call.args, kwargs, operand)
        if kernel.destination:
            self._allocate_and_call(node, lambda outs: f"{name}({', '.join([*outs, given] if given else outs)})")
            return
        self._line(f"{node.name} = {name}({given})", node)
        self._check(node)
        if not kernel.fresh:
            self._own(node)

    def _operands(self, node: fx.Node, operand: Callable[[fx.Node], str | None]) -> dict[fx.Node, str]:
        """The text of what a kernel reads that computes some of its operands, by nodes of its group."""
        target, lowered = node.target, self.computed[node]
        assert isinstance(target, Computing)
        given = zip(target.graph.placeholders, node.args, strict=True)
        found = {inner: operand(outer) or self._value(outer) for inner, outer in given}  # type: ignore[arg-type]
        named = {inner.name: text for inner, text in found.items()}
        for name, one in lowered.items():
            source = arguments(target.call)[name]
            value = source.meta["val"]
            make = self.text.constant(functools.partial(Computed, one.kernel, dtype=value.dtype))
            buffers = "".join(f"{self._value(each)}, " for each in one.inputs)
            numbers = "".join(f"{named.get(s.name, s.name)}, " for s in one.kernel.symbols)
            shape = self.text.tuple(value.shape)
            found[source] = f"{make}(shape={shape}, buffers=({buffers}), numbers=({numbers}))"
        return found

    def _check(self, node: fx.Node) -> None:
        """What the backend's code returned is what was promised, and lies as others read it."""
        self._bind_data_dependent(node)
        several = not isinstance(node.meta["val"], torch.Tensor)
        results = node.meta["val"] if several else (node.meta["val"],)
        orders = {user.args[1]: order_of(user) for user in node.users if user.target is operator.getitem}
        if not several:
            orders = {0: order_of(node)}
        expected = [
            "None"
            if result is None
            else f"({self.text.tuple(result.shape)}, {self.text.constant(result.dtype)}, {orders.get(index)})"
            for index, result in enumerate(results)
        ]
        check = f"checked_several({node.name}, ({', '.join(expected)},))" if several else f"checked({node.name}, {expected[0]})"
        self._line(f"{node.name} = RT.{check}", node)

    def _dense(self, value: fx.Node) -> str | None:
        """A contiguous copy of what may lie otherwise, for a backend that wants that."""
        if not self.runtime.contiguous_operands:
            return None
        other = value.op == "placeholder" or is_view(value) or order_of(value) is not None
        return f"RT.contiguous({self.values.name(value)})" if other else None

    def _launch(self, node: fx.Node) -> None:
        """One launch from Python."""
        call = self.launched[node]
        inputs = [self._value(source) for source in call.inputs]
        numbers = "".join(f"{self._number_of(node, number)}, " for number in call.numbers)
        launch = self.text.constant(call.launch)
        self._allocate_and_call(node, lambda outs: f"{launch}(({', '.join([*inputs, *outs])},), ({numbers}))")

    def _number_of(self, node: fx.Node, number: Symbol | Int | float) -> str:
        if isinstance(number, Symbol):
            return self._seed(node, number.name) if number.role == "seed" else number.name
        return self.text.index(number) if isinstance(number, Int) else self._value(number)

    def _allocate_and_call(self, node: fx.Node, call: Callable[[list[str]], str]) -> None:
        """Allocates the results of ``node``, then fills them."""
        slots = results_of(node)
        steps = [text for slot in slots for text in self._allocate(slot)]
        names = [self.values.variable(slot) for slot in slots]
        self._line("; ".join([*steps, call(names)]), node)

    def _allocate(self, slot: Slot) -> list[str]:
        """Statements that make the variable of a result."""
        name, tensor, where = self.values.variable(slot), self.values.tensor(slot), self.values.where(slot)
        self.defined.add(name)
        if isinstance(where, Arena):
            return [f"{name} = T[{self.in_frame[slot]}]"]
        shape, dtype = self.text.tuple(tensor.shape), self.text.constant(tensor.dtype)
        if isinstance(where, InBank):
            return [f"{name} = RT.part(BANK, {where.offset}, {shape}, {dtype})"]
        owner = self.values.variable(where.owner)
        steps = []
        if where.owner not in self.allocated and self.values.allocated(where.owner[0]):
            self.allocated.add(where.owner)
            self.defined.add(owner)
            whole = self.values.tensor(where.owner)
            steps.append(f"{owner} = {self._new(whole)}")
        if owner != name:
            steps.append(f"{name} = {self._part(owner, self.values.tensor(where.owner), where.offset, tensor)}")
        return steps

    def _new(self, tensor: torch.Tensor) -> str:
        """Fresh memory for a contiguous tensor."""
        shape, dtype = self.text.tuple(tensor.shape), self.text.constant(tensor.dtype)
        if self.runtime.allocate is None or not all(isinstance(size, int) for size in tensor.shape):
            return f"RT.empty({shape}, {dtype})"
        strides = torch.empty(tuple(tensor.shape), device="meta").stride()
        return f"{self.text.constant(self.runtime.allocate)}({shape}, {self.text.tuple(strides)}, {dtype})"

    def _part(self, owner: str, whole: torch.Tensor, offset: int, tensor: torch.Tensor) -> str:
        """A contiguous tensor in the memory of another, ``offset`` bytes from its start."""
        static = all(isinstance(size, int) for size in tensor.shape)
        if whole.dtype != tensor.dtype or offset % tensor.dtype.itemsize or not static:
            text = f"RT.part({owner}, {offset}, {self.text.tuple(tensor.shape)}, {self.text.constant(tensor.dtype)})"
        else:
            strides = torch.empty(tuple(tensor.shape), device="meta").stride()
            text = self._inside(owner, tuple(tensor.shape), strides, offset // tensor.dtype.itemsize)
        return self._once(owner, text)

    def _folded(self, node: fx.Node, fold: Fold) -> str:
        """A folded view of a value, or of what the value's memory lies in."""
        slot = fold.slot
        where = self.values.where(slot) if slot is not None and self.values.allocated(slot[0]) else None
        owner, begin = self._value(fold.source), fold.offset
        if isinstance(where, Inside) and where.offset % fold.dtype.itemsize == 0:
            whole = self.values.variable(where.owner)
            if whole in self.defined and self.values.tensor(where.owner).dtype == fold.dtype:
                owner, begin = whole, begin + where.offset // fold.dtype.itemsize
        if node in self.uploaded:
            return self._strided(owner, fold.shape, fold.strides, begin)
        return self._once(owner, self._inside(owner, fold.shape, fold.strides, begin))

    def _once(self, owner: str, text: str) -> str:
        """A tensor in the memory of ``owner``, made when a call first needs it: layers that are alike need the same."""
        parts = self.parts.setdefault(owner, {})
        if text in parts:
            return parts[text]
        parts[text] = f"V{next(self.part_numbers)}"
        return f"{parts[text]} = {text}"

    def _strided(self, source: str, shape: Sequence[int], strides: Sequence[int], offset: int) -> str:
        """A view of a tensor, ``offset`` elements from its first, with its version: what was uploaded asks for that."""
        begin = f", {source}.storage_offset() + {offset}" if offset else ""
        return f"{source}.as_strided({self.text.tuple(shape)}, {self.text.tuple(strides)}{begin})"

    def _inside(self, owner: str, shape: Sequence[int], strides: Sequence[int], offset: int) -> str:
        """The same in less time, with a version of its own."""
        inside = self.text.constant(torch_private.tensor_inside, "inside")
        return f"{inside}({owner}, {self.text.tuple(shape)}, {self.text.tuple(strides)}, {offset})"

    # Text

    def _line(self, text: str, *nodes: fx.Node) -> None:
        if nodes:
            self.nodes[len(self.lines)] = nodes
        self.lines.append(text)

    def _value(self, value: Any) -> str:
        return self.text.value(value)

    def _call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return self.text.call(name, args, kwargs)


def _launches(node: fx.Node) -> bool:
    """Whether a step runs something on the device or the host."""
    placement = node.meta.get("placement")
    return node.target is not operator.getitem and placement is not None and placement.kind in (Kind.NATIVE, Kind.HOST)


def _on_device(node: fx.Node) -> bool:
    return bool(node.meta.get("on_device"))


def _vouched_for(node: fx.Node) -> bool:
    """Whether a node is a partition whose executable vouches for its results, which lie row-major then."""
    if "placement" not in node.meta or node.meta["placement"].route is not Route.GRAPH:
        return False
    run = getattr(node.target, "run", None)
    return getattr(run, "verified", False) and all(order_of(user) is None for user in node.users)


def _root(node: fx.Node) -> fx.Node:
    """The value whose storage ``node`` may share: itself, or what it is a view of."""
    while node.op == "call_function" and (node.meta["placement"].kind is Kind.VIEW if "placement" in node.meta else False):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node
