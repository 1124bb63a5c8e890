"""Sums of which one term alone may count: no loop, the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import fusing
from vendor_sdk.ir.loop import Reduce, walk
from vendor_sdk.ir.loop_verify import verify

Tensor = torch.Tensor
Function = Callable[..., Any]


def loops(function: Function, *inputs: Tensor) -> int:
    """How many reductions are left, of numbers that are right."""
    compiled = fusing.compiled(function, list(inputs))
    for lowered in compiled.kernels.values():
        verify(lowered.kernel)
    expected = function(*inputs)
    for found, exact in zip(compiled.run(*inputs), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found, exact)
    return sum(isinstance(s, Reduce) for lowered in compiled.kernels.values() for s in walk(lowered.kernel.body))


def at(labels: Tensor, values: Tensor, length: int, first: int = 0) -> Tensor:
    """Rows with one value each, where the label is, and zeros."""
    return torch.where(torch.arange(first, first + length).unsqueeze(0) == labels.unsqueeze(1), values.unsqueeze(1), 0.0)


LABELS = torch.tensor([0, 6, -1, 7, 3, 2**40 + 3, -(2**63), 5])
VALUES = torch.tensor([1.5, -2.0, 7.0, 9.0, 0.0, 4.0, 5.0, float("inf")])


@pytest.mark.parametrize("first", [0, 3, -2])
def test_labels_outside_of_the_positions_count_nothing(first: int) -> None:
    assert loops(lambda t, x: at(t, x, 7, first).sum(1), LABELS, VALUES) == 0


def test_what_was_rounded_and_masked_is_picked_too() -> None:
    seen = torch.arange(8) % 3 > 0

    def function(t: Tensor, x: Tensor, m: Tensor) -> Tensor:
        found = torch.where((torch.arange(7).unsqueeze(0) == t.unsqueeze(1)) & m.unsqueeze(1), x.unsqueeze(1), 0.0)
        return found.to(torch.bfloat16).float().sum(1)

    assert loops(function, LABELS, torch.randn(8), seen) == 0


def test_the_gradient_of_a_loss_of_labels_sums_no_rows() -> None:
    def gradient(t: Tensor, x: Tensor, logits: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._log_softmax_backward_data(at(t, x, 9), logits, 1, torch.float32)
        return found

    assert loops(gradient, LABELS, torch.randn(8), torch.randn(8, 9).log_softmax(1)) == 0


STAY: dict[str, Function] = {
    "not zero elsewhere": lambda t, x: torch.where(torch.arange(8).unsqueeze(0) == t.unsqueeze(1), 2.0, 1.0).sum(1),
    "all but one": lambda t, x: torch.where(torch.arange(8).unsqueeze(0) == t.unsqueeze(1), 0.0, 1.0).sum(1),
    "positions that count": lambda t, x: (at(t, x.nan_to_num(0, 0, 0), 8) * torch.arange(8)).sum(1),
    "two labels": lambda t, x: (at(t, x, 8) + at(t + 1, x, 8)).sum(1),
    "the largest": lambda t, x: at(t, x, 8).amax(1),
    "a stretch": lambda t, x: torch.where(torch.arange(8).unsqueeze(0) < t.unsqueeze(1), x.unsqueeze(1), 0.0).sum(1),
    "every other position": lambda t, x: torch.where(2 * torch.arange(8).unsqueeze(0) == t.unsqueeze(1), 3.0, 0.0).sum(1),
}


@pytest.mark.parametrize("what", STAY)
def test_other_sums_stay(what: str) -> None:
    assert loops(STAY[what], LABELS, VALUES) >= 1
