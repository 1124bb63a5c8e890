"""Slow scans along memory, side by side in tiles that are turned, on `cpp_cpu`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.threads import by_threads

Tensor = torch.Tensor
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def values(shape: tuple[int, ...], dtype: torch.dtype, special: bool = True) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(shape) * 5
    if special and x.numel() > 40:
        for value in (torch.inf, -torch.inf, torch.nan, 6e4, -6e4, 0.0, -0.0):
            x.view(-1)[torch.randint(0, x.numel(), (2,))] = value
    return x.to(dtype)


SHAPES = [((16, 1), -1), ((64, 64), -1), ((70, 130), 1), ((33, 3, 65), 2), ((33, 65, 20), 1), ((5, 20), -1), ((20, 0), -1)]
CASES = [(shape, dim, torch.float32) for shape, dim in SHAPES]
CASES += [((17, 70), 1, dtype) for dtype in BOUNDS] + [((70, 17), 0, dtype) for dtype in BOUNDS]


@pytest.mark.parametrize(("shape", "dim", "dtype"), CASES, ids=str)
def test_every_size_and_order(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """Whole tiles and not, rows that lie together and not, too few rows for tiles; infinities and NaN."""
    x = values(shape, dtype)
    for given in (x, x.transpose(0, -1).contiguous().transpose(0, -1)):
        wanted = torch.logcumsumexp(given.double() + 1, dim)
        torch._dynamo.reset()
        found = torch.compile(lambda y: torch.logcumsumexp(y + 1, dim), backend="cpp_cpu", dynamic=False)(given)
        torch.testing.assert_close(found.double(), wanted, rtol=BOUNDS[dtype], atol=BOUNDS[dtype], equal_nan=True)


def test_threads_change_nothing() -> None:
    x = values((150, 70), torch.float32)
    results = by_threads(lambda: torch.compile(lambda y: torch.logcumsumexp(y, -1), backend="cpp_cpu", dynamic=False)(x))
    assert all(torch.equal(result.nan_to_num(7), results[0].nan_to_num(7)) for result in results)


def test_gradients_whose_scans_replace_what_they_read() -> None:
    x = values((40, 90), torch.float32, special=False).requires_grad_()
    exact, given = x.detach().double().requires_grad_(), torch.randn(40, 90)
    found = torch.compile(lambda y: torch.logcumsumexp(y, -1), backend="cpp_cpu")(x)
    wanted = torch.logcumsumexp(exact, -1)
    (one,), (other,) = torch.autograd.grad(found, x, given), torch.autograd.grad(wanted, exact, given.double())
    torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [8, 40])
def test_rows_run_side_by_side_where_there_are_enough(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    torch._dynamo.reset()
    x = values((rows, 90), torch.float32, special=False).requires_grad_()
    torch.compile(lambda y: torch.logcumsumexp(y, -1), backend="cpp_cpu", dynamic=False)(x).sum().backward()
    texts = [path.read_text() for path in tmp_path.glob("*/10_emitted/*logcumsumexp*")]
    assert len(texts) == 3  # two more in the gradient
    assert all(("transpose(" in text) == (rows == 40) for text in texts)
