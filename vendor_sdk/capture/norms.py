"""What normalizations save for the gradients of what follows them: nothing but what their own gradients read.

An activation behind a normalization reads the normalized value again in its gradient, so that the partition would save that
beside the operand and what was activated. It follows from operand and statistics by a few operations an element, in kernels
that read the operand anyway.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before, computed
from vendor_sdk.ir.primgraph import leading_to
from vendor_sdk.prims.widen import computation_dtype

aten = torch.ops.aten
Call = Callable[..., fx.Node]


class _Norm(NamedTuple):
    """An operator that returns its result, then statistics.

    Attributes:
        gradient: the operator that reads operand and statistics.
        statistics: the results that it reads: the reciprocal root last, the mean before it if there is one.
        weight, bias: places of these arguments; None where there is none.
        spread: makes a view of statistics that broadcasts with the operand.
        channels: whether weight and bias are of dimension 1, not of the last ones.
    """

    gradient: Any
    statistics: tuple[int, ...]
    weight: int
    bias: int | None
    spread: Callable[[Call, fx.Node, fx.Node], fx.Node]
    channels: bool


def _as_it_is(call: Call, norm: fx.Node, statistic: fx.Node) -> fx.Node:
    return statistic


def _of_channels(call: Call, norm: fx.Node, statistic: fx.Node) -> fx.Node:
    """A vector by channels, seen beside an image."""
    return call(aten.view.default, statistic, [1, -1, *_ones(norm)])


def _of_groups(call: Call, norm: fx.Node, statistic: fx.Node) -> fx.Node:
    """A number of each group as one of each of its channels."""
    _, _, _, images, channels, _, groups, _ = norm.args
    size = channels // groups if isinstance(channels, int) else call(operator.floordiv, channels, groups)  # type: ignore[operator]
    of_each = call(aten.expand.default, call(aten.unsqueeze.default, statistic, 2), [images, groups, size])
    return call(aten.reshape.default, of_each, [images, channels, *_ones(norm)])


def _ones(norm: fx.Node) -> list[int]:
    return [1] * (_value(norm.args[0]).dim() - 2)


_NORMS = {
    aten.native_layer_norm.default: _Norm(aten.native_layer_norm_backward.default, (1, 2), 2, 3, _as_it_is, False),
    aten._fused_rms_norm.default: _Norm(aten._fused_rms_norm_backward.default, (1,), 2, None, _as_it_is, False),
    aten.native_group_norm.default: _Norm(aten.native_group_norm_backward.default, (1, 2), 1, 2, _of_groups, True),
    aten._native_batch_norm_legit_functional.default: _Norm(
        aten.native_batch_norm_backward.default, (1, 2), 1, 2, _of_channels, True
    ),
    aten._native_batch_norm_legit.no_stats: _Norm(aten.native_batch_norm_backward.default, (1, 2), 1, 2, _of_channels, True),
}
_VIEWS = (aten.alias.default, aten.view.default)
"""What a value is known by under another name."""
_LYING_ANYHOW: Mapping[Any, Any] = {aten.view.default: aten.reshape.default}
"""A result may lie otherwise than the operand, as which it is computed again."""


def save_less_of_norms(graph: fx.Graph, outputs: int, whole: Collection[Any]) -> None:
    """Has gradients read what follows from a normalization's operand where they would read its result.

    Statistics that torch saves in halves are saved in float32 then, as the result was computed from such. A result that the
    gradients of products read too is saved as before.

    Args:
        graph: of aten operators, with ``meta["val"]``; a joint graph.
        outputs: how many of its results are the forward graph's.
        whole: operators that the backend computes by its own means, and that are not computed twice.
    """
    norms = [node for node in graph.nodes if node.target in _NORMS]
    if not norms:
        return
    forward = _forward(graph, outputs)
    order = {node: place for place, node in enumerate(graph.nodes)}
    for norm in norms:
        operand, kind = norm.args[0], _NORMS[norm.target]
        results = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
        statistics = [results.get(place) for place in kind.statistics]
        known = norm in forward and 0 in results and len(results) == len(norm.users)
        if not known or not all(_of_gradient(norm, found) for found in statistics):
            continue
        result, dtype = results[0], _value(operand).dtype
        narrow = any(_value(found).dtype != computation_dtype(dtype) for found in statistics)
        if (narrow and norm.target in whole) or not any(_readers(result, forward)):
            continue
        if narrow:
            result = _widen(norm, results)
        readers = sorted(_readers(result, forward), key=lambda reading: order[reading[1]])
        call = partial(call_before, readers[0][1])
        copies = {result: _again(call, norm, operand, statistics, dtype)}
        for value, reader in readers:
            reader.replace_input_with(value, _copied(call, value, copies))
            reader.target = _LYING_ANYHOW.get(reader.target, reader.target)


def _forward(graph: fx.Graph, outputs: int) -> set[fx.Node]:
    """What the forward graph's results follow from."""
    (results,) = graph.output_node().args
    return leading_to(node for node in results[:outputs] if isinstance(node, fx.Node))  # type: ignore[index, union-attr]


def _of_gradient(norm: fx.Node, statistic: fx.Node | None) -> bool:
    """Whether a statistic is there, and is read by the normalization's gradient, with the operand, and by nothing else.

    Without training torch returns statistics of no elements on the CPU.
    """
    if statistic is None or torch_private.surely_equal(_value(statistic).numel(), 0):
        return False
    gradient = _NORMS[norm.target].gradient  # type: ignore[index]
    users = list(_users(statistic))
    return bool(users) and all(user.target is gradient and user.args[1] is norm.args[0] for user in users)


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Users of a value, by whatever other name they know it."""
    for user in node.users:
        yield from _users(user) if user.target in _VIEWS else (user,)


def _readers(value: fx.Node, forward: Collection[fx.Node]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """What gradients read of a value, and of what follows from it alone element by element: that, and who reads it.

    Nothing of what is read otherwise than element by element: it is stored for that.
    """
    if not _elementwise(value):
        return
    for user in value.users:
        if user not in forward:
            yield value, user
        elif len(user.all_input_nodes) == 1:
            yield from _readers(user, forward)


def _elementwise(value: fx.Node) -> bool:
    """Whether a value, under whatever name, is read element by element alone."""
    return all(_elementwise(user) if user.target in _VIEWS else _pointwise(user) for user in value.users)


def _pointwise(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    fuses = node.target is aten._to_copy.default or torch.Tag.pointwise in tags
    return fuses and torch.Tag.nondeterministic_seeded not in tags


def _widen(norm: fx.Node, results: Mapping[Any, fx.Node]) -> fx.Node:
    """Has a normalization compute, and return, what is wider; returns its result in the dtype that it was in."""
    kind, result = _NORMS[norm.target], results[0]  # type: ignore[index]
    dtype = _value(result).dtype
    call = partial(call_before, norm)
    for place in (0, kind.weight, kind.bias):
        if place is not None and norm.args[place] is not None:
            norm.update_arg(place, _cast(call, norm.args[place], computation_dtype(dtype)))
    for node in (norm, *results.values()):
        node.meta["val"] = computed(node)
    narrowed = call_before(result.next, aten._to_copy.default, result, dtype=dtype)
    result.replace_all_uses_with(narrowed, lambda user: user is not narrowed)
    return narrowed


def _again(call: Call, norm: fx.Node, operand: Any, statistics: Sequence[Any], dtype: torch.dtype) -> Any:
    """What a normalization makes of ``operand``, from its statistics."""
    kind, wide = _NORMS[norm.target], computation_dtype(dtype)  # type: ignore[index]
    made = _cast(call, operand, wide)
    for target, statistic in zip((aten.sub.Tensor, aten.mul.Tensor)[-len(statistics) :], statistics, strict=True):
        made = call(target, made, kind.spread(call, norm, statistic))
    for target, place in ((aten.mul.Tensor, kind.weight), (aten.add.Tensor, kind.bias)):
        given = None if place is None else norm.args[place]
        if given is not None:
            given = _cast(call, given, wide)
            made = call(target, made, call(aten.view.default, given, [-1, *_ones(norm)]) if kind.channels else given)
    return _cast(call, made, dtype)


def _copied(call: Call, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """``node``, computed of a copy of what it is computed of."""
    if node not in copies:
        (source,) = node.all_input_nodes
        args, kwargs = fx.map_arg((node.args, node.kwargs), {source: _copied(call, source, copies)}.__getitem__)
        copies[node] = call(_LYING_ANYHOW.get(node.target, node.target), *args, **kwargs)
    return copies[node]


def _cast(call: Call, given: Any, dtype: torch.dtype) -> Any:
    return given if _value(given).dtype == dtype else call(aten._to_copy.default, given, dtype=dtype)


def _value(node: Any) -> Any:
    return node.meta["val"]
