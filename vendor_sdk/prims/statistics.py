"""Statistics over the errors of one call: what no single element shows.

A bound of sums must leave room for the worst order of summation, and in that room hide a result that was truncated, or rounded
to a half precision. But roundings to nearest are as often up as down, and their sum grows as the square root of their number
(Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019; Connolly, Higham
and Mary, Stochastic rounding and its probabilistic backward error analysis, SIAM J. Sci. Comput. 43(1), 2021). So over many
results

* the mean error is zero, upward as well as away from zero: symmetric errors ``e_g`` that are independent of each other have
  ``|sum e_g| <= DEVIATIONS * sqrt(sum e_g**2)`` but for a probability of ``2 exp(-DEVIATIONS**2 / 2)``, whatever their
  distributions are (Efron, Student's t-test under symmetry conditions, J. Am. Stat. Assoc. 64, 1969, and Hoeffding, 1963);
* the mean square is at most that of the model: of ``G`` normal errors it exceeds ``1 + 2 sqrt(t / G) + 2 t / G`` times their
  variance with a probability of ``exp(-t)``, here with ``t = DEVIATIONS**2 / 2`` (Laurent and Massart, Adaptive estimation of
  a quadratic functional by model selection, Ann. Stat. 28, 2000, lemma 1).

With ``DEVIATIONS = 6`` a right result is rejected with a probability of at most 7.6e-8 a call, three tests together: once in
some ten thousand runs, which judge about a thousand such calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

DEVIATIONS = 6.0
"""Standard deviations that a mean may be off."""
FEWEST = 256
"""Elements of a call, all its results together, below which nothing is said."""


@dataclass(frozen=True)
class Errors:
    """The errors of one result, one-dimensional and float64, without the elements that say nothing (NaN, infinities).

    Attributes:
        error: result minus reference.
        sign: of the reference.
        variance: the largest that an element's error may have.
        bias: the largest mean that an element's error may have: of functions whose own error is always on one side.
        group: int64; elements with equal numbers have parts of their errors in common and count as one.
    """

    error: torch.Tensor
    sign: torch.Tensor
    variance: torch.Tensor
    bias: torch.Tensor
    group: torch.Tensor


@dataclass(frozen=True)
class Statistic:
    """``ratio`` of a statistic to its limit, and what it says of the errors where that is above one."""

    ratio: float
    message: str


def largest_statistic(results: Sequence[Errors]) -> Statistic | None:
    """Of the errors of a call's results, the statistic that is nearest to its limit or farthest above; ``None`` where too few
    are there."""
    if sum(each.error.numel() for each in results) < FEWEST:
        return None
    offset, groups = 0, []
    for each in results:
        groups.append(each.group + offset)
        offset += int(each.group.max()) + 1 if each.group.numel() else 0
    group = torch.cat(groups)
    spread = torch.cat([(each.variance + each.bias.square()).sqrt() for each in results])
    error = torch.cat([each.error for each in results]) / spread
    bias = float((torch.cat([each.bias for each in results]) / spread).sum())
    sign = torch.cat([each.sign for each in results])
    count = len(torch.unique(group))
    found = [
        _leaning(_summed(error, group, offset), bias, ("upward", "downward")),
        _leaning(_summed(error * sign, group, offset), bias, ("away from zero", "toward zero")),
        _wide(float(error.square().mean()), count),
    ]
    return max(found, key=lambda each: each.ratio)


def _summed(error: torch.Tensor, group: torch.Tensor, groups: int) -> torch.Tensor:
    return error.new_zeros(groups).index_add_(0, group, error)


def _leaning(sums: torch.Tensor, bias: float, directions: tuple[str, str]) -> Statistic:
    total = float(sums.sum())
    limit = DEVIATIONS * float(sums.square().sum().sqrt()) + bias
    ratio = abs(total) / limit if total else 0.0
    where = directions[total < 0]
    return Statistic(ratio, f"errors lean {where}: their sum is {ratio:.3g} times what roundings to nearest may add up to")


def _wide(mean_square: float, count: int) -> Statistic:
    surprise = DEVIATIONS**2 / 2
    limit = 1 + 2 * math.sqrt(surprise / count) + 2 * surprise / count
    ratio = math.sqrt(mean_square / limit)
    return Statistic(ratio, f"errors are large: their root mean square is {ratio:.3g} times what independent roundings make")
