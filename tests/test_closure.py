"""Closure of the opset over torch's operator database: one sample an operator and dtype; docs/closure.json has all samples."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.specifiers import SpecifierSet

from vendor_sdk import closure
from vendor_sdk.prims.exclusions import EXCLUSIONS
from vendor_sdk.prims.opset import BY_TARGET, OPSET

OTHERWISE = {"nanquantile": "<2.13", "quantile": "<2.13", "combinations": ">=2.14"}
"""Entries that end otherwise with some versions of torch: the first two ask for a value there, the last one does no longer."""

PARTS = 36
"""Tests of similar length, so that workers share them."""


@functools.cache
def entries() -> dict[str, list[Any]]:
    """By their names. Torch takes seconds to make them: no other test waits for it."""
    found: dict[str, list[Any]] = {}
    for entry in closure.entries():
        found.setdefault(entry.full_name, []).append(entry)
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator_ends_in_prims_or_is_excluded(part: int) -> None:
    problems = []
    for name in sorted(entries())[part::PARTS]:
        if name in OTHERWISE and torch.__version__ in SpecifierSet(OTHERWISE[name]):
            continue
        outcome = closure.Outcome()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for entry in entries()[name]:
                torch.manual_seed(0)
                outcome.add(closure.examine(entry, 1))
        problems += filter(None, [closure.disagreement(name, outcome)])
        problems += [f"{name}: {text}" for text in outcome.wrong]
    assert not problems, "\n".join(problems)


def test_exclusions_name_operators_of_the_database() -> None:
    # linear_cross_entropy came with torch 2.13
    unknown = [name for name in EXCLUSIONS if name not in entries() and "linear_cross_entropy" not in name]
    assert not unknown
    assert all(reason for reason in EXCLUSIONS.values())


def test_an_excluded_operator_that_closes_is_reported() -> None:
    closed = closure.Outcome(samples=3, closed=3)
    assert "remove it from EXCLUSIONS" in closure.disagreement("unique", closed)
    assert not closure.disagreement("add", closed)


def test_an_operator_that_does_not_close_is_reported() -> None:
    open_ = closure.Outcome(samples=3, closed=2, foreign={"aten.hash_tensor.default": 1})
    assert "aten.hash_tensor.default remains" in closure.disagreement("add", open_)
    assert not closure.disagreement("hash_tensor", open_)
    assert "has no sample" in closure.disagreement("add", closure.Outcome())


def test_foreign_operators_are_found_in_real_captures() -> None:
    (entry,) = entries()["hash_tensor"]
    outcome = closure.examine(entry, 1, [torch.float32])
    assert list(outcome.foreign) == ["aten.hash_tensor.default"]
    assert not outcome.is_closed


def test_wrong_results_are_found() -> None:
    expected = [torch.ones(3), None]
    assert closure._difference([torch.ones(3), torch.zeros(3)], expected) == ""
    assert "differs" in closure._difference([torch.full((3,), 1.1), None], expected)
    assert "torch.float64" in closure._difference([torch.ones(3, dtype=torch.float64), None], expected)
    assert "missing" in closure._difference([None, None], expected)


def test_opset_has_the_promised_size() -> None:
    assert 240 <= len(OPSET) <= 260
    assert len(BY_TARGET) == len(OPSET)


def test_documented_percentages_are_of_this_opset() -> None:
    report = json.loads((Path(__file__).parents[1] / "docs" / "closure.json").read_text())
    assert report["opset_prims"] == len(OPSET)
    assert report["exclusions"] == dict(EXCLUSIONS)
    assert report["samples_per_operator"] == "all"
    assert not report["disagreements"]
