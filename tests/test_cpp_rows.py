"""Nests one after the other over the rows of one buffer run row by row, where each keeps to its row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reference_backends.cpp_cpu import machine
from tests.threads import by_threads

Tensor = torch.Tensor

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]
ROWS = 300


def compiled(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    torch._dynamo.reset()
    found: Tensor = torch.compile(function, backend="cpp_cpu", dynamic=False)(*inputs)
    return found


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers of which a few add up exactly."""
    return torch.randint(0, 4, shape).to(dtype)


def loops_over_rows(path: Path) -> int:
    text = "\n".join(each.read_text() for each in path.glob("*/10_emitted/*"))
    return text.count(f"< {ROWS}; ++")


PLACES = torch.stack([torch.randperm(90) for _ in range(ROWS)])[:, :40]
JOINED: dict[str, tuple[Callable[..., Tensor], Callable[[torch.dtype], tuple[Tensor, ...]]]] = {
    "cat": (lambda x, y: torch.cat((x, y), -1), lambda d: (drawn(d, ROWS, 37), drawn(d, ROWS, 64))),
    "cat of three, one computed": (
        lambda x, y, z: torch.cat((x, y + y, z), 1),
        lambda d: (drawn(d, ROWS, 3, 5), drawn(d, ROWS, 19, 5), drawn(d, ROWS, 1, 5)),
    ),
    "scatter_add": (
        lambda x, i, s: x.scatter_add(1, i, s),
        lambda d: (drawn(d, ROWS, 90), torch.randint(0, 90, (ROWS, 70)), drawn(d, ROWS, 70)),
    ),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), lambda d: (drawn(d, ROWS, 90), PLACES, drawn(d, ROWS, 40))),
    "index_copy": (lambda x, i, s: x.index_copy(1, i, s), lambda d: (drawn(d, ROWS, 90), PLACES[0], drawn(d, ROWS, 40))),
    "index_add": (
        lambda x, i, s: x.index_add(1, i, s),
        lambda d: (drawn(d, ROWS, 90), torch.randint(0, 90, (70,)), drawn(d, ROWS, 70)),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", JOINED)
def test_rows_are_finished_one_by_one(name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    function, make = JOINED[name]
    inputs = make(dtype)
    assert torch.equal(compiled(function, *inputs), function(*inputs))
    assert loops_over_rows(tmp_path) == 1


APART: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "what is added lies in any row": (
        lambda x, i, s: x.scatter_add(0, i, s),
        (drawn(torch.float32, ROWS, 90), torch.randint(0, ROWS, (ROWS, 90)), drawn(torch.float32, ROWS, 90)),
    ),
    "rows of one part follow those of the other": (
        lambda x, y: torch.cat((x, y)),
        (drawn(torch.float32, ROWS, 90), drawn(torch.float32, ROWS, 90)),
    ),
    "a part that lies across memory is turned in tiles": (
        lambda x, y: torch.cat((x.t(), y), 1),
        (drawn(torch.float32, 90, ROWS), drawn(torch.float32, ROWS, 90)),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_leaves_its_row_stays_apart(name: str) -> None:
    function, inputs = APART[name]
    assert torch.equal(compiled(function, *inputs), function(*inputs))


def test_threads_share_joined_rows() -> None:
    """The sums of a row are one thread's, in one order."""
    x, index, source = torch.randn(ROWS, 500), torch.randint(0, 500, (ROWS, 400)), torch.randn(ROWS, 400)
    torch._dynamo.reset()
    function = torch.compile(lambda x, i, s: x.scatter_add(1, i, s), backend="cpp_cpu", dynamic=False)
    one, *others = by_threads(lambda: function(x, index, source))
    torch.testing.assert_close(one, x.scatter_add(1, index, source))
    assert all(torch.equal(one, other) for other in others)


def test_what_is_scattered_into_is_stored_in_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    x = torch.zeros(machine.cache_bytes(3) // 4 // 1024 + 1, 1024)
    index = torch.zeros(len(x), 2, dtype=torch.int64)
    compiled(lambda x, i, s: x.scatter_add(1, i, s), x, index, torch.ones(index.shape))
    (text,) = (each.read_text() for each in tmp_path.glob("*/10_emitted/*"))
    assert "past_caches" not in text
