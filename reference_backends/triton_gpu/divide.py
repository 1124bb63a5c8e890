"""Long inner loops among more programs: into how many parts, where that is known and where the call's sizes tell."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from reference_backends.triton_gpu import team
from reference_backends.triton_gpu.analysis import (
    inner_loops,
    keeps_rows,
    length_of,
    manner,
    reads_again,
    reads_around,
    several_results,
    walks_across,
)
from reference_backends.triton_gpu.contraction import template
from reference_backends.triton_gpu.copies import copied
from reference_backends.triton_gpu.launch import (
    ACROSS,
    AT_ONCE,
    COLUMN,
    LONG,
    LONG_PART,
    LONGEST,
    MAP,
    SHORT_TURN,
    SQUARE,
    Kind,
    maps,
    parts,
)
from reference_backends.triton_gpu.tiles import VECTOR_BYTES
from vendor_sdk import LoopKernel, index, loop, online, split

FEW = 8
"""Rows of a length that only the call knows which are divided: so many programs alone would take long."""
UNKNOWN = (1 << 25) - 1
"""Iterations that they are taken for to say into how many parts at most: many, of no whole tiles."""
SHORTEST = 8 * SHORT_TURN
"""Iterations of a part of a loop that walks across memory, of a length that only the call knows, at least."""


def rows(nest: loop.Nest) -> tuple[list[index.Int], int, int]:
    """Lengths of a nest's inner loops, the longest that is known, and the longest of which a tile holds all."""
    lengths = list(dict.fromkeys(map(length_of, inner_loops(nest))))
    if walks_across(nest):
        # A tile holds the rows that lie along its lines: short columns fit, longer ones where they would be read again.
        limit = COLUMN if reads_again(nest) else SQUARE
    else:
        limit = LONGEST * (2 if keeps_rows(nest) else 1)
    return lengths, max((size.value for size in lengths if size.value is not None), default=0), limit


@dataclass(frozen=True)
class When:
    """When a nest runs: if its loops are in several ``parts``, or if they are not."""

    parts: index.Int
    several: bool


@dataclass(frozen=True)
class Divided:
    """A kernel, and for each nest when it runs; None: always."""

    kernel: LoopKernel
    when: Sequence[When | None]


def divided(kernel: LoopKernel) -> Divided:
    """The kernel with as few passes over memory as rows too long for a tile need, and with enough programs: few long loops are
    divided among more. Where only the call tells how long these are, a nest stands behind its parts, for those calls in which
    nothing is divided."""
    when: list[When | None] = [None] * len(kernel.body)
    for position in reversed(range(len(kernel.body))):
        nest, nests = kernel.body[position], len(kernel.body)
        if template(nest) is not None:
            continue
        number, step = open_parts(kernel, nest) or (None, 1)
        divisor = None if number is None else step * index.maximum(number, 1)
        found = kernel if divisor is None else in_parts(kernel, position, divisor)
        more = len(found.body) - nests
        if number is not None and divisor is not None and more:
            number = divisor if step == 1 else step * number
            behind = position + more + 1
            kernel = replace(found, body=(*found.body[:behind], nest, *found.body[behind:]))
            when[position : position + 1] = [*[When(number, several=True)] * (more + 1), When(number, several=False)]
        else:
            kernel = in_known_parts(kernel, position)
            when[position : position + 1] = [None] * (len(kernel.body) - nests + 1)
    return Divided(kernel, when)


def in_parts(kernel: LoopKernel, position: int, number: index.Int) -> LoopKernel:
    """The kernel with a nest's inner loops in as many parts, where they can be divided."""
    nest = kernel.body[position]
    if not walks_across(nest):
        return split.split(kernel, position, number, turn=LONG[manner(nest)][0])
    tiles = (longest_of(nest) + (MAP - 1)) // MAP
    return split.split(kernel, position, number, apart=not reads_around(nest), turn=SHORT_TURN, maps=tiles)


def open_parts(kernel: LoopKernel, nest: loop.Nest) -> tuple[index.Int, int] | None:
    """Into how many parts the inner loops of a nest are divided, of the call's sizes, as a multiple of a number; up to one part
    where they are not. None where sizes do not tell."""
    lengths, _, limit = rows(nest)
    sizes = {s.name for s in kernel.symbols if s.role == "size"}
    told = all(index.symbols(n).keys() <= sizes and n.value != 0 for n in lengths)
    if not told or all(n.value is not None for n in lengths):
        return None
    iterations = index.product([r.size for r in nest.ranges])
    across, count = walks_across(nest), iterations.value
    vectors = begins_alike(nest)
    step = 1 if vectors or not across or count is None else split.LINE
    if count is not None and (count <= FEW or across):
        known = [n.value or (UNKNOWN if step == 1 else 2 * step * LONG_PART) for n in lengths]
        most = index.wrap(parts(max(count, 1), known, manner(nest), vectors=vectors, small=several_results(nest)))
    elif count is None and across and index.symbols(iterations).keys() <= sizes:
        # Of rows of odd length, which nothing tells here, parts begin anywhere.
        most = 2 * AT_ONCE // index.maximum((iterations + (ACROSS - 1)) // ACROSS, 1)
    else:
        return None
    # Rows that are a tile as a whole are not divided.
    longest = longest_of(nest)
    if across:
        tiles = longest // SHORTEST
        if limit > SHORTEST:
            tiles = tiles * index.minimum(longest // (limit + 1), 1)
    else:
        block = LONG[manner(nest)][0]
        tiles = (longest + block - 1) // block * index.minimum(longest // (LONGEST + 1), 1)
    number = index.minimum(most, tiles) // step
    return number if step == 1 else index.maximum(number, longest // (step * LONG_PART)), step


def longest_of(nest: loop.Nest) -> index.Int:
    """The length of a nest's longest inner loop."""
    return functools.reduce(index.maximum, rows(nest)[0])


def begins_alike(nest: loop.Nest) -> bool:
    """Whether every iteration of a loop that walks across memory begins with a vector, if the first one does."""
    innermost = nest.ranges[-1].size.value if nest.ranges else None
    return innermost is not None and innermost % (VECTOR_BYTES // torch.bfloat16.itemsize) == 0


def in_known_parts(kernel: LoopKernel, position: int) -> LoopKernel:
    """The kernel with a nest's inner loops divided, where their lengths are known and that is worth it."""
    lengths, longest, limit = rows(kernel.body[position])
    if longest > min(limit, LONGEST):
        once = online.online(kernel, position)
        # A row of exponentials that fits into one program takes each of them once there.
        alone = longest <= limit and once.body[position] != kernel.body[position]
        together = None if alone else team.team(once, position)
        if together is not None:
            return together
        kernel = once if longest > limit else kernel
    nest = kernel.body[position]
    count = index.product([r.size for r in nest.ranges]).value
    across = walks_across(nest)
    known = [size.value for size in lengths if size.value]
    if count and known and len(known) == len(lengths):
        kind: Kind = "whole" if longest <= min(limit, LONGEST) else manner(nest)
        number = parts(count, known, kind, vectors=begins_alike(nest), small=several_results(nest))
        if number > 1 and across:
            apart = not reads_around(nest)
            return split.split(kernel, position, number, apart=apart, turn=SHORT_TURN, maps=maps(known))
        if number > 1:
            return split.split(kernel, position, number)
    return copied(kernel, position)
