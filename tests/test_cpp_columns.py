"""Reductions across memory with loops behind them that use the results: tiles of columns, read and written along memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.threads import by_threads

Tensor = torch.Tensor


def batch_normed(x: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, training=True))


CASES: dict[str, tuple[Callable[[Tensor], Any], list[tuple[int, ...]]]] = {
    "softmax of columns": (lambda x: x.softmax(0), [(70, 300), (513, 64), (3, 1000), (1, 5), (300, 1), (2, 2)]),
    "log_softmax between": (lambda x: F.log_softmax(x, 1), [(3, 40, 129), (2, 19, 64), (5, 1, 7), (1, 300, 17)]),
    "norms of columns": (lambda x: x / x.norm(dim=0, keepdim=True), [(200, 130), (7, 64), (2000, 20)]),
    "standardized": (lambda x: (x - x.mean(0)) / (x.std(0) + 1), [(200, 130), (2, 65), (4000, 31)]),
    "scaled by the largest": (lambda x: x / x.abs().amax(0) + x.argmax(0), [(200, 130), (9, 3)]),
    "batch norm, channels last": (batch_normed, [(2, 24, 9, 7), (3, 64, 20, 20), (1, 3, 40, 40), (2, 300, 3, 3)]),
}


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    x = torch.randn(shape)
    return x.contiguous(memory_format=torch.channels_last) if name.endswith("channels last") else x


def compared(found: Any, wanted: Any, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_columns(name: str, dynamic: bool) -> None:
    function, shapes = CASES[name]
    compiled = torch.compile(function, backend="cpp_cpu", dynamic=dynamic)
    for shape in shapes:
        x = drawn(name, shape)
        compared(compiled(x), function(x.double()), 1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_columns(name: str) -> None:
    function, shapes = CASES[name]
    for shape in shapes[:2]:
        torch._dynamo.reset()
        x = drawn(name, shape).requires_grad_()
        exact = x.detach().double().requires_grad_()
        wanted = function(exact)
        given = torch.randn(shape)
        (found,) = torch.autograd.grad(torch.compile(function, backend="cpp_cpu")(x), x, given)
        compared(found, torch.autograd.grad(wanted, exact, given.double())[0], 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_columns_of_other_dtypes(dtype: torch.dtype) -> None:
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    for shape in ((70, 300), (600, 33)):
        torch._dynamo.reset()
        x = torch.randn(shape, dtype=dtype)
        compared(torch.compile(lambda x: x.softmax(0), backend="cpp_cpu")(x), x.double().softmax(0), tolerance)


@pytest.mark.parametrize("shape", [(4096, 40), (600, 2000)], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    first, *others = by_threads(lambda: torch.compile(lambda x: ((x - x.mean(0)) / x.std(0)).softmax(0), backend="cpp_cpu")(x))
    assert all(torch.equal(first, other) for other in others)


def test_special_values_stay_in_their_columns() -> None:
    x = torch.randn(100, 130)
    x[3, 5], x[7, 64], x[9, 129], x[:, 17] = float("nan"), float("inf"), float("-inf"), float("-inf")
    found, wanted = torch.compile(lambda x: x.softmax(0), backend="cpp_cpu")(x), x.double().softmax(0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_columns_are_read_and_written_along_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    function, shapes = CASES[name]
    torch._dynamo.reset()
    torch.compile(function, backend="cpp_cpu")(drawn(name, shapes[0]))
    texts = [path.read_text() for path in tmp_path.glob("*/10_emitted/*") if "[at]" in path.read_text()]
    assert texts
    assert not any("per_lane" in text or "[lane]" in text for text in texts)


def test_rows_too_long_for_tiles_of_columns() -> None:
    """Buffers of so many columns would take more memory than rows do, one after the other."""
    x = torch.randn(40_000, 33)
    found = torch.compile(lambda x: x.softmax(0), backend="cpp_cpu")(x)
    compared(found, x.double().softmax(0), 1e-6)
