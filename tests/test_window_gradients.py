"""Gradients of windows, and windows of many elements: totals in one pass, results filled in turns, images with a halo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests import fusing
from tests.threads import by_threads
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Load, Local, LoopKernel, Nest, Reduce, Store, walk

Tensor = torch.Tensor
ALL = replace(fusing.ROOM, window=49, interleaves=True)


def gradients(stride: list[int], padding: list[int], dilation: list[int], mask: list[bool]) -> Callable[..., list[Tensor]]:
    """Of the input, the weight and the bias of a convolution of each channel."""

    def function(g: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
        channels = len(w)
        found = torch.ops.aten.convolution_backward(
            g, x, w, [channels] if mask[2] else None, stride, padding, dilation, False, [0] * len(stride), channels, mask
        )
        return [each for each, asked in zip(found, mask, strict=True) if asked]

    return function


def operands(x: tuple[int, ...], w: tuple[int, ...], **options: int) -> list[Tensor]:
    source, weight = torch.randn(x), torch.randn(w)
    convolve = F.conv2d if len(x) == 4 else F.conv1d
    return [torch.randn(convolve(source, weight, groups=w[0], **options).shape), source, weight]


WEIGHTS: dict[str, tuple[Callable[..., list[Tensor]], list[Tensor], int]] = {
    "3x3": (
        gradients([1, 1], [1, 1], [1, 1], [False, True, False]), operands((2, 4, 7, 9), (4, 1, 3, 3), padding=1), 9,
    ),
    "3x3, stride 2": (
        gradients([2, 2], [1, 1], [1, 1], [False, True, False]), operands((2, 4, 12, 15), (4, 1, 3, 3), padding=1, stride=2), 9,
    ),
    "3x3, dilated": (
        gradients([1, 1], [2, 2], [2, 2], [False, True, False]), operands((2, 4, 8, 9), (4, 1, 3, 3), padding=2, dilation=2), 9,
    ),
    "5x5": (
        gradients([1, 1], [2, 2], [1, 1], [False, True, False]), operands((2, 4, 7, 9), (4, 1, 5, 5), padding=2), 5,
    ),
    "of a sequence": (
        gradients([1], [2], [1], [False, True, False]), operands((2, 4, 30), (4, 1, 4), padding=2), 4,
    ),
}  # fmt: skip


def kernels(function: Callable[..., object], inputs: list[Tensor]) -> list[LoopKernel]:
    return [lowered.kernel for lowered in fusing.compiled(function, inputs, ALL).kernels.values()]


def agree(function: Callable[..., object], inputs: list[Tensor]) -> None:
    found = fusing.compiled(function, inputs, ALL).run(*inputs)
    wanted = function(*(t.double() for t in inputs))
    for one, other in zip(found, [wanted] if isinstance(wanted, Tensor) else wanted, strict=True):  # type: ignore[call-overload]
        bound = 1e-2 if inputs[0].dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(one.double(), other, rtol=bound, atol=10 * bound)


@pytest.mark.parametrize("name", WEIGHTS)
def test_totals_of_a_window_are_summed_in_one_pass(name: str) -> None:
    function, inputs, together = WEIGHTS[name]
    agree(function, inputs)
    (kernel,) = kernels(function, inputs)
    (total,) = (s for s in walk(kernel.body) if isinstance(s, Reduce))
    assert len(total.accumulators) == together
    gradient = [s for s in total.body if isinstance(s, Load) and not s.mask and s.param == kernel.params[0].name]
    assert len(gradient) == 1


def test_products_and_rows_of_a_matrix_keep_their_own_totals() -> None:
    """Of a matrix, rows share the vector and nothing else, and a template multiplies matrices."""
    for function, inputs in (
        (torch.mv, [torch.randn(6, 40), torch.randn(40)]),
        (lambda a, b: a @ b, [torch.randn(5, 40), torch.randn(40, 3)]),
        (lambda a, b: (a[:, :, None] * b[:, None]).sum(0), [torch.randn(40, 3), torch.randn(40, 4)]),
    ):
        for kernel in kernels(function, inputs):
            assert all(len(s.accumulators) == 1 for s in walk(kernel.body) if isinstance(s, Reduce))
        agree(function, inputs)


@pytest.mark.parametrize(("height", "width", "nests"), [(8, 12, 1), (7, 12, 2), (7, 9, 4)])
def test_results_that_are_filled_in_turns_are_one_nest(height: int, width: int, nests: int) -> None:
    """The gradient of what a window of stride two slides over: one nest where even and odd places are as many."""
    function = gradients([2, 2], [1, 1], [1, 1], [True, False, False])
    inputs = operands((2, 4, height, width), (4, 1, 3, 3), padding=1, stride=2)
    agree(function, inputs)
    (kernel,) = kernels(function, inputs)
    assert len(kernel.body) == nests
    assert sum(isinstance(s, Store) for s in walk(kernel.body)) == 4
    assert not any(isinstance(s, Reduce) for s in walk(kernel.body))
    if nests == 1:  # four gradients that three windows each way share
        assert sum(isinstance(s, Load) and s.param != kernel.params[0].name for s in walk(kernel.body)) == 4


@pytest.mark.parametrize(
    ("shape", "window", "padding", "ceil", "nests"),
    [
        ((2, 3, 8, 12), 2, 0, False, 1),
        ((2, 3, 7, 12), 2, 0, True, 2),
        ((1, 2, 9, 11), 3, 1, False, 4),
        ((1, 2, 9, 11), 3, 1, True, 4),
        ((2, 3, 8, 6), 2, 1, False, 1),
        ((2, 3, 6, 8, 10), 2, 0, False, 1),
    ],
)
@pytest.mark.parametrize("counts_padding", [False, True])
def test_gradients_of_averages_two_steps_apart_are_written_out(
    shape: tuple[int, ...], window: int, padding: int, ceil: bool, nests: int, counts_padding: bool
) -> None:
    """Neighbours read ``(x - k) // 2``: by two, they read what lies side by side."""
    average = F.avg_pool3d if len(shape) == 5 else F.avg_pool2d
    given = torch.randn(average(torch.randn(shape), window, 2, padding, ceil, counts_padding).shape)
    options = ([window], [2], [padding], ceil, counts_padding, None)
    backward = torch.ops.aten.avg_pool3d_backward if len(shape) == 5 else torch.ops.aten.avg_pool2d_backward
    inputs = [given, torch.randn(shape)]

    def function(g: Tensor, x: Tensor) -> Tensor:
        return backward(g, x, *options)  # type: ignore[no-any-return]

    found = fusing.compiled(function, inputs, replace(ALL, copies=8))
    torch.testing.assert_close(found.run(*inputs)[0].double(), function(*(t.double() for t in inputs)))
    ((nest, *rest),) = (lowered.kernel.body for lowered in found.kernels.values())
    assert len(rest) + 1 == nests
    assert not any(isinstance(s, Reduce) for s in walk((nest, *rest)))
    loads = [s for s in walk(nest.body) if isinstance(s, Load)]
    assert all(ix.stride(s.index, nest.ranges[-1].var) == 1 for s in loads)


BIG: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "7x7": (lambda x, w: F.conv2d(x, w, padding=3, groups=3), [torch.randn(2, 3, 9, 12), torch.randn(3, 1, 7, 7)]),
    "7x7, stride 2": (
        lambda x, w: F.conv2d(x, w, padding=3, stride=2, groups=3), [torch.randn(2, 3, 9, 12), torch.randn(3, 1, 7, 7)],
    ),
    "7x7, stride 2, padded on one side": (
        lambda x, w: F.conv2d(F.pad(x, (5, 0, 5, 0)), w, stride=2, groups=3),
        [torch.randn(2, 3, 8, 12), torch.randn(3, 1, 7, 7)],
    ),
    "7x7, dilated": (
        lambda x, w: F.conv2d(x, w, padding=6, dilation=2, groups=3), [torch.randn(2, 3, 9, 12), torch.randn(3, 1, 7, 7)],
    ),
    "7x7, wide padding": (
        lambda x, w: F.conv2d(x, w, padding=5, groups=3), [torch.randn(2, 3, 4, 5), torch.randn(3, 1, 7, 7)],
    ),
    "behind an activation": (
        lambda x, w: F.conv2d(F.gelu(x), w, padding=3, groups=3), [torch.randn(2, 3, 9, 12), torch.randn(3, 1, 7, 7)],
    ),
    "of halves": (
        lambda x, w: F.conv2d(x, w, padding=3, groups=3),
        [torch.randn(2, 3, 9, 12, dtype=torch.bfloat16), torch.randn(3, 1, 7, 7, dtype=torch.bfloat16)],
    ),
    "of a volume": (
        lambda x, w: F.conv3d(x, w, padding=2, dilation=2, groups=2), [torch.randn(1, 2, 5, 6, 5), torch.randn(2, 1, 3, 3, 3)],
    ),
    "behind a scale and a shift of each channel": (
        lambda x, w, a, b: F.conv2d(F.relu(x * a[:, None, None] + b[:, None, None]), w, padding=3, groups=3),
        [torch.randn(2, 3, 9, 12), torch.randn(3, 1, 7, 7), torch.randn(3), torch.randn(3)],
    ),
    "with a bias and an activation": (
        lambda x, w, b: F.silu(F.conv2d(x, w, b, padding=3, groups=3)),
        [torch.randn(2, 3, 9, 12), torch.randn(3, 1, 7, 7), torch.randn(3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BIG)
def test_big_windows_slide_over_a_copy_with_a_halo(name: str) -> None:
    function, inputs = BIG[name]
    agree(function, inputs)
    (nest,) = (
        each for kernel in kernels(function, inputs) for each in kernel.body if any(isinstance(s, Local) for s in each.body)
    )
    local, filled, sums = nest.body
    assert isinstance(local, Local)
    assert isinstance(filled, Nest)
    assert isinstance(sums, Nest)
    (total,) = (s for s in sums.body if isinstance(s, Reduce))
    assert not any(isinstance(s, Load) and s.mask for s in total.body)
    (read,) = (s for s in total.body if isinstance(s, Load) and s.param == local.param.name)
    assert ix.stride(read.index, sums.ranges[-1].var) == 1


def test_gradients_of_big_windows_have_a_halo_too() -> None:
    function = gradients([1, 1], [3, 3], [1, 1], [True, False, False])
    inputs = operands((2, 3, 9, 12), (3, 1, 7, 7), padding=3)
    agree(function, inputs)
    (kernel,) = kernels(function, inputs)
    assert any(isinstance(s, Local) for s in walk(kernel.body))


@pytest.mark.parametrize("padding", [0, 3])
def test_weights_of_neighbouring_channels_lie_side_by_side(padding: int) -> None:
    """Channels last: weights are copied once an image, not once for each of its pixels."""
    inputs = [torch.randn(2, 9, 12, 4), torch.randn(4, 1, 7, 7)]

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.permute(0, 3, 1, 2), w, padding=padding, groups=4).permute(0, 2, 3, 1).contiguous()

    agree(function, inputs)
    (nest,) = (each for kernel in kernels(function, inputs) for each in kernel.body if isinstance(each.body[0], Local))
    assert [r.size for r in nest.ranges] == [2]
    _, copy, sums = nest.body
    assert isinstance(copy, Nest)
    assert isinstance(sums, Nest)
    assert ix.product(r.size for r in copy.ranges) == 49 * 4


def test_no_halo_that_does_not_fit() -> None:
    function, inputs = BIG["7x7"]
    small = replace(ALL, local_bytes=4 * 15 * 18 - 1)
    assert not any(
        isinstance(s, Local)
        for each in fusing.compiled(function, inputs, small).kernels.values()
        for s in walk(each.kernel.body)
    )


def test_values_that_are_no_numbers_stay_inside_their_windows() -> None:
    function, inputs = BIG["7x7"]
    x = inputs[0].clone()
    x[0, 1, 4, 5] = torch.nan
    x[1, 2, 0, 0] = torch.inf
    (found,) = fusing.compiled(function, inputs, ALL).run(x, inputs[1])
    wanted = function(x, inputs[1])
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isinf(), wanted.isinf())


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
@pytest.mark.parametrize("shape", [(1, 24, 30, 41), (2, 20, 7, 7), (9, 3, 5, 33)], ids=str)
@pytest.mark.parametrize(
    "options", [(5, 1, 2, 1), (7, 1, 3, 1), (7, 2, 3, 1), (5, 3, 4, 2), (9, 1, 4, 1), (5, 1, 0, 1)], ids=str
)
def test_windows_of_all_sizes(
    options: tuple[int, ...], shape: tuple[int, ...], layout: torch.memory_format, backend: str
) -> None:
    """Rows, and blocks of rows, that fill whole vectors and that do not."""
    size, *others = options
    x = torch.randn(shape).contiguous(memory_format=layout)
    w, b = torch.randn(shape[1], 1, size, size), torch.randn(shape[1])

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w, b, *others, groups=len(w)))

    wanted = function(x.double(), w.double(), b.double())
    for found in by_threads(lambda: torch.compile(function, backend=backend, dynamic=False)(x, w, b)):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)
