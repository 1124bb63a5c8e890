"""Functions that torch computes wrong wherever it traces them: they are ours in a graph of Dynamo.

`multilabel_margin_loss` adds, in torch's decomposition (checked on 2.13), margins of labels behind the first that is
-1, which eager mode does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

Tensor = torch.Tensor
_REDUCTIONS = ("none", "mean", "sum")
"""By what operators call them."""


def correct(module: fx.GraphModule) -> None:
    """Replaces their calls in a graph that Dynamo captured, and in those within it."""
    for each in module.modules():
        if not isinstance(each, fx.GraphModule):
            continue
        wrong = [node for target in _CORRECTED for node in each.graph.find_nodes(op="call_function", target=target)]
        for node in wrong:
            node.target = _CORRECTED[node.target]
        if wrong:
            each.recompile()


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """As ``torch.nn.functional.multilabel_margin_loss``.

    Args:
        input: scores, of shape (classes) or (samples, classes).
        target: of the same shape, the classes of each sample, up to the first that is -1.
    """
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    classes = input.shape[-1]
    scores, labels = input.reshape(-1, classes), target.reshape(-1, classes)
    counts = (labels < 0).cumsum(1) == 0
    labels = torch.where(counts, labels, 0)
    wanted = counts.unsqueeze(2) & (labels.unsqueeze(2) == torch.arange(classes, device=labels.device))
    others = ~wanted.any(1)
    margins = (1 - scores.gather(1, labels).unsqueeze(2) + scores.unsqueeze(1)).relu()
    loss: Tensor = torch.where(counts.unsqueeze(2) & others.unsqueeze(1), margins, 0).sum((1, 2)) / classes
    if reduction == "none":
        return loss.reshape(input.shape[:-1])
    return loss.mean() if reduction == "mean" else loss.sum()


def _operator(input: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return multilabel_margin_loss(input, target, reduction=_REDUCTIONS[reduction])


_CORRECTED: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
    torch.nn.functional.multilabel_margin_loss: multilabel_margin_loss,
    torch.ops.aten.multilabel_margin_loss: _operator,
    torch.ops.aten.multilabel_margin_loss.default: _operator,
}
