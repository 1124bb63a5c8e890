"""Complex numbers as pairs of real ones.

No loop computes with complex numbers, and few devices do; and what is done with them is arithmetic of their parts. So a value
that a prim of ``RULES`` makes is two values from here on: the real parts, and the imaginary ones. What has no rule (a Fourier
transform, a product of matrices) gets them side by side in memory again, as the caller does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import call_before
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of
from vendor_sdk.normalize.canonicalize import drop_dead
from vendor_sdk.prims.opset import BY_TARGET

aten = torch.ops.aten
Pair = tuple[fx.Node, fx.Node]
"""Real and imaginary parts, both of the value's shape."""


def in_pairs(graph: PrimGraph) -> PrimGraph:
    """Computes with pairs what a graph computes with complex numbers, as far as ``RULES`` say how."""
    values = [value for node in graph.graph.nodes for value in tensors_of(node.meta.get("val"))]
    if any(value.dtype.is_complex for value in values):
        with torch_private.fake_mode_of(values):
            _Pairs(graph).run()
    return graph


class _Pairs:
    def __init__(self, graph: PrimGraph) -> None:
        self.graph = graph
        self.known: dict[fx.Node, Pair] = {}
        """Parts of complex values."""
        self.made: dict[fx.Node, None] = {}
        """Those that are computed as parts."""
        self.here: fx.Node
        """The node that stands for parts now; calls are put before it."""

    def run(self) -> None:
        for node in list(self.graph.calls()):
            rule = RULES.get(node.target) or (_each if _is_plain_view(node) else None)
            if rule is None or not any(map(_is_complex, (node, *node.all_input_nodes))):
                continue
            self.here = node
            made = rule(self, node)
            if isinstance(made, fx.Node):
                node.replace_all_uses_with(made)
            elif made is not None:
                self.known[node] = made
                self.made[node] = None
        for node in reversed(self.made):
            self._join(node)
        drop_dead(self.graph)

    def _join(self, node: fx.Node) -> None:
        """Puts parts side by side for those who are not computed as parts. Views of what is complex anyway stay that."""
        strangers = [user for user in node.users if user not in self.made]
        if not strangers or self.shows(node):
            return
        first = node.next
        pair = [call_before(first, aten.unsqueeze.default, part, -1, like=node) for part in self.known[node]]
        joined = call_before(first, aten.cat.default, pair, -1, like=node)
        joined = call_before(first, aten.view_as_complex.default, joined, like=node)
        for user in strangers:
            user.replace_input_with(node, joined)

    def shows(self, node: fx.Node) -> bool:
        """Whether a value is a view of one that is complex in memory."""
        while _is_plain_view(node):
            node = node.all_input_nodes[0]
        return node.target is aten.view_as_complex.default or node not in self.made

    # What rules ask for

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return call_before(self.here, target, *args, **kwargs)

    def number(self, value: float, dtype: torch.dtype, like: fx.Node) -> fx.Node:
        return self.call(aten.full.default, [], value, dtype=dtype, device=like.meta["val"].device)

    def parts(self, value: Any) -> Pair | None:
        """The parts of an operand that is complex; None where they cannot be seen."""
        if value not in self.known:
            if value.meta["val"].is_conj():
                return None
            real = self.call(aten.view_as_real.default, value)
            last = real.meta["val"].dim() - 1
            self.known[value] = self.call(aten.select.int, real, last, 0), self.call(aten.select.int, real, last, 1)
        return self.known[value]

    def operands(self, node: fx.Node) -> list[Pair] | None:
        """Parts of a prim's two operands, in the type that they have in common: of real ones the imaginary part is zero."""
        values: list[Any] = [v.meta["val"] if isinstance(v, fx.Node) else v for v in node.args[:2]]
        dtype = torch.result_type(*values).to_real()
        found: list[Pair] = []
        for value in node.args[:2]:
            if isinstance(value, int | float | complex):
                number = complex(value)
                pair: Pair | None = (self.number(number.real, dtype, node), self.number(number.imag, dtype, node))
            elif isinstance(value, fx.Node) and _is_complex(value):
                pair = self.parts(value)
            elif isinstance(value, fx.Node) and isinstance(value.meta["val"], torch.Tensor):
                pair = value, self.number(0, dtype, node)
            else:
                return None
            if pair is None:
                return None
            found.append((self.cast(pair[0], dtype), self.cast(pair[1], dtype)))
        return found

    def in_order(self, value: fx.Node) -> fx.Node:
        """A value that can be seen in any shape: parts of numbers in memory lie apart."""
        if value.meta["val"].is_contiguous():
            return value
        return self.call(aten.clone.default, value, memory_format=torch.contiguous_format)

    def cast(self, value: fx.Node, dtype: torch.dtype) -> fx.Node:
        return value if value.meta["val"].dtype == dtype else self.call(aten._to_copy.default, value, dtype=dtype)


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def _part_dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype.to_real()


def _is_plain_view(node: fx.Node) -> bool:
    """Whether a node shows the elements of its one operand, and its arguments say the same of the parts."""
    row = BY_TARGET.get(node.target)
    if row is None or not row.is_view or node.target in (aten.view_as_real.default, aten.view_as_complex.default):
        return False
    return node.target is not aten.as_strided.default and _is_complex(node)


# Rules: parts of a complex result, a real result, or None where the prim stays


def _each(of: _Pairs, node: fx.Node) -> Pair | None:
    """The same of both parts."""
    if not _is_complex(node) or not isinstance(node.args[0], fx.Node) or not _is_complex(node.args[0]):
        return None
    pair = of.parts(node.args[0])
    return pair and _both(of, node, *pair)


def _both(of: _Pairs, node: fx.Node, *firsts: Any) -> Pair:
    if node.target is aten.view.default:
        firsts = tuple(map(of.in_order, firsts))
    kwargs = {**node.kwargs, **({"dtype": _part_dtype(node)} if node.kwargs.get("dtype") is not None else {})}
    real, imaginary = (of.call(node.target, first, *node.args[1:], **kwargs) for first in firsts)  # type: ignore[arg-type]
    return real, imaginary


def _joined(of: _Pairs, node: fx.Node) -> Pair | None:
    """Several tensors as one."""
    (values, *_) = node.args
    assert isinstance(values, list | tuple)
    if not all(isinstance(value, fx.Node) and _is_complex(value) for value in values):
        return None
    pairs = [of.parts(value) for value in values]
    known = [pair for pair in pairs if pair is not None]
    return _both(of, node, *map(list, zip(*known, strict=True))) if len(known) == len(values) else None


def _made(of: _Pairs, node: fx.Node) -> Pair | None:
    real, imaginary = node.args
    assert isinstance(real, fx.Node)
    assert isinstance(imaginary, fx.Node)
    return (real, imaginary) if real.meta["val"].shape == imaginary.meta["val"].shape else None


def _seen(of: _Pairs, node: fx.Node) -> Pair | None:
    """Pairs in memory as numbers."""
    pairs = node.args[0]
    assert isinstance(pairs, fx.Node)
    last = pairs.meta["val"].dim() - 1
    return of.call(aten.select.int, pairs, last, 0), of.call(aten.select.int, pairs, last, 1)


def _shown(of: _Pairs, node: fx.Node) -> fx.Node | None:
    """Numbers as pairs in memory; not of what lies so: it is a view. One part alone is not read from there."""
    value = node.args[0]
    assert isinstance(value, fx.Node)
    if value not in of.known or of.shows(value):
        return None
    pair = of.known[value]
    last = node.meta["val"].dim() - 1
    for user in list(node.users):
        if user.target is aten.select.int and user.args[1] in (last, -1) and user.args[2] in (0, 1, -1, -2):
            user.replace_all_uses_with(pair[user.args[2]])  # type: ignore[index]
    both = [of.call(aten.unsqueeze.default, part, -1) for part in pair]
    return of.call(aten.cat.default, both, last)


def _sum(target: Callable[..., Any]) -> Callable[[_Pairs, fx.Node], Pair | None]:
    def rule(of: _Pairs, node: fx.Node) -> Pair | None:
        found = None if len(node.args) > 2 or node.kwargs else of.operands(node)
        if found is None:
            return None
        (a, b), (c, d) = found
        return _whole(of, node, of.call(target, a, c), of.call(target, b, d))

    return rule


def _mul(of: _Pairs, node: fx.Node) -> Pair | None:
    found = of.operands(node)
    if found is None:
        return None
    (a, b), (c, d) = found
    mul = aten.mul.Tensor
    real = of.call(aten.sub.Tensor, of.call(mul, a, c), of.call(mul, b, d))
    return _whole(of, node, real, of.call(aten.add.Tensor, of.call(mul, a, d), of.call(mul, b, c)))


def _compared(each: Callable[..., Any], join: Callable[..., Any]) -> Callable[[_Pairs, fx.Node], fx.Node | None]:
    def rule(of: _Pairs, node: fx.Node) -> fx.Node | None:
        found = of.operands(node)
        if found is None:
            return None
        return of.call(join, *(of.call(each, *parts) for parts in zip(*found, strict=True)))

    return rule


def _whole(of: _Pairs, node: fx.Node, real: fx.Node, imaginary: fx.Node) -> Pair | None:
    """Parts, if they are of the result's shape: a number's zeros are not."""
    shape = node.meta["val"].shape
    return (real, imaginary) if real.meta["val"].shape == imaginary.meta["val"].shape == shape else None


def _conjugate(of: _Pairs, node: fx.Node) -> Pair | None:
    assert isinstance(node.args[0], fx.Node)
    pair = of.parts(node.args[0])
    return pair and (pair[0], of.call(aten.neg.default, pair[1]))


def _size(of: _Pairs, node: fx.Node) -> fx.Node | None:
    assert isinstance(node.args[0], fx.Node)
    pair = of.parts(node.args[0])
    return pair and of.call(aten.hypot.default, *pair)


def _chosen(of: _Pairs, node: fx.Node) -> Pair | None:
    condition, *values = node.args
    if not all(isinstance(value, fx.Node) and _is_complex(value) for value in values):
        return None
    pairs = [of.parts(value) for value in values]
    if any(pair is None or pair[0].meta["val"].dtype != _part_dtype(node) for pair in pairs):
        return None
    real, imaginary = (
        of.call(aten.where.self, condition, *(pair[part] for pair in pairs if pair is not None)) for part in (0, 1)
    )
    return real, imaginary


def _cast(of: _Pairs, node: fx.Node) -> Pair | None:
    """To another precision."""
    value = node.args[0]
    assert isinstance(value, fx.Node)
    if node.kwargs.keys() != {"dtype"} or not _is_complex(value) or not _is_complex(node):
        return None
    pair = of.parts(value)
    return pair and (of.cast(pair[0], _part_dtype(node)), of.cast(pair[1], _part_dtype(node)))


RULES: Mapping[Any, Callable[[_Pairs, fx.Node], Pair | fx.Node | None]] = {
    aten.complex.default: _made,
    aten.view_as_complex.default: _seen,
    aten.view_as_real.default: _shown,
    aten._conj_physical.default: _conjugate,
    aten.abs.default: _size,
    aten.add.Tensor: _sum(aten.add.Tensor),
    aten.sub.Tensor: _sum(aten.sub.Tensor),
    aten.mul.Tensor: _mul,
    aten.eq.Tensor: _compared(aten.eq.Tensor, aten.bitwise_and.Tensor),
    aten.ne.Tensor: _compared(aten.ne.Tensor, aten.bitwise_or.Tensor),
    aten._to_copy.default: _cast,
    aten.where.self: _chosen,
    aten.cat.default: _joined,
    **dict.fromkeys(
        (
            aten.neg.default,
            aten.clone.default,
            aten.flip.default,
            aten.index.Tensor,
            aten.index_select.default,
            aten.gather.default,
            aten.sum.dim_IntList,
            aten.mean.dim,
        ),
        _each,
    ),
}
"""Prim to what it makes of parts."""
