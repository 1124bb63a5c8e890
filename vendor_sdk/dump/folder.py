"""Dumps: under ``VENDOR_SDK_DEBUG=dir`` every compiled graph leaves a numbered folder with each stage in it.

    0003_chip_forward/
        00_aten.py ... 07_scheduled.py     graphs as Python, in the order of the pipeline
        08_lowered/000_k0_exp.py ...       loop kernels (``vendor_sdk.ir.loop_print`` reads them back)
        09_in_place/ 10_emitted/           kernels that were rewritten; target text
        11_plan.txt  12_wrapper.py         memory plan; generated code
        repro.py                           rebuilds the graph with random inputs and looks for the first wrong stage

A stage is written as soon as it is there, so what failed has everything before it. Files appear whole, by renaming; folders are
numbered across the processes that share a directory.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vendor_sdk import debug
from vendor_sdk.errors import OptionError, VendorSDKError
from vendor_sdk.ir.fused import Fused
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.loop_print import text as loop_text
from vendor_sdk.ir.memory import MemoryPlan
from vendor_sdk.ir.primgraph import PrimGraph
from vendor_sdk.schedule import Schedule

STAGES = (
    "aten",
    "captured",
    "normalized",
    "legalized",
    "placed",
    "partitioned",
    "transferred",
    "scheduled",
    "lowered",
    "in_place",
    "emitted",
    "plan",
    "wrapper",
)
"""Names of what a folder holds, in order; stages that a backend does not have are left out."""

_log = logging.getLogger("vendor_sdk")


class Dump:
    """The folder of one graph.

    Args:
        root: directory of all dumps; made when it is not there.
        label: what the folder is called after its number (``chip_forward``).

    Raises:
        OptionError: the directory cannot be written; so do all methods.
    """

    def __init__(self, root: Path, label: str) -> None:
        self.folder = root
        with self._writing():
            root.mkdir(parents=True, exist_ok=True)
            self.folder = _claim(root, label)

    def graph(self, stage: str, graph: PrimGraph, notes: str = "") -> None:
        """A graph as Python. Fused groups follow their graph."""
        self.text(f"{_number(stage)}_{stage}.py", notes + graph_text(graph))

    def kernels(self, stage: str, kernels: Sequence[LoopKernel]) -> None:
        """Loop kernels, a file each."""
        for place, kernel in enumerate(kernels):
            self.text(f"{_number(stage)}_{stage}/{place:03}_{kernel.name}.py", loop_text(kernel))

    def targets(self, texts: Mapping[str, str]) -> None:
        """Emitted text by kernel name, a file each."""
        for place, (name, text) in enumerate(texts.items()):
            self.text(f"{_number('emitted')}_emitted/{place:03}_{name}.txt", text)

    def schedule(self, graph: PrimGraph, schedule: Schedule) -> None:
        """The scheduled graph, with what was decided about neighbours."""
        lines = [f"# {schedule.fused} joins; {len(schedule.inlined)} prims are computed where they are read"]
        lines += [f"# {r.consumer} runs apart from {r.producer}: {r.reason}" for r in schedule.refusals]
        self.graph("scheduled", graph, "\n".join(lines) + "\n\n")

    def plan(self, plan: MemoryPlan) -> None:
        self.text(f"{_number('plan')}_plan.txt", plan.text())

    def wrapper(self, source: str, namespace: Mapping[str, Any]) -> None:
        """Generated code, with what its constants are."""
        names = [f"# {name} = {value!r}" for name, value in namespace.items() if re.fullmatch(r"[A-Z]+\d*", name)]
        self.text(f"{_number('wrapper')}_wrapper.py", source + "\n" + "".join(f"{line[:200]}\n" for line in names))

    def text(self, name: str, text: str) -> None:
        """A file of the folder: there whole, or not at all."""
        self.data(name, text.encode())

    def data(self, name: str, content: bytes) -> None:
        path = self.folder / name
        with self._writing():
            path.parent.mkdir(exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise

    def tell(self, error: BaseException) -> None:
        """Makes an error say where the folder is."""
        if isinstance(error, VendorSDKError):
            error.dumped(str(self.folder))
            return
        message = f"the stages of the compiled graph are in {self.folder}"
        if message not in getattr(error, "__notes__", ()):
            error.add_note(message)
            # Whoever wraps the exception, as Dynamo does, drops its notes.
            _log.error("%s: %s", type(error).__name__, message)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OptionError(
                f"{debug.DIRECTORY}: {self.folder} cannot be written",
                why=f"{type(error).__name__}: {error}",
                fix=f"Set {debug.DIRECTORY} to a directory with room that this process may write to, or unset it.",
            ) from error


def _number(stage: str) -> str:
    return f"{STAGES.index(stage):02}"


def _claim(root: Path, label: str) -> Path:
    """A folder with a number of its own. Where two processes take one number both step back: whoever looks second sees the
    other's folder, so at most the first keeps it."""
    number = 1 + max(_numbers(root), default=-1)
    while True:
        folder = root / f"{number:04}_{label}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            continue
        if _numbers(root).count(number) == 1:
            return folder
        folder.rmdir()
        number += 1


def _numbers(root: Path) -> list[int]:
    return [int(found[1]) for name in os.listdir(root) if (found := re.match(r"(\d{4,})_", name))]


def graph_text(graph: PrimGraph) -> str:
    """A graph as Python, followed by the subgraphs of fused groups and partitions, which it calls by name."""
    parts = [str(graph)]
    for node in graph.calls():
        inner = getattr(node.target, "graph", None)
        if isinstance(inner, PrimGraph):
            loops = node.target.loops if isinstance(node.target, Fused) else ()
            parts.append(
                f"# {node.target} (node {node.name})\n" + "".join(f"# {_loops(each)}\n" for each in loops) + str(inner)
            )
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _loops(loops: Any) -> str:
    rows, columns = (" x ".join(str(r.size) for r in ranges) or "1" for ranges in (loops.rows, loops.columns))
    return f"rows {rows}, columns {columns}" if loops.columns else f"iterations {rows}"
