"""Convolutions on ONNX Runtime; gradients: by weights as matrix products, in any number of groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import vendor_sdk
from vendor_sdk import Kind
from vendor_sdk.pipeline import recording

pytest.importorskip("onnxruntime")

from reference_backends.onnxruntime import contraction
from reference_backends.onnxruntime.translate import translate


class Shape(NamedTuple):
    """Sizes of the input and of the weight, and how the weight moves."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False


SHAPES = {
    "plain": Shape((2, 4, 9, 11), (6, 4, 3, 3), (1, 1), (1, 1), (1, 1)),
    "groups, strides and dilations": Shape((2, 4, 9, 11), (6, 2, 3, 2), (2, 1), (1, 0), (1, 2), 2),
    "depthwise, many channels": Shape((1, 80, 8, 8), (80, 1, 3, 3), (1, 1), (1, 1), (1, 1), 80),
    "one dimension": Shape((2, 3, 13), (5, 3, 4), (3,), (2,), (2,)),
    "three dimensions": Shape((2, 4, 5, 6, 7), (2, 2, 3, 1, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), 2),
    "transposed": Shape((2, 4, 7, 7), (4, 6, 3, 3), (2, 2), (1, 1), (1, 1), 1, True),
    "transposed, groups": Shape((2, 4, 7, 5), (4, 3, 3, 2), (2, 1), (1, 0), (1, 1), 2, True),
    "many channels": Shape((2, 16, 9, 11), (3, 16, 3, 3), (2, 1), (1, 1), (1, 1)),
    "many channels, groups": Shape((2, 32, 9, 11), (6, 16, 3, 2), (1, 1), (1, 0), (1, 2), 2),
    "many channels, transposed": Shape((2, 3, 9, 7), (3, 16, 3, 3), (2, 1), (1, 1), (1, 1), 1, True),
    "many channels, one position": Shape((2, 16, 9, 11), (3, 16, 1, 1), (1, 1), (0, 0), (1, 1)),
    "more weights than positions": Shape((3, 16, 5, 4), (24, 16, 3, 3), (1, 1), (1, 1), (1, 1)),
    "more weights than positions, groups": Shape((3, 16, 7, 5), (24, 8, 3, 2), (2, 1), (1, 0), (1, 2), 2),
    "more weights than positions, transposed": Shape((3, 16, 3, 4), (16, 24, 3, 3), (2, 2), (1, 1), (1, 1), 1, True),
    "a large kernel": Shape((2, 3, 20, 20), (4, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
}


def gradients(s: Shape, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, backend: str) -> tuple[torch.Tensor, ...]:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        zeros = [0] * len(s.stride)
        return torch.convolution(x, weight, None, s.stride, s.padding, s.dilation, s.transposed, zeros, s.groups)

    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(torch.compile(function, backend=backend)(*leaves), leaves, grad)


@pytest.mark.parametrize("most_bytes", [contraction._MOST_BYTES, 0])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_float64(name: str, most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As matrix products, and where these would take too much memory."""
    monkeypatch.setattr(contraction, "_MOST_BYTES", most_bytes)
    torch.compiler.reset()
    s = SHAPES[name]
    x, weight = torch.randn(s.x), torch.randn(s.weight)
    zeros = [0] * len(s.stride)
    result = torch.convolution(x, weight, None, s.stride, s.padding, s.dilation, s.transposed, zeros, s.groups)
    grad = torch.randn_like(result)
    graphs: list[Any] = []
    with recording(graphs.append):
        found = gradients(s, x, weight, grad, "onnxruntime")
    exact = gradients(s, x.double(), weight.double(), grad.double(), "eager")
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6 * float(other.abs().max()))
    hosted = any(each.placement.kind == Kind.HOST for graph in graphs for each in graph.placements)
    assert hosted == (s.groups > contraction._MOST_GROUPS and not most_bytes)


@pytest.mark.parametrize(
    ("name", "products", "sums"), [("plain", 1, 1), ("many channels", 9, 9), ("more weights than positions", 1, 0)]
)
def test_gradients_by_weights_are_as_few_products_as_pays(name: str, products: int, sums: int) -> None:
    """A sum adds the products of all samples."""
    s = SHAPES[name]
    x, weight = torch.randn(s.x), torch.randn(s.weight)
    grad = torch.randn_like(torch.conv2d(x, weight, None, s.stride, s.padding))

    def function(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            grad, x, weight, None, s.stride, s.padding, s.dilation, False, [0, 0], s.groups, [False, True, False]
        )
        return found[1]

    kinds = [node.op_type for node in translate(vendor_sdk.trace(function, [grad, x, weight])).graph.node]
    assert (kinds.count("MatMul"), kinds.count("ReduceSum")) == (products, sums)


def test_strides_that_a_call_decides_run_on_the_host() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, weight, stride=stride)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="onnxruntime", dynamic=True)
    x, weight = torch.randn(2, 3, 30), torch.randn(4, 3, 3)
    for stride in (2, 3, 4):
        torch.testing.assert_close(compiled(x, weight, stride), function(x, weight, stride))


def test_groups_that_a_call_decides_run_on_the_host() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, weight, groups=x.shape[1])

    torch.compiler.reset()
    compiled = torch.compile(function, backend="onnxruntime", dynamic=True)
    for channels in (4, 6):
        inputs = torch.randn(2, channels, 7, requires_grad=True), torch.randn(2 * channels, 1, 3, requires_grad=True)
        found, expected = compiled(*inputs), function(*inputs)
        torch.testing.assert_close(found, expected)
        grad = torch.randn_like(found)
        torch.testing.assert_close(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad))


@pytest.mark.parametrize(("padding", "taken"), [(3, True), (2, True), (1, False), (0, False)])
def test_output_padding_may_be_more_than_a_stride(padding: int, taken: bool) -> None:
    """ONNX Runtime takes less; padding less behind is the same, where there is that much."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv_transpose2d(x, weight, padding=padding, dilation=3, output_padding=2)

    torch.compiler.reset()
    inputs = torch.randn(2, 4, 7, 6, requires_grad=True), torch.randn(4, 6, 3, 3, requires_grad=True)
    graphs: list[Any] = []
    with recording(graphs.append):
        found = torch.compile(function, backend="onnxruntime")(*inputs)
    expected = function(*inputs)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    expected_grads = torch.autograd.grad(expected, inputs, grad)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, grad), expected_grads, rtol=1e-5, atol=1e-4)
    assert taken != any(each.placement.kind == Kind.HOST for graph in graphs for each in graph.placements)
