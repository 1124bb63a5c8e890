"""What windows slide over, with an edge of what lies beyond it, copied into a buffer of one iteration first.

Windows of many elements ask of each whether it lies inside of an image: 49 comparisons and masks for a result of a 7x7
convolution. Of a copy with a halo, as wide as windows reach over the edge, they read every element as it is; what was computed
of an element before it enters products is computed once, too, instead of in each window that it is in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.contraction import needed
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Compute, Const, Index, Load, Local, Nest, Param, Range, Reduce, Scalar, Stmt, Store, makes, reads
from vendor_sdk.ir.ranges import renamed
from vendor_sdk.lower.copies import Leaf


@dataclass(frozen=True)
class _Dimension:
    """One dimension of an image: element ``place`` is what window element ``within`` of result ``result`` reads.

    Attributes:
        low: the first place that a window reads; below zero in the halo.
        count: of places, the halo's included.
        step: how far apart results read. Places that far from each other lie side by side in the copy.
    """

    place: Int
    result: Range
    within: Range
    low: int
    count: int
    step: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the copy."""
        return (self.count,) if self.step == 1 else (self.step, -(-self.count // self.step))

    @property
    def digits(self) -> tuple[Int, ...]:
        """Where the copy has ``place``."""
        at = self.place - self.low
        return (at,) if self.step == 1 else (ix.mod(at, ix.wrap(self.step)), ix.floordiv(at, ix.wrap(self.step)))

    def place_of(self, *digits: Int) -> Int:
        """What lies at these digits of the copy."""
        return self.low + (digits[0] if self.step == 1 else digits[1] * self.step + digits[0])

    def moved(self, place: Int) -> dict[str, Int]:
        """Loop variables, and what stands for them where this place is meant."""
        one, other = self.result.var, self.within.var
        if ix.stride(self.place, one) != 1:
            one, other = other, one
        rest = ix.substitute(self.place, {one: 0, other: 0})
        return {one: place - rest, other: ix.ZERO}


def _constants(body: Sequence[Stmt]) -> list[Stmt]:
    """Statements of a body that follow from constants alone."""
    found: dict[str, Stmt] = {}
    for s in body:
        if isinstance(s, Const | Scalar) or (isinstance(s, Compute) and found.keys() >= {*s.args}):
            found[s.to] = s
    return [*found.values()]


def _flat(digits: Sequence[Int], ranges: Sequence[Range]) -> Int:
    position = ix.ZERO
    for digit, r in zip(digits, ranges, strict=True):
        position = position * r.size + digit
    return position


def staged(nest: Nest, lanes: Range, limits: Limits) -> Nest | None:
    """A nest, whose only loop sums over windows, around a copy with a halo and a nest of those sums; None where it does not
    fit, where windows mask nothing, or where they do not slide along ``lanes``, whose neighbours lie side by side."""
    windows = [s for s in nest.body if isinstance(s, Reduce)]
    if len(windows) != 1 or not all(isinstance(s, Leaf) for s in windows[0].body):
        return None
    (window,) = windows
    around = _constants(nest.body)
    masked = [s for s in window.body if isinstance(s, Load) and s.mask]
    if len(masked) != 1:
        return None
    (load,) = masked
    dimensions = _dimensions(nest, window, load, around)
    if all(d.result != lanes for d in dimensions):
        return None
    taken = {d.result for d in dimensions}
    outer = tuple(r for r in nest.ranges if r not in taken)
    others = {name for s in nest.body if s not in around for name in makes(s)}
    found = _last_of_its_own(load, window, around, others)
    if found is None:
        return None
    value, cone = found
    size = ix.product(ix.wrap(size) for d in dimensions for size in d.sizes)
    param = Param(f"{load.to}_halo", value.dtype, size, "local")
    if not outer or size.value is None or size.value * value.dtype.itemsize > limits.local_bytes:
        return None
    # The copy
    loops = [[Range(f"{load.to}_h{n}_{k}", ix.wrap(size)) for k, size in enumerate(d.sizes)] for n, d in enumerate(dimensions)]
    places = [d.place_of(*(ix.variable(r.var, r.size) for r in each)) for d, each in zip(dimensions, loops, strict=True)]
    moved = {r.var: ix.ZERO for r in window.ranges}
    for d, place in zip(dimensions, places, strict=True):
        moved.update(d.moved(place))
    names = {s.to: f"{s.to}_h" for s in cone}
    mask, ends = _before_the_end(names[load.mask or ""], dimensions, places, load.to)
    copy: list[Stmt] = []
    for s in cone:
        made = renamed(s, names, moved)
        copy += [*ends, replace(made, mask=mask)] if isinstance(made, Load) else [made]
    ranges = tuple(r for each in loops for r in each)
    filled = Nest(
        ranges, (*copy, Store(param.name, _flat([ix.variable(r.var, r.size) for r in ranges], ranges), names[value.to]))
    )
    # The windows
    position = _flat([digit for d in dimensions for digit in d.digits], ranges)
    read = Load(value.to, param.name, position, value.dtype)
    body = tuple(read if s is value else s for s in window.body)
    wanted = {name for a in window.accumulators for name in a.args}
    summed = replace(window, body=needed(body, wanted))
    inner = Nest(tuple(r for r in nest.ranges if r in taken), tuple(summed if s is window else s for s in nest.body))
    return Nest(outer, (Local(param), filled, inner))


def _before_the_end(mask: str, dimensions: Sequence[_Dimension], places: Sequence[Int], name: str) -> tuple[str, list[Stmt]]:
    """A mask of what windows read, which ends where a step has more places than that; and what computes it from ``mask``."""
    found: list[Stmt] = []
    for n, (d, place) in enumerate(zip(dimensions, places, strict=True)):
        if d.count % d.step:
            at, end, inside, both = (f"{name}_h{n}_{each}" for each in ("at", "end", "inside", "mask"))
            found += [Index(at, place - d.low), Const(end, d.count, torch.int64)]
            found += [Compute(inside, "lt", (at, end), torch.bool), Compute(both, "bitand", (mask, inside), torch.bool)]
            mask = both
    return mask, found


def _dimensions(nest: Nest, window: Reduce, load: Load, around: Sequence[Stmt]) -> list[_Dimension]:
    """The dimensions that a load's mask asks about, if they are all that loops of the window and their results walk along."""
    body = [*around, *window.body]
    cone = needed(body, (load.mask or "",))
    if not all(isinstance(s, Const | Index) or (isinstance(s, Compute) and s.op in ("bitand", "ge", "lt")) for s in cone):
        return []
    found: list[_Dimension] = []
    for place in dict.fromkeys(s.index for s in cone if isinstance(s, Index)):
        dimension = _dimension(place, nest, window)
        if dimension is None:
            return []
        found.append(dimension)
    results, within = ([getattr(d, name) for d in found] for name in ("result", "within"))
    if len({*results}) < len(found) or len({*within}) < len(found) or any(r.size != 1 for r in {*window.ranges} - {*within}):
        return []
    rest = load.index
    for d in found:
        step, along = ix.stride(rest, d.result.var), ix.stride(d.place, d.result.var)
        if step is None or along is None or not along.value or step.value is None or step.value % along.value:
            return []
        rest = rest - d.place * (step.value // along.value)
    variables = {r.var for d in found for r in (d.result, d.within)}
    return [] if ix.symbols(rest).keys() & variables else found


def _dimension(place: Int, nest: Nest, window: Reduce) -> _Dimension | None:
    symbols = ix.symbols(place).keys()
    results = [r for r in nest.ranges if r.var in symbols]
    within = [r for r in window.ranges if r.var in symbols]
    if len(results) != 1 or len(within) != 1:
        return None
    steps = [step.value if (step := ix.stride(place, r.var)) is not None else None for r in (results[0], within[0])]
    first = ix.substitute(place, {results[0].var: 0, within[0].var: 0}).value
    sizes = [r.size.value for r in (results[0], within[0])]
    if first is None or 1 not in steps:
        return None
    reach = [(size - 1) * step for size, step in zip(sizes, steps, strict=True) if size and step]
    if len(reach) != 2:
        return None
    low = first + sum(min(0, each) for each in reach)
    count = first + sum(max(0, each) for each in reach) - low + 1
    return _Dimension(place, results[0], within[0], low, count, abs(steps[0] or 1))


def _last_of_its_own(
    load: Load, window: Reduce, around: Sequence[Stmt], others: Collection[str]
) -> tuple[Leaf, tuple[Leaf, ...]] | None:
    """The last value that follows from ``load``, from no other memory and none of ``others``, and what it needs."""
    body = [*around, *window.body]
    best: tuple[Leaf, tuple[Leaf, ...]] | None = None
    for s in window.body:
        if isinstance(s, Load | Compute):
            cone = tuple(each for each in needed(body, (s.to,)) if isinstance(each, Leaf))
            own = [each for each in cone if isinstance(each, Load)] == [load]
            if own and not any(name in others for each in cone for name in reads(each)):
                best = s, cone
    return best
