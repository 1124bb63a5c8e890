"""Long inner loops divided among more iterations: the same numbers, whatever the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import fusing
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir.loop import LoopKernel, Symbol, loop_variables, makes, walk
from vendor_sdk.ir.loop_verify import verify
from vendor_sdk.lower.split import split

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(1),
    "all": lambda x: x.sum(),
    "columns": lambda x: (x * 2).amax(0),
    "product": lambda x: x.prod(1),
    "largest and where": lambda x: (x.amax(1), x.argmax(1)),
    "smallest, where": lambda x: x.argmin(0),
    "softmax": lambda x: x.softmax(1),
    "variance": lambda x: x.var(1),
    "normalized, and the mean": lambda x: (x - x.mean(1, keepdim=True), x.mean(1)),
    "any": lambda x: (x > 1).any(1),
    "through a mask": lambda x: torch.where(x > 0, x, 0.0).sum(1),
    "gathered": lambda x: x.index_select(1, torch.tensor([0, 2, 1, 1, 0])).softmax(1),
}


def divided(kernel: LoopKernel, parts: int) -> LoopKernel:
    for position in reversed(range(len(kernel.body))):
        kernel = split(kernel, position, parts)
    verify(kernel)
    return kernel


@pytest.mark.parametrize("parts", [1, 2, 4, 5, 40])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_parts_give_the_same(name: str, parts: int) -> None:
    function, x = FUNCTIONS[name], torch.randn(3, 20)
    x[1, 4] = -0.0
    compiled = fusing.compiled(function, [x], Limits())
    compiled.kernels = {
        node: replace(lowered, kernel=divided(lowered.kernel, parts)) for node, lowered in compiled.kernels.items()
    }
    expected = function(x)
    for found, exact in zip(compiled.run(x), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found, exact)


def test_nan_and_infinities_of_a_ragged_last_part() -> None:
    x = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 1.0, float("-inf")]])
    compiled = fusing.compiled(lambda x: (x.amax(1), x.argmin(1)), [x], Limits())
    compiled.kernels = {n: replace(lowered, kernel=divided(lowered.kernel, 2)) for n, lowered in compiled.kernels.items()}
    largest, position = compiled.run(x)
    torch.testing.assert_close(largest, x.amax(1), equal_nan=True)
    assert torch.equal(position, x.argmin(1))


def test_scans_stay_whole() -> None:
    compiled = fusing.compiled(lambda x: x.cumsum(1), [torch.ones(2, 6)], Limits())
    for lowered in compiled.kernels.values():
        assert split(lowered.kernel, 0, 3) is lowered.kernel


def test_only_what_a_part_needs_is_computed() -> None:
    compiled = fusing.compiled(lambda x: x.softmax(1), [torch.ones(2, 64)], Limits())
    (lowered,) = compiled.kernels.values()
    kernel = split(lowered.kernel, 0, 4)
    assert len(kernel.body) == 3  # the largest; the sum, from the parts' largest; the quotients, from both
    assert [p.size.value for p in kernel.scratch] == [8, 8]


def test_new_names_are_not_those_of_symbols() -> None:
    compiled = fusing.compiled(lambda x: x.softmax(1), [torch.ones(2, 64)], Limits())
    (lowered,) = compiled.kernels.values()
    kernel = split(replace(lowered.kernel, symbols=(Symbol("w0"), Symbol("p0"))), 0, 4)
    made = {name for s in walk(kernel.body) for name in (*makes(s), *loop_variables(s))}
    assert not made & {"w0", "p0"}
