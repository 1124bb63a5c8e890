"""Rules of reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import (
    Builder,
    Operand,
    Outline,
    Rule,
    Untranslatable,
    Value,
    normalized,
    static,
)
from reference_backends.onnxruntime.control import loop
from vendor_sdk import HALVES

Dims = Sequence[int] | int | None
TERMS = 1 << 16
"""That a node adds at most, where they can be divided."""


def _axes(operand: Operand, dim: Dims) -> list[int]:
    """The dimensions reduced over: all where none is named. Empty for a 0-d operand, which reduces to itself."""
    if operand.rank == 0:
        return []
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return list(range(operand.rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted({normalized(each, operand.rank) for each in dims})


def _reduce(b: Builder, kind: str, value: Value, axes: Sequence[int], keepdim: bool) -> Value:
    if not axes:
        return value
    return b.op(kind, value, b.constant(list(axes)), keepdims=int(keepdim))


def _total(b: Builder, value: Value, shape: Sequence[Any], axes: Sequence[int], keepdim: bool) -> Value:
    """Sums of many terms are sums of sums: ONNX Runtime adds all that a node reduces in a few running sums, whose errors grow
    with the number of terms.

    Args:
        shape: of ``value``.
    """
    sizes = [shape[axis] for axis in axes]
    count = math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
    if count is not None and count <= TERMS:
        return _reduce(b, "ReduceSum", value, axes, keepdim)
    if len(axes) == len(shape) and count is not None:
        rows = next(each for each in range(math.isqrt(count), 0, -1) if count % each == 0)
        by_row = b.op("ReduceSum", b.reshape(value, [rows, count // rows]), b.constant([1]), keepdims=0)
        total = b.op("ReduceSum", by_row, b.constant([0]), keepdims=0)
        return b.reshape(total, [1] * len(shape)) if keepdim else total
    if len(axes) > 1:
        value = b.op("ReduceSum", value, b.constant([axes[-1]]), keepdims=1)
    return _reduce(b, "ReduceSum", value, axes, keepdim)


def _wrapping_total(b: Builder, x: Operand, axes: Sequence[int], keepdim: bool) -> Value:
    """Sums of integers modulo 2 ** 64, as products with ones: ONNX Runtime's ReduceSum adds integers in float64."""
    value = b.cast(x, torch.int64)
    for axis in reversed(axes):
        ones = b.repeated(b.constant([1]), [b.size(x, axis)])
        if axis == x.rank - 1:
            value = b.op("MatMul", value, b.unsqueeze(ones, 1))
        else:
            order = list(range(x.rank))
            order[axis], order[-2] = order[-2], order[axis]
            value = b.transpose(b.op("MatMul", b.unsqueeze(ones, 0), b.transpose(value, order)), order)
    return value if keepdim or not axes else b.squeeze(value, *axes)


def _wrapping_product(b: Builder, x: Operand, axis: int, keepdim: bool) -> Value:
    """Products of integers modulo 2 ** 64, by halves: ONNX Runtime's ReduceProd multiplies integers in float64."""
    along, one = b.constant([axis]), b.constant(1)

    def grown(b: Builder, value: Value, count: Value) -> Value:
        """``value`` with ones behind."""
        return b.op("Pad", value, b.op("Concat", b.constant([0]), b.reshape(count, [1]), axis=0), one, along)

    def size(b: Builder, value: Value) -> Value:
        return b.op("Gather", b.op("Shape", value, dtype=torch.int64), b.constant(axis), axis=0)

    def step(inner: Builder, state: list[Value]) -> tuple[Value, list[Value]]:
        (value,) = state
        odd = inner.op("Mod", size(inner, value), inner.constant(2))
        half = inner.op("Div", inner.op("Add", size(inner, value), odd), inner.constant(2))
        left, right = inner.ops("Split", grown(inner, value, odd), dtypes=[value.dtype] * 2, axis=axis, num_outputs=2)
        return inner.compare("Greater", half, one), [inner.op("Mul", left, right)]

    first = grown(b, b.cast(x, torch.int64), one)  # of no integers it is 1
    (value,) = loop(b, b.compare("Greater", size(b, first), one), [first], step)
    return value if keepdim else b.squeeze(value, axis)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums of ``dtype`` are computed in."""
    return torch.float32 if dtype in HALVES else dtype


def _sum(b: Builder, out: Outline, x: Operand, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    if not out.dtype.is_floating_point:
        return b.cast(_wrapping_total(b, x, _axes(x, dim), keepdim), out.dtype)
    value = b.cast(x, wide(out.dtype))
    return b.cast(_total(b, value, x.shape, _axes(x, dim), keepdim), out.dtype)


def _prod(b: Builder, out: Outline, x: Operand, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Value:
    axes = _axes(x, dim)
    if axes and not out.dtype.is_floating_point:
        return b.cast(_wrapping_product(b, x, axes[0], keepdim), out.dtype)
    value = b.cast(x, wide(out.dtype))
    return b.cast(_reduce(b, "ReduceProd", value, axes, keepdim), out.dtype)


def _mean(b: Builder, out: Outline, x: Operand, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    axes = _axes(x, dim)
    value = b.cast(x, wide(out.dtype))
    total = _total(b, value, x.shape, axes, keepdim)
    return b.cast(b.op("Div", total, b.cast(b.count(x, axes), value.dtype)), out.dtype)


def _var(b: Builder, out: Outline, x: Operand, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    axes = _axes(x, dim)
    value = b.cast(x, wide(out.dtype))
    count = b.cast(b.count(x, axes), value.dtype)
    mean = b.op("Div", _total(b, value, x.shape, axes, True), count)
    distance = b.op("Sub", value, mean)
    total = _total(b, b.op("Mul", distance, distance), x.shape, axes, keepdim)
    degrees = b.op("Sub", count, b.tensor(1 if correction is None else correction, value.dtype))
    return b.cast(b.op("Div", total, b.op("Max", degrees, b.constant(0, value.dtype))), out.dtype)


def extreme(b: Builder, value: Value, axes: Sequence[int], keepdim: bool, *, largest: bool) -> Value:
    """The largest or smallest over ``axes``; NaN where there is one, which ONNX leaves open."""
    result = _reduce(b, "ReduceMax" if largest else "ReduceMin", value, axes, keepdim)
    if not value.dtype.is_floating_point:
        return result
    broken = _reduce(b, "ReduceMax", b.is_nan(value), axes, keepdim)
    return b.where(broken, b.constant(math.nan, value.dtype), result)


def _extreme(*, largest: bool) -> Rule:
    def rule(b: Builder, out: Outline, x: Operand, dim: Dims = (), keepdim: bool = False) -> Value:
        return extreme(b, x, _axes(x, dim), keepdim, largest=largest)

    return rule


def _any(b: Builder, out: Outline, x: Operand, dim: Dims = None, keepdim: bool = False) -> Value:
    truth = b.cast(b.cast(x, torch.bool), torch.int64)
    count = _reduce(b, "ReduceSum", truth, _axes(x, dim), keepdim)
    return b.cast(b.compare("Greater", count, b.constant(0)), out.dtype)


def position(b: Builder, value: Value, axis: int, keepdim: bool, *, largest: bool) -> Value:
    """Index of the first largest or smallest over ``axis``; of the first NaN where there is one."""
    kind = "ArgMax" if largest else "ArgMin"
    ordered = b.cast(value, torch.int32) if value.dtype == torch.bool else value
    index = b.op(kind, ordered, dtype=torch.int64, axis=axis, keepdims=int(keepdim))
    if not value.dtype.is_floating_point:
        return index
    nan = b.is_nan(value)
    first = b.op("ArgMax", b.cast(nan, torch.int32), dtype=torch.int64, axis=axis, keepdims=int(keepdim))
    broken = b.op("ReduceMax", nan, b.constant([axis]), keepdims=int(keepdim))
    return b.where(broken, first, index)


def _position(*, largest: bool) -> Rule:
    def rule(b: Builder, out: Outline, x: Operand, dim: int | None = None, keepdim: bool = False) -> Value:
        if x.rank == 0:
            return b.constant(0)
        if dim is None:
            index = position(b, b.flat(x), 0, False, largest=largest)
            return b.reshape(index, [1] * x.rank) if keepdim else index
        return position(b, x, normalized(dim, x.rank), keepdim, largest=largest)

    return rule


def _extreme_and_position(*, largest: bool) -> Rule:
    def rule(b: Builder, out: Sequence[Outline | None], x: Operand, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if x.rank == 0:
            return x, b.constant(0)
        axis = normalized(dim, x.rank)
        return (
            extreme(b, x, [axis], keepdim, largest=largest),
            position(b, x, axis, keepdim, largest=largest),
        )

    return rule


def _vector_norm(
    b: Builder, out: Outline, x: Operand, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    if isinstance(ord, Value):
        raise Untranslatable("a norm whose order is known at run time only has no translation")
    axes = _axes(x, dim)
    size = b.op("Abs", b.cast(x, torch.float64))  # squares of float32 values neither overflow nor vanish in float64
    if math.isinf(ord):
        return b.cast(extreme(b, size, axes, keepdim, largest=ord > 0), out.dtype)
    zero, order = b.constant(0, size.dtype), b.constant(float(ord), size.dtype)
    if ord == 0:
        nonzero = b.invert(b.compare("Equal", size, zero))
        return b.cast(_reduce(b, "ReduceSum", b.cast(nonzero, size.dtype), axes, keepdim), out.dtype)
    if ord == 1:
        return b.cast(_reduce(b, "ReduceSum", size, axes, keepdim), out.dtype)
    if ord == 2:
        return b.cast(b.op("Sqrt", _reduce(b, "ReduceSum", b.op("Mul", size, size), axes, keepdim)), out.dtype)
    total = _reduce(b, "ReduceSum", b.op("Pow", size, order), axes, keepdim)
    return b.cast(b.op("Pow", total, b.constant(1 / float(ord), size.dtype)), out.dtype)


# Scans


def _cumsum(b: Builder, out: Outline, x: Operand, dim: int, *, dtype: Any = None) -> Value:
    value = b.cast(x, wide(out.dtype))
    if x.rank == 0:
        return b.cast(value, out.dtype)
    return b.cast(b.op("CumSum", value, b.constant(normalized(dim, x.rank))), out.dtype)


def scan(
    b: Builder, body: Builder, state: Sequence[Value], sequences: Sequence[Value], axis: int, results: Sequence[Value]
) -> list[Value]:
    """ONNX's Scan along ``axis``.

    Args:
        body: a child of ``b``; its first inputs are the states, the others a slice of each sequence; shapes stay open.
        state: initial states.
        results: values of ``body``: the new states, then what is stacked.
    """
    stacked = len(results) - len(state)
    values = b.ops(
        "Scan",
        *state,
        *sequences,
        dtypes=[value.dtype for value in results],
        body=b.inner(body, "step", results),
        num_scan_inputs=len(sequences),
        scan_input_axes=[axis] * len(sequences),
        scan_output_axes=[axis] * stacked,
    )
    return list(values[len(state) :])


def _like_slice(b: Builder, x: Operand, axis: int, fill: float, dtype: torch.dtype) -> Value:
    """A tensor of ``x``'s shape without ``axis``, filled."""
    sizes = [b.size(x, dim) for dim in range(x.rank) if dim != axis]
    return b.op("Expand", b.constant(fill, dtype), b.sizes(sizes))


def _stepwise(rule: Rule) -> Rule:
    """A rule by Scan, for tensors with elements: ONNX Runtime's Scan traps in the processor on empty slices."""

    def guarded(b: Builder, out: Any, x: Operand, dim: int, **keywords: Any) -> Any:
        sizes = static(x.shape, "a scan by ONNX Runtime's Scan, which traps on empty slices,")
        if 0 not in sizes:
            return rule(b, out, x, dim, **keywords)
        empty = [
            None if each is None else b.op("Expand", b.constant(0, each.dtype), b.sizes(sizes))
            for each in (out if isinstance(out, tuple) else [out])
        ]
        return tuple(empty) if isinstance(out, tuple) else empty[0]

    return guarded


def _cumprod(b: Builder, out: Outline, x: Operand, dim: int, *, dtype: Any = None) -> Value:
    value = b.cast(x, wide(out.dtype))
    if x.rank == 0:
        return b.cast(value, out.dtype)
    axis = normalized(dim, x.rank)
    body = b.child()
    product, item = body.open_operand(value.dtype), body.open_operand(value.dtype)
    new = body.op("Mul", product, item)
    (result,) = scan(b, body, [_like_slice(b, x, axis, 1, value.dtype)], [value], axis, [new, new])
    return b.cast(result, out.dtype)


def _running_extreme(*, largest: bool) -> Rule:
    """(running extreme, its last index): a NaN, once met, stays; the index moves to later equal ones."""

    def rule(b: Builder, out: Sequence[Outline | None], x: Operand, dim: int) -> tuple[Value, Value]:
        if x.rank == 0:
            return x, b.constant(0)
        axis = normalized(dim, x.rank)
        value = b.cast(x, torch.uint8) if x.dtype == torch.bool else x
        best = b.op("Gather", value, b.constant(0), axis=axis)
        body = b.child()
        count, top, where = body.open_operand(torch.int64), body.open_operand(value.dtype), body.open_operand(torch.int64)
        item = body.open_operand(value.dtype)
        better = body.compare("GreaterOrEqual" if largest else "LessOrEqual", item, top)
        if value.dtype.is_floating_point:
            better = body.op("Or", better, body.is_nan(item))
        top, where = body.where(better, item, top), body.where(better, count, where)
        after = body.op("Add", count, body.constant(1))
        values, indices = scan(
            b,
            body,
            [b.constant(0), best, _like_slice(b, x, axis, 0, torch.int64)],
            [value],
            axis,
            [after, top, where, top, where],
        )
        return b.cast(values, x.dtype), indices

    return rule


def _logcumsumexp(b: Builder, out: Outline, x: Operand, dim: int) -> Value:
    """Running log(sum(exp(x))) as maximum and rest, in float64."""
    value = b.cast(x, torch.float64)
    if x.rank == 0:
        return b.cast(value, out.dtype)
    axis = normalized(dim, x.rank)
    body = b.child()
    total, item = body.open_operand(value.dtype), body.open_operand(value.dtype)
    large, small = body.op("Max", total, item), body.op("Min", total, item)
    # Equal infinities have no difference; exp(small - large) is 1 or 0 there and the sum is the infinity itself.
    rest = body.op("Log", body.op("Add", body.op("Exp", body.op("Sub", small, large)), body.constant(1, value.dtype)))
    same = body.op("And", body.compare("Equal", large, small), body.op("IsInf", large, dtype=torch.bool))
    new = body.where(same, large, body.op("Add", large, rest))
    (result,) = scan(b, body, [_like_slice(b, x, axis, -math.inf, value.dtype)], [value], axis, [new, new])
    return b.cast(result, out.dtype)


RULES: Mapping[str, Rule] = {
    "sum": _sum,
    "prod": _prod,
    "mean": _mean,
    "var": _var,
    "amax": _extreme(largest=True),
    "amin": _extreme(largest=False),
    "any": _any,
    "argmax": _position(largest=True),
    "argmin": _position(largest=False),
    "max.dim": _extreme_and_position(largest=True),
    "min.dim": _extreme_and_position(largest=False),
    "linalg_vector_norm": _vector_norm,
    "cumsum": _cumsum,
    "cumprod": _stepwise(_cumprod),
    "cummax": _stepwise(_running_extreme(largest=True)),
    "cummin": _stepwise(_running_extreme(largest=False)),
    "logcumsumexp": _stepwise(_logcumsumexp),
}
