"""Rows of the composites: operations above the prims that a backend may claim whole.

Halves are computed in float32 and rounded once, as torch's CPU kernels do, and statistics have the dtypes torch gives them.
Backward operators are composites of their own, since their arguments differ from the forward's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk.prims.attention import ATTENTION_ROWS
from vendor_sdk.prims.bounds import (
    BY_DEFINITION,
    OF_EXPONENTIALS,
    OF_PRODUCTS,
    Accumulated,
    Distribution,
    Exact,
    Ulp,
    apart,
    in_float32,
)
from vendor_sdk.prims.grouped import GROUPED_ROWS
from vendor_sdk.prims.loss import LOSS_ROWS
from vendor_sdk.prims.normalization import NORMALIZATION_ROWS
from vendor_sdk.prims.quantized import QUANTIZED_ROWS
from vendor_sdk.prims.recognize import recognize_gelu, recognize_linear
from vendor_sdk.prims.row import Composite, Sampler
from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, draw, layouts, specials, tensor
from vendor_sdk.prims.widen import cast, computation_dtype, filled

aten = torch.ops.aten
Tensor = torch.Tensor


# --- softmax ---


def _is_empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    result = torch.float32 if half_to_float else x.dtype
    if _is_empty(x):
        return cast(aten.clone.default(x), result)
    wide = cast(x, computation_dtype(x.dtype))
    exponentials = aten.exp.default(aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True)))
    return cast(aten.div.Tensor(exponentials, aten.sum.dim_IntList(exponentials, [dim], True)), result)


def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    wide = computation_dtype(grad.dtype)
    grad, output = cast(grad, wide), cast(output, wide)
    product = aten.mul.Tensor(grad, output)
    inner = aten.mul.Tensor(output, aten.sum.dim_IntList(product, [dim], True))
    return cast(aten.sub.Tensor(product, inner), input_dtype)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    result = torch.float32 if half_to_float else x.dtype
    if _is_empty(x):
        return cast(aten.clone.default(x), result)
    wide = cast(x, computation_dtype(x.dtype))
    shifted = aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    return cast(aten.sub.Tensor(shifted, aten.log.default(total)), result)


def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    wide = computation_dtype(grad.dtype)
    grad, output = cast(grad, wide), cast(output, wide)
    total = aten.sum.dim_IntList(grad, [dim], True)
    return cast(aten.sub.Tensor(grad, aten.mul.Tensor(aten.exp.default(output), total)), input_dtype)


def _length(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


def _line(x: Tensor, dim: int, half_to_float: bool) -> Sequence[int]:
    return (dim,)


def _line_of_gradient(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Sequence[int]:
    return (dim,)


def _softmax_magnitude(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    # exp(x - max) is off by |x - max| u relatively, the sum of positive terms by growth(n) u
    if x.numel() == 0:
        return x
    finite = x.nan_to_num()
    return torch.softmax(finite, dim) * (1 + (finite.amax(dim, True) - finite))


def _log_softmax_magnitude(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if x.numel() == 0:
        return x
    finite = x.nan_to_num()
    return 1 + 2 * (finite.amax(dim, True) - finite) + (finite.logsumexp(dim, True) - finite.amax(dim, True)).abs()


def _softmax_backward_magnitude(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    product = (grad * output).abs()
    return product + output.abs() * product.sum(dim, True)


def _log_softmax_backward_magnitude(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return grad.abs() + output.exp() * (1 + output.abs()) * grad.abs().sum(dim, True)


_SOFTMAX_CASES: tuple[tuple[str, tuple[int, ...], int, Effort], ...] = (
    ("last dimension", (3, 67), -1, Effort.QUICK),
    ("middle dimension", (2, 5, 33), 1, Effort.QUICK),
    ("0-d", (), 0, Effort.STANDARD),
    ("empty", (0, 3), 1, Effort.STANDARD),
    ("long rows", (2, 2051), 1, Effort.STANDARD),
    ("many rows", (257, 19), 1, Effort.STANDARD),
    ("size one", (4, 1), 1, Effort.FULL),
)


def _softmax_samples(context: SampleContext) -> Iterator[Sample]:
    for label, shape, dim, effort in _SOFTMAX_CASES:
        if effort <= context.effort:
            yield Sample((draw(context, shape, Interval(-8, 8)), dim, False), label=label)
    yield Sample((draw(context, (19, 7), Interval(-8, 8)).t(), 0, False), label="transposed")
    rows = draw(context, (4, 9))
    rows[1, 3] = -math.inf
    rows[2, 5] = math.nan
    rows[3] = -math.inf
    yield Sample((rows, 1, False), label="special values", special=True)


def _softmax_backward_samples(function: Callable[..., Tensor]) -> Sampler:
    def sample(context: SampleContext) -> Iterator[Sample]:
        for label, shape, dim, effort in _SOFTMAX_CASES:
            if effort <= context.effort:
                output = function(draw(context, shape).to(torch.float64), dim).to(context.dtype)
                yield Sample((draw(context, shape), output, dim, context.dtype), label=label)

    return sample


# --- activations ---


def _widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` of tensors of one dtype, computed in the dtype's computation dtype and rounded once."""

    def rounded_once(*tensors: Tensor, **kwargs: Any) -> Tensor:
        wide = computation_dtype(tensors[0].dtype)
        return cast(function(*(cast(x, wide) for x in tensors), **kwargs), tensors[0].dtype)

    return rounded_once


def _tanh_distribution(x: Tensor) -> Tensor:
    """``(1 + tanh(z)) / 2``, which is the sigmoid of ``2 z``: with no cancellation, and for one exponential."""
    cube = aten.mul.Tensor(aten.mul.Tensor(x, x), x)
    shifted = aten.add.Tensor(x, aten.mul.Tensor(cube, 0.044715))
    return aten.sigmoid.default(aten.mul.Tensor(shifted, 2 * math.sqrt(2 / math.pi)))  # type: ignore[no-any-return]


@_widened
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return aten.mul.Tensor(x, _tanh_distribution(x))  # type: ignore[no-any-return]
    gate = aten.erf.default(aten.mul.Tensor(x, math.sqrt(0.5)))
    return aten.mul.Tensor(aten.mul.Tensor(x, 0.5), aten.add.Tensor(gate, 1))  # type: ignore[no-any-return]


@_widened
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    square = aten.mul.Tensor(x, x)
    if approximate == "tanh":
        distribution = _tanh_distribution(x)
        slope = aten.mul.Tensor(aten.add.Tensor(aten.mul.Tensor(square, 3 * 0.044715), 1), 2 * math.sqrt(2 / math.pi))
        density = aten.mul.Tensor(aten.mul.Tensor(distribution, aten.sub.Tensor(1, distribution)), slope)
    else:
        gate = aten.erf.default(aten.mul.Tensor(x, math.sqrt(0.5)))
        distribution = aten.mul.Tensor(aten.add.Tensor(gate, 1), 0.5)
        density = aten.mul.Tensor(aten.exp.default(aten.mul.Tensor(square, -0.5)), 1 / math.sqrt(2 * math.pi))
    return aten.mul.Tensor(grad, aten.add.Tensor(distribution, aten.mul.Tensor(x, density)))  # type: ignore[no-any-return]


@_widened
def silu(x: Tensor) -> Tensor:
    return aten.mul.Tensor(x, aten.sigmoid.default(x))  # type: ignore[no-any-return]


@_widened
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = aten.sigmoid.default(x)
    slope = aten.add.Tensor(aten.mul.Tensor(x, aten.sub.Tensor(1, gate)), 1)
    return aten.mul.Tensor(grad, aten.mul.Tensor(gate, slope))  # type: ignore[no-any-return]


def _activation_samples(*, grad: bool, approximate: bool) -> Sampler:
    choices: tuple[dict[str, Any], ...] = ({}, {"approximate": "tanh"}) if approximate else ({},)

    def sample(context: SampleContext) -> Iterator[Sample]:
        for kwargs in choices:
            mark = f", {kwargs['approximate']}" if kwargs else ""
            for layout in layouts(context):
                x = tensor(context, layout, Interval(-6, 6))
                args = (draw(context, layout.shape), x) if grad else (x,)
                yield Sample(args, kwargs, label=layout.label + mark)
            if not grad:
                yield Sample((specials(context.dtype).clamp(-1e4, 1e4),), kwargs, label="special values" + mark, special=True)

    return sample


def _gelu_magnitude(x: Tensor, *, approximate: str = "none") -> Tensor:
    # 1 + erf(x) cancels for negative x: the error is u relative to |x|, not to the result
    return x.nan_to_num().abs()


def _gelu_backward_magnitude(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    return grad.abs() * (1 + x.abs() + x.abs() ** 3)


def _silu_backward_magnitude(grad: Tensor, x: Tensor) -> Tensor:
    return grad.abs() * (1 + x.abs())


# --- dropout ---


def dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return aten.clone.default(x), filled(x, True, torch.bool)
    if p == 1:
        return filled(x, 0, x.dtype), filled(x, False, torch.bool)
    # drawn in float32 whatever the dtype: a half has too few values for an exact probability
    uniform = aten.rand.default(list(x.shape), dtype=torch.float32, device=x.device)
    keep = aten.lt.Tensor(uniform, aten.full.default([], 1 - p, dtype=torch.float32, device=x.device))
    return aten.mul.Tensor(aten.mul.Tensor(x, cast(keep, x.dtype)), 1 / (1 - p)), keep


def dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return aten.mul.Tensor(aten.mul.Tensor(grad, cast(mask, grad.dtype)), scale)  # type: ignore[no-any-return]


def _dropout_samples(context: SampleContext) -> Iterator[Sample]:
    yield Sample((draw(context, (64, 67), Interval(1, 2)), 0.25, True), label="a quarter dropped")
    yield Sample((draw(context, (3, 5)), 0.5, False), label="not training")
    yield Sample((draw(context, (3, 5)), 1.0, True), label="all dropped")
    if context.effort >= Effort.STANDARD:
        yield Sample((draw(context, (0, 5)), 0.5, True), label="empty")
        yield Sample((draw(context, (67, 64), Interval(1, 2)).t(), 0.75, True), label="transposed")


def _dropout_check(result: Any, sample: Sample) -> str | None:
    """Kept elements are scaled, the others zero, and their share lies within five standard deviations."""
    x, p, train = sample.args
    output, mask = (part.detach().cpu() for part in result)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    if train is False:
        return None if bool(mask.all()) and torch.equal(output, x) else "dropout outside training changes its input"
    wanted = x.double() * mask * scale
    if not torch.allclose(output.double(), wanted, rtol=4 * torch.finfo(x.dtype).eps, atol=0):
        return "a result is neither zero nor the scaled input, as the mask says"
    if x.numel() == 0:
        return None
    share = float(mask.double().mean())
    spread = 5 * math.sqrt(p * (1 - p) / x.numel())
    return None if abs(share - (1 - p)) <= spread else f"{share:.4f} of the elements are kept where {1 - p:.4f} are expected"


def _dropout_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for layout in layouts(context):
        yield Sample((tensor(context, layout), draw(context, layout.shape, dtype=torch.bool), 1.25), label=layout.label)


# --- embedding and linear ---


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    return aten.index.Tensor(weight, [cast(indices, torch.int64)])  # type: ignore[no-any-return]


def _embedding_samples(context: SampleContext) -> Iterator[Sample]:
    def indices(shape: Sequence[int], rows: int) -> Tensor:
        return torch.randint(0, rows, tuple(shape), generator=context.generator)

    yield Sample((draw(context, (11, 7)), indices((5,), 11)), label="1-d indices")
    yield Sample((draw(context, (11, 7)), indices((2, 3), 11), 2), label="padding index")
    yield Sample((draw(context, (7, 11)).t(), indices((2, 3, 2), 11).permute(2, 0, 1)), label="transposed")
    if context.effort >= Effort.STANDARD:
        yield Sample((draw(context, (11, 7)), indices((), 11)), label="0-d index")
        yield Sample((draw(context, (11, 7)), indices((0, 3), 11)), label="empty")
        yield Sample((draw(context, (11, 129)), indices((40,), 11).to(torch.int32)), label="int32 indices")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    transposed = aten.permute.default(weight, [1, 0]) if weight.dim() == 2 else weight
    if weight.dim() == 1:
        product = aten.matmul.default(x, weight)
        return product if bias is None else aten.add.Tensor(product, bias)  # type: ignore[no-any-return]
    rows = aten.reshape.default(x, [math.prod(x.shape[:-1]), x.shape[-1]])
    if bias is None:
        result = aten.mm.default(rows, transposed)
    else:
        result = aten.addmm.default(bias, rows, transposed)
    return aten.reshape.default(result, [*x.shape[:-1], weight.shape[0]])  # type: ignore[no-any-return]


def _linear_samples(context: SampleContext) -> Iterator[Sample]:
    yield Sample((draw(context, (5, 33)), draw(context, (17, 33)), draw(context, (17,))), label="matrix")
    yield Sample((draw(context, (2, 3, 33)), draw(context, (8, 33))), label="three dimensions, no bias")
    yield Sample((draw(context, (33, 5)).t(), draw(context, (33, 17)).t(), draw(context, (17,))), label="transposed")
    if context.effort >= Effort.STANDARD:
        yield Sample((draw(context, (7,)), draw(context, (5, 7)), draw(context, (5,))), label="vector")
        yield Sample((draw(context, (0, 7)), draw(context, (5, 7)), draw(context, (5,))), label="empty")
        yield Sample((draw(context, (4, 300)), draw(context, (9, 300)), draw(context, (9,))), label="long rows")
        yield Sample((draw(context, (64, 128)), draw(context, (64, 128)), draw(context, (64,))), label="even")


def _linear_terms(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> int:
    return x.shape[-1] + 1


ROWS: tuple[Composite, ...] = (
    Composite(
        name="softmax",
        summary="exp(x - max) / sum(exp(x - max)) along dim",
        targets={aten._softmax.default: softmax},
        bound=Accumulated(terms=lambda x, dim, _: _length(x, dim), magnitude=_softmax_magnitude, constant=4, shared=_line),
        source=OF_EXPONENTIALS,
        samples=_softmax_samples,
    ),
    Composite(
        name="softmax_backward",
        summary="output * (grad - sum(grad * output)) along dim",
        targets={aten._softmax_backward_data.default: softmax_backward},
        bound=Accumulated(
            terms=lambda g, y, dim, _: _length(g, dim),
            magnitude=_softmax_backward_magnitude,
            constant=4,
            shared=_line_of_gradient,
        ),
        source=OF_PRODUCTS + ", a sum along dim; a product and a difference more",
        samples=_softmax_backward_samples(torch.softmax),
    ),
    Composite(
        name="log_softmax",
        summary="x - max - log(sum(exp(x - max))) along dim",
        targets={aten._log_softmax.default: log_softmax},
        bound=Accumulated(terms=lambda x, dim, _: _length(x, dim), magnitude=_log_softmax_magnitude, constant=4, shared=_line),
        source=OF_EXPONENTIALS,
        samples=_softmax_samples,
    ),
    Composite(
        name="log_softmax_backward",
        summary="grad - exp(output) * sum(grad) along dim",
        targets={aten._log_softmax_backward_data.default: log_softmax_backward},
        bound=Accumulated(
            terms=lambda g, y, dim, _: _length(g, dim),
            magnitude=_log_softmax_backward_magnitude,
            constant=4,
            shared=_line_of_gradient,
        ),
        source=OF_PRODUCTS + ", a sum along dim; a product and a difference more",
        samples=_softmax_backward_samples(torch.log_softmax),
    ),
    *NORMALIZATION_ROWS,
    Composite(
        name="gelu",
        summary="x * Phi(x), or its tanh approximation",
        targets={aten.gelu.default: gelu},
        bound=Accumulated(terms=lambda *_, **__: 1, magnitude=_gelu_magnitude, constant=8),
        samples=_activation_samples(grad=False, approximate=True),
        recognize=recognize_gelu,
        source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; errors of erf or tanh and of two products added",
    ),
    Composite(
        name="gelu_backward",
        summary="grad * (Phi(x) + x * phi(x)), or the derivative of the tanh approximation",
        targets={aten.gelu_backward.default: gelu_backward},
        bound=Accumulated(terms=lambda *_, **__: 1, magnitude=_gelu_backward_magnitude, constant=8),
        source="errors of erf or tanh, exp and of four products added, relative to the sum of the parts' sizes",
        samples=_activation_samples(grad=True, approximate=True),
    ),
    Composite(
        name="silu",
        summary="x * sigmoid(x)",
        targets={aten.silu.default: silu},
        bound=in_float32(8),
        source="sigmoid (3.75 of its row's 5 ulp where the product's last place is half of its) and a rounding",
        samples=_activation_samples(grad=False, approximate=False),
    ),
    Composite(
        name="silu_backward",
        summary="grad * sigmoid(x) * (1 + x * (1 - sigmoid(x)))",
        targets={aten.silu_backward.default: silu_backward},
        bound=Accumulated(terms=lambda *_, **__: 1, magnitude=_silu_backward_magnitude, constant=8),
        source="errors of sigmoid (5 ulp) and of three products and sums added, relative to the sum of the parts' sizes",
        samples=_activation_samples(grad=True, approximate=False),
    ),
    Composite(
        name="linear",
        summary="x @ weight.T + bias",
        targets={aten.linear.default: linear},
        bound=Accumulated(terms=_linear_terms, shared=apart),
        source=OF_PRODUCTS,
        samples=_linear_samples,
        recognize=recognize_linear,
    ),
    *GROUPED_ROWS,
    *QUANTIZED_ROWS,
    *ATTENTION_ROWS,
    *LOSS_ROWS,
    Composite(
        name="dropout",
        summary="x * mask / (1 - p) with P(mask) = 1 - p, and the mask",
        targets={aten.native_dropout.default: dropout},
        bound=Distribution(_dropout_check, drawn=(1,)),
        source="binomial frequencies by the central limit theorem",
        samples=_dropout_samples,
    ),
    Composite(
        name="dropout_backward",
        summary="grad * mask * scale",
        targets={aten.native_dropout_backward.default: dropout_backward},
        bound=Ulp(1),
        source="two products, one rounding each",
        samples=_dropout_backward_samples,
    ),
    Composite(
        name="embedding",
        summary="rows of weight by index",
        targets={aten.embedding.default: embedding},
        bound=Exact(),
        source=BY_DEFINITION,
        samples=_embedding_samples,
    ),
)
