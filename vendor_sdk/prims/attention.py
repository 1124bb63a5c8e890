"""Scaled-dot-product attention as composites, forward and backward.

The two agree on the tensor saved between them: the natural logarithm of the sum of exponentials of each row of scaled scores,
in float32 for halves. A row with no key to attend to gives zeros, as in torch's kernel, and the value saved for it is 0.

With dropout they are two more, by an operator of our own (``prims.dropout``): the weights' sums are over all keys, and what is
multiplied with the values are the weights times their factors, the same in both directions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.prims import dropout
from vendor_sdk.prims.bounds import Accumulated
from vendor_sdk.prims.recognize import shared_heads_of
from vendor_sdk.prims.row import FLOATS, Composite
from vendor_sdk.prims.samples import Effort, Sample, SampleContext, draw
from vendor_sdk.prims.widen import cast, computation_dtype, number

aten = torch.ops.aten
Tensor = torch.Tensor


def _matrices(x: Tensor, heads: Any, dtype: torch.dtype) -> Tensor:
    """(batch, heads of x, rows, width) to (batch * heads, rows, width); heads shared by a group of queries are repeated."""
    x = cast(x, dtype)
    batch, own, rows, width = x.shape
    if own != heads:
        grouped = aten.expand.default(aten.unsqueeze.default(x, 2), [batch, own, heads // own, rows, width])
        x = aten.reshape.default(grouped, [batch, heads, rows, width])
    return aten.reshape.default(x, [batch * heads, rows, width])  # type: ignore[no-any-return]


def _transposed(x: Tensor) -> Tensor:
    return aten.permute.default(x, [0, 2, 1])  # type: ignore[no-any-return]


def _scores(query: Tensor, key: Tensor, scale: float, is_causal: bool, mask: Tensor | None) -> Tensor:
    """Scaled and masked scores (batch, heads, rows, keys); what is masked is minus infinity."""
    batch, heads, rows, _ = query.shape
    keys = key.shape[2]
    dtype = computation_dtype(query.dtype)
    left, right = _matrices(query, heads, dtype), _matrices(key, heads, dtype)
    scores = aten.mul.Tensor(aten.bmm.default(left, _transposed(right)), scale)
    scores = aten.reshape.default(scores, [batch, heads, rows, keys])
    if is_causal:
        row = aten.unsqueeze.default(aten.arange.start_step(0, rows, 1, dtype=torch.int64, device=query.device), 1)
        column = aten.arange.start_step(0, keys, 1, dtype=torch.int64, device=query.device)
        scores = aten.where.self(aten.le.Tensor(column, row), scores, number(-math.inf, dtype, query))
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = aten.where.self(mask, scores, number(-math.inf, dtype, query))
        else:
            scores = aten.add.Tensor(scores, cast(mask, dtype))
    return scores  # type: ignore[no-any-return]


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _weights(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax over the keys, with the maximum and the sum of exponentials; a row that is masked whole gets zeros."""
    zero, one = number(0, scores.dtype, scores), number(1, scores.dtype, scores)
    peak = aten.amax.default(scores, [3], True)
    peak = aten.where.self(aten.eq.Tensor(peak, number(-math.inf, scores.dtype, scores)), zero, peak)
    weights = aten.exp.default(aten.sub.Tensor(scores, peak))
    total = aten.sum.dim_IntList(weights, [3], True)
    total = aten.where.self(aten.eq.Tensor(total, zero), one, total)
    return aten.div.Tensor(weights, total), peak, total


def _attended(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None, factors: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The result and the logarithm of the sum of exponentials, in the dtype that both are computed in.

    Args:
        factors: what each weight is multiplied by before it weighs a value; None: by nothing.
    """
    batch, heads, rows, _ = query.shape
    scores = _scores(query, key, _scale(query, scale), is_causal, mask)
    weights, peak, total = _weights(scores)
    if factors is not None:
        weights = aten.mul.Tensor(weights, factors)
    values = _matrices(value, heads, scores.dtype)
    result = aten.bmm.default(aten.reshape.default(weights, [batch * heads, rows, key.shape[2]]), values)
    result = aten.reshape.default(result, [batch, heads, rows, value.shape[3]])
    return result, aten.reshape.default(aten.add.Tensor(peak, aten.log.default(total)), [batch, heads, rows])


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Returns the result and the logarithm of the sum of exponentials; ``NotImplemented`` with dropout."""
    if dropout_p:
        return NotImplemented
    result, saved = _attended(query, key, value, is_causal, attn_mask, scale, None)
    return cast(result, query.dtype), cast(saved, _STATISTICS.get(query.dtype, saved.dtype))


_STATISTICS = {dtype: torch_private.flash_statistics_dtype(dtype) for dtype in FLOATS}
"""dtype of the logsumexp that torch announces while tracing, by dtype of the query; float32 for all on torch 2.11."""


def dropout_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the result and the logarithm of the sum of exponentials."""
    factors = dropout.weight_factors(query, key, seed, dropout_p)
    result, saved = _attended(query, key, value, is_causal, attn_mask, scale, factors)
    return cast(result, query.dtype), saved


def _differentiated(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
    factors: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, key and value; ``factors`` as in ``_attended``."""
    batch, heads, rows, width = query.shape
    keys, factor = key.shape[2], _scale(query, scale)
    scores = _scores(query, key, factor, is_causal, mask)
    dtype = scores.dtype
    if logsumexp.dtype == dtype:
        weights = aten.exp.default(aten.sub.Tensor(scores, aten.unsqueeze.default(logsumexp, 3)))
    else:  # saved with fewer digits than the gradients have
        weights, _, _ = _weights(scores)
    wide = cast(grad, dtype)
    matrix_grad = _matrices(grad, heads, dtype)
    values = _matrices(value, heads, dtype)
    grad_weights = aten.bmm.default(matrix_grad, _transposed(values))
    grad_weights = aten.reshape.default(grad_weights, [batch, heads, rows, keys])
    weighing = weights
    if factors is not None:
        weighing, grad_weights = aten.mul.Tensor(weights, factors), aten.mul.Tensor(grad_weights, factors)
    # The sum of weights times their gradients, with factors as without.
    inner = aten.sum.dim_IntList(aten.mul.Tensor(wide, cast(out, dtype)), [3], True)
    grad_scores = aten.mul.Tensor(aten.mul.Tensor(weights, aten.sub.Tensor(grad_weights, inner)), factor)
    grad_scores = aten.reshape.default(grad_scores, [batch * heads, rows, keys])
    matrix_weights = aten.reshape.default(weighing, [batch * heads, rows, keys])
    grad_query = aten.bmm.default(grad_scores, _matrices(key, heads, dtype))
    grad_key = aten.bmm.default(_transposed(grad_scores), _matrices(query, heads, dtype))
    grad_value = aten.bmm.default(_transposed(matrix_weights), matrix_grad)
    return (
        cast(aten.reshape.default(grad_query, [batch, heads, rows, width]), query.dtype),
        _shared(grad_key, key, heads),
        _shared(grad_value, value, heads),
    )


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Returns the gradients by query, key and value; ``NotImplemented`` with dropout."""
    if dropout_p:
        return NotImplemented
    return _differentiated(grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale, None)


def dropout_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients by query, key and value."""
    factors = dropout.weight_factors(query, key, seed, dropout_p)
    return _differentiated(grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale, factors)


dropout.implement(dropout_attention, dropout_attention_backward)


def _shared(grad: Tensor, like: Tensor, heads: Any) -> Tensor:
    """Gradient in the shape of ``like``: summed over the queries that share a head."""
    batch, own, rows, width = like.shape
    grad = aten.reshape.default(grad, [batch, own, heads // own, rows, width])
    return cast(aten.sum.dim_IntList(grad, [2]), like.dtype)


def _terms(query: Tensor, key: Tensor, *_: Any, **__: Any) -> int:
    return max(query.shape[2], query.shape[3], key.shape[2])


def _softmax_of(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> tuple[Tensor, Tensor]:
    """The attention weights, and the largest absolute score of each row: the error of a score is relative to that."""
    scores = _scores(query, key, _scale(query, scale), is_causal, mask)
    sizes = _scores(query.abs(), key.abs(), _scale(query, scale), False, None).amax(3, True)
    if mask is not None and mask.dtype != torch.bool:
        sizes = sizes + mask.nan_to_num(neginf=0).abs().amax(-1, True)
    return scores.softmax(3).nan_to_num(), sizes


def _for_each(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with a head for each of the queries'."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _magnitude(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    factors: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    weights, sizes = _softmax_of(query, key, is_causal, attn_mask, scale)
    return (weights * factors) @ _for_each(value.abs(), query) * (1 + 2 * sizes), 2 + 2 * sizes.squeeze(3)


def _backward_magnitude(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    factors: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    weights, sizes = _softmax_of(query, key, is_causal, attn_mask, scale)
    weights = weights * (1 + 2 * sizes)
    inner = (grad * out).abs().sum(3, True)
    scores = weights * (grad.abs() @ _for_each(value.abs(), query).mT * factors + inner) * _scale(query, scale)
    by_key, by_value = scores.mT @ query.abs(), (weights * factors).mT @ grad.abs()
    return scores @ _for_each(key.abs(), query), _of_shared(by_key, key), _of_shared(by_value, value)


def _narrowed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    factors: Tensor | float = 1.0,
) -> tuple[tuple[Tensor, Tensor], None]:
    """Of the weights with the values."""
    weights = _softmax_of(query, key, is_causal, attn_mask, scale)[0] * factors
    return _products(weights, _for_each(value, query)), None


def _backward_narrowed(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    factors: Tensor | float = 1.0,
) -> list[tuple[Tensor, Tensor]]:
    """Of the scores' gradients with the keys and with the queries, and of the weights with the gradient."""
    weights, _ = _softmax_of(query, key, is_causal, attn_mask, scale)
    inner = (grad * out).sum(3, True)
    scores = weights * (grad @ _for_each(value, query).mT * factors - inner) * _scale(query, scale)
    by_key, by_value = _products(scores.mT, query), _products((weights * factors).mT, grad)
    return [
        _products(scores, _for_each(key, query)),
        (_of_shared(by_key[0], key), _of_shared(by_key[1], key)),
        (_of_shared(by_value[0], value), _of_shared(by_value[1], value)),
    ]


def _dropped(of: Callable[..., Any]) -> Callable[..., Any]:
    """``of`` the weights and what they are multiplied by, for the arguments of attention with dropout."""

    def dropped(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seed: Tensor,
        dropout_p: float,
        is_causal: bool = False,
        attn_mask: Tensor | None = None,
        *,
        scale: float | None = None,
    ) -> Any:
        factors = dropout.weight_factors(query, key, seed, dropout_p)
        return of(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale, factors=factors)

    return dropped


def _dropped_backward(of: Callable[..., Any]) -> Callable[..., Any]:
    """As ``_dropped``, for those of its gradients."""

    def dropped(
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        seed: Tensor,
        dropout_p: float,
        is_causal: bool = False,
        attn_mask: Tensor | None = None,
        *,
        scale: float | None = None,
    ) -> Any:
        factors = dropout.weight_factors(query, key, seed, dropout_p)
        saved = query, key, value, out, logsumexp
        return of(grad, *saved, 0.0, is_causal, attn_mask=attn_mask, scale=scale, factors=factors)

    return dropped


def _products(taken: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of products, absolute and squared, with ``taken`` as large as what its rounding is relative to."""
    taken = taken.abs().clamp(min=torch.finfo(torch.float16).smallest_normal)
    return taken @ others.abs(), taken.square() @ others.square()


def _of_shared(x: Tensor, like: Tensor) -> Tensor:
    """Summed over the queries' heads that share one of keys or values."""
    batch, own, rows, width = like.shape
    return x.reshape(batch, own, -1, rows, width).sum(2)


def _row(*_: Any, **__: Any) -> Sequence[int]:
    """Results of one row of scores share its sum of exponentials."""
    return (3,)


def _head(*_: Any, **__: Any) -> Sequence[int]:
    """Gradients by keys and values are sums over all rows of scores."""
    return (2, 3)


def _cases(context: SampleContext) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor], dict[str, Any]]]:
    def heads(rows: int, width: int = 8, count: int = 2) -> Tensor:
        return draw(context, (2, count, rows, width))

    yield "square", (heads(7), heads(7), heads(7)), {}
    yield "causal", (heads(9), heads(9), heads(9)), {"is_causal": True}
    if context.effort >= Effort.STANDARD:
        added = draw(context, (5, 11))
        yield "more keys than rows", (heads(5), heads(11), heads(11)), {}
        yield "added mask", (heads(5), heads(11), heads(11)), {"attn_mask": added}
        padding = torch.where(torch.arange(11) < torch.tensor([8, 3]).view(2, 1, 1, 1), 0.0, -math.inf).to(context.dtype)
        yield "padding, one row for all", (heads(5), heads(11), heads(11)), {"attn_mask": padding}
        few = torch.where(torch.arange(11) < torch.tensor([0, 1, 11, 2, 0]).view(5, 1), 0.0, -math.inf).to(context.dtype)
        yield "rows with no key", (heads(5), heads(11), heads(11)), {"attn_mask": few}
        yield "one mask a key", (heads(5), heads(11), heads(11)), {"attn_mask": draw(context, (1, 2, 1, 11))}
        yield "one mask a row", (heads(5), heads(11), heads(11)), {"attn_mask": draw(context, (2, 1, 5, 1))}
        yield "keys all alike", (heads(3), heads(1).expand(2, 2, 600, 8), heads(600)), {}
        yield "many rows", (heads(64), heads(64), heads(64)), {}
        yield "own scale", (heads(5, 16), heads(5, 16), heads(5, 16)), {"scale": 0.5}
        yield "transposed", tuple(draw(context, (2, 7, 2, 8)).transpose(1, 2) for _ in range(3)), {}  # type: ignore[misc]


def _samples(context: SampleContext) -> Iterator[Sample]:
    for label, tensors, kwargs in _cases(context):
        causal = kwargs.pop("is_causal", False)
        yield Sample((*tensors, 0.0, causal), kwargs, label=label)


def _backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, tensors, kwargs in _cases(context):
        causal = kwargs.pop("is_causal", False)
        mask = kwargs.get("attn_mask")
        wide = None if mask is None else mask.double()
        query, key, value = (x.double() for x in tensors)
        out, saved = attention(query, key, value, 0.0, causal, attn_mask=wide, scale=kwargs.get("scale"))
        grad = draw(context, out.shape)
        saved = saved.to(computation_dtype(context.dtype))
        yield Sample((grad, *tensors, out.to(context.dtype), saved, 0.0, causal), kwargs, label=label)


def _dropout_cases(context: SampleContext) -> Iterator[tuple[str, tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]]:
    """Label, tensors, what follows the seed, and the scale."""
    for chance, (label, tensors, kwargs) in zip(itertools.cycle((0.1, 0.5)), _cases(context)):
        yield label, tensors, (chance, kwargs.pop("is_causal", False), kwargs.pop("attn_mask", None)), kwargs
    if context.effort >= Effort.STANDARD:
        few = tuple(draw(context, (1, heads, 3, 8)) for heads in (4, 2, 2))
        yield "shared heads, few rows", few, (0.25, False, None), {}
        yield "nothing is kept", few, (1.0, False, None), {}


def _seed(context: SampleContext) -> Tensor:
    return torch.randint(dropout.SEEDS, (1,), generator=context.generator)


def _dropout_samples(context: SampleContext) -> Iterator[Sample]:
    for label, tensors, given, kwargs in _dropout_cases(context):
        yield Sample((*tensors, _seed(context), *given), kwargs, label=label)


def _dropout_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, tensors, (chance, causal, mask), kwargs in _dropout_cases(context):
        seed = _seed(context)
        wide = None if mask is None else mask.double()
        query, key, value = (x.double() for x in tensors)
        out, saved = dropout_attention(query, key, value, seed, chance, causal, wide, scale=kwargs.get("scale"))
        grad = draw(context, out.shape)
        saved = saved.to(computation_dtype(context.dtype))
        yield Sample((grad, *tensors, out.to(context.dtype), saved, seed, chance, causal, mask), kwargs, label=label)


_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default

NARROWED = "Dao, FlashAttention-2, 2023"
"""Kernels that round weights and gradients of scores to halves, as matrix units take them."""

ATTENTION_ROWS: tuple[Composite, ...] = (
    Composite(
        name="scaled_dot_product_attention",
        summary="softmax(scale * query @ key.T + mask) @ value; also the logarithm of each row's sum of exponentials",
        targets={_FLASH: attention},
        recognize=shared_heads_of(_FLASH),
        bound=Accumulated(terms=_terms, magnitude=_magnitude, constant=4, shared=_row, narrowed=_narrowed),
        samples=_samples,
        source="Vaswani et al., Attention Is All You Need, 2017, equation 1; weights in halves as in " + NARROWED,
    ),
    Composite(
        name="scaled_dot_product_attention_backward",
        summary="gradients of attention by query, key and value, from the saved logarithms",
        targets={aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward},
        bound=Accumulated(
            terms=lambda grad, *rest, **kwargs: _terms(*rest),
            magnitude=_backward_magnitude,
            constant=8,
            shared=_head,
            narrowed=_backward_narrowed,
        ),
        samples=_backward_samples,
        source="Dao et al., FlashAttention, 2022, algorithm 4; gradients of scores in halves as in " + NARROWED,
    ),
    Composite(
        name="dropout_attention",
        summary="softmax(scale * query @ key.T + mask) with weights dropped at random, @ value; also each row's logarithm",
        targets={dropout.OPERATOR: dropout_attention},
        recognize=shared_heads_of(dropout.OPERATOR),
        bound=Accumulated(terms=_terms, magnitude=_dropped(_magnitude), constant=4, shared=_row, narrowed=_dropped(_narrowed)),
        samples=_dropout_samples,
        source="Srivastava et al., Dropout, 2014; Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011",
    ),
    Composite(
        name="dropout_attention_backward",
        summary="gradients of attention with dropout by query, key and value, from the same seed",
        targets={dropout.BACKWARD_OPERATOR: dropout_attention_backward},
        bound=Accumulated(
            terms=lambda grad, *rest, **kwargs: _terms(*rest),
            magnitude=_dropped_backward(_backward_magnitude),
            constant=8,
            shared=_head,
            narrowed=_dropped_backward(_backward_narrowed),
        ),
        samples=_dropout_backward_samples,
        source="Dao et al., FlashAttention, 2022, algorithm 4; gradients of scores in halves as in " + NARROWED,
    ),
)
