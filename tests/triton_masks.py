"""Attention masks as loops, as ``vendor_sdk.Computed`` gives them to kernels: written by hand, without the compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from vendor_sdk import Computed, LoopKernel, index, loop
from vendor_sdk.ir.loop_interpreter import interpret

Tensor = torch.Tensor
BOOL, FLOAT, LONG = torch.bool, torch.float32, torch.int64


class Body:
    """Statements for the elements of a tensor of ``shape`` (sizes, or symbols), whose places are ``at``."""

    def __init__(self, shape: Sequence[int | index.Int]) -> None:
        self.ranges = tuple(loop.Range(f"at{dim}", index.wrap(size)) for dim, size in enumerate(shape))
        self.at = [index.variable(r.var, r.size) for r in self.ranges]
        self.body: list[loop.Stmt] = []

    def _named(self, make: Callable[[str], loop.Stmt]) -> str:
        name = f"v{len(self.body)}"
        self.body.append(make(name))
        return name

    def place(self, expression: index.Int) -> str:
        return self._named(lambda to: loop.Index(to, expression))

    def const(self, value: bool | float, dtype: torch.dtype) -> str:
        return self._named(lambda to: loop.Const(to, value, dtype))

    def scalar(self, symbol: str, dtype: torch.dtype) -> str:
        return self._named(lambda to: loop.Scalar(to, symbol, dtype))

    def load(self, param: str, place: index.Int, dtype: torch.dtype, mask: str | None = None, other: str | None = None) -> str:
        return self._named(lambda to: loop.Load(to, param, place, dtype, mask, other))

    def compute(self, dtype: torch.dtype, op: str, *args: str) -> str:
        return self._named(lambda to: loop.Compute(to, op, args, dtype))

    def finish(
        self,
        value: str,
        dtype: torch.dtype,
        buffers: Sequence[Tensor] = (),
        numbers: Mapping[loop.Symbol, int | float] | None = None,
    ) -> Computed:
        """The tensor of which ``value`` is the element."""
        numbers = numbers or {}
        known = {symbol.name: number for symbol, number in numbers.items()}
        place = index.ZERO
        for r, at in zip(self.ranges, self.at, strict=True):
            place = place * r.size + at
        params = [loop.Param(f"in{n}", each.dtype, index.wrap(each.numel()), "in") for n, each in enumerate(buffers)]
        params.append(loop.Param("out0", dtype, index.product([r.size for r in self.ranges]), "out"))
        nest = loop.Nest(self.ranges, (*self.body, loop.Store("out0", place, value)))
        loops = LoopKernel("mask_of_places", tuple(params), tuple(numbers), (nest,))
        shape = tuple(index.evaluate(r.size, known) for r in self.ranges)
        return Computed(loops, shape, dtype, tuple(buffers), tuple(numbers.values()))  # type: ignore[arg-type]


def dense(mask: Computed) -> Tensor:
    """A mask in memory."""
    device = mask.buffers[0].device if mask.buffers else "cpu"
    out = torch.empty(mask.shape, dtype=mask.dtype)
    interpret(mask.loops, [*(b.cpu().flatten() for b in mask.buffers), out.view(-1)], mask.numbers)
    return out.to(device)


def slopes(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """A slope for each head, from memory."""
    b = Body((batch, heads, rows, keys))
    distance = b.compute(FLOAT, "convert", b.place(b.at[3] - b.at[2]))
    product = b.compute(FLOAT, "mul", b.load("in0", b.at[1], FLOAT), distance)
    given = b.compute(FLOAT, "where", b.const(True, BOOL), product, b.const(-math.inf, FLOAT))
    return b.finish(given, FLOAT, [2.0 ** -torch.arange(1.0, heads + 1)])


def slopes_of_places(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """The same without memory, and halves."""
    b = Body((batch, heads, rows, keys))
    exponent = b.compute(FLOAT, "mul", b.compute(FLOAT, "convert", b.place(b.at[1] + 1)), b.const(-0.5, FLOAT))
    distance = b.compute(FLOAT, "convert", b.place(b.at[3] - b.at[2]))
    product = b.compute(FLOAT, "mul", b.compute(FLOAT, "exp2", exponent), distance)
    return b.finish(b.compute(torch.bfloat16, "convert", product), torch.bfloat16)


def documents(batch: int, heads: int, rows: int, keys: int, *, reach: int = 40, document: int = 90) -> Computed:
    """A window inside of documents, whose numbers are in memory; the same for all heads."""
    b = Body((batch, 1, rows, keys))
    past = b.compute(BOOL, "ge", b.place(b.at[2]), b.place(b.at[3]))
    near = b.compute(BOOL, "le", b.place(b.at[2] - b.at[3]), b.const(reach, LONG))
    own = b.load("in0", b.at[0] * max(rows, keys) + b.at[2], LONG)
    same = b.compute(BOOL, "eq", own, b.load("in0", b.at[0] * max(rows, keys) + b.at[3], LONG))
    numbers = torch.stack([(torch.arange(max(rows, keys)) + 7 * n) // document for n in range(batch)])
    return b.finish(b.compute(BOOL, "bitand", b.compute(BOOL, "bitand", past, near), same), BOOL, [numbers])


def both_ways(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """A window to both sides and some first keys; between documents a part of these: what bounds know of each operation."""
    b = Body((batch, 1, rows, keys))
    distance = b.place(b.at[2] - b.at[3])
    sum_ = b.compute(LONG, "sub", distance, b.compute(LONG, "neg", b.compute(LONG, "add", distance, b.const(-3, LONG))))
    near = b.compute(BOOL, "bitnot", b.compute(BOOL, "gt", b.compute(LONG, "abs", sum_), b.const(90, LONG)))
    first = b.compute(BOOL, "lt", b.place(b.at[3]), b.const(5, LONG))
    few = b.compute(BOOL, "eq", b.place(b.at[3] - b.at[2] % 2), b.const(1, LONG))
    own = b.load("in0", b.at[0] * max(rows, keys) + b.at[2], LONG)
    other = b.compute(BOOL, "ne", own, b.load("in0", b.at[0] * max(rows, keys) + b.at[3], LONG))
    seen = b.compute(BOOL, "where", other, few, b.compute(BOOL, "bitor", near, first))
    numbers = torch.stack([(torch.arange(max(rows, keys)) + 7 * n) // 100 for n in range(batch)])
    return b.finish(seen, BOOL, [numbers])


def far(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """Numbers that differ from head to head inside a window, minus infinity elsewhere: of no position, and of a row's end."""
    b = Body((1, heads, rows, keys))
    distance = b.place(b.at[2] - b.at[3])
    hidden = b.compute(BOOL, "lt", distance, b.const(-30, LONG))
    near = b.compute(BOOL, "le", distance, b.const(60, LONG))
    some = b.compute(BOOL, "ne", b.place(b.at[2]), b.const(rows // 2, LONG))
    slope = b.compute(FLOAT, "convert", b.place(b.at[1] + 1))
    size = b.compute(FLOAT, "mul", b.compute(FLOAT, "convert", distance), b.const(-0.01, FLOAT))
    none = b.const(-math.inf, FLOAT)
    zero = b.const(0.0, FLOAT)
    added = b.compute(FLOAT, "where", b.compute(BOOL, "bitand", near, some), zero, none)
    given = b.compute(FLOAT, "add", b.compute(FLOAT, "mul", slope, size), added)
    given = b.compute(FLOAT, "where", hidden, none, given)
    return b.finish(b.compute(torch.bfloat16, "convert", given), torch.bfloat16)


def flat(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """Bools for each row and key alone."""
    b = Body((rows, keys))
    seen = b.compute(BOOL, "ge", b.place(b.at[0] // 16), b.place(b.at[1] // 16))
    return b.finish(seen, BOOL)


def padded(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """Numbers for each head from memory that has fewer of them than there are keys, from a row on."""
    b = Body((heads, rows, keys))
    inside = b.compute(BOOL, "lt", b.place(b.at[2]), b.const(keys // 2, LONG))
    later = b.compute(BOOL, "gt", b.place(b.at[1]), b.const(rows // 3, LONG))
    there = b.compute(BOOL, "bitand", inside, later)
    value = b.load("in0", b.at[0] * (keys // 2) + b.at[2], FLOAT, there, b.const(-0.5, FLOAT))
    return b.finish(value, FLOAT, [torch.randn(heads * (keys // 2))])


def numbers(batch: int, heads: int, rows: int, keys: int) -> Computed:
    """Of sizes, a whole number and a float that only the call knows."""
    size, other = (loop.Symbol(name, lower=2) for name in ("s27", "s31"))
    reach, slope = loop.Symbol("reach", LONG, "scalar"), loop.Symbol("slope", torch.float64, "scalar")
    b = Body((batch, 1, index.symbol("s27", 2), index.symbol("s31", 2)))
    last = index.symbol("s27", 2) - 1
    near = b.compute(BOOL, "lt", b.place(last - b.at[2] - b.at[3]), b.scalar("reach", LONG))
    steep = b.compute(FLOAT, "convert", b.scalar("slope", torch.float64))
    given = b.compute(FLOAT, "mul", steep, b.compute(FLOAT, "convert", b.place(b.at[3])))
    given = b.compute(FLOAT, "where", near, given, b.const(-math.inf, FLOAT))
    return b.finish(given, FLOAT, (), {size: rows, other: keys, reach: 20, slope: -0.03125})
