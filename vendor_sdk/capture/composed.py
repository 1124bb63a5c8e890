"""Attention that a program spells out (``capture.spelled``), as the composite.

It becomes ``scaled_dot_product_attention`` in the graph of Dynamo, so that AOTAutograd differentiates one operator and no
scores are in memory. That is done where the backend has a kernel for the operator, and for its gradients if there are any.

As with that function, scores have the digits of the kernel's sums where the program had rounded them to halves, and a row that
minus infinity hides from all keys is zero, where a softmax gives NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.capture.attention import keep_call
from vendor_sdk.capture.nodes import Maker, value_of
from vendor_sdk.capture.spelled import Factor, Spelled, Step, read_attention, tensors_of, widened_from
from vendor_sdk.ir.orders import inverse, order_in_memory

_ABSORBS = -1e30
"""A number at most this large stays what it is when scores are added."""


def recognize_attention(module: fx.GraphModule, kept: Set[str]) -> None:
    """Rewrites such attention in a graph of Dynamo, and in those within it, in place.

    Args:
        kept: names of the composites that the backend claims.
    """
    if "scaled_dot_product_attention" not in kept:
        return
    for each in module.modules():
        if isinstance(each, fx.GraphModule):
            done = [_rewrite(node, kept) for node in list(each.graph.nodes)]
            if any(done):
                each.recompile()


def _rewrite(node: fx.Node, kept: Set[str]) -> bool:
    """Whether a node was the softmax of attention, and the composite can say it."""
    found = read_attention(node)
    if found is None:
        return False
    last = found.nodes[-1]
    promised = value_of(last)
    wanted = f"{'general' if found.dropout_p or found.scores.cap else 'scaled_dot_product'}_attention"
    if not {wanted, *([f"{wanted}_backward"] if promised.requires_grad else [])} <= kept or not _fits(found):
        return False
    masks = [step.added for step in found.scores.steps if isinstance(step.added, fx.Node)]
    if promised.requires_grad and (any(value_of(mask).requires_grad for mask in masks) or any(map(_cuts_off, found.nodes))):
        return False
    if _mixes(found.scores.steps, differentiated=promised.requires_grad):
        return False
    present = set(last.graph.nodes)
    with last.graph.inserting_before(last), torch_private.own_mode_of(promised), torch.no_grad():
        result = _call(Maker(last), found, promised)
    if result is None:
        for each in [node for node in reversed(last.graph.nodes) if node not in present]:
            last.graph.erase_node(each)
        return False
    result.meta["example_value"] = promised
    last.replace_all_uses_with(result)
    for each in sorted((*found.nodes, *found.scores.aside), reverse=True):
        last.graph.erase_node(each)
    return True


def _mixes(steps: Sequence[Step], *, differentiated: bool) -> bool:
    """Whether numbers take the place of some scores where others may have as low ones added, and hide a row from all keys
    together: scores are seen beside what is added, and have gradients, but not where they were replaced. The operator does not
    tell these apart; numbers that absorb scores are the same with them."""
    replaced = [step.added for step in steps if step.condition is not None]
    numbers = [number for number in replaced if number != -math.inf]
    return bool(numbers) and len(replaced) < len(steps) and (differentiated or max(numbers) > _ABSORBS)


def _cuts_off(node: fx.Node) -> bool:
    """Whether a node hands no gradients on to operands that would have some, as under ``torch.no_grad``."""
    return not value_of(node).requires_grad and any(value.requires_grad for value in tensors_of((node,)))


def _call(put: Maker, found: Spelled, promised: torch.Tensor) -> fx.Node | None:
    """The operator in place of all that was read, with its result lying in memory as the last product's; None where there is
    none for capped scores."""
    scores, product = found.scores, found.product
    grouped = functools.partial(_grouped, put, _heads(found))
    query, key, value = (_permuted(put, factor) for factor in (scores.query, scores.key, product.right))
    for function, given in ((torch.mul, scores.factors), (torch.div, scores.divisors)):
        query = functools.reduce(functools.partial(put, function), given, query)
    steps = [
        step._replace(
            added=_mask_grouped(put, step.added, step.at, query, grouped),
            condition=_mask_grouped(put, step.condition, step.at, query, grouped),
        )
        for step in scores.steps
    ]
    dtype, factors = _dtype(found), (query, key, value)
    query, key, value = (_cast(put, grouped(factor), dtype) for factor in factors)
    key = put(torch.transpose, key, -2, -1)
    mask = _mask(put, steps, dtype)
    query = _seeing(put, query, steps, differentiated=promised.requires_grad)
    flat = value_of(query).dim() == 2
    if flat:
        query, key, value = (put(torch.unsqueeze, x, 0) for x in (query, key, value))
    scale, cap = (scores.scale, None) if scores.cap is None else (scores.scale * scores.cap, abs(scores.cap))
    attended = put.graph.call_function(
        F.scaled_dot_product_attention, (query, key, value, mask, found.dropout_p, False), {"scale": scale}
    )
    like = value_of(query).new_empty(value_of(query).shape)
    attended.meta.update(put.meta, example_value=like.requires_grad_(promised.requires_grad))
    result = _cast(put, put(torch.squeeze, attended, 0) if flat else attended, promised.dtype)
    lead = value_of(product.left.node).shape[:-2]
    if len(lead) == 1 and value_of(result).dim() == 4:
        result = put(torch.flatten, result, 0, 1)
    elif len(lead) > 2:
        sizes = [size if isinstance(size, int) else put.method("size", factors[2], i) for i, size in enumerate(lead[:-1])]
        result = put(torch.unflatten, result, 0, tuple(sizes))
    if product.order is not None:
        result = put(torch.permute, result, product.order)
    result = _lying_as(put, result, promised)
    done = keep_call(attended, everywhere=True, cap=cap)  # torch's own function would add masks of bools as numbers
    return result if done or cap is None else None


def _dtype(found: Spelled) -> torch.dtype:
    """The widest of both products, which autocast may have given another than their operands'. What queries and keys were
    widened from has all their digits, and kernels add products up in float32."""
    one, other = value_of(found.nodes[0]).dtype, value_of(found.nodes[-1]).dtype
    widened = all(widened_from(factor.node) == other for factor in (found.scores.query, found.scores.key))
    return other if widened else torch.promote_types(one, other)


def _cast(put: Maker, given: fx.Node, dtype: torch.dtype) -> fx.Node:
    return given if value_of(given).dtype == dtype else put.method("to", given, dtype)


def _heads(found: Spelled) -> Any:
    """How many heads there are, as a number or a node, where they have a dimension beside others in any view of scores."""
    views = [node for node in found.nodes[:-1] if value_of(node).dim() > 3]
    return None if not views else _size(views[0], -3)


def _size(view: fx.Node, place: int) -> Any:
    """A size of a view: a number, the node that the program gave for it, or None."""
    size = value_of(view).shape[place]
    given = view.args[1] if isinstance(view.args[1], list | tuple) else view.args[1:]
    told = given[place] if len(given) == value_of(view).dim() else None
    return size if isinstance(size, int) else told if isinstance(told, fx.Node) else None


def _grouped(put: Maker, heads: Any, given: fx.Node) -> fx.Node:
    """Matrices as (batch, heads, ...): where heads have a dimension of their own, all before it are one."""
    dims = value_of(given).dim()
    if dims == 3 and heads is not None:
        return put(torch.unflatten, given, 0, (-1, heads))
    return put(torch.flatten, given, 0, dims - 4) if dims > 4 else given


def _mask_grouped(put: Maker, given: Any, at: fx.Node, query: fx.Node, grouped: Callable[[fx.Node], fx.Node]) -> Any:
    """What broadcasts to scores as the program grouped them, so that it does to the operator's.

    Args:
        at: ``Step.at``.
        query: of the first product.
    """
    if not isinstance(given, fx.Node):
        return given
    lead, own = value_of(at).shape[:-2], value_of(given).shape
    if len(own) < 3 or (len(own) == 3 and (len(lead) > 1 or torch_private.surely_equal(own[0], 1))):
        return given
    if len(lead) > 2 and not all(torch_private.surely_equal(size, 1) for size in own[:-3]):
        sizes = [_size(at, i) or put.method("size", query, i) for i in range(len(lead) - 1)]
        given = put.method("expand", given, *sizes, -1, -1, -1)
    return grouped(given)


def _lying_as(put: Maker, result: fx.Node, promised: torch.Tensor) -> fx.Node:
    """A tensor of its own, which the program may write to while the operator's is kept for gradients, with its dimensions in
    the order in memory in which what follows was traced with them."""
    order = order_in_memory(promised.shape, promised.stride())
    copy = functools.partial(put, torch.clone, memory_format=torch.contiguous_format)
    if order is None or order == sorted(order):
        return copy(result)
    return put(torch.permute, copy(put(torch.permute, result, order)), inverse(order))


def _permuted(put: Maker, factor: Factor) -> fx.Node:
    if factor.order is None:
        return factor.node
    moved = put(torch.permute, factor.node, tuple(i for i in factor.order if i is not None))
    for place in (place for place, i in enumerate(factor.order) if i is None):
        moved = put(torch.unsqueeze, moved, place)
    return moved


def _mask(put: Maker, steps: Sequence[Step], dtype: torch.dtype) -> fx.Node | None:
    """What the steps say, as ``scaled_dot_product_attention`` takes it: bools where they only leave keys out."""
    if not steps:
        return None
    if all(step.condition is not None and step.added == -math.inf for step in steps):
        seen: fx.Node | None = None
        for step in steps:
            own = put(torch.logical_not, step.condition) if step.hides else step.condition
            seen = own if seen is None else put(torch.logical_and, seen, own)
        return seen
    mask: Any = 0.0
    for step in steps:
        if step.condition is not None:
            mask = put(torch.where, step.condition, *((step.added, mask) if step.hides else (mask, step.added)))
        else:
            added = put.method("detach", step.added) if value_of(step.added).requires_grad else step.added
            if step.times != 1 or isinstance(mask, fx.Node):  # scores may have had more digits
                added = _cast(put, added, torch.promote_types(value_of(added).dtype, torch.float32))
            added = added if step.times == 1 else put(torch.mul, added, step.times)
            mask = put(torch.add, mask, added) if isinstance(mask, fx.Node) else added
    return mask if value_of(mask).dtype == torch.float32 else _cast(put, mask, dtype)


def _seeing(put: Maker, query: fx.Node, steps: Sequence[Step], *, differentiated: bool) -> fx.Node:
    """Queries, zero where numbers take the place of all of a row's scores: keys are weighed by these numbers alone there, to
    which scores are added in the mask, and no gradients come to what they replaced."""
    replaced = [step for step in steps if step.condition is not None]
    numbers = [step.added for step in replaced if step.added != -math.inf]
    if not numbers or (not differentiated and max(numbers) <= _ABSORBS):
        return query
    hidden = [step.condition if step.hides else put(torch.logical_not, step.condition) for step in replaced]
    everywhere = functools.reduce(functools.partial(put, torch.logical_or), hidden)
    return put(torch.masked_fill, query, put(torch.all, everywhere, -1, True), 0.0)


def _fits(found: Spelled) -> bool:
    """Whether the operands are such as the operator takes: with the same batches and heads, or one head of keys that serves
    all, and masks that broadcast."""
    scores, product = found.scores, found.product
    q, k, v = map(_Sizes.of, (scores.query, scores.key, product.right))
    made, dtype = {value_of(node).dtype for node in found.nodes}, _dtype(found)
    if not dtype.is_floating_point or (dtype != torch.float64 and torch.float64 in made):  # more digits than a kernel has
        return False
    weights = value_of(product.left.node).shape[:-2]
    if len({len(q.all), len(k.all)}) > 1 or len(v.lead) != len(weights) or not _groups_alike(found):
        return False
    leads = (k.lead, q.lead), (v.lead, weights)
    one_head = {len(own) > 1 and own[-1] == 1 and isinstance(full[-1], int) for own, full in leads}
    if len(one_head) > 1 or scores.scale == 0 or not math.isfinite(scores.scale * (scores.cap or 1)):
        return False
    # The keys' matrices are turned: (..., width, keys).
    same = [(q.last, k.rows), (k.last, v.rows)]
    same += [pair for own, full in leads for pair in list(zip(own, full, strict=True))[: -1 if True in one_head else None]]
    if not all(torch_private.surely_equal(a, b) for a, b in same):
        return False
    read = [(x, value_of(step.at)) for step in scores.steps for x in (step.added, step.condition) if isinstance(x, fx.Node)]
    return all(_broadcasts(value_of(x), s.shape) for x, s in read) and torch_private.equal_from_now_on(q.last, v.last)


def _groups_alike(found: Spelled) -> bool:
    """Whether all views of scores and weights have one dimension for batches and heads, or the same heads as the last of
    several, or none at all."""
    leads = [value_of(node).shape[:-2] for node in found.nodes[:-1]]
    fewest, most = min(map(len, leads)), max(map(len, leads))
    if most < 2:
        return fewest == most
    heads = [lead[-1] for lead in leads if len(lead) > 1]
    if not fewest or not all(torch_private.surely_equal(each, heads[0]) for each in heads):
        return False
    views = [step.at for step in found.scores.steps if step.at is not found.nodes[0]]
    told = [_size(view, place) for view in views for place in range(value_of(view).dim() - 3)]
    return None not in told and (fewest > 1 or _heads(found) is not None)


class _Sizes(NamedTuple):
    """Sizes of matrices."""

    lead: tuple[Any, ...]
    rows: Any
    last: Any

    @classmethod
    def of(cls, factor: Factor) -> _Sizes:
        shape = value_of(factor.node).shape
        *lead, rows, last = shape if factor.order is None else [1 if i is None else shape[i] for i in factor.order]
        return cls(tuple(lead), rows, last)

    @property
    def all(self) -> tuple[Any, ...]:
        return (*self.lead, self.rows, self.last)


def _broadcasts(mask: Any, shape: Sequence[Any]) -> bool:
    own = mask.shape
    return len(own) <= len(shape) and all(
        size == 1 or torch_private.surely_equal(size, full) for size, full in zip(own[::-1], shape[::-1], strict=False)
    )
