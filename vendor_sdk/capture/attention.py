"""Attention as the composite, on any device.

Torch decides while it traces which of its kernels an attention call becomes, by device, mask and dtype; only on CPU is that the
operator of the composite. Elsewhere it would be one of several of NVIDIA's, with results of their own, or, with most masks, a
chain of matrix products. So calls in the graph of Dynamo become the composite's operator before AOTAutograd sees them, whether
or not a backend claims the composite. What that operator does not say (dropout, a mask with a gradient) becomes the chain of
prims that it is on CPU.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private

_OPERATOR = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_CHAIN = torch.ops.aten._scaled_dot_product_attention_math.default


def keep_attention(module: fx.GraphModule, *, everywhere: bool = False) -> None:
    """Rewrites attention calls of a graph of Dynamo in place. Calls on CPU stay: torch itself does the same there, up to the
    form of masks.

    Args:
        everywhere: rewrite those on CPU too, which stand for another device (``Target``).
    """
    found = False
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target is not torch.nn.functional.scaled_dot_product_attention:
            continue
        query = node.args[0] if node.args else node.kwargs["query"]
        value = query.meta.get("example_value") if isinstance(query, fx.Node) else None
        if not isinstance(value, torch.Tensor) or (value.device.type == "cpu" and not everywhere):
            continue
        given = _arguments(*node.args, **node.kwargs)
        if given is not None:
            _rewrite(node, *given)
        else:
            _spell_out(node, *node.args, **node.kwargs)
        found = True
    if found:
        module.recompile()


def _arguments(
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> tuple[list[fx.Node], Any, bool, Any, int] | None:
    """The operands, mask, causality, scale and how many heads of queries share one of keys; None where the operator does not
    say the same."""
    if dropout_p != 0 or not isinstance(is_causal, bool) or not (scale is None or isinstance(scale, float)):
        return None
    nodes = [query, key, value]
    tensors = [t for node in nodes if isinstance(t := node.meta.get("example_value"), torch.Tensor)]
    if len(tensors) < 3 or not all(t.dim() == 4 and t.dtype.is_floating_point for t in tensors):
        return None
    q, k, v = tensors
    if len({t.dtype for t in tensors}) > 1:
        return None
    times = q.shape[1] // k.shape[1] if enable_gqa and isinstance(q.shape[1], int) and isinstance(k.shape[1], int) else 1
    same = [(q.shape[0], k.shape[0]), (q.shape[0], v.shape[0]), (q.shape[1], k.shape[1] * times), (k.shape[1], v.shape[1])]
    same += [(k.shape[2], v.shape[2]), (q.shape[3], k.shape[3]), (q.shape[3], v.shape[3])]
    if not all(torch_private.equal_from_now_on(a, b) for a, b in same):
        return None
    if attn_mask is not None:
        mask = attn_mask.meta.get("example_value") if isinstance(attn_mask, fx.Node) else None
        if not isinstance(mask, torch.Tensor) or mask.requires_grad or mask.dim() > 4 or is_causal:
            return None
        if mask.dtype not in (torch.bool, q.dtype, torch.float32):
            return None
    return nodes, attn_mask, is_causal, scale, times


def _rewrite(node: fx.Node, operands: list[fx.Node], mask: Any, causal: bool, scale: Any, times: int) -> None:
    graph = node.graph
    query, *shared = operands
    with graph.inserting_before(node):
        if times > 1:
            shared = [_repeated(graph, x, times) for x in shared]
        if mask is not None:
            for _ in range(4 - mask.meta["example_value"].dim()):
                mask = graph.call_method("unsqueeze", (mask, 0))
        call = graph.call_function(_OPERATOR, (query, *shared, 0.0, causal), {"attn_mask": mask, "scale": scale})
        result = graph.call_function(operator.getitem, (call, 0))
    _replace(node, call, result)


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
        given = query, key, value, attn_mask, dropout_p, is_causal
        call = graph.call_function(_CHAIN, given, {"scale": scale, "enable_gqa": enable_gqa})
        result = graph.call_function(operator.getitem, (call, 0))
    _replace(node, call, result)


def _replace(node: fx.Node, call: fx.Node, result: fx.Node) -> None:
    for each in (call, result):
        each.meta.update({k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack", "source_fn_stack")})
    result.meta["example_value"] = node.meta.get("example_value")
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _repeated(graph: fx.Graph, x: fx.Node, times: int) -> fx.Node:
    """Keys or values with a head for each of the queries': the composite's ``recognize`` sees through it."""
    single = graph.call_method("unsqueeze", (x, 2))
    wide = graph.call_method("expand", (single, -1, -1, times, -1, -1))
    return graph.call_method("flatten", (wide, 1, 2))
