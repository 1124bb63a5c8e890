"""Pooling over windows, two- and three-dimensional, forward and backward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Argument, Builder, Lowering, Value, opmath
from vendor_sdk.lower.copy import all_of, inside
from vendor_sdk.lower.view import flatten

_BIG = 2**62
WRITTEN_OUT = 16
"""Elements up to which a window is written out rather than looped over."""


class Window:
    """Sliding windows over the last ``n`` dimensions."""

    def __init__(self, k: Builder, n: int, source: Argument) -> None:
        self.k, self.n = k, n
        self.shape = k.shape(source)
        self.spatial = self.shape[len(self.shape) - n :]
        self.batch = self.shape[: len(self.shape) - n]
        self.kernel = self._each("kernel_size", 1)
        self.stride = self._each("stride", None) or self.kernel
        self.padding = self._each("padding", 0)
        self.dilation = self._each("dilation", 1)

    def _each(self, name: str, default: int | None) -> tuple[int, ...]:
        given = self.k.args.get(name)
        if given is None or (isinstance(given, list | tuple) and not given):
            return () if default is None else (default,) * self.n
        values = [given] if isinstance(given, int) else list(given)
        if len(values) == 1:
            values = values * self.n
        return tuple(self.k.integer(v) for v in values)

    @property
    def sizes(self) -> tuple[Int, ...]:
        return tuple(ix.wrap(size) for size in self.kernel)

    def at(self, o: Sequence[Int], r: Sequence[Int]) -> tuple[Int, ...]:
        """Position in the input of offset ``r`` of the window of output position ``o``; may lie in the padding."""
        return tuple(
            out * s - p + off * d for out, off, s, p, d in zip(o, r, self.stride, self.padding, self.dilation, strict=True)
        )

    def valid(self, position: Sequence[Int]) -> Value | None:
        conditions = [c for p, size in zip(position, self.spatial, strict=True) for c in inside(self.k, p, size)]
        return all_of(self.k, conditions)

    def divisor(self, o: Sequence[Int], dtype: torch.dtype) -> Value:
        """What an average pool divides by at output position ``o``."""
        k = self.k
        override = k.args.get("divisor_override")
        if override is not None:
            return k.operand(override, (), dtype)
        total = ix.ONE
        for out, size, extent, s, p in zip(o, self.spatial, self.kernel, self.stride, self.padding, strict=True):
            begin = out * s - p
            if k.args.get("count_include_pad", True):
                # Padding counts, but not what lies beyond it (ceil_mode).
                total = total * (ix.minimum(begin + extent, size + p) - begin)
            else:
                total = total * (ix.minimum(begin + extent, size) - ix.maximum(begin, 0))
        return k.const(total.value, dtype) if total.value is not None else k.convert(k.index(total), dtype)


def _average(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["self"]
        w = Window(k, n, source)
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, o = i[: len(i) - n], i[len(i) - n :]

            def element(r: tuple[Int, ...]) -> Value:
                position = w.at(o, r)
                return k.convert(k.load(source, (*lead, *position), w.valid(position)), dtype)

            total = k.reduce1(w.sizes, "sum", element)
            if dtype.is_floating_point:
                k.store(0, i, k.compute("div", total, w.divisor(o, dtype)))
            else:
                k.store(0, i, k.compute("truncdiv", total, w.divisor(o, dtype)))

    return lowering


def _average_backward(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        gradient, source = k.args["grad_output"], k.args["self"]
        w = Window(k, n, source)
        out = k.shape(gradient)[len(w.batch) :]
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, position = i[: len(i) - n], i[len(i) - n :]

            def element(r: tuple[Int, ...]) -> Value:
                # Output o covers the position at offset r when o * stride == position + padding - r.
                conditions, o = [], []
                for place, offset, s, p, size in zip(position, r, w.stride, w.padding, out, strict=True):
                    reach = place + p - offset
                    if s != 1:
                        conditions.append(k.compute("eq", k.index(reach % s), k.const(0, torch.int64)))
                    conditions.extend(inside(k, reach // s, size))
                    o.append(reach // s)
                loaded = k.convert(k.load(gradient, (*lead, *o), all_of(k, conditions)), dtype)
                return k.compute("div", loaded, _nonzero(k, w.divisor(o, dtype)))

            k.store(0, i, k.reduce1(w.sizes, "sum", element))

    return lowering


def _nonzero(k: Builder, divisor: Value) -> Value:
    """Positions outside have meaningless divisors; a zero there would turn their zero gradient into NaN."""
    return k.compute("where", k.compute("eq", divisor, k.const(0, divisor.dtype)), k.const(1, divisor.dtype), divisor)


def _lowest(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _max(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["self"]
        w = Window(k, n, source)
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, o = i[: len(i) - n], i[len(i) - n :]

            def element(r: tuple[Int, ...]) -> tuple[Value, Value | None, Int]:
                position = w.at(o, r)
                mask = w.valid(position)
                value = k.load(source, (*lead, *position), mask, _lowest(k.dtype(source)))
                return k.convert(value, dtype), mask, flatten(position, w.spatial)

            best, place = _largest(k, w.kernel, element)
            k.store(0, i, best)
            k.store(1, i, place)

    return lowering


Element = tuple[Value, Value | None, Int]
"""Of a window: its value, in the padding the smallest there is; whether it is no padding (None: it never is); its place."""


def _largest(k: Builder, window: Sequence[int], element: Callable[[tuple[Int, ...]], Element]) -> tuple[Value, Value]:
    """The largest value of a window, NaN above all, and the first position that has it, in order; padding never wins, not even
    against elements as small as its value. A small window is written out, so that neighbouring windows run in the lanes of a
    vector and a position that nobody reads costs nothing."""
    offsets = [tuple(map(ix.wrap, offset)) for offset in itertools.product(*(range(size) for size in window))]
    if len(offsets) > WRITTEN_OUT:

        def numbered(r: tuple[Int, ...]) -> tuple[str, Value, Value]:
            value, mask, place = element(r)
            flat = k.index(place)
            return "argmax", value, flat if mask is None else k.compute("where", mask, flat, k.const(_BIG, torch.int64))

        (best,) = k.reduce([ix.wrap(size) for size in window], lambda r: [numbered(r)])
        assert isinstance(best, tuple)
        return best
    largest, seen, start = element(offsets[0])
    elements = [element(offset) for offset in offsets[1:]]
    # Places are told apart by how far they are from the first, which is a small number, the same for all windows.
    apart = [(place - start).value for _, _, place in elements]
    small = all(distance is not None and distance < 2**31 for distance in apart)
    distance = k.const(0, torch.int32) if small else k.const(0, torch.int64)
    for (value, mask, place), known in zip(elements, apart, strict=True):
        takes = k.compute("gt", value, largest)
        if value.dtype.is_floating_point:
            number = k.compute("eq", largest, largest)
            takes = k.compute("bitor", takes, k.compute("bitand", k.compute("ne", value, value), number))
        if seen is not None:
            first = k.compute("bitnot", seen)
            takes = k.compute("bitor", takes, first if mask is None else k.compute("bitand", first, mask))
            seen = None if mask is None else k.compute("bitor", seen, mask)
        there = k.index(place - start) if known is None or not small else k.const(known, torch.int32)
        largest, distance = k.compute("max", largest, value), k.compute("where", takes, there, distance)
    return largest, k.compute("add", k.index(start), k.convert(distance, torch.int64))


COVERING = 9
"""Windows over one position up to which its gradient is gathered from them; from more, they scatter it."""


def _max_backward(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        w = Window(k, n, k.args["self"])
        reach = [-(-((size - 1) * d + 1) // s) for size, d, s in zip(w.kernel, w.dilation, w.stride, strict=True)]
        if math.prod(reach) > COVERING:
            _scatter_gradient(k, n)
            return
        gradient, positions = k.args["grad_output"], k.args["indices"]
        dtype = opmath(k.outputs[0].dtype)
        outs = k.shape(gradient)[len(w.batch) :]
        with k.nest(k.outputs[0].shape) as i:
            lead, position = i[: len(i) - n], i[len(i) - n :]
            here = k.index(flatten(position, w.spatial))
            total = k.const(0, dtype)
            for offset in itertools.product(*(range(count) for count in reach)):
                o = [(at + p) // s - back for at, p, s, back in zip(position, w.padding, w.stride, offset, strict=True)]
                conditions = [c for window, count in zip(o, outs, strict=True) for c in inside(k, window, count)]
                mask = all_of(k, conditions + _reached(k, w, position, offset))
                hit = k.compute("eq", k.convert(k.load(positions, (*lead, *o), mask, None), torch.int64), here)
                value = k.convert(k.load(gradient, (*lead, *o), mask, None), dtype)
                hit = hit if mask is None else k.compute("bitand", hit, mask)
                total = k.compute("add", total, k.compute("where", hit, value, k.const(0, dtype)))
            k.store(0, i, k.convert(total, k.outputs[0].dtype))

    return lowering


def _reached(k: Builder, w: Window, position: Sequence[Int], back: Sequence[int]) -> list[Value]:
    """Conditions that a position is not behind the end of a window, the last that begins before it or one further ``back``:
    known, where the position's remainder by the stride is."""
    found = []
    for at, size, d, s, p, behind in zip(position, w.kernel, w.dilation, w.stride, w.padding, back, strict=True):
        left = (size - 1) * d + 1 - s * behind
        if left < s:
            found.append(k.compute("lt", k.index((at + p) % s), k.const(left, torch.int64)))
    return found


def _scatter_gradient(k: Builder, n: int) -> None:
    gradient, positions = k.args["grad_output"], k.args["indices"]
    dtype = k.outputs[0].dtype
    k.accumulate(0)
    shape = k.outputs[0].shape
    with k.nest(shape) as i:
        k.store(0, i, k.const(0, dtype))
    spatial = ix.product(shape[len(shape) - n :])
    with k.nest(k.shape(gradient)) as i:
        index = k.convert(k.load(positions, i), torch.int64)
        place = k.as_index(k.compute("wrap_index", index, k.index(spatial)), 0, spatial)
        base = flatten(i[: len(i) - n], shape[: len(shape) - n]) * spatial
        k.store_flat(0, base + place, k.load(gradient, i), "add")


def _adaptive_bounds(o: Int, size: Int, out: Int) -> tuple[Int, Int]:
    return o * size // out, ((o + 1) * size + out - 1) // out


def _adaptive_sizes(sizes: Sequence[Int], outs: Sequence[Int]) -> tuple[Int, ...]:
    """Largest window a dimension: one more than the quotient where the sizes do not divide."""
    return tuple(size // out if size % out == 0 else (size + out - 1) // out + 1 for size, out in zip(sizes, outs, strict=True))


def _covering(size: Int, out: Int) -> Int:
    """Windows that cover one position at most: one more than the quotient, rounded up, where the sizes do not divide."""
    return (out + size - 1) // size + (0 if size % out == 0 or out % size == 0 else 1)


def _adaptive_max(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["self"]
        shape = k.shape(source)
        spatial = shape[len(shape) - n :]
        outs = k.outputs[0].shape[len(shape) - n :]
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, o = i[: len(i) - n], i[len(i) - n :]
            bounds = [_adaptive_bounds(*t) for t in zip(o, spatial, outs, strict=True)]

            def element(r: tuple[Int, ...]) -> list[tuple[str, Value, Value]]:
                position = tuple(begin + offset for (begin, _), offset in zip(bounds, r, strict=True))
                conditions = [
                    k.compute("lt", k.index(p), k.index(end))
                    for p, (_, end) in zip(position, bounds, strict=True)
                    if not ix.less(p, end)
                ]
                mask = all_of(k, conditions)
                value = k.load(source, (*lead, *position), mask, _lowest(k.dtype(source)))
                flat = k.index(flatten(position, spatial))
                if mask is not None:
                    flat = k.compute("where", mask, flat, k.const(_BIG, torch.int64))
                return [("argmax", k.convert(value, dtype), flat)]

            (best,) = k.reduce(_adaptive_sizes(spatial, outs), element)
            assert isinstance(best, tuple)
            k.store(0, i, best[0])
            k.store(1, i, best[1])

    return lowering


def _adaptive_average(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["self"]
        shape = k.shape(source)
        spatial = shape[len(shape) - n :]
        outs = k.outputs[0].shape[len(shape) - n :]
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, o = i[: len(i) - n], i[len(i) - n :]
            bounds = [_adaptive_bounds(*t) for t in zip(o, spatial, outs, strict=True)]

            def element(r: tuple[Int, ...]) -> Value:
                position = tuple(begin + offset for (begin, _), offset in zip(bounds, r, strict=True))
                conditions = [
                    k.compute("lt", k.index(p), k.index(end))
                    for p, (_, end) in zip(position, bounds, strict=True)
                    if not ix.less(p, end)
                ]
                return k.convert(k.load(source, (*lead, *position), all_of(k, conditions)), dtype)

            total = k.reduce1(_adaptive_sizes(spatial, outs), "sum", element)
            count = ix.product([end - begin for begin, end in bounds])
            divisor = k.const(count.value, dtype) if count.value is not None else k.convert(k.index(count), dtype)
            k.store(0, i, k.compute("div", total, divisor))

    return lowering


def _adaptive_average_backward(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        gradient = k.args["grad_output"]
        shape = k.outputs[0].shape
        spatial = shape[len(shape) - n :]
        outs = k.shape(gradient)[len(shape) - n :]
        dtype = opmath(k.outputs[0].dtype)
        reach = tuple(_covering(size, out) for size, out in zip(spatial, outs, strict=True))
        with k.nest(shape) as i:
            lead, position = i[: len(i) - n], i[len(i) - n :]

            def element(r: tuple[Int, ...]) -> Value:
                conditions, o, count = [], [], ix.ONE
                for place, offset, size, out in zip(position, r, spatial, outs, strict=True):
                    window = place * out // size + offset
                    begin, end = _adaptive_bounds(window, size, out)
                    if size % out != 0 and out % size != 0:
                        conditions.extend(inside(k, window, out))
                        conditions.append(k.compute("le", k.index(begin), k.index(place)))
                        conditions.append(k.compute("lt", k.index(place), k.index(end)))
                    o.append(window)
                    count = count * (end - begin)
                loaded = k.convert(k.load(gradient, (*lead, *o), all_of(k, conditions)), dtype)
                divisor = k.const(count.value, dtype) if count.value is not None else k.convert(k.index(count), dtype)
                return k.compute("div", loaded, divisor)

            k.store(0, i, k.reduce1(reach, "sum", element))

    return lowering


def _fractional_max(n: int) -> Lowering:
    def lowering(k: Builder) -> None:
        source, samples = k.args["self"], k.args["random_samples"]
        shape = k.shape(source)
        spatial, lead_shape = shape[len(shape) - n :], shape[: len(shape) - n]
        outs = k.outputs[0].shape[len(shape) - n :]
        kernel = k.sizes([k.args["kernel_size"]] * n if isinstance(k.args["kernel_size"], int) else k.args["kernel_size"])
        dtype = opmath(k.outputs[0].dtype)
        with k.nest(k.outputs[0].shape) as i:
            lead, o = i[: len(i) - n], i[len(i) - n :]
            plane = lead if len(lead_shape) == 2 else (ix.ZERO, *lead)
            starts = []
            for d in range(n):
                # torch stores the samples of two dimensions innermost first, those of three outermost first.
                sample = k.load(samples, (*plane, ix.wrap(1 - d if n == 2 else d)))
                starts.append(_fractional_start(k, sample, o[d], spatial[d], outs[d], kernel[d]))

            def element(r: tuple[Int, ...]) -> list[tuple[str, Value, Value]]:
                position = tuple(begin + offset for begin, offset in zip(starts, r, strict=True))
                value = k.convert(k.load(source, (*lead, *position)), dtype)
                return [("argmax", value, k.index(flatten(position, spatial)))]

            (best,) = k.reduce(kernel, element)
            assert isinstance(best, tuple)
            k.store(0, i, best[0])
            k.store(1, i, best[1])

    return lowering


def _fractional_start(k: Builder, sample: Value, o: Int, size: Int, out: Int, extent: Int) -> Int:
    """Where window ``o`` begins: floor((o + u) alpha) - floor(u alpha), the last window at the end. Graham, "Fractional
    max-pooling" (2014), section 2. Halves are rounded at each step, as torch does: the positions depend on it."""
    int64 = torch.int64
    half, wide = sample.dtype, opmath(sample.dtype)
    sample = k.convert(sample, wide)

    def rounded(value: Value) -> Value:
        return k.convert(k.convert(value, half), wide)

    last = k.index(size - extent)
    if out == 1:
        begin = last
    else:
        alpha = rounded(k.compute("div", k.convert(last, wide), k.convert(k.index(out - 1), wide)))
        moved = rounded(k.compute("mul", rounded(k.compute("add", k.convert(k.index(o), wide), sample)), alpha))
        base = k.convert(rounded(k.compute("mul", sample, alpha)), int64)
        begin = k.compute("sub", k.convert(moved, int64), base)
        begin = k.compute("where", k.compute("eq", k.index(o), k.index(out - 1)), last, begin)
    begin = k.compute("max", k.compute("min", begin, last), k.const(0, int64))
    return k.as_index(begin, 0, size)


LOWERINGS: Mapping[str, Lowering] = {
    "avg_pool2d": _average(2),
    "avg_pool3d": _average(3),
    "avg_pool2d_backward": _average_backward(2),
    "avg_pool3d_backward": _average_backward(3),
    "max_pool2d_with_indices": _max(2),
    "max_pool3d_with_indices": _max(3),
    "max_pool2d_with_indices_backward": _max_backward(2),
    "max_pool3d_with_indices_backward": _max_backward(3),
    "_adaptive_avg_pool2d": _adaptive_average(2),
    "_adaptive_avg_pool2d_backward": _adaptive_average_backward(2),
    "adaptive_max_pool2d": _adaptive_max(2),
    "adaptive_max_pool3d": _adaptive_max(3),
    "fractional_max_pool2d": _fractional_max(2),
    "fractional_max_pool3d": _fractional_max(3),
}
