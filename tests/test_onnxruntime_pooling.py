"""Average pooling of the ONNX Runtime backend: ONNX's own where it agrees with torch's, the table of windows elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vendor_sdk
from vendor_sdk.pipeline import recording

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from reference_backends.onnxruntime.translate import translate  # noqa: E402

NAME = "onnxruntime"


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def run(function: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, set[str], set[str]]:
    """Result and gradient, and the nodes of the forward and of the backward graph."""
    graphs: list[Any] = []
    given = x.clone().requires_grad_()
    with recording(graphs.append):
        result = torch.compile(function, backend=NAME)(given)
        result.backward(result.detach())
    kinds = []
    for graph in graphs:
        models = [node.target.run._make.model for node in graph.graph.calls() if hasattr(node.target, "run")]
        kinds.append({node.op_type for model in models for node in model.graph.node})
    assert given.grad is not None
    forward, backward = kinds
    return result.detach(), given.grad, forward, backward


def check(function: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[set[str], set[str]]:
    result, gradient, *kinds = run(function, x)
    given = x.clone().requires_grad_()
    want = function(given)
    want.backward(want.detach())
    torch.testing.assert_close(result, want.detach(), equal_nan=True)
    torch.testing.assert_close(gradient, given.grad, equal_nan=True)
    return kinds[0], kinds[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 10)),
        (lambda x: F.avg_pool2d(x, (3, 7)), (1, 2, 9, 35)),
        (lambda x: F.avg_pool2d(x, 2, ceil_mode=True), (2, 3, 8, 10)),  # nothing reaches beyond
        (lambda x: F.adaptive_avg_pool2d(x, (2, 5)), (2, 3, 8, 10)),
    ],
)
def test_windows_that_tile_a_plane(function: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    forward, backward = check(function, torch.randn(shape).to(dtype))
    assert "AveragePool" in forward
    assert "Gather" not in forward
    assert "Resize" in backward
    assert "Gather" not in backward


def test_windows_that_tile_a_solid() -> None:
    forward, backward = check(lambda x: F.avg_pool3d(x, (2, 1, 3)), torch.randn(2, 3, 4, 5, 9))
    assert "AveragePool" in forward
    assert "Resize" in backward


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.avg_pool2d(x, 3, 1), (2, 3, 8, 10)),
        (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 8, 10)),
        (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 9, 7)),
        (lambda x: F.avg_pool2d(x, 2), (2, 3, 9, 11)),  # the last positions are in no window
        (lambda x: F.avg_pool3d(x, 2, 1), (2, 3, 4, 5, 3)),
    ],
)
def test_windows_that_overlap_or_leave_something_out(function: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> None:
    forward, backward = check(function, torch.randn(shape))
    assert "AveragePool" in forward
    assert "Resize" not in backward


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [
        (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), (2, 3, 8, 10), torch.float32),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (2, 3, 8, 10), torch.float32),
        (lambda x: F.avg_pool2d(x, 2), (3, 8, 10), torch.float32),  # no batch
        (lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 10), torch.float64),
        (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (2, 3, 8, 10), torch.float32),
    ],
)
def test_windows_that_onnx_has_no_kernel_or_words_for(
    function: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    forward, backward = check(function, torch.randn(shape, dtype=dtype))
    assert "AveragePool" not in forward
    assert "Resize" not in backward


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_a_number_stays_in_its_window(value: float) -> None:
    x = torch.randn(2, 3, 8, 10)
    x[0, 1, 3, 4] = value
    forward, _ = check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    assert "AveragePool" in forward


@pytest.mark.parametrize("scale", range(2, 40))
def test_every_position_gets_the_share_of_its_own_window(scale: int) -> None:
    _, backward = check(lambda x: F.avg_pool2d(x, scale), torch.randn(1, 1, 9 * scale, 5 * scale))
    assert "Resize" in backward


def test_a_batch_of_the_call() -> None:
    x = torch.randn(3, 4, 6, 6)
    torch._dynamo.mark_dynamic(x, 0)
    call = torch.compile(lambda x: F.avg_pool2d(x, 2), backend=NAME)
    for given in (x, torch.randn(5, 4, 6, 6)):
        torch.testing.assert_close(call(given), F.avg_pool2d(given, 2))


# Maxima


@pytest.mark.parametrize(
    "value", [0.0, torch.nan, torch.inf, -torch.inf, torch.finfo().max, torch.finfo().smallest_normal, 1e-45]
)
@pytest.mark.parametrize("windows", [(2,), (3, 2, 1), (3, 1, 1, 2), (7, 3, 0, 1, True)])
def test_maxima_of_what_is_not_negative_are_exact(windows: tuple[Any, ...], value: float) -> None:
    """Next to numbers of all sizes."""
    x = torch.randn(2, 3, 15, 17) * 10.0 ** torch.randint(-38, 38, (2, 3, 15, 17))
    x[0, 1, 3:9, 4:12] = value
    x[1, 2] = value

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x.relu(), *windows)

    with torch.no_grad():
        found = torch.compile(function, backend=NAME)(x)
    torch.testing.assert_close(found, function(x), rtol=0, atol=0, equal_nan=True)


def test_maxima_of_a_convolution_take_two_nodes_and_stay_in_its_layout(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3)).eval()
    options = {"session_options": {"optimized_model_filepath": str(path)}}
    with torch.no_grad():
        torch.compile(model, backend=NAME, options=options)(torch.randn(1, 3, 16, 16))
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert (kinds["Conv"], kinds["MaxPool"], kinds["Add"], kinds["ReorderInput"]) == (3, 1, 0, 0)


def placed(function: Callable[..., tuple[torch.Tensor, torch.Tensor]], x: torch.Tensor) -> set[str]:
    """Checks values, places and gradient; returns the nodes of the forward graph."""
    graphs: list[Any] = []
    given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    with recording(graphs.append):
        value, place = torch.compile(function, backend=NAME)(given)
    want, where = function(other)
    torch.testing.assert_close(value, want, rtol=0, atol=0, equal_nan=True)
    at = x.flatten(-place.dim() + 2).gather(-1, place.flatten(-place.dim() + 2))
    torch.testing.assert_close(at, want.detach().flatten(-place.dim() + 2), rtol=0, atol=0, equal_nan=True)
    if not x.isnan().any():  # of several, any may be named
        assert torch.equal(place, where)
        value.backward(want.detach())
        want.backward(want.detach())
        torch.testing.assert_close(given.grad, other.grad, equal_nan=True)
    models = [node.target.run._make.model for node in graphs[0].graph.calls() if hasattr(node.target, "run")]
    return {node.op_type for model in models for node in model.graph.node}


MAXIMA: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
    (lambda x: F.max_pool2d(x, 2, return_indices=True), (2, 3, 8, 10)),
    (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (2, 3, 9, 7)),
    (lambda x: F.max_pool2d(x, (2, 3), (3, 1), (1, 0), ceil_mode=True, return_indices=True), (3, 2, 8, 10)),
    (lambda x: F.max_pool2d(x, 2, 1, 0, 2, return_indices=True), (1, 4, 9, 7)),
    (lambda x: F.max_pool3d(x, 2, 1, return_indices=True), (2, 3, 4, 5, 3)),
]


@pytest.mark.parametrize("value", [None, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("function", "shape"), MAXIMA)
def test_places_of_maxima(function: Callable[..., Any], shape: tuple[int, ...], value: float | None) -> None:
    """By MaxPool, and where a number is not finite by the table."""
    x = torch.randn(shape)
    if value is not None:
        x[0, 1, 1:] = value
    assert "If" in placed(function, x)


@pytest.mark.parametrize("x", [torch.zeros(2, 3, 6, 6), torch.full((2, 3, 6, 6), 3e38), -torch.zeros(2, 3, 6, 6)])
def test_places_of_equal_maxima_are_the_first(x: torch.Tensor) -> None:
    placed(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


@pytest.mark.parametrize("x", [torch.randn(2, 3, 8, 8).double(), torch.randn(2, 3, 8, 8).half()])
def test_places_of_maxima_that_onnx_has_no_kernel_for(x: torch.Tensor) -> None:
    assert "If" not in placed(lambda x: F.max_pool2d(x, 2, return_indices=True), x)


def test_places_of_maxima_have_no_branch_on_other_providers() -> None:
    graph = vendor_sdk.trace(lambda x: F.max_pool2d(x, 2, return_indices=True), [torch.randn(2, 3, 8, 8)])
    for guarded in (True, False):
        assert ("If" in {node.op_type for node in translate(graph, guarded=guarded).graph.node}) == guarded


def test_places_of_maxima_of_a_batch_of_the_call() -> None:
    x = torch.randn(3, 4, 6, 6)
    torch._dynamo.mark_dynamic(x, 0)
    call = torch.compile(lambda x: F.max_pool2d(x, 2, return_indices=True), backend=NAME)
    for given in (x, torch.randn(5, 4, 6, 6)):
        for found, want in zip(call(given), F.max_pool2d(given, 2, return_indices=True), strict=True):
            assert torch.equal(found, want)
