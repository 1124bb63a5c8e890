"""Attention as an operator of our own: with weights that dropout drops, or scores that are capped, which torch's cannot say.

What is kept by dropout follows from an operand, a seed (``prims.dropout``). The cap is that of Gemma 2 and Grok: scores become
``cap * tanh(score / cap)`` before masks hide some. Without either it is torch's own function, for which torch has an operator.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"
# (torch.ops is untyped: every operator call is an Any. So are the methods of torch.library.)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from vendor_sdk.prims.widen import computation_dtype

Tensor = torch.Tensor

_TAIL = "Tensor? seed, float dropout_p, bool is_causal=False, Tensor? attn_mask=None, *, float? scale=None, float? cap=None"
_LIBRARY = torch.library.Library("vendor_sdk", "FRAGMENT")
_LIBRARY.define(f"general_attention(Tensor query, Tensor key, Tensor value, {_TAIL}) -> (Tensor, Tensor)")
_LIBRARY.define(
    "general_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    f"{_TAIL}) -> (Tensor, Tensor, Tensor)"
)
OPERATOR = torch.ops.vendor_sdk.general_attention.default
"""``general_attention(query, key, value, seed, dropout_p, is_causal, attn_mask, *, scale, cap)``: ``out`` and ``logsumexp``.

* query (batch, heads, rows, width), key (batch, shared, keys, width), value (batch, shared, keys, depth), of one floating
  dtype; ``heads`` is a multiple of ``shared``. ``attn_mask`` broadcasts to (batch, heads, rows, keys): bools, or numbers
  that are added to the scores.
* seed: one int64, of shape (1,); None: nothing is dropped, and ``dropout_p`` is 0.
* cap: a positive number, scores become ``cap * tanh(score / cap)`` before anything is added to them; None: they stay.
* out (batch, heads, rows, depth): the softmax over all keys, of which each weight is multiplied by ``kept_factor(dropout_p)``
  or by 0 (``weight_factors``), times the values. Rows without a key that they see are zero.
* logsumexp (batch, heads, rows): the logarithm of the sum of the exponentials of all scores, in float32 for halves.

Both results and the three gradients lie in memory as torch's attention on CPU has them: rows outside of heads.
"""
BACKWARD_OPERATOR = torch.ops.vendor_sdk.general_attention_backward.default
"""The gradients by query, key and value for the same seed."""


def _check(query: Tensor, key: Tensor, value: Tensor, seed: Tensor | None, dropout_p: float, cap: float | None) -> None:
    if any(x.dim() != 4 for x in (query, key, value)):
        counts = f"{query.dim()}, {key.dim()} and {value.dim()}"
        raise RuntimeError(f"general_attention takes query, key and value of 4 dimensions, not {counts}")
    if len({query.dtype, key.dtype, value.dtype}) > 1 or not query.dtype.is_floating_point:
        raise RuntimeError(f"general_attention: {query.dtype}, {key.dtype} and {value.dtype} are no one floating dtype")
    if seed is not None and (seed.dtype != torch.int64 or seed.dim() != 1 or seed.shape[0] != 1):
        raise RuntimeError(f"general_attention: the seed is one int64, not {seed.dtype} {tuple(seed.shape)}")
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"general_attention: {dropout_p} is no probability")
    if seed is None and dropout_p:
        raise RuntimeError(f"general_attention: a probability of {dropout_p} needs a seed")
    if cap is not None and not 0 < cap < math.inf:
        raise RuntimeError(f"general_attention: the cap of scores is a positive number, not {cap}")


def _beside(x: Tensor, *shape: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for (batch, heads, rows, width) in which heads of a row lie beside each other."""
    batch, heads, rows, width = shape
    return x.new_empty((batch, rows, heads, width), dtype=dtype or x.dtype).transpose(1, 2)


def _results(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    *rest: Any,
    cap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Checked; their elements are anything."""
    _check(query, key, value, seed, dropout_p, cap)
    out = _beside(query, *query.shape[:3], value.shape[3])
    return out, query.new_empty(query.shape[:3], dtype=computation_dtype(query.dtype))


def _gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, *rest: Any, **kwargs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Checked; their elements are anything."""
    _results(query, key, value, *rest, **kwargs)
    return _beside(query, *query.shape), _beside(key, *key.shape), _beside(value, *value.shape)


torch.library.register_fake("vendor_sdk::general_attention", _results, lib=_LIBRARY)
torch.library.register_fake("vendor_sdk::general_attention_backward", _gradients, lib=_LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, seed, dropout_p, is_causal, attn_mask = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, *output, seed, attn_mask)
    ctx.given = dropout_p, is_causal
    ctx.options = keyword_only_inputs


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    *saved, mask = ctx.saved_tensors
    return (*BACKWARD_OPERATOR(grad, *saved, *ctx.given, mask, **ctx.options), None, None, None, None)


torch.library.register_autograd("vendor_sdk::general_attention", _differentiate, setup_context=_save, lib=_LIBRARY)


def implement(forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """Has the two operators run these functions wherever torch computes."""

    def lying(function: Callable[..., Any], outlines: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            places = outlines(*args, **kwargs)
            return tuple(place.copy_(x) for place, x in zip(places, function(*args, **kwargs), strict=True))

        return run

    _LIBRARY.impl("general_attention", lying(forward, _results), "CompositeExplicitAutograd")
    _LIBRARY.impl("general_attention_backward", lying(backward, _gradients), "CompositeExplicitAutograd")
