"""Groups of neighbouring columns that are reduced together: norms of groups of channels that lie last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.threads import by_threads

Tensor = torch.Tensor
SHAPES = [(2, 8, 5, 7, 2), (1, 320, 9, 8, 32), (3, 64, 16, 16, 32), (2, 96, 3, 3, 4), (1, 12, 40, 40, 1), (2, 40, 6, 6, 40)]
"""Of an image, and how many groups."""


def normed(x: Tensor, w: Tensor, b: Tensor, groups: int) -> Tensor:
    return F.silu(F.group_norm(x, groups, w, b))


def drawn(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, int]:
    *image, groups = shape
    x = (torch.randn(image) * 2 + 3).contiguous(memory_format=torch.channels_last)
    return x, torch.randn(image[1]), torch.randn(image[1]), groups


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    *tensors, groups = drawn(shape)
    tensors = [t.to(dtype) for t in tensors]
    compiled = torch.compile(normed, backend="cpp_cpu", dynamic=False)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float64: 1e-12}[dtype]
    for _ in range(2):
        found = compiled(*tensors, groups)
        wanted = normed(*(t.double() for t in tensors), groups)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_gradients(shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    *tensors, groups = drawn(shape)
    inputs = [t.requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    wanted = normed(*exact, groups)
    given = torch.randn(wanted.shape)
    found = torch.autograd.grad(torch.compile(normed, backend="cpp_cpu")(*inputs, groups), inputs, given)
    for one, other in zip(found, torch.autograd.grad(wanted, exact, given.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    """Of groups of four columns; what lies at one place is the same for all of them."""
    groups = x.view(x.shape[0], -1, x.shape[2] // 4, 4).permute(0, 2, 1, 3)
    largest, least = groups.amax((2, 3), keepdim=True), groups.amin((2, 3), keepdim=True)
    scaled = (groups - least) / (largest - least + 1)
    return scaled.permute(0, 2, 1, 3).reshape(x.shape), largest.flatten(1), (groups > 0).any(3).any(2)


def test_other_reductions() -> None:
    x = torch.randn(2, 50, 72)
    x[0, 3, 5], x[1, 7, 64] = float("nan"), float("inf")
    found, wanted = torch.compile(extremes, backend="cpp_cpu", dynamic=False)(x), extremes(x.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.to(other.dtype), other, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_images_are_read_and_written_along_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    torch._dynamo.reset()
    torch.compile(normed, backend="cpp_cpu", dynamic=False)(*drawn(SHAPES[2]))
    (text,) = [path.read_text() for path in tmp_path.glob("*/10_emitted/*")]
    assert "other" in text
    assert "per_lane" not in text


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    arguments = drawn((1, 320, 24, 24, 32))
    first, *others = by_threads(lambda: torch.compile(normed, backend="cpp_cpu", dynamic=False)(*arguments))
    assert all(torch.equal(first, other) for other in others)
