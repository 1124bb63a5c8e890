"""Matrix products measured instead of modelled: ``torch.compile(..., mode="max-autotune")``.

For each shape, the bare product is timed with some sizes of tiles and by the library, once on each kind of GPU; what was found
is an artefact on disk. From then on ``products.py`` asks for it before its model, in any mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from reference_backends.triton_gpu import compiler, products
from reference_backends.triton_gpu.machine import Machine, machine
from vendor_sdk import Artifacts, CompilerError, LoopKernel, index, loop

_ENTRY = ".product"
CANDIDATES = 4
"""Sizes of tiles that are timed: the fastest by the model, each with one more stage too."""
REPEATS = 7


@dataclass(frozen=True)
class Product:
    """A shape. ``turned``: the right factor lies in memory as its transpose."""

    batches: int
    rows: int
    columns: int
    terms: int
    dtype: torch.dtype
    turned: bool

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.batches, self.rows, self.columns, self.terms


@dataclass(frozen=True)
class Measured:
    """The best tiles of a shape, and seconds with them and by the library."""

    tiles: products.Tiles
    own: float
    library: float


@functools.cache
def _artifacts() -> Artifacts:
    return Artifacts("triton_gpu", compiler.toolchain)


def _key(p: Product) -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return _artifacts().key("product", device, repr(p))


@functools.lru_cache(4096)
def remembered(p: Product, gpu: Machine) -> Measured | None:
    """What was measured of a shape, in this process or before; None: nothing, as for any GPU but the current one."""
    if gpu != machine():
        return None
    content = _artifacts().read(_key(p), _ENTRY)
    if content is None:
        return None
    fields = json.loads(content)
    return Measured(products.Tiles(**fields["tiles"]), fields["own"], fields["library"])


def measured(p: Product) -> Measured:
    """A shape's measurement, made now where there is none."""
    found = remembered(p, machine())
    if found is None:
        found = measure(p, seconds)
        _artifacts().keep(_key(p), json.dumps(dataclasses.asdict(found)).encode(), _ENTRY)
        remembered.cache_clear()
    return found


def measure(p: Product, timer: Callable[[Callable[[], Any]], float]) -> Measured:
    """Times a shape.

    Args:
        timer: seconds of a call.
    """
    left, right, out = operands(p, "cuda" if torch.cuda.is_available() else "cpu")
    module = compiler.load(source(p))
    launcher = module.launch_product_0
    buffers = left, right.transpose(1, 2) if p.turned else right, out
    times: dict[products.Tiles, float] = {}
    for t in _variants(p):
        launcher.tiles = t
        launcher.planned.cache_clear()
        with contextlib.suppress(CompilerError):  # shared memory or registers that the GPU lacks
            times[t] = timer(lambda: launcher(buffers, (), p.batches, p.rows, (p.columns, p.terms), out.numel()))
    best = min(times, key=lambda t: times[t])
    return Measured(best, times[best], timer(lambda: torch.bmm(left, right, out=out)))


def operands(p: Product, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random factors of shapes ``(batches, rows, terms)`` and ``(batches, terms, columns)``, and room for their product."""
    left = torch.randn(p.batches, p.rows, p.terms, device=device).to(p.dtype)
    shape = (p.batches, p.columns, p.terms) if p.turned else (p.batches, p.terms, p.columns)
    right = torch.randn(shape, device=device).to(p.dtype)
    out = torch.empty(p.batches, p.rows, p.columns, dtype=p.dtype, device=device)
    return left, right.transpose(1, 2) if p.turned else right, out


def _variants(p: Product) -> list[products.Tiles]:
    shared = machine().shared
    tiles = products.candidates(*p.sizes, "halves", machine())[:CANDIDATES]
    found = [dataclasses.replace(t, stages=t.stages + more) for t in tiles for more in (0, 1)]
    return [t for t in found if t.shared(2) <= shared]


def seconds(call: Callable[[], Any]) -> float:
    """Of a call on the device, its operands not in the caches."""
    call()
    filler = torch.empty(1 << 26, dtype=torch.int32, device="cuda")
    times = []
    for _ in range(REPEATS):
        filler.zero_()
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def source(p: Product) -> str:
    """The module of a bare product."""
    from reference_backends.triton_gpu.emitter import HEADER, kernel_text

    return f"{HEADER}\n\n{kernel_text(plain(p))}"


def plain(p: Product) -> LoopKernel:
    """The loops of a bare product."""
    b, i, j, r = (index.variable(name, size) for name, size in zip("bijr", (*p.sizes[:3], p.terms), strict=True))
    at_right = (b * p.columns + j) * p.terms + r if p.turned else (b * p.terms + r) * p.columns + j
    factors = (
        loop.Load("a", "in0", (b * p.rows + i) * p.terms + r, p.dtype),
        loop.Compute("x", "convert", ("a",), torch.float32),
        loop.Load("c", "in1", at_right, p.dtype),
        loop.Compute("y", "convert", ("c",), torch.float32),
        loop.Compute("z", "mul", ("x", "y"), torch.float32),
    )
    total = loop.Reduce(
        (loop.Range("r", index.wrap(p.terms)),), factors, (loop.Accumulator(("t",), "sum", ("z",), torch.float32),)
    )
    rounded = loop.Compute("h", "convert", ("t",), p.dtype)
    store = loop.Store("out0", (b * p.rows + i) * p.columns + j, "h")
    ranges = tuple(loop.Range(name, index.wrap(size)) for name, size in zip("bij", p.sizes[:3], strict=True))
    counts = p.rows * p.terms, p.terms * p.columns, p.rows * p.columns
    params = tuple(
        loop.Param(name, p.dtype, index.wrap(p.batches * count), "out" if name == "out0" else "in")
        for name, count in zip(("in0", "in1", "out0"), counts, strict=True)
    )
    return LoopKernel("product", params, (), (loop.Nest(ranges, (total, rounded, store)),))
