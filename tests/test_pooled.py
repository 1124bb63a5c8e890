"""Max pools in training save where in its window each maximum lies, in few bytes, and nothing of their image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vendor_sdk
from tests.test_channels import Camera, Residual
from tests.toys import use_kind
from vendor_sdk import Kernel, hookimpl

pytestmark = pytest.mark.usefixtures("fresh_graphs")
Tensor = torch.Tensor
Make = Callable[[Sequence[int]], Tensor]
BACKENDS = ("cpp_cpu", "toyloops")


def _ties(shape: Sequence[int]) -> Tensor:
    return torch.randint(-2, 3, shape).float()


def _numbers(shape: Sequence[int]) -> Tensor:
    return torch.randn(shape)


def _nans(shape: Sequence[int]) -> Tensor:
    """One in a plane: of several in a window, torch takes the last, the SDK the first."""
    x = _ties(shape)
    x.flatten(2)[..., 37] = torch.nan
    return x


def _infinities(shape: Sequence[int]) -> Tensor:
    return torch.full(shape, -torch.inf)


MAKE: dict[str, Make] = {"numbers": _numbers, "ties": _ties, "nans": _nans, "infinities": _infinities}
WINDOWS: dict[str, tuple[Any, ...]] = {
    "two by two": (2,),
    "overlapping": (3, 2, 1),
    "each pixel": (3, 1, 1),
    "apart": (2, 3),
    "not square": ((3, 2), (2, 1), (1, 0)),
    "dilated": (3, 2, 1, 2),
    "beyond the end": (3, 2, 1, 1, True),
    "dilated beyond the end": ((2, 3), (3, 2), (1, 1), (2, 1), True),
    "large": (5, 3, 2),
    "the whole plane": ((11, 13),),
}


def _trained(function: Callable[..., Tensor], x: Tensor, *, saved: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """The result and the gradient of the operand, of whole numbers so that sums are exact; what was saved for it."""

    def save(value: Tensor) -> Tensor:
        if saved is not None:
            saved.append(value)
        return value

    x = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
        result = function(x)
    torch.manual_seed(1)
    result.backward(torch.randint(-3, 4, result.shape).to(result.dtype))
    assert x.grad is not None
    return result.detach(), x.grad


def _check(function: Callable[..., Tensor], x: Tensor, backend: str) -> list[Tensor]:
    """Compares with eager mode, exactly; returns what was saved."""
    return _agree(torch.compile(function, backend=backend), function, x)


def _agree(compiled: Callable[..., Tensor], function: Callable[..., Tensor], x: Tensor, what: str = "") -> list[Tensor]:
    """As ``_check``, of a function that is compiled already."""
    saved: list[Tensor] = []
    ours = _trained(compiled, x, saved=saved)
    for mine, eager in zip(ours, _trained(function, x), strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")
        assert mine.stride() == eager.stride(), what
    return saved


def _small(saved: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether of a pool's indices and image the indices alone were saved, as numbers of a type."""
    return [value.dtype for value in saved] == [dtype]


def _known(dtype: torch.dtype, backend: str) -> torch.dtype:
    """The type of saved indices where a backend may lack that of few bytes."""
    return torch.int64 if backend == "toyloops" and dtype is torch.int16 else dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_eagers(backend: str, window: tuple[Any, ...], dtype: torch.dtype) -> None:
    use_kind(backend)

    def pooled(x: Tensor) -> Tensor:
        return F.max_pool2d(x, *window)

    compiled = torch.compile(pooled, backend=backend)
    for name, make in MAKE.items():
        torch.manual_seed(0)
        x = make((2, 3, 11, 13)).to(dtype)
        assert _small(_agree(compiled, pooled, x, name), torch.uint8), name


SCATTERED: dict[str, tuple[Any, ...]] = {
    "many over each position": ((5, 4), 1, (2, 1)),
    "dilated, each pixel": (3, 1, 1, 2),
}
"""Windows of which so many cover a position that gradients are added where they belong: by no pointwise kernel."""


@pytest.mark.parametrize("window", SCATTERED.values(), ids=SCATTERED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_scattered(backend: str, window: tuple[Any, ...]) -> None:
    use_kind(backend)

    def pooled(x: Tensor) -> Tensor:
        return F.max_pool2d(x, *window)

    compiled = torch.compile(pooled, backend=backend)
    for name, make in MAKE.items():
        torch.manual_seed(0)
        saved = _agree(compiled, pooled, make((2, 3, 11, 13)), name)
        assert torch.int64 in [value.dtype for value in saved], name


VOLUMES: dict[str, tuple[tuple[Any, ...], torch.dtype]] = {
    "two by two by two": ((2,), torch.uint8),
    "overlapping": ((3, 2, 1), torch.uint8),
    "dilated beyond the end": (((2, 3, 2), (3, 2, 1), (1, 1, 0), (2, 1, 3), True), torch.uint8),
    "deep": (((6, 2, 2),), torch.int16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("volume", VOLUMES.values(), ids=VOLUMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_volumes(backend: str, volume: tuple[tuple[Any, ...], torch.dtype], dtype: torch.dtype) -> None:
    use_kind(backend)
    window, small = volume

    def pooled(x: Tensor) -> Tensor:
        return F.max_pool3d(x, *window)

    compiled = torch.compile(pooled, backend=backend)
    for name, make in MAKE.items():
        torch.manual_seed(0)
        x = make((2, 2, 7, 9, 8)).to(dtype)
        assert _small(_agree(compiled, pooled, x, name), _known(small, backend)), name


PLANES: dict[str, tuple[tuple[int, ...], tuple[Any, ...], torch.dtype]] = {
    "no batch": ((3, 9, 8), (3, 2, 1), torch.uint8),
    "one row": ((2, 1, 1, 9), ((1, 3),), torch.uint8),
    "one pixel": ((2, 3, 1, 1), (3, 2, 1), torch.uint8),
    "widest for a byte": ((1, 2, 5, 126), (3, 2, 1), torch.uint8),
    "wider": ((1, 2, 5, 127), (3, 2, 1), torch.int16),
    "widest for two": ((1, 2, 3, 16382), (3, 2, 1), torch.int16),
    "too wide": ((1, 2, 3, 16383), (3, 2, 1), torch.int64),
}


@pytest.mark.parametrize("plane", PLANES.values(), ids=PLANES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_that_hold_the_distance(backend: str, plane: tuple[tuple[int, ...], tuple[Any, ...], torch.dtype]) -> None:
    use_kind(backend)
    torch.manual_seed(0)
    shape, window, small = plane
    saved = _check(lambda x: F.max_pool2d(x, *window), torch.randint(-9, 10, shape).float(), backend)
    assert _small(saved, _known(small, backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_images(backend: str) -> None:
    use_kind(backend)
    _check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(0, 3, 9, 8), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_dimension(backend: str) -> None:
    use_kind(backend)
    torch.manual_seed(0)
    assert _small(_check(lambda x: F.max_pool1d(x, 3, 2, 1), torch.randn(2, 3, 17), backend), torch.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_channels_last(backend: str) -> None:
    """The gradient lies as the image that is no more there."""
    use_kind(backend)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last)
    assert _small(_check(lambda x: F.max_pool2d(x, 3, 2, 1), x, backend), torch.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend: str) -> None:
    use_kind(backend)
    torch.manual_seed(0)
    compiled = torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend=backend)
    for batch, channels in ((2, 3), (5, 4), (3, 7)):
        x = torch.randn(batch, channels, 9, 8)
        for dim in (0, 1):
            torch._dynamo.mark_dynamic(x, dim)
        saved: list[Tensor] = []
        ours = _trained(compiled, x, saved=saved)
        for mine, eager in zip(ours, _trained(lambda x: F.max_pool2d(x, 3, 2, 1), x), strict=True):
            assert torch.equal(mine, eager)
        assert _small([value for value in saved if value.dim()], torch.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_planes_whose_size_changes_stay(backend: str) -> None:
    use_kind(backend)
    torch.manual_seed(0)
    compiled = torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend=backend, dynamic=True)
    for rows in (9, 12):
        x = torch.randn(2, 3, rows, 8)
        for mine, eager in zip(_trained(compiled, x), _trained(lambda x: F.max_pool2d(x, 3, 2, 1), x), strict=True):
            assert torch.equal(mine, eager)


@pytest.mark.parametrize("backend", BACKENDS)
def test_indices_that_are_returned_stay(backend: str) -> None:
    use_kind(backend)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 8)

    def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return values, indices

    saved: list[Tensor] = []
    compiled = torch.compile(pooled, backend=backend)
    ours = _trained(lambda x: compiled(x)[0], x, saved=saved)
    for mine, eager in zip(ours, _trained(lambda x: pooled(x)[0], x), strict=True):
        assert torch.equal(mine, eager)
    assert torch.equal(compiled(x)[1], pooled(x)[1])
    assert torch.int64 in [value.dtype for value in saved]


@pytest.mark.parametrize("backend", BACKENDS)
def test_indices_that_something_else_reads_stay(backend: str) -> None:
    use_kind(backend)
    torch.manual_seed(0)

    def pooled(x: Tensor) -> Tensor:
        values, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return F.max_unpool2d(values, indices, 3, 2, 1, (9, 8))

    x = torch.randperm(2 * 3 * 9 * 8).view(2, 3, 9, 8).float()
    _check(pooled, x, backend)


class Stem(nn.Module):
    """What begins a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.norm(self.convolution(x)).relu(), 3, 2, 1).sin()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_and_planned_bytes(backend: str, dtype: torch.dtype) -> None:
    """Of what is before a pool, the mask of its relu stays, a byte an element, and the operand of its batch norm."""
    use_kind(backend)
    torch.manual_seed(0)
    image, pooled = 4 * 8 * 32 * 32, 4 * 8 * 16 * 16
    model, x = Stem().to(dtype), torch.randn(4, 3, 32, 32, dtype=dtype)
    graphs = vendor_sdk.explain(model, x, backend=backend, show=False).graphs
    assert [len(graph.kernels.kernels) for graph in graphs] == [4, 3]
    # The image is there while it is pooled; the last results are the sine and, for its gradient, the cosine.
    least = image * (2 * dtype.itemsize + 1) + pooled * (1 + 2 * dtype.itemsize)
    assert graphs[0].kernels.peak is not None
    assert least <= graphs[0].kernels.peak <= least + 512
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: (saved.append(value), value)[1], lambda value: value):
        torch.compile(model, backend=backend)(x)
    large = sorted((str(value.dtype), value.nbytes) for value in saved if value.numel() >= pooled and value is not x)
    assert large == sorted(
        [
            (str(dtype), image * dtype.itemsize),
            ("torch.bool", image),
            ("torch.uint8", pooled),
            (str(dtype), pooled * dtype.itemsize),
        ]
    )


def test_images_with_their_channels_last(register: Callable[..., str]) -> None:
    """Neither kernels nor copies are more than they were with an image."""
    name = register(Camera())
    graphs = vendor_sdk.explain(Residual(), torch.randn(2, 3, 33, 32), backend=name, show=False).graphs
    names = [[kernel.name for kernel in graph.kernels.kernels] for graph in graphs]
    assert [len(each) for each in names] == [10, 11]
    assert [sum("clone" in kernel for kernel in each) for each in names] == [2, 2]
    assert [kernel for each in names for kernel in each if "to_copy" in kernel] == ["k3_max_pool2d_with_indices_clone_to_copy"]


def test_indices_that_no_emitter_reads_stay(register: Callable[..., str]) -> None:
    """A pool that the vendor's own kernel computes gets no other neighbours, and its gradient the image."""

    class Pools(Camera):
        name = "pools"

        @hookimpl
        def kernels(self) -> dict[str, Kernel]:
            return {"max_pool2d_with_indices": Kernel(torch.ops.aten.max_pool2d_with_indices.default)}

    name = register(Pools())
    torch.manual_seed(0)
    saved = _check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, 9, 8), name)
    assert torch.int64 in [value.dtype for value in saved]
