"""Makes vecchip a torch.compile backend. It shares the host's memory, and runs loops that a table turns into its assembly."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from vecchip.chip import AssemblyError, Lanes, Program, Trap, assemble
from vecchip.table import OPS, TYPES
from vendor_sdk import Backend, CompilerError, Emitter, Launch, LoopKernel, TableEmitter, flat, hookimpl


@hookimpl
def backend() -> Backend:
    return Backend(
        name="vecchip",
        version="0.1.0",
        dtypes=frozenset(TYPES),
        notes={"sums": "accumulate in float64", "functions": "tables and iterations in float64, rounded once"},
    )


class VecEmitter(TableEmitter):
    ops = OPS
    types = TYPES

    def head(self, kernel: LoopKernel) -> str:
        lines = [f"{p.name} = buffer" for p in kernel.params]
        return "\n".join(lines + [f"{self.number(s)} = number.{TYPES[s.dtype]}" for s in kernel.symbols])

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        try:
            return [functools.partial(launch, assemble(text)) for _, text in kernels]
        except AssemblyError as error:
            raise CompilerError(f"vecchip: {error}") from error


def launch(program: Program, buffers: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
    try:
        with np.errstate(all="ignore"):
            Lanes((flat(b).numpy() for b in buffers), numbers).run(program)
    except Trap as trap:
        raise (IndexError if str(trap) == "index" else RuntimeError)(f"vecchip: trap {trap}") from trap


@hookimpl
def emitter() -> Emitter:
    return VecEmitter()
