"""What a reader sees of a failure without running it: the operands of the call, and the worst elements of its results.

Numbers are texts, with as many digits as tell values of their dtype apart: JSON has no NaN and no infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from conformance.judge import Expectation, compared
from conformance.subnormals import NOWHERE, Flushing
from vendor_sdk import Composite, Family, Row, Sample

ELEMENTWISE = (Family.POINTWISE, Family.COMPARISON, Family.CONVERSION)
"""Families in which an element of a result follows from the elements of the operands at its place."""
MOST_OPERANDS, MOST_ELEMENTS = 8, 5
"""Of one failure."""
MOST_FAILURES = 4
"""Of one case, which show them: further ones are of the same kind nearly always, and a report stays small."""
VALUE_LENGTH = 80
"""Of the text of an argument that is no tensor."""
DIGITS = {torch.float64: 17, torch.float32: 10, torch.bfloat16: 6, torch.float16: 6}


def operands(row: Row, sample: Sample) -> list[dict[str, Any]]:
    """The arguments of a call, as ``report.schema.json`` has them: tensors by shape, strides, dtype and what their values are
    like, anything else as text."""
    found = list(_named(row, sample))
    shown = [{"name": name, **(_tensor(value) if isinstance(value, torch.Tensor) else {"value": _short(value)})}
             for name, value in found[:MOST_OPERANDS]]  # fmt: skip
    if len(found) > MOST_OPERANDS:
        shown.append({"name": "others", "value": f"{len(found) - MOST_OPERANDS} more"})
    return shown


def worst_elements(
    row: Row,
    sample: Sample,
    expectation: Expectation,
    tensors: Sequence[torch.Tensor],
    flushing: Flushing = NOWHERE,
) -> list[dict[str, Any]]:
    """The elements with the largest errors, the worst first, as ``report.schema.json`` has them; none where the bound looks at
    results as a whole.

    Args: as of ``judge``, of results whose shapes and dtypes are right.
    """
    found: list[tuple[float, int, int]] = []
    results = compared(row, sample, expectation, tensors, flushing)
    for output, result in enumerate(results):
        if result is not None and result.errors.numel():
            errors, places = result.errors.reshape(-1).topk(min(MOST_ELEMENTS, result.errors.numel()))
            found += [(float(e), output, int(p)) for e, p in zip(errors, places, strict=True) if e > 0]
    shown = []
    for error, output, place in sorted(found, key=lambda each: -each[0])[:MOST_ELEMENTS]:
        result = results[output]
        assert result is not None
        index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), result.actual.shape))
        ulps = result.ulps()
        dtype = result.actual.dtype
        shown.append(
            {
                "output": output,
                "index": list(index),
                "inputs": _at(row, sample, tuple(expectation.results[output].shape or ()), index),
                "got": text(result.actual[index].item(), dtype),
                "expected": text(result.expected[index].item(), dtype),
                "allowed": None if result.allowed is None else number(float(result.allowed[index])),
                "error": number(error),
                "ulp": None if ulps is None else number(float(ulps[index])),
            }
        )
    return shown


def text(value: float | int | bool, dtype: torch.dtype) -> str:
    """A value of ``dtype``, or its exact reference, in digits that tell it apart."""
    return f"{value:.{DIGITS.get(dtype, 17)}g}" if isinstance(value, float) else str(value)


def number(value: float) -> float | str | None:
    """Four digits of an error, for JSON: ``"infinite"``, and ``None`` where there is no number."""
    if math.isnan(value):
        return None
    return "infinite" if math.isinf(value) else float(f"{value:.4g}")


def _named(row: Row, sample: Sample) -> Iterator[tuple[str, Any]]:
    """Arguments with their names in the operator's schema; of a list that holds tensors, each by itself."""
    schema = getattr(row.target, "_schema", None)  # functions of symbols have none
    names = [argument.name for argument in schema.arguments] if schema else []
    names += [f"argument {place}" for place in range(len(names), len(sample.args))]
    for name, value in (*zip(names, sample.args, strict=False), *sample.kwargs.items()):
        if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
            yield from ((f"{name}[{place}]", each) for place, each in enumerate(value))
        else:
            yield name, value


def _tensor(value: torch.Tensor) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "strides": list(value.stride()),
        "min": None, "max": None, "nan": 0, "infinite": 0,
    }  # fmt: skip
    if value.dtype.is_complex or not value.numel():
        return shown
    wide = value.to(torch.float64) if value.is_floating_point() else value  # 8 bits have few operators
    finite = wide[wide.isfinite()]
    if finite.numel():
        ordered = finite.to(torch.uint8) if value.dtype == torch.bool else finite
        shown["min"], shown["max"] = (text(each.item(), value.dtype) for each in ordered.aminmax())
    shown["nan"], shown["infinite"] = int(wide.isnan().sum()), int(wide.isinf().sum())
    return shown


def _at(row: Row, sample: Sample, shape: tuple[int, ...], index: tuple[int, ...]) -> dict[str, str]:
    """The operands' elements that an element of a result follows from, by name; empty where that is not so simple."""
    if isinstance(row, Composite) or row.family not in ELEMENTWISE:
        return {}
    tensors = {name: value for name, value in _named(row, sample) if isinstance(value, torch.Tensor)}
    try:
        together = torch.broadcast_shapes(*(value.shape for value in tensors.values()))  # type: ignore[no-untyped-call]
        if tuple(together) != shape:
            return {}
    except RuntimeError:
        return {}
    # The elements of complex results have one more coordinate.
    place = index[: len(shape)]
    return {name: text(value.expand(shape)[place].item(), value.dtype) for name, value in tensors.items()}


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= VALUE_LENGTH else said[: VALUE_LENGTH - 3] + "..."
