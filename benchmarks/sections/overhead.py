"""What a call costs when there is nothing to compute: functions of eight numbers.

``call`` is the whole call of the compiled function, Dynamo's guards included. ``inside the backend`` calls what the backend
gave to AOTAutograd, with the list of tensors that AOTAutograd would give it; the kernel over eight numbers, the allocation
of outputs and Python's making of that list are part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import vendor_sdk
from benchmarks.contestants import Compiled, Contestant, Entry, contestants, is_sdk_backend
from benchmarks.program import Mode, Program
from benchmarks.results import RowResult
from benchmarks.sections.contest import contest
from benchmarks.sections.row import During, Row, Selection
from benchmarks.spawn import Setting

TITLE = "Overhead of a call"
OWN_PROCESS = True
CALL, INSIDE, TRAINED = "call", "inside the backend", "call with gradients"
ELEMENTS = 8


def _one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.relu(x) + 1,)


def _sixteen(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x * 2 + y for x, y in zip(inputs[::2], inputs[1::2], strict=True))


FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "one input, one output": (_one, 1),
    "16 inputs, 8 outputs": (_sixteen, 16),
}


def rows(selection: Selection) -> list[Row]:
    """Each function each way."""
    names = list(FUNCTIONS)[:1] if selection.quick else list(FUNCTIONS)
    variants = (CALL, INSIDE) if selection.quick else (CALL, INSIDE, TRAINED)
    return [Row("overhead", name, variant=variant) for name in names for variant in variants]


def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
    """One contest."""
    function, count = FUNCTIONS[row.name]
    generator = torch.Generator().manual_seed(0)
    trained = row.variant == TRAINED
    inputs = tuple(torch.randn(ELEMENTS, generator=generator).requires_grad_(trained) for _ in range(count))
    program = Program(function, inputs, Mode.GRADIENT if trained else Mode.INFERENCE)
    taking_part: list[Contestant] = contestants(setting.backend, setting.peers)
    if row.variant == INSIDE:
        taking_part = _insides(taking_part)
    return [contest(row.result(), program, taking_part, setting, during)]


def _insides(taking_part: Sequence[Contestant]) -> list[Contestant]:
    """Inductor's modes share an entry, and other backends of torch have none that one could call."""
    backends = {each.name: each.keywords["backend"] for each in taking_part if isinstance(each, Compiled)}
    return [_Inside(name, backend=backends[name]) for name in backends if name == "inductor" or is_sdk_backend(backends[name])]


@dataclass(frozen=True)
class _Inside(Contestant):
    """The compiled graph alone, as AOTAutograd calls it."""

    backend: str = ""

    def prepare(self, program: Program) -> Entry:
        inputs = program.tensors()
        if self.backend == "inductor":
            from torch._inductor.compile_fx import compile_fx_inner

            run: Callable[[list[Any]], Any] = compile_fx_inner(make_fx(program.function)(*inputs), inputs)
        else:
            run = vendor_sdk.compile_graph(vendor_sdk.trace(program.function, inputs), backend=self.backend).boxed()
        return Entry(lambda: run([*inputs]))
