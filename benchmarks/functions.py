"""Functions that programs are made of beyond kernels of one or two passes: layouts, windows, orders, lookups, small algebra.

A kernel's row says how close a pass over memory comes to a copy; a row here says whether a user who compiles such a function is
better off than without. Sizes are those of models on two cores: some megabytes, where eager's own kernels are at their best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.program import Mode, Program

Tensor = torch.Tensor
Make = Callable[[torch.Generator], Tensor]
"""An input."""

LEARNED = "gradients"
"""Variant of rows with gradients of all floating point inputs."""


@dataclass(frozen=True)
class Function:
    """One row, or two.

    Attributes:
        name: of the row.
        call: a function of tensors.
        inputs: how each is made.
        learned: also with gradients, see ``LEARNED``.
        quick: also in the quick mode.
        discontinuous: see ``Program``.
    """

    name: str
    call: Callable[..., Any]
    inputs: tuple[Make, ...]
    learned: bool = False
    quick: bool = False
    discontinuous: bool = False

    def program(self, *, gradients: bool = False) -> Program:
        """What to run."""
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(make(generator) for make in self.inputs)
        if not gradients:
            return Program(self.call, inputs, discontinuous=self.discontinuous)
        for each in inputs:
            each.requires_grad_(each.is_floating_point() or each.is_complex())
        return Program(self.call, inputs, Mode.GRADIENT)


def normal(*shape: int) -> Make:
    """Standard normal numbers."""
    return lambda generator: torch.randn(shape, generator=generator)


def positive(*shape: int) -> Make:
    """Uniform numbers between a half and three halves."""
    return lambda generator: torch.rand(shape, generator=generator) + 0.5


def last(*shape: int) -> Make:
    """Standard normal numbers, channels last in memory."""
    return lambda generator: torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last)


def turned(*shape: int) -> Make:
    """Standard normal numbers, the last two dimensions exchanged in memory."""
    *outer, rows, columns = shape
    return lambda generator: torch.randn(*outer, columns, rows, generator=generator).transpose(-1, -2)


def integers(high: int, *shape: int) -> Make:
    """Integers from zero to below ``high``."""
    return lambda generator: torch.randint(0, high, shape, generator=generator)


def shuffled(count: int) -> Make:
    """A permutation."""
    return lambda generator: torch.randperm(count, generator=generator)


def coin(*shape: int) -> Make:
    """True or false."""
    return lambda generator: torch.rand(shape, generator=generator) < 0.5


def lower(edge: int) -> Make:
    """A well-conditioned lower triangle."""
    return lambda generator: torch.randn(edge, edge, generator=generator).tril(-1) / edge + torch.eye(edge)


FUNCTIONS: dict[str, Function] = {}


def _row(name: str, call: Callable[..., Any], *inputs: Make, **traits: bool) -> None:
    assert name not in FUNCTIONS, name
    FUNCTIONS[name] = Function(name, call, inputs, **traits)


# Reductions over other than the last dimension, and over several


def _standardized(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def _layer_norm_first(x: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],)).permute(0, 3, 1, 2)


_row("softmax, dim 0", lambda x: torch.softmax(x, 0), normal(512, 2048), learned=True)
_row("softmax, middle dim", lambda x: torch.softmax(x, 1), normal(32, 64, 512), learned=True)
_row("log_softmax, channels of images", lambda x: torch.log_softmax(x, 1), normal(8, 21, 64, 64), learned=True)
_row("log_softmax, channels last", lambda x: torch.log_softmax(x, 1), last(8, 21, 64, 64), learned=True)
_row("softmax, channels last", lambda x: torch.softmax(x, 1), last(8, 64, 32, 32), learned=True)
_row("standardize columns", _standardized, normal(2048, 512), learned=True)
_row("normalize columns", lambda x: F.normalize(x, dim=0), normal(2048, 512), learned=True)
_row("normalize rows", lambda x: F.normalize(x, dim=-1), normal(4096, 512), learned=True)
_row("sum, first and last dims", lambda x: x.sum((0, 2)), normal(64, 256, 128))
_row("sum, all but channels", lambda x: x.sum((0, 2, 3)), normal(16, 64, 56, 56))
_row("sum, all but channels last", lambda x: x.sum((0, 2, 3)), last(16, 64, 56, 56))
_row("mean, middle dim", lambda x: x.mean(1), normal(32, 197, 384), learned=True)
_row("amax, dim 0", lambda x: x.amax(0), normal(1024, 1024), learned=True)
_row("argmax, last dim", lambda x: x.argmax(-1), normal(1024, 4096))
_row("argmax, dim 0", lambda x: x.argmax(0), normal(1024, 1024))
_row("max, middle dim", lambda x: x.max(1).values, normal(32, 128, 512), learned=True)
_row("var, last dim", lambda x: x.var(-1), normal(2048, 1024))
_row("logsumexp, dim 0", lambda x: torch.logsumexp(x, 0), normal(512, 2048), learned=True)
_row("norm of all", torch.linalg.vector_norm, normal(2048, 1024), learned=True)
_row("layer_norm over channels of images", _layer_norm_first, normal(8, 96, 56, 56), learned=True)

# Norms of images


def _batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


_row(
    "group_norm + silu",
    lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
    normal(4, 128, 32, 32),
    normal(128),
    normal(128),
    learned=True,
)
_row(
    "group_norm + silu, channels last",
    lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
    last(4, 128, 32, 32),
    normal(128),
    normal(128),
    learned=True,
)
_row("instance_norm", F.instance_norm, normal(8, 64, 56, 56), learned=True)
_row("batch_norm + relu, channels last", _batch_norm, last(16, 64, 32, 32), normal(64), normal(64), learned=True)
_row("local_response_norm", lambda x: F.local_response_norm(x, 5), normal(8, 64, 28, 28))

# Windows and samples


def _patches(x: Tensor) -> Tensor:
    """Patches of 16 x 16 as tokens."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 16, 16, w // 16, 16).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 256).contiguous()


def _windows(x: Tensor) -> Tensor:
    """Windows of 7 x 7, shifted by three, as in shifted window attention."""
    b, h, w, c = x.shape
    moved = torch.roll(x, (-3, -3), (1, 2))
    return moved.view(b, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


_row("max_pool2d 3x3, stride 2", lambda x: F.max_pool2d(x, 3, 2, 1), normal(8, 64, 112, 112), learned=True)
_row("max_pool2d 3x3, stride 2, channels last", lambda x: F.max_pool2d(x, 3, 2, 1), last(8, 64, 112, 112), learned=True)
_row("avg_pool2d 2x2", lambda x: F.avg_pool2d(x, 2), normal(8, 64, 56, 56), learned=True)
_row("adaptive_avg_pool2d to 1x1", lambda x: F.adaptive_avg_pool2d(x, 1), normal(16, 512, 7, 7), learned=True)
_row("adaptive_avg_pool2d to 7x7", lambda x: F.adaptive_avg_pool2d(x, 7), normal(8, 64, 28, 28), learned=True)
_row("upsample nearest", lambda x: F.interpolate(x, scale_factor=2), normal(4, 64, 32, 32), learned=True)
_row("upsample bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normal(4, 64, 32, 32), learned=True)
_row("upsample bicubic", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), normal(4, 16, 32, 32), learned=True)
_row("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), normal(4, 64, 64, 64), learned=True)
_row("patches as tokens", _patches, normal(8, 3, 224, 224), learned=True)
_row("shifted windows", _windows, normal(4, 56, 56, 96), learned=True)
_row("unfold 3x3", lambda x: F.unfold(x, 3, padding=1), normal(4, 16, 56, 56), learned=True)
_row("reflection pad", lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), normal(8, 32, 64, 64), learned=True)
_row(
    "grid_sample",
    lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
    normal(4, 16, 64, 64),
    normal(4, 64, 64, 2),
    learned=True,
)

# Convolutions


def _depthwise(x: Tensor, w: Tensor) -> Tensor:
    return F.relu6(F.conv2d(x, w, padding=1, groups=x.shape[1]))


_row(
    "conv2d 3x3 + relu",
    lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
    normal(4, 64, 56, 56),
    normal(64, 64, 3, 3),
    normal(64),
    learned=True,
)
_row(
    "conv2d 3x3 + relu, channels last",
    lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
    last(4, 64, 56, 56),
    last(64, 64, 3, 3),
    normal(64),
    learned=True,
)
_row("conv2d 1x1", F.conv2d, normal(8, 128, 28, 28), normal(256, 128, 1, 1), learned=True)
_row("conv2d 1x1, channels last", F.conv2d, last(8, 128, 28, 28), last(256, 128, 1, 1), learned=True)
_row("conv2d 7x7, stride 2", lambda x, w: F.conv2d(x, w, stride=2, padding=3), normal(4, 3, 224, 224), normal(64, 3, 7, 7))
_row(
    "conv2d 16x16, stride 16",
    lambda x, w: F.conv2d(x, w, stride=16),
    normal(8, 3, 224, 224),
    normal(192, 3, 16, 16),
    learned=True,
)
_row("depthwise conv2d + relu6", _depthwise, normal(4, 64, 56, 56), normal(64, 1, 3, 3), learned=True)
_row("depthwise conv2d + relu6, channels last", _depthwise, last(4, 64, 56, 56), normal(64, 1, 3, 3), learned=True)
_row(
    "depthwise conv2d, stride 2",
    lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=64),
    normal(4, 64, 56, 56),
    normal(64, 1, 3, 3),
    learned=True,
)
_row(
    "depthwise conv2d 7x7",
    lambda x, w: F.conv2d(x, w, padding=3, groups=96),
    normal(4, 96, 28, 28),
    normal(96, 1, 7, 7),
    learned=True,
)
_row(
    "grouped conv2d",
    lambda x, w: F.conv2d(x, w, padding=1, groups=8),
    normal(4, 128, 28, 28),
    normal(128, 16, 3, 3),
    learned=True,
)
_row(
    "grouped conv2d, channels last",
    lambda x, w: F.conv2d(x, w, padding=1, groups=8),
    last(4, 128, 28, 28),
    last(128, 16, 3, 3),
    learned=True,
)
_row("conv1d", lambda x, w: F.conv1d(x, w, padding=1), normal(8, 80, 1000), normal(128, 80, 3), learned=True)
_row(
    "causal depthwise conv1d",
    lambda x, w: F.silu(F.conv1d(F.pad(x, (3, 0)), w, groups=256)),
    normal(4, 256, 512),
    normal(256, 1, 4),
    learned=True,
)
_row(
    "conv_transpose2d 4x4, stride 2",
    lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
    normal(4, 64, 28, 28),
    normal(64, 32, 4, 4),
    learned=True,
)
_row("conv3d 3x3x3", lambda x, w: F.conv3d(x, w, padding=1), normal(1, 16, 16, 32, 32), normal(32, 16, 3, 3, 3), learned=True)

# Products

_row(
    "linear + gelu",
    lambda x, w, b: F.gelu(F.linear(x, w, b)),
    normal(512, 512),
    normal(2048, 512),
    normal(2048),
    learned=True,
    quick=True,
)
_row("linear of one row", F.linear, normal(1, 1024), normal(4096, 1024), normal(4096))
_row("matrix times vector", torch.mv, normal(2048, 2048), normal(2048), learned=True)
_row("transposed matrix times vector", lambda m, v: m.t() @ v, normal(2048, 2048), normal(2048))
_row("outer product + add", lambda m, x, y: m + torch.outer(x, y), normal(1024, 1024), normal(1024), normal(1024), learned=True)
_row("bmm of small matrices", torch.bmm, normal(512, 16, 16), normal(512, 16, 16), learned=True)
_row("bmm with a transposed operand", torch.bmm, normal(16, 128, 64), turned(16, 64, 128), learned=True)
_row(
    "einsum bhqd,bkhd->bhqk",
    lambda q, k: torch.einsum("bhqd,bkhd->bhqk", q, k),
    normal(4, 8, 128, 64),
    normal(4, 128, 8, 64),
    learned=True,
)
_row("einsum with a diagonal", lambda x: torch.einsum("bii->bi", x) * 2, normal(64, 256, 256))
_row("trace", torch.trace, normal(1024, 1024))
_row("triangular solve", lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), lower(256), normal(256, 64))
_row("cdist", torch.cdist, normal(512, 64), normal(512, 64), learned=True)
_row(
    "attention",
    F.scaled_dot_product_attention,
    normal(2, 8, 256, 64),
    normal(2, 8, 256, 64),
    normal(2, 8, 256, 64),
    learned=True,
)
_row(
    "causal attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    normal(2, 8, 256, 64),
    normal(2, 8, 256, 64),
    normal(2, 8, 256, 64),
    learned=True,
)


def _spelled_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v


def _spelled_out_and_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((q.shape[-2], k.shape[-2]), float("-inf")).triu(1)
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125 + mask, -1) @ v


for _name, _call, _shape in (
    ("attention spelled out", _spelled_out, (2, 8, 256, 64)),
    ("attention spelled out, a causal mask added", _spelled_out_and_causal, (2, 8, 256, 64)),
    ("attention spelled out, 16 rows", _spelled_out, (64, 4, 16, 32)),
):
    _row(_name, _call, normal(*_shape), normal(*_shape), normal(*_shape), learned=True)

# Orders and scans

_row("sort, last dim", lambda x: x.sort(dim=-1, stable=True).values, normal(256, 1024), learned=True)
_row("argsort, last dim", lambda x: x.argsort(dim=-1, stable=True), normal(256, 1024))
_row("topk 8 of 4096", lambda x: x.topk(8), normal(256, 4096))
_row("topk 2 of 8, as experts", lambda x: torch.softmax(x, -1).topk(2).values, normal(4096, 8), learned=True)
_row("median, last dim", lambda x: x.median(-1), normal(256, 1024))
_row("cumsum, last dim", lambda x: x.cumsum(-1), normal(1024, 1024), learned=True)
_row("cumsum, dim 0", lambda x: x.cumsum(0), normal(1024, 1024), learned=True)
_row("logcumsumexp, last dim", lambda x: torch.logcumsumexp(x, -1), normal(256, 1024))
_row(
    "searchsorted",
    torch.searchsorted,
    lambda generator: torch.rand(4096, generator=generator).sort().values,
    positive(1024, 256),
)

# Lookups and updates

_row(
    "embedding + position",
    lambda t, p, i: F.embedding(i, t) + p,
    normal(8192, 512),
    normal(256, 512),
    integers(8192, 8, 256),
    learned=True,
)
_row(
    "embedding_bag, sum",
    lambda t, i: F.embedding_bag(i, t, mode="sum"),
    normal(8192, 64),
    integers(8192, 1024, 16),
    learned=True,
)
_row("gather, last dim", lambda x, i: x.gather(-1, i), normal(1024, 1024), integers(1024, 1024, 256), learned=True)
_row("index_select, rows", lambda x, i: x[i], normal(4096, 512), integers(4096, 4096), learned=True)
_row("index_select, columns", lambda x, i: x[:, i], normal(2048, 1024), shuffled(1024), learned=True)
_row(
    "index_add, rows",
    lambda x, i, s: x.index_add(0, i, s),
    normal(1024, 256),
    integers(1024, 4096),
    normal(4096, 256),
    learned=True,
)
_row(
    "scatter_add, last dim",
    lambda x, i, s: x.scatter_add(-1, i, s),
    normal(1024, 512),
    integers(512, 1024, 256),
    normal(1024, 256),
    learned=True,
)
_row(
    "segment sum, as in graphs",
    lambda x, i, j: torch.zeros_like(x).index_add(0, j, x[i]),
    normal(2048, 64),
    integers(2048, 16384),
    integers(2048, 16384),
    learned=True,
)
_row("one_hot", lambda i: F.one_hot(i, 128).float(), integers(128, 4096))
_row("bincount, weighted", lambda i, w: torch.bincount(i, w, 256), integers(256, 65536), normal(65536))
_row(
    "masked_fill + where",
    lambda x, m: torch.where(m, x, 0.5 * x).masked_fill(~m, -1.0),
    normal(1024, 1024),
    coin(1024, 1024),
    learned=True,
)
_row(
    "key-value cache update",
    lambda c, i, k: c.index_copy(2, i, k),
    normal(2, 8, 512, 64),
    integers(512, 1),
    normal(2, 8, 1, 64),
)

# Movement


def _heads(x: Tensor) -> tuple[Tensor, ...]:
    q, k, v = x.view(x.shape[0], x.shape[1], 3, 6, 64).permute(2, 0, 3, 1, 4)
    return (q * 0.125).contiguous(), k.contiguous(), v.contiguous()


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions with complex numbers."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


_row("transpose, contiguous", lambda x: x.t().contiguous(), normal(1024, 2048), quick=True)
_row("permute 0213", lambda x: x.permute(0, 2, 1, 3).contiguous(), normal(8, 256, 8, 64), learned=True)
_row("channels last to first", lambda x: x.contiguous() + 1, last(8, 64, 56, 56))
_row("channels first to last", lambda x: (x + 1).contiguous(memory_format=torch.channels_last), normal(8, 64, 56, 56))
_row("split heads", _heads, normal(4, 197, 1152), learned=True)
_row("glu", F.glu, normal(1024, 2048), learned=True)
_row("roll, two dims", lambda x: x.roll((3, 5), (0, 1)), normal(1024, 1024))
_row("flip + add", lambda x: x + x.flip(-1), normal(1024, 1024), learned=True)
_row("cat, last dim", lambda x, y: torch.cat((x, y), -1), normal(1024, 512), normal(1024, 768), learned=True)
_row("stack, last dim", lambda x, y: torch.stack((x, y), -1), normal(1024, 512), normal(1024, 512), learned=True)
_row("repeat_interleave of heads", lambda x: x.repeat_interleave(4, 1), normal(2, 4, 256, 64), learned=True)
_row("every second element", lambda x: x[..., ::2] * x[..., 1::2], normal(1024, 2048), learned=True)
_row("tril + softmax", lambda x: torch.softmax(x.tril(), -1), normal(16, 256, 256), learned=True)
_row("rope with complex numbers", _rotated, normal(2, 256, 8, 64), normal(256, 1, 32), learned=True)

# Elements


def _cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, g = gates.chunk(4, -1)
    carried = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(carried), carried


def _quantized(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8) * scale


def _adaptive(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Adaptive layer norm of diffusion transformers."""
    return F.layer_norm(x, (x.shape[-1],)) * (1 + scale[:, None]) + shift[:, None]


_row("adaptive layer_norm", _adaptive, normal(8, 256, 512), normal(8, 512), normal(8, 512), learned=True)
_row("mish", F.mish, normal(1024, 1024), learned=True)
_row("hardswish", F.hardswish, normal(1024, 1024), learned=True)
_row("prelu of channels", F.prelu, normal(8, 64, 56, 56), normal(64), learned=True)
_row("sin + cos features", lambda x: torch.cat((x.sin(), x.cos()), -1), normal(1024, 512), learned=True)
_row("erfinv + lgamma", lambda x: torch.erfinv(x - 1) + torch.lgamma(x), positive(512, 512))
_row("pow + log1p + expm1", lambda x: x.pow(1.7) + x.log1p() * x.expm1(), positive(1024, 512), learned=True)
_row(
    "complex product",
    lambda x, y: torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)),
    normal(1024, 512),
    normal(1024, 512),
    learned=True,
)
_row("silu, bfloat16", lambda x: F.silu(x * 2 + 1), lambda generator: normal(1024, 1024)(generator).bfloat16(), learned=True)
_row("quantize rows and back", _quantized, normal(1024, 1024), discontinuous=True)
_row("integer division and remainder", lambda i: (i // 7) * 3 + i % 5, integers(1 << 20, 1024, 1024))
_row("mse_loss", F.mse_loss, normal(1024, 1024), normal(1024, 1024), learned=True)
_row("smooth_l1_loss", F.smooth_l1_loss, normal(1024, 1024), normal(1024, 1024), learned=True)
_row(
    "binary_cross_entropy_with_logits",
    F.binary_cross_entropy_with_logits,
    normal(1024, 1024),
    positive(1024, 1024),
    learned=True,
)
_row(
    "kl_div",
    lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    normal(1024, 1024),
    normal(1024, 1024),
    learned=True,
)
_row("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, -1), normal(2048, 512), normal(2048, 512), learned=True)
_row(
    "contrastive loss",
    lambda x, y: F.cross_entropy(F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() / 0.07, torch.arange(256)),
    normal(256, 512),
    normal(256, 512),
    learned=True,
)
_row("cross_entropy of images", F.cross_entropy, normal(4, 21, 64, 64), integers(21, 4, 64, 64), learned=True)
_row("lstm cell", _cell, normal(512, 2048), normal(512, 512), learned=True)
