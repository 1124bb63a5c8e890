"""Convolutions of few channels on cpp_cpu, whose columns are their input itself, so many elements further on (``slides.h``)."""

from __future__ import annotations

import pytest
import torch

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
