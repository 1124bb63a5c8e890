"""FlexAttention (``torch.nn.attention.flex_attention``): attention with a mask where it is that, its definition elsewhere.

Dynamo captures a call as one operator with two small graphs of scalars: what becomes of a score, and whether it counts, by
batch, head, query and key. torch has kernels of that operator for some devices. Here it becomes what it means, in the graph of
Dynamo, so that AOTAutograd differentiates it, and every backend fuses it like what a model spells out. Where scores have
something added to them, or do not count, that is a mask, and the call is ``scaled_dot_product_attention``, or, where they are
capped before (``cap * tanh(score / cap)``), our own operator; other calls are products and a softmax. The tables of blocks
that come with a call are for kernels that skip blocks: they say nothing that the graphs do not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.capture.attention import keep_call
from vendor_sdk.capture.nodes import is_torchs, origin_of, word_of, writes
from vendor_sdk.ir.orders import inverse, order_in_memory

Tensor = torch.Tensor

_ATTENTION = torch.ops.higher_order.flex_attention
_PRODUCTS = frozenset(("mul", "multiply"))
_QUOTIENTS = frozenset(("div", "divide", "truediv", "true_divide"))


def spell_out_flex_attention(module: fx.GraphModule) -> None:
    """Rewrites such calls of a graph of Dynamo in place, those of graphs within it too."""
    for each in list(module.modules()):
        if isinstance(each, fx.GraphModule):
            calls = each.graph.find_nodes(op="call_function", target=_ATTENTION)
            for node in calls:
                _rewrite(each, node, *node.args, **node.kwargs)
            if calls:
                each.recompile()


def _rewrite(
    module: fx.GraphModule,
    node: fx.Node,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    score_mod: fx.Node,
    block_mask: Sequence[Any],
    scale: Any,
    kernel_options: Any,
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> None:
    buffers, graphs = (score_mod_other_buffers, mask_mod_other_buffers), (score_mod, block_mask[-1])
    change, visible = (torch_private.attribute(module, str(each.target)) for each in graphs)
    results = [user for user in node.users if user.target is operator.getitem]
    alone = len(results) == len(node.users) and all(user.args[1] == 0 for user in results)
    promised = _value(node)[0]
    order = order_in_memory(promised.shape, promised.stride())
    becomes = becomes_of(change) if alone and isinstance(scale, float) and _as_many_batches(query, key) else None
    if becomes is not None:
        q, k = _value(query), _value(key)
        made: list[fx.Node] = []
        with node.graph.inserting_before(node):
            if becomes.adds or not _always(visible):
                adding = (graphs[0], change) if becomes.adds else (None, None)
                made.append(node.graph.call_function(mask_of, (query, key, adding[0], graphs[1], *buffers)))
                with torch_private.own_mode_of(q):
                    given = fx.node.map_arg(buffers, _value)
                    made[0].meta["example_value"] = mask_of(q, k, adding[1], visible, *given)
            mask = made[0] if made else None
            options = {"attn_mask": mask, "scale": scale * becomes.factor, "enable_gqa": q.shape[1] != k.shape[1]}
            call = node.graph.call_function(torch.nn.functional.scaled_dot_product_attention, (query, key, value), options)
            result = node.graph.call_function(in_order, (call, order))
        made += call, result
        for each in made:
            each.meta.update(origin_of(node))
        call.meta["example_value"] = result.meta["example_value"] = promised
        # Torch's own function would add masks of bools as numbers.
        if keep_call(call, everywhere=True, cap=becomes.cap):
            for user in results:
                user.replace_all_uses_with(result)
                node.graph.erase_node(user)
            node.graph.erase_node(node)
            return
        for each in reversed(made):
            node.graph.erase_node(each)
    node.target, node.args, node.kwargs = attention, (query, key, value, *graphs, scale, *buffers, order), {}


def _value(node: fx.Node) -> Any:
    return node.meta["example_value"]


def _as_many_batches(query: fx.Node, key: fx.Node) -> bool:
    """Whether keys have as many batches as queries: the operator may have one for all, too."""
    return torch_private.equal_from_now_on(_value(query).shape[0], _value(key).shape[0])


def _result(graph: fx.GraphModule) -> fx.Node:
    value = graph.graph.output_node().args[0]
    return value[0] if isinstance(value, tuple | list) else value  # type: ignore[return-value]


def _always(visible: fx.GraphModule) -> bool:
    """Whether all scores count: torch's own graph for that asks for a new one."""
    return _result(visible).target == "new_ones"


class Becomes(NamedTuple):
    """What becomes of a score: it is multiplied, then capped, if there is a cap, then something may be added to it."""

    factor: float
    cap: float | None
    adds: bool


def becomes_of(change: fx.GraphModule) -> Becomes | None:
    """What becomes of the first argument, the score, where that is all, but for its being left out (minus infinity) where a
    condition says so."""
    score, *_ = change.graph.find_nodes(op="placeholder")
    depends = {score}
    for node in change.graph.nodes:
        if depends & set(node.all_input_nodes):
            depends.add(node)

    def read(node: Any) -> Becomes | None:
        if node is score:
            return Becomes(1.0, None, False)
        args: tuple[Any, ...] = node.args if isinstance(node, fx.Node) else ()
        own = [each for each in args if isinstance(each, fx.Node) and each in depends]
        if len(own) != 1 or node.kwargs or not is_torchs(node) or (writes(node) and len(own[0].users) > 1):
            return None
        before, word = read(own[0]), word_of(node)
        if before is None:
            return None
        others = [each for each in args if each is not own[0]]
        if word == "add" and len(others) == 1:
            return before._replace(adds=True)
        if word == "where" and len(others) == 2 and args[0] is not own[0] and others[1] == -math.inf:
            return before._replace(adds=True)
        factor, cap, adds = before
        if adds:
            return None
        if word == "tanh" and not others and cap is None:
            return Becomes(factor, 1.0, False)
        if len(others) == 1 and (word in _PRODUCTS or (word in _QUOTIENTS and args[0] is own[0])) and _is_factor(others[0]):
            times = others[0] if word in _PRODUCTS else 1 / others[0]
            return Becomes(factor * times, cap and cap * abs(times), False)
        return None

    return read(_result(change))


def _is_factor(number: Any) -> bool:
    """Whether it is a number with which scores stay finite, and caps positive."""
    return isinstance(number, int | float) and number != 0 and math.isfinite(number)


def mask_of(
    query: Tensor,
    key: Tensor,
    change: Callable[..., Tensor] | None,
    visible: Callable[..., Tensor],
    score_buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
) -> Tensor:
    """The mask of ``scaled_dot_product_attention`` that says what a call does which only adds to scores: of shape (batches,
    heads, queries, keys), each of which may be 1; bool where nothing is added, else float (float64 beside such operands).

    Args:
        query, key: of shape (batches, heads, queries or keys, width).
        change, visible: the graphs of scalars; ``change`` is None where it leaves scores as they are.
        score_buffers, mask_buffers: what these read besides.
    """
    counts = of_positions(visible, query, key, mask_buffers)
    if change is None:
        return counts
    zero = query.new_zeros((), dtype=_working(query))
    return torch.where(counts, of_positions(change, query, key, score_buffers, zero), -math.inf)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    change: Callable[..., Tensor],
    visible: Callable[..., Tensor],
    scale: float,
    score_buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
    order: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator by its definition: the result, and of each row the logarithm of the sum of exponentials and the largest
    score, both to base 2. A row of which no score counts is zero, its logarithm minus infinity.

    Args:
        query, key, value: of shape (batches, heads, queries or keys, width), of one floating point dtype, that of the result;
            several heads of queries may share one of keys, and all batches one. Scores, and what is said of rows, are float32,
            or float64 beside operands of that.
        change, visible: as in ``mask_of``.
        order: of the result's dimensions in memory, as in ``in_order``.
    """
    working, times = _working(query), query.shape[1] // key.shape[1]
    key, value = (x.expand(query.shape[0], -1, -1, -1).repeat_interleave(times, 1) for x in (key, value))
    scores = query.to(working) @ key.to(working).transpose(-2, -1) * scale
    scores = torch.where(
        of_positions(visible, query, key, mask_buffers), of_positions(change, query, key, score_buffers, scores), -math.inf
    )
    most = scores.amax(-1)
    alive = most > -math.inf
    scores = torch.where(alive[..., None], scores, 0.0)
    weights = torch.where(alive[..., None], torch.softmax(scores, -1), 0.0).to(query.dtype)
    total = torch.where(alive, torch.logsumexp(scores, -1), -math.inf)
    return in_order(weights @ value, order), total / math.log(2), most / math.log(2)


def in_order(result: Tensor, order: Sequence[int] | None) -> Tensor:
    """``result`` with its dimensions in memory in this order, from the outermost on, as the operator promised when what follows
    was traced (FlexAttention's results lie like its queries); as it is where there is none."""
    return result if order is None else result.permute(tuple(order)).contiguous().permute(inverse(order))


def _working(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def of_positions(function: Callable[..., Tensor], query: Tensor, key: Tensor, buffers: Sequence[Any], *score: Tensor) -> Tensor:
    """A graph of scalars for each position: of shape (batches, heads, queries, keys), each 1 where no result depends on it.

    Args:
        score: of each position, or one for all.
    """
    from vendor_sdk.torch_private.dynamo import elements_by_tensors

    sizes = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    places = [torch.arange(size, device=query.device) for size in sizes]
    own = bool(score) and score[0].dim() > 0
    if own or not isinstance(function, fx.GraphModule):
        varies = [True] * 4
    else:
        placeholders = function.graph.find_nodes(op="placeholder")[len(score) :]
        varies = [bool(each.users) for each in placeholders[:4]]
    given = [place if vary else place.new_zeros(()) for place, vary in zip(places, varies, strict=True)]
    for axis in (3, 2, 1, 0):
        if varies[axis]:
            axes = (
                *((0 if own else None,) * len(score)),
                *(0 if k == axis else None for k in range(4)),
                *(None for _ in buffers),
            )
            function = torch.vmap(function, in_dims=axes)
    with elements_by_tensors():
        result = function(*score, *given, *buffers)
    for axis in range(4):
        if not varies[axis]:
            result = result.unsqueeze(axis)
    return result
