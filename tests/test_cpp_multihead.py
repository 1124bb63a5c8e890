"""Multi-head attention with dropout is opened up: what it computes stays, the attention in it is the composite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.toys import register_toys
from vendor_sdk.capture.multihead import open_attention
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
register_toys()
ROWS, KEYS, BATCH, WIDTH, HEADS = 7, 9, 2, 16, 4

Case = tuple[Callable[[], nn.MultiheadAttention], Callable[[nn.MultiheadAttention, Tensor, Tensor], Any]]


def _plain(**given: Any) -> Callable[[], nn.MultiheadAttention]:
    return lambda: nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, **given)


def _hidden(*shape: int) -> Tensor:
    mask = torch.rand(*shape) > 0.7
    mask[..., 0] = False
    return mask


CASES: dict[str, Case] = {
    "self": (_plain(), lambda m, x, y: m(x, x, x, need_weights=False)),
    "cross": (_plain(), lambda m, x, y: m(x, y, y, need_weights=False)),
    "no bias": (_plain(bias=False), lambda m, x, y: m(x, y, y, need_weights=False)),
    "other widths": (_plain(kdim=WIDTH, vdim=8), lambda m, x, y: m(x, y, y[..., :8], need_weights=False)),
    "a mask of bools": (_plain(), lambda m, x, y: m(x, y, y, attn_mask=_hidden(ROWS, KEYS), need_weights=False)),
    "a mask a head": (
        _plain(),
        lambda m, x, y: m(x, y, y, attn_mask=torch.randn(BATCH * HEADS, ROWS, KEYS), need_weights=False),
    ),
    "padding": (_plain(), lambda m, x, y: m(x, y, y, key_padding_mask=_hidden(BATCH, KEYS), need_weights=False)),
    "padding and a mask": (
        _plain(),
        lambda m, x, y: m(x, y, y, _hidden(BATCH, KEYS), attn_mask=_hidden(ROWS, KEYS), need_weights=False),
    ),
    "causal": (
        _plain(),
        lambda m, x, y: m(
            x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(ROWS), is_causal=True, need_weights=False
        ),
    ),
    "no batch": (_plain(), lambda m, x, y: m(x[:, 0], y[:, 0], y[:, 0], _hidden(KEYS), need_weights=False)),
    "batch first": (_plain(batch_first=True), lambda m, x, y: m(x.mT.mT, x, x, need_weights=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_computes_is_the_same(name: str) -> None:
    """Seen with a probability so small that nothing is dropped."""
    make, call = CASES[name]
    torch.manual_seed(0)
    module, x, y = make(), torch.randn(ROWS, BATCH, WIDTH), torch.randn(KEYS, BATCH, WIDTH)
    module.dropout = 1e-12
    found: list[int] = []

    def opened(graph: Any, _: Any) -> Any:
        before = len(graph.graph.find_nodes(op="call_function", target=nn.functional.multi_head_attention_forward))
        open_attention(graph)
        graph.graph.lint()
        found.append(
            before - len(graph.graph.find_nodes(op="call_function", target=nn.functional.multi_head_attention_forward))
        )
        return graph

    torch._dynamo.reset()
    torch.manual_seed(1)
    ours = torch.compile(lambda: call(module, x, y)[0], backend=opened)()
    torch.manual_seed(1)
    torch.testing.assert_close(ours, call(module, x, y)[0])
    assert found == [1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_its_attention_is_the_composite(dynamic: bool) -> None:
    """All cases in one graph, where each is known by the probability with which it drops."""
    x, y = torch.randn(ROWS, BATCH, WIDTH, requires_grad=True), torch.randn(KEYS, BATCH, WIDTH)
    modules = {name: make() for name, (make, _) in CASES.items()}
    names = {(number + 1) / 32: name for number, name in enumerate(CASES)}
    for probability, name in names.items():
        modules[name].dropout = probability

    def all_cases(x: Tensor, y: Tensor) -> list[Tensor]:
        return [call(modules[name], x, y)[0].sum() for name, (_, call) in CASES.items()]

    graphs: list[CompiledGraph] = []
    torch._dynamo.reset()
    with recording(graphs.append):
        torch.stack(torch.compile(all_cases, backend="cpp_cpu", dynamic=dynamic)(x, y)).sum().backward()
    found: dict[str, list[str]] = {name: [] for name in CASES}
    for graph in graphs:
        nodes = {node.name: node for node in graph.graph.calls()}
        for placement in graph.placements:
            if "attention" in placement.prim:
                (probability,) = (value for value in nodes[placement.name].args if isinstance(value, float))
                found[names[probability]].append(placement.prim)
    assert found == {name: ["general_attention", "general_attention_backward"] for name in CASES}
    assert x.grad is not None


def test_weights_that_are_returned_are_computed() -> None:
    module, x = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1), torch.randn(ROWS, BATCH, WIDTH)
    torch._dynamo.reset()
    out, weights = torch.compile(module, backend="cpp_cpu")(x, x, x)
    assert (out.shape, weights.shape) == ((ROWS, BATCH, WIDTH), (BATCH, ROWS, ROWS))
