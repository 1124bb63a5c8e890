"""Streams of random numbers: what overlaps or has a period is found, independent ones are not taken for dependent."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from conformance import independence

Tensor = torch.Tensor

DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": lambda u: u,
    "bfloat16": lambda u: u.bfloat16(),
    "normal": torch.special.ndtri,
    "exponential": lambda u: -(1 - u).log(),
    "heavy tails": lambda u: 1 / (1 - u) ** 3,
    "rare": lambda u: (u < 0.1).double(),
    "whole": lambda u: (u * 10).floor().long(),
}
every_distribution = pytest.mark.parametrize("shaped", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())


def uniform(count: int, seed: int = 3) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_distribution
@pytest.mark.parametrize("shift", [0, 1, -1, 1000, 8000])
def test_streams_that_overlap_are_found(shaped: Callable[[Tensor], Tensor], shift: int) -> None:
    whole = shaped(uniform(30000))
    first = max(-shift, 0)
    one, other = whole[first : first + 16384], whole[first + shift : first + shift + 16384]
    ((_, _, found),) = independence.overlapping([one, other], [(0, 1)])
    assert abs(found) == abs(shift)


@every_distribution
def test_mirrored_streams_are_found(shaped: Callable[[Tensor], Tensor]) -> None:
    """Antithetic numbers: one less the other's."""
    u = uniform(16384)
    assert list(independence.overlapping([shaped(u), shaped(1 - u)], [(0, 1)])) == [(0, 1, 0)]


def test_a_period_is_found() -> None:
    ((one, other, shift),) = independence.overlapping([uniform(5000).repeat(10)], [])
    assert (one, other) == (0, 0)
    assert abs(shift) % 5000 == 0


@every_distribution
def test_independent_streams_pass(shaped: Callable[[Tensor], Tensor]) -> None:
    draws = [shaped(uniform(16384, seed)) for seed in range(6)]
    assert not list(independence.overlapping(draws, [(i, i + 1) for i in range(5)]))


@every_distribution
def test_false_alarms_are_as_rare_as_they_should_be(
    shaped: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At five deviations, where 16,000 shifts of one pair have 0.12 alarms by the bound, 30 pairs have a few."""
    monkeypatch.setattr(independence, "DEVIATIONS", 5.0)
    shifts = 2 * (independence.LENGTH - independence.LENGTH // independence.OVERLAP)
    expected = 30 * shifts * 2 * math.exp(-(5.0**2) / 2)
    rows = independence.spectra([shaped(uniform(16384, seed)) for seed in range(31)])
    assert rows is not None
    of = rows.unbind(0)
    alarms = sum(independence.shift_of(of[i], of[i + 1], 16384) is not None for i in range(30))
    assert alarms <= expected + 4 * math.sqrt(expected)


def test_what_has_parameters_by_row_is_compared_by_row() -> None:
    rates = torch.tensor([0.5, 3.0, 20.0])[:, None].expand(3, 16384).contiguous()
    draws = [torch.poisson(rates, torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    assert not list(independence.overlapping(draws, [(0, 1)]))
    draws[1][2, 1:] = draws[0][2, :-1]
    ((_, _, shift),) = independence.overlapping(draws, [(0, 1)])
    assert abs(shift) == 1


@pytest.mark.parametrize("stream", [torch.zeros(40000), torch.arange(100.0)])
def test_of_few_numbers_and_of_equal_ones_nothing_is_said(stream: Tensor) -> None:
    assert not list(independence.overlapping([stream, stream], [(0, 1)]))


def test_a_right_row_fails_once_in_a_million_at_most() -> None:
    shifts = 2 * (independence.LENGTH - independence.LENGTH // independence.OVERLAP)
    assert 20 * 26 * shifts * 2 * math.exp(-(independence.DEVIATIONS**2) / 2) < 1e-6
