"""How far numbers may be from the truth: float64, and how it moves when every rounding of the graph goes another way.

The truth is the graph in float64. Beside it run a few more float64 interpretations in which every result that a dtype would
round is moved at random by about as much (Monte Carlo arithmetic: Parker, UCLA CSD-970002, 1997). What they differ by is how
far correct implementations may be apart: much after a cancellation, nothing for a copy. So no tolerance needs to be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.prims.bounds import ulp
from vendor_sdk.prims.reference import flat

SPREADS = 8
"""Spreads from the truth that a correct result may be away: three runs underestimate the standard deviation."""
USUAL = 0.99
"""Share of elements whose spread is no outlier: where a comparison or a rounding to an integer flips, a few elements jump."""


@dataclass(frozen=True)
class Truth:
    """What one result must be.

    Attributes:
        value: float64 or complex128, or exact; a number for a symbolic result.
        spread: of floats, how far the perturbed runs are from it; of integers, whether they differ. None where they failed.
    """

    value: Any
    spread: torch.Tensor | None


@dataclass(frozen=True)
class Difference:
    """Why a result is wrong.

    Attributes:
        error: the largest difference; ``inf`` where shapes differ, or special values.
        text: what is wrong, one sentence.
    """

    error: float
    text: str


def truths(value: Any, perturbed: Sequence[Any]) -> list[Truth]:
    """The truth about each result of a node or graph.

    Args:
        value: in float64: a tensor, a number, or a tuple of them.
        perturbed: the same from runs with other roundings.
    """
    others = [flat(each) for each in perturbed]
    found = []
    for index, item in enumerate(flat(value)):
        spread = None
        same = [each[index] for each in others if isinstance(each[index], torch.Tensor) and each[index].shape == item.shape]
        if isinstance(item, torch.Tensor) and same:
            spread = torch.stack([_apart(each, item) for each in same]).amax(0)
        found.append(Truth(item, spread))
    return found


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if not (other.is_floating_point() or other.is_complex()):
        return (one != other).double()
    distance = (one - other).abs().double()
    equal = (one == other) | ((one != one) & (other != other))  # infinities, NaN
    return torch.where(equal, 0.0, distance.nan_to_num(math.inf, math.inf))


def judge(found: Any, truth: Truth, eager: Any = None) -> Difference | None:
    """What is wrong with a result; None when nothing is.

    Args:
        eager: what torch computes in the graph's own dtypes. Elements equal to it are right: torch's operators do not always
            agree with float64 on special values.
    """
    if found is None:
        return None  # an effect token
    if not isinstance(truth.value, torch.Tensor):
        return (
            None if truth.value is None or found == truth.value else Difference(math.inf, f"{found} instead of {truth.value}")
        )
    if not isinstance(found, torch.Tensor) or found.shape != truth.value.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        return Difference(math.inf, f"shape {shape} instead of {tuple(truth.value.shape)}")
    if found.numel() == 0:
        return None
    found, value = found.detach().cpu(), truth.value.cpu()
    if isinstance(eager, torch.Tensor) and eager.shape == found.shape and eager.dtype == found.dtype:
        eager = eager.detach().cpu()
        value = torch.where((found == eager) | ((found != found) & (eager != eager)), found.to(value.dtype), value)
    if value.is_complex():
        found, value = (torch.view_as_real(x.to(torch.complex128).resolve_conj()) for x in (found, value))
        spread = None if truth.spread is None else truth.spread.cpu().unsqueeze(-1).expand(value.shape)
        return _floats(found, value, spread, torch.float32)
    spread = None if truth.spread is None else truth.spread.cpu()
    if value.is_floating_point():
        dtype = found.dtype if found.is_floating_point() else torch.float64
        return _floats(found.double(), value.double(), spread, dtype)
    wrong = found != value
    few = 0 if spread is None else SPREADS * int((spread > 0).sum()) + found.numel() // 10_000
    if int(wrong.sum()) <= few:
        return None
    return _described(found, value, wrong, (found.double() - value.double()).abs())


def _floats(found: torch.Tensor, value: torch.Tensor, spread: torch.Tensor | None, dtype: torch.dtype) -> Difference | None:
    info = torch.finfo(dtype)
    beyond = info.max if dtype == torch.float64 else info.max * (1 + info.eps / 2)
    distance = (found.clamp(-beyond, beyond) - value.clamp(-beyond, beyond)).abs()
    size = value.abs().nan_to_num(beyond, beyond).clamp(max=beyond)
    outliers = 0
    if spread is None:
        allowed = 256 * info.eps * (size + size.max())
    else:
        unlimited = spread.isinf()
        spread = spread.clamp(max=beyond)
        usual = _quantile(spread, USUAL)
        relative = _quantile(spread / size.clamp(min=info.smallest_normal), 0.5)
        allowed = SPREADS * (spread + usual + 2 * relative * size) + 4 * ulp(value, dtype) + info.smallest_normal
        outliers = int((spread > 64 * usual + 64 * relative * size + info.smallest_normal).sum())
        distance = torch.where(unlimited, 0.0, distance)
        found = torch.where(unlimited, value, found)
    special = (found.isnan() != value.isnan()) | ((found.abs() > beyond) & value.isfinite() & (size < beyond / 2))
    wrong = special | (distance > allowed)
    if int(wrong.sum()) <= SPREADS * outliers:
        return None
    return _described(found, value, wrong, torch.where(special, math.inf, distance))


def _quantile(values: torch.Tensor, share: float) -> float:
    flattened = values.reshape(-1)
    return float(flattened.kthvalue(max(math.ceil(share * flattened.numel()), 1)).values)


def _described(found: torch.Tensor, value: torch.Tensor, wrong: torch.Tensor, distance: torch.Tensor) -> Difference:
    worst = int(torch.where(wrong, distance, -1.0).reshape(-1).argmax())
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(worst), found.shape))
    error = float(distance.reshape(-1)[worst])
    return Difference(
        error,
        f"largest difference {error:.4g}: {found[index].item()!r} at {index} instead of {value[index].item()!r}; "
        f"{int(wrong.sum())} of {found.numel()} elements are wrong",
    )


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference between two results; NaN in the same places counts as none."""
    if one.shape != other.shape:
        return math.inf
    if one.numel() == 0:
        return 0.0
    kind = torch.complex128 if one.is_complex() else torch.float64
    distance = (one.to(kind) - other.to(kind)).abs()
    return float(torch.where((one == other) | ((one != one) & (other != other)), 0.0, distance.nan_to_num(math.inf)).max())
