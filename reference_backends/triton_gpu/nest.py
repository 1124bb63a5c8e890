"""One nest as one Triton function.

The iterations of a nest are numbered through (``x_index``) and cut into blocks of ``XBLOCK``, one a program: the axis *x*.

All inner loops with equally many iterations share a tile. A tile is *whole* when it holds all of them: then nothing is read or
computed twice, however many inner loops a row has, and totals over rows stay in registers. Long loops are taken a tile at a
time. Other inner loops run one iteration after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reference_backends.triton_gpu import indices, team
from reference_backends.triton_gpu.analysis import (
    COSTLY,
    Loop,
    above_one,
    body_of,
    heard,
    inner_loops,
    late,
    length_of,
    manner,
    only_rounded,
    plain,
    ranges_of,
    sizes_told,
    step,
    tiled,
    transposed,
    walks_across,
    weights,
    written_out,
)
from reference_backends.triton_gpu.functions import argument_names, function_text, most_elements, numbers_text, told_text
from reference_backends.triton_gpu.launch import (
    ACROSS_VECTORS,
    LEAST,
    ONE_ROW,
    PIECES,
    PLAIN,
    POINTS,
    THREAD,
    VECTOR,
    WARPS,
    Kind,
)
from reference_backends.triton_gpu.loops import Loops
from reference_backends.triton_gpu.reuse import policies
from reference_backends.triton_gpu.statements import NONE, Writer
from reference_backends.triton_gpu.tiles import VECTOR_BYTES, Tile, modulo, pieces, piecewise, vectors
from vendor_sdk import LoopKernel, index, loop, split

WALKING = ("across", "deep", "columns", "whole columns", "short")
"""Kinds of nests along whose last range memory goes on."""
CARRIED = 8
"""Running totals of a tile and operands up to which a thread holds 16 elements of each: more do not fit in 128 registers."""
WIDE = 64
"""Iterations of a last range from which on each program has lanes along that range alone."""


@dataclass(frozen=True)
class Private:
    """A part of a scratch buffer that only one iteration of the nest sets and then changes, always at one place.

    Attributes:
        size: of the inner loops that store there; ``None``: stored outside of tiles.
        place: where, in terms of the loops' ``iteration``.
        mode: how it is changed.
    """

    size: index.Int | None
    place: index.Int
    mode: str


COMBINES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
"""How a store changes what is there, as a reduction."""


class NestText(Loops):
    """The function of one nest.

    Args:
        name: of the function.
        whole: whether tiles hold all iterations of their loops.
        derived: what the kernel's symbols are that follow from others.
        others: nests that run in the same calls.
    """

    def __init__(
        self,
        kernel: LoopKernel,
        name: str,
        nest: loop.Nest,
        *,
        whole: bool,
        derived: Mapping[str, index.Int],
        others: Sequence[loop.Nest],
    ) -> None:
        super().__init__(kernel)
        self.rounded, self.weights = only_rounded(nest.body), weights(nest.body)
        self.above_one = above_one(nest.body)
        turned = transposed(nest)
        self.spread = turned is not None
        """Whether programs divide the iterations of the one tile too."""
        self.name, self.nest = name, turned or nest
        self.told_sizes = sizes_told(kernel, self.nest)
        ranges = self.nest.ranges
        apart = len(ranges) > 1 and (ranges[-1].size.value or WIDE) >= WIDE and (self.spread or walks_across(self.nest))
        self.lead, self.ranges = (ranges[:-1], ranges[-1:]) if apart else ((), ranges)
        """Ranges of which each program has one iteration, and those whose iterations are the axis x: where lanes lie along the
        last range, a block that went from one line into the next would be read in bits."""
        self.whole = whole and not self.spread
        self.count = index.product([r.size for r in self.ranges])
        self.leads = index.product([r.size for r in self.lead])
        self.along_x = self.count
        """Places on the axis x."""
        self.inner = inner_loops(self.nest)
        sizes = list(dict.fromkeys(map(length_of, self.inner)))
        scanned = {length_of(s) for s in self.inner if isinstance(s, loop.Scan | split.Heard)}
        """What cannot be taken in pieces."""
        self.fixed = self.whole and all(size.value is not None for size in sizes)
        """Whether the text says how many iterations lie in a tile; else the launch does."""
        self.kind: Kind = manner(nest)
        if self.spread or self.whole:
            stores = bool(self.inner) and all(isinstance(s, loop.Nest) for s in self.inner)
            across = walks_across(self.nest)
            kinds: tuple[Kind, Kind] = ("short" if stores else "columns", "whole columns") if across else ("fixed", "whole")
            self.kind = "spread" if self.spread else kinds[not self.fixed]
        self.written = {s.param for s in loop.walk(self.nest.body) if isinstance(s, loop.Store)}
        self.late = late(self.nest.body)
        self.private: dict[str, Private] = {}
        self.kept: dict[str, Private] = {}
        self.place(self.lead, index.variable("lead", self.leads))
        self.shift = self.vector_shift(nest) if self.kind in WALKING and len(self.ranges) == 1 else index.ZERO
        """How many iterations the axis x begins before the first: what lies in memory before them in the first vector."""
        if self.shift == index.ZERO:
            self.place(self.ranges, index.variable("x_index", self.count))
        else:
            self.places[self.ranges[0].var] = index.symbol("x_index") - self.shift
            self.along_x = self.count + (VECTOR_BYTES - 1)
        self.find_private()
        totals = sum(found.size is not None for found in self.kept.values())
        operands = {each.param for s in self.inner for each in body_of(s) if isinstance(each, loop.Load)}
        crowded = totals + len(operands) > CARRIED
        self.evenly = bool(totals) and not crowded
        """Whether rows are rather taken in pieces of one size: their totals are in registers, and one row follows another."""
        self.tiles = {size: self.pieces_of(n, size, whole=size in scanned) for n, size in enumerate(sizes)}
        edges = any(tile.edges for found in self.tiles.values() for tile in found)
        blocks = [[tile.block for tile in found if not tile.edges] for found in self.tiles.values()]
        even = max((len(found) for found in blocks if len(found) > len(set(found)) == 1), default=0)
        self.told = heard(nest.body).keys()
        if self.fixed and (edges or self.told or self.adrift()):
            # Of several rows, a thread would hold edges of each.
            self.kind, self.x_axes, self.x_mask = "team" if self.told else "row", NONE, ""
        ops = {s.op for each in self.inner for s in body_of(each) if isinstance(s, loop.Compute)}
        self.recomputes = even > 0 and self.kind == "row" and not ops & COSTLY
        if not self.whole and not self.spread:
            self.policies = policies(kernel, self.nest, others, derived)
        writes = any(isinstance(each, loop.Store) for s in self.inner for each in body_of(s))
        self.thread = THREAD if writes and not (self.kind == "team" and team.holds_more(kernel, self.nest)) else 2 * THREAD
        if not self.inner:
            self.thread = ACROSS_VECTORS if self.scattered() else self.points()
        if self.spread:
            self.thread = 2 * THREAD if self.light() else THREAD
        if totals:
            self.thread = even * VECTOR or THREAD // (4 if crowded else 2)
        """Elements of a tile in one thread: fewer where totals take registers too, more where rows are only read. Where there
        is no tile: iterations of the nest, fewer where several of a loop stand in its body."""

    def adrift(self) -> bool:
        """Whether an inner loop of long rows reads nothing: loads say how lanes lie, and without any Triton 3.6 takes the
        layout of what varies from row to row, in which each thread of a program of one row holds all elements."""
        rows = [s for s in self.inner if (length_of(s).value or 0) > ONE_ROW]
        return any(not any(isinstance(each, loop.Load) for each in body_of(s)) for s in rows)

    def light(self) -> bool:
        """Whether a thread can have many iterations: all they read and write is three halves."""
        accesses = [s for s in loop.walk(self.nest.body) if isinstance(s, loop.Load | loop.Store)]
        return len(accesses) <= 3 and all(self.kernel.param(s.param).dtype.itemsize <= 2 for s in accesses)

    def scattered(self) -> bool:
        """Whether neighbouring iterations read or write elements of which the program knows that they are no neighbours."""
        if not self.ranges:
            return False
        last, values = self.ranges[-1].var, {name for s in loop.walk(self.nest.body) for name in loop.makes(s)}
        for s in loop.walk(self.nest.body):
            if isinstance(s, loop.Load | loop.Store):
                names = index.symbols(s.index).keys()
                if last in names and not names & values and step(s.index, last) not in (-1, 1):
                    return True
        return False

    def points(self) -> int:
        """Elements in one thread where there is no tile."""
        accesses = [s for s in loop.walk(self.nest.body) if isinstance(s, loop.Load | loop.Store)]
        steps = [step(index.substitute(each.index, self.places), "x_index") for each in accesses]
        narrow = any(self.kernel.param(each.param).dtype.itemsize == 1 for each in accesses)
        plain = all(each in (0, 1) for each in steps)
        points = PLAIN if narrow or plain or written_out(self.nest) > 1 else POINTS
        return max(points >> (written_out(self.nest) - 1).bit_length(), LEAST)

    def pieces_of(self, n: int, size: index.Int, *, whole: bool) -> list[Tile]:
        """The tile of loops of one length; ``whole``: in one piece."""
        name, found = f"r_{n}", None
        if not whole and (self.fixed or (self.kind not in ("across", "deep") and not self.spread and size.value is not None)):
            loops = [s for s in self.inner if length_of(s) == size]
            known = {"x_index", "lead", *(s.name for s in self.kernel.symbols)}
            found = vectors(self.kernel, loops, self.places, known)
        if self.fixed:
            return pieces(name, size, found, 1 if whole else PIECES, even=self.evenly and not whole)
        return piecewise(name, f"R{n}", size, found)

    def vector_shift(self, nest: loop.Nest) -> index.Int:
        """Where in a vector the lines begin that the axis x walks along, if all begin there."""
        along = self.ranges[0].var
        starts, lanes = [], 1
        for s in self.inner:
            for access in body_of(s):
                if isinstance(access, loop.Load | loop.Store) and step(access.index, along) == 1:
                    starts.append(index.substitute(index.substitute(access.index, {along: index.ZERO}), self.places))
                    lanes = max(lanes, VECTOR_BYTES // self.kernel.param(access.param).dtype.itemsize)
        offsets = {modulo(start, lanes) for start in starts}
        if len(offsets) != 1:
            return index.ZERO
        (offset,) = offsets
        if any(name != "lead" for name in index.symbols(offset)) or not index.nonnegative(offset):
            return index.ZERO
        return offset - offset // lanes * lanes

    # The function and its launch

    def text(self) -> str:
        for line in numbers_text(self.kernel, self.told_sizes):
            self.out(line)
        self.open()
        if self.full_apart():
            self.in_full_programs()
        self.body(self.nest.body)
        self.store_kept()
        function = function_text(self.kernel, self.name, self.nest.body, self.out.lines, self.constants(), self.told_sizes)
        text = "\n".join([*self.functions, function])
        names = argument_names(self.kernel)[0]
        told = f", {tuple(names.index(name) for name in self.told)}, {self.waits}" if self.told else ""
        more = told + told_text(self.kernel, self.told_sizes)
        return f'{text}launch_{self.name} = Launcher({self.name}, "{self.kind}", {self.thread}{more})\n'

    def full_apart(self) -> bool:
        """Whether programs of which all iterations count have a text of their own: a mask that ends anywhere would cut their
        vectors to pieces."""
        count = self.count.value
        if self.shift != index.ZERO:
            return True
        return (
            bool(self.nest.body)
            and plain(self.nest.body)
            and (count is None or (count > self.thread * 32 * WARPS and count % VECTOR_BYTES != 0))
        )

    def in_full_programs(self) -> None:
        """The body where no mask is needed, then the head of the branch for the rest."""
        before = dict(self.known), dict(self.axes), dict(self.types), dict(self.places)
        if self.shift == index.ZERO:
            count = self.expression(self.count)[0]
            self.out(f"if (tl.cast(tl.program_id(0), INDEX) * XBLOCK + XBLOCK <= {count}) | XBLOCK_FULL:")
        else:
            end = self.expression(self.count + self.shift)[0]
            self.out(f"x_start = tl.cast({self.program}, INDEX) * XBLOCK")
            self.out(f"if (x_start > 0) & (x_start + XBLOCK <= {end}):")
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
            self.out(f"x_blocks = tl.cdiv({self.expression(self.along_x)[0]}, XBLOCK)")
            program = "tl.program_id(0) % x_blocks"
        self.program = program
        if self.lead:
            leads = f"({self.uniform(self.leads)})"
            self.out(f"lead = tl.cast({f'{apart} % {leads}' if self.spread else apart}, INDEX)")
            apart = f"{apart} // {leads}"
        self.axes["x_index"] = self.x_axes
        if self.kind in ("row", "team"):
            self.out(f"x_index = tl.cast({program}, INDEX)")
        else:
            self.out(f"x_index = (tl.cast({program}, INDEX) * XBLOCK + tl.arange(0, XBLOCK)){column}")
            if self.shift == index.ZERO:
                self.out(f"x_mask = (x_index < {count}) | XBLOCK_FULL")
            else:
                begin, end = (self.expression(place)[0] for place in (self.shift, self.count + self.shift))
                self.out(f"x_mask = (x_index >= {begin}) & (x_index < {end})")
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

    def open_at(self, out: Writer, counter: int, start: int, *, masked: bool) -> None:
        """The same where the axis x is several nests' (``together.py``) and this one's begins at ``start``; what was written
        before counts for nothing."""
        self.out, self.counter, self.known, self.types = out, counter, {}, {}
        self.axes = {"x_index": self.x_axes}
        self.out(f"x_index = start - {start} + tl.arange(0, XBLOCK)")
        self.x_mask = "x_mask" if masked else ""
        if masked:
            self.out(f"x_mask = x_index < {self.count.value}")

    def lengths(self) -> list[index.Int]:
        """Iterations of each tile, as ``launch.tile`` takes them."""
        if not self.fixed:
            return list(self.tiles)
        return [index.wrap(sum(int(tile.block) for tile in found if not tile.edges)) for found in self.tiles.values()]

    def sizes(self) -> tuple[index.Int, index.Int, list[index.Int]]:
        """What the launch passes: ranges that programs have one iteration of, the axis x, and each tile."""
        return self.leads, self.along_x, self.lengths()

    def sizes_text(self) -> str:
        """Python text of what the launch passes beside buffers and numbers: how many iterations there are, and in each tile's
        loops; the elements of the largest buffer."""
        lengths = "".join(f"{index.to_python(size)}, " for size in self.lengths())
        counts = f"{index.to_python(self.leads)}, {index.to_python(self.along_x)}"
        return f"{counts}, ({lengths}), {most_elements(self.kernel)}"

    # Totals

    def store(self, s: loop.Store) -> None:
        if s.param in self.kept:
            self.keep(s)
        elif s.mode != "set" and s.param in self.private and self.tile is not None:
            self.change(s)
        else:
            super().store(s)

    def find_private(self) -> None:
        """Scratch buffers of which each iteration of the nest has a part of its own: registers until the end, where a tile
        holds all of it."""
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
            private = self.as_private(found, direct)
            if private is None:
                continue
            self.private[name] = private
            if private.mode == "add" and (private.size is None or self.whole):
                self.kept[name] = private

    def as_private(self, found: Sequence[tuple[loop.Stmt, Loop | None]], direct: set[int]) -> Private | None:
        places: set[tuple[index.Int | None, index.Int]] = set()
        for position, (s, around) in enumerate(found):
            if not isinstance(s, loop.Store) or s.mask or (s.mode == "set") != (position == 0):
                return None
            if not position and id(around or s) not in direct:
                return None
            size = None
            if around is not None and tiled(around):
                size = length_of(around)
                self.place(ranges_of(around), index.variable("iteration", size))
            places.add((size, index.substitute(s.index, self.places)))
        modes = {s.mode for s, _ in found[1:] if isinstance(s, loop.Store)}
        if len(modes) != 1 or len(places) != 1:
            return None
        ((size, place),) = places
        fixed = {"x_index", "lead", "iteration", *(s.name for s in self.kernel.symbols)}
        return Private(size, place, *modes) if fixed >= index.symbols(place).keys() else None

    def change(self, s: loop.Store) -> None:
        """Combines what lies at a place that no other program uses."""
        address, axes = self.pointer(s.param, s.index, (s.value,), self.context())
        mask = self.mask(axes)
        suffix = f", mask={mask}" if mask else ""
        before = self.fresh("before")
        self.out(f"{before} = tl.load({address}{suffix}{', other=0' if mask else ''})")
        self.out(f"tl.store({address}, base.combine_{COMBINES[s.mode]}({before}, {self.here(s.value)}){suffix})")

    def keep(self, s: loop.Store) -> None:
        name, value = f"{s.param}_kept{self.tile.suffix if self.tile else ''}", self.here(s.value)
        if s.mode == "set":
            shape = f"[XBLOCK, {self.tile.block}]" if self.tile else self.shape(self.context())
            self.out(f"{name} = {value if shape == '[]' else f'tl.broadcast_to({value}, {shape})'}")
        else:
            added = value if self.x_mask in ("x_mask", "") else f"tl.where({self.x_mask}, {value}, 0)"
            self.out(f"{name} = {name} + {added}")

    def store_kept(self) -> None:
        for name, kept in self.kept.items():
            for tile in (None,) if kept.size is None else self.tiles[kept.size]:
                place, suffix, masks = kept.place, "", [self.x_mask]
                if tile is not None:
                    place, suffix = index.substitute(place, {"iteration": tile.iteration}), tile.suffix
                    masks.append(tile.mask)
                mask = " & ".join(filter(None, masks))
                text = f"{name} + ({indices.text(place)}), {name}_kept{suffix}"
                self.out(f"tl.store({text}{f', mask={mask}' if mask else ''})")
