"""What the kernels of a compiled graph fuse and move, against what must move, and why neighbours are not one kernel."""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of, user_line
from vendor_sdk.ir.transfer import TRANSFERS
from vendor_sdk.launches import parts
from vendor_sdk.lower import CONTRACTIONS
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.run.compiled import CompiledGraph

WORDS: Mapping[str, str] = {
    "something between them runs elsewhere": "something that needs the one, and that the other needs, runs between them",
    "out of fuel": "VENDOR_SDK_FUEL allows no more joins",
    "the emitter has no inner nests": "the emitter lacks the loop op 'nest', which several passes over a row need",
    "the emitter has no combining stores": "the emitter lacks loop ops for totals over rows ('scratch', 'store.add', ...)",
    "nothing in common": "they share no value that both read in the same order",
    "the two do not run in step": "their loops do not map onto each other: one reads the other's elements in another order",
    "it has other iterations": "one runs over more elements than the other",
    "it needs a total over all rows, and values of single rows": "a total over all rows must be complete before it starts",
    "a reduction over the results of a contraction": "a matrix product's or convolution's template takes pointwise prims only",
    "it reduces over other loops": "it reduces over other dimensions than the kernel's rows",
    "they reduce over other loops": "both reduce, over other dimensions",
    "a total is not ready": "a total over all rows must be complete before it is read",
    "it reads other rows": "it reads rows that other iterations compute",
    "it reads elements that other iterations compute": "it reads elements of other iterations, too costly to compute again",
    "two kernels with templates of their own": "each is a reduction or contraction with loops of its own",
    "a contraction starts its own kernel": "a matrix product or convolution starts a kernel of its own",
    "totals of two groups": "both have totals over all rows",
}
"""The scheduler's reasons in a vendor's words; others stand as they are (limits say their own numbers)."""


@dataclass(frozen=True)
class KernelReport:
    """One launch of a graph.

    Attributes:
        name: of the emitted kernel, of the prim on other routes.
        route: "emitter", "kernel", "graph" or "host".
        prims: what it runs, in order; views, which cost nothing, are left out.
        where: user lines, each once.
        read, written: bytes of its operands and results as planned (with the sizes of the trace where those are symbolic); an
            operand counts whole, whatever part of it is read. None where only data tells.
        scratch: bytes of buffers that an emitted kernel has to itself during a launch, beyond the plan.
        resources: what the compiled kernel takes of the device, by name, where the backend says so (``Emitter.resources``,
            ``Kernel.ahead``).
    """

    name: str
    route: str
    prims: tuple[str, ...]
    where: tuple[str, ...]
    read: int | None
    written: int | None
    scratch: int | None = 0
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Apart:
    """Neighbours that are not one kernel.

    Attributes:
        producer, consumer: prims.
        reason: why.
        count: how many such pairs there are.
        where: user line of the first consumer.
    """

    producer: str
    consumer: str
    reason: str
    count: int
    where: str


@dataclass(frozen=True)
class Kernels:
    """The kernels of a graph.

    Attributes:
        kernels: in the order of the call.
        ideal: bytes that must move once: inputs that are read, outputs that are made.
        peak, bound: bytes that the memory plan holds at its worst step, and what no plan goes below.
        sizes: values of shape symbols that all these bytes were computed with.
        apart: why neighbours were not fused, most frequent first.
    """

    kernels: tuple[KernelReport, ...]
    ideal: int | None
    peak: int | None
    bound: int | None
    sizes: Mapping[str, int]
    apart: tuple[Apart, ...]

    @property
    def moved(self) -> int | None:
        """Bytes that all kernels read and write."""
        parts = [part for kernel in self.kernels for part in (kernel.read, kernel.written)]
        return None if None in parts else sum(part for part in parts if part is not None)

    def grouped(self) -> list[tuple[int, KernelReport]]:
        """Kernels that fuse the same prims, move and take as much, with how many there are; in the order of the first."""
        groups: dict[Any, list[KernelReport]] = {}
        for kernel in self.kernels:
            taken = tuple(kernel.resources.items())
            groups.setdefault((kernel.route, kernel.prims, kernel.read, kernel.written, taken), []).append(kernel)
        return [(len(group), group[0]) for group in groups.values()]


def kernels_of(compiled: CompiledGraph) -> Kernels:
    """The report about one compiled graph."""
    graph = compiled.graph
    values = [node.meta["val"] for node in graph.placeholders]
    extents = [size for tensor in tensors_of(values) for size in (*tensor.shape, *tensor.stride())]
    sizes = torch_private.symbol_hints([*values, *extents])
    launches = [node for node in compiled.plan.steps if _launches(node)]
    peak = bound = None
    if set(compiled.frames.symbols) <= sizes.keys():
        layout = compiled.layout(**{name: sizes[name] for name in compiled.frames.symbols})
        peak, bound = layout.peak, layout.bound
    return Kernels(
        tuple(_kernel(compiled, node, sizes) for node in launches),
        _ideal(graph, sizes),
        peak,
        bound,
        sizes,
        tuple(_apart(compiled, launches)),
    )


def _launches(node: fx.Node) -> bool:
    placement = node.meta.get("placement")
    return placement is not None and placement.kind in (Kind.NATIVE, Kind.HOST) and node.target is not operator.getitem


def _kernel(compiled: CompiledGraph, node: fx.Node, sizes: Mapping[str, int]) -> KernelReport:
    placement = node.meta["placement"]
    loops = compiled.loops.get(node)
    read: int | None
    written: int | None
    scratch: int | None = 0
    if loops is not None:
        scratch = _total(_evaluated(p.size, sizes, p.dtype) for p in loops.scratch)
        read = _total(_evaluated(p.size, sizes, p.dtype) for p in loops.params if p.role in ("in", "inout"))
        written = _total(_evaluated(p.size, sizes, p.dtype) for p in loops.params if p.role in ("out", "inout"))
    else:
        read = _total(_nbytes(t, sizes) for n in node.all_input_nodes for t in tensors_of(n.meta.get("val")))
        written = _total(_nbytes(t, sizes) for t in tensors_of(node.meta["val"]))
    prims = parts(node)
    return KernelReport(
        loops.name if loops is not None else str(node.target) if placement.route is Route.GRAPH else prim_name(node),
        str(placement.route) if placement.kind is Kind.NATIVE else "host",
        tuple(prim_name(part) for part in prims if part.target is not operator.getitem and not _is_view(part)),
        tuple(dict.fromkeys(line for part in (*prims, node) if (line := user_line(part)))),
        read,
        written,
        scratch,
        dict(compiled.resources.get(node, {})),
    )


def _is_view(node: fx.Node) -> bool:
    return node.target in BY_TARGET and BY_TARGET[node.target].is_view


def _evaluated(size: ix.Int, sizes: Mapping[str, int], dtype: torch.dtype) -> int | None:
    return ix.evaluate(size, sizes) * dtype.itemsize if ix.symbols(size).keys() <= sizes.keys() else None


def _nbytes(tensor: torch.Tensor, sizes: Mapping[str, int]) -> int | None:
    """Bytes of a tensor's elements; those of a broadcast one count once."""
    try:
        extents = [ix.from_size(size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if _moves(stride)]
    except ValueError:  # an expression outside the index algebra
        return None
    return _evaluated(ix.product(extents), sizes, tensor.dtype)


def _moves(stride: Any) -> bool:
    return not isinstance(stride, int) or stride != 0


def _total(parts: Iterator[int | None] | Sequence[int | None]) -> int | None:
    found = list(parts)
    return None if None in found else sum(part for part in found if part is not None)


def _ideal(graph: PrimGraph, sizes: Mapping[str, int]) -> int | None:
    inputs = [node for node in graph.placeholders if any(user.op != "output" for user in node.users)]
    made = dict.fromkeys(root for value in graph.outputs if isinstance(value, fx.Node) for root in [_source(value)])
    outputs = [node for node in made if node.op == "call_function"]
    return _total([_nbytes(tensor, sizes) for node in (*inputs, *outputs) for tensor in tensors_of(node.meta["val"])])


def _source(node: fx.Node) -> fx.Node:
    """What a value is a view of, or a copy on the other side of a transfer."""
    while node.op == "call_function" and (
        node.target in TRANSFERS or ("placement" in node.meta and node.meta["placement"].kind is Kind.VIEW)
    ):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def _apart(compiled: CompiledGraph, launches: Sequence[fx.Node]) -> list[Apart]:
    home: dict[str, set[fx.Node]] = {}
    named: dict[str, fx.Node] = {}
    for node in launches:
        for part in (*parts(node), node):
            home.setdefault(part.name, set()).add(node)
            named.setdefault(part.name, part)
    pairs: dict[tuple[str, str, str], None] = {}
    told: set[tuple[fx.Node, fx.Node]] = set()
    for refusal in compiled.refusals:
        producers, consumers = home.get(refusal.producer, set()), home.get(refusal.consumer, set())
        between = {(p, c) for p in producers for c in consumers}
        if between - told and not producers & consumers:
            pairs[refusal.producer, refusal.consumer, WORDS.get(refusal.reason, refusal.reason)] = None
            told |= between
    for consumer in launches:
        for producer in _producers(consumer):
            reason = _of_routes(producer, consumer)
            if (producer, consumer) not in told and reason:
                pairs[producer.name, consumer.name, reason] = None
    groups: dict[tuple[str, str, str], list[fx.Node]] = collections.defaultdict(list)
    for producer_name, consumer_name, reason in pairs:
        key = prim_name(named[producer_name]), prim_name(named[consumer_name]), reason
        groups[key].append(named[consumer_name])
    found = [Apart(p, c, reason, len(nodes), user_line(nodes[0])) for (p, c, reason), nodes in groups.items()]
    return sorted(found, key=lambda each: -each.count)


def _producers(consumer: fx.Node) -> list[fx.Node]:
    """Launches whose results a launch reads, through views and transfers."""
    found: dict[fx.Node, None] = {}
    stack = list(consumer.all_input_nodes)
    while stack:
        node = stack.pop()
        if node.op != "call_function" or not tensors_of(node.meta.get("val")):
            continue
        if _launches(node):
            found[node] = None
        else:
            stack.extend(node.all_input_nodes)
    return list(found)


def _of_routes(producer: fx.Node, consumer: fx.Node) -> str:
    """Why two launches cannot be one whatever they compute."""
    for node in (producer, consumer):
        placement = node.meta["placement"]
        if placement.kind is Kind.HOST:
            return f"{prim_name(node)} runs on the host"
        if placement.route is Route.KERNEL:
            return f"{prim_name(node)} runs by a kernel of the backend, into which nothing fuses"
        if placement.route is Route.GRAPH:
            return "one of them is in a partition, which the backend's own compiler fuses"
    if prim_name(parts(consumer)[0]) in CONTRACTIONS:
        return WORDS["a contraction starts its own kernel"]
    return ""
