"""Rules on the way to prims: constant folding, and operators over lists of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vendor_sdk
from tests.toys import use_kind
from vendor_sdk import torch_private
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.normalize import algebra
from vendor_sdk.normalize.canonicalize import canonicalize
from vendor_sdk.normalize.foreach import FOREACH, PREFIX, UNTRACEABLE
from vendor_sdk.normalize.rules import Rules
from vendor_sdk.normalize.rules import aten as torchs
from vendor_sdk.pipeline import CompiledGraph, recording

aten = torch.ops.aten
Tensor = torch.Tensor


# Constants


def folded(function: Callable[..., Any], *inputs: Tensor) -> PrimGraph:
    return canonicalize(vendor_sdk.trace(function, inputs))


def prims(graph: PrimGraph) -> list[str]:
    return [prim_name(node) for node in graph.calls()]


def same(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The prims left of a function, whose results are bit for bit what they were."""
    graph = folded(function, *inputs)
    expected = function(*inputs)
    (found,) = graph.interpret(*inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), expected.signbit())
    return prims(graph)


SPECIAL = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), 1e-42])


def test_what_a_number_decides_is_decided() -> None:
    def lerp(x: Tensor, y: Tensor) -> Tensor:
        weight = torch.full((), 0.1)
        return torch.where(weight.abs() >= 0.5, y - (y - x) * (1 - weight), x + weight * (y - x))

    assert sorted(set(same(lerp, SPECIAL, SPECIAL.flip(0)))) == ["add", "full", "mul", "sub"]


@pytest.mark.parametrize(
    "keeps", [lambda x: x * 1, lambda x: 1 * x, lambda x: x / 1, lambda x: x * torch.ones(())], ids=range(4)
)
def test_what_a_number_leaves_as_it_is_goes(keeps: Callable[[Tensor], Tensor]) -> None:
    assert set(same(lambda x: keeps(x.neg()), SPECIAL)) <= {"neg", "full"}


@pytest.mark.parametrize("stays", [lambda x: x + 0, lambda x: x - 0.0, lambda x: x * 0, lambda x: 0 / x], ids=range(4))
def test_what_changes_a_sign_or_a_nan_stays(stays: Callable[[Tensor], Tensor]) -> None:
    assert len(same(stays, SPECIAL)) >= 1


def test_types_and_shapes_are_kept() -> None:
    x = torch.arange(3)
    assert "mul" in prims(folded(lambda x: x * torch.ones(()), x))  # becomes float32
    assert "mul" in prims(folded(lambda x: x * torch.ones(2, 1), x.float()))  # becomes a matrix
    graph = folded(lambda x: x + torch.full((), 3).div(2), x)
    assert [node.args[1] for node in graph.calls() if node.target is aten.full.default] == [1.5]
    half = folded(lambda x: x + torch.full((), 1.0, dtype=torch.bfloat16).add(1e-3), x.bfloat16())
    assert [node.args[1] for node in half.calls() if node.target is aten.full.default] == [1.0]  # rounded as bfloat16 is


def test_numbers_stand_on_the_device_of_what_they_meet() -> None:
    """``torch.vmap`` makes tensors of Python's numbers, on the CPU: there a prim of a GPU would run as one of the host."""
    x = torch.empty(4, 3, device="meta")

    def function(x: Tensor) -> Tensor:
        number = torch.full((), 3.0)
        return torch.vmap(lambda row: row / 2)(x) * number + torch.where(x > number, x, number).sum(1, keepdim=True)

    graph = folded(function, x)
    found = [node.meta["val"].device.type for node in graph.calls()]
    assert len(found) > 6
    assert set(found) == {"meta"}


def test_constants_of_no_single_value_are_left_alone() -> None:
    assert same(lambda x: x + torch.arange(8), SPECIAL)[-1] == "add"


# Lists of tensors


def test_every_operator_over_lists_has_a_rule() -> None:
    functional = [
        name
        for name in torch_private.operator_names(PREFIX)
        if not name.partition(".")[0].endswith("_")
        and not name.endswith("out")
        and name.removeprefix(PREFIX) not in UNTRACEABLE
    ]
    assert len(FOREACH) == len(functional) > 60


def cases() -> list[Any]:
    """Arguments for each operator by the types that it takes."""
    found = []
    for target in sorted(FOREACH, key=str):
        arguments: list[Any] = []
        for argument in target._schema.arguments:
            kind, name = str(argument.type), argument.name
            if kind == "List[Tensor]":
                arguments.append("tensors")
            elif kind in ("List[number]", "List[Scalar]"):
                arguments.append([1.5, 0.5, 2.0])
            elif kind == "Tensor":
                arguments.append(torch.tensor(1.5))
            elif kind in ("number", "Scalar") and not argument.kwarg_only:
                arguments.append(2 if name == "ord" else 1.5)
        found.append(pytest.param(target, arguments, id=str(target).removeprefix("aten._foreach_")))
    return found


LEFT_TO_EAGER = {"_foreach_add", "_foreach_mul", "_foreach_div"}
"""What Dynamo of torch 2.11 does not capture with a tensor as the second operand."""


@pytest.mark.parametrize(("target", "arguments"), cases())
def test_operators_over_lists_are_those_on_each(target: Any, arguments: list[Any]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    sizes = ((3, 3), (4, 4), (1, 1)) if "mm" in str(target) else ((3, 4), (5,), (1,))
    several = [[torch.rand(size) + 0.1 for size in sizes] for argument in arguments if argument == "tensors"]
    lists = itertools.chain.from_iterable(several)

    def f(*flat: Tensor) -> list[Tensor]:
        given = [list(flat[i : i + 3]) for i in range(0, len(flat), 3)]
        return list(target(*(given.pop(0) if argument == "tensors" else argument for argument in arguments)))

    flat, toy = list(lists), use_kind("toy")
    expected = f(*(t.clone() for t in flat))
    graphs: list[CompiledGraph] = []
    with recording(graphs.append):
        found = torch.compile(f, backend=toy)(*flat)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    assert graphs or (torch.__version__ < "2.12" and target.overloadpacket.__name__ in LEFT_TO_EAGER)
    assert not any("foreach" in str(node.target) for graph in graphs for node in graph.graph.calls())


# Recurrent layers


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a build of torch without oneDNN has no such layer")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("has_biases", [False, True])
def test_a_layer_of_a_library_is_its_steps(has_biases: bool, reverse: bool) -> None:
    torch.manual_seed(0)
    x, hidden, cell = torch.randn(4, 3, 5), torch.randn(3, 6), torch.randn(3, 6)
    weights = [torch.randn(24, 5), torch.randn(24, 6), *([torch.randn(24)] * 2 if has_biases else [torch.zeros(24)] * 2)]

    def layer(*tensors: Tensor) -> tuple[Tensor, ...]:
        return aten.mkldnn_rnn_layer(*tensors, reverse, [], 2, 6, 1, has_biases, False, False, False)[:3]

    inputs = (x, *weights, hidden, cell)
    graph = vendor_sdk.trace(layer, inputs)
    assert "sigmoid" in prims(graph)
    torch.testing.assert_close(tuple(graph.interpret(*inputs)), layer(*inputs), rtol=1e-5, atol=1e-6)


# Operators that torch decomposes itself


def test_a_grid_of_one_row_is_captured() -> None:
    """Torch's decomposition makes a tensor of a number there, and detaches it in place. (Its gradient no backend can trace.)"""
    theta = torch.randn(2, 2, 3)

    def function(theta: Tensor) -> Tensor:
        return torch.nn.functional.affine_grid(theta, [2, 1, 1, 5], align_corners=False)

    torch.testing.assert_close(torch.compile(function, backend=use_kind("toy"))(theta), function(theta))


# Operators of other versions of torch


def test_rules_of_operators_that_torch_lacks_are_left_out() -> None:
    rules = Rules()
    lacking = torchs.no_such_operator.default

    @rules.rule(lacking, aten.take.default)
    def rule(x: Tensor) -> Tensor:
        return x

    assert dict(rules) == {aten.take.default: rule}
    with pytest.raises(NotImplementedError, match="has no operator aten::no_such_operator"):
        lacking(torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_factors_that_torch_has_since_2_14(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 4, dtype=dtype)
    rotation, stretch = algebra.linalg_polar(x)
    torch.testing.assert_close(rotation @ stretch, x)
    torch.testing.assert_close(rotation.mH @ rotation, torch.eye(4, dtype=dtype).expand(3, 4, 4))
    torch.testing.assert_close(stretch @ stretch, x.mH @ x)
    assert (torch.linalg.eigvalsh(stretch) > 0).all()
    root = algebra.linalg_matrix_sqrth(x.mH @ x)
    torch.testing.assert_close(root, stretch)
