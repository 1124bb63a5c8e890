"""Programs of which a user sees more than values: what aliases what, what was changed in place, in which order memory lies.

A table: each program is a function of tensors, with how its inputs are made. Values are whole numbers, so that results are
exact; but those of attention under masks (``masked``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from conformance import masked
from conformance.draw import Draw

Tensor = torch.Tensor


@dataclass(frozen=True)
class Act:
    """A program.

    Attributes:
        name: what it does, in a few words.
        function: of tensors; returns nothing, a tensor, or a tuple of them.
        inputs: draws its inputs, which may share memory.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw], Sequence[Tensor]]


ACTS: dict[str, list[Act]] = {"views": [], "aliases": [], "in-place": [], "strides": [], "masks": []}
"""By group."""


def _matrix(draw: Draw) -> list[Tensor]:
    return [draw.whole(5, 6)]


def _two(draw: Draw) -> list[Tensor]:
    return [draw.whole(5, 6), draw.whole(5, 6)]


def _image(draw: Draw) -> list[Tensor]:
    return [draw.whole(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)]


def _act(
    group: str, name: str, inputs: Callable[[Draw], Sequence[Tensor]] = _matrix
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        ACTS[group].append(Act(name, function, inputs))
        return function

    return add


def _acts(group: str, inputs: Callable[[Draw], Sequence[Tensor]], functions: Mapping[str, Callable[..., Any]]) -> None:
    ACTS[group] += [Act(name, function, inputs) for name, function in functions.items()]


# Views of inputs are views, with the strides and the place that eager gives them

_acts("views", _matrix, {
    "transposed": lambda x: x.t(),
    "flattened": lambda x: x.view(-1),
    "sliced, with steps": lambda x: x[1:, ::2],
    "selected": lambda x: x[:, 3],
    "expanded": lambda x: x.unsqueeze(1).expand(5, 3, 6),
    "diagonal": lambda x: x.diagonal(1),
    "split": lambda x: x.split([2, 3]),
    "unbound": lambda x: x.unbind(1),
    "as_strided": lambda x: x.as_strided((3, 2), (7, 2), 4),
    "bits": lambda x: x.view(torch.int32),
    "windows": lambda x: x.unfold(1, 3, 2),
    "a view of a view": lambda x: x.unflatten(1, (2, 3)).movedim(0, -1)[1].narrow(0, 1, 2),
    "reshape that can and reshape that cannot": lambda x: (x.reshape(30), x.t().reshape(30)),
    "of a result": lambda x: (x + 1).t()[1:],
    "beside what was computed from it": lambda x: (x[1:], x[1:] * 2),
})  # fmt: skip


@_act("views", "read after its base was changed")
def _late(x: Tensor) -> Any:
    view = x.view(-1)[3:]
    x.add_(1)
    return view, view * 2


# What is the same tensor, or shares memory, and what does not

_acts("aliases", _matrix, {
    "an input": lambda x: x,
    "an input, twice": lambda x: (x, x),
    "a copy": lambda x: x.clone(),
    "nothing was to be done": lambda x: (x.contiguous(), x.to(torch.float32), x.float(), x.reshape(5, 6)),
    "adding zero": lambda x: x + 0,
    "detached": lambda x: x.detach(),
    "results that share memory": lambda x: ((y := x + 1), y.t(), y[2:]),
    "one result twice": lambda x: ((y := x * 2), y),
    "equal results": lambda x: (x * 2, x * 2),
    "chunks of a result": lambda x: (x * 3).chunk(2, 1),
    "a dropout that drops nothing": lambda x: F.dropout(x, 0.5, training=False) * 2,
})  # fmt: skip
_acts("aliases", lambda draw: [draw.whole(5, 6)] * 2, {
    "one tensor as two inputs": lambda x, y: (x + y, x, y.t()),
})  # fmt: skip
_acts("aliases", lambda draw: [(base := draw.whole(12))[:8], base[4:]], {
    "inputs that overlap": lambda x, y: (x * 2, y[1:], x + y),
})  # fmt: skip
_acts("aliases", lambda draw: [draw.whole(5, 6).requires_grad_()], {
    "a view of what has a gradient": lambda x: (x.view(-1), x.detach(), x * 2),
})  # fmt: skip


# In place


@_act("in-place", "an input")
def _scaled(x: Tensor) -> Any:
    x.mul_(2)
    return x + 1


@_act("in-place", "an input, and nothing is returned")
def _only(x: Tensor) -> None:
    x.add_(3)


@_act("in-place", "an input, that is returned")
def _returned(x: Tensor) -> Any:
    return x.sub_(1)


@_act("in-place", "a slice")
def _slice(x: Tensor) -> Any:
    x[1:3, ::2] = 7
    x.t()[0].add_(1)
    return x.sum()


@_act("in-place", "between two readings")
def _between(x: Tensor) -> Any:
    before = x.clone()
    x.add_(1)
    middle = x * 2
    x.mul_(3)
    return before, middle, x - 1


@_act("in-place", "an intermediate")
def _intermediate(x: Tensor) -> Any:
    y = x * 2
    view = y[1:]
    view.zero_()
    y[0].copy_(x[4])
    return y, view + 1


@_act("in-place", "copied and swapped", _two)
def _swapped(x: Tensor, y: Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


@_act("in-place", "out=", lambda draw: [*_two(draw), draw.whole(5, 6)])
def _out(x: Tensor, y: Tensor, z: Tensor) -> Any:
    torch.add(x, y, out=z)
    return z * 2


@_act("in-place", "inputs that overlap", lambda draw: [(base := draw.whole(12))[:8], base[4:]])
def _overlapping(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    y.mul_(2)
    return x + y


@_act("in-place", "one tensor as two inputs", lambda draw: [draw.whole(5, 6)] * 2)
def _same(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return y * 2


@_act("in-place", "a strided input, with memory between", lambda draw: [draw.whole(7, 9)[1:6:2, ::3]])
def _strided(x: Tensor) -> Any:
    x.mul_(2)
    return x.t()


@_act("in-place", "at indices", lambda draw: [draw.whole(5, 6), draw.index(5, 3), draw.whole(3, 6)])
def _indexed(x: Tensor, index: Tensor, values: Tensor) -> Any:
    x.index_add_(0, index, values)
    x[:, 2] = 0
    return x.clone()


@_act("in-place", "where a mask says", lambda draw: [draw.whole(5, 6), draw.whole(5, 6, dtype=torch.bool)])
def _masked(x: Tensor, mask: Tensor) -> Any:
    x.masked_fill_(mask, -1)
    mask.logical_not_()
    return x.clamp_(max=3)


@_act("in-place", "scattered", lambda draw: [draw.whole(5, 6), draw.index(5, 2, 6), draw.whole(2, 6)])
def _scattered(x: Tensor, index: Tensor, values: Tensor) -> None:
    x.scatter_add_(0, index, values)


@_act("in-place", "a counter", lambda draw: [draw.whole(dtype=torch.int64), draw.whole(4, dtype=torch.int32)])
def _counter(count: Tensor, x: Tensor) -> Any:
    count.add_(1)
    x.bitwise_not_()
    return x + count


@_act("in-place", "running statistics", lambda draw: [draw.whole(8, 3), draw.whole(3), draw.whole(3).abs() + 1])
def _statistics(x: Tensor, mean: Tensor, variance: Tensor) -> Any:
    return F.batch_norm(x, mean, variance, training=True)


@_act("in-place", "a cache of keys", lambda draw: [draw.whole(2, 8, 3), draw.whole(2, 1, 3), draw.index(8, 1)])
def _cache(cache: Tensor, new: Tensor, position: Tensor) -> Any:
    cache.index_copy_(1, position, new)
    return cache.sum(1)


@_act("in-place", "under no_grad, what has a gradient", lambda draw: [draw.whole(5, 6).requires_grad_(), draw.whole(5, 6)])
def _step(parameter: Tensor, update: Tensor) -> None:
    with torch.no_grad():
        parameter.sub_(update)


# The order in which results lie in memory

_acts("strides", lambda draw: [draw.whole(6, 5).t(), draw.whole(6, 5).t()], {
    "of transposed operands": lambda x, y: (x + y, torch.where(x > y, x, y), x.clone(), torch.empty_like(x).fill_(1)),
    "asked for": lambda x, y: (x.contiguous(), x.clone(memory_format=torch.contiguous_format), (x * y).contiguous()),
    "of conversions": lambda x, y: (x.to(torch.float64), x.bool(), x.to(torch.int32).to(torch.float32)),
    "of products": lambda x, y: (x @ y.t(), (x @ y.t()).t()),
    "of reductions": lambda x, y: (x.sum(0, keepdim=True), x.amax(1), x.cumsum(0)),
    "of joins": lambda x, y: (torch.cat([x, y]), torch.stack([x, y], -1), F.pad(x, (1, 2))),
})  # fmt: skip
_acts("strides", _image, {
    "of channels last": lambda x: (x * 2, x + x.amax((2, 3), keepdim=True), x.to(torch.float64)),
    "of channels last, pooled": lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2)),
    "of channels last, asked for": lambda x: ((x * 2).contiguous(), (x + 1).permute(0, 2, 3, 1)),
    "to channels last": lambda x: (x.contiguous() * 2).contiguous(memory_format=torch.channels_last),
    "of channels last, joined": lambda x: torch.cat([x, x * 2], 1),
})  # fmt: skip
_acts("strides", lambda draw: [*_image(draw), draw.whole(4, 3, 3, 3)], {
    "of a convolution of channels last": lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
})  # fmt: skip
_acts("strides", lambda draw: [draw.whole(3, 4, 5).permute(2, 0, 1), draw.whole(4)], {
    "of a permuted operand": lambda x, y: (x * 2, x + y, x.softmax(-1) > 2),
})  # fmt: skip
_acts("strides", lambda draw: [draw.whole(5, 12)[:, ::2], draw.whole(6).expand(5, 6)], {
    "of operands with gaps, and expanded": lambda x, y: (x * 2, y + 1, x + y, y.clone()),
})  # fmt: skip
_acts("strides", lambda draw: [draw.whole(1, 6, 1), draw.whole(0, 4)], {
    "of sizes one and zero": lambda x, y: (x * 2, y + 1, x.transpose(0, 1) + 1, y.t() * 2),
})  # fmt: skip

# Attention, without gradients

ACTS["masks"] += [Act(*program) for program in masked.PROGRAMS]
