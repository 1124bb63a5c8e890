"""ONNX's own node tests on prim graphs: an outside check of what prims mean, and of backends."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("onnx")

from conformance import onnx_nodes

PASSING = 1124
"""How many of ONNX's 1,884 node tests (onnx 1.23) are imported and pass. It may only grow."""
SAMPLE = "gather_* scatternd* softmax_axis_0 layer_normalization_2d_axis0 reduce_l2_k* conv_with_strides_p* cumsum_2d*"
"""Patterns of the tests that backends run here, whose compilers take longer than the interpreter."""


@functools.cache
def cases() -> list[Any]:
    return list(onnx_nodes.cases())


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
def test_backends_pass_a_sample(backend: str) -> None:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    chosen = [case for case in cases() if any(fnmatch.fnmatch(case.name, f"test_{pattern}") for pattern in SAMPLE.split())]
    assert len(chosen) >= 15
    assert {case.name: onnx_nodes.outcome(case, backend) for case in chosen} == {case.name: ("pass", "") for case in chosen}


def test_all_imported_tests_pass_on_the_interpreter() -> None:
    verdicts = {case.name: onnx_nodes.outcome(case) for case in cases()}
    assert not {name: why for name, (verdict, why) in verdicts.items() if verdict == "fail"}
    assert Counter(verdict for verdict, _ in verdicts.values())["pass"] >= PASSING


def test_what_has_no_rule_is_left_out_with_the_reason() -> None:
    case = next(each for each in cases() if each.name == "test_nonzero_example")
    assert onnx_nodes.outcome(case) == ("skip", "no rule for NonZero")


def test_a_wrong_result_is_a_failure() -> None:
    case = next(each for each in cases() if each.name == "test_add")
    ((inputs, (expected,)),) = case.data_sets
    changed = dataclasses.replace(case, data_sets=[(inputs, [expected + 1])])
    verdict, why = onnx_nodes.outcome(changed)
    assert verdict == "fail"
    assert "Mismatched elements" in why
