"""Convolutions of few channels on cpp_cpu, whose columns are their input itself, so many elements further on (``slides.h``)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lowered import call
from tests.test_cpp_contraction import launch
from tests.test_cpp_winograd import ONE

aten = torch.ops.aten
Tensor = torch.Tensor
# images, groups, channels and results of each, height, width, padding
ONE_IMAGE = (1, 1, 3, 32, 60, 61, 1)
SHAPES = [
    (2, 8, 16, 16, 28, 28, 1),
    (1, 4, 1, 5, 9, 40, 1),
    (3, 2, 3, 2, 1, 9, 1),
    (2, 3, 7, 13, 33, 17, 0),
    ONE_IMAGE,
    (4, 1, 2, 1, 5, 130, 2),
    (1, 2, 40, 9, 6, 11, 1),  # more steps of the sum than are summed in one go
    (2, 16, 4, 4, 7, 3, 1),
]


def operands(shape: tuple[int, ...], last: bool) -> tuple[Tensor, Tensor]:
    images, groups, channels, results, height, width, _ = shape
    x, weight = torch.randn(images, groups * channels, height, width), torch.randn(groups * results, channels, 3, 3)
    form = torch.channels_last if last else torch.contiguous_format
    return x.contiguous(memory_format=form), weight.contiguous(memory_format=form)


def rest(shape: tuple[int, ...]) -> list[object]:
    return [[1, 1], [shape[-1]] * 2, [1, 1], False, [0, 0], shape[1]]


def within(found: Tensor, exact: Tensor, sizes: Tensor, terms: int) -> None:
    """Each sum is as near to the exact one as so many roundings leave it, given the sum of its terms' sizes."""
    assert found.shape == exact.shape
    assert ((found.double() - exact).abs() <= (terms + 2) * 2**-24 * sizes).all()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape: tuple[int, ...], last: bool, dynamic: bool) -> None:
    x, weight = operands(shape, last)
    bias = torch.randn(weight.shape[0])
    (found,) = launch(call(aten.convolution.default, (x, weight, bias, *rest(shape)), dynamic=dynamic))
    wide = [each.double() for each in (x, weight, bias)]
    exact, sizes = (aten.convolution(*each, *rest(shape)) for each in (wide, [each.abs() for each in wide]))
    within(found, exact, sizes, 9 * shape[2] + 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_subtract_their_offsets(shape: tuple[int, ...]) -> None:
    x, weight = operands(shape, False)
    gradient = torch.randn_like(aten.convolution(x, weight, None, *rest(shape)))
    more = None, *rest(shape), [True, True, False]
    found = launch(call(aten.convolution_backward.default, (gradient, x, weight, *more)))
    wide = [each.double() for each in (gradient, x, weight)]
    exact, sizes = (aten.convolution_backward(*each, *more) for each in (wide, [each.abs() for each in wide]))
    within(found[0], exact[0], sizes[0], 9 * shape[3])
    within(found[1], exact[1], sizes[1], len(gradient) * gradient[0, 0].numel())


def test_threads_change_nothing() -> None:
    """A single image is cut into bands of lines, by how many threads there are."""
    x, weight = operands(ONE_IMAGE, False)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3, 2):
            torch.set_num_threads(threads)
            results += launch(call(aten.convolution.default, (x, weight, None, *rest(ONE_IMAGE))))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results)


def test_what_lies_beside_a_window_does_not_disturb_it() -> None:
    """Positions are counted across the edges: what is computed there meets elements of the next line."""
    x, weight = torch.randn(2, 8, 6, 10), torch.randn(8, 4, 3, 3)
    arguments = (None, *ONE[:-1], 2)
    x[0, 1, 2, 9], x[1, 6, 0, 0] = float("inf"), float("nan")
    (found,) = launch(call(aten.convolution.default, (x, weight, *arguments)))
    touched = aten.convolution((~x.isfinite()).float(), torch.ones_like(weight), *arguments) > 0
    assert torch.equal(~found.isfinite(), touched)


def test_no_images() -> None:
    arguments = (None, *ONE[:-1], 2)
    (found,) = launch(call(aten.convolution.default, (torch.randn(0, 4, 5, 5), torch.randn(4, 2, 3, 3), *arguments)))
    assert found.shape == (0, 4, 5, 5)


# window, stride of what is transposed, channels and results, groups
WINDOWS = [((2, 2), 1, 5, 16, 2), ((5, 4), 1, 3, 20, 1), ((4, 4), 2, 16, 32, 1), ((3, 3), 2, 24, 14, 2), ((6, 6), 3, 8, 16, 1)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_windows_of_other_sizes_and_results_with_channels_last(
    case: tuple[tuple[int, int], int, int, int, int], form: torch.memory_format, dynamic: bool
) -> None:
    """With a stride, each phase of a transposed convolution has windows that move by one element."""
    size, stride, channels, results, groups = case

    def function(x: Tensor, w: Tensor) -> Tensor:
        if stride > 1:
            return torch.relu(F.conv_transpose2d(x, w, stride=stride, padding=1, groups=groups))
        return torch.relu(F.conv2d(x, w, padding=1, groups=groups))

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="cpp_cpu", dynamic=dynamic)
    shape = (channels * groups, results) if stride > 1 else (results * groups, channels)
    shapes = [(2, 9, 31), (1, 33, 7), (3, 6, 5)]
    one = (WINDOWS.index(case) + (form == torch.channels_last)) % len(shapes)
    for images, height, width in shapes if dynamic else shapes[one : one + 1]:
        x = torch.randn(images, channels * groups, height, width).contiguous(memory_format=form).requires_grad_()
        w = torch.randn(*shape, *size).contiguous(memory_format=form).requires_grad_()
        exact = [each.detach().double().requires_grad_() for each in (x, w)]
        found, wanted = compiled(x, w), function(*exact)
        given = torch.randn_like(found)
        assert found.stride() == function(x, w).stride()
        found_all = [found, *torch.autograd.grad(found, (x, w), given)]
        for one, other in zip(found_all, [wanted, *torch.autograd.grad(wanted, exact, given.double())], strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4 * max(1.0, other.abs().max().item()))


def test_nothing_beside_a_window_disturbs_its_result() -> None:
    x, weight = operands((1, 2, 16, 16, 9, 11, 1), True)
    x[0, 3, 4, 5], x[0, 20, 0, 0] = float("nan"), float("inf")
    compiled = torch.compile(lambda x, w: F.conv2d(x, w, padding=1, groups=2), backend="cpp_cpu")
    found, wanted = compiled(x, weight), F.conv2d(x.contiguous(), weight.contiguous(), padding=1, groups=2)
    assert torch.equal(found.isfinite(), wanted.isfinite())
    assert not bool(found[:, :16, 3:6, 4:7].isfinite().any())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
