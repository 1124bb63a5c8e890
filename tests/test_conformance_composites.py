"""Cases of composites: a kernel that a backend has for one is judged by the composite's bound, and named where it is wrong."""

from __future__ import annotations

import pytest
import torch

import vendor_sdk
from conformance import cases, placements, subject
from conformance.cases import COMPOSITE, Case
from conformance.judge import expected_result, judge
from tests.test_conformance import Finished, command
from vendor_sdk import COMPOSITES, SampleContext

CHIP = '''
"""A chip with three composites, of which gelu is another function, and the prims that their definitions need."""
import torch
import vendor_sdk

aten = torch.ops.aten


@vendor_sdk.hookimpl
def backend():
    return vendor_sdk.Backend(
        name="whole",
        version="1.0",
        dtypes=frozenset({torch.float32, torch.float16, torch.bool}),
        composites=frozenset({"silu", "gelu", "dropout"}),
    )


@vendor_sdk.hookimpl
def kernels():
    return {
        "silu": lambda x: x / (1 + (-x.double()).exp()).to(x.dtype) if x.dtype == torch.float32 else own(x),
        "gelu": lambda x, approximate="none": x * torch.sigmoid(1.702 * x),
        "dropout": lambda x, p, train: kept(x, p, train),
    }


def own(x):
    return (x.float() / (1 + (-x.float()).exp())).to(x.dtype)


def kept(x, p, train):
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    generator = torch.Generator().manual_seed(7)
    mask = torch.rand(x.shape, generator=generator) >= p
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask
'''


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "chip.py").write_text(CHIP)
    names = ",".join(f"composites/{name}" for name in ("silu", "gelu", "dropout", "softmax"))
    return command(
        folder, "conformance", "--backend", "whole", "--plugin", "chip.py", "--prims", names, "--dtypes", "float32,float16",
        "--seed", "3", "-n", "1", "--output", "out",
    )  # fmt: skip


def test_a_claimed_composite_is_native(whole: Finished) -> None:
    for dtype in ("float32", "float16"):
        entry = whole.entry(f"composites/silu[{dtype}]")
        assert (entry["verdict"], entry["placement"], entry["family"]) == ("pass", "native", "composite"), entry
        assert entry["mutants"]["tried"] == entry["mutants"]["killed"] > 0


def test_another_function_is_found(whole: Finished) -> None:
    entry = whole.entry("composites/gelu[float32]")
    assert (entry["verdict"], entry["placement"]) == ("fail", "native")
    assert entry["failures"][0]["kind"] == "value"
    assert "--prims composites/gelu --dtypes float32" in entry["failures"][0]["reproducer"]


def test_dropout_that_draws_the_same_at_every_call_is_found(whole: Finished) -> None:
    entry = whole.entry("composites/dropout[float32]")
    assert entry["verdict"] == "fail"
    assert {failure["kind"] for failure in entry["failures"]} == {"seed"}


def test_what_is_not_claimed_is_where_the_weakest_of_its_prims_are(whole: Finished) -> None:
    entry = whole.entry("composites/softmax[float32]")
    assert (entry["verdict"], entry["placement"]) == ("pass", "host")


def test_composites_are_no_prims_and_are_counted_apart(whole: Finished) -> None:
    summary = whole.report["summary"]
    assert summary["cases"] == summary["native_passed"] == 0
    assert summary["composites"]["pass"] + summary["composites"]["fail"] == 8
    assert not summary["claims_hold"]
    assert "composites by verdict" in whole.text
    (criterion,) = (c for c in summary["levels"]["full"]["criteria"] if c["name"].startswith("composites are right"))
    assert criterion["state"] == "not met"
    assert "composites/gelu[float32]" in criterion["cases"]


def test_every_composite_and_dtype_is_a_case() -> None:
    wanted = {(f"composites/{row.name}", dtype) for row in COMPOSITES.values() for dtype in row.dtypes}
    found = [(case.prim, cases.DTYPES[case.dtype]) for case in cases.select() if case.kind == COMPOSITE]
    assert len(found) == len(set(found))
    assert set(found) == wanted


@pytest.mark.parametrize(
    ("kinds", "kind"), [(["native", "view"], "decomposed"), (["native", "host"], "host"), (["decomposed"], "decomposed")]
)
def test_a_definition_in_prims_is_placed_by_the_weakest_of_them(kinds: list[str], kind: str) -> None:
    placed = [subject.Placed(f"n{place}", "exp", each, "") for place, each in enumerate(kinds)]
    assert placements.placement(Case("composites/softmax", "float32", COMPOSITE), placed)[0] == kind


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_of_halves_may_round_what_matrix_units_take(dtype: torch.dtype) -> None:
    """Weights rounded once to the dtype are right; rounded twice as coarsely they are not."""
    row = COMPOSITES["scaled_dot_product_attention"]
    sample = next(iter(row.samples(SampleContext.make(dtype, seed=5))))
    query, key, value = (x.float() for x in sample.args[:3])
    scores = query @ key.mT / query.shape[-1] ** 0.5
    weights, saved = scores.softmax(-1), scores.logsumexp(-1)
    expected = expected_result(row, sample)

    def problem(taken: torch.Tensor) -> str:
        return judge(row, sample, expected, [(taken @ value).to(dtype), saved]).problem

    assert problem(weights.to(dtype).float()) == ""
    step = torch.finfo(dtype).eps * 8
    _, exponent = torch.frexp(weights)
    coarse = torch.round(torch.ldexp(weights, -exponent) / step) * step
    assert "times the allowed error" in problem(torch.ldexp(coarse, exponent))


def test_what_is_saved_in_another_shape_elsewhere_is_not_compared() -> None:
    row = COMPOSITES["batch_norm_inference"]
    sample = next(iter(row.samples(SampleContext.make(torch.float32))))

    def elsewhere(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result, *_ = vendor_sdk.target_of(row)(*args)
        return result, args[3].clone(), args[4].clone()

    expected = expected_result(row, sample, target=elsewhere)
    assert [item.value is None for item in expected.results] == [False, True, True]
    outputs = list(elsewhere(*sample.args))
    assert judge(row, sample, expected, outputs).problem == ""
    assert judge(row, sample, expected, [outputs[0] + 1, *outputs[1:]]).kind == "value"
    assert judge(row, sample, expected, [outputs[0], outputs[1][:2], outputs[2]]).kind == "shape"
