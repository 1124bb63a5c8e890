"""Negative log likelihood and cross entropy as composites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vendor_sdk.prims.bounds import OF_SUMS, Accumulated
from vendor_sdk.prims.recognize import recognize_cross_entropy
from vendor_sdk.prims.row import Composite
from vendor_sdk.prims.samples import Effort, Sample, SampleContext, draw
from vendor_sdk.prims.widen import cast, computation_dtype, filled, number

aten = torch.ops.aten
Tensor = torch.Tensor

NONE, MEAN, SUM = 0, 1, 2
"""Reductions as ATen numbers them."""


def _class_dim(x: Tensor) -> int:
    return 1 if x.dim() > 1 else 0


def nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """``x`` holds log probabilities with classes in dimension 1 (0 for one element). Returns the loss and the total weight."""
    dim = _class_dim(x)
    wide = computation_dtype(x.dtype)
    counts = aten.ne.Tensor(target, number(ignore_index, target.dtype, target))
    safe = aten.where.self(counts, target, number(0, target.dtype, target))
    picked = aten.squeeze.dims(aten.gather.default(x, dim, aten.unsqueeze.default(safe, dim)), [dim])
    zero = number(0, wide, x)
    weights = filled(picked, 1, wide) if weight is None else cast(aten.index.Tensor(weight, [safe]), wide)
    weights = aten.where.self(counts, weights, zero)
    losses = aten.where.self(counts, aten.mul.Tensor(aten.neg.default(cast(picked, wide)), weights), zero)
    if reduction == NONE and x.dim() > 1:
        return cast(losses, x.dtype), number(0, x.dtype, x)
    dims = list(range(losses.dim()))
    total, loss = aten.sum.dim_IntList(weights, dims), aten.sum.dim_IntList(losses, dims)
    if reduction == MEAN:
        loss = aten.div.Tensor(loss, total)
    return cast(loss, x.dtype), cast(total, x.dtype)


def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:
    # a comparison with the class numbers instead of a scatter: it fuses with what follows
    dim = _class_dim(x)
    wide = computation_dtype(x.dtype)
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    classes = aten.arange.start_step(0, x.shape[dim], 1, dtype=torch.int64, device=x.device)
    classes = aten.reshape.default(classes, shape)
    labels = aten.unsqueeze.default(target, dim)
    chosen = aten.logical_and.default(
        aten.eq.Tensor(classes, labels), aten.ne.Tensor(labels, number(ignore_index, target.dtype, target))
    )
    slope = aten.neg.default(cast(grad, wide))
    if reduction == MEAN:
        slope = aten.div.Tensor(slope, cast(total_weight, wide))
    elif reduction == NONE and x.dim() > 1:
        slope = aten.unsqueeze.default(slope, dim)
    if weight is not None:
        slope = aten.mul.Tensor(slope, aten.reshape.default(cast(weight, wide), shape))
    return cast(aten.where.self(chosen, slope, filled(x, 0, wide)), x.dtype)


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """``NotImplemented`` for class probabilities and label smoothing, which torch expresses by other operators."""
    if label_smoothing or target.dtype.is_floating_point:
        return NotImplemented
    dim = _class_dim(x)
    wide = cast(x, computation_dtype(x.dtype))
    shifted = aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    logarithms = aten.sub.Tensor(shifted, aten.log.default(total))
    return cast(nll_loss(logarithms, target, weight, reduction, ignore_index)[0], x.dtype)


def _nll_magnitude(x: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    loss, total = nll_loss(-x.abs(), target, None if weight is None else weight.abs(), reduction, ignore_index)
    return loss.abs().nan_to_num(), total.abs()


def _nll_backward_magnitude(grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
    return nll_loss_backward(grad.abs(), x, *rest).abs()


def _cross_entropy_magnitude(x: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int, _: float) -> Tensor:
    # each logarithm is off by a few u of the row's largest distance from its maximum
    dim = _class_dim(x)
    spread = (x.amax(dim, True) - x).amax(dim, True) + 2 + x.logsumexp(dim, True).abs()
    loss = nll_loss(-spread.expand(x.shape).contiguous(), target, weight, reduction, ignore_index)[0]
    return loss.abs().nan_to_num()


def _terms(x: Tensor, target: Tensor, *_: Any) -> int:
    return max(target.numel(), x.shape[_class_dim(x)])


def _labels(context: SampleContext, shape: tuple[int, ...], classes: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=context.generator)


def _inputs(context: SampleContext) -> Iterator[tuple[str, Tensor, Tensor, Tensor | None, int, int]]:
    labels = _labels(context, (9,), 5)
    yield "mean", draw(context, (9, 5)), labels, None, MEAN, -100
    yield "weights and an ignored class", draw(context, (9, 5)), labels, draw(context, (5,)).abs() + 0.5, MEAN, 2
    yield "unreduced", draw(context, (9, 5)), labels, None, NONE, -100
    if context.effort >= Effort.STANDARD:
        yield "sum", draw(context, (67, 33)), _labels(context, (67,), 33), None, SUM, -100


def _nll_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, target, weight, reduction, ignored in _inputs(context):
        yield Sample((x, target, weight, reduction, ignored), label=label)


def _cross_entropy_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, target, weight, reduction, ignored in _inputs(context):
        yield Sample((x, target, weight, reduction, ignored, 0.0), label=label)


def _nll_backward_samples(context: SampleContext) -> Iterator[Sample]:
    for label, x, target, weight, reduction, ignored in _inputs(context):
        exact = None if weight is None else weight.double()
        total = nll_loss(x.double(), target, exact, reduction, ignored)[1].to(x.dtype)
        grad = draw(context, target.shape if reduction == NONE else ())
        yield Sample((grad, x, target, weight, reduction, ignored, total), label=label)


LOSS_ROWS: tuple[Composite, ...] = (
    Composite(
        name="nll_loss",
        summary="the weighted mean or sum of -x[i, target[i]]; also the total weight",
        targets={aten.nll_loss_forward.default: nll_loss},
        bound=Accumulated(terms=_terms, magnitude=_nll_magnitude, constant=4),
        source=OF_SUMS + ", a term an example; a product with its weight and a quotient more",
        samples=_nll_samples,
    ),
    Composite(
        name="nll_loss_backward",
        summary="gradient of nll_loss by its input",
        targets={aten.nll_loss_backward.default: nll_loss_backward},
        bound=Accumulated(terms=lambda *_: 1, magnitude=_nll_backward_magnitude, constant=4),
        source="a product and a quotient, and the rounding of the total weight",
        samples=_nll_backward_samples,
    ),
    Composite(
        name="cross_entropy",
        summary="nll_loss of log_softmax, for classes given by number",
        targets={aten.cross_entropy_loss.default: cross_entropy},
        bound=Accumulated(terms=_terms, magnitude=_cross_entropy_magnitude, constant=4),
        source=OF_SUMS + "; each logarithm as log_softmax's",
        samples=_cross_entropy_samples,
        recognize=recognize_cross_entropy,
        made_of=frozenset({"log_softmax", "nll_loss"}),
    ),
)
