"""Independent nests as one Triton function: one launch for an optimizer's step over many parameters.

The axis x of a launch goes through the nests' iterations one nest after the other, each padded to whole blocks, so that a
program has iterations of one nest: it finds out which by where its block begins.
"""

from __future__ import annotations

import itertools
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
    """Whether no nest touches what another one writes: other buffers, or other places of one (the parts of a ``cat``)."""
    accesses = [[s for s in loop.walk(nest.body) if isinstance(s, loop.Load | loop.Store)] for nest in nests]
    return all(_beside(one, other) for one, other in itertools.permutations(accesses, 2))


def _beside(one: Sequence[loop.Load | loop.Store], other: Sequence[loop.Load | loop.Store]) -> bool:
    """Whether nothing in ``other`` touches what is stored in ``one``."""
    touched: dict[str, list[index.Int]] = {}
    for each in other:
        touched.setdefault(each.param, []).append(each.index)
    stores = [s for s in one if isinstance(s, loop.Store)]
    return all(_never_meet(s.index, place) for s in stores for place in touched.get(s.param, ()))


def _never_meet(one: index.Int, other: index.Int) -> bool:
    """Whether two places differ whatever the loops' variables are: they lie in other ranges of memory, or of each line."""
    strides = {abs(coefficient) for _, coefficient in one.terms} & {abs(coefficient) for _, coefficient in other.terms}
    return any(_apart(one, other, line) for line in (0, *strides - {1}))


def _apart(one: index.Int, other: index.Int, line: int) -> bool:
    """The same of the places in lines of ``line`` elements; 0: of memory."""
    (low, high), (other_low, other_high) = (index.bounds(_rest(place, line)) for place in (one, other))
    if low is None or high is None or other_low is None or other_high is None:
        return False
    within = line == 0 or max(high, other_high) - min(low, other_low) < line
    return within and (high < other_low or other_high < low)


def _rest(place: index.Int, line: int) -> index.Int:
    """A place less what are whole lines."""
    if line == 0:
        return place
    return index.wrap(place.constant) + sum(
        (index.wrap_atom(atom) * coefficient for atom, coefficient in place.terms if coefficient % line), index.ZERO
    )
