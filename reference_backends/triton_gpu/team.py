"""Rows that several programs take together, each a part of it that stays in its registers.

A row too long for one program's registers would be read again for what follows its reductions: from memory, where the rows
under way are more than the cache holds. Here each program reduces its part, tells the row's other programs what it found, and
waits for what they found; then it goes on with the part that it has (``split.together``).

What is told is a word of 64 bits: the value, and above it a bit that says it is there; a nest before sets all words to zero.
Programs of a row have neighbouring numbers, and GPUs start programs in order: those that wait do so for programs that run, or
that are the next to start when those of earlier rows are done. At most one row of a launch waits for others to start.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from reference_backends.triton_gpu.analysis import COSTLY, Loop, body_of, heard, inner_loops, length_of, ranges_of, step
from reference_backends.triton_gpu.machine import machine
from reference_backends.triton_gpu.reuse import CACHED
from vendor_sdk import LoopKernel, index, loop, split

PART = 4096
"""Elements of a row that a program has: 32 a thread of 128, or 64 of 64."""
SMALL_PART = 2048
"""The same of rows of several operands, if these are not more than ``FEW`` such parts: a warp or two, whose lanes wait less for
each other."""
FEW = 16
LARGEST = 4 * PART
"""The same, at most, of rows of more than ``MOST`` such parts."""
MOST = 64
"""Programs of a row, at most."""
HELD = 4
"""Bytes of all operands' elements at one place up to which a thread has 64 places."""
VECTOR_BYTES = 16
TOLD = (torch.float32, torch.int32)


def members(kernel: LoopKernel, position: int) -> int:
    """How many programs share a row of nest ``position``; 0 where each has one alone."""
    nest = kernel.body[position]
    loops = split.long_loops(nest)
    lengths = {length_of(s) for s in loops}
    length = next(iter(lengths)).value if len(lengths) == 1 else None
    rows = {r.var for r in nest.ranges}
    if length is None or not rows or not any(isinstance(s, loop.Nest) for s in loops):
        return 0
    if machine().processors < MOST:  # which might not have room for all that wait for each other
        return 0
    if not any(isinstance(s, loop.Reduce) for s in loops) or not _apart(kernel, nest, loops, rows):
        return 0
    loads = [s for each in loops for s in body_of(each) if isinstance(s, loop.Load)]
    read = {s.param for s in loads if rows & index.symbols(s.index).keys()}
    if sum(kernel.param(name).dtype.itemsize for name in read) * length <= CACHED:
        return 0  # One program reads them twice as fast as several read them once.
    part = SMALL_PART if len(read) > 1 and length <= FEW * SMALL_PART else PART
    while part < LARGEST and part * MOST < length:
        part *= 2
    count = -(-length // part)
    return count if count <= MOST else 0


def holds_more(kernel: LoopKernel, nest: loop.Nest) -> bool:
    """Whether threads have twice as many elements of a row's part as usual: more is under way where registers suffice."""
    reductions = [s for s in inner_loops(nest) if isinstance(s, loop.Reduce) and not isinstance(s, split.Heard)]
    read = {each.param for s in reductions for each in body_of(s) if isinstance(each, loop.Load)}
    sizes = [kernel.param(name).dtype.itemsize for name in read]
    if max(sizes, default=HELD) * 2 > HELD or sum(sizes) > HELD:
        return False
    small = all((length_of(s).value or PART) <= SMALL_PART for s in reductions)
    ops = {s.op for s in loop.walk(nest.body) if isinstance(s, loop.Compute)}
    return len(read) == 1 or (small and not ops & COSTLY)


def _apart(kernel: LoopKernel, nest: loop.Nest, loops: list[loop.Reduce | loop.Nest], rows: set[str]) -> bool:
    """Whether programs of a row share no element that one of them writes, and begin with vectors.

    Of a result that lies where an operand was, a program writes its part when all have read theirs in a reduction. What is read
    beside the loops, or at places that are computed, it might overwrite before.
    """
    alone = [s for s in nest.body if isinstance(s, loop.Load | loop.Store)]
    if any(isinstance(s, loop.Load) for s in alone) and any(isinstance(s, loop.Store) for s in alone):
        return False
    for s in loops:
        own = {r.var for r in ranges_of(s)} | rows | {each.name for each in kernel.symbols}
        for each in body_of(s):
            if not isinstance(each, loop.Load | loop.Store):
                continue
            if not index.symbols(each.index).keys() <= own:
                return False
            if not _vectors(kernel, each, s, rows):
                return False
    return all(index.symbols(s.index).keys() <= rows for s in alone)


def _vectors(kernel: LoopKernel, access: loop.Load | loop.Store, s: Loop, rows: set[str]) -> bool:
    """Whether all rows' accesses begin with a vector, if they go along memory."""
    along = step(access.index, ranges_of(s)[-1].var)
    if along not in (0, 1):
        return False
    bytes_ = kernel.param(access.param).dtype.itemsize
    steps = [step(access.index, name) for name in rows & index.symbols(access.index).keys()]
    return along == 0 or all(each is not None and each * bytes_ % VECTOR_BYTES == 0 for each in steps)


def team(kernel: LoopKernel, position: int) -> LoopKernel | None:
    """The kernel with several programs for a row of nest ``position``; None where each has one alone, and where words would not
    hold what they found."""
    count = members(kernel, position)
    if not count:
        return None
    found = split.together(kernel, position, count)
    told = heard(found.body[position].body)
    if any(p.dtype not in TOLD for p in found.scratch if p.name in told):
        return None
    scratch = tuple(replace(p, dtype=torch.int64) if p.name in told else p for p in found.scratch)
    words = next(p.size for p in scratch if p.name in told)
    clear = loop.Nest(
        (loop.Range("word", words),),
        (
            loop.Const("nothing", 0, torch.int64),
            *(loop.Store(name, index.variable("word", words), "nothing") for name in told),
        ),
    )
    return replace(found, body=(*found.body[:position], clear, *found.body[position:]), scratch=scratch)
