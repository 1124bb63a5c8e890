"""Indexing and scattering: loads and stores whose index is itself loaded.

Index tensors may be negative as in Python; a value out of range makes the launch raise ``IndexError``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Param, StoreMode
from vendor_sdk.ir.loop_ops import HALVES
from vendor_sdk.lower.build import Argument, Builder, Lowering, Value, is_tensor, opmath
from vendor_sdk.lower.copy import all_of, copy, inside
from vendor_sdk.lower.pointwise import truth
from vendor_sdk.lower.view import flatten, normalised, unflatten


def indirect(k: Builder, source: Argument, at: Sequence[Int], size: Int) -> Int:
    """A value of an index tensor as an index below ``size``."""
    value = k.convert(k.load(source, tuple(at)), torch.int64)
    wrapped = k.compute("wrap_index", value, k.index(size))
    return k.as_index(wrapped, 0, size)


def _broadcast(k: Builder, shapes: Sequence[tuple[Int, ...]]) -> tuple[Int, ...]:
    rank = max((len(s) for s in shapes), default=0)
    sizes: list[Int] = [ix.ONE] * rank
    for shape in shapes:
        for position, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                sizes[position] = size
    return tuple(sizes)


class Advanced:
    """How ``self[indices]`` lays out its result: broadcast index dimensions stand where the indices do when they are adjacent,
    else in front."""

    def __init__(self, k: Builder, source: Argument, indices: Sequence[Argument]) -> None:
        self.k, self.source = k, source
        self.shape = k.shape(source)
        self.indices = {d: t for d, t in enumerate(indices) if t is not None}
        for t in self.indices.values():
            if k.dtype(t) in (torch.bool, torch.uint8):
                raise k.fail("a mask as an index: the result's size depends on data")
        self.wide = _broadcast(k, [k.shape(t) for t in self.indices.values()])
        dims = sorted(self.indices)
        adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
        self.front = dims[0] if adjacent else 0
        self.others = [d for d in range(len(self.shape)) if d not in self.indices]
        rest = [self.shape[d] for d in self.others]
        self.result = (*rest[: self.front], *self.wide, *rest[self.front :])

    def at(self, i: Sequence[Int]) -> tuple[Int, ...]:
        """Index in ``source`` of element ``i`` of the result."""
        along = tuple(i[self.front : self.front + len(self.wide)])
        rest = (*i[: self.front], *i[self.front + len(self.wide) :])
        place = dict(zip(self.others, rest, strict=True))
        for d, t in self.indices.items():
            place[d] = indirect(self.k, t, self.k.broadcast(self.k.shape(t), along), self.shape[d])
        return tuple(place[d] for d in range(len(self.shape)))


def _index(k: Builder) -> None:
    access = Advanced(k, k.args["self"], k.args["indices"])
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.load(k.args["self"], access.at(i)))


def _index_put(k: Builder) -> None:
    source, values = k.args["self"], k.args["values"]
    access = Advanced(k, source, k.args["indices"])
    mode: StoreMode = "add" if k.args.get("accumulate") else "set"
    _sums(k, mode)
    copy(k, source)
    with k.nest(access.result) as i:
        target = access.at(i)
        value = k.load(values, k.broadcast(k.shape(values), i))
        _combine(k, target, value, mode)


def _sums(k: Builder, mode: StoreMode) -> None:
    if mode != "set":
        k.accumulate(0)


_LOGICAL: Mapping[StoreMode, StoreMode] = {"add": "max", "mul": "min"}


def _combine(k: Builder, target: Sequence[Int], value: Value, mode: StoreMode) -> None:
    if k.outputs[0].dtype == torch.bool:
        # A sum of bools is their disjunction, a product their conjunction.
        mode = _LOGICAL.get(mode, mode)
    k.store(0, target, value, mode)


def _along(k: Builder, source: Argument) -> tuple[int, tuple[Int, ...]]:
    """The ``dim`` argument, and the source's shape; both as if a 0-d tensor had one dimension of size one."""
    shape = k.shape(source)
    return (k.args["dim"] % len(shape) if shape else 0), shape


def _gather(k: Builder) -> None:
    source, positions = k.args["self"], k.args["index"]
    dim, shape = _along(k, source)
    with k.nest(k.outputs[0].shape) as i:
        at = _at_rank(k, positions, i)
        where = indirect(k, positions, at, shape[dim] if shape else ix.ONE)
        k.store(0, i, k.load(source, (*i[:dim], where, *i[dim + 1 :]) if shape else ()))


def _at_rank(k: Builder, tensor: Argument, i: Sequence[Int]) -> tuple[Int, ...]:
    return tuple(i) if k.shape(tensor) else ()


def _index_select(k: Builder) -> None:
    source, positions = k.args["self"], k.args["index"]
    dim, shape = _along(k, source)
    with k.nest(k.outputs[0].shape) as i:
        at = (i[dim],) if k.shape(positions) and i else (ix.ZERO,) * len(k.shape(positions))
        where = indirect(k, positions, at, shape[dim] if shape else ix.ONE)
        k.store(0, i, k.load(source, (*i[:dim], where, *i[dim + 1 :]) if shape else ()))


def _scatter(mode: StoreMode, value: str) -> Lowering:
    def lowering(k: Builder) -> None:
        _sums(k, mode)
        copy(k, k.args["self"])
        source = k.args[value]
        if is_tensor(source):
            _scatter_into(k, mode, lambda i, dtype: k.load(source, i if k.shape(source) else ()))
        else:
            _scatter_into(k, mode, lambda i, dtype: k.operand(source, (), dtype))

    return lowering


def _scatter_into(k: Builder, mode: StoreMode, value: Callable[[tuple[Int, ...], torch.dtype], Value]) -> None:
    dim, shape = _along(k, k.args["self"])
    positions = k.args["index"]
    dtype = k.outputs[0].dtype
    with k.nest(k.shape(positions)) as i:
        where = indirect(k, positions, i, shape[dim] if shape else ix.ONE)
        target = (*i[:dim], where, *i[dim + 1 :]) if shape else ()
        _combine(k, target, value(i, dtype), mode)


_REDUCE: Mapping[str, StoreMode] = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter_reduce(k: Builder) -> None:
    reduce = k.args["reduce"]
    if reduce == "mean":
        _scatter_mean(k)
        return
    if reduce not in _REDUCE:
        raise k.fail(f"reduce='{reduce}'")
    mode = _REDUCE[reduce]
    _sums(k, mode)
    copy(k, k.args["self"])
    if not k.args.get("include_self", True):
        start = _identity(mode, k.outputs[0].dtype)
        _scatter_into(k, "set", lambda i, dtype: k.const(start, dtype))
    _scatter_into(k, mode, lambda i, dtype: k.load(k.args["src"], i))


def _scatter_mean(k: Builder) -> None:
    """A sum and a count of each position's values, then their quotient, rounded down for integers."""
    source, src, positions = k.args["self"], k.args["src"], k.args["index"]
    result, include = k.outputs[0], k.args.get("include_self", True)
    if result.dtype == torch.bool:
        raise k.fail("a mean of bools")
    dtype = opmath(result.dtype)
    total, count = k.buffer(ix.product(result.shape), dtype), k.buffer(ix.product(result.shape), torch.int64)
    with k.nest(result.shape) as i:
        at = flatten(i, result.shape)
        k.store_buffer(total, at, k.convert(k.load(source, i), dtype) if include else k.const(0, dtype))
        k.store_buffer(count, at, k.const(1 if include else 0, torch.int64))
    dim, shape = _along(k, source)
    with k.nest(k.shape(positions)) as i:
        where = indirect(k, positions, i, shape[dim] if shape else ix.ONE)
        at = flatten((*i[:dim], where, *i[dim + 1 :]) if shape else (), shape)
        k.store_buffer(total, at, k.convert(k.load(src, i if k.shape(src) else ()), dtype), "add")
        k.store_buffer(count, at, k.const(1, torch.int64), "add")
    with k.nest(result.shape) as i:
        at = flatten(i, result.shape)
        found, sum_ = k.load_buffer(count, at), k.load_buffer(total, at)
        none = k.compute("eq", found, k.const(0, torch.int64))
        divisor = k.convert(k.compute("max", found, k.const(1, torch.int64)), dtype)
        mean = k.compute("div" if dtype.is_floating_point else "floordiv", sum_, divisor)
        k.store(0, i, k.compute("where", none, k.convert(k.load(source, i), dtype), mean))


def _identity(mode: StoreMode, dtype: torch.dtype) -> float | int:
    if mode in ("add", "mul"):
        return 0 if mode == "add" else 1
    if dtype == torch.bool:
        return mode == "min"
    if dtype.is_floating_point:
        return float("-inf") if mode == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if mode == "max" else info.max


def _slice_scatter(k: Builder) -> None:
    source, src = k.args["self"], k.args["src"]
    shape = k.shape(source)
    dim = k.args["dim"] % len(shape)
    start = normalised(k, k.args["start"], shape[dim], ix.ZERO)
    step = k.size(k.args["step"])
    inner = k.shape(src)
    with k.nest(shape) as i:
        distance = i[dim] - start
        place = distance // step
        conditions = inside(k, place, inner[dim])
        if distance % step != 0:
            conditions.append(k.compute("eq", k.index(distance % step), k.const(0, torch.int64)))
        mask = all_of(k, conditions)
        k.store(0, i, k.load(src, (*i[:dim], place, *i[dim + 1 :]), mask, k.load(source, i) if mask else 0))


def _diagonal_scatter(k: Builder) -> None:
    source, src = k.args["self"], k.args["src"]
    copy(k, source)
    shape = k.shape(source)
    first, second = k.args["dim1"] % len(shape), k.args["dim2"] % len(shape)
    offset = k.integer(k.args["offset"])
    with k.nest(k.shape(src)) as i:
        others = iter(i[:-1])
        place = {first: i[-1] + max(-offset, 0), second: i[-1] + max(offset, 0)}
        target = tuple(place[d] if d in place else next(others) for d in range(len(shape)))
        k.store(0, target, k.load(src, i))


def _as_strided_scatter(k: Builder) -> None:
    source, src = k.args["self"], k.args["src"]
    copy(k, source)
    with k.nest(k.shape(src)) as i:
        flat = k.size(k.args["storage_offset"] or 0)
        for position, step in zip(i, k.args["stride"], strict=True):
            flat = flat + position * k.size(step)
        k.store_flat(0, flat, k.load(src, i))


def _masked_scatter(k: Builder) -> None:
    source, mask, values = k.args["self"], k.args["mask"], k.args["source"]
    shape = k.outputs[0].shape
    count = ix.product(shape)
    available = k.shape(values)
    with k.nest(()):

        def step(r: Int) -> list[tuple[str, Value]]:
            at = unflatten(r, shape)
            chosen = k.load(mask, k.broadcast(k.shape(mask), at))
            return [("sum", k.convert(truth(k, chosen), torch.int64))]

        def then(r: Int, running: tuple[Value, ...]) -> None:
            at = unflatten(r, shape)
            chosen = truth(k, k.load(mask, k.broadcast(k.shape(mask), at)))
            order = k.as_index(running[0]) - 1
            kept = k.load(source, k.broadcast(k.shape(source), at))
            k.store(0, at, k.load(values, unflatten(order, available), chosen, kept))

        k.scan(count, step, then)


def _nonzero_static(k: Builder) -> None:
    source = k.args["self"]
    shape = k.shape(source)
    limit, rank = k.outputs[0].shape
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.operand(k.args["fill_value"], (), torch.int64))
    if not shape:
        return

    def nonzero(at: tuple[Int, ...]) -> Value:
        value = k.load(source, at)
        return truth(k, k.convert(value, opmath(value.dtype)))

    with k.nest(()):

        def step(r: Int) -> list[tuple[str, Value]]:
            return [("sum", k.convert(nonzero(unflatten(r, shape)), torch.int64))]

        def then(r: Int, running: tuple[Value, ...]) -> None:
            at = unflatten(r, shape)
            fits = k.compute("le", running[0], k.index(limit))
            chosen = k.compute("bitand", fits, nonzero(at))
            row = k.as_index(running[0]) - 1
            for dim, position in enumerate(at):
                k.store(0, (row, ix.wrap(dim)), k.index(position), "set", chosen)

        k.scan(ix.product(shape), step, then)
    assert rank.value == len(shape)


EACH = 4
"""Rows of a table for each pair of positions from which on a table of sums costs more than comparing all positions."""


def _embedding_dense_backward(k: Builder) -> None:
    gradient, positions = k.args["grad_output"], k.args["indices"]
    rows, width = k.outputs[0].shape
    dtype = opmath(k.outputs[0].dtype)
    count = ix.product(k.shape(positions)).value
    # Sums of halves would go through a table of float32, twice as large as the result.
    compared = k.outputs[0].dtype in HALVES and count is not None and ix.nonnegative(rows * EACH - count * count)
    if not compared:
        _sums(k, "add")
    frequency = _frequency(k, positions, rows) if k.args.get("scale_grad_by_freq") else None
    padding = k.integer(k.args["padding_idx"])
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.const(0, k.outputs[0].dtype))
    shape = k.shape(positions)

    def place(at: tuple[Int, ...]) -> tuple[Value, Value]:
        """The index at a position, as it is and as a row."""
        index = k.convert(k.load(positions, at), torch.int64)
        return index, k.compute("wrap_index", index, k.index(rows))

    with k.nest((*shape, width)) as i:
        index, place_ = place(i[:-1])
        mask = k.compute("ne", index, k.const(padding, torch.int64)) if padding >= 0 else None
        row = k.as_index(place_, 0, rows)

        def part(at: tuple[Int, ...], same: Value | None = None) -> Value:
            value = k.load(gradient, (*at, i[-1]), same)
            if frequency is None:
                return value
            return k.compute("div", k.convert(value, dtype), k.convert(k.load_buffer(frequency, row), dtype))

        if compared:

            def element(r: tuple[Int, ...]) -> Value:
                return k.convert(part(r, k.compute("eq", place(r)[1], place_)), dtype)

            # Positions that name one row store the same sum there.
            k.store(0, (row, i[-1]), k.reduce1(shape, "sum", element), "set", mask)
        else:
            k.store(0, (row, i[-1]), part(i[:-1]), "add", mask)


def _frequency(k: Builder, positions: Argument, rows: Int) -> Param:
    """How often each row is named."""
    counts = k.buffer(rows, torch.int64)
    with k.nest((rows,)) as (i,):
        k.store_buffer(counts, i, k.const(0, torch.int64))
    with k.nest(k.shape(positions)) as i:
        k.store_buffer(counts, indirect(k, positions, i, rows), k.const(1, torch.int64), "add")
    return counts


def _histc(k: Builder) -> None:
    source = k.args["self"]
    shape = k.shape(source)
    whole_numbers = not k.dtype(source).is_floating_point
    dtype = torch.int64 if whole_numbers else opmath(k.dtype(source))
    _sums(k, "add")
    (bins,) = k.outputs[0].shape
    with k.nest((bins,)) as i:
        k.store(0, i, k.const(0, k.outputs[0].dtype))
    with k.nest(()):
        first, last = k.args["min"], k.args["max"]
        low, high = (k.operand(n, (), dtype) for n in (first, last))
        given = isinstance(first, (int, float)) and isinstance(last, (int, float))
        if not given or first == last:
            if ix.product(shape) == 0:
                return

            def both(r: tuple[Int, ...]) -> list[tuple[str, Value]]:
                value = k.convert(k.load(source, r), dtype)
                return [("min", value), ("max", value)]

            found_low, found_high = k.reduce(shape, both)
            assert isinstance(found_low, Value)
            assert isinstance(found_high, Value)
            # Equal bounds are those of the data.
            same = k.compute("eq", low, high)
            low, high = k.compute("where", same, found_low, low), k.compute("where", same, found_high, high)
            # A single value gets a bin of width two around it.
            same = k.compute("eq", low, high)
            one = k.const(1, dtype)
            low = k.compute("where", same, k.compute("sub", low, one), low)
            high = k.compute("where", same, k.compute("add", high, one), high)
        with k.nest(shape) as i:
            value = k.convert(k.load(source, i), dtype)
            above, width, count = k.compute("sub", value, low), k.compute("sub", high, low), k.convert(k.index(bins), dtype)
            if whole_numbers:  # which torch has on CUDA alone
                number = k.compute("truncdiv", k.compute("mul", above, count), width)
            else:
                number = k.compute("mul", k.compute("div", above, width), count)
            known = k.compute("bitand", k.compute("ge", value, low), k.compute("le", value, high))
            safe = k.compute("where", known, number, k.const(0, dtype))
            whole = k.compute("min", k.convert(safe, torch.int64), k.index(bins - 1))
            place = k.as_index(whole, 0, bins)
            k.store(0, (place,), k.const(1, k.outputs[0].dtype), "add", known)


LOWERINGS: Mapping[str, Lowering] = {
    "index": _index,
    "index_put": _index_put,
    "index_select": _index_select,
    "gather": _gather,
    "scatter.src": _scatter("set", "src"),
    "scatter.value": _scatter("set", "value"),
    "scatter_add": _scatter("add", "src"),
    "scatter_reduce": _scatter_reduce,
    "slice_scatter": _slice_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "as_strided_scatter": _as_strided_scatter,
    "masked_scatter": _masked_scatter,
    "nonzero_static": _nonzero_static,
    "embedding_dense_backward": _embedding_dense_backward,
    "histc": _histc,
}
