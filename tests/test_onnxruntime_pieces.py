"""Pieces of tensors in the ONNX Runtime backend: one node takes a tensor apart, and values are those of slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vendor_sdk

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from reference_backends.onnxruntime import pieces  # noqa: E402
from reference_backends.onnxruntime.translate import translate  # noqa: E402

NAME = "onnxruntime"
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def kinds(function: Callable[..., Any], *inputs: Tensor) -> Counter[str]:
    """Operators of the model that a function is translated to."""
    return Counter(node.op_type for node in translate(vendor_sdk.trace(function, inputs)).graph.node)


def results(function: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend=NAME)(*inputs))


def same(function: Callable[..., Any], *inputs: Tensor) -> None:
    """What only moves elements gives torch's, exactly."""
    for found, expected in zip(results(function, *inputs), function(*inputs), strict=True):
        assert found.shape == expected.shape
        assert torch.equal(found, expected)


# Slices and selections


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (lambda x: x.split([1, 2, 2], 1), {"Split": 1}),
        (lambda x: (x[:, 3:], x[:, :-2]), {"Split": 1}),  # in any order
        (lambda x: (x[..., :1], x[..., 1:3], x[..., 3:]), {"Split": 1}),
        (lambda x: (x[:, 1:2], x[:, 2:5]), {"Split": 1}),  # little of a small tensor is left out
        (lambda x: x.unbind(0), {"Reshape": 1, "Split": 1}),
        (lambda x: x.unbind(1)[::-1], {"Reshape": 1, "Split": 1}),
        (lambda x: (x[:, -1], x[:, 2], x[:, 0], x[:, 3]), {"Reshape": 1, "Split": 1}),
        (lambda x: (*x.split(2, 0), *x.split(3, 1)), {"Split": 2}),
    ],
    ids=["split", "unordered", "last", "gap", "first", "reversed", "selected", "two"],
)
def test_pieces_are_the_results_of_one_split(take: Callable[..., Any], expected: dict[str, int], dtype: torch.dtype) -> None:
    x = (torch.randn(4, 5, 7) * 3).to(dtype)
    found = kinds(take, x)
    del found["Identity"]
    assert found == expected
    same(take, x)


@pytest.mark.parametrize(
    "take",
    [
        lambda x: (x[:, :3], x[:, 2:]),  # they overlap
        lambda x: (x[:, 0:1], x[:, 4:5]),  # most is left out
        lambda x: (x[:, 0::2], x[:, 1::2]),  # not side by side
        lambda x: (x[:, :5], x[:, 5:]),  # one is everything, the other one empty
        lambda x: x.unbind(2),  # nothing lies beside what is selected
        lambda x: (x[:, 1:4],),
    ],
    ids=["overlap", "gap", "step", "empty", "innermost", "one"],
)
def test_other_pieces_are_taken_one_by_one(take: Callable[..., Any]) -> None:
    x = torch.randn(4, 5, 7)
    assert "Split" not in kinds(take, x)
    same(take, x)


def test_what_is_left_out_of_a_large_tensor_is_not_copied() -> None:
    def take(x: Tensor) -> Any:
        return x[:, :2], x[:, 2:3]

    rows = pieces.SMALL // 4
    assert "Split" in kinds(take, torch.randn(rows, 4))
    assert "Split" not in kinds(take, torch.randn(rows + 1, 4))
    assert "Split" in kinds(lambda x: x.split(2, 1), torch.randn(rows + 1, 4))


def test_selections_that_leave_places_side_by_side_out() -> None:
    def take(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x[:, i] for i in (0, 1, 2, 5, 6, 7))

    x = torch.randn(3, 8, 4)
    assert kinds(take, x)["Split"] == 1
    same(take, x)


def test_pieces_of_tensors_without_elements() -> None:
    same(lambda x: x.unbind(1), torch.randn(2, 3, 0))
    same(lambda x: x.split(1, 1), torch.randn(0, 3, 2))
    same(lambda x: x.unbind(1), torch.randn(0, 3, 2))


def test_sizes_beside_may_be_dynamic(tmp_path: Path) -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            even, odd = x.split([3, 1], 2)
            return *x.unbind(1), even * 2, odd * 3

    model = Turned()
    call = torch.compile(model, backend=NAME, dynamic=True)
    path = vendor_sdk.export(model, (torch.randn(5, 3, 4),), tmp_path / "model.onnx", backend=NAME, dynamic=({0: "batch"},))
    nodes = Counter(node.op_type for node in onnx.load(str(path)).graph.node)
    assert nodes["Split"] == 2
    assert not {"Slice", "Squeeze"} & nodes.keys()
    session = ort.InferenceSession(str(path))
    for batch in (2, 3, 7):
        x = torch.randn(batch, 3, 4)
        for found, of_file, expected in zip(call(x), session.run(None, {"x": x.numpy()}), model(x), strict=True):
            assert torch.equal(found, expected)
            assert torch.equal(torch.from_numpy(of_file), expected)


def test_pieces_of_parameters_are_folded_into_the_session(tmp_path: Path) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 6))

        def forward(self, x: Tensor) -> Tensor:
            first, second, third = self.weight.chunk(3)
            return (x @ first.t()).exp() + (x @ second.t()) * (x @ third.t())

    path = vendor_sdk.export(Heads(), (torch.randn(2, 6),), tmp_path / "model.onnx", backend=NAME)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(path), options)
    assert "Split" in {node.op_type for node in onnx.load(str(path)).graph.node}
    assert "Split" not in {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}


# Functions of pieces


def test_a_function_of_all_pieces_is_taken_of_the_tensor() -> None:
    def take(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.exp() for part in x.split(2, 1))

    for rows in (3, pieces.SMALL):
        x = torch.randn(rows, 6)
        assert kinds(take, x) == {"Exp": 1, "Split": 1}
        for found, expected in zip(results(take, x), take(x), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_function_of_most_pieces_is_taken_of_a_small_tensor() -> None:
    def take(x: Tensor) -> tuple[Tensor, ...]:
        a, b, c, d = x.chunk(4, 1)
        return a.exp(), b.abs(), c.exp(), d.exp(), d

    rows = pieces.SMALL // 8
    small, large = torch.randn(rows, 8), torch.randn(rows + 1, 8)
    assert kinds(take, small) == {"Exp": 1, "Split": 1, "Slice": 2, "Abs": 1}
    assert kinds(take, large)["Exp"] == 3
    for x in (small, large):
        for found, expected in zip(results(take, x), take(x), strict=True):
            torch.testing.assert_close(found, expected)


def test_functions_that_change_the_dtype_and_pieces_without_their_dimension() -> None:
    def take(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.isnan(row) for row in x.unbind(1))

    x = torch.tensor([[[1.0, torch.nan], [torch.inf, 2.0]], [[torch.nan, torch.nan], [0.0, -0.0]]])
    assert kinds(take, x) == {"IsNaN": 1, "Reshape": 1, "Split": 1}
    same(take, x)


def test_pieces_in_a_branch() -> None:
    def f(flag: Tensor, x: Tensor) -> Tensor:
        def yes(x: Tensor) -> Tensor:
            a, b = x.chunk(2, 1)
            return a.exp() * b.exp()

        return torch.cond(flag, yes, lambda x: x[:, :2] - x[:, 2:], (x,))

    call = torch.compile(f, backend=NAME)
    x = torch.randn(3, 4)
    for flag in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(call(flag, x), f(flag, x))


# Recurrent networks


class Recurrent(nn.Module):
    """An LSTM, unrolled, with the sigmoids' gates side by side or, as torch has them, the hyperbolic tangent's among them."""

    def __init__(self, width: int, *, apart: bool) -> None:
        super().__init__()
        self.gates, self.width, self.apart = nn.Linear(2 * width, 4 * width), width, apart

    def forward(self, sequence: Tensor) -> Tensor:
        hidden = cell = sequence.new_zeros(sequence.shape[0], self.width)
        for step in sequence.unbind(1):
            write, forget, read, value = self.gates(torch.cat((step, hidden), -1)).chunk(4, -1)
            if self.apart:
                read, value = value, read
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(write) * torch.tanh(value)
            hidden = torch.sigmoid(read) * torch.tanh(cell)
        return hidden


STEP = {"Concat": 1, "Gemm": 1, "Min": 1, "Exp": 1, "Softsign": 1, "Add": 1, "Split": 1, "Slice": 1, "Tanh": 2, "Mul": 3}
"""Three sigmoids are a bound, an exponential and its quotient."""


@pytest.mark.parametrize("apart", [False, True])
def test_a_step_of_an_lstm_takes_13_nodes(apart: bool, tmp_path: Path) -> None:
    model, x = Recurrent(6, apart=apart).eval(), torch.randn(3, 5, 6)
    path = vendor_sdk.export(model, (x,), tmp_path / "model.onnx", backend=NAME)
    graph = onnx.load(str(path)).graph
    found = Counter(node.op_type for node in graph.node)
    assert found == Counter({kind: 5 * count for kind, count in STEP.items()}) + Counter(
        {"Reshape": 1, "Split": 1, "Expand": 1}
    )
    read = {name for node in graph.node for name in node.input}
    assert {each.name for each in graph.initializer} <= read
    exact = model.double()(x.double())
    (of_file,) = ort.InferenceSession(str(path)).run(None, {"sequence": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(of_file).double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("apart", [False, True])
def test_gradients_of_an_lstm_are_as_accurate_as_eagers(apart: bool) -> None:
    model, x = Recurrent(6, apart=apart), torch.randn(3, 5, 6)

    def gradients(call: Callable[..., Tensor], x: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
        own = x.clone().requires_grad_()
        out = call(own)
        return out.detach(), *torch.autograd.grad(out.square().sum(), [own, *parameters])

    found = gradients(torch.compile(model, backend=NAME), x, list(model.parameters()))
    eager = gradients(model, x, list(model.parameters()))
    exact = gradients(model.double(), x.double(), list(model.parameters()))
    for ours, eagers, truth in zip(found, eager, exact, strict=True):
        allowed = 4 * (eagers.double() - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (ours.double() - truth).abs().max() <= allowed


EXTREME = torch.tensor([-104.0, -88, -87, -60, -20, -5, -1, -1e-20, 0, 1e-3, 1, 5, 20, 60, 88, 104])


def test_sigmoids_of_pieces_keep_their_digits() -> None:
    def gates(x: Tensor) -> tuple[Tensor, ...]:
        a, b, c, d = x.chunk(4, 1)
        return torch.sigmoid(a), torch.sigmoid(b), torch.sigmoid(c), torch.tanh(d)

    x = EXTREME.repeat(4).reshape(-1, 4).t().contiguous().repeat(1, 4)
    found = kinds(gates, x)
    assert found["Exp"] == 1
    for ours, exact in zip(results(gates, x), gates(x.double()), strict=True):
        unit = torch.maximum(exact.abs() * 2**-23, torch.tensor(2.0**-149))
        assert ((ours.double() - exact).abs() / unit).max() <= 4


def test_products_with_sigmoids_of_pieces_keep_their_digits() -> None:
    def gated(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b, c, _ = x.chunk(4, 1)
        return torch.sigmoid(a) * y, torch.sigmoid(b) * y, y * torch.sigmoid(c)

    # Below -87 they are subnormal numbers, which have fewer digits; a product with them may be a normal one.
    x = EXTREME.reshape(1, -1).repeat(3, 4)
    y = torch.tensor([[1.0], [-1e20], [3e30]]).expand(3, x.shape[1] // 4).contiguous()
    found = kinds(gated, x, y)
    assert (found["Exp"], found["Softsign"], found["Mul"]) == (1, 1, 3)
    for ours, exact in zip(results(gated, x, y), gated(x.double(), y.double()), strict=True):
        unit = torch.maximum(exact.abs() * 2**-23, y.abs().double() * 2.0**-149)
        assert ((ours.double() - exact).abs() / unit).max() <= 4


def test_infinite_gates_and_nans_stay_in_their_pieces() -> None:
    def gates(x: Tensor) -> tuple[Tensor, ...]:
        a, b, c, d = x.chunk(4, 1)
        return torch.sigmoid(a) * 2, torch.sigmoid(b) * 2, torch.sigmoid(c) * 2, torch.tanh(d) * 2

    x = torch.tensor([[-torch.inf, torch.inf, 0.0, torch.nan], [torch.nan, 1.0, -torch.inf, torch.inf]])
    for ours, expected in zip(results(gates, x), gates(x), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)
