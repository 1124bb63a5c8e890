"""Reductions over windows, written out: the same numbers, no loops inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests import fusing
from vendor_sdk.ir.loop import Load, Local, LoopKernel, Reduce, walk

Tensor = torch.Tensor
WRITTEN = replace(fusing.ROOM, window=25)


def depthwise(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=1, groups=len(w))


KERNEL = torch.randn(4, 1, 3, 3)
CASES: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "of each channel": (depthwise, [torch.randn(2, 4, 7, 9), KERNEL]),
    "of each channel, no padding": (lambda x, w: F.conv2d(x, w, groups=4), [torch.randn(2, 4, 7, 9), KERNEL]),
    "of each channel, dilated": (
        lambda x, w: F.conv2d(x, w, padding=2, dilation=2, groups=4), [torch.randn(1, 4, 8, 5), KERNEL],
    ),
    "means": (lambda x: F.avg_pool2d(x, 3, 1, 1), [torch.randn(2, 4, 7, 9)]),
    "means of what is there": (
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), [torch.randn(2, 4, 7, 9)],
    ),
}  # fmt: skip


def kernels(name: str, window: int) -> list[LoopKernel]:
    function, inputs = CASES[name]
    found = fusing.compiled(function, inputs, replace(fusing.ROOM, window=window)).kernels.values()
    return [lowered.kernel for lowered in found]


def reductions(found: list[LoopKernel]) -> int:
    return sum(isinstance(s, Reduce) for kernel in found for s in walk(kernel.body))


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_without_a_loop(name: str) -> None:
    function, inputs = CASES[name]
    compiled = fusing.compiled(function, inputs, WRITTEN)
    assert reductions([each.kernel for each in compiled.kernels.values()]) == 0
    wanted = function(*(t.double() for t in inputs))
    (found,) = compiled.run(*inputs)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_only_small_ones_where_that_is_asked_for() -> None:
    assert reductions(kernels("of each channel", 0)) == reductions(kernels("of each channel", 8)) == 1


def test_products_keep_their_loops() -> None:
    inputs = [torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)]
    found = fusing.compiled(lambda x, w: F.conv2d(x, w), inputs, replace(fusing.ROOM, window=64)).kernels.values()
    assert reductions([each.kernel for each in found]) == 1


def test_conditions_that_always_hold_go() -> None:
    """Of the nine elements of a window with one element of padding, the one in the middle is never outside."""
    (kernel,) = kernels("of each channel", 25)
    masks = [s.mask for s in walk(kernel.body) if isinstance(s, Load)]
    assert len(masks) == 18  # nine weights among them
    assert masks.count(None) == 10
    assert len(set(masks)) == 9


def test_sums_of_negative_zeros() -> None:
    inputs = [torch.full((1, 2, 4, 4), -0.0), torch.ones(2, 1, 3, 3)]
    (found,) = fusing.compiled(lambda x, w: F.conv2d(x, w, groups=2), inputs, WRITTEN).run(*inputs)
    assert not bool(found.signbit().any())


MODELS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...]]] = {
    "3x3": (lambda x, w: F.conv2d(x, w, padding=1, groups=len(w)), (3, 3)),
    "5x5, 2": (lambda x, w: F.conv2d(x, w, stride=2, padding=2, groups=len(w)), (5, 5)),
    "7x7": (lambda x, w: F.conv2d(x, w, padding=3, groups=len(w)), (7, 7)),
    "1d": (lambda x, w: F.conv1d(x.flatten(2), w.flatten(2), padding=4, groups=len(w)), (3, 3)),
}


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_convolutions_of_each_channel_and_their_gradients(
    name: str, dynamic: bool, layout: torch.memory_format, backend: str
) -> None:
    function, size = MODELS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    shapes = [(2, 8, 9, 17), (1, 8, 33, 20), (3, 8, 8, 8)]
    one = (list(MODELS).index(name) + (layout == torch.channels_last)) % len(shapes)
    for shape in shapes if dynamic else shapes[one : one + 1]:
        x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
        w = torch.randn(8, 1, *size, requires_grad=True)
        exact = [t.detach().double().requires_grad_() for t in (x, w)]
        wanted, found = function(*exact), compiled(x, w)
        given = torch.randn(wanted.shape)
        results = [found, *torch.autograd.grad(found, (x, w), given)]
        expected = [wanted, *torch.autograd.grad(wanted, exact, given.double())]
        assert found.stride() == wanted.stride()
        for one, other in zip(results, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
def test_what_ends_a_convolution_of_each_channel_is_one_kernel_of_vectors(
    backend: str, layout: torch.memory_format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MobileNet has it: normalised, and cut off at six."""
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(48, 48, 3, padding=1, groups=48, bias=False), torch.nn.BatchNorm2d(48), torch.nn.ReLU6()
    )
    model.eval().to(memory_format=layout)
    with torch.no_grad():
        for shape in ((2, 48, 20, 30), (2, 48, 20, 30)):
            x = torch.randn(shape).contiguous(memory_format=layout)
            found, wanted = torch.compile(model, backend=backend)(x), model(x)
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    (path,) = tmp_path.glob("*/10_emitted/*")
    text = path.read_text()
    assert "[lane]" not in text
    # Weights of neighbouring channels lie apart: they are loaded before all loops over positions.
    before, inside = text.split("for (int64_t x2")[:2]
    assert "load_at(" not in inside
    assert "per_lane" not in text
    assert ("load_at(" in before) == (layout == torch.channels_last)


def test_weights_of_channels_that_are_neighbours_are_copied_side_by_side() -> None:
    """The windows stay loops, in which a weight is read once for several results."""
    inputs = [torch.randn(2, 7, 9, 8), torch.randn(8, 1, 3, 3)]

    def function(x: Tensor, w: Tensor) -> Tensor:
        return depthwise(x.permute(0, 3, 1, 2), w).permute(0, 2, 3, 1).clone()

    compiled = fusing.compiled(function, inputs, WRITTEN)
    (kernel,) = (each.kernel for each in compiled.kernels.values())
    assert reductions([kernel]) == 1
    assert sum(isinstance(s, Local) for s in walk(kernel.body)) == 1
    (found,) = compiled.run(*inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-5, atol=1e-5)
