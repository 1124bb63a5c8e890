"""Indices that follow from places alone need no check where they always lie inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests import fusing
from tests.fusing import Compiled
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir.loop import Compute, walk

Tensor = torch.Tensor


def compiled(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Compiled:
    """Where launches cost, numbers of places are computed where they are read."""
    return fusing.compiled(function, inputs, Limits(statements=2048, launch_bytes=1 << 22))


def checks(program: Compiled) -> int:
    statements = [s for lowered in program.kernels.values() for s in walk(lowered.kernel.body)]
    return sum(isinstance(s, Compute) and s.op == "wrap_index" for s in statements)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(10, 14), (3, 4), (5, 7), (23, 11)])
def test_enlarged_images_read_unchecked(mode: str, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 5, 7)
    program = compiled(lambda x: F.interpolate(x, size, mode=mode), (x,))
    assert not checks(program)
    torch.testing.assert_close(program.run(x)[0], F.interpolate(x, size, mode=mode), rtol=1e-5, atol=1e-5)


CHAINS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "scaled": lambda i, a, b: ((i.float() + a) * b).long(),
    "rounded": lambda i, a, b: torch.round(i.double() * b - a).long(),
    "cut": lambda i, a, b: (i.float() * b + a).clamp(0, 20).long(),
    "divided": lambda i, a, b: (i.float() / (abs(b) + 1.5) - a).floor().long(),
    "whole": lambda i, a, b: i * int(4 * b) - int(a),
    "below": lambda i, a, b: (i * int(3 * b)).clamp(int(a), 21),
}


def taken(name: str, a: float, b: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x[CHAINS[name](torch.arange(9), a, b)]


@pytest.mark.parametrize("name", CHAINS)
def test_no_check_goes_that_may_fail(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    kept = gone = 0
    for _ in range(12):
        a, b = ((torch.rand(2, generator=generator) * 6 - 2).tolist()[k] / (1 + k) for k in (0, 1))
        places = CHAINS[name](torch.arange(9), a, b)
        for size in (int(places.max()) + 1, int(places.max()), int(places.max()) + 4):
            if size < 1:
                continue
            x = torch.randn(size)
            program = compiled(taken(name, a, b), (x,))
            inside = bool((places >= 0).all() and (places < size).all())
            if not checks(program):
                assert inside, (a, b, size)
                assert torch.equal(program.run(x)[0], x[places])
            kept += bool(checks(program))
            gone += not checks(program)
            if checks(program) and not inside and bool((places >= size).any() | (places < -size).any()):
                with pytest.raises(IndexError):
                    program.run(x)
    assert kept
    assert gone


def test_what_is_loaded_is_checked() -> None:
    x = torch.randn(5)
    program = compiled(lambda x, i: x[i], (x, torch.tensor([4, 0])))
    assert checks(program)
    with pytest.raises(IndexError):
        program.run(x, torch.tensor([5, 0]))


def test_what_may_be_no_number_is_checked() -> None:
    """Of a NaN, int64's smallest number is made."""
    x, y = torch.randn(5), torch.randn(3)
    assert checks(compiled(lambda x, y: x[y.clamp(0, 4).long()], (x, y)))
