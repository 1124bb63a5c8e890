"""Images with their channels last: what convolutions get, what stands between them, and that nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vendor_sdk
from tests.toyloops import LoopEmitter
from vendor_sdk import ALL, Backend, Emitter, Kernel, Legalization, TorchDevice, hookimpl
from vendor_sdk.ir.primgraph import prim_name
from vendor_sdk.normalize.canonicalize import canonicalize
from vendor_sdk.normalize.legalize import legalize

Tensor = torch.Tensor
aten = torch.ops.aten
Seen = tuple[str, tuple[bool, ...]]
"""A convolution, and which of its tensors of four dimensions lie with their channels last: operands, then results."""


def lies_last(image: Tensor) -> bool:
    return image.is_contiguous(memory_format=torch.channels_last)


class Camera:
    """Convolutions without biases that write down how images lie, and an interpreter of loops for the rest."""

    name = "camera"

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def _watched(self, name: str, count: int) -> Kernel:
        operator = getattr(aten, name).default

        def call(*args: Any) -> Any:
            assert args[2] is None if name == "convolution" else args[-1][2] is False
            made = operator(*args)
            results = made[:1] if isinstance(made, tuple) else (made,)
            images = [t for t in (*args[:count], *results) if t is not None]
            self.seen.append((name, tuple(map(lies_last, images))))
            return made

        return Kernel(call, orders="channels_last")

    @hookimpl
    def backend(self) -> Backend:
        wants = Legalization(channels_last=True, separate_bias=True)
        return Backend(name=self.name, version="1", dtypes=frozenset(ALL), legalize=wants)

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")

    @hookimpl
    def kernels(self) -> Mapping[str, Kernel]:
        return {
            "convolution": self._watched("convolution", 1),
            "convolution_backward": self._watched("convolution_backward", 2),
        }

    @hookimpl
    def emitter(self) -> Emitter:
        return LoopEmitter()


@pytest.fixture
def camera(register: Callable[..., str]) -> Iterator[Camera]:
    plugin = Camera()
    register(plugin)
    yield plugin
    torch._dynamo.reset()


class Residual(nn.Module):
    """The shape of a ResNet: stem, pool, a block with a shortcut, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.convolution, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.short = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(self.stem(x)).relu(), 3, 2, 1)
        x = (self.short(x) + self.second(self.convolution(x))).relu()
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Joined(nn.Module):
    """The shape of a U-Net: down, up, channels side by side, padding, a view of pixels as words, a mask of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner, self.last = nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(12, 4, 1)
        self.up = nn.ConvTranspose2d(6, 6, 2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = F.gelu(self.down(x))
        y = torch.cat([x, self.inner(F.pad(x, (1, 0, 0, 1)))[..., :-1, 1:]], 1)
        words = y.flatten(2).transpose(1, 2).softmax(-1)
        z = self.last(y.softmax(1) * (y.sum(1, keepdim=True) > 0))
        return words, z, z.amax((1, 3)), self.up(x)[:, 1:3].sum(2), y.sum((0, 1)), y.view(y.shape[0], -1)


class Normalized(nn.Module):
    """Convolutions and group norms in turn, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 12, 3, padding=1), nn.Conv2d(12, 4, 3)
        self.norms = nn.ModuleList([nn.GroupNorm(3, 12), nn.GroupNorm(2, 4, affine=False)])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norms[1](self.second(F.silu(self.norms[0](self.first(x)))))
        return y


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (2, 3, 33, 32)),
    "joined": (Joined, (2, 4, 18, 14)),
    "normalized": (Normalized, (2, 4, 10, 9)),
    "one channel": (lambda: nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU(), nn.Conv2d(1, 3, 3)), (2, 1, 9, 8)),
    "one pixel": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1)), (2, 3, 3, 3)),
    "no images": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (0, 3, 5, 5)),
    "one line": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 5, 3)), (2, 3, 20)),
}


def made(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize("trained", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize("name", MODELS)
def test_results_gradients_and_their_strides_are_eagers(name: str, trained: bool, camera: Camera) -> None:
    """Every other model is trained with sizes that change and evaluated with fixed ones; the rest the other way round."""
    build, shape = MODELS[name]
    dynamic = (list(MODELS).index(name) % 2 == 0) == trained
    torch.manual_seed(0)
    model = build().train(trained)
    compiled = torch.compile(copy.deepcopy(model), backend=camera.name, dynamic=dynamic)
    exact = copy.deepcopy(model).double()
    with torch.set_grad_enabled(trained):
        for more in (0, 2) if dynamic else (0,):
            x = torch.randn(*shape[:-1], shape[-1] + more * (shape[-1] > 4), requires_grad=trained)
            wide = x.detach().double().requires_grad_(trained)
            found, expected, eager = made(compiled(x)), made(exact(wide)), made(copy.deepcopy(model)(x.detach()))
            for one, other, like in zip(found, expected, eager, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
                assert one.stride() == like.stride()
            if trained and x.numel():
                weights = [torch.randn_like(one) for one in found]
                torch.autograd.backward(found, weights)
                torch.autograd.backward(expected, [w.double() for w in weights])
                pairs = [
                    (x.grad, wide.grad),
                    *((p.grad, q.grad) for p, q in zip(compiled.parameters(), exact.parameters(), strict=True)),
                ]
                for one, other in pairs:
                    torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)
                    assert one.is_contiguous()
    if name in ("residual", "joined", "normalized"):
        assert len(camera.seen) >= (2 if name == "normalized" else 3)
        assert all(all(images) for _, images in camera.seen), camera.seen


def test_groups_leave_images_as_they_are(camera: Camera) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 4, 1))
    x = torch.randn(2, 4, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=camera.name)(x), model(x))
    assert camera.seen
    assert not any(any(images) for _, images in camera.seen)


def test_images_of_the_user_that_lie_so_already_are_not_moved(camera: Camera) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    with torch.no_grad():
        found = torch.compile(model, backend=camera.name)(x)
        expected = model(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    assert camera.seen == [("convolution", (True, True))] * 2


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_biases_are_prims_of_their_own(dims: int, transposed: bool, last: bool) -> None:
    x, weight = torch.randn(2, 4, *[6] * dims), torch.randn(4, 2, *[3] * dims)
    bias = torch.randn(4)
    zeros, ones = [0] * dims, [1] * dims

    def function(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        made = aten.convolution(x, weight, bias, ones, zeros, ones, transposed, zeros, 2)
        back = aten.convolution_backward(grad, x, weight, [4], ones, zeros, ones, transposed, zeros, 2, [True, False, True])
        alone = aten.convolution_backward(grad, x, weight, [4], ones, zeros, ones, transposed, zeros, 2, [False, False, True])
        return made, back[0], back[2], alone[2]

    grad = torch.randn(2, 4, *[8 if transposed else 4] * dims)
    graph = canonicalize(vendor_sdk.trace(function, [x, weight, bias, grad]))
    legalize(graph, Legalization(channels_last=last, separate_bias=True))
    graph.verify()
    assert all(node.args[2] is None for node in graph.calls() if node.target is aten.convolution.default)
    masks = [node.args[10] for node in graph.calls() if node.target is aten.convolution_backward.default]
    assert masks == [[True, False, False]]
    wide = [t.double() for t in (x, weight, bias, grad)]
    for found, expected in zip(graph.interpret(x, weight, bias, grad), function(*wide), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_pixels_that_the_user_permutes_are_not_copied() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x.permute(0, 3, 1, 2), w)

    image, weight = torch.randn(2, 9, 9, 4), torch.randn(5, 4, 3, 3)
    for given, copies in ((weight.to(memory_format=torch.channels_last), 0), (weight, 1), (torch.randn(5, 4, 1, 1), 0)):
        graph = canonicalize(vendor_sdk.trace(function, [image, given]))
        legalize(graph, Legalization(channels_last=True))
        names = [prim_name(node) for node in graph.calls()]
        assert names == ["permute", *["permute", "clone", "permute"] * copies, "convolution"]


REDUCED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda y: y.norm(),
    "largest": lambda y: y.amax(),
    "variance": lambda y: y.var(),
    "variance of columns": lambda y: y.var(-1),
    "norms of channels": lambda y: torch.linalg.vector_norm(y, 2, (0, 2, 3)),
    "places in channels": lambda y: y.argmax(1),
    "product of rows": lambda y: y.prod(2, keepdim=True),
    "sum in float64": lambda y: y.sum((0, 2, 3), dtype=torch.float64),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_images_whatever_they_run_over(name: str, camera: Camera) -> None:
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 9, 8)

    def function(x: Tensor) -> Tensor:
        return REDUCED[name](torch.conv2d(x, weight))

    with torch.no_grad():
        found, expected = torch.compile(function, backend=camera.name)(x), function(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found.stride() == expected.stride()
