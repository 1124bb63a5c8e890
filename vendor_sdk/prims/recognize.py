"""Passes that find composites for which captured graphs have no single operator.

Each takes a graph module in ATen, replaces what it finds in place, and returns how many it found; nodes that others still use
stay, and dead ones are removed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private

aten = torch.ops.aten


def _calls(module: fx.GraphModule, *targets: Any) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function" and node.target in targets]


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target == target


def _args(node: Any) -> Any:
    """A node's positional arguments: what they are is known from its target, not from fx's types."""
    return node.args


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _insert(before: fx.Node, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
    graph = before.graph
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    node.meta.update({key: item for key, item in before.meta.items() if key in ("stack_trace", "nn_module_stack")})
    node.meta["val"] = value
    return node


def _pass(match: Callable[[fx.GraphModule], int]) -> Callable[[fx.GraphModule], int]:
    def run(module: fx.GraphModule) -> int:
        found = match(module)
        if found:
            module.graph.eliminate_dead_code()
            module.recompile()
        return found

    run.__name__, run.__doc__ = match.__name__, match.__doc__
    return run


@_pass
def recognize_linear(module: fx.GraphModule) -> int:
    """``addmm(bias, x, permute(w, [1, 0]))`` and ``mm(x, permute(w, [1, 0]))`` to ``linear(x, w, bias)``."""
    found = 0
    for node in _calls(module, aten.addmm.default, aten.mm.default):
        bias, x, right = _args(node) if node.target == aten.addmm.default else (None, *_args(node))
        if node.kwargs or not _is(right, aten.permute.default) or list(_args(right)[1]) != [1, 0]:
            continue
        weight = _args(right)[0]
        if bias is not None and list(_value(bias).shape) != list(_value(weight).shape[:1]):
            continue
        node.replace_all_uses_with(_insert(node, aten.linear.default, (x, weight, bias), node.meta["val"]))
        found += 1
    return found


@_pass
def recognize_rms_norm(module: fx.GraphModule) -> int:
    """``x * rsqrt(mean(x * x) + eps)``, times a weight where one follows, to the first result of ``_fused_rms_norm``.

    A reciprocal root that a backward graph reads too stays and is computed once more: the weight may come later than the root.
    """
    found = 0
    for root in _calls(module, aten.rsqrt.default):
        parts = _mean_of_squares(root)
        if parts is None:
            continue
        x, count, eps = parts
        shape = list(_value(x).shape[-count:])
        if not all(isinstance(size, int) for size in shape):
            continue  # sizes of a call are values of the graph, and the operator's argument is none
        scaled = next((user for user in root.users if _is(user, aten.mul.Tensor) and set(user.args) == {x, root}), None)
        if scaled is None:
            continue
        last, weight = scaled, None
        if len(scaled.users) == 1:
            (user,) = scaled.users
            other = _other_operand(user, scaled)
            if other is not None and list(_value(other).shape) == shape and _value(other).dtype == _value(x).dtype:
                last, weight = user, other
        # The operator computes in float32 at least, and keeps its reciprocal roots so.
        kept = root.meta["val"].to(torch.promote_types(root.meta["val"].dtype, torch.float32))
        norm = _insert(last, aten._fused_rms_norm.default, (x, shape, weight, eps), (last.meta["val"], kept))
        last.replace_all_uses_with(_insert(last, operator.getitem, (norm, 0), last.meta["val"]))
        found += 1
    return found


def _mean_of_squares(root: fx.Node) -> tuple[fx.Node, int, float] | None:
    """``(x, number of trailing dimensions, eps)`` of ``rsqrt(mean(x * x, trailing, keepdim) + eps)``."""
    (shifted,) = _args(root)
    if not _is(shifted, aten.add.Tensor) or not isinstance(_args(shifted)[1], float):
        return None
    mean, eps = _args(shifted)
    if not _is(mean, aten.mean.dim) or len(mean.args) < 3 or mean.args[2] is not True or mean.kwargs.get("dtype"):
        return None
    square, dims = _args(mean)[:2]
    if not _is(square, aten.mul.Tensor) or square.args[0] is not square.args[1]:
        return None
    (x, _) = _args(square)
    rank = _value(x).dim()
    if sorted(dim % rank for dim in dims) != list(range(rank - len(dims), rank)):
        return None
    return x, len(dims), eps


def _other_operand(node: fx.Node, operand: fx.Node) -> fx.Node | None:
    if not _is(node, aten.mul.Tensor) or operand not in node.args:
        return None
    other = node.args[1] if node.args[0] is operand else node.args[0]
    return other if isinstance(other, fx.Node) and other is not operand and isinstance(_value(other), torch.Tensor) else None


@_pass
def recognize_gelu(module: fx.GraphModule) -> int:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, spelled out, to ``gelu(x, approximate="tanh")``.

    Where a backward graph reads the hyperbolic tangent, that is a value of its own, and everything stays as it is.
    """
    found = 0
    for gate in _calls(module, aten.tanh.default):
        x = _of_cubic(*_args(gate))
        if x is None or len(gate.users) != 1:
            continue
        (shifted,) = gate.users
        if not _is(shifted, aten.add.Tensor) or shifted.args != (gate, 1) or shifted.kwargs:
            continue
        last = shifted
        while (
            len(last.users) == 1 and not _is_product(last, 0.5, (x, shifted)) and _is(next(iter(last.users)), aten.mul.Tensor)
        ):
            (last,) = last.users
        if not _is_product(last, 0.5, (x, shifted)):
            continue
        gelu = _insert(last, aten.gelu.default, (x,), last.meta["val"])
        gelu.kwargs = {"approximate": "tanh"}
        last.replace_all_uses_with(gelu)
        found += 1
    return found


def _of_cubic(node: fx.Node) -> fx.Node | None:
    """``x`` of ``sqrt(2 / pi) * (x + 0.044715 * x * x * x)``."""
    total = next((each for each in node.all_input_nodes if _is(each, aten.add.Tensor) and not each.kwargs), None)
    if total is None or not _is_product(node, math.sqrt(2 / math.pi), (total,)):
        return None
    left, right = _args(total)
    return next((x for x, cube in ((left, right), (right, left)) if _is_product(cube, 0.044715, (x, x, x))), None)


def _is_product(node: Any, number: float, factors: tuple[Any, ...]) -> bool:
    """Whether a tree of multiplications has these factors and numbers of that product, which may have been rounded."""
    found, scale, below = [], 1.0, [node]
    while below:
        each = below.pop()
        if isinstance(each, fx.Node) and each not in factors and _is(each, aten.mul.Tensor):
            below.extend(_args(each))
        elif isinstance(each, float | int):
            scale *= each
        else:
            found.append(each)
    return math.isclose(scale, number, rel_tol=1e-6) and sorted(map(id, found)) == sorted(map(id, factors))


@_pass
def recognize_cross_entropy(module: fx.GraphModule) -> int:
    """``nll_loss_forward(log_softmax(x))`` of which only the loss is used (inference) to ``cross_entropy_loss``.

    In training the logarithms and the total weight are saved for backward, so both composites stay as they are.
    """
    found = 0
    for node in _calls(module, aten.nll_loss_forward.default):
        logarithms, target, weight, reduction, ignored = _args(node)
        users = [user for user in node.users if user.users]
        if len(users) != 1 or not _is(users[0], operator.getitem) or _args(users[0])[1] != 0:
            continue
        if not _is(logarithms, aten._log_softmax.default) or len(logarithms.users) != 1:
            continue
        x, dim, half_to_float = _args(logarithms)
        rank = _value(x).dim()
        if half_to_float or dim % rank != (1 if rank > 1 else 0):
            continue
        args = (x, target, weight, reduction, ignored, 0.0)
        users[0].replace_all_uses_with(_insert(node, aten.cross_entropy_loss.default, args, users[0].meta["val"]))
        found += 1
    return found


def shared_heads_of(attention: torch_private.OpOverload) -> Callable[[fx.GraphModule], int]:
    """A pass for an operator of attention, whose first operands are query, key and value, and which takes fewer heads of keys
    than of queries: calls on keys and values that were repeated for each group of queries, ``view(expand(unsqueeze(x, 2)))``,
    become calls on ``x``."""

    @_pass
    def recognize_shared_heads(module: fx.GraphModule) -> int:
        found = 0
        for node in _calls(module, attention):
            query, key, value, *rest = _args(node)
            shared = [unrepeated(key), unrepeated(value)]
            if shared[0] is None or shared[1] is None or _value(shared[0]).shape[1] != _value(shared[1]).shape[1]:
                continue
            call = _insert(node, node.target, (query, *shared, *rest), node.meta["val"])
            call.kwargs = node.kwargs
            node.replace_all_uses_with(call)
            found += 1
        return found

    return recognize_shared_heads


def unrepeated(repeated: Any) -> fx.Node | None:
    """``x`` of shape (batch, heads, rows, width) of ``view(expand(unsqueeze(x, 2), [batch, heads, times, rows, width]))``."""
    viewed = _is(repeated, aten.view.default) or _is(repeated, aten._unsafe_view.default)
    expanded = _below_copies(_args(repeated)[0]) if viewed else None
    single = _args(expanded)[0] if _is(expanded, aten.expand.default) else None
    if not _is(single, aten.unsqueeze.default) or _args(single)[1] != 2:
        return None
    x: fx.Node = _args(single)[0]
    batch, heads, *rest = _value(x).shape
    many = _value(expanded).shape
    whole = (batch, heads * many[2], *rest)
    wide = (batch, heads, many[2], *rest)
    same = [*zip(_value(repeated).shape, whole, strict=False), *zip(many, wide, strict=False)]
    if len(_value(repeated).shape) != 4 or not all(torch_private.surely_equal(a, b) for a, b in same):
        return None
    return x


def _below_copies(node: Any) -> Any:
    while _is(node, aten.clone.default):
        node = _args(node)[0]
    return node
