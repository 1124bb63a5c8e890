"""Differentiable programs: a table by group, with how inputs are drawn. Those of ``TWICE`` are differentiated twice.

Inputs of floating dtype have gradients. Sizes are small and odd; where a function has a corner, inputs stay away from it or no
two are alike, so that there is one right gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from conformance import masked
from conformance.draw import Draw

Tensor = torch.Tensor


@dataclass(frozen=True)
class Differentiable:
    """A program.

    Attributes:
        name: what it computes.
        function: of tensors; returns one, or a tuple.
        inputs: draws them.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw], Sequence[Tensor]]


ONCE: dict[str, list[Differentiable]] = {}
"""By group: compared are first gradients, of all inputs."""
TWICE: list[Differentiable] = []
"""Of these the product of the second derivative, by the first input, with a vector."""


SECOND = "second"
"""Group of ``TWICE``."""


def _once(group: str, inputs: Callable[[Draw], Sequence[Tensor]], functions: Mapping[str, Callable[..., Any]]) -> None:
    ONCE.setdefault(group, []).extend(Differentiable(name, function, inputs) for name, function in functions.items())


def _twice(inputs: Callable[[Draw], Sequence[Tensor]], functions: Mapping[str, Callable[..., Any]]) -> None:
    TWICE.extend(Differentiable(name, function, inputs) for name, function in functions.items())


def _rows(draw: Draw) -> list[Tensor]:
    return [draw.normal(7, 19)]


def _pair(draw: Draw) -> list[Tensor]:
    return [draw.normal(7, 19), draw.normal(7, 19)]


def _positive(draw: Draw) -> list[Tensor]:
    return [draw.positive(7, 19)]


_once("pointwise", _rows, {
    "tanh, sigmoid": lambda x: torch.tanh(x) * torch.sigmoid(2 * x),
    "gelu": lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")),
    "silu, softplus, elu": lambda x: F.silu(x) + F.softplus(x) + F.elu(x - 3),
    "exp, expm1, erf": lambda x: torch.exp(x / 2) + torch.expm1(x / 4) * torch.erf(x),
    "sin, cos, atan": lambda x: torch.sin(x) * torch.cos(3 * x) + torch.atan(x),
    "powers": lambda x: x**3 - x.square() * 0.5 + (x.abs() + 1) ** 1.5,
    "cut off": lambda x: (x * 1.0).clamp(-2.9, 2.9).relu() + F.leaky_relu(x, 0.1),
})  # fmt: skip
_once("pointwise", _positive, {
    "roots and logarithms": lambda x: x.sqrt() + x.rsqrt() * x.log() + x.log1p() - x.log2() / x,
})  # fmt: skip
_once("pointwise", _pair, {
    "chosen": lambda x, y: torch.where(x > y, x * y, y - x) + torch.maximum(x, y),
    "angles and quotients": lambda x, y: torch.atan2(x, y) + x / (y.abs() + 1),
})  # fmt: skip
_once("pointwise", lambda draw: [draw.normal(7, 1, 19), draw.normal(5, 1), draw.normal(19)], {
    "broadcast": lambda x, y, z: (x * y + z) * (x - y),
})  # fmt: skip

_once("reductions", _rows, {
    "sums": lambda x: (x.sum(0), x.mean(1, keepdim=True) * x, x.sum()),
    "variances": lambda x: (x.var(1), x.std(0, correction=0), x.norm(dim=1)),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "sums so far": lambda x: x.cumsum(1) * torch.logcumsumexp(x, 0),
})  # fmt: skip
_once("reductions", lambda draw: [draw.apart(7, 19)], {
    "largest": lambda x: (x.amax(1), x.min(0).values, x.topk(3, 1).values, x.sort(0).values),
})  # fmt: skip
_once("reductions", lambda draw: [draw.positive(3, 5)], {
    "products": lambda x: (x.prod(1), x.cumprod(0)),
})  # fmt: skip

_once("norms", lambda draw: [draw.normal(6, 4, 10), draw.positive(10), draw.normal(10)], {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (10,), w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (10,), w) + b,
})  # fmt: skip
_once("norms", lambda draw: [draw.normal(3, 4, 5, 6), draw.positive(4), draw.normal(4)], {
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
})  # fmt: skip
_once("norms", _pair, {
    "normalize, cosine_similarity": lambda x, y: (F.normalize(x, dim=1), F.cosine_similarity(x, y)),
    "softmax": lambda x, y: torch.softmax(x, 1) * y,
    "log_softmax": lambda x, y: torch.log_softmax(x, 0) * y,
})  # fmt: skip

_once("losses", lambda draw: [draw.normal(9, 13), draw.index(13, 9)], {
    "cross_entropy": lambda x, target: F.cross_entropy(x, target),
    "cross_entropy, smoothed, one class ignored": lambda x, target: F.cross_entropy(
        x, target, label_smoothing=0.1, ignore_index=3, reduction="sum"
    ),
})  # fmt: skip
_once("losses", lambda draw: [draw.normal(9, 13), draw.positive(9, 13)], {
    "mse, smooth_l1, huber": lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y, delta=0.7),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy_with_logits(x, y / 2),
    "kl_div": lambda x, y: F.kl_div(torch.log_softmax(x, 1), torch.softmax(y, 1), reduction="batchmean"),
})  # fmt: skip

_once("attention", lambda draw: [draw.normal(2, 4, 9, 8), draw.normal(2, 4, 11, 8), draw.normal(2, 4, 11, 8)], {
    "plain": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "scaled, then used again": lambda q, k, v: (r := F.scaled_dot_product_attention(q, k, v, scale=0.3)) * r + q,
})  # fmt: skip
_once("attention", lambda draw: [draw.normal(2, 4, 9, 8) for _ in range(3)], {
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
})  # fmt: skip
_once("attention", lambda draw: [draw.normal(2, 4, 9, 8), draw.normal(2, 2, 9, 8), draw.normal(2, 2, 9, 8)], {
    "shared heads": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
})  # fmt: skip
_once("attention", lambda draw: [*(draw.normal(2, 4, 9, 8) for _ in range(3)), draw.whole(2, 1, 1, 9, dtype=torch.bool)], {
    "masked": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m | (torch.arange(9, device=m.device) == 0)),
})  # fmt: skip
_once("attention", lambda draw: [*(draw.normal(2, 4, 9, 8) for _ in range(3)), draw.normal(1, 4, 9, 9)], {
    "with a bias that is learned": lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b),
})  # fmt: skip

ONCE["attention"] += [Differentiable(*program) for program in masked.PROGRAMS]

_once("products", lambda draw: [draw.normal(3, 7, 11), draw.normal(5, 11), draw.normal(5)], {
    "linear": lambda x, w, b: torch.tanh(F.linear(x, w, b)),
})  # fmt: skip
_once("products", lambda draw: [draw.normal(3, 1, 7, 11), draw.normal(4, 11, 5)], {
    "matmul, broadcast": lambda x, y: x @ y,
    "einsum": lambda x, y: torch.einsum("abik,ckj->aijc", x, y),
})  # fmt: skip
_once("products", lambda draw: [draw.normal(7, 5), draw.normal(11, 7).t(), draw.normal(11, 5)], {
    "addmm, with a transposed factor": lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2.0),
})  # fmt: skip

_once("convolutions", lambda draw: [draw.normal(2, 4, 9, 8), draw.normal(6, 4, 3, 3), draw.normal(6)], {
    "conv2d": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "conv2d with strides and dilation": lambda x, w, b: F.conv2d(x, w, b, stride=2, dilation=2, padding=2),
})  # fmt: skip
_once("convolutions", lambda draw: [draw.normal(2, 4, 9, 8), draw.normal(6, 2, 3, 3)], {
    "conv2d in groups": lambda x, w: F.conv2d(x, w, groups=2),
})  # fmt: skip
_once("convolutions", lambda draw: [draw.normal(2, 4, 9), draw.normal(4, 3, 4), draw.normal(3)], {
    "conv_transpose1d": lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1),
})  # fmt: skip
_once("convolutions", lambda draw: [draw.apart(2, 4, 9, 8)], {
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d, adaptive": lambda x: (F.avg_pool2d(x, 2, 2, 1), F.adaptive_avg_pool2d(x, (3, 5))),
    "interpolate": lambda x: (
        F.interpolate(x, (5, 11), mode="bilinear"), F.interpolate(x, scale_factor=2.0, mode="nearest")
    ),
})  # fmt: skip

_once("views", _rows, {
    "views": lambda x: x.t()[1:, ::2].reshape(-1) * x.view(-1)[: 18 * 4],
    "joined and cut": lambda x: torch.cat([x.split([2, 5])[1], x * x.flip(1)]).roll(2, 1),
    "expanded": lambda x: (x.unsqueeze(0).expand(3, 7, 19) * x.repeat(3, 1, 1)).diagonal(0, 1, 2),
    "padded": lambda x: F.pad(F.pad(x, (1, 2, 3, 4)), (2, 1), mode="replicate"),
    "windows": lambda x: x.unfold(1, 5, 3) * 2,
    "triangles": lambda x: x.tril(1) + x.triu(2) * x,
})  # fmt: skip
_once("views", lambda draw: [draw.normal(7, 19), draw.index(7, 4, 3), draw.index(19, 4, 3)], {
    "at indices": lambda x, i, j: x[i, j] * 2,
    "rows": lambda x, i, j: (F.embedding(i, x), x.index_select(1, j[0])),
    "gathered": lambda x, i, j: x.gather(1, j) * x.take_along_dim(i[:1, :1], 0).sum(),
    "scattered": lambda x, i, j: torch.zeros_like(x).scatter_add(1, j, (x * x)[:4, :3]),
    "put at indices": lambda x, i, j: (x * 2).index_put((i[0], j[0]), x[0, :3], accumulate=True),
    "filled where a mask says": lambda x, i, j: x.masked_fill(x > 0.5, 0.0) * x,
})  # fmt: skip


OWN = "vendor_sdk_conformance"
"""Namespace of operators of the suite's own, which no backend can have."""


@torch.library.custom_op(f"{OWN}::cubed", mutates_args=())
def _cubed(x: Tensor) -> Tensor:
    return x * x * x


@_cubed.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_cubed.register_autograd(
    lambda ctx, grad: 3 * ctx.saved_tensors[0] ** 2 * grad,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class _Straight(torch.autograd.Function):
    """Rounds; its gradient does as if it did not, and is scaled."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad * 3


def _in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = x[1] * x[2]
    y[1:].mul_(x[1:])
    return y.tanh()


def _partly(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax()
    return x / scale + x.detach() * x


_once("autograd", _rows, {
    "in place, on intermediates": _in_place,
    "stopped": _partly,
    "a function with a gradient of its own": lambda x: _Straight.apply(x) * x,  # type: ignore[no-untyped-call]
    "a custom operator": lambda x: _cubed(x.sin()),
    "recomputed": lambda x: checkpoint(lambda t: torch.tanh(t) * t.exp(), x, use_reentrant=False),
    "one input, many uses": lambda x: x * x.sum() + x.mean(0) - x[:1] * x,
})  # fmt: skip
_once("autograd", _pair, {
    "an input without use": lambda x, y: x * 2,
    "results of which one has no gradient": lambda x, y: (x * y, x > y, (x + y).argmax(1)),
})  # fmt: skip

_twice(_rows, {
    "tanh, sigmoid": lambda x: torch.tanh(x) * torch.sigmoid(x),
    "sin, exp": lambda x: torch.sin(x) * torch.exp(x / 2),
    "gelu, silu": lambda x: F.gelu(x) * F.silu(x),
    "powers": lambda x: x**3 / (1 + x * x),
    "variances": lambda x: x.var(1) * x.mean(1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "cumsum": lambda x: x.cumsum(1) ** 2,
    "views": lambda x: (x.t()[1:] * x.t()[:-1]).reshape(-1),
})  # fmt: skip
_twice(_pair, {
    "softmax": lambda x, y: torch.softmax(x, 1) * y,
    "quotients": lambda x, y: x / (x * x + y * y + 1),
})  # fmt: skip
_twice(lambda draw: [draw.normal(6, 10), draw.positive(10), draw.normal(10)], {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (10,), w, b) ** 2,
})  # fmt: skip
_twice(lambda draw: [draw.normal(9, 13), draw.index(13, 9)], {
    "cross_entropy": lambda x, target: F.cross_entropy(x, target),
    "gathered": lambda x, target: x[target[:4] // 2] * x[:4],
})  # fmt: skip
_twice(lambda draw: [draw.normal(7, 11), draw.normal(5, 11)], {
    "products": lambda x, w: torch.tanh(x @ w.t()) @ w,
})  # fmt: skip
_twice(lambda draw: [draw.normal(2, 3, 6, 6), draw.normal(4, 3, 3, 3)], {
    "convolution": lambda x, w: torch.tanh(F.conv2d(x, w)),
})  # fmt: skip

GROUPS: Mapping[str, Sequence[Differentiable]] = {**ONCE, SECOND: TWICE}
"""All programs by group."""
