"""What a report says of a failure: a reader sees operands, the worst elements and where errors are large without running it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from conformance import curves, exhibit, report
from conformance.cases import Case
from conformance.expectations import Expectations
from conformance.judge import expected_result
from conformance.pool import Result
from conformance.worker import Settings
from tests.test_conformance_oracle import Chip, array, outcome, tensor
from vendor_sdk import OPSET, Sample

Tensor = torch.Tensor


class Wrong(Chip):
    """The exponential is one part in a hundred too large from 4 on, products miss their last term, sorting raises."""

    def exp(self, x: Tensor) -> Tensor:
        right = array(super().exp(x))
        return tensor(np.where(array(x) >= 4, 1.01 * right, right), x.dtype if x.dtype.is_floating_point else torch.float32)

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return super().mm(a[:, :-1], b[:-1])

    def sort(self, x: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no")


def entry(chip: Chip, case: str) -> dict[str, Any]:
    """The report's entry of a case, as it is read back, checked against the schema."""
    prim, _, dtype = case.rstrip("]").partition("[")
    found = json.loads(json.dumps(dataclasses.asdict(outcome(chip, case))))
    run = report.Run(Settings("planted", seed=3))
    made: dict[str, Any] = report.finished(Result(Case(prim, dtype), found, ""), Expectations(), run)
    text = json.dumps(made, allow_nan=False)
    assert len(text) < 12_000, "a few kB of each failure that is shown, and a curve"
    jsonschema.validate(made, {"$ref": "#/$defs/case", "$defs": report.schema()["$defs"]})
    return made


def test_the_worst_elements_of_a_function_stand_beside_their_inputs() -> None:
    made = entry(Wrong(), "exp[float32]")
    failure = next(f for f in made["failures"] if f["elements"] and f["kind"] == "value")
    (operand,) = failure["operands"]
    assert operand["name"] == "self"
    assert operand["dtype"] == "float32"
    assert len(operand["shape"]) == len(operand["strides"])
    assert 0 < len(failure["elements"]) <= exhibit.MOST_ELEMENTS
    worst = failure["elements"][0]
    x, got, expected = float(worst["inputs"]["self"]), float(worst["got"]), float(worst["expected"])
    assert x >= 4
    assert expected == pytest.approx(math.exp(np.float32(x)), rel=1e-9)
    assert got == pytest.approx(1.01 * expected, rel=1e-6)
    assert worst["error"] == pytest.approx((got - expected) / worst["allowed"], rel=1e-2)
    assert worst["ulp"] > 1e4
    errors = [each["error"] for each in failure["elements"]]
    assert errors == sorted(errors, reverse=True)
    assert "--sample" in failure["reproducer"]


def test_other_failures_show_their_operands() -> None:
    product = entry(Wrong(), "mm[float32]")["failures"][0]
    assert [each["name"] for each in product["operands"]] == ["self", "mat2"]
    assert product["operands"][0]["min"] is not None
    assert product["elements"][0]["inputs"] == {}, "a product follows from rows and columns"
    raised = entry(Wrong(), "sort[float32]")["failures"][0]
    assert raised["kind"] == "exception"
    assert raised["elements"] == []
    assert {each["name"]: each.get("value") for each in raised["operands"]}["dim"] is not None


def test_only_the_first_failures_of_a_case_are_shown_with_their_values() -> None:
    failures = entry(Wrong(), "exp[float32]")["failures"]
    assert len(failures) > exhibit.MOST_FAILURES
    assert not any(each["operands"] or each["elements"] for each in failures[exhibit.MOST_FAILURES :])


def test_operands_say_what_their_values_are_like() -> None:
    values = torch.tensor([[1.5, math.nan, -2.0], [math.inf, -math.inf, 0.0]]).t()
    x, empty, flag = exhibit.operands(OPSET["cat"], Sample(([values, torch.ones(0), torch.tensor([True, False])], 0)))[:3]
    assert x == {
        "name": "tensors[0]", "dtype": "float32", "shape": [3, 2], "strides": [1, 3], "min": "-2", "max": "1.5",
        "nan": 1, "infinite": 2,
    }  # fmt: skip
    assert (empty["min"], empty["max"], flag["max"]) == (None, None, "1")
    many = exhibit.operands(OPSET["cat"], Sample(([values] * 20, 0)))
    assert many[-1] == {"name": "others", "value": "13 more"}


def test_broadcast_operands_are_read_at_the_place_of_the_result() -> None:
    row, sample = OPSET["add"], Sample((torch.arange(3.0).reshape(3, 1), torch.tensor([10.0, 20.0])))
    result = row.target(*sample.args)
    result[2, 1] += 1
    (worst,) = exhibit.worst_elements(row, sample, expected_result(row, sample), [result])
    assert worst["index"] == [2, 1]
    assert worst["inputs"] == {"self": "2", "other": "20"}
    assert (worst["got"], worst["expected"], worst["error"]) == ("23", "22", "infinite")


def test_errors_are_drawn_against_all_inputs() -> None:
    for dtype in ("float16", "float32"):
        made = entry(Wrong(), f"exp[{dtype}]")
        found, edges = made["error_by_input"], curves.edges(dtype)
        positive = found[curves.PARTS // 2 :]
        above = [error for error, edge in zip(positive, edges, strict=False) if edge >= 4 and error not in (None, 0.0)]
        below = [error for error, edge in zip(positive, edges[1:], strict=False) if edge <= 4 and error is not None]
        assert above
        assert min(above) > 1 >= max(below), "wrong from 4 on"
    assert entry(Chip(), "exp[bfloat16]")["worst_error"] <= 1, "rounded once"
    assert entry(Chip(), "exp[int64]")["error_by_input"] is None
    assert entry(Chip(), "floor[float32]")["error_by_input"] is None, "exact: no error is in between"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_parts_of_the_range_are_in_the_order_of_values(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    values = torch.tensor(
        [-math.inf, info.min, -1.0, -info.tiny, -0.0, 0.0, info.tiny, 1.0, 3.0, info.max, math.inf], dtype=dtype
    )
    parts = curves.part_of(values).tolist()
    assert parts == sorted(parts)
    assert (parts[4], parts[5]) == (127, 128)
    edges = curves.edges(str(dtype).removeprefix("torch."))
    for value, part in zip(values.tolist()[5:-1], parts[5:-1], strict=True):
        assert edges[part - 128] <= value < edges[part - 127]


def test_the_statistic_of_sums_is_kept() -> None:
    made = entry(Chip(), "mm[float32]")
    assert 0 < made["statistic"] < 1
    assert entry(Chip(), "exp[float32]")["statistic"] is None
