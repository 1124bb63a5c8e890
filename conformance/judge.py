"""One result against its reference, under the bound of its row."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.subnormals import NOWHERE, Flushing, admitted
from vendor_sdk import Elements, Expected, Row, Sample, elements, outlined, reference, violations


@dataclass(frozen=True)
class Expectation:
    """What a sample must give.

    Attributes:
        outline: a value with the structure of the result, tensors standing for tensors.
        results: one entry a result, flat, in the same order.
    """

    outline: Any
    results: tuple[Expected, ...]


@dataclass(frozen=True)
class Judgement:
    """What came of the comparison.

    Attributes:
        worst: largest error in units of what the bound allows; infinite for a result of the wrong kind.
        elements: elements compared, of all results; 0 means that nothing was shown.
        kind: ``value``, ``shape``, ``dtype``, ``count``, ``class``, or ``suite`` for a defect of the row's bound; ``""`` when
            the result is right.
        problem: what is wrong, ``""`` when the result is right.
        statistic: the largest statistic over the errors of a call, in units of its limit; ``None`` where none is made.
    """

    worst: float
    elements: int
    kind: str = ""
    problem: str = ""
    statistic: float | None = None


def expected_result(row: Row, sample: Sample, device: str = "cpu", target: Any = None) -> Expectation:
    """Evaluates the row's reference, for programs on a device of the type ``device`` that call ``target``, or the row's.

    Raises whatever the reference raises, which is a defect of the row.
    """
    return Expectation(outlined(row.target, sample, device), reference(row, sample, device, target))


def judge(
    row: Row,
    sample: Sample,
    expectation: Expectation,
    tensors: Sequence[torch.Tensor],
    flushing: Flushing = NOWHERE,
) -> Judgement:
    """Compares ``tensors``, the tensors of a result in order, on the CPU, with ``expectation``; ``flushing`` says which
    subnormals may be zero."""
    wanted = [expected for expected in expectation.results if expected.dtype is not None]
    for index, (tensor, expected) in enumerate(zip(tensors, wanted, strict=True)):
        which = f"result {index}: " if len(wanted) > 1 else ""
        if not isinstance(tensor, torch.Tensor):
            return Judgement(float("inf"), 0, "count", f"{which}{type(tensor).__name__} where a tensor is expected")
        if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
            # A subclass may compute when it is read.
            return Judgement(
                float("inf"), 0, "class", f"{which}{type(tensor).__name__} of layout {tensor.layout}, no plain tensor"
            )
        if tensor.dtype != expected.dtype:
            return Judgement(float("inf"), 0, "dtype", f"{which}dtype is {tensor.dtype}, expected {expected.dtype}")
        if tuple(tensor.shape) != expected.shape:
            return Judgement(
                float("inf"), 0, "shape", f"{which}shape is {list(tensor.shape)}, expected {list(expected.shape or ())}"
            )
    try:
        admissible = admitted(row, sample, expectation.results, tensors, flushing)
        verdict = violations(row.bound, row, sample, _shaped_like(expectation.outline, iter(tensors)), admissible)
    except Exception as error:
        traceback.print_exc()
        return Judgement(float("inf"), 0, "suite", f"the suite's own bound raised {type(error).__name__}: {error}")
    count = sum(tensor.numel() for tensor in tensors)
    if verdict.ok:
        return Judgement(verdict.error, count, statistic=verdict.statistic)
    return Judgement(verdict.error, count, "value", verdict.message, verdict.statistic)


def compared(
    row: Row,
    sample: Sample,
    expectation: Expectation,
    tensors: Sequence[torch.Tensor],
    flushing: Flushing = NOWHERE,
) -> list[Elements | None]:
    """Each of ``tensors`` element by element, as ``judge`` compares it; they have the right shapes and dtypes."""
    admissible = admitted(row, sample, expectation.results, tensors, flushing)
    return elements(row.bound, row, sample, _shaped_like(expectation.outline, iter(tensors)), admissible)


def _shaped_like(outline: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(outline, torch.Tensor):
        return next(tensors)
    if isinstance(outline, list | tuple):
        return tuple(_shaped_like(item, tensors) for item in outline)
    return outline
