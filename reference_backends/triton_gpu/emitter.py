"""Loop kernels to Triton: one function a nest, and a host function that launches them in order.

Nests are in ``nest.py``, those that are matrix products in ``contraction.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reference_backends.triton_gpu import compiler, native, products, team
from reference_backends.triton_gpu.analysis import (
    inner_loops,
    keeps_rows,
    length_of,
    manner,
    reads_around,
    several_results,
    walks_across,
)
from reference_backends.triton_gpu.contraction import ProductText, template
from reference_backends.triton_gpu.copies import copied
from reference_backends.triton_gpu.functions import arguments_text, symbol_name
from reference_backends.triton_gpu.launch import LONGEST, SHORT_TURN, SQUARE, Fixed, Kind, Several, maps, parts, rows_at_once
from reference_backends.triton_gpu.machine import TARGETS, machine
from reference_backends.triton_gpu.machine_code import Binary, binary, resources
from reference_backends.triton_gpu.nest import NestText
from reference_backends.triton_gpu.statements import Writer
from reference_backends.triton_gpu.table import OPS, TYPES
from reference_backends.triton_gpu.tiles import VECTOR_BYTES
from reference_backends.triton_gpu.together import TogetherText, independent
from vendor_sdk import (
    Emitter,
    Entry,
    Launch,
    Limits,
    LoopKernel,
    NodeContext,
    Program,
    Support,
    index,
    loop,
    online,
    split,
)

HEADER = """\
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from reference_backends.triton_gpu import atomics, base, special
from reference_backends.triton_gpu.launch import Launcher, Several
from reference_backends.triton_gpu.products import ProductLauncher
from vendor_sdk import float_bits
"""

CHUNK = 48
"""Rows whose totals one program sums: few, so that there are programs for all multiprocessors."""
CHUNKS = 128
"""Programs that sum rows at least: about as many as a large GPU has multiprocessors."""
TOTAL_WIDTH = 10240
"""Columns of which a multiprocessor's registers hold two totals beside the rows."""
LAUNCH_BYTES = 1 << 23
"""What an H200 moves in the 2 us of a launch."""
NESTS = 32
"""Loops of a foreach step in one launch."""
PART = 64
"""Iterations in a part of a loop: a line of halves."""
FEW = 8
"""Rows of a length that only the call knows which are divided as if they were long: so many programs alone would take long."""
UNKNOWN = (1 << 22) - 1
"""Iterations that they are taken for: many, of no whole tiles."""


def rows(nest: loop.Nest) -> tuple[list[index.Int], int, int]:
    """Lengths of a nest's inner loops, the longest that is known, and the longest of which a tile holds all."""
    lengths = list(dict.fromkeys(map(length_of, inner_loops(nest))))
    # Where a loop walks across memory, a tile holds the rows that lie along its lines: short columns fit.
    limit = SQUARE if walks_across(nest) else LONGEST * (2 if keeps_rows(nest) else 1)
    return lengths, max((size.value for size in lengths if size.value is not None), default=0), limit


def divided(kernel: LoopKernel) -> LoopKernel:
    """The kernel with as few passes over memory as rows too long for a tile need, and with enough programs: few long loops are
    divided among more."""
    for position in reversed(range(len(kernel.body))):
        if template(kernel.body[position]) is not None:
            continue
        lengths, longest, limit = rows(kernel.body[position])
        if longest > min(limit, LONGEST):
            once = online.online(kernel, position)
            # A row of exponentials that fits into one program takes each of them once there.
            alone = longest <= limit and once.body[position] != kernel.body[position]
            together = None if alone else team.team(once, position)
            if together is not None:
                kernel = together
                continue
            kernel = once if longest > limit else kernel
        nest = kernel.body[position]
        count = index.product([r.size for r in nest.ranges]).value
        across = walks_across(nest)
        known = [size.value for size in lengths if size.value]
        few = count is not None and (count <= FEW or across)
        sizes = {s.name for s in kernel.symbols}
        if few and len(known) < len(lengths) and all(index.symbols(n).keys() <= sizes and n.value != 0 for n in lengths):
            known, longest = [size.value or UNKNOWN for size in lengths], UNKNOWN
        if count and known and len(known) == len(lengths):
            kind: Kind = "whole" if longest <= LONGEST and not across else manner(nest)
            innermost = nest.ranges[-1].size.value if nest.ranges else None
            vectors = innermost is not None and innermost % (VECTOR_BYTES // torch.bfloat16.itemsize) == 0
            number = parts(count, known, kind, vectors=vectors, small=several_results(nest))
            if number > 1:
                if across:
                    apart = not reads_around(nest)
                    kernel = split.split(kernel, position, number, apart=apart, turn=SHORT_TURN, maps=maps(known))
                else:
                    kernel = split.split(kernel, position, number)
                continue
        kernel = copied(kernel, position)
    return kernel


Function = NestText | ProductText | TogetherText


def functions(kernel: LoopKernel) -> list[list[tuple[str, Function]]]:
    """The functions of a kernel, each of one nest in variants, or of all together."""
    found: list[list[tuple[str, Function]]] = [[*variants(kernel, position)] for position in range(len(kernel.body))]
    nests = [function for each in found for _, function in each if isinstance(function, NestText)]
    if (
        1 < len(nests) == len(found) == sum(map(len, found))
        and all(map(TogetherText.takes, nests))
        and independent(kernel.body)
    ):
        return [[("", TogetherText(kernel, f"{kernel.name}_0", nests))]]
    return found


def variants(kernel: LoopKernel, position: int) -> list[tuple[str, NestText | ProductText]]:
    """The functions of a nest, each with the host's condition for it (``""``: always), the last one's always being so.

    With rows of known length, that decides; else there is one function for rows that fit into a tile and one for others.
    """
    nest = kernel.body[position]
    name = f"{kernel.name}_{position}"
    product = template(nest)
    if product is not None:
        return [("", ProductText(kernel, name, product))]
    lengths, longest, limit = rows(nest)
    if not lengths or longest > limit or all(size.value is not None for size in lengths):
        return [("", NestText(kernel, name, nest, whole=bool(lengths) and longest <= limit))]
    condition = " and ".join(f"{index.to_python(size)} <= {limit}" for size in lengths if size.value is None)
    return [
        (condition, NestText(kernel, f"{name}_whole", nest, whole=True)),
        ("", NestText(kernel, name, online.online(kernel, position).body[position], whole=False)),
    ]


def launch_text(kernel: LoopKernel, function: Function) -> str:
    """Python text of the call that launches a function."""
    return f"launch_{function.name}({arguments_text(kernel)}, {function.sizes_text()})"


def kernel_text(kernel: LoopKernel) -> str:
    """The functions of a kernel's nests, and one of the kernel's name that launches them."""
    kernel = divided(kernel)
    host = Writer()
    alone: list[str] = []
    for s in kernel.symbols:
        if s.dtype == torch.float64:
            host(f"arg_{s.name} = float_bits(arg_{s.name})")
    for p in kernel.scratch:
        host(f"{p.name} = torch.empty({index.to_python(p.size)}, dtype={p.dtype}, device={kernel.params[-1].name}.device)")
    texts = []
    launched = functions(kernel)
    for found in launched:
        texts += [nest.text() for _, nest in found]
        if len(found) == 1:
            host(launch_text(kernel, found[0][1]))
            alone.append(f"launch_{found[0][1].name}.fixed({found[0][1].sizes_text()})")
            continue
        for condition, nest in found:
            host(f"if {condition}:" if condition else "else:")
            host(f"    {launch_text(kernel, nest)}")
    # A module is loaded once for equal texts, and its launchers keep what Triton compiled: texts must differ where dtypes do.
    buffers = [f'{p.name}: "{TYPES[p.dtype]}"' for p in kernel.params]
    if alone and len(alone) == len(launched) and all(s.role == "seed" for s in kernel.symbols):
        scratch = "".join(f"({index.to_python(p.size)}, {p.dtype}), " for p in kernel.scratch)
        several = f"Several(({', '.join(alone)},), ({scratch}))"
        texts.append(f"{kernel.name} = {alone[0] if len(alone) == 1 and not scratch else several}  # {', '.join(buffers)}\n")
    else:
        taken = ", ".join([*buffers, *map(symbol_name, kernel.symbols)])
        texts.append("\n".join([f"def {kernel.name}({taken}):", *(host.lines or ["    pass"])]) + "\n")
    return "\n\n".join(texts)


class TritonEmitter(Emitter):
    """Triton for NVIDIA GPUs.

    Args:
        tune: whether products are measured, rather than modelled, to decide who computes them (``tuning.py``).
        target: the GPU elsewhere for which kernels are compiled, a key of ``machine.TARGETS``; None: this machine's.
    """

    ops = OPS
    limits = Limits(
        chunk=CHUNK,
        narrow_chunk=1,
        total_width=TOTAL_WIDTH,
        chunks=CHUNKS,
        chunks_at_once=rows_at_once,
        launch_bytes=LAUNCH_BYTES,
        nests=NESTS,
        part=PART,
        copies=4,
        sharing=2,
        chunk_apart=True,
    )
    seeds_in_memory = True
    tune = False
    target: str | None = None

    def __init__(self, *, tune: bool = False, target: str | None = None) -> None:
        self.tune, self.target = tune and target is None, target

    def emit(self, kernel: LoopKernel) -> str:
        return kernel_text(kernel)

    def takes_over(self, node: NodeContext, saved_bytes: int, saved_launches: int) -> Support:
        gpu = machine() if self.target is None else TARGETS[self.target]
        return products.takes_over(node, saved_bytes, saved_launches, gpu, tune=self.tune)

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        if not kernels:
            return []
        module = compiler.load("\n\n".join([HEADER, *(text for _, text in kernels)]))
        if self.target is None:
            return [_launch(kernel, getattr(module, kernel.name)) for kernel, _ in kernels]
        begun = [compiler.elsewhere(module, kernel, TARGETS[self.target]) for kernel, _ in kernels]
        for each in (each for functions in begun for each in functions):
            each.wait()
        return [Elsewhere([binary(each.result()) for each in functions]) for functions in begun]

    def link(self, program: Program) -> Entry | None:
        return native.link(program)

    def resources(self, launch: Launch) -> Mapping[str, int]:
        return resources(launch.binaries) if isinstance(launch, Elsewhere) else {}


@dataclass(frozen=True)
class Elsewhere:
    """What stands for the launch of a kernel on a GPU that is elsewhere: its functions' machine code."""

    binaries: Sequence[Binary]

    def __call__(self, buffers: Sequence[Any], symbols: Sequence[int]) -> None:
        raise AssertionError("graphs that were compiled for a target are not called")


def _launch(kernel: LoopKernel, function: Any) -> Launch:
    if not isinstance(function, Fixed | Several):
        return lambda buffers, symbols: function(*buffers, *symbols)
    function.ahead([param.dtype for param in kernel.params], len(kernel.symbols))
    return function
