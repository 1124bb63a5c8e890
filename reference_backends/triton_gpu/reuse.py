"""What the caches are told of loads: what will be read again, and what will not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from reference_backends.triton_gpu.analysis import body_of, inner_loops, length_of, step
from vendor_sdk import LoopKernel, index, loop

Policy = Literal["evict_first", "evict_last"]
CACHED = 1 << 16
"""Bytes of a row's operands that one program reads again from its multiprocessor's cache: two programs have half of it."""


LARGE = 16381
"""What a size counts for that only the call knows: a prime."""


def policies(
    kernel: LoopKernel, nest: loop.Nest, others: Sequence[loop.Nest], derived: Mapping[str, index.Int]
) -> dict[int, Policy]:
    """Policies of loads, by identity, in a nest whose inner loops, if there are any, are taken a tile at a time.

    Args:
        others: nests that run in the same calls.
        derived: what the kernel's symbols are that follow from others.

    Rows that a later loop reads again should stay, and so should tables that many iterations of the nest read. What is read
    once, in one long loop, need not push out what others will read, or write what they wrote sooner than must be.
    """
    inner = inner_loops(nest)
    if not inner:
        return {id(s): "evict_last" for s in nest.body if isinstance(s, loop.Load) and _is_table(s, nest)}
    loads = [[s for s in body_of(each) if isinstance(s, loop.Load)] for each in inner]
    typical = {s.name: LARGE for s in kernel.symbols if s.name not in derived}
    for name, size in derived.items():
        typical[name] = index.evaluate(size, typical)
    found: dict[int, Policy] = {
        id(s): "evict_first" for each in loads for s in each if _streams(kernel, nest, others, s, typical)
    }
    rows = {r.var for r in nest.ranges}
    again: dict[int, loop.Load] = {}
    for number, each in enumerate(loads):
        later = {s.param for others in loads[number + 1 :] for s in others}
        again |= {id(s): s for s in each if s.param in later and rows & index.symbols(s.index).keys()}
    lengths = [length_of(each).value for each in inner]
    bytes_ = {s.param: s.dtype.itemsize for s in again.values()}
    if all(n is not None and n * sum(bytes_.values()) <= CACHED for n in lengths):
        found |= dict.fromkeys(again, "evict_last")
    return found


def _is_table(s: loop.Load, nest: loop.Nest) -> bool:
    """Whether a load walks along memory, and all iterations of some range around it read the same."""
    return any(r.var not in index.symbols(s.index) for r in nest.ranges) and step(s.index, nest.ranges[-1].var) == 1


def _streams(kernel: LoopKernel, nest: loop.Nest, others: Sequence[loop.Nest], s: loop.Load, sizes: Mapping[str, int]) -> bool:
    """Whether a load reads each element of an operand once with such ``sizes``, and nothing else that runs with it reads it."""
    param = kernel.param(s.param)
    reads = sum(isinstance(each, loop.Load) and each.param == s.param for each in loop.walk((nest, *others)))
    if param.role != "in" or reads != 1:
        return False
    around = next(each for each in inner_loops(nest) if any(other is s for other in body_of(each)))
    count = index.product([*(r.size for r in nest.ranges), length_of(around)])
    if not index.symbols(count).keys() <= sizes.keys():
        return False
    size = index.evaluate(param.size, sizes)
    return bool(size <= index.evaluate(count, sizes) < 2 * size)
