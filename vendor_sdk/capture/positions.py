"""Masks of positions, where sizes are symbols: what an element is, as a function of where it stands.

Models compare positions, counted from zero, to decide what may see what. Such values are a number and a whole multiple of each
coordinate, and comparisons of two of them; whether these hold everywhere, or are the causal one, depends on no size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
Tensor = torch.Tensor


@dataclass(frozen=True)
class Line:
    """Integers: ``number`` plus ``slopes`` times the coordinates, one for each dimension; 0 along a dimension of size 1."""

    number: int
    slopes: tuple[int, ...]


@dataclass(frozen=True)
class Truth:
    """Bools of ``dims`` dimensions: true where all ``lines`` are zero or more, or nowhere."""

    dims: int
    lines: frozenset[Line] = frozenset()
    never: bool = False


Known = Line | Truth | float
"""A float is a tensor of no dimensions."""
Values = Mapping[fx.Node, Known]


def visible(graph: fx.Graph) -> dict[fx.Node, bool]:
    """Of masks that positions decide: whether they are causal, where element ``[..., i, j]`` is true or zero for ``j <= i``,
    rather than true or zero everywhere; others of them hide a key, false or as good as ``-inf``, elsewhere and are not here."""
    known: dict[fx.Node, Known] = {}
    found: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None or not isinstance(node.meta.get("val"), Tensor):
            continue
        value = rule(node, known)
        if value is None:
            continue
        known[node] = value
        if isinstance(value, Truth) and not value.never and value.dims >= 2:
            later = Line(0, (*(0,) * (value.dims - 2), 1, -1))
            if value.lines <= {later}:
                found[node] = bool(value.lines)
    return found


def _dims(node: fx.Node) -> int:
    return int(node.meta["val"].dim())


def _aligned(value: Any, dims: int, known: Values) -> Line | None:
    """An operand as a line of so many dimensions, new ones in front."""
    if isinstance(value, bool) or not isinstance(value, int | fx.Node):
        return None
    if isinstance(value, int):
        return Line(value, (0,) * dims)
    line = known.get(value)
    return Line(line.number, (0,) * (dims - len(line.slopes)) + line.slopes) if isinstance(line, Line) else None


def _line(node: fx.Node, number: int, slopes: Sequence[int]) -> Line:
    """A result, whose coordinate along a dimension of size 1 is always 0."""
    sizes = node.meta["val"].shape
    there = (0 if isinstance(size, int) and size == 1 else slope for size, slope in zip(sizes, slopes, strict=True))
    return Line(number, tuple(there))


def _difference(node: fx.Node, known: Values) -> Line | None:
    if len(node.args) != 2 or node.kwargs:
        return None
    a, b = (_aligned(arg, _dims(node), known) for arg in node.args)
    if a is None or b is None:
        return None
    return _line(node, a.number - b.number, [x - y for x, y in zip(a.slopes, b.slopes, strict=True)])


def _arange(node: fx.Node, known: Values) -> Known | None:
    start, step = (node.args[0], (node.args[2:3] or (1,))[0]) if node.target is not aten.arange.default else (0, 1)
    if node.meta["val"].dtype != torch.int64 or not isinstance(start, int) or not isinstance(step, int):
        return None
    return _line(node, start, (step,))


_FILLS: Mapping[Any, int] = {aten.zeros.default: 0, aten.ones.default: 1}


def _filled(node: fx.Node, known: Values) -> Known | None:
    value = _FILLS[node.target] if node.target in _FILLS else node.args[1 if node.target is aten.full.default else 0]
    dtype = node.meta["val"].dtype
    if dtype == torch.bool and isinstance(value, int):
        return Truth(_dims(node), never=not value)
    if dtype == torch.int64 and isinstance(value, int):
        return Line(int(value), (0,) * _dims(node))
    return float(value) if _dims(node) == 0 and isinstance(value, int | float) else None


def _sum(node: fx.Node, known: Values) -> Known | None:
    sign = 1 if node.target is aten.add.Tensor else -1
    if len(node.args) != 2 or node.kwargs or node.meta["val"].dtype != torch.int64:
        return None
    a, b = (_aligned(arg, _dims(node), known) for arg in node.args)
    if a is None or b is None:
        return None
    return _line(node, a.number + sign * b.number, [x + sign * y for x, y in zip(a.slopes, b.slopes, strict=True)])


def _unsqueeze(node: fx.Node, known: Values) -> Known | None:
    source, dim = node.args
    value, at = known.get(source), int(dim) % _dims(node)  # type: ignore[arg-type]

    def wider(line: Line) -> Line:
        return Line(line.number, (*line.slopes[:at], 0, *line.slopes[at:]))

    if isinstance(value, Truth):
        return Truth(value.dims + 1, frozenset(map(wider, value.lines)), value.never)
    return wider(value) if isinstance(value, Line) else None


def _expand(node: fx.Node, known: Values) -> Known | None:
    value, dims = known.get(node.args[0]), _dims(node)  # type: ignore[arg-type]

    def wider(line: Line) -> Line:
        return Line(line.number, (0,) * (dims - len(line.slopes)) + line.slopes)

    if isinstance(value, Truth):
        return Truth(dims, frozenset(map(wider, value.lines)), value.never)
    return wider(value) if isinstance(value, Line) else None


def _slice(node: fx.Node, known: Values) -> Known | None:
    given: list[Any] = [*node.args, *(None, 0, None, None, 1)[len(node.args) :]]
    value, dim, start, step = known.get(given[0]), given[1], given[2] or 0, given[4]
    if not isinstance(value, Line) or not isinstance(dim, int) or not isinstance(start, int) or start < 0 or step != 1:
        return None
    return _line(node, value.number + start * value.slopes[dim], value.slopes)


def _cat(node: fx.Node, known: Values) -> Known | None:
    """What comes first is what the second would be before its begin."""
    parts, dim = node.args[0], (node.args[1:2] or (0,))[0]
    if not isinstance(parts, list | tuple) or len(parts) != 2 or not isinstance(dim, int):
        return None
    first, second = (known.get(part) for part in parts)  # type: ignore[arg-type]
    size = parts[0].meta["val"].shape[dim]  # type: ignore[union-attr]
    if not isinstance(first, Line) or not isinstance(second, Line) or not isinstance(size, int) or size != 1:
        return None
    # Of a second part of one element nothing tells how it would go on.
    if isinstance(one := parts[1].meta["val"].shape[dim], int) and one == 1:  # type: ignore[union-attr]
        return None
    before = second.number - second.slopes[dim]
    others = [line.slopes[:dim] + line.slopes[dim % len(line.slopes) + 1 :] for line in (first, second)]
    return _line(node, before, second.slopes) if first.number == before and others[0] == others[1] else None


def _cumsum(node: fx.Node, known: Values) -> Known | None:
    value = known.get(node.args[0])  # type: ignore[arg-type]
    nothing = value.never if isinstance(value, Truth) else isinstance(value, Line) and not (value.number or any(value.slopes))
    return Line(0, (0,) * _dims(node)) if nothing and node.meta["val"].dtype == torch.int64 else None


def _index(node: fx.Node, known: Values) -> Known | None:
    """Elements at positions that are coordinates themselves, or zero."""
    source, indices = node.args[:2]
    value, dims = known.get(source), _dims(node)  # type: ignore[arg-type]
    if not isinstance(value, Line) or not isinstance(indices, list | tuple) or len(indices) != len(value.slopes):
        return None
    number, slopes = value.number, [0] * dims
    for size, slope, at in zip(source.meta["val"].shape, value.slopes, indices, strict=True):  # type: ignore[union-attr]
        line = _aligned(at, dims, known) if isinstance(at, fx.Node) else None
        along = [d for d in range(dims) if line is not None and line.slopes[d]]
        if line is None or line.number or len(along) > 1 or any(line.slopes[d] != 1 for d in along):
            return None
        # No position is beyond the end: the program would say so.
        if any(str(node.meta["val"].shape[d]) != str(size) for d in along):
            return None
        for d in along:
            slopes[d] += slope
    return _line(node, number, slopes)


def _holds(line: Line) -> Truth:
    """Where a line is zero or more."""
    dims = len(line.slopes)
    if line.number >= 0 and min(line.slopes, default=0) >= 0:
        return Truth(dims)
    if line.number < 0 and max(line.slopes, default=0) <= 0:
        return Truth(dims, never=True)
    return Truth(dims, frozenset((line,)))


def _comparison(sign: int, number: int) -> Callable[[fx.Node, Values], Known | None]:
    """``sign * (a - b) + number >= 0``."""

    def rule(node: fx.Node, known: Values) -> Known | None:
        line = _difference(node, known)
        return None if line is None else _holds(Line(sign * line.number + number, tuple(sign * s for s in line.slopes)))

    return rule


def _equality(wanted: bool) -> Callable[[fx.Node, Values], Known | None]:
    def rule(node: fx.Node, known: Values) -> Known | None:
        line = _difference(node, known)
        if line is None or any(line.slopes):
            return None
        return Truth(len(line.slopes), never=(line.number == 0) is not wanted)

    return rule


def _both(node: fx.Node, known: Values) -> Known | None:
    values, dims = [known.get(arg) for arg in node.args], _dims(node)  # type: ignore[arg-type]
    if not all(isinstance(value, Truth) for value in values):
        return None
    lines = {Line(x.number, (0,) * (dims - len(x.slopes)) + x.slopes) for value in values for x in value.lines}  # type: ignore[union-attr]
    return Truth(dims, frozenset(lines), any(value.never for value in values))  # type: ignore[union-attr]


def _where(node: fx.Node, known: Values) -> Known | None:
    """What is added to scores: zero where a condition holds, and what hides elsewhere."""
    condition, shown, hidden = (known.get(arg) if isinstance(arg, fx.Node) else arg for arg in node.args)
    dtype = node.meta["val"].dtype
    if not isinstance(condition, Truth) or condition.dims != _dims(node) or not dtype.is_floating_point:
        return None
    hides = isinstance(hidden, float) and hidden <= torch.finfo(dtype).min
    return condition if shown == 0 and isinstance(shown, float) and hides else None


_RULES: Mapping[Any, Callable[[fx.Node, Values], Known | None]] = {
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.full.default: _filled,
    aten.zeros.default: _filled,
    aten.ones.default: _filled,
    aten.scalar_tensor.default: _filled,
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _sum,
    aten.unsqueeze.default: _unsqueeze,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.cat.default: _cat,
    aten.cumsum.default: _cumsum,
    aten.index.Tensor: _index,
    aten.le.Tensor: _comparison(-1, 0),
    aten.le.Scalar: _comparison(-1, 0),
    aten.lt.Tensor: _comparison(-1, -1),
    aten.lt.Scalar: _comparison(-1, -1),
    aten.ge.Tensor: _comparison(1, 0),
    aten.ge.Scalar: _comparison(1, 0),
    aten.gt.Tensor: _comparison(1, -1),
    aten.gt.Scalar: _comparison(1, -1),
    aten.eq.Tensor: _equality(True),
    aten.eq.Scalar: _equality(True),
    aten.ne.Tensor: _equality(False),
    aten.ne.Scalar: _equality(False),
    aten.bitwise_and.Tensor: _both,
    aten.logical_and.default: _both,
    aten.where.self: _where,
}
