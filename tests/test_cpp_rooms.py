"""Rooms (``vendor_sdk/plan/rooms.py``) as they run: here on the host, where plans have none unless a test says they pay."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import vendor_sdk
from vendor_sdk import pipeline
from vendor_sdk.ir.memory import MemoryPlan


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[MemoryPlan]:
    """The plans of what is compiled meanwhile."""
    found: list[MemoryPlan] = []
    make = pipeline.make_rooms

    def noted(plan: MemoryPlan, *given: Any) -> Any:
        found.append(plan)
        return make(plan, *given)

    monkeypatch.setattr(pipeline, "_serves_any_size", lambda device: True)
    monkeypatch.setattr(pipeline, "make_rooms", noted)
    monkeypatch.setattr(pipeline, "set_apart", lambda plan, sizes, lay: lay())  # which is as good, of so few buffers
    vendor_sdk.release_memory()
    torch.compiler.reset()
    return found


class Early(nn.Module):
    """Layers that a library's sorts part, then a result that is larger than all of them."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(3):
            x = torch.softmax(x @ weight, 1) + x
            x = torch.sort(x.sin(), 1).values * 2
        wide = (x @ table).tanh()
        return wide, wide.sum(1).long()


def late(x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The other way round."""
    x = torch.sort(table, 1).values[: x.shape[0], : x.shape[1]] + x
    for _ in range(3):
        x = torch.softmax(x @ weight, 1) * x.mean(0) + x
    return x.sum(1)


@pytest.mark.parametrize("function", [Early(), late])
def test_results_are_the_same_with_rooms(function: Callable[..., Any], planned: list[MemoryPlan]) -> None:
    compiled = torch.compile(function, backend="cpp_cpu")
    with torch.no_grad():
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            given = [torch.randn(shape, generator=generator) / 16 for shape in ((96, 256), (256, 256), (256, 4096))]
            torch.testing.assert_close(compiled(*given), function(*given), rtol=2e-5, atol=2e-5)
        (plan,) = planned
        assert plan.fixed is not None
        assert any(buffer.is_room for buffer in plan.buffers)
        assert plan.fixed.peak == plan.fixed.bound
        expected = compiled(*given)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: compiled(*given), range(16)):
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
