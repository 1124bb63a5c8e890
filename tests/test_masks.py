"""Masks of attention that no input decides are known when a graph is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

from vendor_sdk import COMPOSITES
from vendor_sdk.capture.masks import know_masks

Tensor = torch.Tensor
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
Make = Callable[[Tensor], Tensor]


def _causal(rows: int, keys: int) -> Make:
    return lambda x: torch.arange(keys)[None] <= torch.arange(rows)[:, None]


def _additive(hidden: float) -> Make:
    return lambda x: torch.where(_causal(6, 6)(x), 0.0, hidden)


def _packed(x: Tensor) -> Tensor:
    """As transformers finds the sequences of a batch."""
    positions = torch.arange(6)[None]
    sequence = (torch.diff(positions, prepend=positions[:, :1] - 1) != 1).cumsum(-1)
    return ((sequence[:, :, None] == sequence[:, None]) & _causal(6, 6)(x))[:, None]


LOWEST = torch.finfo(torch.float32).min
MASKS: dict[str, tuple[Make, tuple[int, int], object]] = {
    "causal": (_causal(6, 6), (6, 6), True),
    "causal, more keys": (_causal(6, 9), (6, 9), True),
    "causal, more rows": (_causal(9, 6), (9, 6), True),
    "of all sequences in a batch": (_packed, (6, 6), True),
    "all visible": (lambda x: torch.ones(1, 1, 1, 9, dtype=torch.bool), (6, 9), False),
    "zeros": (lambda x: torch.zeros(6, 9), (6, 9), False),
    "infinities": (_additive(-torch.inf), (6, 6), True),
    "the least numbers": (_additive(LOWEST), (6, 6), True),
    "numbers": (_additive(-1e4), (6, 6), None),
    "more than hidden": (lambda x: torch.where(_causal(6, 6)(x), 1.0, -torch.inf), (6, 6), None),
    "aligned at the end": (lambda x: torch.ones(6, 9, dtype=torch.bool).tril(3), (6, 9), None),
    "a window": (lambda x: torch.ones(6, 6, dtype=torch.bool).tril().triu(-2), (6, 6), None),
    "some rows": (lambda x: torch.stack([_causal(6, 6)(x), torch.ones(6, 6, dtype=torch.bool)])[:, None], (6, 6), None),
    "random": (lambda x: torch.rand(6, 6) > 2, (6, 6), None),
    "of an input": (lambda x: (x > 0).expand(6, 6), (6, 6), None),
}


def _graph(make: Make, rows: int, keys: int) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """Attention and its gradients with a mask made in the graph, with values as AOTAutograd leaves them."""
    inputs = torch.randn(2, 3, rows, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8), torch.rand(keys)

    def function(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        mask = make(x)
        mask = mask.expand(2, 3, *mask.shape) if mask.dim() == 2 else mask
        out, saved = FORWARD(q, k, v, attn_mask=mask)
        return out, *BACKWARD(out, q, k, v, out, saved, 0.0, False, attn_mask=mask)

    return make_fx(function, tracing_mode="fake")(*inputs), inputs


def _run(module: fx.GraphModule, *inputs: Tensor) -> tuple[Tensor, ...]:
    """By the composites' rules, since torch's operators for CPU take no masks of bools."""
    module = copy.deepcopy(module)
    rules = {target: rule for composite in COMPOSITES.values() for target, rule in composite.targets.items()}
    for node in module.graph.nodes:
        node.target = rules.get(node.target, node.target)
    module.recompile()
    return module(*inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_is_known_is_no_operand(name: str) -> None:
    make, (rows, keys), causal = MASKS[name]
    module, inputs = _graph(make, rows, keys)
    before = _run(module, *inputs)
    know_masks(module.graph)
    forward, backward = (next(n for n in module.graph.nodes if n.target is t) for t in (FORWARD, BACKWARD))
    for call, at in (forward, 4), (backward, 7):
        assert (call.kwargs["attn_mask"] is None) == (causal is not None)
        if causal is not None:
            assert call.args[at] is causal
    if causal is not None:
        calls = {n.target for n in module.graph.nodes if n.op == "call_function"}
        assert torch.ops.aten.arange.default not in calls, "what only the mask needed is gone"
    if name != "random":
        torch.testing.assert_close(_run(module, *inputs), before)


def test_positions_that_other_operators_read_stay() -> None:
    def function(q: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(6)
        return FORWARD(q, q, q, attn_mask=(positions[None] <= positions[:, None]).expand(1, 1, 6, 6))[0], positions * 2

    q = torch.randn(1, 1, 6, 4)
    module = make_fx(function, tracing_mode="fake")(q)
    know_masks(module.graph)
    module.recompile()
    out, doubled = module(q)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert doubled.tolist() == [0, 2, 4, 6, 8, 10]


def _sequences(n: int) -> Tensor:
    """As transformers finds the sequences of a batch, and looks them up."""
    positions = torch.arange(n)[None].expand(2, -1)
    before = positions[:, :1] - 1
    sequence = (torch.cat((before, positions), -1).diff(dim=-1) != 1).cumsum(-1)
    batch, rows, keys = (
        torch.arange(2)[:, None, None, None],
        torch.arange(n)[None, None, :, None],
        torch.arange(n)[None, None, None],
    )
    same = sequence[batch, rows] == sequence[batch, keys]
    return same & (positions[batch, keys] <= positions[batch, rows])


SYMBOLIC: dict[str, tuple[Callable[[int], Tensor], bool | None]] = {
    "causal": (lambda n: torch.arange(n)[None] <= torch.arange(n)[:, None], True),
    "the other way round": (lambda n: torch.arange(n)[:, None] >= torch.arange(n)[None], True),
    "less than the next": (lambda n: torch.arange(n)[None] < torch.arange(1, n + 1)[:, None], True),
    "negative difference": (lambda n: (torch.arange(n)[None] - torch.arange(n)[:, None]) <= 0, True),
    "of all sequences in a batch": (_sequences, True),
    "added": (lambda n: torch.where(torch.arange(n)[None] <= torch.arange(n)[:, None], 0.0, -torch.inf), True),
    "all visible": (lambda n: torch.arange(n)[None] >= torch.zeros(n, dtype=torch.int64)[:, None], False),
    "one more": (lambda n: torch.arange(n)[None] <= torch.arange(n)[:, None] + 1, None),
    "without its own": (lambda n: torch.arange(n)[None] < torch.arange(n)[:, None] + (torch.arange(n) == 0)[:, None], None),
    "later": (lambda n: torch.arange(n)[None] >= torch.arange(n)[:, None], None),
    "every second": (lambda n: torch.arange(n)[None] <= 2 * torch.arange(n)[:, None], None),
    "steps of two": (lambda n: torch.arange(0, 2 * n, 2)[None] <= torch.arange(n)[:, None], None),
    "row 0 for all": (lambda n: torch.arange(n)[None] <= torch.arange(n)[:1, None], None),
    "a number added": (lambda n: torch.where(torch.arange(n)[None] <= torch.arange(n)[:, None], 0.0, -1e4), None),
    "a gap": (lambda n: torch.cat((torch.arange(1), torch.arange(5, n + 4)))[None] <= torch.arange(n)[:, None] + 4, None),
}
"""Masks of positions, where sizes are symbols: whether they are known to be causal, to hide nothing, or neither."""


@pytest.mark.parametrize("name", SYMBOLIC)
def test_masks_of_sizes_that_a_call_decides(name: str) -> None:
    make, wanted = SYMBOLIC[name]
    explained: list[tuple[bool, bool]] = []

    def inspect(module: fx.GraphModule, inputs: object) -> object:
        know_masks(module.graph)
        module.graph.lint()
        module.recompile()
        for node in module.graph.nodes:
            if node.target is FORWARD:
                explained.append((node.kwargs.get("attn_mask") is not None, len(node.args) > 4 and bool(node.args[4])))
        return module.forward

    def function(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, make(q.shape[2]))

    compiled = torch.compile(function, backend=aot_autograd(fw_compiler=inspect), dynamic=True)
    for length in (6, 9):
        q = torch.randn(2, 1, length, 4)
        torch.testing.assert_close(compiled(q), function(q))
    assert explained == [(wanted is None, bool(wanted))]
    torch._dynamo.reset()


def test_masks_of_inputs_stay_where_sizes_are_symbols() -> None:
    explained = []

    def inspect(module: fx.GraphModule, inputs: object) -> object:
        know_masks(module.graph)
        explained.extend(n.kwargs["attn_mask"] for n in module.graph.nodes if n.target is FORWARD)
        return module.forward

    def function(q: Tensor, padding: Tensor) -> Tensor:
        n = q.shape[2]
        causal = torch.arange(n)[None] <= torch.arange(n)[:, None]
        return F.scaled_dot_product_attention(q, q, q, causal & padding[None])

    compiled = torch.compile(function, backend=aot_autograd(fw_compiler=inspect), dynamic=True)
    q, padding = torch.randn(1, 1, 6, 4), torch.tensor([True, True, False, True, True, False])
    torch.testing.assert_close(compiled(q, padding), function(q, padding))
    assert explained
    assert all(mask is not None for mask in explained)
