"""Compiled kernels one by one: each gets the right operands, and its results are compared with the truth about that node."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vendor_sdk.check.interpreters import RUNS, Draws, Eager, Wide, is_random, may_choose, random_nodes, sizes_of
from vendor_sdk.check.numbers import Difference, Truth, judge, truths
from vendor_sdk.codegen.segments import EmittedCall, results_of
from vendor_sdk.codegen.wrapper import STORAGE_ARGUMENTS
from vendor_sdk.contract.device import DeviceTensor
from vendor_sdk.contract.emitter import Emitter
from vendor_sdk.contract.kernel import Computed, Kernel
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.fused import Computing, Fused, members
from vendor_sdk.ir.loop import LoopKernel, Nest, Reduce, Scan, Stmt
from vendor_sdk.ir.loop_interpreter import interpret as interpret_loops
from vendor_sdk.ir.memory import Slot
from vendor_sdk.ir.orders import laid, order_of
from vendor_sdk.ir.primgraph import PrimGraph, map_nodes, prim_name
from vendor_sdk.ir.transfer import to_device
from vendor_sdk.lower import Layout, Lowered, lower
from vendor_sdk.lower.build import arguments, contiguous_strides
from vendor_sdk.prims.reference import flat
from vendor_sdk.run.steps import Runtime

MOST = 1 << 24
"""Iterations of a kernel up to which its loops are interpreted, side by side: an index takes 8 bytes an iteration. Above, only
the compiled kernel is compared."""


@dataclass
class Compiled:
    """What was compiled for a graph.

    Attributes:
        graph: as scheduled.
        order: the nodes that run.
        kernels: the backend's kernels by prim.
        lowered: loop kernels as lowered, by node.
        computed: loops of the operands, by name, that kernels compute.
        emitted: how they are launched; some work in place by then.
        in_place: result to the one (or the input) whose memory it takes.
        runtime: of the session's device.
        emitter: None where the backend has none.
    """

    graph: PrimGraph
    order: Sequence[fx.Node]
    kernels: Mapping[str, Kernel]
    lowered: Mapping[fx.Node, Lowered]
    computed: Mapping[fx.Node, Mapping[str, Lowered]]
    emitted: Mapping[fx.Node, EmittedCall]
    in_place: Mapping[Slot, Slot]
    runtime: Runtime
    emitter: Emitter | None

    def seeds(self) -> list[str]:
        """The random nodes in emitted kernels, in the order in which the wrapper draws their seeds."""
        drawn: dict[tuple[fx.Node, str], None] = {}
        for node in self.order:
            if node in self.emitted:
                drawn |= {(node, s.name): None for s in self.emitted[node].kernel.symbols if s.role == "seed"}
        return [name.removeprefix("seed_") for _, name in drawn]


@dataclass(frozen=True)
class Wrong:
    """A kernel that is wrong.

    Attributes:
        stage: which of its forms is the first wrong one: "lowered", "in_place", "emitted", "kernel" or "partition".
        node: its node in the scheduled graph.
        why: what was compared, as a sentence.
    """

    stage: str
    node: fx.Node
    kernel: str
    difference: Difference
    why: str


def first_wrong(compiled: Compiled, values: Mapping[str, Any], draws: Draws) -> Wrong | None:
    """The first kernel, in the order of the call, that is wrong on right operands; None when all are right.

    Args:
        values: of every node of the graph, by name, as torch computes them.
        draws: the call's random numbers.
    """
    return _Kernels(compiled, values, draws).run()


class _Kernels:
    def __init__(self, compiled: Compiled, values: Mapping[str, Any], draws: Draws) -> None:
        self.of, self.values, self.draws = compiled, values, draws
        self.runtime = compiled.runtime
        self.there: dict[fx.Node, Any] = {}
        """Values as kernels take them: on the device, views as views."""

    def run(self) -> Wrong | None:
        inputs = [self.values[node.name] for node in self.of.graph.placeholders]
        self.draws.sizes.update(sizes_of(self.of.graph, inputs, self.values))
        for node in self.of.graph.placeholders:
            self.there[node] = self.values[node.name]
        for node in self.of.graph.calls():
            wrong = self._node(node)
            if wrong is not None:
                return wrong
        return None

    def _node(self, node: fx.Node) -> Wrong | None:
        placement = node.meta.get("placement")
        wrong = None
        native = placement is not None and placement.kind is Kind.NATIVE and node.target is not operator.getitem
        if native and not self._draws_itself(node) and not may_choose(node):
            assert placement is not None
            if node in self.of.emitted:
                wrong = self._emitted(node)
            elif placement.route is Route.KERNEL:
                wrong = self._judged("kernel", node, prim_name(node), self._kernel(node), "the backend's kernel of this prim")
            elif placement.route is Route.GRAPH:
                found = node.target(*(self._at(n) for n in node.args))  # type: ignore[operator, arg-type]
                wrong = self._judged("partition", node, str(node.target), found, "the backend's compiled partition")
        return wrong

    def _draws_itself(self, node: fx.Node) -> bool:
        """Whether a kernel draws numbers that nobody else knows."""
        inner = getattr(node.target, "graph", None)
        names = random_nodes(inner) if isinstance(inner, PrimGraph) else [node.name] if is_random(node) else []
        return any(name not in self.draws.seeds for name in names)

    # Values where kernels find them

    def _at(self, node: fx.Node) -> Any:
        if node not in self.there:
            self.there[node] = self._place(node)
        return self.there[node]

    def _place(self, node: fx.Node) -> Any:
        placement = node.meta.get("placement")
        if node.target is to_device:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return self.runtime.to_device(self.values[source.name], node.meta["val"].dtype, False)
        if placement is not None and placement.kind is Kind.VIEW:
            args, kwargs = map_nodes((node.args, node.kwargs), self._at)
            if node.meta.get("on_device"):
                return self.runtime.view(prim_name(node), *args, **kwargs)
            if prim_name(node) == "as_strided":
                return self.runtime.as_strided(*args, **kwargs)
            if prim_name(node) == "view":
                return args[0].reshape(args[1])
            return node.target(*args, **kwargs)  # type: ignore[operator]
        return _mapped(self.values[node.name], node.meta["val"], lambda v, fake: self._moved(node, v, fake))

    def _moved(self, node: fx.Node, value: torch.Tensor, fake: torch.Tensor) -> Any:
        dense = laid(value, order_of(node))
        return self.runtime.to_device(dense, fake.dtype, False) if node.meta.get("on_device") else dense

    def _back(self, value: Any, fake: Any) -> Any:
        """A result on the host."""
        return _mapped(
            value, fake, lambda v, f: self.runtime.to_host(v, f.dtype) if isinstance(v, DeviceTensor) else v, DeviceTensor
        )

    # The truth about one node

    def _truth(self, node: fx.Node) -> list[Truth]:
        inputs = {n.name: self.values[n.name] for n in node.all_input_nodes}
        return truth_of(self.of.graph, node, inputs, self.draws)

    def _judged(self, stage: str, node: fx.Node, kernel: str, found: Any, what: str) -> Wrong | None:
        eager = flat(self.values[node.name])
        for one, truth, other in zip(flat(self._back(found, node.meta["val"])), self._truth(node), eager, strict=True):
            difference = judge(one, truth, other)
            if difference is not None:
                return Wrong(stage, node, kernel, difference, f"{what} got the right operands and is compared with float64")
        return None

    # Kernels

    def _kernel(self, node: fx.Node) -> Any:
        kernel = self.of.kernels[prim_name(node)]
        dense = self.runtime.contiguous_operands and prim_name(node) != "clone"
        call, operands = node, dict[fx.Node, Any]()
        if isinstance(node.target, Computing):
            call, operands = node.target.call, self._operands(node)

        def operand(n: fx.Node) -> Any:
            if n in operands:
                return operands[n]
            return self.runtime.contiguous(self._at(n)) if dense else self._at(n)

        args, kwargs = map_nodes((call.args, {k: v for k, v in call.kwargs.items() if k not in STORAGE_ARGUMENTS}), operand)
        if not kernel.destination:
            return kernel.call(*args, **kwargs)
        results = flat(self.values[node.name])
        fakes = flat(node.meta["val"])
        outs = [
            None if fake is None else self.runtime.empty(tuple(result.shape), fake.dtype)
            for result, fake in zip(results, fakes, strict=True)
        ]
        kernel.call(*(out for out in outs if out is not None), *args, **kwargs)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _operands(self, node: fx.Node) -> dict[fx.Node, Any]:
        """What a kernel reads that computes some operands, by nodes of its group."""
        target = node.target
        assert isinstance(target, Computing)
        given = dict(zip(target.graph.placeholders, node.args, strict=True))
        found = {inner: self._at(outer) for inner, outer in given.items()}  # type: ignore[arg-type]
        outside = {inner.name: str(outer) for inner, outer in given.items()}
        for name, one in self.of.computed[node].items():
            source = arguments(target.call)[name]
            value = source.meta["val"]
            shape = tuple(int(ix.evaluate(ix.from_size(size), self.draws.sizes)) for size in value.shape)
            sizes = [int(ix.evaluate(p.size, self.draws.sizes)) for p in one.kernel.params]
            pairs = zip(one.inputs, sizes, strict=False)
            buffers = tuple(self._buffer(each, size, interpreted=False) for each, size in pairs)
            numbers = tuple(self._number(outside.get(s.name, s.name), s.role) for s in one.kernel.symbols)
            found[source] = Computed(one.kernel, shape, value.dtype, buffers, numbers)
        return found

    def _emitted(self, node: fx.Node) -> Wrong | None:
        lowered, call = self.of.lowered[node], self.of.emitted[node]
        fakes, eager = flat(node.meta["val"]), flat(self.values[node.name])
        truth = [(t, e) for t, e, fake in zip(self._truth(node), eager, fakes, strict=True) if fake is not None]
        small = self._iterations(call.kernel) <= MOST
        forms: list[tuple[str, str]] = []
        if small:
            forms.append(("lowered", "its loops, interpreted, are wrong already: the lowering or the fusion of its prims is"))
            if call.kernel != lowered.kernel:
                forms.append(("in_place", "as lowered it is right, and wrong since it writes over an operand"))
        forms.append(
            ("emitted", "its loops, interpreted, are right: the emitted text is wrong, or what its compiler made of it")
            if small
            else ("emitted", "its loops are too many to interpret: lowering, emitted text or its compiler is wrong")
        )
        for stage, why in forms:
            kernel = lowered.kernel if stage == "lowered" else call.kernel
            inputs = lowered.inputs if stage == "lowered" else call.inputs
            found = self._run(node, kernel, inputs, None if stage != "emitted" else call)
            for one, (expected, other) in zip(found, truth, strict=True):
                difference = judge(one, expected, other)
                if difference is not None:
                    alone = self._alone(node) if stage == "emitted" else ""
                    return Wrong(stage, node, kernel.name, difference, why + alone)
        return None

    def _iterations(self, kernel: LoopKernel) -> int:
        def count(body: Sequence[Stmt]) -> int:
            worst = 1
            for s in body:
                if isinstance(s, Nest | Reduce | Scan):
                    ranges = (s.range,) if isinstance(s, Scan) else s.ranges
                    inner = max(count(s.body), count(s.then) if isinstance(s, Scan) else 1)
                    for r in ranges:
                        low, high = ix.bounds(r.size)
                        size = (
                            high
                            if ix.symbols(r.size).keys() - self.draws.sizes.keys()
                            else ix.evaluate(r.size, self.draws.sizes)
                        )
                        inner *= max(size if size is not None else low or 1, 1)
                    worst = max(worst, inner)
            return worst

        return count(kernel.body)

    def _run(
        self, node: fx.Node, kernel: LoopKernel, inputs: Sequence[fx.Node], call: EmittedCall | None
    ) -> list[torch.Tensor]:
        """Results of one form of a kernel on the right operands: launched, or interpreted when ``call`` is None."""
        slots = results_of(node)
        fakes = {slot: flat(node.meta["val"])[slot[1]] for slot in slots}
        shapes = {slot: flat(self.values[node.name])[slot[1]].shape for slot in slots}
        device = bool(node.meta.get("on_device"))
        flats: list[Any] = []
        sizes = [int(ix.evaluate(p.size, self.draws.sizes)) for p in kernel.params]
        for source, size in zip(inputs, sizes, strict=False):
            flats.append(self._buffer(source, size, interpreted=call is None))
        results: list[Any] = []
        for slot, param in zip(slots, kernel.params[len(inputs) :], strict=True):
            fake, shape = fakes[slot], shapes[slot]
            if param.role == "inout":
                old = self._old(node, slot, int(ix.evaluate(param.size, self.draws.sizes)))
                result = old.reshape(shape).to(fake.dtype, copy=True)
                if call is not None:
                    result = self.runtime.to_device(result, fake.dtype, False) if device else result.to(fake.device)
            elif device and call is not None:
                result = self.runtime.empty(tuple(shape), fake.dtype)
            else:
                result = _poisoned(shape, fake.dtype, fake.device if call is not None else torch.device("cpu"))
            results.append(result)
        numbers = [self._number(s.name, s.role) for s in kernel.symbols]
        if call is None:
            interpret_loops(kernel, [*flats, *(r.reshape(-1) for r in results)], numbers)
        else:
            seeds = [s.role == "seed" for s in kernel.symbols]
            taken = [self.runtime.seed(n) if seed else n for n, seed in zip(numbers, seeds, strict=True)]
            call.launch((*flats, *results), taken)
        return [self._back(result, fakes[slot]) for result, slot in zip(results, slots, strict=True)]

    def _old(self, node: fx.Node, slot: Slot, size: int) -> torch.Tensor:
        """The operand over which a result is written, as flat memory."""
        owner = self.of.in_place[slot]
        gone = [n for n in self.of.lowered[node].inputs if n not in self.of.emitted[node].inputs]
        source = next(n for n in gone if n is owner[0] or (n.target is operator.getitem and n.args == (owner[0], owner[1])))
        old: torch.Tensor = self._buffer(source, size, interpreted=True)
        return old

    def _buffer(self, source: fx.Node, size: int, *, interpreted: bool) -> Any:
        """An operand: for launches as the wrapper passes it, for the interpreter as the flat memory that it stands for."""
        value = self._at(source)
        if isinstance(value, DeviceTensor):
            return self.values[source.name].cpu().contiguous().reshape(-1) if interpreted else self.runtime.contiguous(value)
        if source.op == "placeholder":
            strides = tuple(ix.evaluate(ix.from_size(s), self.draws.sizes) for s in source.meta["val"].stride())
            value = self.runtime.as_traced(value, strides)
        else:
            value = laid(value, order_of(source))
        return value.detach().cpu().as_strided((size,), (1,)) if interpreted else value

    def _number(self, name: str, role: str) -> Any:
        if role == "seed":
            return self.draws.seeds[name.removeprefix("seed_")]
        return self.draws.sizes[name] if name in self.draws.sizes else self.values[name]

    def _alone(self, node: fx.Node) -> str:
        """Which prims of a fused kernel are wrong by themselves, each compiled alone."""
        if not isinstance(node.target, Fused) or self.of.emitter is None:
            return ""
        inner = node.target.graph
        eager = Eager(inner.module, self.draws)
        eager.run(*(self.values[n.name] for n in node.all_input_nodes))
        tried: list[tuple[fx.Node, Lowered]] = []
        for member in members(node):
            try:
                tried.append((member, lower(member, f"alone{len(tried)}", _dense)))
            except LoweringError:
                continue
        emitter = self.of.emitter
        launches = emitter.compile([(each.kernel, emitter.emit(each.kernel)) for _, each in tried])
        wrong: dict[str, None] = {}
        for (member, each), launch in zip(tried, launches, strict=True):
            alone = Compiled(
                inner,
                (),
                {},
                {member: each},
                {},
                {member: EmittedCall(launch, each.kernel, each.inputs)},
                {},
                self.runtime,
                None,
            )
            if _Kernels(alone, eager.values, self.draws)._emitted(member) is not None:
                wrong[f"{prim_name(member)} (node {member.name})"] = None
        if wrong:
            return f"; wrong when compiled alone too: {', '.join(wrong)}"
        return f"; each of its {len(tried)} prims is right when compiled alone"


def _dense(node: fx.Node) -> Layout:
    return Layout(contiguous_strides([ix.from_size(size) for size in node.meta["val"].shape]))


def truth_of(graph: PrimGraph, node: fx.Node, inputs: Mapping[str, Any], draws: Draws) -> list[Truth]:
    """The truth about the results of one node on given operands."""

    def run(noise: torch.Generator | None) -> Any:
        wide = Wide(graph.module, draws, noise)
        args, kwargs = map_nodes((node.args, node.kwargs), lambda n: wide.given(inputs[n.name]))
        return wide.call(node, args, kwargs)

    return truths(run(None), perturbed(run))


def perturbed(run: Any) -> list[Any]:
    """The results of a float64 run under other roundings; fewer where such a run fails (an index out of range)."""
    found = []
    for seed in range(RUNS):
        try:
            found.append(run(torch.Generator().manual_seed(seed)))
        except (RuntimeError, IndexError, ValueError):
            continue
    return found


def _poisoned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory in which elements that nobody writes show."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(tuple(shape), float("nan"), dtype=dtype, device=device)
    value = True if dtype == torch.bool else torch.iinfo(dtype).max
    return torch.full(tuple(shape), value, dtype=dtype, device=device)


def _mapped(value: Any, fake: Any, function: Any, kind: type = torch.Tensor) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_mapped(v, f, function, kind) for v, f in zip(value, fake, strict=True))
    return function(value, fake) if isinstance(value, kind | torch.Tensor) else value
