"""ONNX's own node tests on prim graphs: an outside check of what prims mean, and of backends."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vendor_sdk import OPSET

onnx = pytest.importorskip("onnx")

from conformance import onnx_import, onnx_nodes, onnx_rules  # noqa: E402
from conformance.onnx_types import NotImported  # noqa: E402

PASSING = 1390
"""How many of ONNX's 1,884 node tests (onnx 1.23) are imported and pass. It may only grow."""
PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"
SAMPLE = (
    "gather_* scatternd* softmax_axis_0 layer_normalization_2d_axis0 reduce_l2_k* conv_with_strides_p* cumsum_2d* "
    "attention_4d_gqa_causal resize_downsample_scales_cubic_antialias unique_sorted_with_axis_3d nonzero_example compress_1 "
    "dft_rfft if scan9_sum lstm_bidirectional einsum_inner_prod bitcast_bool_to_uint8"
)
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


def test_the_page_says_how_many_pass() -> None:
    """What is left out does not depend on who runs the rest; a failure would be no line of this table but a bug."""
    rows = re.findall(r"^\| (?:the interpreter|`(\w+)`) \| ([\d,]+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    counts = {name: tuple(int(each.replace(",", "")) for each in found) for name, *found in rows}
    assert set(counts) == {"", "cpp_cpu", "onnxruntime"}
    assert set(counts.values()) == {(PASSING, 0, 1884 - PASSING)}


def named(name: str) -> Any:
    return next(each for each in cases() if each.name == f"test_{name}")


def test_what_has_no_rule_is_left_out_with_the_reason() -> None:
    assert onnx_nodes.outcome(named("nonmaxsuppression_two_classes")) == ("skip", "no rule for NonMaxSuppression")


def test_what_is_known_before_there_is_a_graph_shows_nothing() -> None:
    assert onnx_nodes.outcome(named("range_float_type_positive_delta")) == ("skip", "known before there is a graph")


def test_an_error_of_a_rule_is_a_failure_and_an_attribute_that_it_does_not_know_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(x: torch.Tensor, axes: Any = None) -> torch.Tensor:
        return torch.squeeze(x.numpy(), axes)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setitem(onnx_rules.RULES, "Squeeze", wrong)
    verdict, why = onnx_nodes.outcome(named("squeeze"))
    assert (verdict, "Error" in why) == ("fail", True)
    monkeypatch.setitem(onnx_rules.RULES, "Softmax", lambda x: x)
    verdict, why = onnx_nodes.outcome(named("softmax_axis_0"))
    assert (verdict, "unexpected keyword argument 'axis'" in why) == ("skip", True)


def model(nodes: Sequence[Any], inputs: dict[str, Sequence[int]], outputs: Sequence[str], **constants: Any) -> Any:
    """A model of float32 inputs, save a bool ``flag``, and int64 constants."""
    info = onnx.helper.make_tensor_value_info
    kinds = {name: onnx.TensorProto.BOOL if name == "flag" else onnx.TensorProto.FLOAT for name in inputs}
    graph = onnx.helper.make_graph(
        nodes,
        "test",
        [info(name, kinds[name], shape) for name, shape in inputs.items()],
        [info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        initializer=[onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    return onnx.helper.make_model(graph)


def test_a_tensor_may_be_operand_and_static_input() -> None:
    node = onnx.helper.make_node("Squeeze", ["axes", "axes"], ["y"])
    add = onnx.helper.make_node("Add", ["x", "f"], ["z"])
    cast = onnx.helper.make_node("Cast", ["y"], ["f"], to=onnx.TensorProto.FLOAT)
    proto = model([node, cast, add], {"x": [2]}, ["z"], axes=[0])
    (found,) = onnx_nodes.SdkBackend.prepare(proto, "CPU").run([np.array([1, 2], np.float32)])
    assert found.tolist() == [1, 2]


def test_a_branch_of_data_is_the_prim_and_reads_what_is_around_it() -> None:
    make, graph = onnx.helper.make_node, onnx.helper.make_graph
    out = onnx.helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, None)
    bodies = [graph([make(kind, ["x", "two"], ["o"])], kind, [], [out]) for kind in ("Mul", "Add")]
    node = make("If", ["flag"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    proto = model([node], {"x": [2], "flag": []}, ["y"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 3], np.float32), "two"))
    tensors = {"x": torch.tensor([1.0, 2.0]), "flag": torch.tensor(True)}
    prims, _ = onnx_import.imported(proto.graph, tensors)
    assert OPSET["cond"].target in {prim.target for prim in prims.calls()}
    for flag, want in ((True, [3, 6]), (False, [4, 5])):
        (found,) = onnx_nodes.SdkBackend.prepare(proto, "CPU").run([np.array([1, 2], np.float32), np.array(flag)])
        assert found.tolist() == want


def test_a_loop_whose_end_depends_on_data_is_left_out() -> None:
    make = onnx.helper.make_node
    info = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [make("Add", ["s", "s"], ["t"]), make("ReduceMax", ["t"], ["m"], keepdims=0), make("Less", ["m", "x0"], ["more"])],
        "body",
        [info("i", 7, []), info("c", 9, []), info("s", 1, [2])],
        [info("more", 9, []), info("t", 1, [2])],
    )
    first = make("ReduceMin", ["x"], ["x0"], keepdims=0)
    proto = model([first, make("Loop", ["", "", "x"], ["y"], body=body)], {"x": [2]}, ["y"])
    with pytest.raises(NotImported, match="a Loop whose end depends on data"):
        onnx_nodes.SdkBackend.prepare(proto, "CPU").run([np.array([1, 2], np.float32)])


def test_a_wrong_result_is_a_failure() -> None:
    case = named("add")
    ((inputs, (expected,)),) = case.data_sets
    changed = dataclasses.replace(case, data_sets=[(inputs, [expected + 1])])
    verdict, why = onnx_nodes.outcome(changed)
    assert verdict == "fail"
    assert "Mismatched elements" in why
