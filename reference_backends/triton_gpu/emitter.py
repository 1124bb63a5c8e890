"""Loop kernels to Triton: one function a nest, and a host function that launches them in order.

Nests are in ``nest.py``, those that are matrix products in ``contraction.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reference_backends.triton_gpu import compiler, native, products
from reference_backends.triton_gpu.contraction import ProductText, template
from reference_backends.triton_gpu.divide import When, divided, rows
from reference_backends.triton_gpu.functions import arguments_text, symbol_name
from reference_backends.triton_gpu.launch import Fixed, Several, rows_at_once
from reference_backends.triton_gpu.machine import TARGETS, machine
from reference_backends.triton_gpu.machine_code import Binary, binary, resources
from reference_backends.triton_gpu.nest import NestText
from reference_backends.triton_gpu.statements import Writer
from reference_backends.triton_gpu.table import OPS, TYPES
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
    hoist,
    index,
    loop,
    online,
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
Function = NestText | ProductText | TogetherText


def functions(hoisted: hoist.Hoisted, when: Sequence[When | None]) -> list[list[tuple[str, Function]]]:
    """The functions of a kernel, each of one nest in variants, or of all together.

    Args:
        when: for each nest when it runs.
    """
    kernel = hoisted.kernel
    found: list[list[tuple[str, Function]]] = []
    for position, own in enumerate(when):
        others = [
            nest
            for number, (nest, its) in enumerate(zip(kernel.body, when, strict=True))
            if number != position and (own is None or its is None or own.parts != its.parts or own.several == its.several)
        ]
        found.append([*variants(hoisted, position, others)])
    nests = [function for each in found for _, function in each if isinstance(function, NestText)]
    if (
        1 < len(nests) == len(found) == sum(map(len, found))
        and all(map(TogetherText.takes, nests))
        and independent(kernel.body)
    ):
        return [[("", TogetherText(kernel, f"{kernel.name}_0", nests))]]
    return found


def variants(hoisted: hoist.Hoisted, position: int, others: Sequence[loop.Nest]) -> list[tuple[str, NestText | ProductText]]:
    """The functions of a nest, each with the host's condition for it (``""``: always), the last one's always being so.

    With rows of known length, that decides; else there is one function for rows that fit into a tile and one for others.
    """
    kernel = hoisted.kernel
    nest = kernel.body[position]
    text = functools.partial(NestText, kernel, derived=hoisted.sizes, others=others)
    name = f"{kernel.name}_{position}"
    product = template(nest)
    if product is not None:
        return [("", ProductText(kernel, name, product))]
    lengths, longest, limit = rows(nest)
    if not lengths or longest > limit or all(size.value is not None for size in lengths):
        return [("", text(name, nest, whole=bool(lengths) and longest <= limit))]
    condition = " and ".join(f"{index.to_python(size)} <= {limit}" for size in lengths if size.value is None)
    return [
        (condition, text(f"{name}_whole", nest, whole=True)),
        ("", text(name, online.online(kernel, position).body[position], whole=False)),
    ]


def launch_text(kernel: LoopKernel, function: Function) -> str:
    """Python text of the call that launches a function."""
    return f"launch_{function.name}({arguments_text(kernel)}, {function.sizes_text()})"


def kernel_text(kernel: LoopKernel) -> str:
    """The functions of a kernel's nests, and one of the kernel's name that launches them."""
    numbers = [symbol_name(s) for s in kernel.symbols]
    parts = divided(kernel)
    hoisted = hoist.hoist(parts.kernel)
    kernel = hoisted.kernel
    host = Writer()
    alone: list[str] = []
    for s in kernel.symbols:
        if s.dtype == torch.float64:
            host(f"arg_{s.name} = float_bits(arg_{s.name})")
    for name, size in hoisted.sizes.items():
        host(f"{name} = {index.to_python(size)}")
    for p in kernel.scratch:
        host(f"{p.name} = torch.empty({index.to_python(p.size)}, dtype={p.dtype}, device={kernel.params[-1].name}.device)")
    texts = []
    launched = functions(hoisted, parts.when)
    for when, found in zip(parts.when, launched, strict=False):
        texts += [nest.text() for _, nest in found]
        if when is not None:
            host(f"if {index.to_python(hoisted.named(when.parts))} {'>' if when.several else '<='} 1:")
        host.depth += when is not None
        if len(found) == 1:
            host(launch_text(kernel, found[0][1]))
            alone.append(f"launch_{found[0][1].name}.fixed({found[0][1].sizes_text()})")
        else:
            for condition, nest in found:
                host(f"if {condition}:" if condition else "else:")
                host(f"    {launch_text(kernel, nest)}")
        host.depth -= when is not None
    # A module is loaded once for equal texts, and its launchers keep what Triton compiled: texts must differ where dtypes do.
    buffers = [f'{p.name}: "{TYPES[p.dtype]}"' for p in kernel.params]
    if alone and len(alone) == len(launched) and all(s.role == "seed" for s in kernel.symbols):
        scratch = "".join(f"({index.to_python(p.size)}, {p.dtype}), " for p in kernel.scratch)
        several = f"Several(({', '.join(alone)},), ({scratch}))"
        texts.append(f"{kernel.name} = {alone[0] if len(alone) == 1 and not scratch else several}  # {', '.join(buffers)}\n")
    else:
        taken = ", ".join([*buffers, *numbers])
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
