"""Inner loops: whole tiles, tiles one after the other, iterations one after the other; totals and scans over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reference_backends.triton_gpu.analysis import Loop, apart, body_of, length_of, names_in, ranges_of, reads_steadily, tiled
from reference_backends.triton_gpu.statements import NONE, Axes, R, Statements, X
from reference_backends.triton_gpu.table import SMALL, TYPES, combination, constant, convert, nothing, wide
from reference_backends.triton_gpu.tiles import Tile, Vectors
from vendor_sdk import LoopKernel, LoweringError, index, interior, loop, split

GROUP = 8
"""Neighbouring elements whose sum of exponentials one thread keeps: a vector of halves."""
UNROLLED = 32
"""Iterations of a loop that is written out: what it reads is then asked for at once."""


def listed(names: Sequence[str]) -> str:
    """Operands of a reduction or scan."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


class Loops(Statements):
    """Text of a nest's inner loops."""

    name: str
    nest: loop.Nest
    whole: bool
    spread: bool
    kept: Mapping[str, object]
    """Scratch buffers that are registers until the end."""
    recomputes: bool
    """Whether loops after a row's reduction compute again what they share with those before it, so that registers hold what was
    loaded alone meanwhile."""

    def __init__(self, kernel: LoopKernel) -> None:
        super().__init__(kernel)
        self.functions: list[str] = []
        """Lines of functions that this one calls."""
        self.waits = 0
        """How often the programs of a row wait for each other."""

    def statement(self, s: loop.Stmt) -> None:
        if isinstance(s, split.Heard):
            self.listen(s)
        if not isinstance(s, Loop):
            super().statement(s)
        elif self.tile is not None or not tiled(s):
            self.one_by_one(s)
        elif isinstance(s, loop.Scan):
            self.scan_in_tiles(s)
        else:
            self.in_tiles(s)

    # Tiles

    def number(self, tile: Tile, start: str) -> None:
        """Numbers the iterations of a tile, and says which of them count."""
        along = f"tl.arange(0, {tile.block})[None, :]"
        self.axes[tile.number] = R
        if tile.edges is not None:
            self.number_edges(tile, tile.edges, along)
            return
        if tile.offset != index.ZERO:
            self.axes[tile.number] = R | self.varies(index.symbols(tile.offset))
        self.out(f"{tile.number} = tl.cast({f'{start} + ' if start != '0' else ''}{along}, INDEX)")
        if tile.mask:
            full = "" if tile.end else f" | {tile.block}_FULL"
            self.out(f"{tile.mask} = ({tile.number} < {tile.end or self.uniform(tile.size)}){full}")

    def number_edges(self, tile: Tile, vectors: Vectors, along: str) -> None:
        """Numbers as many of a row's first and of its last iterations as a vector has: those outside of whole vectors count."""
        offset, axes = self.expression(vectors.offset)
        self.axes[tile.number] = axes | R
        rest = index.to_python(tile.size - 2 * vectors.lanes)
        self.out(f"{tile.number} = tl.cast({along} + tl.where({along} < {vectors.lanes}, 0, {rest}), INDEX)")
        if axes:
            self.out(f"{tile.number} = tl.broadcast_to({tile.number}, {self.shape(axes)[:-2]}{tile.block}])")
        place = f"{tile.number} + {offset}"
        self.out(f"{tile.mask} = ({place} < {self.first(vectors)}) | ({place} >= {self.last(vectors, tile.size)})")

    def first(self, vectors: Vectors) -> str:
        """Where a row's first whole vector begins."""
        return f"({self.expression(vectors.offset)[0]} + {vectors.lanes - 1}) // {vectors.lanes} * {vectors.lanes}"

    def last(self, vectors: Vectors, size: index.Int) -> str:
        """Where its last one ends."""
        return f"({self.expression(vectors.offset + size)[0]}) // {vectors.lanes} * {vectors.lanes}"

    def enter(self, s: Loop, tile: Tile, first: str = "0", end: str = "") -> dict[Any, str]:
        """Opens the loop over tiles of an inner loop's iterations, from ``first`` to ``end`` (its own). Returns what was known
        before."""
        before = self.known
        if self.piecewise(tile):
            self.known = dict(before)
            start = self.fresh("start")
            self.out(f"for {start} in range({first}, {end or self.uniform(tile.most or tile.size)}, {tile.block}):")
            self.out.depth += 1
            self.number(tile, start if tile.start == "0" else f"{tile.start} + {start}")
        self.tile = tile
        self.place(ranges_of(s), tile.iteration)
        return before

    def leave(self, s: Loop, before: dict[Any, str]) -> None:
        assert self.tile is not None
        if self.piecewise(self.tile):
            self.known = before
            self.out.depth -= 1
        self.tile = None
        self.fence(s)

    def piecewise(self, tile: Tile) -> bool:
        """Whether a tile is taken a block at a time."""
        return not self.whole and not self.spread and tile.edges is None

    def fence(self, s: Loop) -> None:
        """Lets all threads of a program see what this loop stored, where others use it."""
        stored = {each.param for each in loop.walk((s,)) if isinstance(each, loop.Store)} - self.kept.keys()
        uses = [each for each in loop.walk(self.nest.body) if isinstance(each, loop.Load | loop.Store)]
        if any(sum(use.param == name for use in uses) > 1 for name in stored if self.kernel.param(name).role == "scratch"):
            self.out("tl.debug_barrier()")

    def listen(self, s: split.Heard) -> None:
        """Waits for all that the programs of a row have told each other until here: what each of them says is asked for before
        the first answer is there."""
        position = next(k for k, each in enumerate(self.nest.body) if each is s)
        told = {each.param for each in self.nest.body[:position] if isinstance(each, loop.Store)}
        words: dict[str, str] = {}
        for later in self.nest.body[position:]:
            if isinstance(later, split.Heard) and told >= {each.param for each in later.body if isinstance(each, loop.Load)}:
                (tile,) = self.tiles[length_of(later)]
                before = self.enter(later, tile)
                for each in later.body:
                    if isinstance(each, loop.Load):
                        address, axes = self.pointer(each.param, each.index, ())
                        if (each.param, address) not in self.known:
                            name = self.known[each.param, address] = self.fresh("said")
                            words[name] = f"base.said({address}, {self.mask(axes) or f'{tile.number} >= 0'})"
                self.leave(later, before)
        if not words:
            return
        self.waits += 1
        for name, text in words.items():
            self.out(f"{name} = {text}")
        self.out(f"while base.missing({' & '.join(words)}):")
        self.out.depth += 1
        for name, text in words.items():
            self.out(f"{name} = {text}")
        self.out.depth -= 1

    def in_tiles(self, s: loop.Reduce | loop.Nest) -> None:
        accumulators = s.accumulators if isinstance(s, loop.Reduce) else ()
        pieces = self.tiles[length_of(s)]
        operands = []
        axes = self.x_axes | R
        if not self.whole:
            # Each lane of a block has a running result; the lanes are combined at the end.
            for a in accumulators:
                self.start(a, f"[XBLOCK, {pieces[0].block}{f' // {GROUP}' if a.op == 'expsum' else ''}]")
            begin = self.inside(s, pieces[0])
            self.turns(s, accumulators, s.body, pieces[0], begin)
            operands.append([f"{to}_w" for a in accumulators for to in a.to])
        for tile in pieces if self.whole else pieces[1:]:
            before = self.enter(s, tile)
            self.body(s.body)
            if self.whole:
                axes = self.varies(name for a in accumulators for name in a.args) | self.axes[tile.number]
            operands.append([name for a in accumulators for name in self.operands(a, axes)])
            self.leave(s, before)
        even = sum(tile.block == pieces[0].block and not tile.edges for tile in pieces)
        if len({wide(a.dtype) for a in accumulators}) == 1 and all(len(a.to) == 1 for a in accumulators):
            self.reduce_lanes(accumulators, operands, axes - R, even)
            return
        first = 0
        for a in accumulators:
            last = first + len(a.to)
            self.reduce_lanes([a], [names[first:last] for names in operands], axes - R, even)
            first = last

    def turns(
        self,
        s: loop.Reduce | loop.Nest,
        accumulators: Sequence[loop.Accumulator],
        body: Sequence[loop.Stmt],
        tile: Tile,
        first: str = "0",
        end: str = "",
    ) -> None:
        """The loop over tiles, from ``first`` to ``end``."""
        before = self.enter(s, tile, first, end)
        self.body(body)
        # Rows do not mix, and what lanes beyond the last one come to is stored nowhere.
        for a in accumulators:
            if a.op == "expsum":
                self.advance_powers(a, tile.mask)
            else:
                self.advance(a, "combine", tile.mask)
        self.leave(s, before)

    def inside(self, s: loop.Reduce | loop.Nest, tile: Tile) -> str:
        """Where a loop's length is a symbol and its loads are masked by edges: writes its tiles inside of them, without masks.
        Returns where the rest begins."""
        ranges = ranges_of(s)
        if not isinstance(s, loop.Reduce) or len(ranges) != 1 or tile.size.value is not None or tile.most is not None:
            return "0"
        if any(not isinstance(each, loop.Load | loop.Compute | loop.Index | loop.Const) for each in s.body):
            return "0"
        variable = ranges[0].var
        before, body, varying = apart(s.body, variable)
        found = interior.interior(body, variable, varying)
        if found is None or not {edge.bound for edge in found.edges} <= names_in(before):
            return "0"
        self.body(before)
        end = self.fresh("inside")
        self.out(f"{end} = {self.uniform(tile.size)}")
        for edge in found.edges:
            beginning, step = self.fresh("edge"), self.uniform(edge.step)
            self.statement(loop.Index(beginning, index.substitute(edge.expression, {variable: index.ZERO})))
            place, axes = self.same(beginning), self.axes[beginning] | self.axes[edge.bound]
            text = f"tl.maximum({self.same(edge.bound)} - {place}, 0)"
            if edge.step != 1:
                text = f"tl.cdiv({text}, {step})"
            if "x" in axes:
                text = f"tl.min(tl.where({self.x_mask}, {text}, {end}))" if self.x_mask else f"tl.min({text})"
            self.out(f"{end} = tl.minimum({end}, {text})")
        self.out(f"{end} = tl.cast({end} // {tile.block} * {tile.block}, INDEX)")
        masked = {
            each.to: self.policies[id(each)] for each in s.body if isinstance(each, loop.Load) and id(each) in self.policies
        }
        self.policies = {
            **self.policies,
            **{id(each): masked[each.to] for each in found.body if isinstance(each, loop.Load) and each.to in masked},
        }
        accumulators = [replace(a, args=tuple(found.names.get(name, name) for name in a.args)) for a in s.accumulators]
        self.turns(s, accumulators, found.body, replace(tile, mask=""), end=end)
        return end

    def operands(self, a: loop.Accumulator, axes: Axes) -> list[str]:
        """What a tile is reduced or scanned from: the identity where iterations do not count."""
        assert self.tile is not None
        names = []
        for to, value, dtype, least in zip(a.to, a.args, map(wide, a.dtypes), nothing(a), strict=True):
            name = f"{to}_v{self.tile.suffix}"
            text = f"{self.here(value)}.to({TYPES[dtype]})"
            self.out(
                f"{name} = " + (f"tl.where({self.tile.mask}, {text}, {constant(least, dtype)})" if self.tile.mask else text)
            )
            if self.axes[value] | (self.axes[self.tile.number] if self.tile.mask else NONE) != axes:
                self.out(f"{name} = tl.broadcast_to({name}, {self.shape(axes)})")
            names.append(name)
        return names

    def reduce_lanes(
        self, accumulators: Sequence[loop.Accumulator], operands: Sequence[list[str]], axes: Axes, even: int
    ) -> None:
        """Combines the lanes of each piece, and the pieces: accumulators at once, since lanes wait for one another.

        Args:
            operands: of each piece.
            even: how many of these, the first ones, are blocks of one size, whose lanes are combined before they wait.
        """
        function = self.joint(accumulators)
        for names in operands[1:even]:
            self.out(f"{', '.join(operands[0])} = {function}({', '.join([*operands[0], *names])})")
        operands = [operands[0], *operands[max(even, 1) :]]
        joined = [f"{to}_r" for a in accumulators for to in a.to]
        for position, names in enumerate(operands):
            results = [f"{name}_{position}" for name in joined] if position else joined
            whole = "x" not in axes and len(joined) == 1
            self.out(f"{', '.join(results)} = tl.reduce({listed(names)}, {None if whole else 1}, {function})")
            if "x" not in axes and not whole:
                # Flattened, be it by Triton or here, each operand gets an order of its own: Triton takes reshapes that only
                # reductions use as free to reorder (CombineReshapeReducePatterns), which parts values from their places.
                self.out(f"{', '.join(results)} = tl.reduce({listed(results)}, 0, {function})")
            if position:
                self.out(f"{', '.join(joined)} = {function}({', '.join([*joined, *results])})")
        for a in accumulators:
            self.settle_all(a, [f"{to}_r[:, None]" if axes else f"{to}_r" for to in a.to], axes)
        self.stale = set(self.loaded) if self.recomputes else set()

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
            operand = listed(self.operands(a, self.context()))
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

    # One iteration after the other

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
            steps = "tl.static_range" if reads_steadily(s) and (r.size.value or UNROLLED + 1) <= UNROLLED else "range"
            self.out(f"for {turn} in {steps}(0, {f'tl.max({length})' if axes else length}):")
            self.out.depth += 1
            if axes:
                outside = f"{self.x_mask} & " if self.x_mask else ""
                self.out(f"{turn}_mask = {outside}({turn} < {length})")
                self.x_mask = f"{turn}_mask"
            self.out(f"{r.var} = tl.cast({turn}, INDEX)")
            self.places.pop(r.var, None)
        self.fetch_next(s, ahead)
        self.stale = set()
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
        varying = names_in((s,))
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
        row, rows = ranges[0].var, ranges[0].size
        some = "" if index.less(0, rows) else f"({self.uniform(rows)} > 0)"
        varying = names_in((s,))
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
                    text = self.ahead(each, tile, inner, row, index.ZERO, some, index.variable(row, rows))
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
            self.axes[name] = self.x_axes | R
            more = f"({row.var} + 1 < {self.uniform(row.size)})"
            following = self.ahead(load, tile, inner, row.var, index.variable(row.var, row.size) + 1, more)
            self.out(f"{name}_next = {following}")

    def ahead(
        self, s: loop.Load, tile: Tile, inner: Loop, row: str, at: index.Int, extra: str, like: index.Int | None = None
    ) -> str:
        """The text of a load of a tile in iteration ``at`` of the loop around it, in the shape of that in iteration ``like``:
        in the first one, all rows of a tile may read the same."""
        before = self.places.get(row)
        self.places[row] = at
        self.enter(inner, tile)
        address, axes = self.pointer(s.param, s.index, ())
        mask = self.mask(axes, extra or None)
        text = f"tl.load({address}, mask={mask}, other=0)" if mask else f"tl.load({address})"
        if like is not None:
            self.places[row] = like
            _, others = self.pointer(s.param, s.index, ())
            text = text if others <= axes else f"tl.broadcast_to({text}, {self.shape(others | axes)})"
        self.tile = None
        self.places.pop(row)
        if before is not None:
            self.places[row] = before
        return text

    # Running results

    def start(self, a: loop.Accumulator, shape: str) -> None:
        for to, value, dtype in zip(a.to, nothing(a), map(wide, a.dtypes), strict=True):
            self.out(f"{to}_w = {constant(value, dtype, shape)}")

    def advance(self, a: loop.Accumulator, kind: str, mask: str) -> None:
        """One step of the running results, where ``mask`` holds (``""``: everywhere)."""
        running = [f"{to}_w" for to in a.to]
        steps = [f"{to}_n" for to in a.to]
        values = [f"{self.here(v)}.to({TYPES[t]})" for v, t in zip(a.args, map(wide, a.dtypes), strict=True)]
        if self.context() and not self.varies(a.args):
            values = [f"tl.broadcast_to({value}, {self.shape(self.context())})" for value in values]
        self.out(f"{', '.join(steps)} = {combination(a, kind)}({', '.join([*running, *values])})")
        for name, following in zip(running, steps, strict=True):
            self.out(f"{name} = tl.where({mask}, {following}, {name})" if mask else f"{name} = {following}")

    def advance_powers(self, a: loop.Accumulator, mask: str) -> None:
        """One tile of a sum of exponentials: of gaps to the largest value so far of a thread's neighbouring elements, which
        take one power more together, and wait for no other thread."""
        (largest, total), (value, weight) = a.to, map(self.here, a.args)
        kind, shape = TYPES[wide(a.dtype)], self.shape(X | R)

        def grouped(text: str) -> str:
            assert self.tile is not None
            return f"tl.reshape(tl.broadcast_to({text}.to({kind}), {shape}), [XBLOCK, {self.tile.block} // {GROUP}, {GROUP}])"

        power = "base.weight({}, True)" if total in self.weights.names else "libdevice.exp({})"
        self.out(f"{largest}_v = {f'tl.where({mask}, {value}, {constant(nothing(a)[0], a.dtype)})' if mask else value}")
        self.out(f"{largest}_v = {grouped(f'{largest}_v')}")
        self.out(f"{largest}_n = base.maximum({largest}_w, tl.reduce({largest}_v, 2, base.combine_max))")
        # Of nothing but negative infinities none weighs anything, which keeps comparisons out of the elements.
        self.out(f"{largest}_b = tl.where({largest}_n == float('-inf'), 0.0, {largest}_n)")
        self.out(f"{total}_v = {power.format(f'{largest}_v - {largest}_b[:, :, None]')}")
        counted = f"tl.where({mask}, {weight}, 0)" if mask else weight
        self.out(f"{total}_v *= {grouped(counted)}")
        self.out(f"{total}_w *= {power.format(f'{largest}_w - {largest}_b')}")
        self.out(f"{total}_w += tl.reduce({total}_v, 2, base.combine_sum)")
        self.out(f"{largest}_w = {largest}_n")

    def settle_all(self, a: loop.Accumulator, names: Sequence[str], axes: Axes) -> None:
        for to, name, dtype in zip(a.to, names, a.dtypes, strict=True):
            self.define(to, convert(f"({name})", torch.int32, dtype) if dtype in SMALL else name, dtype, axes)
