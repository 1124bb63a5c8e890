"""Loops of which neighbours stand in one body, as vectors: loads and stores of every second element."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import vendor_sdk
from tests.toys import use_kind

Tensor = torch.Tensor


@pytest.mark.parametrize("dtype", vendor_sdk.ALL)
def test_vectors_of_every_second_element(dtype: torch.dtype) -> None:
    """Loads and stores of them, of whole vectors and of what is left over, never behind the last element."""
    use_kind("cpp_cpu")

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        far, near = x.repeat_interleave(2, 0).repeat_interleave(2, 1), y[:, ::2]
        return far, near ^ y[:, 1::2] if dtype == torch.bool else near + y[:, 1::2], far != y[: len(far), : far.shape[1]]

    compiled = torch.compile(function, backend="cpp_cpu", dynamic=False)
    for width in (5, 33):
        torch._dynamo.reset()
        x, y = (torch.randint(0, 2 if dtype == torch.bool else 100, (n * 3, n * width)).to(dtype) for n in (1, 2))
        for found, wanted in zip(compiled(x, y), function(x, y), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 8), (9, 37), (34, 70)])
def test_what_follows_from_a_pools_gradient(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Sums over it beside what is stored, as a batch norm has."""
    use_kind("cpp_cpu")

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d(F.batch_norm(x, None, None, training=True).relu(), 3, 2, 1)

    x = torch.randn(2, 5, *shape, dtype=dtype, requires_grad=True)
    g = torch.randn_like(function(x))
    (found,) = torch.autograd.grad(torch.compile(function, backend="cpp_cpu", dynamic=False)(x), x, g)
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(function(exact), exact, g.double())
    off = (found.double() - wanted).norm() / wanted.norm()
    assert off < (1e-5 if dtype == torch.float32 else 0.2)


@pytest.mark.parametrize("shape", [(8, 34), (6, 70), (34, 130)])
def test_vectors_of_every_second_element_in_place(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running sums are written over by what reads each of them once."""
    use_kind("cpp_cpu")
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    rows, columns = shape

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.cumsum(1) * y.repeat_interleave(2, 0).repeat_interleave(2, 1) + 1

    x, y = torch.randn(rows, columns), torch.randn(rows // 2, columns // 2)
    compiled = torch.compile(function, backend="cpp_cpu", dynamic=False)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), function(x, y), rtol=1e-5, atol=1e-4)
    written = [text for path in tmp_path.glob("*/10_emitted/*") if "store_pairs(" in (text := path.read_text())]
    assert len(written) == 1
    assert written[0].count("store_pairs(out0") == written[0].count("load(in") * 2 == 2
    assert written[0].count("load_second(out0") == 4, "over what it reads"
