"""Rules of the composites for which ONNX has an operator; the SDK decomposes the others, and what these rules refuse.

A result that nobody reads has no outline: statistics that only a backward graph wants are not computed without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime import attention, grouped
from reference_backends.onnxruntime.builder import Builder, Operand, Outline, Outlines, Rule, Untranslatable, Value, normalized
from reference_backends.onnxruntime.pointwise import one_and_exp
from reference_backends.onnxruntime.reduction import wide

FLOAT = torch.float32


def _not_double(x: Value, kind: str) -> None:
    if x.dtype == torch.float64:
        raise Untranslatable(f"ONNX Runtime has no exact float64 kernel for {kind}")


def _nonempty(x: Operand) -> None:
    if any(isinstance(size, int) and size == 0 for size in x.shape):
        raise Untranslatable("an empty tensor is left to the decomposition")


# Softmax


def _softmax(kind: str) -> Rule:
    def rule(b: Builder, out: Outline, x: Operand, dim: int, half_to_float: bool) -> Value:
        _not_double(x, kind)  # a NaN does not reach the other results of its row there
        _nonempty(x)
        if x.rank == 0:
            raise Untranslatable("a 0-d softmax is left to the decomposition")
        return b.cast(b.op(kind, b.cast(x, wide(x.dtype)), axis=normalized(dim, x.rank)), out.dtype)

    return rule


# Normalization


def _mean(b: Builder, value: Value, axes: Sequence[int]) -> Value:
    return b.op("ReduceMean", value, b.constant(list(axes)), keepdims=1)


def _reciprocal_root(b: Builder, value: Value, eps: float) -> Value:
    return b.op("Reciprocal", b.op("Sqrt", b.op("Add", value, b.constant(eps, value.dtype))))


def _statistics(b: Builder, value: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value]:
    """Mean and 1 / sqrt(biased variance + eps) over ``axes``, which stay with size one."""
    mean = _mean(b, value, axes)
    distance = b.op("Sub", value, mean)
    return mean, _reciprocal_root(b, _mean(b, b.op("Mul", distance, distance), axes), eps)


def _ones(b: Builder, shape: Sequence[Any]) -> Value:
    return b.repeated(b.constant(1, FLOAT), list(shape))


def _layer_norm(
    b: Builder,
    out: Outlines,
    x: Operand,
    normalized_shape: Sequence[Any],
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
) -> tuple[Value | None, ...]:
    _not_double(x, "LayerNormalization")
    _nonempty(x)
    if not normalized_shape:
        raise Untranslatable("a norm over no dimension is left to the decomposition")
    axis = x.rank - len(normalized_shape)
    scale = _ones(b, normalized_shape) if weight is None else b.cast(weight, FLOAT)
    shift = None if bias is None else b.cast(bias, FLOAT)
    operands = [b.cast(x, FLOAT), scale] + ([shift] if shift is not None else [])
    results = b.ops("LayerNormalization", *operands, dtypes=[FLOAT] * 3, axis=axis, epsilon=eps)
    return tuple(None if each is None else b.cast(value, each.dtype) for value, each in zip(results, out, strict=True))


def _rms_norm(
    b: Builder, out: Outlines, x: Operand, normalized_shape: Sequence[Any], weight: Operand | None, eps: float | None
) -> tuple[Value | None, ...]:
    _not_double(x, "RMSNormalization")
    _nonempty(x)
    if not normalized_shape:
        raise Untranslatable("a norm over no dimension is left to the decomposition")
    axis = x.rank - len(normalized_shape)
    margin = torch.finfo(FLOAT).eps if eps is None else eps
    value = b.cast(x, FLOAT)
    scale = _ones(b, normalized_shape) if weight is None else b.cast(weight, FLOAT)
    if out[1] is None:
        assert out[0] is not None
        return b.cast(b.op("RMSNormalization", value, scale, axis=axis, epsilon=margin), out[0].dtype), None
    rstd = _reciprocal_root(b, _mean(b, b.op("Mul", value, value), range(axis, x.rank)), margin)
    result = None if out[0] is None else b.cast(b.op("Mul", b.op("Mul", value, rstd), scale), out[0].dtype)
    return result, rstd


def _group_norm(
    b: Builder,
    out: Outlines,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    n: Any,
    c: Any,
    hxw: Any,
    group: int,
    eps: float,
) -> tuple[Value | None, ...]:
    """A group is a channel of an instance norm; scale and shift of the channels come after it."""
    _not_double(x, "InstanceNormalization")
    _nonempty(x)
    batch, channels = b.size(x, 0), b.size(x, 1)
    if not isinstance(channels, int):
        raise Untranslatable("a group norm of a dynamic number of channels is left to the decomposition")
    grouped = b.op("Reshape", b.cast(x, FLOAT), b.sizes([batch, group, -1]))
    results: list[Value | None] = [None, None, None]
    if out[0] is not None:
        value = b.op("InstanceNormalization", grouped, _ones(b, [group]), b.constant([0.0] * group, FLOAT), epsilon=eps)
        value = b.op("Reshape", value, b.shape(x))
        places = [1, channels, *([1] * (x.rank - 2))]
        if weight is not None:
            value = b.op("Mul", value, b.reshape(b.cast(weight, FLOAT), places))
        if bias is not None:
            value = b.op("Add", value, b.reshape(b.cast(bias, FLOAT), places))
        results[0] = b.cast(value, out[0].dtype)
    if out[1] is not None or out[2] is not None:
        statistics = _statistics(b, grouped, [2], eps)
        for index, (each, value) in enumerate(zip(out[1:], statistics, strict=True), start=1):
            results[index] = None if each is None else b.cast(b.squeeze(value, 2), each.dtype)
    return tuple(results)


def _batch_norm(
    b: Builder,
    out: Outlines,
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand,
    running_var: Operand,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    """With the running statistics; the two other results are empty."""
    _not_double(x, "BatchNormalization")
    _nonempty(x)
    scale = _ones(b, [b.size(x, 1)]) if weight is None else b.cast(weight, FLOAT)
    shift = b.repeated(b.constant(0, FLOAT), [b.size(x, 1)]) if bias is None else b.cast(bias, FLOAT)
    mean, variance = b.cast(running_mean, FLOAT), b.cast(running_var, FLOAT)
    result = b.op("BatchNormalization", b.cast(x, FLOAT), scale, shift, mean, variance, epsilon=eps)
    empty = [None if each is None else b.constant([], each.dtype) for each in out[1:]]
    return None if out[0] is None else b.cast(result, out[0].dtype), *empty


# Activations and products


def _gelu(b: Builder, out: Outline, x: Operand, *, approximate: str = "none") -> Value:
    _not_double(x, "Gelu")
    return b.cast(b.op("Gelu", b.cast(x, FLOAT), approximate=approximate), out.dtype)


def _silu(b: Builder, out: Outline, x: Operand) -> Value:
    value = b.cast(x, wide(out.dtype))
    return b.cast(b.op("Div", value, one_and_exp(b, value)), out.dtype)


def _linear(b: Builder, out: Outline, x: Operand, weight: Operand, bias: Operand | None = None) -> Value:
    """x @ weight.T + bias; rows of all leading dimensions are one matrix."""
    if weight.rank != 2 or x.rank == 0:
        raise Untranslatable("a product with a vector is left to the decomposition")
    dtype = wide(out.dtype)
    width = b.size(x, x.rank - 1)
    value: Value = b.cast(x, dtype)
    if x.rank != 2:
        _nonempty(x)
        value = b.op("Reshape", value, b.sizes([-1, width]))
    operands = [value, b.cast(weight, dtype)] + ([b.cast(bias, dtype)] if bias is not None else [])
    result = b.op("Gemm", *operands, transB=1)
    if x.rank != 2:
        leading = [b.size(x, dim) for dim in range(x.rank - 1)]
        rows = math.prod(leading) if all(isinstance(size, int) for size in leading) else None
        result = b.folded(result, [rows, weight.shape[0]], [*leading, b.size(weight, 0)])
    return b.cast(result, out.dtype)


RULES: Mapping[str, Rule] = {
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm_inference": _batch_norm,
    "gelu": _gelu,
    "silu": _silu,
    "linear": _linear,
    **attention.RULES,
    **grouped.RULES,
}
