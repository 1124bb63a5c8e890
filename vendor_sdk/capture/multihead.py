"""Multi-head attention: without weights that nobody reads, and with dropout opened up to the attention within it.

Dynamo keeps ``torch.nn.functional.multi_head_attention_forward`` (of ``nn.TransformerEncoderLayer``) as one call, and torch
would take the attention in it to pieces while it traces. Here such a call becomes projections,
``scaled_dot_product_attention``, which ``capture.attention`` then finds, and a projection.
"""

from __future__ import annotations

import inspect
import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from vendor_sdk.capture.nodes import Maker, value_of

_FUNCTION = F.multi_head_attention_forward
_SIGNATURE = inspect.signature(_FUNCTION)
_UNUSUAL = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v", "need_weights")
"""Arguments with which it computes something else."""


def open_attention(module: fx.GraphModule) -> None:
    """Rewrites multi-head attention in a graph of Dynamo and those within it: weights that nobody reads are not asked for, and
    calls that drop weights and return none are opened up."""
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            calls = each.graph.find_nodes(op="call_function", target=_FUNCTION)
            if [node for node in calls if _without_weights(node) | _opened(node)]:
                each.recompile()


def _bound(node: fx.Node) -> inspect.BoundArguments:
    bound = _SIGNATURE.bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound


def _without_weights(node: fx.Node) -> bool:
    """Whether a call's weights were asked for, as ``nn.MultiheadAttention`` does unless it is told, and are no more."""
    bound, results = _bound(node), list(node.users)
    known = all(user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in results)
    if bound.arguments["need_weights"] is not True or not known:
        return False
    for user in results:
        if user.args[1] != 0:
            node.graph.erase_node(user)
    bound.arguments["need_weights"] = False
    node.args, node.kwargs = bound.args, bound.kwargs
    node.meta["example_value"] = value_of(node)[0], None
    return True


def _opened(node: fx.Node) -> bool:
    given = _bound(node).arguments
    masks = [given["attn_mask"], given["key_padding_mask"]]
    if not given["training"] or not given["dropout_p"] or any(given[name] is not None and given[name] for name in _UNUSUAL):
        return False
    if any(value_of(mask) is not None and value_of(mask).requires_grad for mask in masks):
        return False
    results = list(node.users)
    if any(user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in results):
        return False
    if any(not isinstance(value_of(given[name]), torch.Tensor) for name in ("query", "key", "value")):
        return False
    # The mode that Dynamo traced in, not the one of the compilation under way.
    with node.graph.inserting_before(node), value_of(given["query"]).fake_mode:
        out = _computed(Maker(node), **given)
    for user in results:
        if user.args[1] == 0:
            user.replace_all_uses_with(out)
        node.graph.erase_node(user)
    node.graph.erase_node(node)
    return True


def _computed(
    put: Maker,
    *,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    num_heads: int,
    in_proj_weight: fx.Node | None,
    in_proj_bias: fx.Node | None,
    dropout_p: float,
    out_proj_weight: fx.Node,
    out_proj_bias: fx.Node | None,
    key_padding_mask: fx.Node | None,
    attn_mask: fx.Node | None,
    is_causal: bool,
    use_separate_proj_weight: bool,
    q_proj_weight: fx.Node | None,
    k_proj_weight: fx.Node | None,
    v_proj_weight: fx.Node | None,
    **_: Any,
) -> fx.Node:
    """The result for operands of (rows, batch, width), or without the batch; nodes take no sizes, which may be symbols."""
    batched = value_of(query).dim() == 3
    dtype = value_of(query).dtype
    if not use_separate_proj_weight and query is key is value:
        packed = put(F.linear, query, in_proj_weight, in_proj_bias)
        split = put(torch.chunk, packed, 3, -1)
        projected = [put(operator.getitem, split, i) for i in range(3)]
    else:
        separate = [q_proj_weight, k_proj_weight, v_proj_weight]
        weights = separate if use_separate_proj_weight else _thirds(put, in_proj_weight)
        biases = _thirds(put, in_proj_bias)
        projected = [put(F.linear, *each) for each in zip((query, key, value), weights, biases, strict=True)]
    heads = [put(torch.unflatten, x, -1, (num_heads, -1)) for x in projected]
    heads = [put(torch.permute, x, (1, 2, 0, 3) if batched else (1, 0, 2)) for x in heads]
    causal = is_causal and key_padding_mask is None
    mask = None if causal else _added(put, attn_mask, dtype)
    if mask is not None and batched and value_of(mask).dim() == 3:  # (batch * heads, rows, keys)
        mask = put(torch.unflatten, mask, 0, (-1, num_heads))
    padding = _added(put, key_padding_mask, dtype)
    if padding is not None and batched:  # (batch, keys)
        padding = put(torch.unflatten, padding, 0, (-1, 1, 1))
    if mask is None or padding is None:
        mask = padding if mask is None else mask
    else:
        mask = put(torch.add, mask, padding)
    attended = put(F.scaled_dot_product_attention, *heads, mask, dropout_p, causal)
    beside = put(torch.permute, attended, (2, 0, 1, 3) if batched else (1, 0, 2))
    return put(F.linear, put(torch.flatten, beside, -2), out_proj_weight, out_proj_bias)


def _thirds(put: Maker, x: fx.Node | None) -> list[fx.Node | None]:
    """Three parts along the first dimension; of nothing, nothing."""
    if x is None:
        return [None] * 3
    parts = put(torch.chunk, x, 3, 0)
    return [put(operator.getitem, parts, i) for i in range(3)]


def _added(put: Maker, mask: fx.Node | None, dtype: torch.dtype) -> fx.Node | None:
    """A mask as numbers to be added: where it was true, nothing is seen."""
    if mask is None or value_of(mask).dtype != torch.bool:
        return mask
    return put(torch.masked_fill, put(torch.zeros_like, mask, dtype=dtype), mask, -math.inf)
