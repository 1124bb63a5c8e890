"""Mutants: wrong results that the oracle must reject, planted in every run.

A right result of a case says something only where a wrong one would have been told from it. So each case whose results are
right is judged again with results that are wrong on purpose (mutation analysis: DeMillo, Lipton and Sayward, *Hints on test
data selection*, IEEE Computer 11(4), 1978). A mutant that no sample of the case rejects has survived: bound or samples
are blind to that kind of error, and the case certifies nothing.

Which mutants apply follows from the dtype and the kind of bound alone, never from the name of a prim:

- rounding to a narrower dtype is an error where the result's dtype is wider;
- scaling is an error of ``SCALE`` or of ``UNITS`` units of the dtype's epsilon, whichever is more: less is no error in a half
  precision, whose best results are off by half a unit;
- dropping terms is an error of sums only, which are the prims with an ``Accumulated`` bound;
- a random result is judged by its distribution, which says nothing of single elements. That it is not that of another call is
  for ``endure`` to say.

What equals the right result in every bit is no mutant of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.judge import Expectation, judge
from conformance.values import tensors
from vendor_sdk import FLOAT8, Accumulated, Distribution, Row, Sample, reference

Tensor = torch.Tensor

SCALE = 1e-3
UNITS = 8
"""An error of so many epsilons of the result's dtype is more than any honest bound of a well-conditioned element allows."""
WRONG = 1e-2
"""Error of the one wrong element, relative to its own magnitude and the root mean square of all."""
NEAR = 1e-2
"""Part of the narrower dtype's epsilon that rounding must move at least one element by."""


@dataclass(frozen=True)
class Right:
    """A call whose results are right.

    Attributes:
        sample, expectation: the call, and what it must give.
        results: what it gave, on the CPU.
        previous: what the same compiled graph gave at another call with other values; ``None`` where there was none.
    """

    sample: Sample
    expectation: Expectation
    results: Sequence[Tensor]
    previous: Sequence[Tensor] | None

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in (*self.operands, *self.results))

    @property
    def operands(self) -> list[Tensor]:
        return [*tensors(self.sample.args), *tensors(self.sample.kwargs)]


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong.

    Attributes:
        name: as in reports.
        make: from one result of a call to a wrong one of the same dtype and shape; ``None`` where there is no such error.
        random: applies to results that are judged by their distribution, too.
    """

    name: str
    make: Callable[[Tensor, Right], Tensor | None]
    random: bool = False


@dataclass(frozen=True)
class CallMutant:
    """One way to be wrong in all results at once, which may fit each other.

    Attributes:
        name: as in reports.
        make: from a call of a row to all its results; ``None`` where there is no such error.
    """

    name: str
    make: Callable[[Row, Right], Sequence[Tensor] | None]


def _inexact(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _parts(tensor: Tensor) -> Tensor:
    """A copy, contiguous, of real numbers."""
    copy = tensor.resolve_conj().clone(memory_format=torch.contiguous_format)
    return torch.view_as_real(copy) if copy.dtype.is_complex else copy


def _whole(parts: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(parts) if like.dtype.is_complex else parts


def _zeros(result: Tensor, right: Right) -> Tensor:
    return torch.zeros_like(result)


def _constant(result: Tensor, right: Right) -> Tensor:
    return torch.ones_like(result)


def _operand(result: Tensor, right: Right) -> Tensor | None:
    """The first operand of the result's dtype and shape, as it came in."""
    alike = (t for t in right.operands if t.dtype == result.dtype and t.shape == result.shape)
    return next(alike, None)


def _scaled(result: Tensor, right: Right) -> Tensor | None:
    if not _inexact(result):
        return None
    computed = result.float() if result.dtype in FLOAT8 else result
    return (computed * (1 + max(SCALE, UNITS * torch.finfo(result.dtype).eps))).to(result.dtype)


def _rounded(to: torch.dtype) -> Callable[[Tensor, Right], Tensor | None]:
    def rounded(result: Tensor, right: Right) -> Tensor | None:
        parts = _parts(result)
        if not _inexact(result) or torch.finfo(parts.dtype).bits <= torch.finfo(to).bits:
            return None
        short = parts.to(to).to(parts.dtype)
        # Values that happen to lie beside numbers of the narrower dtype show nothing.
        far = (short - parts).abs() > NEAR * torch.finfo(to).eps * parts.abs()
        return _whole(short, result) if bool(far.any()) else None

    return rounded


def _last_dropped(result: Tensor, right: Right) -> Tensor:
    parts = _parts(result)
    if parts.numel():
        parts.view(-1)[-1] = 0
    return _whole(parts, result)


def _one_wrong(result: Tensor, right: Right) -> Tensor | None:
    """The element in the middle: off by a hundredth, by one, or the other way round."""
    parts = _parts(result)
    if not parts.numel():
        return None
    flat = parts.view(-1)
    place = flat.numel() // 2
    if parts.dtype is torch.bool:
        flat[place] = ~flat[place]
    elif parts.dtype.is_floating_point:
        wide = flat.double()
        finite = wide[wide.isfinite()]
        size = finite.square().mean().sqrt() if finite.numel() else torch.ones((), dtype=torch.float64)
        share = max(WRONG, UNITS * torch.finfo(parts.dtype).eps)
        flat[place] = wide[place] + share * (wide[place].abs() + size) if wide[place].isfinite() else 1.0
    else:
        flat[place] += 1
    return _whole(parts, result)


def _shifted(result: Tensor, right: Right) -> Tensor:
    """Each element in its neighbour's place."""
    parts = result.resolve_conj().clone(memory_format=torch.contiguous_format)
    return parts.view(-1).roll(1).view(parts.shape)


def _transposed(result: Tensor, right: Right) -> Tensor | None:
    """The last two dimensions the other way round in memory."""
    return result.resolve_conj().mT.reshape(result.shape) if result.dim() >= 2 else None


def _nan_lost(result: Tensor, right: Right) -> Tensor | None:
    """Zero where NaN has to be; not where a result is NaN though its values are open."""
    wanted = [expected for expected in right.expectation.results if expected.dtype is not None]
    expected = next(each for mine, each in zip(right.results, wanted, strict=True) if mine is result)
    zeros = torch.zeros_like(result)
    return torch.where(result.isnan() & expected.value.isnan(), zeros, result) if _inexact(result) else None


def _previous(row: Row, right: Right) -> Sequence[Tensor] | None:
    """The results of another call with other values."""
    return right.previous


def _short_of_last(operand: int) -> Callable[[Row, Right], Sequence[Tensor] | None]:
    """What a sum gives that does not read the last slice of an operand: for a product, the last k."""

    def short(row: Row, right: Right) -> Sequence[Tensor] | None:
        if not isinstance(row.bound, Accumulated) or operand >= len(right.operands):
            return None
        whole = right.operands[operand]
        if not _inexact(whole) or not whole.dim() or whole.shape[-1] < 2:
            return None
        cut = whole.clone()
        cut[..., -1] = 0
        changed = Sample(_replaced(right.sample.args, whole, cut), _replaced(right.sample.kwargs, whole, cut))
        made = list(right.results)
        pairs = zip(reference(row, changed), right.expectation.results, strict=True)
        values = [(mine, its) for mine, its in pairs if its.dtype is not None]
        for place, (mine, its) in enumerate(values):
            if its.value is not None and not _same(mine.value, its.value):
                made[place] = mine.value.to(its.dtype)
        return made

    return short


def _replaced(value: Any, old: Tensor, new: Tensor) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, old, new) for item in value)
    return new if value is old else value


MUTANTS: tuple[Mutant, ...] = (
    Mutant("zeros", _zeros, random=True),
    Mutant("constant", _constant, random=True),
    Mutant("operand returned", _operand),
    Mutant("scaled", _scaled),
    Mutant("rounded to float32", _rounded(torch.float32)),
    Mutant("rounded to float16", _rounded(torch.float16)),
    Mutant("rounded to bfloat16", _rounded(torch.bfloat16)),
    Mutant("last element dropped", _last_dropped),
    Mutant("one wrong element", _one_wrong),
    Mutant("shifted by one", _shifted),
    Mutant("transposed", _transposed),
    Mutant("NaN lost", _nan_lost),
)
CALL_MUTANTS: tuple[CallMutant, ...] = (
    CallMutant("results of another call", _previous),
    *(CallMutant(f"last of operand {operand} dropped", _short_of_last(operand)) for operand in range(3)),
)


@dataclass
class Score:
    """Which mutants of a case's results were planted, and which of them at least one sample rejected.

    Attributes:
        tried: names, with the number of the result where there are several.
        killed: those of ``tried`` that a sample has rejected.
    """

    tried: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)

    def plant(self, row: Row, calls: Sequence[Right]) -> None:
        """Judges what is wrong in ``calls``, small ones first. A mutant that is killed is not planted again: large calls see
        few."""
        for right in sorted(calls, key=lambda call: call.elements):
            for name, wrong in self._alive(row, right):
                if any(not _same(mine, its) for mine, its in zip(wrong, right.results, strict=True)):
                    self.tried.add(name)
                    if judge(row, right.sample, right.expectation, wrong).problem:
                        self.killed.add(name)

    def _alive(self, row: Row, right: Right) -> Iterator[tuple[str, list[Tensor]]]:
        """Names and results of the mutants that no earlier call has killed."""
        random = isinstance(row.bound, Distribution)
        wanted = [expected for expected in right.expectation.results if expected.dtype is not None]
        for place, (result, expected) in enumerate(zip(right.results, wanted, strict=True)):
            if expected.value is None and not random:
                continue  # undefined contents
            for mutant in MUTANTS:
                name = f"{mutant.name} (result {place})" if len(wanted) > 1 else mutant.name
                if name not in self.killed and (mutant.random or not random):
                    wrong = mutant.make(result, right)
                    if wrong is not None:
                        yield name, [*right.results[:place], wrong, *right.results[place + 1 :]]
        for other in CALL_MUTANTS:
            if other.name not in self.killed and not random:
                made = other.make(row, right)
                if made is not None:
                    yield other.name, list(made)

    def record(self) -> dict[str, Any]:
        """As in the report."""
        survived = sorted(self.tried - self.killed)
        return {"tried": len(self.tried), "killed": len(self.killed), "survived": survived}


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether values are equal, NaN to NaN, and of one dtype and shape."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
