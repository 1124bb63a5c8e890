"""Convolution prims, forward and backward: 1, 2 and 3 spatial dimensions, strides, dilation, groups, transposed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import OF_PRODUCTS, Accumulated, apart
from vendor_sdk.prims.data_sets import labelled, sparse, with_specials, with_sums
from vendor_sdk.prims.row import FLOATS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext

aten = torch.ops.aten

Tensor = torch.Tensor


def _cases(ctx: SampleContext) -> Iterator[tuple[Tensor, Tensor, bool, list[Any], str]]:
    """(input, weight, with bias, [stride, padding, dilation, transposed, output padding, groups], label)."""
    yield draw.values(ctx, 2, 3, 11, 13), draw.values(ctx, 5, 3, 3, 3), True, [[1, 1], [1, 1], [1, 1], False, [0, 0], 1], "2-d"
    strided = [[2, 3], [2, 0], [1, 2], False, [0, 0], 2]
    yield draw.values(ctx, 1, 4, 9, 17), draw.values(ctx, 6, 2, 3, 2), False, strided, "stride, dilation, groups"
    yield draw.values(ctx, 2, 6, 67), draw.values(ctx, 6, 1, 5), True, [[1], [2], [1], False, [0], 6], "depthwise 1-d"
    yield draw.values(ctx, 2, 4, 67), draw.values(ctx, 4, 3, 3), True, [[2], [1], [1], True, [1], 1], "1-d transposed"
    yield (
        draw.values(ctx, 1, 2, 5, 6, 7),
        draw.values(ctx, 3, 2, 2, 3, 3),
        True,
        [[1, 2, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1],
        "3-d",
    )
    yield (
        draw.values(ctx, 2, 9, 8, 5).permute(0, 3, 1, 2),
        draw.values(ctx, 4, 5, 1, 1),
        False,
        [[1, 1], [0, 0], [1, 1], False, [0, 0], 1],
        "1x1, channels last",
    )
    yield (
        draw.values(ctx, 1, 4, 5, 5),
        draw.values(ctx, 4, 3, 3, 3),
        False,
        [[2, 2], [1, 0], [1, 2], True, [1, 0], 2],
        "2-d transposed, groups",
    )
    yield draw.expanded(ctx, 2, 3, 7), draw.values(ctx, 2, 3, 7), True, [[1], [0], [1], False, [0], 1], "one window, expanded"


UNPADDED = labelled("1x1, channels last")
"""Where no weight meets padding: whether a weight that is not finite is multiplied by it is left open."""


def _long(ctx: SampleContext) -> Sample:
    data, weight = draw.values(ctx, 1, 512, 5, 5), draw.values(ctx, 4, 512, 3, 3)
    return Sample((data, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), label="long sum")


@draw.by_effort
def _convolution(ctx: SampleContext) -> Iterator[Sample]:
    for data, weight, biased, rest, label in _cases(ctx):
        bias = draw.values(ctx, weight.shape[1] * rest[5] if rest[3] else weight.shape[0]) if biased else None
        yield Sample((data, weight, bias, *rest), label=label)


@draw.by_effort
def _convolution_backward(ctx: SampleContext) -> Iterator[Sample]:
    for data, weight, biased, rest, label in _cases(ctx):
        shape = aten.convolution.default(data.to("meta"), weight.to("meta"), None, *rest).shape
        grad = draw.values(ctx, *shape)
        sizes = [shape[1]] if biased else None
        yield Sample((grad, data, weight, sizes, *rest, [True, True, biased]), label=label)


def _terms(data: Tensor, weight: Tensor, *rest: Any) -> int:
    """Products per output element: channels of a group times the window (transposed: at most the same)."""
    transposed, groups = rest[4], rest[6]
    channels = weight.shape[0] // groups if transposed else weight.shape[1]
    return max(1, channels * math.prod(weight.shape[2:])) + 1


def _backward_terms(grad: Tensor, data: Tensor, weight: Tensor, *rest: Any) -> int:
    """Largest of the three sums: output channels times the window for the input, batch times positions for weight and bias."""
    positions = max(math.prod(grad.shape[2:]), math.prod(data.shape[2:]))
    return max(1, max(weight.shape[:2]) * math.prod(weight.shape[2:]), grad.shape[0] * positions)


def _magnitude(data: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    result: Tensor = aten.convolution.default(data.abs(), weight.abs(), None if bias is None else bias.abs(), *rest)
    return result


def _backward_magnitude(grad: Tensor, data: Tensor, weight: Tensor, *rest: Any) -> Any:
    return aten.convolution_backward.default(grad.abs(), data.abs(), weight.abs(), *rest)


# torch's own CPU kernels sum transposed convolutions and gradients of float16 in float16, and miss these bounds; others do not.
# Only channels and images differ widely in size, and nothing is close to overflow: methods that transform tiles of an image
# (Winograd, FFT) have errors relative to the tile's largest element, and larger intermediate results.
_sums = functools.partial(with_sums, along={0: 1, 1: 1}, degree=2, scaled=2, overflows=False)
_row = functools.partial(Prim, family=Family.CONVOLUTION, dtypes=FLOATS, shape=Shape.OPERATOR)

ROWS: tuple[Prim, ...] = (
    _row(
        name="convolution",
        target=aten.convolution.default,
        summary="cross-correlation of input (n, c, ...) with weight (o, c / groups, ...) plus bias; or its transpose",
        result=Result.SAME,
        bound=Accumulated(terms=_terms, magnitude=_magnitude, shared=apart),
        source=OF_PRODUCTS,
        samples=with_specials(with_specials(_sums(_convolution, _terms, long=_long), sparse, (0, 2)), sparse, None, UNPADDED),
    ),
    _row(
        name="convolution_backward",
        target=aten.convolution_backward.default,
        summary="gradients of convolution with respect to input, weight and bias, those asked for by output_mask",
        result=Result.OPERATOR,
        bound=Accumulated(terms=_backward_terms, magnitude=_backward_magnitude, shared=apart),
        source=OF_PRODUCTS + ", with as many terms as the longest of the three sums",
        samples=with_specials(_convolution_backward, sparse, None, UNPADDED),
    ),
)
