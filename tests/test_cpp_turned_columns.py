"""Rows of which some operands lie along memory and others across it, on `cpp_cpu`: turned in tiles, with no lane of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from reference_backends.cpp_cpu.turned_columns import turned
from tests.threads import by_threads
from vendor_sdk import index, loop

Tensor = torch.Tensor
CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda x, y: torch.softmax(x + y, 1),
    "log_softmax": lambda x, y: torch.log_softmax(x * y, 1),
    "layer norm to channels last": lambda x, y: (
        F.layer_norm(y.permute(0, 2, 3, 1), y.shape[1:2]).contiguous() + x.permute(0, 2, 3, 1)
    ),
    "norm": lambda x, y: x / (y.norm(dim=1, keepdim=True) + 1),
    "which": lambda x, y: (x + y).argmax(1),
    "largest": lambda x, y: (x * y).amax(1),
    "softmax of rows, to columns": lambda x, y: torch.softmax(x.permute(0, 2, 3, 1), -1).permute(0, 3, 1, 2) * y,
}


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """One with its channels last, and one with them first."""
    x, y = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last), y


@pytest.mark.parametrize("shape", [(2, 21, 9, 15), (1, 3, 8, 8), (3, 70, 5, 13), (1, 130, 1, 77)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_size(name: str, shape: tuple[int, ...]) -> None:
    function, (x, y) = CASES[name], inputs(shape)
    wanted = function(x.double(), y.double())
    for found in by_threads(lambda: torch.compile(function, backend="cpp_cpu", dynamic=False)(x, y)):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found if found.dtype == torch.int64 else found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["softmax", "layer norm to channels last"])
def test_other_types_and_gradients(name: str, dtype: torch.dtype) -> None:
    function = CASES[name]
    x, y = (t.requires_grad_() for t in inputs((2, 21, 9, 15), dtype))
    exact = [t.detach().double().requires_grad_() for t in (x, y)]
    torch._dynamo.reset()
    found, wanted = torch.compile(function, backend="cpp_cpu")(x, y), function(*exact)
    given = torch.randn(wanted.shape, dtype=dtype)
    results = [found, *torch.autograd.grad(found, (x, y), given)]
    expected = [wanted, *torch.autograd.grad(wanted, exact, given.double())]
    bound = 1e-12 if dtype == torch.float64 else 3e-2
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=bound, atol=bound)


def test_symbolic_numbers_of_rows() -> None:
    torch._dynamo.reset()
    function = CASES["softmax"]
    compiled = torch.compile(function, backend="cpp_cpu", dynamic=True)
    for shape in ((2, 21, 9, 15), (3, 21, 8, 8), (5, 21, 3, 70)):
        x, y = inputs(shape)
        torch.testing.assert_close(compiled(x, y), function(x, y))


@pytest.mark.parametrize("name", ["log_softmax", "norm", "softmax of rows, to columns"])
def test_no_lane_is_on_its_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    torch._dynamo.reset()
    x, y = inputs((2, 21, 32, 32))
    torch.compile(CASES[name], backend="cpp_cpu")(x, y)
    (path,) = tmp_path.glob("*/10_emitted/*")
    text = path.read_text()
    assert "transpose(" in text
    assert "[lane]" not in text
    assert "per_lane" not in text


@pytest.mark.parametrize(("second", "possible"), [("x", True), ("z", False)])
def test_what_a_loop_stores_and_a_later_one_loads_is_not_turned(second: str, possible: bool) -> None:
    """It would be in memory at the end of a tile only."""
    i, k, q = (index.variable(name, size) for name, size in (("i", 64), ("k", 8), ("q", 8)))
    first = loop.Nest(
        (loop.Range("k", index.wrap(8)),),
        (loop.Load("a", "x", 8 * i + k, torch.float32), loop.Store("z", 8 * i + k, "a"), loop.Store("w", 64 * k + i, "a")),
    )
    then = loop.Nest(
        (loop.Range("q", index.wrap(8)),),
        (loop.Load("b", second, 8 * i + q, torch.float32), loop.Store("y", 64 * q + i, "b")),
    )
    found = turned(loop.Nest((loop.Range("i", index.wrap(64)),), (first, then)), dict.fromkeys("wxyz", torch.float32))
    assert (found is not None) is possible
