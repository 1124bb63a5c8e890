"""Attention that a program spells out (``capture.spelled``), as the composite.

It becomes ``scaled_dot_product_attention`` in the graph of Dynamo, so that AOTAutograd differentiates one operator and no
scores are in memory. That is done where the backend has a kernel for the operator, and for its gradients if there are any.

As with that function, scores have the digits of the kernel's sums where the program had rounded them to halves, and a row that
minus infinity hides from all keys is zero, where a softmax gives NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.capture.attention import keep_call
from vendor_sdk.capture.nodes import Maker, value_of
from vendor_sdk.capture.spelled import Factor, Spelled, Step, read_attention, tensors_of
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
    wanted = f"{'dropout' if found.dropout_p else 'scaled_dot_product'}_attention"
    if not {wanted, *([f"{wanted}_backward"] if promised.requires_grad else [])} <= kept or not _fits(found):
        return False
    masks = [step.added for step in found.scores.steps if isinstance(step.added, fx.Node)]
    if promised.requires_grad and (any(value_of(mask).requires_grad for mask in masks) or any(map(_cuts_off, found.nodes))):
        return False
    with last.graph.inserting_before(last), torch_private.own_mode_of(promised), torch.no_grad():
        result = _call(Maker(last), found, promised)
    result.meta["example_value"] = promised
    last.replace_all_uses_with(result)
    for each in reversed(found.nodes):
        last.graph.erase_node(each)
    return True


def _cuts_off(node: fx.Node) -> bool:
    """Whether a node hands no gradients on to operands that would have some, as under ``torch.no_grad``."""
    return not value_of(node).requires_grad and any(value.requires_grad for value in tensors_of((node,)))


def _call(put: Maker, found: Spelled, promised: torch.Tensor) -> fx.Node:
    """The operator in place of all that was read, with its result lying in memory as the last product's."""
    scores, product = found.scores, found.product
    split = functools.partial(_split, put, scores.heads)
    query, key, value = (split(_permuted(put, factor)) for factor in (scores.query, scores.key, product.right))
    key = put(torch.transpose, key, -2, -1)
    steps = [x._replace(added=split(x.added), condition=split(x.condition)) if x.flat else x for x in scores.steps]
    mask = _mask(put, steps, value_of(query).dtype)
    query = _seeing(put, query, steps, differentiated=promised.requires_grad)
    flat = value_of(query).dim() == 2
    if flat:
        query, key, value = (put(torch.unsqueeze, x, 0) for x in (query, key, value))
    attended = put.graph.call_function(
        F.scaled_dot_product_attention, (query, key, value, mask, found.dropout_p, False), {"scale": scores.scale}
    )
    like = value_of(query).new_empty(value_of(query).shape, dtype=promised.dtype)
    attended.meta.update(put.meta, example_value=like.requires_grad_(promised.requires_grad))
    result = put(torch.squeeze, attended, 0) if flat else attended
    if scores.heads is not None and promised.dim() == 3:
        result = put(torch.flatten, result, 0, 1)
    if product.order is not None:
        result = put(torch.permute, result, product.order)
    result = _lying_as(put, result, promised)
    keep_call(attended, everywhere=True)  # torch's own function would add masks of bools as numbers
    return result


def _split(put: Maker, heads: fx.Node | None, given: Any) -> Any:
    """A tensor with one dimension for batches and heads, with one for each of them."""
    if heads is None or not isinstance(given, fx.Node) or value_of(given).dim() != 3:
        return given
    if torch_private.surely_equal(value_of(given).shape[0], 1):
        return put(torch.unsqueeze, given, 0)
    return put(torch.unflatten, given, 0, _leading_sizes(heads))


def _leading_sizes(heads: fx.Node) -> Any:
    """As numbers, or as the nodes that a program gave."""
    sizes = value_of(heads).shape[:2]
    given = heads.args[1] if isinstance(heads.args[1], list | tuple) else heads.args[1:]
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else tuple(given[:2])


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
            mask = put(torch.add, mask, added) if isinstance(mask, fx.Node) else added
    return mask if value_of(mask).dtype in (dtype, torch.float32) else put.method("to", mask, dtype)


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
    """Whether the operands are such as the operator takes: (batch, heads, rows, width), or without the first of these, or both,
    of one dtype, and one head of keys may serve all; with masks that broadcast."""
    scores, product = found.scores, found.product
    factors = scores.query, scores.key, product.right
    q, k, v = map(_Sizes.of, factors)
    tensors = [value_of(factor.node) for factor in factors]
    dtype = tensors[0].dtype
    if len({t.dtype for t in tensors}) > 1 or not dtype.is_floating_point:
        return False
    made = {value_of(node).dtype for node in found.nodes}
    if dtype != torch.float64 and torch.float64 in made:  # more digits than a kernel has
        return False
    if len(v.all) != value_of(product.left.node).dim():
        return False
    if scores.heads is not None and len(v.all) == 4:  # as the scores' view
        v = _Sizes((v.lead[0] * v.lead[1],), v.rows, v.last)
    if len({len(q.all), len(k.all), len(v.all)}) > 1 or not 2 <= len(q.all) <= 4:
        return False
    # The keys' matrices are turned: (..., width, keys).
    same = [(q.last, k.rows), (k.last, v.rows), (q.last, v.last), *zip(k.lead, v.lead, strict=True)]
    one_head = len(q.all) == 4 and k.lead[1] == 1 and isinstance(q.lead[1], int)
    same += list(zip(q.lead[:1] if one_head else q.lead, k.lead[:1] if one_head else k.lead, strict=True))
    if not all(torch_private.surely_equal(a, b) for a, b in same) or scores.scale == 0:
        return False
    full = (*q.lead, q.rows, k.last)
    seen = full if scores.heads is None else (*value_of(scores.heads).shape[:2], *full[1:])
    read = [(x, full if step.flat else seen) for step in scores.steps for x in step[:2] if isinstance(x, fx.Node)]
    return all(_broadcasts(value_of(x), shape) for x, shape in read)


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
