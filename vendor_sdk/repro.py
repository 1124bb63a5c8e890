"""What a ``repro.py`` of a dump calls: rebuilds its graph, fills its inputs with random numbers, and checks every stage.

Nothing here is meant to be called by hand; ``docs/debugging.md`` tells how to use the programs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vendor_sdk import debug, pipeline, script, torch_private
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.check import beyond_bound, interpret, largest, random_nodes
from vendor_sdk.contract.placement import Kind
from vendor_sdk.dump.program import CONSTANTS, VALUES
from vendor_sdk.errors import OptionError, VendorSDKError
from vendor_sdk.ir.primgraph import OutputLayout, PrimGraph


@dataclass(frozen=True)
class tensor:
    """An input: sizes and strides in elements (ints, or shape symbols while the graph is rebuilt).

    Attributes:
        high: integers are drawn from 0 up to this, exclusive.
        values: the elements of its memory in order, in place of random ones.
    """

    shape: Sequence[Any]
    strides: Sequence[Any]
    dtype: torch.dtype
    device: str = "cpu"
    high: int = 2
    values: Sequence[Any] | torch.Tensor | None = None

    def made(self, generator: torch.Generator) -> torch.Tensor:
        """The tensor, with its own values or random ones."""
        if self.values is None:
            return self.random(generator)
        memory = torch.as_tensor(self.values, dtype=self.dtype).to(self.device)
        return memory.as_strided(tuple(self.shape), tuple(self.strides))

    def random(self, generator: torch.Generator) -> torch.Tensor:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        elements = max(extent, 0) if 0 not in self.shape else 0
        if self.dtype.is_floating_point or self.dtype.is_complex:
            kind = self.dtype if self.dtype.is_complex else torch.float64
            memory = torch.randn(elements, generator=generator, dtype=kind).to(self.dtype)
        else:
            memory = torch.randint(0, self.high, (elements,), generator=generator).to(self.dtype)
        return memory.to(self.device).as_strided(tuple(self.shape), tuple(self.strides))

    def fake(self) -> torch.Tensor:
        return torch.empty_strided(tuple(self.shape), tuple(self.strides), dtype=self.dtype, device=self.device)


Described = Callable[..., list[Any]]


def constant(program: str, name: str) -> torch.Tensor:
    """A constant that lies beside the program."""
    loaded: torch.Tensor = torch.load(Path(program).with_name(CONSTANTS))[name]
    return loaded


def rebuild(
    module: torch.nn.Module,
    inputs: Described,
    outputs: Described,
    sizes: Mapping[str, int],
    constants: Sequence[torch.Tensor],
    backward: bool,
    static_inputs: Sequence[int],
    donated_inputs: Sequence[int],
    writes: Sequence[int] = (),
    training: bool = False,
) -> PrimGraph:
    """The graph that ``module`` spells out."""
    mode, numbers = torch_private.symbolic_numbers(sizes)
    with mode:
        fakes = [value.fake() if isinstance(value, tensor) else value for value in inputs(**numbers)]
        fakes += [mode.from_tensor(value, static_shapes=True) for value in constants]
        traced = torch_private.functional_trace(lambda *values: module(*values), fakes)
        layouts = [
            OutputLayout(strides, frozenset((kind, index) for kind, index in aliases))
            for strides, aliases in outputs(**numbers)
        ]
    graph = to_prim_graph(traced, fakes, {}, backward=backward, static_inputs=frozenset(static_inputs))
    names = [node.name for node in graph.placeholders]
    graph.constants = dict(zip(names[len(names) - len(constants) :], constants, strict=True))
    graph.output_layouts = layouts
    graph.donated_inputs = frozenset(donated_inputs)
    graph.writes = tuple(writes)
    graph.training = training
    for node, value in zip(graph.placeholders, inputs(**sizes), strict=False):
        if isinstance(value, tensor) and value.values is not None:
            node.meta[VALUES] = value.made(torch.Generator())
    return graph


@dataclass(frozen=True)
class Ran:
    """What a call of a program was, in which nothing was found wrong.

    Attributes:
        graph: as rebuilt.
        found: what the call returned and wrote.
        expected: what torch makes of the same inputs.
        unchecked: what the check stopped at, so that nothing is known of the stages; "" where it did not.
    """

    graph: PrimGraph
    found: list[Any]
    expected: list[Any]
    unchecked: str


@dataclass(frozen=True)
class Program:
    """What a ``repro.py`` says: the arguments of ``main``."""

    module: torch.nn.Module
    inputs: Described
    outputs: Described
    sizes: Mapping[str, int]
    constants: Sequence[torch.Tensor]
    backend: str
    options: Mapping[str, Any]
    backward: bool
    static_inputs: Sequence[int]
    donated_inputs: Sequence[int]
    writes: Sequence[int] = ()
    training: bool = False

    def graph(self) -> PrimGraph:
        """The graph, with symbols where sizes were symbolic."""
        return rebuild(
            self.module,
            self.inputs,
            self.outputs,
            self.sizes,
            self.constants,
            self.backward,
            self.static_inputs,
            self.donated_inputs,
            self.writes,
            self.training,
        )

    def static(self) -> Program:
        """The same with the sizes that were traced, as numbers."""
        given, promised = self.inputs(**self.sizes), self.outputs(**self.sizes)
        return replace(self, inputs=lambda: given, outputs=lambda: promised, sizes={})

    def run(self, seed: int = 0, backend: str | None = None) -> Ran:
        """Compiles the graph and calls it once with every stage checked; inputs without values of their own are random.

        A graph of one prim that the backend runs is held to the bound of the prim's row, too.

        Raises:
            WrongResultError: a stage changed the numbers; and whatever else the compiler or the backend raises.
        """
        generator = torch.Generator().manual_seed(seed)
        values = [value.made(generator) if isinstance(value, tensor) else value for value in self.inputs(**self.sizes)]
        graph = self.graph()
        reference = graph.copy()
        torch.manual_seed(seed)
        with debug.variable(debug.CHECK, "1"):
            options = None if backend else dict(self.options)
            compiled = pipeline.compile_graph(graph, backend=backend or self.backend, options=options)
            expected = interpret(reference, values)
            found = [*compiled(*values), *(values[index] for index in self.writes)]
        on_host = all(each.placement.kind is Kind.HOST for each in compiled.placements)
        if not on_host and (wrong := beyond_bound(reference, values, found, compiled.backend)) is not None:
            raise wrong
        return Ran(reference, found, expected, compiled.unchecked())


def read(path: Path) -> Program:
    """The program in a file, which is imported and not run. Raises ``OptionError`` where it is no ``repro.py``."""
    _readers.append([])
    try:
        script.run(path)
        if not _readers[-1]:
            raise OptionError(
                f"{path} is no repro.py of a dump",
                why="it rebuilds no graph",
                fix="Run a program under VENDOR_SDK_DEBUG=dir and take dir/*/repro.py, or give your program with --script.",
            )
        return _readers[-1][0]
    finally:
        _readers.pop()


_readers: list[list[Program]] = []
"""Where ``main`` leaves its program, instead of running it, while somebody reads one."""


def main(module: torch.nn.Module, inputs: Described, outputs: Described, **rest: Any) -> None:
    """Compiles the graph, runs it once with every stage checked, and compares its outputs with torch.

    Exits with status 1 where numbers differ, or the backend fails, having printed where; and where the check stopped, having
    printed at what.

    Args:
        module, inputs, outputs, rest: see ``Program``.
    """
    program = Program(module, inputs, outputs, **rest)
    if _readers:
        _readers[-1].append(program)
        return
    parser = argparse.ArgumentParser(description="Rebuilds one compiled graph and looks for the first stage that is wrong.")
    parser.add_argument("--backend", help=f"instead of {program.backend}, with its default options")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="of a backend that is not installed")
    given = parser.parse_args()
    try:
        for plugin in given.plugin:
            script.load_plugin(plugin)
        ran = program.run(given.seed, given.backend)
    except VendorSDKError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)
    for index, (one, wanted) in enumerate(zip(ran.found, ran.expected, strict=True)):
        if isinstance(one, torch.Tensor):
            print(f"output {index}: {one.dtype} {tuple(one.shape)}, largest difference from torch {largest(one, wanted):.3g}")
    if random_nodes(ran.graph):
        print("the graph draws random numbers, of which torch draws others: only the stages are compared")
    if ran.unchecked:
        print(f"the stages were not checked: the check stopped at {ran.unchecked}")
        sys.exit(1)
    print("all stages agree")
