"""One nest as one Triton function.

The iterations of a nest are numbered through (``x_index``) and cut into blocks of ``XBLOCK``, one a program. Inside, every
value is a block with up to two axes:

- *x*: the iterations of the program's block;
- *r*: iterations of an inner loop (a reduction, scan or nest without loops of its own): a *tile*.

All inner loops with equally many iterations share a tile. A tile is *whole* when it holds all of them: then nothing is read or
computed twice, however many inner loops a row has, and totals over rows stay in registers. Long loops are taken a tile at a
time. Other inner loops run one iteration after the other. A value that does not vary along an axis has size one there, or is
a scalar; ``axes`` of a value says along which it varies, and so which masks its loads and stores need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from reference_backends.triton_gpu import indices
from reference_backends.triton_gpu.launch import PIECES, THREAD, Kind, blocks_for
from reference_backends.triton_gpu.table import (
    OPS,
    SMALL,
    TYPES,
    bitcast,
    combination,
    constant,
    convert,
    identity,
    wide,
)
from vendor_sdk import LoopKernel, LoweringError, index, loop

WIDE = 64
"""Iterations of a last range from which on each program has lanes along that range alone."""
SHORT = 32
"""Iterations up to which an inner loop runs one after the other, so that the block's lanes lie along the nest."""

Axes = frozenset[str]
NONE: Axes = frozenset()
X: Axes = frozenset("x")
R: Axes = frozenset("r")

Loop = loop.Reduce | loop.Scan | loop.Nest


def plain(body: Sequence[loop.Stmt]) -> bool:
    """Whether a body has no loops inside."""
    return not any(isinstance(s, Loop) for s in body)


def ranges_of(s: Loop) -> tuple[loop.Range, ...]:
    return (s.range,) if isinstance(s, loop.Scan) else s.ranges


def body_of(s: Loop) -> tuple[loop.Stmt, ...]:
    return (*s.body, *s.then) if isinstance(s, loop.Scan) else s.body


def length_of(s: Loop) -> index.Int:
    return index.product([r.size for r in ranges_of(s)])


def tiled(s: loop.Stmt) -> bool:
    """Whether an inner loop's iterations lie along the axis r."""
    if isinstance(s, loop.Scan):
        return plain(body_of(s))
    if not isinstance(s, loop.Reduce | loop.Nest) or not s.ranges or not plain(s.body):
        return False
    size = length_of(s).value
    return isinstance(s, loop.Nest) or size is None or size > SHORT


def inner_loops(nest: loop.Nest) -> list[Loop]:
    """The inner loops that become tiles."""
    return [s for s in loop.walk(nest.body) if isinstance(s, Loop) and tiled(s)]


def walks_across(nest: loop.Nest) -> bool:
    """Whether inner loops walk across memory that the nest's last range walks along."""
    if not nest.ranges:
        return False
    along = nest.ranges[-1].var
    for s in inner_loops(nest):
        last = ranges_of(s)[-1].var
        for access in body_of(s):
            if isinstance(access, loop.Load | loop.Store) and step(access.index, along) == 1:
                return step(access.index, last) not in (0, 1)
    return False


def transposed(nest: loop.Nest) -> loop.Nest | None:
    """A nest without inner loops with the range that some access walks along as an inner loop, where others walk along the
    last range: tiles of both then read and write whole lines. None where all walk along the last."""
    if len(nest.ranges) < 2 or not plain(nest.body):
        return None
    last = nest.ranges[-1].var
    for access in nest.body:
        if not isinstance(access, loop.Load | loop.Store) or step(access.index, last) in (0, 1):
            continue
        for r in nest.ranges[:-1]:
            if step(access.index, r.var) == 1 and (r.size.value or SHORT) >= SHORT:
                others = tuple(other for other in nest.ranges if other is not r)
                return loop.Nest(others, (loop.Nest((r,), nest.body),))
    return None


def step(expression: index.Int, variable: str) -> int | None:
    found = index.stride(expression, variable)
    return None if found is None else found.value


def listed(names: Sequence[str]) -> str:
    """Operands of a reduction or scan."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def names_of(s: loop.Stmt) -> tuple[str, ...]:
    """The loop variables and values that a statement makes."""
    if isinstance(s, Loop):
        results = () if isinstance(s, loop.Nest) else tuple(name for a in s.accumulators for name in a.to)
        return (*(r.var for r in ranges_of(s)), *results)
    return () if isinstance(s, loop.Store | loop.Local) else (s.to,)


def symbol_name(s: loop.Symbol) -> str:
    """Shape symbols are torch's short names; anything else could clash with a name of Python."""
    return s.name if s.role == "size" else f"arg_{s.name}"


def argument_names(kernel: LoopKernel) -> tuple[list[str], list[str]]:
    """What the function of each nest takes: buffers and numbers."""
    return [p.name for p in (*kernel.params, *kernel.scratch)], list(map(symbol_name, kernel.symbols))


@dataclass
class Writer:
    """Indented lines of Python."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __call__(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)


@dataclass(frozen=True)
class Tile:
    """The axis r of inner loops of one length, or a piece of it.

    Attributes:
        block: how many iterations lie in it: a number, or the name of the constant.
        number: name of the iterations' numbers.
        mask: name of where they count; empty where all do.
        size: iterations of the loops.
        start: the piece's first.
        suffix: of the names of values in this piece.
    """

    block: str
    number: str
    mask: str
    size: index.Int
    start: int = 0
    suffix: str = ""


@dataclass(frozen=True)
class Kept:
    """A part of a scratch buffer that one program fills, iteration by iteration: kept in registers until the end.

    ``place`` is where, in terms of the first piece's numbers.
    """

    pieces: Sequence[Tile]
    place: index.Int


class NestText:
    """The function of one nest.

    Args:
        name: of the function.
        whole: whether tiles hold all iterations of their loops.
    """

    def __init__(self, kernel: LoopKernel, name: str, nest: loop.Nest, *, whole: bool) -> None:
        turned = transposed(nest)
        self.spread = turned is not None
        """Whether programs divide the iterations of the one tile too."""
        self.kernel, self.name, self.nest = kernel, name, turned or nest
        ranges = self.nest.ranges
        apart = len(ranges) > 1 and (ranges[-1].size.value or WIDE) >= WIDE and (self.spread or walks_across(self.nest))
        self.lead, self.ranges = (ranges[:-1], ranges[-1:]) if apart else ((), ranges)
        """Ranges of which each program has one iteration, and those whose iterations are the axis x: where lanes lie along the
        last range, a block that went from one line into the next would be read in bits."""
        self.whole = whole and not self.spread
        self.out = Writer()
        self.axes: dict[str, Axes] = {}
        self.types: dict[str, torch.dtype] = {}
        self.places: dict[str, index.Int] = {}
        self.known: dict[Any, str] = {}
        self.functions: list[str] = []
        """Lines of functions that this one calls."""
        self.tile: Tile | None = None
        self.x_mask = "x_mask"
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
        self.tiles = {size: self.pieces_of(n, size, whole=size in one_piece) for n, size in enumerate(sizes)}
        self.kind: Kind = "across" if walks_across(nest) else "along"
        if self.spread or self.whole:
            self.kind = "spread" if self.spread else "fixed" if self.fixed else "whole"
        self.written = {s.param for s in loop.walk(self.nest.body) if isinstance(s, loop.Store)}
        self.kept: dict[str, Kept] = {}
        self.counter = 0
        self.place(self.ranges, index.variable("x_index", self.count))
        self.place(self.lead, index.variable("lead", self.leads))
        self.find_kept()
        self.thread = THREAD // 2 if self.kept else THREAD
        """Elements of a tile in one thread: fewer where totals take registers too."""

    def pieces_of(self, n: int, size: index.Int, *, whole: bool) -> list[Tile]:
        """The tile of loops of one length: blocks have powers of two, so that a length far from one is taken in pieces."""
        if not self.fixed:
            return [Tile(f"R{n}", f"r{n}", f"r{n}_mask", size)]
        assert size.value is not None
        pieces, start = [], 0
        for k, block in enumerate(blocks_for(size.value, 1 if whole else PIECES)):
            suffix = f"_{k}" if k else ""
            full = start + block <= size.value
            pieces.append(Tile(str(block), f"r{n}{suffix}", "" if full else f"r{n}_mask{suffix}", size, start, suffix))
            start += block
        return pieces

    # The function and its launch

    def text(self) -> str:
        for s in self.kernel.symbols:
            if s.role == "size":
                self.out(f"{s.name} = tl.cast({s.name}, INDEX)")
            elif s.dtype == torch.float64:
                self.out(f"arg_{s.name} = tl.cast(arg_{s.name}, tl.int64).to(tl.float64, bitcast=True)")
            else:
                self.out(f"arg_{s.name} = tl.cast(arg_{s.name}, tl.int64)")
        self.open()
        self.body(self.nest.body)
        self.store_kept()
        fixed = ", ".join(f'"{symbol_name(s)}"' for s in self.kernel.symbols if s.role != "size")
        asserts = any(isinstance(s, loop.Compute) and s.op == "wrap_index" for s in loop.walk(self.nest.body))
        options = [f"do_not_specialize=[{fixed}]"] if fixed else []
        options += ["debug=True"] if asserts else []
        decorator = f"@triton.jit({', '.join(options)})" if options else "@triton.jit"
        constants = [f"{name}: tl.constexpr" for name in self.constants()]
        buffers, numbers = argument_names(self.kernel)
        parameters = ", ".join([*buffers, *numbers, *constants])
        function = [*self.functions, decorator, f"def {self.name}({parameters}):", *self.out.lines, "", ""]
        return "\n".join([*function, f'launch_{self.name} = Launcher({self.name}, "{self.kind}", {self.thread})']) + "\n"

    def constants(self) -> list[str]:
        """Names of what a launch decides: the integer type of indices, the blocks, and whether their last is full."""
        blocks = ["XBLOCK", *(tile.block for (tile,) in self.tiles.values())] if not self.fixed else ["XBLOCK"]
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
        for pieces in self.tiles.values():
            for tile in pieces:
                self.axes[tile.number] = R
                if self.whole:
                    self.number(tile, str(tile.start))
                elif self.spread:
                    self.number(tile, f"tl.cast({apart}, INDEX) * {tile.block}")

    def number(self, tile: Tile, start: str) -> None:
        """Numbers the iterations of a tile, and says which of them count."""
        along = f"tl.arange(0, {tile.block})[None, :]"
        self.out(f"{tile.number} = tl.cast({f'{start} + ' if start != '0' else ''}{along}, INDEX)")
        if tile.mask:
            full = "" if self.fixed else f" | {tile.block}_FULL"
            self.out(f"{tile.mask} = ({tile.number} < {self.uniform(tile.size)}){full}")

    def lengths(self) -> list[index.Int]:
        """Iterations of each tile, as ``launch.tile`` takes them."""
        if not self.fixed:
            return list(self.tiles)
        return [index.wrap(sum(int(tile.block) for tile in pieces)) for pieces in self.tiles.values()]

    def launch(self) -> str:
        """Text of the call that launches the function: how many iterations there are, and in each tile's loops."""
        buffers, numbers = ("".join(f"{name}, " for name in names) for names in argument_names(self.kernel))
        lengths = "".join(f"{index.to_python(size)}, " for size in self.lengths())
        sizes = [p.size for p in (*self.kernel.params, *self.kernel.scratch)]
        largest = max((s.value for s in sizes if s.value is not None), default=0)
        open_sizes = "".join(f", {index.to_python(s)}" for s in dict.fromkeys(sizes) if s.value is None)
        most = f"max({largest}{open_sizes})" if open_sizes else str(largest)
        counts = f"{index.to_python(self.leads)}, {index.to_python(self.count)}"
        return f"launch_{self.name}(({buffers}), ({numbers}), {counts}, ({lengths}), {most})"

    # Places

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}_{self.counter}"

    def place(self, ranges: Sequence[loop.Range], number: index.Int) -> None:
        """Loop variables as functions of the iteration's number; index expressions over several often fold back to it."""
        rest = number
        for position, r in reversed(list(enumerate(ranges))):
            if r.size == 0:  # the loop's text is never run
                self.places.update({each.var: index.ZERO for each in ranges})
                return
            self.places[r.var] = rest % r.size if position else rest
            rest = rest // r.size

    def expression(self, expression: index.Int) -> tuple[str, Axes]:
        placed = index.substitute(expression, self.places)
        return indices.text(placed), self.varies(index.symbols(placed))

    def varies(self, names: Iterable[str]) -> Axes:
        return NONE.union(*(self.axes.get(name, NONE) for name in names))

    def uniform(self, size: index.Int) -> str:
        """The text of a loop's length, which all lanes share."""
        text, axes = self.expression(size)
        if axes:
            raise LoweringError(f"triton_gpu: {self.kernel.name} has an inner loop whose length varies between iterations")
        return text

    def shape(self, axes: Axes) -> str:
        if not axes:
            return "[]"
        if not self.tiles:
            return "[XBLOCK]"
        return f"[{'XBLOCK' if 'x' in axes else '1'}, {self.tile.block if self.tile and 'r' in axes else '1'}]"

    def context(self) -> Axes:
        return X | R if self.tile else X

    def mask(self, axes: Axes, extra: str | None = None) -> str:
        """Where lanes count: inside the ranges of the axes, and where ``extra`` holds."""
        parts = [self.x_mask] if "x" in axes else []
        if "r" in axes and self.tile is not None and self.tile.mask:
            parts.append(self.tile.mask)
        return " & ".join([*parts, extra] if extra else parts)

    def pointer(self, param: str, position: index.Int, others: Iterable[str | None], least: Axes = NONE) -> tuple[str, Axes]:
        """The address of an element, as wide as the values that go with it."""
        text, axes = self.expression(position)
        full = axes | least | self.varies(name for name in others if name)
        if full != axes:
            text = f"tl.full({self.shape(full)}, 0, tl.int32) + {text}"
        return f"{param} + ({text})", full

    # Statements

    def body(self, body: Sequence[loop.Stmt]) -> None:
        for s in body:
            self.statement(s)

    def define(self, name: str, text: str, dtype: torch.dtype, axes: Axes) -> None:
        self.types[name], self.axes[name] = dtype, axes
        here = self.here(name)
        self.axes[here] = axes
        if dtype == torch.int64:
            self.places.pop(name, None)
            if here != name:
                self.places[name] = index.symbol(here)
        self.out(f"{here} = {text}")

    def here(self, name: str) -> str:
        """The name of a value in the piece of the tile that the text is about."""
        return name + self.tile.suffix if self.tile and "r" in self.axes[name] else name

    def once(self, name: str, text: str, dtype: torch.dtype, axes: Axes) -> None:
        """Defines a value, or names the equal one that is there."""
        self.axes[name] = axes
        here = self.here(name)
        first = self.known.get((text, dtype))
        if first is None:
            self.known[text, dtype] = here
            self.define(name, text, dtype, axes)
        elif first != here:
            self.known["name", here] = first
            self.define(name, first, dtype, axes)

    def statement(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Reduce | loop.Nest):
            if self.tile is None and tiled(s):
                self.in_tiles(s)
            else:
                self.one_by_one(s)
        elif isinstance(s, loop.Scan):
            if self.tile is None and tiled(s):
                self.scan_in_tiles(s)
            else:
                self.one_by_one(s)
        elif isinstance(s, loop.Load):
            self.load(s)
        elif isinstance(s, loop.Store):
            self.store(s)
        elif isinstance(s, loop.Const):
            self.once(s.to, constant(s.value, s.dtype), s.dtype, NONE)
        elif isinstance(s, loop.Scalar):
            self.once(s.to, f"arg_{s.symbol}", s.dtype, NONE)
        elif isinstance(s, loop.Index):
            text, axes = self.expression(s.index)
            self.once(s.to, f"tl.cast({text}, tl.int64)", torch.int64, axes)
        else:
            assert isinstance(s, loop.Compute), f"{s} needs an op that the table does not have"
            self.compute(s)

    def compute(self, s: loop.Compute) -> None:
        source = self.types[s.args[-1]]
        axes = self.varies(s.args)
        args = [self.same(name) for name in s.args]
        if s.op == "convert":
            text = convert(args[0], source, s.dtype)
        elif s.op == "bitcast":
            text = bitcast(args[0], source, s.dtype)
        elif source == torch.bool and s.op in ("max", "min"):
            text = f"{args[0]} {'|' if s.op == 'max' else '&'} {args[1]}"
        elif s.op == "div" and source == torch.float32 and self.axes[s.args[1]] < axes:
            text = f"base.div_by({', '.join(args)})"
        elif source == torch.bool and s.op == "bitnot":
            text = f"{args[0]} == 0"
        else:
            mask = self.mask(axes) or "True"
            text = OPS[s.op].format(*args, args=", ".join(args), T=TYPES[source], mask=mask)
        self.once(s.to, text, s.dtype, axes)

    def same(self, name: str) -> str:
        """The first name of a value, so that equal expressions have equal text."""
        here = self.here(name)
        return self.known.get(("name", here), here)

    def load(self, s: loop.Load) -> None:
        others = [self.same(name) if name else None for name in (s.mask, s.other)]
        address, axes = self.pointer(s.param, s.index, (s.mask, s.other))
        mask = self.mask(axes, others[0])
        # Lanes outside the ranges get zero: what they compute is defined, and thrown away.
        text = f"tl.load({address}, mask={mask}, other={others[1] or '0'})" if mask else f"tl.load({address})"
        (self.define if s.param in self.written else self.once)(s.to, text, s.dtype, axes)

    def store(self, s: loop.Store) -> None:
        if s.param in self.kept:
            self.keep(s)
            return
        least = NONE if s.mode == "set" else self.context()  # Every iteration takes part, also where the address does not vary.
        address, axes = self.pointer(s.param, s.index, (s.value, s.mask), least)
        mask = self.mask(axes, self.here(s.mask) if s.mask else None)
        value = self.here(s.value)
        if s.mode == "set":
            self.out(f"tl.store({address}, {value}{f', mask={mask}' if mask else ''})")
        else:
            self.out(f'{OPS[f"store.{s.mode}"]}({address}, {value}, mask={mask}, sem="relaxed")')

    # Totals

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
            tile = self.tiles[length_of(around)][0]
            self.place(ranges_of(around), index.variable(tile.number, tile.size))
            places.add((tile.size, index.substitute(s.index, self.places)))
        if len(found) < 2 or len(places) != 1:
            return None
        ((size, place),) = places
        pieces = self.tiles[size]
        fixed = {"x_index", pieces[0].number, *(s.name for s in self.kernel.symbols)}
        return Kept(pieces, place) if fixed >= index.symbols(place).keys() else None

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
            first = kept.pieces[0].number
            for tile in kept.pieces:
                place = index.substitute(kept.place, {first: index.variable(tile.number, tile.size)})
                mask = f"x_mask & {tile.mask}" if tile.mask else "x_mask"
                self.out(f"tl.store({name} + ({indices.text(place)}), {name}_tile{tile.suffix}, mask={mask})")

    # Inner loops

    def enter(self, s: Loop, tile: Tile) -> dict[Any, str]:
        """Opens the loop over tiles of an inner loop's iterations. Returns what was known before."""
        before = self.known
        if not self.whole and not self.spread:
            self.known = dict(before)
            start = self.fresh("start")
            self.out(f"for {start} in range(0, {self.uniform(tile.size)}, {tile.block}):")
            self.out.depth += 1
            self.number(tile, start)
        self.tile = tile
        self.place(ranges_of(s), index.variable(tile.number, tile.size))
        return before

    def leave(self, s: Loop, before: dict[Any, str]) -> None:
        self.tile = None
        if not self.whole and not self.spread:
            self.known = before
            self.out.depth -= 1
        self.fence(s)

    def fence(self, s: Loop) -> None:
        """Lets all threads of a program see what this loop stored, where others use it."""
        stored = {each.param for each in loop.walk((s,)) if isinstance(each, loop.Store)} - self.kept.keys()
        uses = [each for each in loop.walk(self.nest.body) if isinstance(each, loop.Load | loop.Store)]
        if any(sum(use.param == name for use in uses) > 1 for name in stored if self.kernel.param(name).role == "scratch"):
            self.out("tl.debug_barrier()")

    def in_tiles(self, s: loop.Reduce | loop.Nest) -> None:
        accumulators = s.accumulators if isinstance(s, loop.Reduce) else ()
        pieces = self.tiles[length_of(s)]
        if self.whole:
            operands = []
            for tile in pieces:
                before = self.enter(s, tile)
                self.body(s.body)
                axes = self.varies(name for a in accumulators for name in a.args) | R
                operands.append([name for a in accumulators for name in self.operands(a, axes)])
                self.leave(s, before)
            if len({wide(a.dtype) for a in accumulators}) == 1 and all(len(a.to) == 1 for a in accumulators):
                self.reduce_whole(accumulators, operands, axes - R)
                return
            first = 0
            for a in accumulators:
                last = first + len(a.to)
                self.reduce_whole([a], [names[first:last] for names in operands], axes - R)
                first = last
            return
        # Each lane of the tile has a running result; the lanes are combined at the end.
        (tile,) = pieces
        for a in accumulators:
            self.start(a, f"[XBLOCK, {tile.block}]")
        before = self.enter(s, tile)
        self.body(s.body)
        mask = self.mask(self.context())
        for a in accumulators:
            self.advance(a, "combine", mask)
        self.leave(s, before)
        for a in accumulators:
            joined = [f"{to}_r" for to in a.to]
            running = [f"{to}_w" for to in a.to]
            operand = running[0] if len(running) == 1 else f"({', '.join(running)})"
            self.out(f"{', '.join(joined)} = tl.reduce({operand}, 1, {combination(a, 'combine')})")
            self.settle_all(a, [f"{name}[:, None]" for name in joined], X)

    def operands(self, a: loop.Accumulator, axes: Axes) -> list[str]:
        """What a tile is reduced or scanned from: the identity where iterations do not count."""
        assert self.tile is not None
        names = []
        for to, value, dtype, least in zip(
            a.to, a.args, (wide(a.dtype), torch.int64), (identity(a.op, a.dtype), 2**63 - 1), strict=False
        ):
            name = f"{to}_v{self.tile.suffix}"
            text = f"{self.here(value)}.to({TYPES[dtype]})"
            self.out(
                f"{name} = " + (f"tl.where({self.tile.mask}, {text}, {constant(least, dtype)})" if self.tile.mask else text)
            )
            if self.axes[value] | (R if self.tile.mask else NONE) != axes:
                self.out(f"{name} = tl.broadcast_to({name}, {self.shape(axes)})")
            names.append(name)
        return names

    def reduce_whole(self, accumulators: Sequence[loop.Accumulator], operands: Sequence[list[str]], axes: Axes) -> None:
        """Combines the lanes of each piece, and the pieces: accumulators at once, since lanes wait for one another."""
        function = self.joint(accumulators)
        joined = [f"{to}_r" for a in accumulators for to in a.to]
        along = "1" if "x" in axes else "None"
        for position, names in enumerate(operands):
            results = [f"{name}_{position}" for name in joined] if position else joined
            self.out(f"{', '.join(results)} = tl.reduce({listed(names)}, {along}, {function})")
            if position:
                self.out(f"{', '.join(joined)} = {function}({', '.join([*joined, *results])})")
        for a in accumulators:
            self.settle_all(a, [f"{to}_r[:, None]" if axes else f"{to}_r" for to in a.to], axes)

    def joint(self, accumulators: Sequence[loop.Accumulator]) -> str:
        """The function that takes a step of all accumulators."""
        if len(accumulators) == 1:
            return combination(accumulators[0], "combine")
        name = f"{self.name}_{self.fresh('join')}"
        left, right = ([f"{side}{k}" for k in range(sum(len(a.to) for a in accumulators))] for side in "ab")
        steps, at = [], 0
        for a in accumulators:
            end = at + len(a.to)
            to = ", ".join(f"c{k}" for k in range(at, end))
            steps.append(f"    {to} = {combination(a, 'combine')}({', '.join([*left[at:end], *right[at:end]])})")
            at = end
        results = ", ".join(f"c{k}" for k in range(at))
        self.functions += ["@triton.jit", f"def {name}({', '.join([*left, *right])}):", *steps, f"    return {results}", "", ""]
        return name

    def one_by_one(self, s: Loop) -> None:
        accumulators = () if isinstance(s, loop.Nest) else s.accumulators
        for a in accumulators:
            self.start(a, self.shape(self.context()))
        if self.whole:
            self.hoist(s)
        ahead = self.fetch_first(s)
        depth, before, mask = self.out.depth, self.known, self.x_mask
        self.known = dict(before)
        for r in ranges_of(s):
            length, axes = self.expression(r.size)
            turn = self.fresh("turn")
            if "r" in axes:
                raise LoweringError(f"triton_gpu: {self.kernel.name} has an inner loop whose length varies along another")
            self.out(f"for {turn} in range(0, {f'tl.max({length})' if axes else length}):")
            self.out.depth += 1
            if axes:
                self.out(f"{turn}_mask = {self.x_mask} & ({turn} < {length})")
                self.x_mask = f"{turn}_mask"
            self.out(f"{r.var} = tl.cast({turn}, INDEX)")
            self.places.pop(r.var, None)
        self.fetch_next(s, ahead)
        self.body(s.body)
        for a in accumulators:
            self.advance(a, "running" if isinstance(s, loop.Scan) else "combine", "" if self.x_mask == mask else self.x_mask)
        if isinstance(s, loop.Scan):
            for a in accumulators:
                self.settle_all(a, [f"{to}_w" for to in a.to], self.context())
            self.body(s.then)
        for name in ahead:
            self.out(f"{name} = {name}_next")
        self.out.depth, self.known, self.x_mask = depth, before, mask
        if isinstance(s, loop.Reduce):
            for a in accumulators:
                self.settle_all(a, [f"{to}_w" for to in a.to], self.context())

    def hoist(self, s: Loop) -> None:
        """Loads tiles that are the same in all iterations of a loop before it."""
        varying = {r.var for r in ranges_of(s)} | {name for each in loop.walk((s,)) for name in names_of(each)}
        for inner in [each for each in loop.walk(body_of(s)) if isinstance(each, Loop) and tiled(each)]:
            own = {r.var for r in ranges_of(inner)}
            for each in body_of(inner):
                if not isinstance(each, loop.Load) or each.mask or each.param in self.written:
                    continue
                used = index.symbols(each.index).keys() & varying
                if used and used <= own:
                    for tile in self.tiles[length_of(inner)]:
                        self.enter(inner, tile)
                        self.load(each)
                        self.tile = None

    def fetch_first(self, s: Loop) -> dict[str, tuple[loop.Load, Tile, Loop]]:
        """Loads what the first iteration of a loop over rows reads: each iteration then loads for the one after it, so that
        memory works while the row is computed. By name, what is loaded."""
        ranges = ranges_of(s)
        if not self.whole or len(ranges) != 1 or self.expression(ranges[0].size)[1]:
            return {}
        row = ranges[0].var
        varying = {row} | {name for each in loop.walk((s,)) for name in names_of(each)}
        ahead: dict[str, tuple[loop.Load, Tile, Loop]] = {}
        seen = set()
        for inner in [each for each in body_of(s) if isinstance(each, Loop) and tiled(each)]:
            own = {r.var for r in ranges_of(inner)}
            for each in body_of(inner):
                if not isinstance(each, loop.Load) or each.mask or each.param in self.written:
                    continue
                used = index.symbols(each.index).keys() & varying
                if row not in used or not own & used or not used <= own | {row}:
                    continue
                for tile in self.tiles[length_of(inner)]:
                    text = self.ahead(each, tile, inner, row, index.ZERO, "")
                    if text not in seen:
                        seen.add(text)
                        name = self.fresh("ahead")
                        self.out(f"{name} = {text}")
                        ahead[name] = (each, tile, inner)
        return ahead

    def fetch_next(self, s: Loop, ahead: Mapping[str, tuple[loop.Load, Tile, Loop]]) -> None:
        """Inside the loop: loads for the next iteration, and what was loaded for this one."""
        for name, (load, tile, inner) in ahead.items():
            (row,) = ranges_of(s)
            here = self.ahead(load, tile, inner, row.var, index.variable(row.var, row.size), "")
            self.known[here, load.dtype] = name
            self.axes[name] = X | R
            more = f"({row.var} + 1 < {self.uniform(row.size)})"
            following = self.ahead(load, tile, inner, row.var, index.variable(row.var, row.size) + 1, more)
            self.out(f"{name}_next = {following}")

    def ahead(self, s: loop.Load, tile: Tile, inner: Loop, row: str, at: index.Int, extra: str) -> str:
        """The text of a load of a tile in iteration ``at`` of the loop around it."""
        before = self.places.get(row)
        self.places[row] = at
        self.enter(inner, tile)
        address, axes = self.pointer(s.param, s.index, ())
        text = f"tl.load({address}, mask={self.mask(axes, extra or None)}, other=0)"
        self.tile = None
        self.places.pop(row)
        if before is not None:
            self.places[row] = before
        return text

    def scan_in_tiles(self, s: loop.Scan) -> None:
        """Each tile is scanned at once, from what the tiles before it came to (``_w``)."""
        if not self.whole:
            for a in s.accumulators:
                self.start(a, "[XBLOCK, 1]")
        (tile,) = self.tiles[length_of(s)]
        before = self.enter(s, tile)
        self.body(s.body)
        for a in s.accumulators:
            function = combination(a, "running")
            operand = listed(self.operands(a, X | R))
            carried, scanned, totals = ([f"{to}_{suffix}" for to in a.to] for suffix in "wsr")
            self.out(f"{', '.join(scanned)} = tl.associative_scan({operand}, 1, {function})")
            if not self.whole:
                self.out(f"{', '.join(scanned)} = {function}({', '.join([*carried, *scanned])})")
                self.out(f"{', '.join(totals)} = tl.reduce({operand}, 1, {function})")
                after = [f"{name}[:, None]" for name in totals]
                self.out(f"{', '.join(carried)} = {function}({', '.join([*carried, *after])})")
            self.settle_all(a, scanned, self.context())
        self.body(s.then)
        self.leave(s, before)

    def start(self, a: loop.Accumulator, shape: str) -> None:
        self.out(f"{a.to[0]}_w = {constant(identity(a.op, a.dtype), wide(a.dtype), shape)}")
        if len(a.to) == 2:
            # Worse than any position, so that the first element is taken even when it equals the identity.
            self.out(f"{a.to[1]}_w = {constant(2**63 - 1, torch.int64, shape)}")

    def advance(self, a: loop.Accumulator, kind: str, mask: str) -> None:
        """One step of the running results, where ``mask`` holds (``""``: everywhere)."""
        running = [f"{to}_w" for to in a.to]
        steps = [f"{to}_n" for to in a.to]
        values = [f"{self.here(v)}.to({TYPES[t]})" for v, t in zip(a.args, (wide(a.dtype), torch.int64), strict=False)]
        if not self.varies(a.args):
            values = [f"tl.broadcast_to({value}, {self.shape(self.context())})" for value in values]
        self.out(f"{', '.join(steps)} = {combination(a, kind)}({', '.join([*running, *values])})")
        for name, following in zip(running, steps, strict=True):
            self.out(f"{name} = tl.where({mask}, {following}, {name})" if mask else f"{name} = {following}")

    def settle_all(self, a: loop.Accumulator, names: Sequence[str], axes: Axes) -> None:
        for to, name, dtype in zip(a.to, names, (a.dtype, torch.int64), strict=False):
            self.define(to, convert(f"({name})", torch.int32, dtype) if dtype in SMALL else name, dtype, axes)
