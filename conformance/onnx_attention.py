"""Rules of ONNX's attention: of all keys, by a running state, and what stands before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from conformance.onnx_types import Tensor, dtype_of, refuse


def _heads(x: Tensor, count: int) -> Tensor:
    """(batch, rows, heads * width) as (batch, heads, rows, width); what has four dimensions is so already."""
    return x if x.dim() == 4 else x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def _for_every_query(x: Tensor, heads: int) -> Tensor:
    """Heads of keys or values, each repeated for the neighbouring heads of queries that share it."""
    return x if x.shape[1] == heads else torch.repeat_interleave(x, heads // x.shape[1], 1)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to scores: minus infinity where a bool one is false."""
    return torch.where(mask, 0.0, -math.inf).to(dtype) if mask.dtype == torch.bool else mask.to(dtype)


def _softmax(scores: Tensor, bias: Tensor) -> Tensor:
    """Over keys; zeros in rows that the bias leaves none."""
    hidden = torch.amax(bias, -1, True) == -math.inf
    return torch.where(hidden, 0.0, torch.softmax(torch.where(hidden, 0.0, scores), -1))


def _allowed(rows: Tensor, keys: Tensor, *, causal: int, left: int, right: int) -> Tensor | None:
    """Which keys a row sees, by their positions; None where it is all of them."""
    ahead = keys - rows
    limits = [ahead <= 0] if causal else []
    limits += [ahead >= -left] if left >= 0 else []
    limits += [ahead <= right] if right >= 0 else []
    if not limits:
        return None
    seen = limits[0]
    for limit in limits[1:]:
        seen = seen & limit
    return seen


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Tensor, ...]:
    """A row's position is its own, behind the keys of the cache; where ``lengths`` says how many keys of a batch are valid,
    the last row has the last valid key's position. Halves are computed with in float32, scores and weights included."""
    flat, given = query.dim() == 3, query.dtype
    query, key, value = _heads(query, q_num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    if past_key is not None and past_value is not None:
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    dtype = torch.float64 if given == torch.float64 else torch.float32
    wide = [each.to(dtype) for each in (query, _for_every_query(key, query.shape[1]), _for_every_query(value, query.shape[1]))]
    rows, count = query.shape[2], key.shape[2]
    bias = torch.zeros(rows, count, dtype=dtype)
    if mask is not None:
        bias = bias + F.pad(_additive(mask, dtype), (0, count - mask.shape[-1]), value=-math.inf)
    keys, own = torch.arange(count), torch.arange(rows).unsqueeze(1)
    if lengths is not None:
        own = own + (lengths - rows).reshape(-1, 1, 1, 1)
    elif past_key is not None:
        own = own + past_key.shape[2]
    seen = _allowed(own, keys, causal=is_causal, left=left_window_size, right=right_window_size)
    if seen is not None:
        bias = bias + _additive(seen, dtype)
    if lengths is not None:
        bias = bias + _additive(keys < lengths.reshape(-1, 1, 1, 1), dtype)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(wide[0], wide[1].transpose(2, 3)) * factor
    capped = softcap * torch.tanh(scores / softcap) if softcap else scores
    biased = capped + bias
    weights = _softmax(biased.to(dtype if softmax_precision is None else dtype_of(softmax_precision)), bias).to(dtype)
    result = torch.matmul(weights, wide[2]).to(given)
    shown = (scores, capped, biased, weights)[qk_matmul_output_mode].to(given)
    return (result.transpose(1, 2).flatten(2) if flat else result), key, value, shown


def _flex_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None, **changes: Any) -> Tensor:
    refuse(changes.keys() - {"softmax_precision"}, "FlexAttention with functions of scores")
    return _attention(query, key, value, scale=scale, **changes)[0]


# By a running state


def _linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """A matrix of keys by values that every position decays and adds to, step by step, in float32 for halves."""
    refuse(query.dim() != 3, "LinearAttention of other than three dimensions")
    dtype, wide = query.dtype, torch.float64 if query.dtype == torch.float64 else torch.float32
    queries, keys, values = (
        _heads(each.to(wide), count) for each, count in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    state = torch.zeros(*keys.shape[:2], keys.shape[3], values.shape[3]) if past is None else past.to(wide)
    decays = None if decay is None else _heads(decay.to(wide), kv_num_heads)
    rates = None if beta is None else beta.to(wide).transpose(1, 2)
    results = []
    for step in range(query.shape[1]):
        if decays is not None:
            state = state * torch.exp(decays[:, :, step]).unsqueeze(-1)
        own = values[:, :, step]
        if "delta" in update_rule:
            own = own - torch.matmul(keys[:, :, step].unsqueeze(-2), state).squeeze(-2)
            own = own if rates is None else own * rates[:, :, step].unsqueeze(-1)
        state = state + keys[:, :, step].unsqueeze(-1) * own.unsqueeze(-2)
        shared = _for_every_query(state, q_num_heads)
        results.append(torch.matmul(queries[:, :, step].unsqueeze(-2), shared).squeeze(-2))
    factor = scale or 1 / math.sqrt(queries.shape[-1])
    result = torch.stack(results, 1) * factor
    return result.flatten(2).to(dtype), state.to(dtype)


def _causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """Each channel by itself, over what came before; the last inputs are the state."""
    held = weight.shape[-1] - 1
    before = torch.zeros(*x.shape[:2], held, dtype=x.dtype) if past is None else past
    whole = torch.cat([before, x], 2)
    result = F.conv1d(whole, weight, bias, groups=x.shape[1])
    return (F.silu(result) if activation in ("silu", "swish") else result), whole.narrow(2, whole.shape[2] - held, held).clone()


def _rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    shape = x.shape
    if x.dim() == 3:
        x = x.reshape(shape[0], shape[1], num_heads, -1)
    else:
        x = x.transpose(1, 2)
    width = rotary_embedding_dim or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (each[..., : width // 2].unsqueeze(2) for each in (cos, sin))
    left, right = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    real, imaginary = cos * left - sin * right, sin * left + cos * right
    if interleaved:
        turned = torch.stack([real, imaginary], -1).flatten(-2)
    else:
        turned = torch.cat([real, imaginary], -1)
    result = torch.cat([turned, rest], -1)
    return result.reshape(shape) if len(shape) == 3 else result.transpose(1, 2)


RULES: Mapping[str, Callable[..., Any]] = {
    "Attention": _attention,
    "FlexAttention": _flex_attention,
    "LinearAttention": _linear_attention,
    "CausalConvWithState": _causal_conv,
    "RotaryEmbedding": _rotary,
}
