"""Heads that share keys: joint graphs compute gradients of what is shared, and what is used otherwise stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from vendor_sdk.capture.heads import share_heads

aten = torch.ops.aten
Tensor = torch.Tensor
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

BATCH, HEADS, SHARED, WIDTH = 2, 6, 2, 8


def repeated(x: Tensor) -> Tensor:
    """As models repeat what a group shares."""
    batch, heads, rows, width = x.shape
    return x.unsqueeze(2).expand(batch, heads, HEADS // heads, rows, width).reshape(batch, HEADS, rows, width)


WAYS: dict[str, Attention] = {
    "expanded": lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k), repeated(v), is_causal=True),
    "repeat_interleave": lambda q, k, v: F.scaled_dot_product_attention(
        q, k.repeat_interleave(HEADS // SHARED, 1), v.repeat_interleave(HEADS // SHARED, 1)
    ),
}
OTHERWISE: dict[str, Attention] = {
    "values of their own": lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k), repeated(v) * 2),
    "keys in another result": lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k), repeated(v)) + repeated(k),
    "other order": lambda q, k, v: F.scaled_dot_product_attention(
        q, k.repeat(1, HEADS // SHARED, 1, 1), v.repeat(1, HEADS // SHARED, 1, 1)
    ),
}


def traced(function: Attention) -> tuple[torch.fx.GraphModule, tuple[Tensor, ...]]:
    """Gradients of attention by all operands as one graph."""

    def gradients(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(function(*leaves), leaves, grad)

    q, grad = (torch.randn(BATCH, HEADS, 5, WIDTH) for _ in range(2))
    k, v = (torch.randn(BATCH, SHARED, 5, WIDTH) for _ in range(2))
    return make_fx(gradients, tracing_mode="fake")(q, k, v, grad), (q, k, v, grad)


def gradients_by(module: torch.fx.GraphModule) -> list[int]:
    """Heads of the keys that each gradient of attention is of."""
    target = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return [node.args[2].meta["val"].shape[1] for node in module.graph.find_nodes(op="call_function", target=target)]


@pytest.mark.parametrize("name", WAYS)
def test_gradients_are_of_what_is_shared(name: str) -> None:
    module, inputs = traced(WAYS[name])
    expected = module(*inputs)
    assert gradients_by(module) == [HEADS]
    share_heads(module.graph)
    module.recompile()
    module.graph.lint()
    assert gradients_by(module) == [SHARED]
    torch.testing.assert_close(module(*inputs), expected)
    targets = {node.target for node in module.graph.nodes}
    assert not targets & {aten.expand.default, aten.clone.default, aten.sum.dim_IntList}, "nothing is repeated or added up"


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_used_otherwise_gives_the_same(name: str) -> None:
    module, inputs = traced(OTHERWISE[name])
    expected = module(*inputs)
    share_heads(module.graph)
    module.recompile()
    module.graph.lint()
    torch.testing.assert_close(module(*inputs), expected)
