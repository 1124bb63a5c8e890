"""Attention operators of NVIDIA's kernels to that of the composite.

Torch picks one of them where it traces for a CUDA device what ``capture/attention.py`` did not see as a call: a function
traced without Dynamo, an exported program, an operator called by its name. Forward and backward are rewritten together, since
what the one saves for the other, the logarithms of sums of exponentials, has another layout in each.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten

ATTENTION = Rules()
rule = ATTENTION.rule

Tensor = torch.Tensor

_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Any:
    return _FORWARD(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)


def _seed(query: Tensor) -> Tensor:
    """In place of the state of a random generator, which without dropout nobody reads."""
    return aten.full.default([], 0, dtype=torch.int64, device=query.device)  # type: ignore[no-any-return]


def _beside(query: Tensor, key: Tensor) -> tuple[Any, ...]:
    """What two of the operators return too: places of sequences in a batch (none), lengths, seeds, a mask (none)."""
    return None, None, query.shape[2], key.shape[2], _seed(query), _seed(query), query.new_empty([0])


@rule(aten._scaled_dot_product_efficient_attention.default)
def efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    return (*_forward(query, key, value, attn_bias, is_causal, scale), _seed(query), _seed(query))


@rule(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Any,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    found = _BACKWARD(grad, query, key, value, out, logsumexp, 0.0, is_causal, attn_mask=attn_bias, scale=scale)
    if attn_bias is None or not grad_input_mask[3]:
        return *found, None
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * factor + attn_bias
    weights = torch.exp(scores - logsumexp.unsqueeze(-1))
    if is_causal:
        weights = torch.tril(weights)
    inner = torch.matmul(grad, value.transpose(-2, -1)) - (grad * out).sum(-1, keepdim=True)
    return *found, (weights * inner).sum_to_size(attn_bias.shape).to(attn_bias.dtype)


@rule(aten._scaled_dot_product_flash_attention.default)
def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p or return_debug_mask:
        return NotImplemented
    return *_forward(query, key, value, None, is_causal, scale), *_beside(query, key)


@rule(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    return _BACKWARD(grad, query, key, value, out, logsumexp, 0.0, is_causal, scale=scale)


@rule(aten._scaled_dot_product_cudnn_attention.default)
def cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p or return_debug_mask:
        return NotImplemented
    return *_forward(query, key, value, attn_bias, is_causal, scale), *_beside(query, key)


@rule(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    return _BACKWARD(grad, query, key, value, out, logsumexp, 0.0, is_causal, attn_mask=attn_bias, scale=scale)
