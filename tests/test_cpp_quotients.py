"""Loops over several dimensions at once, cut where one of these ends: the same numbers, indices with a stride."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from tests import fusing
from tests.toys import use_kind
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Load, LoopKernel, Nest, Reduce, Stmt, Store, walk

Tensor = torch.Tensor
ALL = replace(fusing.ROOM, affine=4)


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 4, w, b))


def instance_normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.instance_norm(x, None, None, w, b))


def batch_normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def normed_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Of an image with its channels last."""
    return normed(x.permute(0, 3, 1, 2), w, b).permute(0, 2, 3, 1).contiguous()


def normed_gradient(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    mean, rstd = x.reshape(len(x), 4, -1).mean(-1), x.reshape(len(x), 4, -1).var(-1).rsqrt()
    size = x[0, 0].numel()
    found: tuple[Tensor, ...] = torch.ops.aten.native_group_norm_backward(
        g, x, mean, rstd, w, len(x), x.shape[1], size, 4, [True, True, True]
    )
    return found


def scaled_parts(x: Tensor, w: Tensor) -> Tensor:
    """A number for every 6 elements, and sums over them all."""
    return (x.view(3, -1, 6) - w[:, None]).abs().flatten(1).sum(1)


def sums_of_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of columns that were merged from two dimensions: the gradient of the bias before an attention."""
    columns = x.transpose(1, 2).flatten(2).flatten(0, 1)
    return columns.sum(0), columns.amax(0)


CHANNELS = torch.rand(8) + 0.5
CASES: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "group norm": (normed, [torch.randn(2, 8, 4, 4), CHANNELS, CHANNELS - 1]),
    "group norm of odd images": (normed, [torch.randn(2, 8, 5, 7), CHANNELS, CHANNELS - 1]),
    "group norm, channels last": (normed_last, [torch.randn(2, 5, 7, 8).repeat_interleave(2, 3), *[torch.rand(16)] * 2]),
    "group norm's gradient": (normed_gradient, [torch.randn(2, 8, 5, 7), CHANNELS, CHANNELS, torch.randn(2, 8, 5, 7)]),
    "instance norm": (instance_normed, [torch.randn(2, 8, 5, 7), CHANNELS, CHANNELS - 1]),
    "batch norm": (batch_normed, [torch.randn(2, 8, 5, 7), CHANNELS, CHANNELS - 1]),
    "sums of heads": (sums_of_heads, [torch.randn(2, 3, 5, 8)]),
    "sums of parts": (scaled_parts, [torch.randn(3, 30), torch.randn(5)]),
}


def leaves(body: tuple[Stmt, ...]) -> list[Nest | Reduce]:
    """Loops without loops inside."""
    return [s for s in walk(body) if isinstance(s, Nest | Reduce) and not any(isinstance(t, Nest | Reduce) for t in s.body)]


def without_stride(kernel: LoopKernel) -> int:
    """Accesses in innermost loops whose place is no affine function of each of their variables."""
    return sum(
        any(ix.stride(s.index, r.var) is None for r in loop.ranges)
        for loop in leaves(kernel.body)
        for s in loop.body
        if isinstance(s, Load | Store)
    )


def kernels(function: Callable[..., Any], inputs: list[Tensor], limits: Any) -> list[LoopKernel]:
    return [lowered.kernel for lowered in fusing.compiled(function, inputs, limits).kernels.values()]


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_at_places_with_strides(name: str) -> None:
    function, inputs = CASES[name]
    compiled = fusing.compiled(function, inputs, ALL)
    assert sum(without_stride(each.kernel) for each in compiled.kernels.values()) == 0
    assert len(compiled.kernels) == len(kernels(function, inputs, fusing.ROOM))
    exact = function(*[t.double() for t in inputs])
    for found, wanted in zip(compiled.run(*inputs), exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_only_where_it_is_asked_for_and_long_enough() -> None:
    for name in ("group norm", "group norm, channels last", "sums of parts"):
        assert sum(map(without_stride, kernels(*CASES[name], fusing.ROOM))) > 0, name
    assert sum(map(without_stride, kernels(*CASES["sums of parts"], replace(ALL, affine=7)))) > 0


def test_products_keep_their_loops() -> None:
    """Results of a product in the order of heads: a template knows what its ranges are."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).view(6, 3, 8).transpose(0, 1).contiguous()

    inputs = [torch.randn(6, 10), torch.randn(10, 24)]
    before, after = (kernels(function, inputs, limits) for limits in (fusing.ROOM, ALL))
    assert [each.body for each in before] == [each.body for each in after]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.permutations(range(4)), st.data())
def test_any_order_of_dimensions(sizes: list[int], order: list[int], data: st.DataObject) -> None:
    """Elementwise and summed: through a permutation and another shape, beside a number for each of some elements."""
    order = [d for d in order if d < len(sizes)]
    cut = data.draw(st.integers(1, len(sizes) - 1))

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        turned = x.permute(order)
        flat = turned.reshape(turned.shape[:cut].numel(), -1) * 2
        return flat + w[:, None], (flat.reshape(-1) * w.repeat_interleave(flat.shape[1])).view(flat.shape).sum(1), flat.sum(0)

    x = torch.randint(-5, 6, sizes).float()
    w = torch.arange(float(torch.Size([sizes[d] for d in order[:cut]]).numel()))
    for found, wanted in zip(fusing.compiled(function, [x, w], ALL).run(x, w), function(x, w), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("dims", [(), (0,), (2, 3), (0, 2, 3)], ids=str)
def test_one_kernel_of_vectors(dims: tuple[int, ...], last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for symbolic sizes as for numbers: no lane divides, and nothing is written between statistics and result."""
    use_kind("cpp_cpu")
    torch._dynamo.reset()
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 2, w, b))

    compiled = torch.compile(function, backend="cpp_cpu")
    w, b = torch.rand(32), torch.randn(32)
    shapes = [(3, 32, 9, 11), *([tuple(n + 2 * (d in dims) for d, n in enumerate((3, 32, 9, 11)))] if dims else [])]
    for shape in shapes:
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        for dim in dims:
            torch._dynamo.mark_dynamic(x, dim)
        found, exact = compiled(x, w, b), function(x.double(), w.double(), b.double())
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:  # with fixed sizes torch 2.14 announces other strides
            announced = function(fake.from_tensor(x), w, b)
        assert found.stride() in (exact.stride(), announced.stride())
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    (text,) = [path.read_text() for path in tmp_path.glob("*/10_emitted/*")]
    assert "per_lane" not in text
    assert "%" not in text


@pytest.mark.parametrize("function", [normed, instance_normed, batch_normed])
@pytest.mark.parametrize("dims", [(), (0,), (2, 3)], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
def test_gradients(function: Callable[..., Tensor], dims: tuple[int, ...], last: bool) -> None:
    use_kind("cpp_cpu")
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="cpp_cpu")
    for more in (0, 2)[: 1 + bool(dims)]:
        shape = [n + more * (d in dims) for d, n in enumerate((3, 32, 9, 11))]
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        for dim in dims:
            torch._dynamo.mark_dynamic(x, dim)
        inputs = [t.requires_grad_() for t in (x, torch.rand(32) + 0.5, torch.randn(32))]
        wide = [t.detach().double().requires_grad_() for t in inputs]
        with torch.no_grad():
            x64, w64, b64 = wide
            size = function(x64, w64, b64) + function(x64, -w64, -b64)  # of what is rectified
        # Rounding decides on which side of zero the smallest are, and so whether their gradients pass.
        g = torch.randn(shape).masked_fill(size < 1e-5, 0.0)
        wanted = torch.autograd.grad(function(*wide), wide, g.double())
        for found, exact in zip(torch.autograd.grad(compiled(*inputs), inputs, g), wanted, strict=True):
            assert (found.double() - exact).norm() <= 2e-6 * exact.norm() + 1e-5


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_columns_of_merged_dimensions_are_read_along_memory(
    dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    compiled = torch.compile(sums_of_heads, backend="cpp_cpu", dynamic=dynamic)
    for sizes in ((4, 6, 197, 64), (1, 2, 300, 32), (3, 5, 17, 129), (2, 2, 1, 16)):
        x = torch.randn(sizes)
        for found, wanted in zip(compiled(x), sums_of_heads(x.double()), strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    texts = [path.read_text() for path in tmp_path.glob("*/10_emitted/*")]
    assert texts
    assert not any("per_lane" in text for text in texts)


@pytest.mark.parametrize("length", [3, 8, 17, 49, 100])
def test_sums_of_many_short_rows(length: int) -> None:
    """Float32 within a block, float64 across: as accurate as of one long row."""
    use_kind("cpp_cpu")
    torch._dynamo.reset()
    x = torch.rand(4, 20_001, length * 2)[..., :length]
    compiled = torch.compile(lambda x: (x.sum((1, 2)), x.amax((1, 2)), x.sum()), backend="cpp_cpu", dynamic=False)
    sums, largest, total = compiled(x)
    exact = x.double().sum((1, 2))
    assert ((sums - exact).abs() <= 4 * torch.finfo(torch.float32).eps * exact).all()
    assert (total - exact.sum()).abs() <= 4 * torch.finfo(torch.float32).eps * exact.sum()
    assert torch.equal(largest, x.amax((1, 2)))
