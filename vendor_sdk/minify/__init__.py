"""From a program whose compiled graph fails to the smallest graph that fails alike: ``vendor-sdk minify``.

find      the failing graph among the dumps of a program (``VENDOR_SDK_DEBUG``)
reduce    smaller graphs out of a graph                                         reduce.py
search    delta debugging over them                                             here
worker    runs candidates, since they may kill or hang it                       worker.py

Everything here holds graphs in their captured form, as ``repro.py`` programs spell them out. A candidate counts when it fails
in the way of the whole graph: the same error (for wrong numbers, at the same stage), the same signal, or no answer in time.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vendor_sdk import repro, torch_private
from vendor_sdk.capture.graph import trace
from vendor_sdk.dump.program import CONSTANTS, VALUES, program
from vendor_sdk.errors import OptionError
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.minify import reduce
from vendor_sdk.minify.worker import Failure, Pool
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.samples import Effort, SampleContext

Try = Callable[[PrimGraph], bool]


@dataclass(frozen=True)
class Minified:
    """What was found.

    Attributes:
        graph: the smallest graph that fails.
        failure: how.
        before, after: operators of the whole graph, and of this one.
        shorter: whether anything was left out: operators, outputs, or elements.
        tries: graphs that were run.
        text: the standalone program.
        constants: what belongs beside it as ``CONSTANTS``, if anything.
    """

    graph: PrimGraph
    failure: Failure
    before: int
    after: int
    shorter: bool
    tries: int
    text: str
    constants: bytes | None

    def write(self, path: Path) -> None:
        """Writes the program, and its constants beside it."""
        path.write_text(self.text)
        if self.constants is not None:
            path.with_name(CONSTANTS).write_bytes(self.constants)


def dumped(command: Sequence[str], folder: Path, seconds: float) -> list[Path]:
    """Programs of all graphs that ``command`` compiles, the last first: what it died of is there. Its output goes to stderr.

    Raises:
        OptionError: it compiled none.
    """
    environment = {**os.environ, "VENDOR_SDK_DEBUG": str(folder)}
    search = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
    with subprocess.Popen(command, stdout=2, env=environment) as child:
        try:
            status = child.wait(seconds)
            ended = f"ended with exit status {status} and " if status else ""
        except subprocess.TimeoutExpired:
            child.kill()
            ended = f"did not end in {seconds:g} seconds and "
    found = sorted(folder.glob("*/repro.py"), reverse=True)
    if not found:
        raise OptionError(
            f"the program {ended}compiled no graph",
            why="graphs are looked for that it compiles with a backend of vendor_sdk before it fails",
            fix=f"{'Mend that. ' if ended else ''}It must call torch.compile(model, backend=...), and then the model.",
        )
    return found


def for_backend(programs: Sequence[Path], backend: str, folder: Path) -> list[Path]:
    """The same graphs for another backend, with its default options, as programs in ``folder``."""
    return [_written(repro.read(path).graph(), backend, folder / f"{n:04}") for n, path in enumerate(programs)]


def samples(case: str, backend: str, folder: Path, seeds: Sequence[int] = (0, 1)) -> list[Path]:
    """A program for each sample of a conformance case, with the sample's own values, in ``folder``; none where the case cannot
    be called on its own. Raises ``OptionError`` for what is no case."""
    prim, dtype = _parts_of(case)
    row = OPSET.get(prim)
    found: list[Path] = []
    for seed in seeds if row is not None and dtype in row.dtypes else ():
        assert row is not None
        for sample in row.samples(SampleContext.make(dtype, Effort.FULL, seed)):
            function, tensors = torch_private.as_function(row.target, sample.args, sample.kwargs)
            try:
                graph = trace(function, tensors, {})
            except Exception:  # a call that needs a value to be traced
                continue
            for node, value in zip(graph.placeholders, tensors, strict=False):
                node.meta[VALUES] = value
            found.append(_written(graph, backend, folder / f"{len(found):04}"))
    return found


def _written(graph: PrimGraph, backend: str, folder: Path, options: Mapping[str, Any] | None = None) -> Path:
    text, constants = program(graph, backend, options or {})
    folder.mkdir(parents=True)
    (folder / "repro.py").write_text(text)
    if constants is not None:
        (folder / CONSTANTS).write_bytes(constants)
    return folder / "repro.py"


def first(programs: Sequence[Path], pool: Pool, seeds: Sequence[int]) -> tuple[Path, int, Failure] | None:
    """The first program that fails, with the seed and its failure; None when none does."""
    for seed in seeds:
        for path in programs:
            failure = pool.run(path, seed)
            if failure is not None:
                return path, seed, failure
    return None


def find(programs: Sequence[Path], pool: Pool, seeds: Sequence[int] = (0, 1, 2)) -> tuple[Path, int, Failure]:
    """The first program that fails, with the seed and its failure. Raises ``OptionError`` when none does, or none that could be
    checked."""
    found = first(programs, pool, seeds)
    if found is not None:
        return found
    unchecked = [pool.unchecked[path] for path in programs if path in pool.unchecked]
    if unchecked:
        raise OptionError(
            f"{len(unchecked)} of {len(programs)} compiled graphs could not be checked, and no other fails",
            why=f"the check stopped at {unchecked[0]}",
            fix="Run the repro.py of a dump (VENDOR_SDK_DEBUG=dir): it says how far its results are from torch.",
        )
    raise OptionError(
        f"none of {len(programs)} compiled graphs fails with random inputs",
        why="a graph is run on random inputs of the same shapes; the program's own values may be what matters",
        fix="Edit `high=` or the values in the repro.py of a dump (VENDOR_SDK_DEBUG=dir), and give it with --repro.",
    )


def minify(
    path: Path,
    seed: int,
    failure: Failure,
    pool: Pool,
    folder: Path,
    tell: Callable[[str], None] = lambda line: None,
    name: str = "minified.py",
) -> Minified:
    """The smallest graph that fails as the program in ``path`` does.

    Args:
        seed, failure: as ``find`` answered.
        pool: runs candidates.
        folder: for candidates.
        tell: hears of progress, a line at a time.
        name: what the program will be called.
    """
    whole = repro.read(path)
    search = _Search(whole.backend, whole.options, seed, failure, pool, folder)
    graph = whole.graph()
    before = reduce.size(graph)
    start = next(
        (each for each in (reduce.plain(whole.static().graph()), reduce.plain(graph), graph) if search.fails(each)), None
    )
    if start is None:
        # What the dump has and this form has not is what matters; there is nothing to shorten.
        raise OptionError(
            f"{path} fails, and the graph read from it does not", fix=f"Look at it as it is: python {path} --seed {seed}."
        )
    graph = start
    tell(f"{before} operators fail: {failure}")
    if not graph.output_layouts:
        graph = search.fewer_operators(graph, tell)
        graph = search.smaller_sizes(graph, tell)
        graph = search.fewer_operators(graph, tell)
    text, constants = program(graph, whole.backend, whole.options, name)
    shorter = graph is not start
    return Minified(graph, failure, before, reduce.size(graph), shorter, search.tries, text, constants)


class _Search:
    def __init__(self, backend: str, options: Mapping[str, Any], seed: int, failure: Failure, pool: Pool, folder: Path) -> None:
        self.backend, self.options, self.seed, self.failure = backend, options, seed, failure
        self.pool, self.folder = pool, folder
        self.tries = 0
        self.known: dict[tuple[str, bytes | None], bool] = {}

    def fails(self, graph: PrimGraph) -> bool:
        """Whether the graph fails in the way looked for; each is run once."""
        try:
            text, constants = program(graph, self.backend, self.options)
        except Exception:  # a graph that cannot be written down is no candidate
            return False
        if (text, constants) not in self.known:
            self.tries += 1
            place = self.folder / f"{self.tries:04}"
            place.mkdir()
            (place / "repro.py").write_text(text)
            if constants is not None:
                (place / CONSTANTS).write_bytes(constants)
            self.known[text, constants] = self.pool.run(place / "repro.py", self.seed) == self.failure
        return self.known[text, constants]

    def fewer_operators(self, graph: PrimGraph, tell: Callable[[str], None]) -> PrimGraph:
        """Delta debugging (Zeller, Hildebrandt, 2002) over the operators: those left out become inputs."""
        parts = 2
        while (count := reduce.size(graph)) > 1:
            bounds = [count * part // parts for part in range(parts + 1)]
            chunks = [range(a, b) for a, b in itertools.pairwise(bounds)]
            # Neighbours make a failure, most of the time: first each chunk alone, then all but one.
            candidates = [set(chunk) for chunk in chunks]
            if parts > 2:
                candidates += [set(range(count)) - set(chunk) for chunk in chunks]
            smaller = next((made for kept in candidates if (made := reduce.keep(graph, kept)) and self.fails(made)), None)
            if smaller is not None:
                graph = smaller
                tell(f"{reduce.size(graph)} operators")
                parts = max(min(parts - 1, reduce.size(graph)), 2)
            elif parts < count:
                parts = min(2 * parts, count)
            else:
                break
        return self._fewer_outputs(graph)

    def _fewer_outputs(self, graph: PrimGraph) -> PrimGraph:
        while len(graph.outputs) > 1:
            without = (reduce.without_output(graph, index) for index in range(len(graph.outputs)))
            smaller = next((made for made in without if made is not None and self.fails(made)), None)
            if smaller is None:
                break
            graph = smaller
        return graph

    def smaller_sizes(self, graph: PrimGraph, tell: Callable[[str], None]) -> PrimGraph:
        """Every size that inputs have, as small as the failure allows."""
        again = True
        while again:
            again = False
            for size in sorted(reduce.sizes(graph), reverse=True):
                for less in sorted({1, 2, 3, 5, 8, 16, size // 2, size - 1}):
                    if less >= size:
                        break
                    # Where elements have values of their own, the one that matters may be at either end.
                    parts = (reduce.resized(graph, size, less, last=last) for last in (False, True))
                    made = next((part for part in parts if part is not None and self.fails(part)), None)
                    if made is not None:
                        graph, again = made, True
                        tell(f"size {size} becomes {less}")
                        break
        return graph


def script_command(script: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, str(script), *arguments]


def case_command(case: str, backend: str, plugins: Sequence[str], seconds: float) -> list[str]:
    """The conformance suite on one case, without a report. Raises ``OptionError`` for what is no case."""
    prim, dtype = _parts_of(case)
    loaded = [argument for name in plugins for argument in ("--plugin", name)]
    selected = ["--backend", backend, "--prims", prim, "--dtypes", str(dtype).removeprefix("torch."), "--timeout", str(seconds)]
    return [
        sys.executable,
        "-m",
        "conformance.cli",
        *selected,
        "-n",
        "1",
        "--effort",
        "quick",
        "--no-output",
        *loaded,
    ]


def _parts_of(case: str) -> tuple[str, torch.dtype]:
    prim, bracket, name = case.partition("[")
    dtype = getattr(torch, name.removesuffix("]"), None)
    if not prim or not bracket or not name.endswith("]") or not isinstance(dtype, torch.dtype):
        raise OptionError(f"{case!r} names no case", fix="Write the prim and the dtype as the report does: 'exp[float32]'.")
    return prim, dtype
