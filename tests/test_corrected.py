"""Functions that torch traces wrong give what they give in eager mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
BACKENDS = ["cpp_cpu", "onnxruntime"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("samples", [None, 1, 6])
def test_margins_of_labels_up_to_the_first_negative_one(
    samples: int | None, reduction: str, backend: str, *, dynamic: bool
) -> None:
    shape = (7,) if samples is None else (samples, 7)
    scores = torch.randn(shape, requires_grad=True)
    labels = torch.stack([torch.randperm(7) for _ in range(samples or 1)])
    labels[torch.arange(len(labels)), torch.randint(7, (len(labels),))] = -1
    labels = labels.reshape(shape)

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return F.multilabel_margin_loss(scores, labels, reduction=reduction)

    compiled = torch.compile(loss, backend=backend, dynamic=dynamic)
    result, expected = compiled(scores, labels), loss(scores, labels)
    torch.testing.assert_close(result, expected)
    for own, eager in zip(torch.autograd.grad(result.sum(), scores), torch.autograd.grad(expected.sum(), scores), strict=True):
        torch.testing.assert_close(own, eager)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_ways_to_ask_for_these_margins(backend: str) -> None:
    scores, labels = torch.randn(4, 5), torch.tensor([[3, 0, -1, 1, 2], [-1, 2, -1, 0, 0], [4, 0, 1, 2, 3], [1, 1, -1, 0, 0]])
    calls = [
        torch.nn.MultiLabelMarginLoss(reduction="sum"),
        lambda x, y: torch.ops.aten.multilabel_margin_loss(x, y, 0),
        lambda x, y: torch.ops.aten.multilabel_margin_loss.default(x, y),
        lambda x, y: F.multilabel_margin_loss(x, y, size_average=False),
        lambda x, y: F.multilabel_margin_loss(x, y, reduce=False),
    ]
    for call in calls:
        torch.testing.assert_close(torch.compile(call, backend=backend)(scores, labels), call(scores, labels))
