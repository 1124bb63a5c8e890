"""Mutation score: wrong results are rejected by every row, a blind row is found and certifies nothing, right results of
different kinds are accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import vendor_sdk
from conformance import page, report
from conformance.cases import DTYPES, Case, draw
from conformance.certify import certify
from conformance.evidence import checked
from conformance.expectations import Expectations
from conformance.judge import expected_result, judge
from conformance.levels import levels
from conformance.mutants import CALL_MUTANTS, MUTANTS, Right, Score
from conformance.outcome import Outcome, finished
from conformance.pool import Result
from conformance.program import interchangeable
from conformance.values import tensors
from conformance.worker import Settings
from tests.test_conformance_oracle import Chip, subject_of
from tests.test_conformance_reports import made
from vendor_sdk import COMPOSITES, OPSET, Composite, Effort, Prim, Property, Sample, Ulp, reference, violations

Tensor = torch.Tensor
SEED = 5


def calls(case: Case) -> list[Right]:
    """Eager's results at every sample of a case where they are right."""
    found = []
    others = draw(case, Effort.STANDARD, SEED, "second call")
    for sample, other in zip(draw(case, Effort.STANDARD, SEED), others, strict=False):
        if sample.undefined:  # torch may raise
            continue
        expected = expected_result(case.row, sample)
        results = eager(case.row, sample)
        if not judge(case.row, sample, expected, results).problem:
            previous = eager(case.row, other) if tensors(sample.args) and interchangeable(sample, other) else None
            found.append(Right(sample, expected, results, previous))
    return found


def eager(row: Prim, sample: Sample) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors(row.target(*sample.args, **sample.kwargs))]


def case_of(name: str) -> Case:
    prim, _, dtype = name.removesuffix("]").partition("[")
    return Case(prim, dtype)


WITHOUT_CALLS = (vendor_sdk.Family.COLLECTIVE, vendor_sdk.Family.CONTROL, vendor_sdk.Family.SYMBOLIC)


@pytest.mark.parametrize("name", [name for name, row in OPSET.items() if row.family not in WITHOUT_CALLS])
def test_every_row_rejects_every_mutant(name: str) -> None:
    for dtype in DTYPES:
        if DTYPES[dtype] in OPSET[name].dtypes:
            score = Score()
            score.plant(OPSET[name], calls(Case(name, dtype)))
            assert score.record()["survived"] == [], dtype


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("exp[float32]", {"zeros", "constant", "operand returned", "scaled", "rounded to float16", "rounded to bfloat16",
                          "last element dropped", "one wrong element", "shifted by one", "transposed", "NaN lost",
                          "results of another call"}),
        ("neg[bfloat16]", {"zeros", "constant", "operand returned", "scaled", "last element dropped", "one wrong element",
                           "shifted by one", "transposed", "results of another call", "NaN lost"}),
        ("mm[int64]", {"zeros", "constant", "last element dropped", "one wrong element", "shifted by one",
                       "transposed", "results of another call"}),
        ("rand[float32]", {"zeros", "constant"}),
        ("_embedding_bag[float32]", {"zeros (result 0)", "scaled (result 0)", "results of another call"}),
    ],
)  # fmt: skip
def test_what_applies_follows_from_dtype_and_bound(case: str, expected: set[str]) -> None:
    score = Score()
    score.plant(case_of(case).row, calls(case_of(case)))
    if "(result 0)" in "".join(expected):
        assert expected <= score.tried
        assert not any(f"(result {other})" in name for name in score.tried for other in (1, 2, 3)), "those are undefined"
    else:
        assert score.tried == expected


def test_the_last_k_of_a_product_is_dropped() -> None:
    score = Score()
    score.plant(OPSET["mm"], calls(Case("mm", "float32")))
    assert {"last of operand 0 dropped", "last of operand 1 dropped", "rounded to float16"} <= score.killed
    score = Score()
    score.plant(OPSET["mm"], calls(Case("mm", "float64")))
    assert "rounded to float32" in score.killed


# Rows that are blind


class Blind(Case):
    """A case whose row has another bound."""

    bound: Any = None

    @property
    def row(self) -> Prim:
        return dataclasses.replace(OPSET[self.prim], bound=self.bound)


class WideUlp(Blind):
    bound = Ulp(2.0**16)


class Anything(Blind):
    bound = Property(lambda result, sample: None)


def outcome(case: Case, **rest: Any) -> Outcome:
    with subject_of(Chip()) as subject:
        steps = certify(subject, case, effort=Effort.STANDARD, seed=SEED, device=torch.device("cpu"), **rest)
        return finished(steps)


def test_a_blind_bound_is_found_and_certifies_nothing(tmp_path: Path) -> None:
    sharp, wide, blind = (outcome(kind("exp", "float32")) for kind in (Case, WideUlp, Anything))
    assert {made.verdict for made in (sharp, wide, blind)} == {"pass"}
    assert sharp.mutants is not None
    assert wide.mutants is not None
    assert blind.mutants is not None
    assert sharp.mutants["survived"] == []
    assert sharp.mutants["tried"] == sharp.mutants["killed"] > 10
    assert wide.mutants["survived"] == ["rounded to bfloat16", "scaled"], "float16 has a smaller range"
    assert blind.mutants["killed"] == 0
    changes: dict[str, Any] = {"add[float32]": {"mutants": wide.mutants}, "add[int64]": {"mutants": sharp.mutants}}
    built = made(tmp_path, **changes)
    entries = {entry["id"]: entry for entry in built["cases"]}
    assert [report.counted_native(entries[name]) for name in ("add[float32]", "add[int64]")] == [False, True]
    assert [report.standing(entries[name]) for name in ("add[float32]", "add[int64]")] == ["nothing shown", "native"]
    tried = wide.mutants["tried"] + sharp.mutants["tried"]
    assert built["summary"]["mutants"] == {"tried": tried, "killed": tried - 2, "blind_cases": 1}
    assert built["summary"]["native_passed"] == 14, "sixteen but the blind one and the one that fails"
    assert "`add[float32]` | rounded to bfloat16, scaled" in page.markdown(built)
    assert "mutation score" in page.html(built)
    assert checked(built, tmp_path).problems == []


def criterion(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = levels(entries, numerics_agree=True)["full"]["criteria"]
    return [(each["state"], each["found"]) for each in found if "would have been found" in each["name"]]


def test_the_level_accurate_asks_that_no_mutant_survives() -> None:
    run = report.Run(Settings("chip"))
    base: dict[str, Any] = {"verdict": "pass", "placement": "native", "reason": "", "worst": 0.5, "samples": 8, "compared": 7}
    base |= {"fresh": 7, "seconds": 0.1, "failures": []}
    good, bad = {"tried": 3, "killed": 3, "survived": []}, {"tried": 3, "killed": 2, "survived": ["scaled"]}

    def entry(mutants: Mapping[str, Any] | None) -> dict[str, Any]:
        result = Result(Case("exp", "float32"), {**base, "mutants": mutants}, "")
        return report.finished(result, Expectations(), run)

    assert criterion([entry(good)]) == [("met", "1 cases")]
    assert criterion([entry(bad)]) == [("not met", "1 of 1 cases: exp[float32]")]
    assert criterion([entry(None)]) == [("not shown", "0 cases")]
    earlier = {key: value for key, value in entry(None).items() if key != "mutants"}
    assert criterion([earlier]) == [], "a report of before says nothing of mutants"


def test_single_samples_and_wrong_results_have_no_score() -> None:
    assert outcome(Case("exp", "float32"), only=0).mutants is None

    class Doubles(Chip):
        def exp(self, x: Tensor) -> Tensor:
            return super().exp(x) * 2

    with subject_of(Doubles()) as subject:
        steps = certify(subject, Case("exp", "float32"), effort=Effort.QUICK, seed=SEED, device=torch.device("cpu"))
        assert finished(steps).mutants is None


def test_names_are_unique() -> None:
    names = [*(each.name for each in MUTANTS), *(each.name for each in CALL_MUTANTS)]
    assert len(names) == len(set(names))


# Right implementations of different kinds: orders of summation, precisions, and a product rounded with its sum or before


def sequential(terms: Tensor) -> Tensor:
    total = torch.zeros_like(terms[..., 0])
    for term in terms.unbind(-1):
        total = total + term
    return total


def reverse(terms: Tensor) -> Tensor:
    return sequential(terms.flip(-1))


def pairwise(terms: Tensor) -> Tensor:
    count = terms.shape[-1]
    if count == 1:
        return terms[..., 0]
    return pairwise(terms[..., : count // 2]) + pairwise(terms[..., count // 2 :])


def interleaved(terms: Tensor) -> Tensor:
    """Sixteen sums beside each other, as vector units make them."""
    padded = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % 16))
    lanes = padded.reshape(*padded.shape[:-1], -1, 16)
    return sequential(sequential(lanes.mT))


def compensated(terms: Tensor) -> Tensor:
    """Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, ZAMM 54, 1974."""
    total, lost = torch.zeros_like(terms[..., 0]), torch.zeros_like(terms[..., 0])
    for term in terms.unbind(-1):
        new = total + term
        lost = lost + torch.where(total.abs() >= term.abs(), (total - new) + term, (term - new) + total)
        total = new
    return total + lost


def wide(terms: Tensor) -> Tensor:
    return terms.double().sum(-1).to(terms.dtype)


Summation = Callable[[Tensor], Tensor]
SUMMATIONS: list[Summation] = [sequential, reverse, pairwise, interleaved, compensated, wide]


def in_order_of_k(total: Summation, a: Tensor, b: Tensor) -> Tensor:
    return total(a.unsqueeze(1) * b.mT.unsqueeze(0))


def fused_multiply_add(total: Summation, a: Tensor, b: Tensor) -> Tensor:
    """Each product and sum rounded once."""
    made = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        made = (made.double() + a[:, k : k + 1].double() * b[k : k + 1].double()).to(a.dtype)
    return made


def softmax(total: Summation, x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / total(powers).unsqueeze(-1)


def layer_norm(total: Summation, x: Tensor) -> Tensor:
    length = x.shape[-1]
    centred = x - (total(x) / length).unsqueeze(-1)
    return centred / (total(centred.square()) / length + 1e-5).sqrt().unsqueeze(-1)


IMPLEMENTATIONS: dict[str, tuple[str, Callable[..., Tensor], tuple[Any, ...]]] = {
    "sum": ("sum", lambda total, x: total(x), ([1],)),
    "mean": ("mean", lambda total, x: total(x) / x.shape[-1], ([1],)),
    "norm": ("linalg_vector_norm", lambda total, x: total(x.square()).sqrt(), (2, [1])),
    "mm": ("mm", in_order_of_k, ()),
    "mm, fused multiply-add": ("mm", fused_multiply_add, ()),
    "softmax": ("softmax", softmax, (1, False)),
    "layer_norm": ("layer_norm", layer_norm, ([131], None, None, 1e-5)),
}
"""Name -> prim or composite, an implementation of it by a way of summing, and the arguments after the tensors."""


@pytest.mark.parametrize("summation", SUMMATIONS, ids=lambda function: str(function.__name__))
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_right_results_of_different_kinds_are_accepted(name: str, summation: Summation, dtype: torch.dtype) -> None:
    row_name, implementation, rest = IMPLEMENTATIONS[name]
    row: Prim | Composite = OPSET[row_name] if row_name in OPSET else COMPOSITES[row_name]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        operands = [torch.randn(37, 131, generator=generator).to(dtype)]
        if row_name == "mm":
            operands.append(torch.randn(131, 29, generator=generator).to(dtype))
        inner = torch.float64 if dtype == torch.float64 else torch.float32
        sample = Sample((*operands, *rest))
        expected = reference(row, sample)
        result = implementation(summation, *(operand.to(inner) for operand in operands)).to(dtype)
        verdict = violations(row.bound, row, sample, (result, *completed(row_name, sample)), expected)
        assert verdict.ok, verdict.message


def completed(name: str, sample: Sample) -> list[Tensor]:
    """Further results, torch's own."""
    if name != "layer_norm":
        return []
    return tensors(torch.ops.aten.native_layer_norm.default(*sample.args))[1:]
