"""Integer arithmetic that lowering takes apart: the same numbers, in fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import fusing
from vendor_sdk.ir.loop import Compute, Index, walk

Tensor = torch.Tensor
N = 24


def places() -> tuple[Tensor, Tensor]:
    """Positions, and others three times as far apart that begin below zero."""
    return torch.arange(N), torch.arange(N) * 3 - 40


def equal(x: Tensor) -> Tensor:
    i, j = places()
    return x.long() + i == j + 7


def ordered(x: Tensor) -> tuple[Tensor, ...]:
    i, j = places()
    wide = x.long()
    return wide + i < j, wide - i >= j, j > wide, i - wide <= j, wide + 3 != i, j + wide < i + wide


def far(x: Tensor) -> tuple[Tensor, ...]:
    i, _ = places()
    return x.long() + 2**31 > i, x.long() < i - 2**31, x.long() + i == 2**40, x.long() - 2**31 < i


def canceled(x: Tensor) -> tuple[Tensor, ...]:
    i, j = places()
    wide = x.long()
    moved = wide + (i * 4 - j) - (i * 4 - j)
    return (wide + i - i).to(x.dtype), moved.to(torch.int16), wide - wide + i, (wide + i - j).to(torch.uint8)


def both(x: Tensor) -> tuple[Tensor, ...]:
    i, _ = places()
    other = x.flip(0)
    return x.long() + i < other.long() + i, x.long() + i == other.long() + 1, x.long() * i + i, (x.long() - i) * 2


FUNCTIONS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (equal, ordered, far, canceled, both)}
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    function, range_ = FUNCTIONS[name], torch.iinfo(dtype)
    for low, high in ((max(range_.min, -9), 9), (range_.min, range_.min + 3), (range_.max - 3, range_.max)):
        x = torch.randint(low, high, (N,)).to(dtype)
        x[::5] = high
        expected = function(x)
        found = fusing.compiled(function, [x]).run(x)
        for one, exact in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(one, exact)


def operations(function: Callable[..., Any], *inputs: Tensor) -> list[Compute | Index]:
    kernels = [lowered.kernel for lowered in fusing.compiled(function, inputs).kernels.values()]
    return [s for kernel in kernels for s in walk(kernel.body) if isinstance(s, Compute | Index)]


def test_places_are_compared_in_few_bits() -> None:
    x = torch.zeros(N, dtype=torch.uint8)
    found = operations(equal, x)
    assert not [s for s in found if isinstance(s, Compute) and s.op in ("add", "mul")]
    assert [s.dtype for s in found if isinstance(s, Compute) and s.op == "convert"] == [torch.int32, torch.int32]
    found = operations(lambda x: (x.long() + torch.arange(N)).to(torch.uint8) + (torch.arange(N) * 2 - torch.arange(N)), x)
    assert sum(isinstance(s, Index) for s in found) == 1
