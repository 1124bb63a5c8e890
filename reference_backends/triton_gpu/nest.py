"""One nest as one Triton function.

The iterations of a nest are numbered through (``x_index``) and cut into blocks of ``XBLOCK``, one a program: the axis *x*.

All inner loops with equally many iterations share a tile. A tile is *whole* when it holds all of them: then nothing is read or
computed twice, however many inner loops a row has, and totals over rows stay in registers. Long loops are taken a tile at a
time. Other inner loops run one iteration after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference_backends.triton_gpu import indices
from reference_backends.triton_gpu.analysis import (
    Loop,
    body_of,
    inner_loops,
    length_of,
    plain,
    ranges_of,
    tiled,
    transposed,
    walks_across,
)
from reference_backends.triton_gpu.functions import arguments_text, function_text, most_elements, numbers_text
from reference_backends.triton_gpu.launch import PIECES, POINTS, THREAD, Kind
from reference_backends.triton_gpu.loops import Loops
from reference_backends.triton_gpu.statements import X
from reference_backends.triton_gpu.tiles import VECTOR_BYTES, Tile, pieces, piecewise, vectors
from vendor_sdk import LoopKernel, index, loop

WIDE = 64
"""Iterations of a last range from which on each program has lanes along that range alone."""


@dataclass(frozen=True)
class Kept:
    """A part of a scratch buffer that one program fills, iteration by iteration: kept in registers until the end.

    ``place`` is where, in terms of the tile's ``iteration``.
    """

    pieces: Sequence[Tile]
    place: index.Int


class NestText(Loops):
    """The function of one nest.

    Args:
        name: of the function.
        whole: whether tiles hold all iterations of their loops.
    """

    def __init__(self, kernel: LoopKernel, name: str, nest: loop.Nest, *, whole: bool) -> None:
        super().__init__(kernel)
        turned = transposed(nest)
        self.spread = turned is not None
        """Whether programs divide the iterations of the one tile too."""
        self.name, self.nest = name, turned or nest
        ranges = self.nest.ranges
        apart = len(ranges) > 1 and (ranges[-1].size.value or WIDE) >= WIDE and (self.spread or walks_across(self.nest))
        self.lead, self.ranges = (ranges[:-1], ranges[-1:]) if apart else ((), ranges)
        """Ranges of which each program has one iteration, and those whose iterations are the axis x: where lanes lie along the
        last range, a block that went from one line into the next would be read in bits."""
        self.whole = whole and not self.spread
        self.count = index.product([r.size for r in self.ranges])
        self.leads = index.product([r.size for r in self.lead])
        self.inner = inner_loops(self.nest)
        sizes = list(dict.fromkeys(map(length_of, self.inner)))
        # A scan cannot be taken in pieces; and of positions in pieces, ptxas 12.9 kept kilobytes in memory.
        one_piece = {
            length_of(s)
            for s in self.inner
            if isinstance(s, loop.Scan) or any(isinstance(each, loop.Index) for each in body_of(s))
        }
        self.fixed = self.whole and all(size.value is not None for size in sizes)
        """Whether the text says how many iterations lie in a tile; else the launch does."""
        self.kind: Kind = "across" if walks_across(nest) else "along"
        if self.spread or self.whole:
            self.kind = "spread" if self.spread else "fixed" if self.fixed else "whole"
        self.written = {s.param for s in loop.walk(self.nest.body) if isinstance(s, loop.Store)}
        self.kept: dict[str, Kept] = {}
        self.place(self.ranges, index.variable("x_index", self.count))
        self.place(self.lead, index.variable("lead", self.leads))
        self.tiles = {size: self.pieces_of(n, size, whole=size in one_piece) for n, size in enumerate(sizes)}
        if self.fixed and any(tile.edges for found in self.tiles.values() for tile in found):
            self.kind = "row"  # of several rows, a thread would hold edges of each
        self.find_kept()
        self.thread = THREAD // 2 if self.kept else THREAD
        """Elements of a tile in one thread: fewer where totals take registers too."""

    def pieces_of(self, n: int, size: index.Int, *, whole: bool) -> list[Tile]:
        """The tile of loops of one length; ``whole``: in one piece."""
        name, found = f"r{n}", None
        if not whole and (self.fixed or (self.kind == "along" and size.value is not None)):
            loops = [s for s in self.inner if length_of(s) == size]
            known = {"x_index", "lead", *(s.name for s in self.kernel.symbols)}
            found = vectors(self.kernel, loops, self.places, known)
        if self.fixed:
            return pieces(name, size, found, 1 if whole else PIECES)
        return piecewise(name, f"R{n}", size, found)

    # The function and its launch

    def text(self) -> str:
        for line in numbers_text(self.kernel):
            self.out(line)
        self.open()
        if self.full_apart():
            self.in_full_programs()
        self.body(self.nest.body)
        self.store_kept()
        function = function_text(self.kernel, self.name, self.nest.body, self.out.lines, self.constants())
        text = "\n".join([*self.functions, function])
        return f'{text}launch_{self.name} = Launcher({self.name}, "{self.kind}", {self.thread})\n'

    def full_apart(self) -> bool:
        """Whether programs of which all iterations count have a text of their own: a mask that ends anywhere would cut their
        vectors to pieces."""
        count = self.count.value
        return plain(self.nest.body) and (count is None or (count > POINTS and count % VECTOR_BYTES != 0))

    def in_full_programs(self) -> None:
        """The body where no mask is needed, then the head of the branch for the rest."""
        before = dict(self.known), dict(self.axes), dict(self.types), dict(self.places)
        count = self.expression(self.count)[0]
        self.out(f"if (tl.cast(tl.program_id(0), INDEX) * XBLOCK + XBLOCK <= {count}) | XBLOCK_FULL:")
        self.out.depth += 1
        self.x_mask = ""
        self.body(self.nest.body)
        self.out.depth -= 1
        self.out("else:")
        self.out.depth += 1
        self.x_mask = "x_mask"
        self.known, self.axes, self.types, self.places = before

    def constants(self) -> list[str]:
        """Names of what a launch decides: the integer type of indices, the blocks, and whether their last is full."""
        blocks = ["XBLOCK", *(found[0].block for found in self.tiles.values())] if not self.fixed else ["XBLOCK"]
        return ["INDEX", *blocks, *(f"{block}_FULL" for block in blocks)]

    def open(self) -> None:
        """Which iterations are this program's."""
        count = self.expression(self.count)[0]
        column = "[:, None]" if self.tiles else ""
        program, apart = "tl.program_id(0)", "tl.program_id(0) // x_blocks"
        if self.spread or self.lead:
            self.out(f"x_blocks = tl.cdiv({count}, XBLOCK)")
            program = "tl.program_id(0) % x_blocks"
        if self.lead:
            leads = self.uniform(self.leads)
            self.out(f"lead = tl.cast({f'{apart} % {leads}' if self.spread else apart}, INDEX)")
            apart = f"{apart} // {leads}"
        self.out(f"x_index = (tl.cast({program}, INDEX) * XBLOCK + tl.arange(0, XBLOCK)){column}")
        self.out(f"x_mask = (x_index < {count}) | XBLOCK_FULL")
        self.axes["x_index"] = X
        for found in self.tiles.values():
            first, edges = found[0], found[-1].edges
            if edges is not None and edges.offset != index.ZERO:
                self.out(f"{first.number}_first = {self.first(edges)}")
                self.out(f"{first.number}_last = {self.last(edges, first.size)}")
            for tile in found:
                if self.whole or tile.edges:
                    self.number(tile, tile.start)
                elif self.spread:
                    self.number(tile, f"tl.cast({apart}, INDEX) * {tile.block}")

    def lengths(self) -> list[index.Int]:
        """Iterations of each tile, as ``launch.tile`` takes them."""
        if not self.fixed:
            return list(self.tiles)
        return [index.wrap(sum(int(tile.block) for tile in found if not tile.edges)) for found in self.tiles.values()]

    def sizes(self) -> tuple[index.Int, index.Int, list[index.Int]]:
        """What the launch passes: ranges that programs have one iteration of, the axis x, and each tile."""
        return self.leads, self.count, self.lengths()

    def launch(self) -> str:
        """Text of the call that launches the function: how many iterations there are, and in each tile's loops."""
        lengths = "".join(f"{index.to_python(size)}, " for size in self.lengths())
        counts = f"{index.to_python(self.leads)}, {index.to_python(self.count)}"
        return f"launch_{self.name}({arguments_text(self.kernel)}, {counts}, ({lengths}), {most_elements(self.kernel)})"

    # Totals

    def store(self, s: loop.Store) -> None:
        if s.param in self.kept:
            self.keep(s)
        else:
            super().store(s)

    def find_kept(self) -> None:
        """Scratch buffers of which each program sets a tile once and then adds to it, at one place in all iterations."""
        if not self.whole:
            return
        uses: dict[str, list[tuple[loop.Stmt, Loop | None]]] = {p.name: [] for p in self.kernel.scratch}
        direct = {id(s) for s in self.nest.body}

        def visit(body: Sequence[loop.Stmt], around: Loop | None) -> None:
            for s in body:
                if isinstance(s, Loop):
                    visit(body_of(s), s)
                elif isinstance(s, loop.Load | loop.Store) and s.param in uses:
                    uses[s.param].append((s, around))

        visit(self.nest.body, None)
        for name, found in uses.items():
            kept = self.as_kept(name, found, direct)
            if kept is not None:
                self.kept[name] = kept

    def as_kept(self, name: str, found: Sequence[tuple[loop.Stmt, Loop | None]], direct: set[int]) -> Kept | None:
        places: set[tuple[index.Int, index.Int]] = set()
        for position, (s, around) in enumerate(found):
            wanted = "add" if position else "set"
            if not isinstance(s, loop.Store) or s.mode != wanted or s.mask or around is None or not tiled(around):
                return None
            if not position and id(around) not in direct:
                return None
            size = length_of(around)
            self.place(ranges_of(around), index.variable("iteration", size))
            places.add((size, index.substitute(s.index, self.places)))
        if len(found) < 2 or len(places) != 1:
            return None
        ((size, place),) = places
        fixed = {"x_index", "iteration", *(s.name for s in self.kernel.symbols)}
        return Kept(self.tiles[size], place) if fixed >= index.symbols(place).keys() else None

    def keep(self, s: loop.Store) -> None:
        assert self.tile is not None
        name, value = f"{s.param}_tile{self.tile.suffix}", self.here(s.value)
        if s.mode == "set":
            self.out(f"{name} = tl.broadcast_to({value}, [XBLOCK, {self.tile.block}])")
        else:
            added = value if self.x_mask == "x_mask" else f"tl.where({self.x_mask}, {value}, 0)"
            self.out(f"{name} = {name} + {added}")

    def store_kept(self) -> None:
        for name, kept in self.kept.items():
            for tile in kept.pieces:
                place = index.substitute(kept.place, {"iteration": tile.iteration})
                mask = f"x_mask & {tile.mask}" if tile.mask else "x_mask"
                self.out(f"tl.store({name} + ({indices.text(place)}), {name}_tile{tile.suffix}, mask={mask})")
