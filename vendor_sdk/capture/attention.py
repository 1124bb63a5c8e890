"""Attention as the composite, on any device.

Torch decides while it traces which of its kernels an attention call becomes, by device, mask and dtype; only on CPU is that the
operator of the composite. Elsewhere it would be one of several of NVIDIA's, with results of their own, or, with most masks, a
chain of matrix products. So calls in the graph of Dynamo become the composite's operator before AOTAutograd sees them, whether
or not a backend claims the composite. Calls with dropout or capped scores, which torch has no operator for that any device
could have, become one of ours (``prims.attention_operator``) on CPU too, with a seed that is drawn for them. What neither
operator says (a mask with a gradient) becomes the chain of prims that it is on CPU. Both take operands as they are: what torch
does to those of its own function (autocast, bools as numbers to add, one head for all) is spelled out before them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.capture.nodes import origin_of
from vendor_sdk.prims import attention_operator, dropout

aten = torch.ops.aten

_OPERATOR = aten._scaled_dot_product_flash_attention_for_cpu.default
_CHAIN = aten._scaled_dot_product_attention_math.default


def keep_attention(module: fx.GraphModule, *, everywhere: bool = False) -> None:
    """Rewrites attention calls of a graph of Dynamo in place, those of graphs within it (what is computed again) too. On CPU,
    calls without dropout stay whose operands have four dimensions and heads of their own: torch itself does the same there, up
    to the form of masks.

    Args:
        everywhere: rewrite those on CPU too, which stand for another device (``Target``).
    """
    for each in module.modules():
        if isinstance(each, fx.GraphModule) and _rewrite_all(each, everywhere):
            each.recompile()


def _rewrite_all(module: fx.GraphModule, everywhere: bool) -> bool:
    """Whether anything was to be done."""
    calls = module.graph.find_nodes(op="call_function", target=torch.nn.functional.scaled_dot_product_attention)
    done = [keep_call(node, everywhere=everywhere) for node in calls]
    return any(done)


def keep_call(node: Any, *, everywhere: bool = False, cap: float | None = None) -> bool:
    """``keep_attention`` for one call of ``scaled_dot_product_attention``; whether anything was to be done.

    Args:
        cap: what the call is to do besides: scores become ``cap * tanh(score / cap)`` before the mask. Nothing is done where no
            operator says that.
    """
    query = node.args[0] if node.args else node.kwargs["query"]
    value = query.meta.get("example_value") if isinstance(query, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return False
    away = everywhere or value.device.type != "cpu"
    call = _read(node, cap, *node.args, **node.kwargs)
    if cap is not None and call is None:
        return False
    if call is not None and (away or call.ours or call.flat or call.spread):
        _rewrite(node, call)
    elif call is None and away:
        _spell_out(node, *node.args, **node.kwargs)
    else:
        return False
    return True


class _Call(NamedTuple):
    """A call that an operator can say.

    Attributes:
        operands: query, key and value.
        times: how many heads of queries share one of keys.
        spread: whether they share it because it is the only one, without having been asked to.
        flat: whether operands have no dimension of batches.
        cap: of scores.
    """

    operands: list[fx.Node]
    mask: fx.Node | None
    dropout_p: float
    causal: bool
    scale: float | None
    times: int
    spread: bool
    flat: bool
    cap: float | None

    @property
    def ours(self) -> bool:
        """Whether it takes our own operator."""
        return self.dropout_p > 0 or self.cap is not None


def _read(
    node: fx.Node,
    cap: float | None,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> _Call | None:
    """What a call says; None where no operator says the same."""
    if not isinstance(is_causal, bool) or not (scale is None or isinstance(scale, float)):
        return None
    if not isinstance(dropout_p, int | float) or not 0 <= dropout_p <= 1:
        return None
    nodes = [query, key, value]
    tensors = [t for each in nodes if isinstance(t := each.meta.get("example_value"), torch.Tensor)]
    if len(tensors) < 3 or len({t.dim() for t in tensors}) > 1 or not all(t.dtype.is_floating_point for t in tensors):
        return None
    dims = tensors[0].dim()
    if dims not in (3, 4):
        return None
    ours = bool(dropout_p) or cap is not None
    if ours and torch_private.in_transform(tensors[0]):  # The operator has no rules for ``torch.func`` and ``torch.vmap``.
        return None
    q, k, v = ((1, *t.shape)[-4:] for t in tensors)
    known = isinstance(q[1], int) and isinstance(k[1], int)
    spread = not enable_gqa and known and q[1] != 1 == k[1]
    times = q[1] // k[1] if (enable_gqa or spread) and known and k[1] else 1
    same = [(q[0], k[0]), (q[0], v[0]), (q[1], k[1] * times), (k[1], v[1]), (k[2], v[2]), (q[3], k[3]), (q[3], v[3])]
    if not all(torch_private.equal_from_now_on(a, b) for a, b in same):
        return None
    if attn_mask is not None:
        mask = attn_mask.meta.get("example_value") if isinstance(attn_mask, fx.Node) else None
        if not isinstance(mask, torch.Tensor) or mask.requires_grad or mask.dim() > dims or is_causal:
            return None
        if mask.dtype not in (torch.bool, tensors[0].dtype, torch.float32):
            return None
    return _Call(nodes, attn_mask, float(dropout_p), is_causal, scale, times, spread, dims == 3, cap)


def _rewrite(node: fx.Node, call: _Call) -> None:
    graph, mask = node.graph, call.mask
    with graph.inserting_before(node):
        operands = _as_cast(node, call.operands)
        query, *shared = [graph.call_function(torch.unsqueeze, (x, 0)) if call.flat else x for x in operands]
        if mask is not None:
            for _ in range(4 - mask.meta["example_value"].dim()):
                mask = graph.call_function(torch.unsqueeze, (mask, 0))
        if call.ours:
            drawn = {"dtype": torch.int64, "device": call.operands[0].meta["example_value"].device}
            seed = graph.call_function(aten.randint.low, (0, dropout.SEEDS, [1]), drawn) if call.dropout_p else None
            given = query, *shared, seed, call.dropout_p, call.causal, mask
            attention = graph.call_function(attention_operator.OPERATOR, given, {"scale": call.scale, "cap": call.cap})
        else:
            if call.times > 1:
                shared = [_repeated(graph, x, call.times) for x in shared]
            given = query, *shared, 0.0, call.causal
            attention = graph.call_function(_OPERATOR, given, {"attn_mask": mask, "scale": call.scale})
        result = graph.call_function(operator.getitem, (attention, 0))
        if call.flat:
            result = graph.call_function(torch.squeeze, (result, 0))
    _replace(node, attention, result)


def _spell_out(
    node: fx.Node,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> None:
    graph = node.graph
    with graph.inserting_before(node):
        operands = _as_cast(node, (query, key, value))
        if isinstance(attn_mask, fx.Node) and attn_mask.meta["example_value"].dtype == torch.bool:
            added = graph.call_function(torch.where, (attn_mask, 0.0, -math.inf))
            attn_mask = graph.call_function(aten.type_as.default, (added, operands[0]))
        given = *operands, attn_mask, dropout_p, is_causal
        call = graph.call_function(_CHAIN, given, {"scale": scale, "enable_gqa": enable_gqa})
        result = graph.call_function(operator.getitem, (call, 0))
    _replace(node, call, result)


def _as_cast(node: fx.Node, operands: Sequence[fx.Node]) -> list[fx.Node]:
    """With the dtype of the result: where operands have another, autocast gives them that, by the name of torch's function."""
    dtype = node.meta.get("example_value", operands[0].meta["example_value"]).dtype
    return [
        x if x.meta["example_value"].dtype == dtype else node.graph.call_function(aten.to.dtype, (x, dtype)) for x in operands
    ]


def _replace(node: fx.Node, call: fx.Node, result: fx.Node) -> None:
    for each in (call, result):
        each.meta.update(origin_of(node))
    call.meta["example_value"] = node.meta.get("example_value"), None
    result.meta["example_value"] = node.meta.get("example_value")
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _repeated(graph: fx.Graph, x: fx.Node, times: int) -> fx.Node:
    """Keys or values with a head for each of the queries': the composite's ``recognize`` sees through it."""
    single = graph.call_function(torch.unsqueeze, (x, 2))
    wide = graph.call_function(torch.broadcast_to, (single, (-1, -1, times, -1, -1)))
    return graph.call_function(torch.flatten, (wide, 1, 2))
