"""Scaled-dot-product attention as composites, forward and backward.

The two agree on the tensor saved between them: the natural logarithm of the sum of exponentials of each row of scaled scores,
in float32 for halves. A row with no key to attend to gives zeros, as in torch's kernel, and the value saved for it is 0.

With dropout, or with capped scores, they are two more, by an operator of our own (``prims.attention_operator``). With dropout
the weights' sums are over all keys, and what is multiplied with the values are the weights times their factors, the same in
both directions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.prims import attention_operator, dropout
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


def _scaled(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Products of queries and keys, times a number: (batch, heads, rows, keys)."""
    batch, heads, rows, _ = query.shape
    dtype = computation_dtype(query.dtype)
    left, right = _matrices(query, heads, dtype), _matrices(key, heads, dtype)
    scores = aten.mul.Tensor(aten.bmm.default(left, _transposed(right)), scale)
    return aten.reshape.default(scores, [batch, heads, rows, key.shape[2]])  # type: ignore[no-any-return]


def _capped(query: Tensor, key: Tensor, scale: float, cap: float | None) -> tuple[Tensor, Tensor | None]:
    """Scores before they are masked; and, where there is a cap, what of them is in units of that."""
    if cap is None:
        return _scaled(query, key, scale), None
    saturation = aten.tanh.default(_scaled(query, key, scale / cap))
    return aten.mul.Tensor(saturation, cap), saturation


def _slope(saturation: Tensor) -> Tensor:
    """The derivative of capped scores by those that are not."""
    one = number(1, saturation.dtype, saturation)
    return aten.sub.Tensor(one, aten.mul.Tensor(saturation, saturation))  # type: ignore[no-any-return]


def _scores(query: Tensor, key: Tensor, scale: float, is_causal: bool, mask: Tensor | None, cap: float | None = None) -> Tensor:
    """Scaled, capped and masked scores (batch, heads, rows, keys); what is masked is minus infinity."""
    return _masked(_capped(query, key, scale, cap)[0], is_causal, mask)


def _masked(scores: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
    *_, rows, keys = scores.shape
    dtype, device = scores.dtype, scores.device
    if is_causal:
        row = aten.unsqueeze.default(aten.arange.start_step(0, rows, 1, dtype=torch.int64, device=device), 1)
        column = aten.arange.start_step(0, keys, 1, dtype=torch.int64, device=device)
        scores = aten.where.self(aten.le.Tensor(column, row), scores, number(-math.inf, dtype, scores))
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = aten.where.self(mask, scores, number(-math.inf, dtype, scores))
        else:
            scores = aten.add.Tensor(scores, cast(mask, dtype))
    return scores


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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
    factors: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The result and the logarithm of the sum of exponentials, in the dtype that both are computed in.

    Args:
        factors: what each weight is multiplied by before it weighs a value; None: by nothing.
        cap: of the scores.
    """
    batch, heads, rows, _ = query.shape
    scores = _scores(query, key, _scale(query, scale), is_causal, mask, cap)
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
    result, saved = _attended(query, key, value, is_causal, attn_mask, scale)
    return cast(result, query.dtype), cast(saved, _STATISTICS.get(query.dtype, saved.dtype))


_STATISTICS = {dtype: torch_private.flash_statistics_dtype(dtype) for dtype in FLOATS}
"""dtype of the logsumexp that torch announces while tracing, by dtype of the query; float32 for all on torch 2.11."""


def general_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the result and the logarithm of the sum of exponentials."""
    factors = None if seed is None else dropout.weight_factors(query, key, seed, dropout_p)
    result, saved = _attended(query, key, value, is_causal, attn_mask, scale, factors, cap)
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
    factors: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, key and value; ``factors`` and ``cap`` as in ``_attended``."""
    batch, heads, rows, width = query.shape
    keys, factor = key.shape[2], _scale(query, scale)
    scores, saturation = _capped(query, key, factor, cap)
    scores = _masked(scores, is_causal, mask)
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
    if saturation is not None:
        grad_scores = aten.mul.Tensor(grad_scores, _slope(saturation))
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
    return _differentiated(grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale)


def general_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients by query, key and value."""
    factors = None if seed is None else dropout.weight_factors(query, key, seed, dropout_p)
    return _differentiated(grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale, factors, cap)


attention_operator.implement(general_attention, general_attention_backward)


def _shared(grad: Tensor, like: Tensor, heads: Any) -> Tensor:
    """Gradient in the shape of ``like``: summed over the queries that share a head."""
    batch, own, rows, width = like.shape
    grad = aten.reshape.default(grad, [batch, own, heads // own, rows, width])
    return cast(aten.sum.dim_IntList(grad, [2]), like.dtype)


def _terms(query: Tensor, key: Tensor, *_: Any, **__: Any) -> int:
    return max(query.shape[2], query.shape[3], key.shape[2])


def _softmax_of(
    query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None, cap: float | None
) -> tuple[Tensor, Tensor, Tensor | float]:
    """The attention weights; the largest absolute score of each row: the error of a score is relative to that, and a cap makes
    it no larger; and the derivative of capped scores."""
    scores, saturation = _capped(query, key, _scale(query, scale), cap)
    scores = _masked(scores, is_causal, mask)
    sizes = _scores(query.abs(), key.abs(), _scale(query, scale), False, None).amax(3, True)
    if mask is not None and mask.dtype != torch.bool:
        sizes = sizes + mask.nan_to_num(neginf=0).abs().amax(-1, True)
    return scores.softmax(3).nan_to_num(), sizes, 1.0 if saturation is None else _slope(saturation)


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
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    weights, sizes, _ = _softmax_of(query, key, is_causal, attn_mask, scale, cap)
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
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    weights, sizes, _ = _softmax_of(query, key, is_causal, attn_mask, scale, cap)
    # The derivative by scores below the cap is at most 1, it changes with a score by less than 1 / cap.
    steep = weights * (1 + 2 * sizes * (1 if cap is None else 1 + 1 / cap))
    weights = weights * (1 + 2 * sizes)
    inner = (grad * out).abs().sum(3, True)
    scores = steep * (grad.abs() @ _for_each(value.abs(), query).mT * factors + inner) * _scale(query, scale)
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
    cap: float | None = None,
) -> tuple[tuple[Tensor, Tensor], None]:
    """Of the weights with the values."""
    weights = _softmax_of(query, key, is_causal, attn_mask, scale, cap)[0] * factors
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
    cap: float | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Of the scores' gradients with the keys and with the queries, and of the weights with the gradient."""
    weights, _, slope = _softmax_of(query, key, is_causal, attn_mask, scale, cap)
    inner = (grad * out).sum(3, True)
    scores = slope * weights * (grad @ _for_each(value, query).mT * factors - inner) * _scale(query, scale)
    by_key, by_value = _products(scores.mT, query), _products((weights * factors).mT, grad)
    return [
        _products(scores, _for_each(key, query)),
        (_of_shared(by_key[0], key), _of_shared(by_key[1], key)),
        (_of_shared(by_value[0], value), _of_shared(by_value[1], value)),
    ]


def _general(of: Callable[..., Any]) -> Callable[..., Any]:
    """``of`` the weights and what they are multiplied by, for the arguments of our own operator."""

    def general(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seed: Tensor | None,
        dropout_p: float,
        is_causal: bool = False,
        attn_mask: Tensor | None = None,
        *,
        scale: float | None = None,
        cap: float | None = None,
    ) -> Any:
        factors = 1.0 if seed is None else dropout.weight_factors(query, key, seed, dropout_p)
        return of(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale, factors=factors, cap=cap)

    return general


def _general_backward(of: Callable[..., Any]) -> Callable[..., Any]:
    """As ``_general``, for those of its gradients."""

    def general(
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        seed: Tensor | None,
        dropout_p: float,
        is_causal: bool = False,
        attn_mask: Tensor | None = None,
        *,
        scale: float | None = None,
        cap: float | None = None,
    ) -> Any:
        factors = 1.0 if seed is None else dropout.weight_factors(query, key, seed, dropout_p)
        saved = query, key, value, out, logsumexp
        return of(grad, *saved, 0.0, is_causal, attn_mask=attn_mask, scale=scale, factors=factors, cap=cap)

    return general


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


def _general_cases(context: SampleContext) -> Iterator[tuple[str, tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]]:
    """Label, tensors, what follows them (a seed, a probability), and options by name."""
    ways = itertools.cycle(((0.1, None), (0.0, 2.0), (0.5, None), (0.25, 30.0)))
    for (chance, cap), (label, tensors, kwargs) in zip(ways, _cases(context), strict=False):
        given = _seed(context, chance), chance, kwargs.pop("is_causal", False), kwargs.pop("attn_mask", None)
        yield label, tensors, given, {**kwargs, "cap": cap}
    if context.effort >= Effort.STANDARD:
        few = tuple(draw(context, (1, heads, 3, 8)) for heads in (4, 2, 2))
        yield "shared heads, few rows", few, (_seed(context, 0.25), 0.25, False, None), {}
        yield "shared heads, few rows, capped", few, (None, 0.0, True, None), {"cap": 0.5}
        yield "nothing is kept", few, (_seed(context, 1.0), 1.0, False, None), {}


def _seed(context: SampleContext, chance: float) -> Tensor | None:
    return torch.randint(dropout.SEEDS, (1,), generator=context.generator) if chance else None


def _general_samples(context: SampleContext) -> Iterator[Sample]:
    for label, tensors, given, kwargs in _general_cases(context):
        yield Sample((*tensors, *given), kwargs, label=label)


def _general_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, tensors, (*given, mask), kwargs in _general_cases(context):
        wide = None if mask is None else mask.double()
        exact: list[Any] = [*(x.double() for x in tensors), *given, wide]
        out, saved = general_attention(*exact, **kwargs)
        grad = draw(context, out.shape)
        saved = saved.to(computation_dtype(context.dtype))
        yield Sample((grad, *tensors, out.to(context.dtype), saved, *given, mask), kwargs, label=label)


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
        name="general_attention",
        summary="softmax(cap(scale * query @ key.T) + mask) with weights dropped at random, @ value; also each row's logarithm",
        targets={attention_operator.OPERATOR: general_attention},
        recognize=shared_heads_of(attention_operator.OPERATOR),
        bound=Accumulated(terms=_terms, magnitude=_general(_magnitude), constant=4, shared=_row, narrowed=_general(_narrowed)),
        samples=_general_samples,
        source="Srivastava et al., Dropout, 2014; Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011; "
        "caps as in Gemma Team, Gemma 2, 2024, section 2",
    ),
    Composite(
        name="general_attention_backward",
        summary="gradients of attention with dropout or capped scores by query, key and value, from the same seed",
        targets={attention_operator.BACKWARD_OPERATOR: general_attention_backward},
        bound=Accumulated(
            terms=lambda grad, *rest, **kwargs: _terms(*rest),
            magnitude=_general_backward(_backward_magnitude),
            constant=8,
            shared=_head,
            narrowed=_general_backward(_backward_narrowed),
        ),
        samples=_general_backward_samples,
        source="Dao et al., FlashAttention, 2022, algorithm 4; gradients of scores in halves as in " + NARROWED,
    ),
)
