"""Independent nests as one Triton function: one launch for an optimizer's step over many parameters.

The axis x of a launch goes through the nests' iterations one nest after the other, each padded to whole blocks, so that a
program has iterations of one nest: it finds out which by where its block begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from reference_backends.triton_gpu.functions import function_text, most_elements, numbers_text, told_text
from reference_backends.triton_gpu.launch import FEWEST, Kind, tile
from reference_backends.triton_gpu.nest import NestText
from reference_backends.triton_gpu.statements import Writer
from vendor_sdk import LoopKernel, index, loop

APART = 1000
"""Between the numbers of one nest's names and the next one's: names of two branches may not differ in type."""


class TogetherText:
    """The function of several nests."""

    kind: Kind = "lean"

    def __init__(self, kernel: LoopKernel, name: str, nests: Sequence[NestText]) -> None:
        self.kernel, self.name, self.nests = kernel, name, nests
        self.thread = min(nest.thread for nest in nests)
        self.unit = FEWEST
        while tile(self.starts[-1], [], self.kind, self.thread)[0] > self.unit:
            self.unit *= 2

    @property
    def starts(self) -> list[int]:
        """Where on the axis x each nest begins, and where the last one ends, padded to whole units."""
        return [0, *accumulate(-(-(nest.count.value or 0) // self.unit) * self.unit for nest in self.nests)]

    @staticmethod
    def takes(nest: NestText) -> bool:
        """Whether a nest may stand beside others: a loop over elements, of known length."""
        return not nest.tiles and not nest.lead and not nest.spread and bool(nest.count.value) and nest.shift == index.ZERO

    def text(self) -> str:
        out = Writer()
        sizes = list(dict.fromkeys(name for nest in self.nests for name in nest.told_sizes))
        for line in numbers_text(self.kernel, sizes):
            out(line)
        out("start = tl.cast(tl.program_id(0), INDEX) * XBLOCK")
        branch = "if"
        for position, (nest, (start, end)) in enumerate(zip(self.nests, pairwise(self.starts), strict=True)):
            count = nest.count.value or 0
            # A mask that ends anywhere would cut the vectors of all blocks to pieces.
            whole = start + count // self.unit * self.unit if nest.full_apart() else start
            for first, last in ((start, whole), (whole, end)):
                if first == last:
                    continue
                out(f"{branch} start < {last}:")
                branch = "elif"
                out.depth += 1
                nest.open_at(out, position * APART, start, masked=last - start > count)
                nest.body(nest.nest.body)
                out.depth -= 1
        called = [line for nest in self.nests for line in nest.functions]
        statements = [s for nest in self.nests for s in nest.nest.body]
        names = ["INDEX", "XBLOCK", "XBLOCK_FULL"]
        text = "\n".join([*called, function_text(self.kernel, self.name, statements, out.lines, names, sizes)])
        more = told_text(self.kernel, sizes)
        return f'{text}launch_{self.name} = Launcher({self.name}, "{self.kind}", {self.thread}{more})\n'

    def sizes_text(self) -> str:
        """Python text of what the launch passes beside buffers and numbers, as ``NestText.sizes_text``."""
        return f"1, {self.starts[-1]}, (), {most_elements(self.kernel)}"

    def sizes(self) -> tuple[index.Int, index.Int, list[index.Int]]:
        return index.wrap(1), index.wrap(self.starts[-1]), []


def independent(nests: Sequence[loop.Nest]) -> bool:
    """Whether no nest touches what another one writes."""
    written: list[set[str]] = []
    touched: list[set[str]] = []
    for nest in nests:
        accesses = [s for s in loop.walk(nest.body) if isinstance(s, loop.Load | loop.Store)]
        written.append({s.param for s in accesses if isinstance(s, loop.Store)})
        touched.append({s.param for s in accesses})
    readers = [(one, other) for one in range(len(nests)) for other in range(len(nests)) if one != other]
    return all(written[one].isdisjoint(touched[other]) for one, other in readers)
