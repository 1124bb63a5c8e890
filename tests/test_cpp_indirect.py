"""Loads and stores at places that are loaded or computed: in vectors, checked once, and apart where threads share them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.threads import by_threads

Tensor = torch.Tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8]


def compiled(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    torch._dynamo.reset()
    found: Tensor = torch.compile(function, backend="cpp_cpu", dynamic=False)(*inputs)
    return found


def texts(path: Path) -> str:
    return "\n".join(each.read_text() for each in path.glob("*/10_emitted/*"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gathers(dtype: torch.dtype) -> None:
    for rows, columns, count in ((4, 70, 37), (2, 1, 64)):
        x = (torch.randn(rows, columns) * 50).to(dtype)
        from_start = torch.randint(0, columns, (rows, count))
        for index in (from_start, torch.where(from_start % 2 == 0, from_start, from_start - columns)):
            wanted = x.gather(-1, index % columns)
            assert torch.equal(
                compiled(lambda x, i: torch.ops.aten.index(x, [torch.arange(len(x))[:, None], i]), x, index), wanted
            )


@pytest.mark.parametrize("wrong", [40, -41, 2**40, -(2**40)])
@pytest.mark.parametrize("place", [0, 17, 36])
def test_indices_out_of_range(wrong: int, place: int) -> None:
    x, index = torch.randn(3, 40), torch.randint(-40, 40, (37,))
    index[place] = wrong
    with pytest.raises(IndexError):
        compiled(lambda x, i: x[:, i] + 1, x, index)


def test_gathers_are_loads_of_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    compiled(lambda x, i: x.gather(-1, i), torch.randn(8, 64), torch.randint(0, 64, (8, 100)))
    assert "load_at(" in texts(tmp_path)
    assert "per_lane" not in texts(tmp_path)


GRIDS = [(2, (2, 20, 9, 7), (2, 5, 37, 2)), (2, (1, 3, 1, 1), (1, 3, 3, 2)), (3, (2, 20, 3, 4, 5), (2, 3, 3, 7, 3))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("padding", "mode"), [("zeros", "bilinear"), ("border", "bilinear"), ("reflection", "nearest")])
def test_samples_of_images(padding: str, mode: str, dtype: torch.dtype) -> None:
    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False)

    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for _, image, points in GRIDS:
        x, grid = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in (image, points))
        wide = [each.detach().double().requires_grad_() for each in (x, grid)]
        found, wanted = compiled(sampled, x, grid), sampled(*wide)
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
        given = torch.randn(found.shape, dtype=dtype)
        gradients = torch.autograd.grad(found, (x, grid), given)
        for one, other in zip(gradients, torch.autograd.grad(wanted, wide, given.double()), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=10 * tolerance, atol=10 * tolerance)


def test_samples_beyond_the_image() -> None:
    """Numbers that no pixel has sample nothing."""
    x, grid = torch.randn(1, 20, 6, 6), torch.zeros(1, 1, 8, 2)
    grid[0, 0, :4, 0] = torch.tensor([1e30, -1e30, 3.0, -3.0])
    found = compiled(lambda x, g: F.grid_sample(x, g, align_corners=True), x, grid)
    assert not found[..., :4].any()
    torch.testing.assert_close(found, F.grid_sample(x, grid, align_corners=True))
    grid[0, 0, 5, 1] = float("nan")
    found = compiled(lambda x, g: F.grid_sample(x, g, align_corners=True), x, grid)
    torch.testing.assert_close(found, F.grid_sample(x, grid, align_corners=True), equal_nan=True)


def test_what_channels_share_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop over channels is inside of a step, behind the coordinates."""
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    compiled(lambda x, g: F.grid_sample(x, g, align_corners=False), torch.randn(2, 24, 9, 9), torch.randn(2, 9, 9, 2))
    step = texts(tmp_path).split("INLINE_LAMBDA", 1)[1]
    channels = re.search(r"for \(int64_t \w+ = 0; \w+ < 24; \+\+\w+\)", step)
    assert channels is not None
    assert "op_floor" in step[: channels.start()]
    assert "op_floor" not in step[channels.start() :]


def test_gradients_of_samples_do_not_depend_on_the_number_of_threads() -> None:
    x, grid = torch.randn(3, 20, 16, 16, requires_grad=True), torch.randn(3, 40, 40, 2)

    def gradient() -> Tensor:
        found = torch.compile(lambda x, g: F.grid_sample(x, g, align_corners=False), backend="cpp_cpu")(x, grid)
        return torch.autograd.grad(found.square().sum(), x)[0]

    first, *others = by_threads(gradient)
    assert all(torch.equal(first, other) for other in others)


def test_threads_share_iterations_that_keep_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums into one row come from one thread, where it is along the rows that operands lie."""
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    x, index, source = torch.zeros(500, 4), torch.randint(0, 4, (300, 500)).t(), torch.ones(300, 500).t()
    found = compiled(lambda x, i, s: x.scatter_add(-1, i, s), x, index, source)
    assert torch.equal(found, x.scatter_add(-1, index, source))
    shared = texts(tmp_path).rsplit("#pragma omp for", 1)[1]
    assert re.match(r"[^\n]*\n\s*for \(int64_t \w+ = 0; \w+ < 500; ", shared)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.bool], ids=str)
def test_what_is_read_backwards(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    for columns in (1, 5, 16, 70, 131):
        x = (torch.randn(6, columns) * 50).to(dtype)

        def function(x: Tensor) -> Tensor:
            return torch.where(x == x.flip(-1), x, x.flip(0)) | x.flip(-1) if x.dtype == torch.bool else x + x.flip(-1)

        def framed(x: Tensor) -> Tensor:
            return F.pad(x.flip(-1)[:, 1:], (3, 2)) == F.pad(x, (2, 2))

        for each in (function, framed):
            assert torch.equal(compiled(each, x), each(x)), columns
    if dtype in (torch.float32, torch.int32):
        text = texts(tmp_path)
        assert "load_back(" in text
        assert "load_back_where(" in text
        assert "per_lane" not in text


def test_sums_from_the_end() -> None:
    """The gradient of a running sum reads what it adds up from the last element on."""
    for shape, dim in (((70, 37), 0), ((70, 37), 1), ((3, 40, 20), 1)):
        x = torch.randn(shape, requires_grad=True)
        given = torch.randn(shape)
        for function in (torch.cumsum, torch.logcumsumexp):
            exact = x.detach().double().requires_grad_()
            (wanted,) = torch.autograd.grad(function(exact, dim), exact, given.double())
            (found,) = torch.autograd.grad(compiled(lambda x, f=function, d=dim: f(x, d), x), x, given)
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
