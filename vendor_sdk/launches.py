"""Launches, as those see them who watch a compiled graph run: the tensors that each moves, the products that it computes, and
how long its device takes for them at best.

That time is the longer of two: of moving the bytes at the speed of a copy, of the products at the rate of a plain matrix
product (Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009). Over the time taken it is the *fraction of the peak*.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.device import Device, DeviceTensor
from vendor_sdk.contract.kernel import Computed
from vendor_sdk.contract.loader import Session
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.fused import Computing, members
from vendor_sdk.ir.primgraph import PrimGraph, map_nodes, tensors_of
from vendor_sdk.lower.build import Lowered, arguments
from vendor_sdk.prims import grouped
from vendor_sdk.prims.opset import COMPOSITE_BY_TARGET

COPY = "copy GB/s"
"""The name in ``DeviceProperties.peaks`` of the peak that bytes are held against: what a copy reads and writes."""
PROBE_BYTES = 1 << 26
"""Copied to measure the bandwidth of memory that torch owns."""
PROBE_EDGES = 256, 8192
PROBE_SECONDS = 0.02
"""Matrices that are multiplied to measure the rate of products grow until that takes so long."""
TRIALS = 6

Tensor = torch.Tensor | DeviceTensor
Sizes = Mapping[str, int]


def rate_of(dtype: str) -> str:
    """The name in ``DeviceProperties.peaks`` of the rate of products of a dtype (``"float32"``)."""
    return f"{dtype} TFLOP/s"


@dataclass(frozen=True, eq=False)
class Launch:
    """A step of a compiled graph that runs something.

    Attributes:
        name: of the emitted kernel (``k3_exp_sum``), of the prim, or of the partition.
        kind: ``"kernel"``, ``"host"`` or ``"partition"``.
        node: the step.
        graph: it is a step of this graph.
        operands: nodes whose tensors it is called with, in order.
        fills: where among its arguments the tensors of its results are: ``"first"``, ``"last"``; ``""``: it makes them.
    """

    name: str
    kind: str
    node: fx.Node
    graph: PrimGraph
    operands: tuple[fx.Node, ...]
    fills: str = ""

    def tensors(self, args: Any, results: Any = None) -> list[Tensor]:
        """What a call reads and makes, each tensor once. Before the call, ``results`` are what the graph says of them."""
        given = list(_tensors(args))
        if results is None and not self.fills:
            results = [
                made for fake in tensors_of(self.node.meta["val"]) if (made := _like(fake, self.sizes(args))) is not None
            ]
        return list({id(tensor): tensor for tensor in (*given, *_tensors(results))}.values())

    def products(self, args: Any) -> dict[str, int]:
        """Operations (a multiplication and an addition are two) of the matrix products and convolutions of a call, by dtype."""
        sizes = self.sizes(args)
        found: Counter[str] = Counter()
        for part in parts(self.node):
            if (counted := _operations(part, sizes)) is not None:
                found[name_of(counted[1])] += counted[0]
        return dict(found)

    def sizes(self, args: Any) -> dict[str, int]:
        """The shape symbols of a call, by its tensors; what they do not tell as it was when the graph was traced."""
        fakes = [tensor for node in self.operands for tensor in tensors_of(node.meta["val"])]
        extents = [size for tensor in (*fakes, *tensors_of(self.node.meta["val"])) for size in tensor.shape]
        if all(isinstance(size, int) for size in extents):
            return {}
        found = torch_private.symbol_hints(extents)
        given = list(_tensors(args))
        pairs = zip(reversed(fakes), reversed(given)) if self.fills == "first" else zip(fakes, given)  # noqa: B905
        for fake, real in pairs:
            if len(fake.shape) != len(real.shape):
                continue  # the buffer that an operand lies in
            for size, extent in zip(fake.shape, real.shape, strict=True):
                if isinstance(size, torch.SymInt) and (expression := torch_private.sympy_of(size)).is_symbol:
                    found[str(expression)] = int(extent)
        return found


def parts(node: fx.Node) -> list[fx.Node]:
    """The prims of a fused group or a partition; else the node itself."""
    inner = getattr(node.target, "graph", None)
    return list(inner.calls()) if isinstance(inner, PrimGraph) else members(node)


def tensor_arguments(node: fx.Node, computed: Mapping[str, Lowered]) -> tuple[fx.Node, ...]:
    """The nodes of tensors among what runs a node is called with, as often as they are there.

    Args:
        computed: loops of the operands, by name, that a kernel computes: it gets what these read.
    """
    found: list[fx.Node] = []
    call = node
    inside: dict[fx.Node, Sequence[fx.Node]] = {}
    if isinstance(node.target, Computing):
        call = node.target.call
        given = zip(node.target.graph.placeholders, node.args, strict=True)
        inside = {inner: [outer] for inner, outer in given if isinstance(outer, fx.Node)}
        inside |= {arguments(call)[name]: one.inputs for name, one in computed.items()}
    map_nodes((call.args, call.kwargs), lambda each: found.extend(inside.get(each, [each])))
    return tuple(each for each in found if tensors_of(each.meta.get("val")))


Observe = Callable[[Session, Launch, Callable[..., Any]], Callable[..., Any]]
"""``observe(session, launch, function)`` runs in place of ``function``."""


def observed(
    observers: Iterable[Observe], session: Session, launch: Launch, function: Callable[..., Any]
) -> Callable[..., Any]:
    """``function`` as all of them make it."""
    for observe in observers:
        function = observe(session, launch, function)
    return function


@dataclass(frozen=True, eq=False)
class Peaks:
    """What the device of a session reaches at best: as it declares, or (of memory that torch owns) as measured, once a process.

    Attributes:
        found: those that were asked for, in the terms of ``DeviceProperties.peaks``.
    """

    session: Session
    found: dict[str, float] = field(default_factory=dict)

    def seconds(self, nbytes: int, products: Mapping[str, int]) -> float | None:
        """What moving these bytes and computing these products takes at best; None where no peak is known."""
        copy = self._peak(COPY)
        times = [nbytes / (copy * 1e9)] if copy else []
        rates = {dtype: self._peak(rate_of(dtype)) for dtype in products}
        if products and all(rates.values()):
            times.append(sum(count / (rates[dtype] or 1.0) / 1e12 for dtype, count in products.items()))
        return max(times, default=None)

    def _peak(self, name: str) -> float | None:
        if name not in self.found:
            device = self.session.device
            known = device.properties().peaks.get(name) if isinstance(device, Device) else _measured(device.type, name)
            if not known:
                return None
            self.found[name] = float(known)
        return self.found[name]


def waiting(session: Session) -> Callable[[], None]:
    """What waits for all that was launched on the session's device."""
    device = session.device
    if isinstance(device, Device):
        return device.synchronize
    return getattr(torch.get_device_module(device.type), "synchronize", lambda: None)


def event(session: Session, launch: Launch, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, each call of which is an event of torch's profiler: ``mychip::k3_exp_sum``.

    Where the profiler was told to record shapes, the event has ``shapes``, ``bytes``, ``flops`` and ``us at peak``, which over
    its duration is the fraction of the peak. A device with memory of its own, which that profiler does not see, is waited for.
    """
    peaks = Peaks(session)
    wait = waiting(session) if isinstance(session.device, Device) else lambda: None
    name = f"{session.loaded.backend.name}::{launch.name}"

    known: dict[tuple[str, ...], dict[str, Any]] = {}

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = args, kwargs
        shapes = tuple(map(shape_of, _tensors(given)))
        arguments = known.get(shapes)
        if arguments is None:
            arguments = known[shapes] = aside(described, launch, peaks, given)
        with torch_private.profiler_event(name, (), arguments):
            result = function(*args, **kwargs)
            wait()
        return result

    return run


def described(launch: Launch, peaks: Peaks, args: Any) -> dict[str, Any]:
    """What is known of a call before it, as arguments of an event."""
    tensors, products = launch.tensors(args), launch.products(args)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    best = peaks.seconds(nbytes, products) if launch.kind != "host" else None
    return {
        "kind": launch.kind,
        "shapes": ", ".join(map(shape_of, tensors)),
        "bytes": nbytes,
        "flops": sum(products.values()),
        **({} if best is None else {"us at peak": best * 1e6}),
    }


def aside(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function in a thread of its own, whose operators torch's profiler does not record."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


# Tensors


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor | DeviceTensor):
        yield value
    elif isinstance(value, Computed):
        yield from value.buffers
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)


def _like(fake: torch.Tensor, sizes: Sizes) -> torch.Tensor | None:
    """A tensor without memory, of these sizes; None where they do not tell its own."""
    shape = [_number(size, sizes) for size in fake.shape]
    return None if None in shape else torch.empty(shape, dtype=fake.dtype, device="meta")  # type: ignore[arg-type]


def _number(size: Any, sizes: Sizes) -> int | None:
    try:
        expression = ix.from_size(size)
    except ValueError:  # outside of the index algebra
        return None
    return int(ix.evaluate(expression, sizes)) if ix.symbols(expression).keys() <= sizes.keys() else None


def name_of(dtype: torch.dtype) -> str:
    """``"float32"``."""
    return str(dtype).removeprefix("torch.")


def shape_of(tensor: Tensor) -> str:
    """``"float32[4, 5]"``."""
    return f"{name_of(tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


# Products


def _operations(node: fx.Node, sizes: Sizes) -> tuple[int, torch.dtype] | None:
    """How many operations a prim's products take, and of which dtype; None: it computes none, or only the data tells."""
    from torch.utils.flop_counter import FlopCounterMode, flop_registry  # which imports Triton, where that is installed

    target = node.target
    composite = COMPOSITE_BY_TARGET.get(target)
    if getattr(target, "overloadpacket", None) not in flop_registry and composite is None and target is not grouped.OPERATOR:
        return None
    operands = tensors_of([each.meta.get("val") for each in node.all_input_nodes])
    values = {each: _value(each.meta.get("val"), sizes) for each in node.all_input_nodes}
    if not operands or any(value is None for value in values.values()):
        return None
    args, kwargs = map_nodes((node.args, node.kwargs), values.__getitem__)
    if target is grouped.OPERATOR:
        rows, right = args[:2]
        # Each row meets one matrix; a batch of rows, one stretch of the columns.
        return 2 * rows.numel() * right.shape[-1] // (rows.shape[0] if rows.dim() == 3 else 1), rows.dtype
    # Composites by what they are made of: torch does not count the products of all of them.
    function = target if composite is None else composite.targets[target]
    with FlopCounterMode(display=False) as counter:
        function(*args, **kwargs)  # type: ignore[operator]
    total = counter.get_total_flops()
    return (total, operands[0].dtype) if total else None


def _value(value: Any, sizes: Sizes) -> Any:
    """A value of a graph with numbers for its symbols and no memory."""
    if isinstance(value, torch.Tensor):
        return _like(value, sizes)
    if isinstance(value, list | tuple):
        return [_value(each, sizes) for each in value]
    return _number(value, sizes) if isinstance(value, torch.SymInt) else value


# Peaks of memory that torch owns


@functools.cache
def _measured(device: str, name: str) -> float | None:
    """A peak of torch's own device, in the terms of ``DeviceProperties.peaks``; None where it has no such product."""
    if name == COPY:
        source = torch.ones(PROBE_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return 2 * PROBE_BYTES / _best(lambda: target.copy_(source), device) / 1e9
    dtype = getattr(torch, name.removesuffix(rate_of("")))
    edge, most = PROBE_EDGES
    best = 0.0
    while True:
        left = torch.ones(edge, edge, dtype=dtype, device=device)
        try:
            seconds = _best(functools.partial(torch.mm, left, left), device)
        except RuntimeError:  # of integers, on some devices
            return None
        best = max(best, 2 * edge**3 / seconds / 1e12)
        if seconds > PROBE_SECONDS or edge >= most:
            return best
        edge *= 2


def _best(call: Callable[[], Any], device: str) -> float:
    """Seconds of the fastest of some calls."""
    wait = getattr(torch.get_device_module(device), "synchronize", lambda: None)
    times = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - started)
    return min(times)
