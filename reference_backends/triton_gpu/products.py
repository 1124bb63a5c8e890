"""How contractions are launched, and whether a fused kernel or the library's computes one: a small model of their time.

A program's tile is chosen for its shape: large tiles read operands less often, small ones leave no multiprocessor without work.
The time of a product is the larger of its arithmetic, in whole rounds of tiles over the multiprocessors, and of its traffic.
cuBLAS is taken to be faster by ``LOSS`` at equal tiles, and never to wait for a last round, but to be slower by ``UNALIGNED``
where rows of the result begin anywhere. A fused kernel is taken where, with what it does not store and load again, it is faster
by ``SURE``: with few rows and computed weights, and for logits of a vocabulary of odd length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from reference_backends.triton_gpu.launch import OPTIONS, Launcher, Plan
from reference_backends.triton_gpu.machine import Machine
from vendor_sdk import Decline, NodeContext, Support, Supported, TensorInfo

Factors = Literal["halves", "computed", "mixed", "float32"]
"""What is multiplied: halves of one kind; such halves, some of which are computed first, in registers; halves of two kinds,
which TF32 holds exactly; float32, at its own precision."""

LOSS = 0.16
"""Part of the library's time by which a template with equal tiles is slower."""
SURE = 1.5
"""By how much a fused kernel must be faster by the model to be taken: the arithmetic around a product, which the model does not
see, took up to 0.4 of the time (gelu with tanh, 768 terms, on an H200)."""
UNALIGNED = 2.9
"""By how much the library takes longer where rows of the result are no multiples of ``LINE`` bytes, at least; measured on an
H200 with bfloat16: 8,192 x 768 x 50,257 7.4, 16,384 x 768 x 30,522 2.9, 128 x 768 x 50,257 3.5."""
LINE = 16
REACHED = 0.72
"""Part of the peak that large products of the library reach."""
LAUNCH = 2e-6
"""Seconds between two kernels that wait for each other."""
START = 2e-6
"""Seconds until a program's first product, and from its last to its end."""


@dataclass(frozen=True)
class Tiles:
    """Sizes of a program's tiles.

    Attributes:
        x, y, k: rows, columns, and terms of the sum in one step.
        rate: of the tensor cores' speed with the largest tiles, what these reach.
    """

    x: int
    y: int
    k: int
    warps: int
    stages: int
    rate: float

    @property
    def halved(self) -> bool:
        """Whether the sums alone fill half of the registers."""
        return self.x * self.y >= 4096 * self.warps

    def shared(self, itemsize: int) -> int:
        return (self.x + self.y) * self.k * itemsize * self.stages


HALVES = (
    Tiles(128, 256, 64, 8, 3, 1.0),
    Tiles(256, 128, 64, 8, 3, 1.0),
    Tiles(128, 128, 64, 8, 3, 0.9),
    Tiles(128, 64, 64, 4, 4, 0.75),
    Tiles(64, 128, 64, 4, 4, 0.75),
    Tiles(64, 64, 64, 4, 4, 0.55),
    Tiles(64, 32, 64, 4, 4, 0.35),
    Tiles(32, 64, 64, 4, 4, 0.35),
    Tiles(16, 64, 64, 4, 4, 0.2),
    Tiles(64, 16, 64, 4, 4, 0.2),
    Tiles(16, 16, 64, 4, 4, 0.05),
)
WIDE = (
    Tiles(128, 128, 32, 8, 3, 1.0),
    Tiles(64, 64, 32, 4, 3, 0.6),
    Tiles(32, 32, 32, 4, 3, 0.25),
    Tiles(16, 16, 32, 4, 3, 0.1),
)
"""For float32: tiles that leave registers for the products."""
GROUP = 8
HALF = 2
"""Bytes of an element."""


def seconds(batches: int, rows: int, columns: int, terms: int, t: Tiles, m: Machine) -> float:
    """Of a product of halves with these tiles."""
    tiles = batches * -(-rows // t.x) * -(-columns // t.y)
    steps = -(-terms // t.k) * t.k
    one = 2 * t.x * t.y * steps / (m.flops * REACHED * t.rate / m.processors) + START
    return max(-(-tiles // m.processors) * one, _traffic(batches, rows, columns, terms) / m.bytes)


def library_seconds(batches: int, rows: int, columns: int, terms: int, m: Machine) -> float:
    """Of the same product by the library, which divides sums where there are few tiles."""
    best = min(seconds(batches, rows, columns, terms, t, m) for t in HALVES[:3]) * (1 - LOSS)
    even = 2 * batches * rows * columns * terms / (m.flops * REACHED)
    found = min(best, max(even, _traffic(batches, rows, columns, terms) / m.bytes) + START)
    return found * UNALIGNED if columns * HALF % LINE else found


def _traffic(batches: int, rows: int, columns: int, terms: int) -> int:
    return HALF * batches * (rows * terms + terms * columns + rows * columns)


def candidates(batches: int, rows: int, columns: int, terms: int, factors: Factors, m: Machine) -> list[Tiles]:
    """Tiles that fit, the fastest by the model first."""
    itemsize, table = (2, HALVES) if factors in ("halves", "computed") else (4, WIDE)
    fitting = [t for t in table if t.shared(itemsize) <= m.shared and not (t.halved and factors == "computed")]
    return sorted(fitting, key=lambda t: seconds(batches, rows, columns, terms, t, m))


class ProductLauncher(Launcher):
    """Launches the function of a contraction.

    Args:
        kernel: as ``triton.jit`` made it.
        factors: what it multiplies.
    """

    def __init__(self, kernel: Any, factors: Factors) -> None:
        super().__init__(kernel, "fixed", 0)
        self.factors = factors
        self.tiles: Tiles | None = None
        """Those to take, whatever the shape; for measurements."""

    def plan(self, leads: int, count: int, lengths: Sequence[int], largest: int, gpu: Machine) -> Plan:
        columns, terms = lengths
        if leads * count * columns == 0:
            return Plan(0)
        sizes = leads, count, columns, terms
        tiles = self.tiles or best_tiles(sizes, self.factors, gpu)
        return plan_for(tiles, sizes, largest, self.factors)


def best_tiles(sizes: tuple[int, int, int, int], factors: Factors, gpu: Machine) -> Tiles:
    """Tiles for ``sizes``: batch, rows, columns and terms. What was measured comes before what the model says."""
    from reference_backends.triton_gpu import tuning

    if factors == "halves":
        shapes = [
            tuning.Product(*sizes, dtype, turned) for dtype in (torch.bfloat16, torch.float16) for turned in (True, False)
        ]
        found = next((known for p in shapes if (known := tuning.remembered(p, gpu))), None)
        if found is not None:
            return found.tiles
    return candidates(*sizes, factors, gpu)[0]


def plan_for(t: Tiles, sizes: tuple[int, int, int, int], largest: int, factors: Factors) -> Plan:
    """How a function is launched with these tiles, for ``sizes``: batch, rows, columns and terms."""
    import triton.language as tl

    batches, rows, columns, terms = sizes
    # Places of lanes beyond the last are computed, too.
    wide = largest + 256 * max(columns, terms, rows) >= 2**31
    full = rows % t.x == 0, columns % t.y == 0, terms % t.k == 0
    values = tl.int64 if wide else tl.int32, t.x, t.y, t.k, GROUP, *full, t.halved, "tf32" if factors == "mixed" else "ieee"
    programs = batches * -(-rows // t.x) * -(-columns // t.y)
    return Plan(programs, values, {"num_warps": t.warps, "num_stages": t.stages, **OPTIONS})


def takes_over(node: NodeContext, saved_bytes: int, saved_launches: int, gpu: Machine, *, tune: bool = False) -> Support:
    """Whether a matrix product is computed by a fused kernel rather than by the library.

    Args:
        gpu: on which.
        tune: whether to measure both on the current GPU, where something is saved.
    """
    left, right = [a for a in node.args if isinstance(a, TensorInfo)][-2:]
    (result,) = node.outputs
    if result.dtype not in (torch.bfloat16, torch.float16):
        return Decline("products of float32 are the library's")
    if left.symbolic or right.symbolic:
        return Decline("whether fusing pays depends on sizes that are not known yet")
    *batch, rows, terms = left.shape
    sizes = (batch[0] if batch else 1), rows, right.shape[-1], terms
    if not math.prod(sizes):
        return Decline("there is nothing to multiply")
    gain = saved_bytes / gpu.bytes + saved_launches * LAUNCH
    own, library = times(sizes, result.dtype, gpu, turned=not right.contiguous, tune=tune and gain > 0)
    if SURE * own < library + gain:
        return Supported()
    both = f"the library's product {1e6 * library:.1f} us and what fusing saves {1e6 * gain:.1f} us"
    return Decline(f"fused takes {1e6 * own:.1f} us, {SURE} times which is no less than {both}")


def times(sizes: tuple[int, int, int, int], dtype: torch.dtype, m: Machine, *, turned: bool, tune: bool) -> tuple[float, float]:
    """Seconds of a product of halves with the best tiles, and by the library: measured where it was or is to be."""
    from reference_backends.triton_gpu import tuning

    p = tuning.Product(*sizes, dtype, turned)
    found = tuning.measured(p) if tune else tuning.remembered(p, m)
    if found is not None:
        return found.own, found.library
    return min(seconds(*sizes, t, m) for t in HALVES if t.shared(2) <= m.shared), library_seconds(*sizes, m)
