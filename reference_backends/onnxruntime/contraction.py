"""Rules of matrix products, distances and convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Outline, Rule, Untranslatable, Value, static
from reference_backends.onnxruntime.view import sliced
from vendor_sdk import HALVES


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which products are summed: float32 for halves; int32 for uint8, where sums wrap alike modulo 256."""
    return {**dict.fromkeys(HALVES, torch.float32), torch.uint8: torch.int32}.get(dtype, dtype)


def _product(b: Builder, out: Outline, left: Value, right: Value) -> Value:
    """The matrix product in the dtype that products are summed in."""
    dtype = _compute_dtype(out.dtype)
    return b.op("MatMul", b.cast(left, dtype), b.cast(right, dtype))


def _matmul(b: Builder, out: Outline, left: Operand, right: Operand) -> Value:
    return b.cast(_product(b, out, left, right), out.dtype)


def _scaled(b: Builder, value: Value, factor: Any) -> Value:
    if not isinstance(factor, Value) and factor == 1:
        return value
    return b.op("Mul", value, b.tensor(factor, value.dtype))


def _added(b: Builder, out: Outline, bias: Operand, left: Operand, right: Operand, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * bias + alpha * (left @ right); the bias is not read where beta is 0."""
    product = _scaled(b, _product(b, out, left, right), alpha)
    if not isinstance(beta, Value) and beta == 0:
        return b.cast(product, out.dtype)
    return b.cast(b.op("Add", _scaled(b, b.cast(bias, product.dtype), beta), product), out.dtype)


def _cdist(b: Builder, out: Outline, x1: Operand, x2: Operand, p: float, compute_mode: int | None) -> Value:
    """Differences of all pairs of rows, then their p-norm, in float64."""
    rows = b.unsqueeze(b.cast(x1, torch.float64), x1.rank - 1)
    columns = b.unsqueeze(b.cast(x2, torch.float64), x2.rank - 2)
    distance = b.op("Abs", b.op("Sub", rows, columns))
    last = b.constant([out.rank])
    zero = b.constant(0, torch.float64)
    if x1.shape[-1] == 0:
        return b.cast(b.op("ReduceSum", distance, last, keepdims=0), out.dtype)
    if p == 0:
        differs = b.cast(b.invert(b.compare("Equal", distance, zero)), torch.float64)
        return b.cast(b.op("ReduceSum", differs, last, keepdims=0), out.dtype)
    if math.isinf(p):
        nan = b.op("ReduceMax", b.is_nan(distance), last, keepdims=0)
        largest = b.op("ReduceMax", distance, last, keepdims=0)
        return b.cast(b.where(nan, b.constant(math.nan, torch.float64), largest), out.dtype)
    power = b.constant(p, torch.float64)
    total = b.op("ReduceSum", b.op("Pow", distance, power), last, keepdims=0)
    return b.cast(b.op("Pow", total, b.constant(1 / p, torch.float64)), out.dtype)


# Convolution


def _single(out: Outline) -> None:
    if out.dtype == torch.float64:
        raise Untranslatable("ONNX Runtime has no float64 kernel for Conv")


def _per_dim(values: Sequence[int], dims: int) -> list[int]:
    """Attributes of a node, which calls cannot change."""
    known = static(values, "a convolution whose steps, edges or groups come")
    return [*known] * dims if len(known) == 1 else [*known]


def _convolution(
    b: Builder,
    out: Outline,
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    _single(out)
    dims = x.rank - 2
    strides, pads, dilations, extra = (_per_dim(each, dims) for each in (stride, padding, dilation, output_padding))
    (groups,) = _per_dim([groups], 1)
    _nonempty(out, x, weight)
    operands = [None if each is None else b.cast(each, torch.float32) for each in (x, weight, bias)]
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    if transposed:
        ends, attributes["output_padding"] = _ends(pads, extra, strides)
        result = b.op("ConvTranspose", *operands, pads=[*pads, *ends], **attributes)
    else:
        result = b.op("Conv", *operands, pads=[*pads, *pads], **attributes)
    return b.cast(result, out.dtype)


def _ends(pads: list[int], extra: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """Padding behind and output_padding. Where ONNX Runtime takes less of the latter, less padding is the same."""
    if all(more < step for more, step in zip(extra, strides, strict=True)):
        return pads, extra
    ends = [max(pad - more, 0) for pad, more in zip(pads, extra, strict=True)]
    extra = [max(more - pad, 0) for pad, more in zip(pads, extra, strict=True)]
    if any(more >= step for more, step in zip(extra, strides, strict=True)):
        raise Untranslatable("ONNX Runtime takes no output_padding that exceeds the padding by the stride or more")
    return ends, extra


def _nonempty(*shaped: Any) -> None:
    if any(isinstance(size, int) and size == 0 for each in shaped for size in each.shape):
        raise Untranslatable("ONNX Runtime's convolutions take no empty tensors")


def _convolution_backward(
    b: Builder,
    out: tuple[Outline | None, ...],
    grad: Operand,
    x: Operand,
    weight: Operand,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    """The gradient of the input is a transposed convolution (a convolution where that was transposed); that of the weight is
    a matrix product, or a convolution of the input with the gradient, batch and channels exchanged, stride and dilation
    exchanged."""
    _single(Outline(grad.dtype, grad.shape))
    _nonempty(grad, x, weight)
    dims = x.rank - 2
    strides, pads, dilations, extra = (_per_dim(each, dims) for each in (stride, padding, dilation, output_padding))
    (groups,) = _per_dim([groups], 1)
    gradient, kernel = (b.cast(each, torch.float32) for each in (grad, weight))
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
        if transposed:
            ends, _ = _ends(pads, extra, strides)
            results[0] = b.op("Conv", gradient, kernel, pads=[*pads, *ends], **attributes)
        else:
            sizes, gained = (static(each.shape[2:], "convolution_backward") for each in (x, grad))
            reach = static(weight.shape[2:], "convolution_backward")
            extra = [
                sizes[d] - ((gained[d] - 1) * strides[d] - 2 * pads[d] + dilations[d] * (reach[d] - 1) + 1) for d in range(dims)
            ]
            results[0] = b.op("ConvTranspose", gradient, kernel, pads=[*pads, *pads], output_padding=extra, **attributes)
    if output_mask[1]:
        # Where the convolution is transposed, gradient and input change places.
        big, small = (grad, x) if transposed else (x, grad)
        results[1] = _weight_gradient(b, big, small, weight, strides, pads, dilations, groups)
    if output_mask[2]:
        axes = b.constant([0, *range(2, grad.rank)])
        results[2] = b.op("ReduceSum", gradient, axes, keepdims=0)
    return tuple(None if each is None else b.cast(each, grad.dtype) for each in results)


def _weight_gradient(
    b: Builder,
    big: Operand,
    small: Operand,
    weight: Operand,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """weight[o, c, k] = sum over n and i of small[n, o, i] * big[n, c, i * stride + k * dilation - pad], group by group."""
    reach = static(weight.shape[2:], "convolution_backward")
    taps = math.prod(reach)
    sizes = (_batch(big), big.shape[1], *small.shape[2:])
    known = all(isinstance(size, int) for size in sizes)
    if known and (taps <= _MOST_TAPS or groups > 1) and 4 * taps * math.prod(sizes) <= _MOST_BYTES:
        return _weight_gradient_of_columns(b, big, small, weight, reach, strides, pads, dilations, groups)
    if groups > _MOST_GROUPS:
        raise Untranslatable(
            f"the weight gradient of a large convolution in more than {_MOST_GROUPS} groups has no translation"
        )
    channels, kernels = big.shape[1] // groups, small.shape[1] // groups
    exchange = [1, 0, *range(2, big.rank)]
    images = b.transpose(b.cast(big, torch.float32), exchange)
    filters = b.transpose(b.cast(small, torch.float32), exchange)
    parts = []
    for group in range(groups):
        image = sliced(b, images, 0, group * channels, (group + 1) * channels) if groups > 1 else images
        kernel = sliced(b, filters, 0, group * kernels, (group + 1) * kernels) if groups > 1 else filters
        value = b.op("Conv", image, kernel, strides=dilations, dilations=strides, pads=[*pads, *pads])
        for axis, size in enumerate(reach, start=2):
            value = sliced(b, value, axis, 0, size)  # rows that no window reached add one more position
        parts.append(b.transpose(value, exchange))
    return parts[0] if groups == 1 else b.op("Concat", *parts, axis=0)


def _weight_gradient_of_columns(
    b: Builder,
    big: Operand,
    small: Operand,
    weight: Operand,
    reach: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """The same as matrix products, of the gradient with what each position of the kernel meets, group by group.

    One product has the terms of all samples where those of each sample, which are added, would be larger than what is moved to
    bring the samples together. Of many channels each position has a product of its own, which saves that they are laid side by
    side: a third to a half of the time."""
    axes = list(range(2, big.rank))
    lengths = static(small.shape[2:], "convolution_backward")
    images = [b.cast(each, torch.float32) for each in (big, small)]
    together = _count(weight) * _batch(big) > _count(big) + _count(small)
    if together:
        images = [b.transpose(each, [1, 0, *axes]) for each in images]
    lead, terms = ([], -1) if together else ([b.size(big, 0)], math.prod(lengths))
    image, gradient = images
    if any(pads):
        image = b.op("Pad", image, b.constant([0, 0, *pads, 0, 0, *pads]))
    met: list[Value] = []
    for tap in itertools.product(*map(range, reach)):
        starts = [at * dilation for at, dilation in zip(tap, dilations, strict=True)]
        ends = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, lengths, strides, strict=True)]
        part = b.op("Slice", image, *map(b.constant, (starts, ends, axes, list(strides))))
        met.append(b.reshape(part, [*lead, big.shape[1], 1, terms]))
    channels, kernels = big.shape[1] // groups, small.shape[1] // groups
    if together or channels < _MANY_CHANNELS:
        channels, met = channels * len(met), [b.op("Concat", *met, axis=-2)]
    rows = b.reshape(gradient, [*lead, groups, kernels, terms])
    swapped = [*range(len(lead) + 1), len(lead) + 2, len(lead) + 1]
    products = [b.op("MatMul", rows, b.transpose(b.reshape(each, [*lead, groups, channels, terms]), swapped)) for each in met]
    if not together:
        products = [b.op("ReduceSum", each, b.constant([0]), keepdims=0) for each in products]
    result = products[0] if len(products) == 1 else b.op("Concat", *(b.unsqueeze(each, -1) for each in products), axis=-1)
    return b.reshape(result, weight.shape)


def _batch(x: Operand) -> int:
    """The number of samples; one where only a call tells."""
    return x.shape[0] if isinstance(x.shape[0], int) else 1


def _count(x: Operand) -> int:
    """The number of elements, of one sample where only a call tells how many there are."""
    return _batch(x) * math.prod(static(x.shape[1:], "convolution_backward"))


_MOST_TAPS = 32
"""Positions of a kernel up to which its gradient is taken as matrix products: as a convolution with the gradient for a kernel
it has one column for each position, and few columns make slow products."""
_MANY_CHANNELS = 16
"""In a group, from which on the products of single positions are not too narrow: with 3 they take three times as long."""
_MOST_BYTES = 1 << 28
"""That what the positions meet may take in memory."""
_MOST_GROUPS = 64
"""Each group of such a convolution is a node of its own; a depthwise convolution of many channels would make a graph of
thousands."""


RULES: Mapping[str, Rule] = {
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _added,
    "baddbmm": _added,
    "_cdist_forward": _cdist,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
