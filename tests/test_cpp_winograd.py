"""Minimal filtering on cpp_cpu: which contractions are windows of 3x3, and their results against float64, shape by shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_backends.cpp_cpu import winograd
from reference_backends.cpp_cpu.emitter import CppEmitter
from tests.lowered import call
from tests.test_cpp_contraction import launch
from vendor_sdk.ir.contraction import match
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Sample

aten = torch.ops.aten
ONE: list[Any] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
"""Stride, padding, dilation, transposed, output padding, groups."""


def within_bounds(name: str, result: Any, *args: Any) -> None:
    """``result`` of prim ``name`` meets the bound of its row."""
    row = OPSET[name]
    sample = Sample(args)
    verdict = violations(row.bound, row, sample, result, reference(row, sample))
    assert verdict.ok, verdict.message


def forward(x: torch.Tensor, weight: torch.Tensor, rest: list[Any], *, dynamic: bool = False) -> torch.Tensor:
    bias = torch.randn(weight.shape[1] * rest[-1] if rest[3] else weight.shape[0])
    (result,) = launch(call(aten.convolution.default, (x, weight, bias, *rest), dynamic=dynamic))
    within_bounds("convolution", result, x, weight, bias, *rest)
    return result


# What is found


def found(target: Any, *args: Any, rule: Any = winograd.windows) -> list[winograd.Windows | None]:
    contractions = [match(nest) for nest in call(target, args).lowered.kernel.body]
    return [rule(c) or rule(c.exchanged()) for c in contractions if c is not None]


def test_a_convolution_and_the_gradient_of_its_input_are_windows() -> None:
    x, weight, gradient = torch.empty(2, 8, 9, 7), torch.empty(6, 8, 3, 3), torch.empty(2, 6, 9, 7)
    (windows,) = found(aten.convolution.default, x, weight, None, *ONE)
    assert windows is not None
    assert (windows.height.value, windows.width.value, windows.down, windows.across) == (9, 7, True, True)
    assert [r.size.value for r in windows.elements.free] == [2, 11, 9]
    windows, to_weight = found(aten.convolution_backward.default, gradient, x, weight, None, *ONE, [True, True, False])
    assert windows is not None
    assert (windows.height.value, windows.width.value, windows.down, windows.across) == (9, 7, False, False)
    assert to_weight is None


def test_the_gradient_of_the_weights_has_its_windows_in_the_sum() -> None:
    x, weight, gradient = torch.empty(2, 8, 9, 7), torch.empty(6, 8, 3, 3), torch.empty(2, 6, 9, 7)
    args = (gradient, x, weight, None, *ONE, [True, True, False])
    to_input, overlaps = found(aten.convolution_backward.default, *args, rule=winograd.overlaps)
    assert to_input is None
    assert overlaps is not None
    assert (overlaps.height.value, overlaps.width.value) == (9, 7)
    assert [r.size.value for r in overlaps.elements.free] == [8]
    assert [r.size.value for r in overlaps.elements.reduced] == [2, 11, 9]


@pytest.mark.parametrize(
    ("window", "rest"),
    [
        ((3, 3), [[2, 2], *ONE[1:]]),
        ((3, 3), [[1, 1], [2, 2], [2, 2], *ONE[3:]]),
        ((9, 8), [[1, 1], [4, 4], *ONE[2:]]),
        ((1, 1), [[1, 1], [0, 0], *ONE[2:]]),
    ],
    ids=["stride", "dilation", "9x8", "1x1"],
)
def test_other_convolutions_are_not(window: tuple[int, int], rest: list[Any]) -> None:
    assert found(aten.convolution.default, torch.empty(2, 8, 9, 9), torch.empty(6, 8, *window), None, *rest) == [None]


@pytest.mark.parametrize("window", [(3, 2), (5, 5)], ids=str)
def test_windows_of_other_sizes_slide_and_are_not_filtered(window: tuple[int, int]) -> None:
    x, weight = torch.empty(2, 8, 9, 9), torch.empty(6, 8, *window)
    (windows,) = found(aten.convolution.default, x, weight, None, *ONE)
    assert windows is not None
    assert (windows.tall, windows.wide) == window
    assert not winograd.filters(windows)
    gradient = torch.empty_like(aten.convolution(x, weight, None, *ONE))
    args = (gradient, x, weight, None, *ONE, [False, True, False])
    assert found(aten.convolution_backward.default, *args) == [None]
    assert found(aten.convolution_backward.default, *args, rule=winograd.overlaps) == [None]


def test_matrix_products_and_float64_are_not() -> None:
    assert found(aten.mm.default, torch.empty(9, 9), torch.empty(9, 9)) == [None]
    x, weight = torch.empty(2, 8, 9, 9, dtype=torch.float64), torch.empty(6, 8, 3, 3, dtype=torch.float64)
    assert found(aten.convolution.default, x, weight, None, *ONE) == [None]


# Results

SIZES = {
    "even": (2, 32, 32, 14, 16),
    "odd": (3, 33, 37, 13, 15),
    "small": (2, 48, 20, 5, 3),
    "lines longer than a panel": (1, 32, 30, 5, 301),
    "many panels, several rounds": (2, 96, 32, 60, 50),
    "long sums": (1, 300, 40, 8, 6),
    "one image, one line of tiles": (1, 64, 64, 2, 40),
}


@pytest.mark.parametrize("padding", [[1, 1], [0, 0], [0, 2]], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_convolution(size: str, padding: list[int]) -> None:
    images, channels, outputs, height, width = SIZES[size]
    x = torch.randn(images, channels, height + 2 - 2 * padding[0], width + 2 - 2 * padding[1])
    forward(x, torch.randn(outputs, channels, 3, 3), [[1, 1], padding, *ONE[2:]])


@pytest.mark.parametrize("size", ["odd", "lines longer than a panel"])
def test_sizes_known_at_run_time(size: str) -> None:
    images, channels, outputs, height, width = SIZES[size]
    forward(torch.randn(images, channels, height, width), torch.randn(outputs, channels, 3, 3), ONE, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_to_compute(dynamic: bool) -> None:
    one = call(aten.convolution.default, (torch.randn(0, 32, 8, 8), torch.randn(32, 32, 3, 3), None, *ONE), dynamic=dynamic)
    (result,) = launch(one)
    assert result.shape == (0, 32, 8, 8)


def test_other_orders_of_memory() -> None:
    weight = torch.randn(40, 36, 3, 3)
    expected = forward(torch.randn(2, 36, 12, 11).to(memory_format=torch.channels_last), weight, ONE)
    assert expected.shape == (2, 40, 12, 11)
    forward(torch.randn(2, 36, 11, 12).transpose(2, 3), weight, ONE)
    forward(torch.randn(1, 36, 11, 12).expand(2, -1, -1, -1), weight.transpose(2, 3), ONE)


def test_groups_and_transposed() -> None:
    forward(torch.randn(2, 64, 10, 9), torch.randn(70, 32, 3, 3), [*ONE[:-1], 2])
    forward(torch.randn(2, 32, 10, 9), torch.randn(32, 40, 3, 3), [*ONE[:3], True, [0, 0], 1])


@pytest.mark.parametrize("size", SIZES)
def test_gradients(size: str) -> None:
    images, channels, outputs, height, width = SIZES[size]
    x, weight = torch.randn(images, channels, height, width), torch.randn(outputs, channels, 3, 3)
    args = (torch.randn(images, outputs, height, width), x, weight, None, *ONE, [True, True, False])
    within_bounds("convolution_backward", (*launch(call(aten.convolution_backward.default, args)), None), *args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype: torch.dtype) -> None:
    forward(torch.randn(2, 32, 9, 10).to(dtype), torch.randn(24, 32, 3, 3).to(dtype), ONE)


def test_gradients_of_other_orders_of_memory_and_groups() -> None:
    x, weight = torch.randn(2, 64, 11, 10).to(memory_format=torch.channels_last), torch.randn(40, 32, 3, 3)
    gradient = torch.randn(2, 40, 11, 10).to(memory_format=torch.channels_last)
    args = (gradient, x, weight, None, *ONE[:-1], 2, [True, True, False])
    within_bounds("convolution_backward", (*launch(call(aten.convolution_backward.default, args)), None), *args)


def test_gradients_that_are_not_finite() -> None:
    torch.manual_seed(0)  # Sums in which the two large numbers all but cancel depend on their order.
    x, weight, gradient = torch.rand(2, 32, 9, 9) + 0.5, torch.rand(40, 32, 3, 3), torch.rand(2, 40, 9, 9) + 0.5
    gradient[0, 3, 4, 4], gradient[1, 5, 4, 6], gradient[0, 7, 2, 2], gradient[0, 7, 2, 3] = torch.nan, torch.inf, 1e38, -1e38
    args = (gradient, x, weight, None, *ONE, [False, True, False])
    (result,) = launch(call(aten.convolution_backward.default, args))
    expected = aten.convolution_backward.default(*args)[1]
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_infinities_and_nan_stay_in_their_windows() -> None:
    x, weight = torch.rand(2, 32, 12, 12) + 0.5, torch.rand(32, 32, 3, 3) + 0.5
    x[0, 3, 5, 5], x[0, 4, 5, 6], x[1, 0, 0, 0], x[1, 7, 9, 2] = torch.inf, -torch.inf, torch.inf, torch.nan
    (result,) = launch(call(aten.convolution.default, (x, weight, None, *ONE)))
    expected = aten.convolution.default(x, weight, None, *ONE)
    assert bool(expected.isinf().any())
    assert bool(expected.isnan().any())
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_large_numbers_do_not_overflow_on_the_way() -> None:
    x, weight = torch.full((1, 32, 8, 8), 3e38), torch.full((32, 32, 3, 3), 1e-3)
    x[:, ::2] *= -1
    x[:, 0] = 1e38
    forward(x, weight, ONE)


def test_a_large_neighbour_does_not_disturb() -> None:
    x = torch.rand(1, 32, 9, 9)
    x[:, :, 4, 4] = 1e20
    weight = torch.rand(32, 32, 3, 3)
    result = forward(x, weight, ONE)
    outside = torch.ones(9, 9, dtype=torch.bool)
    outside[3:6, 3:6] = False
    exact = aten.convolution.default(x.double(), weight.double(), None, *ONE)
    assert bool((result.double() - exact)[:, :, outside].abs().max() < 10)


def test_zeros_give_zeros() -> None:
    (result,) = launch(call(aten.convolution.default, (torch.zeros(1, 32, 9, 9), torch.randn(32, 32, 3, 3), None, *ONE)))
    assert bool((result == 0).all())


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, weight, gradient = torch.randn(2, 32, 30, 30), torch.randn(50, 32, 3, 3), torch.randn(2, 50, 30, 30)
    forwards = call(aten.convolution.default, (x, weight, None, *ONE))
    backwards = call(aten.convolution_backward.default, (gradient, x, weight, None, *ONE, [True, True, False]))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([*launch(forwards), *launch(backwards)])
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


def test_the_template_is_used() -> None:
    one = call(aten.convolution.default, (torch.empty(2, 32, 8, 8), torch.empty(32, 32, 3, 3), None, *ONE))
    assert "convolution(product" in CppEmitter().emit(one.lowered.kernel)
    args = (torch.empty(2, 32, 8, 8), torch.empty(2, 32, 8, 8), torch.empty(32, 32, 3, 3), None, *ONE, [False, True, False])
    text = CppEmitter().emit(call(aten.convolution_backward.default, args).lowered.kernel)
    assert "weight_gradient(product" in text


# Memory


@pytest.mark.parametrize("nbytes", [64, 1 << 19, 1 << 20, 3 << 20, 16 << 20])
@pytest.mark.parametrize("size", [(2, 128, 96, 28, 28), (4, 96, 192, 14, 14)], ids=str)
def test_results_do_not_depend_on_what_is_spare(size: tuple[int, ...], nbytes: int) -> None:
    images, channels, outputs, height, width = size
    x, weight = torch.randn(images, channels, height, width), torch.randn(outputs, channels, 3, 3)
    gradient = torch.randn(images, outputs, height, width)
    step = call(aten.convolution_backward.default, (gradient, x, weight, None, *ONE, [True, True, False]))
    memory = torch.full((nbytes + 128,), 77, dtype=torch.uint8)
    before = -memory.data_ptr() % 64
    results = launch(step, memory[before : before + nbytes])
    assert memory[:before].eq(77).all()
    assert memory[before + nbytes :].eq(77).all()
    for found, expected in zip(results, launch(step), strict=True):
        assert torch.equal(found, expected)


def release() -> int:
    """Frees what kernels keep; how much that was."""
    return CppEmitter().release()


@pytest.mark.parametrize("nbytes", [64, 376_832, 802_816])
def test_little_is_taken_beside_what_is_spare(nbytes: int) -> None:
    """Transformed elements of one panel: what threads have of their own lies on their stacks."""
    gradient, x, weight = torch.randn(4, 256, 14, 14), torch.randn(4, 256, 14, 14), torch.randn(256, 256, 3, 3)
    step = call(aten.convolution_backward.default, (gradient, x, weight, None, *ONE, [True, True, False]))
    memory = torch.empty(nbytes + 64, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64
    release()
    results = launch(step, memory[begin : begin + nbytes])
    assert release() <= 1.02 * (1 << 20)
    wide = torch.ops.aten.convolution_backward(gradient.double(), x.double(), weight.double(), None, *ONE, [True, True, False])
    for found, expected in zip(results, wide, strict=False):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)


def test_libraries_keep_one_block() -> None:
    """A launch takes the block that another library's left, if it is large enough."""
    filters = call(aten.convolution.default, (torch.randn(2, 96, 28, 28), torch.randn(64, 96, 3, 3), None, *ONE))
    product = call(aten.mm.default, (torch.randn(300, 3000).half(), torch.randn(3000, 200).half()))
    alone = []
    for step in (filters, product):
        release()
        launch(step)
        alone.append(release())
    assert min(alone) > 0
    for steps in ((filters, product), (product, filters)):
        for step in steps:
            launch(step)
        assert release() == max(alone)
