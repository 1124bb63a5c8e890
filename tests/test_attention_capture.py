"""Attention becomes one operator on whatever device, and chips need not know those of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import vendor_sdk
from vendor_sdk import COMPOSITES
from vendor_sdk.capture.attention import keep_attention
from vendor_sdk.normalize.attention import ATTENTION
from vendor_sdk.normalize.decompose import capture_table, prim_table
from vendor_sdk.prims.dropout import weight_factors
from vendor_sdk.prims.opset import BY_TARGET

aten = torch.ops.aten
FORWARD = "scaled_dot_product_attention"
DROPPED_FORWARD = "general_attention"

CALLS: Mapping[str, tuple[dict[str, Any], tuple[int, ...] | None, int]] = {
    "plain": ({}, None, 4),
    "causal": ({"is_causal": True}, None, 4),
    "scaled": ({"scale": 0.3}, None, 4),
    "a mask of two dimensions": ({}, (16, 24), 4),
    "a mask of padding": ({}, (2, 1, 1, 24), 4),
    "shared heads": ({"enable_gqa": True}, None, 2),
    "one head for all": ({}, (2, 1, 16, 24), 1),
}


def captured(device: str, given: dict[str, Any], mask: tuple[int, ...] | None, shared: int) -> fx.GraphModule:
    """A graph of one call, as Dynamo would make it."""
    graph, mode = fx.Graph(), FakeTensorMode()

    def operand(name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> fx.Node:
        node = graph.placeholder(name)
        with mode:
            node.meta["example_value"] = torch.empty(shape, dtype=dtype, device=device)
        return node

    operands = operand("q", 2, 4, 16, 8), operand("k", 2, shared, 24, 8), operand("v", 2, shared, 24, 8)
    masks = {} if mask is None else {"attn_mask": operand("m", *mask, dtype=torch.bool)}
    call = graph.call_function(F.scaled_dot_product_attention, operands, {**masks, **given})
    graph.output(call)
    with mode:
        call.meta["example_value"] = torch.empty(2, 4, 16, 8, dtype=torch.bfloat16, device=device)
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("name", CALLS)
def test_attention_is_the_composite_on_any_device(name: str) -> None:
    given, mask, shared = CALLS[name]
    module = captured("cuda", given, mask, shared)
    keep_attention(module)
    (rule,) = COMPOSITES[FORWARD].targets.values()
    (call,) = (n for n in module.graph.nodes if n.target in COMPOSITES[FORWARD].targets)
    call.target = rule
    module.recompile()
    inputs = [torch.randn(2, 4, 16, 8), torch.randn(2, shared, 24, 8), torch.randn(2, shared, 24, 8)]
    masks = [torch.rand(mask) > 0.3] if mask else []
    expected = F.scaled_dot_product_attention(*inputs, *masks, **given)
    torch.testing.assert_close(module(*inputs, *masks), expected)


def test_one_head_for_all_is_the_composite_on_cpu_too() -> None:
    module = captured("cpu", {}, None, 1)
    keep_attention(module)
    assert any(node.target in COMPOSITES[FORWARD].targets for node in module.graph.nodes)


def test_bools_are_no_numbers_where_attention_is_spelled_out() -> None:
    module = captured("cuda", {}, (16, 24), 4)
    (key,) = (node for node in module.graph.nodes if node.name == "k")
    with key.meta["example_value"].fake_mode:
        key.meta["example_value"] = torch.empty(2, 1, 24, 8, dtype=torch.bfloat16, device="cuda")
    keep_attention(module)
    called = {node.target for node in module.graph.nodes}
    assert not called & {F.scaled_dot_product_attention, *COMPOSITES[FORWARD].targets}
    inputs = [torch.randn(2, heads, length, 8).bfloat16() for heads, length in ((4, 16), (1, 24), (4, 24))]
    mask = torch.rand(16, 24) > 0.3
    expected = F.scaled_dot_product_attention(*(x.double() for x in inputs), mask)
    torch.testing.assert_close(module(*inputs, mask).double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("given", "spelled"), [({}, False), ({"dropout_p": 0.3}, False), ({}, True)])
def test_autocast_reaches_operands(given: dict[str, Any], spelled: bool) -> None:
    """Autocast knows torch's function by its name, and neither the operator nor the chain that take its place."""
    module = captured("cuda", given, (16, 24) if spelled else None, 4)
    with module.graph.find_nodes(op="placeholder")[0].meta["example_value"].fake_mode:
        for node in module.graph.find_nodes(op="placeholder")[:2]:  # what a rotation makes, for one, in float32
            node.meta["example_value"] = node.meta["example_value"].float()
        if spelled:
            module.graph.find_nodes(op="placeholder")[1].meta["example_value"] = torch.empty(2, 1, 24, 8, device="cuda")
    keep_attention(module)
    for node in module.graph.nodes:
        if node.target == aten.randint.low:
            node.kwargs = {**node.kwargs, "device": "cpu"}
    module.recompile()
    inputs = [torch.randn(2, 4, 16, 8), torch.randn(2, 1 if spelled else 4, 24, 8), torch.randn(2, 4, 24, 8).bfloat16()]
    with torch.autocast("cpu", torch.bfloat16):
        found = module(*inputs, *([torch.rand(16, 24) > 0.3] if spelled else []))
    assert (found.shape, found.dtype) == ((2, 4, 16, 8), torch.bfloat16)


def test_attention_on_cpu_stays_as_torch_has_it() -> None:
    module = captured("cpu", {}, None, 4)
    before = [node.target for node in module.graph.nodes]
    keep_attention(module)
    assert [node.target for node in module.graph.nodes] == before


DROPPED = [
    ({"dropout_p": 0.3}, None, 4),
    ({"dropout_p": 0.3, "is_causal": True, "enable_gqa": True}, None, 2),
    ({"dropout_p": 1}, (16, 24), 4),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("given", "mask", "shared"), DROPPED)
def test_attention_with_dropout_is_its_composite(
    given: dict[str, Any], mask: tuple[int, ...] | None, shared: int, device: str
) -> None:
    module = captured(device, given, mask, shared)
    keep_attention(module)
    (seed,) = (node for node in module.graph.nodes if node.target == aten.randint.low)
    assert seed.kwargs["device"].type == device
    (call,) = (node for node in module.graph.nodes if node.target in COMPOSITES[DROPPED_FORWARD].targets)
    assert call.args[3] is seed
    seed.kwargs = {**seed.kwargs, "device": "cpu"}
    module.recompile()
    tensors = [torch.randn(2, 4, 16, 8), torch.randn(2, shared, 24, 8), torch.randn(2, shared, 24, 8)]
    masks = [torch.rand(mask) > 0.3] if mask else []
    torch.manual_seed(0)
    found = module(*tensors, *masks)
    torch.manual_seed(0)
    drawn = seed.target(*seed.args, **seed.kwargs)
    factors = weight_factors(tensors[0], tensors[1], drawn, given["dropout_p"])
    wide = [tensors[0], *(x.repeat_interleave(4 // shared, 1) for x in tensors[1:])]
    plain = {name: value for name, value in given.items() if name == "is_causal"}
    eye = torch.eye(24).expand(2, 4, 24, 24)
    weights = F.scaled_dot_product_attention(*wide[:2], eye, *masks, **plain)
    torch.testing.assert_close(found, (weights * factors) @ wide[2])


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_attention_without_a_dimension_of_batches(device: str, dropout_p: float) -> None:
    graph, mode = fx.Graph(), FakeTensorMode()
    sizes = (4, 16, 8), (4, 24, 8), (4, 24, 8)
    operands = [graph.placeholder(name) for name in "qkvm"]
    with mode:
        for node, size in zip(operands[:3], sizes, strict=True):
            node.meta["example_value"] = torch.empty(size, device=device)
        operands[3].meta["example_value"] = torch.empty(16, 24, dtype=torch.bool, device=device)
    given = {"attn_mask": operands[3], "dropout_p": dropout_p}
    graph.output(graph.call_function(F.scaled_dot_product_attention, tuple(operands[:3]), given))
    module = fx.GraphModule({}, graph)
    keep_attention(module)
    called = {node.target for node in module.graph.nodes}
    assert called & {*COMPOSITES[FORWARD].targets, *COMPOSITES[DROPPED_FORWARD].targets}
    (rule,) = COMPOSITES[FORWARD].targets.values()
    for node in module.graph.nodes:
        if node.target == aten.randint.low:
            node.kwargs = {**node.kwargs, "device": "cpu"}
        elif node.target in COMPOSITES[FORWARD].targets:
            node.target = rule
    module.recompile()
    tensors = [torch.randn(size) for size in sizes]
    mask = torch.rand(16, 24) > 0.3
    found = module(*tensors, mask)
    assert found.shape == (4, 16, 8)
    if not dropout_p:
        torch.testing.assert_close(found, F.scaled_dot_product_attention(*tensors, mask))


def test_a_mask_with_a_gradient_is_spelled_out_with_dropout_too() -> None:
    for device in ("cpu", "cuda"):
        module = captured(device, {"dropout_p": 0.1}, (16, 24), 4)
        (mask,) = (node for node in module.graph.nodes if node.name == "m")
        with mask.meta["example_value"].fake_mode:
            mask.meta["example_value"] = torch.empty(16, 24, dtype=torch.bfloat16, device=device, requires_grad=True)
        keep_attention(module)
        called = {node.target for node in module.graph.nodes if node.op == "call_function"}
        assert not called & set(COMPOSITES[DROPPED_FORWARD].targets)
        assert (F.scaled_dot_product_attention in called) == (device == "cpu")


@pytest.mark.parametrize("same", [True, False])
def test_sizes_of_attention_that_are_equal_in_this_call_are_guarded(same: bool) -> None:
    environment = ShapeEnv()
    graph, mode = fx.Graph(), FakeTensorMode(shape_env=environment)
    batches = [6, 6, 6 if same else 1]
    symbolic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    operands = []
    for name, batch in zip("qkv", batches, strict=True):
        size = mode.from_tensor(torch.empty(batch), source=ConstantSource(name), symbolic_context=symbolic).shape[0]
        operands.append(graph.placeholder(name))
        with mode:
            operands[-1].meta["example_value"] = torch.empty(size, 4, 16, 8, device="cuda")
    graph.output(graph.call_function(F.scaled_dot_product_attention, tuple(operands)))
    module = fx.GraphModule({}, graph)
    assert not environment.guards
    keep_attention(module)
    called = {node.target for node in module.graph.nodes}
    assert bool(called & set(COMPOSITES[FORWARD].targets)) == same
    assert F.scaled_dot_product_attention not in called
    assert environment.guards  # for other sizes, another graph


OPERATORS = {
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0],
    "efficient, mask": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, q @ k.mT, False, 0.0, True)[0],
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=0.3)[0],
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[0],
}


@pytest.mark.parametrize("composites", [(), (FORWARD,)])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_cuda_become_the_composite_where_functions_are_traced(name: str, composites: tuple[str, ...]) -> None:
    with FakeTensorMode():
        inputs = [torch.empty(2, 4, 16, 8, device="cuda") for _ in range(3)]
    graph = vendor_sdk.trace(OPERATORS[name], inputs, composites=composites)
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert bool(called & set(COMPOSITES[FORWARD].targets)) == bool(composites)
    others = called - set(COMPOSITES[FORWARD].targets)
    assert all(target in BY_TARGET or "getitem" in str(target) for target in others), others


def test_operators_of_cuda_are_rewritten_in_pairs() -> None:
    for name in ("efficient", "flash", "cudnn"):
        for suffix in ("", "_backward"):
            overload = getattr(aten, f"_scaled_dot_product_{name}_attention{suffix}").default
            assert overload in ATTENTION
            assert overload in capture_table()
            assert overload in prim_table(frozenset())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["efficient", "flash", "cudnn"])
def test_gradients_of_operators_of_cuda(name: str, causal: bool) -> None:
    q, k, v = (torch.randn(2, 4, 8, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 4, 8, 8, dtype=torch.float64, requires_grad=True) if name == "efficient" else None
    scores = q @ k.mT / math.sqrt(8)
    scores = scores if bias is None else scores + bias
    if causal:
        scores = scores.masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), -math.inf)
    expected = torch.softmax(scores, -1) @ v
    grad = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [x for x in (q, k, v, bias) if x is not None], grad)
    forward = ATTENTION[getattr(aten, f"_scaled_dot_product_{name}_attention").default]
    backward = ATTENTION[getattr(aten, f"_scaled_dot_product_{name}_attention_backward").default]
    with torch.no_grad():
        if name == "efficient":
            out, saved, *seeds = forward(q, k, v, bias, True, 0.0, causal)
            found = backward(grad, q, k, v, bias, out, saved, *seeds, 0.0, [True] * 4, causal)
        elif name == "flash":
            out, saved, *rest, first, second, _ = forward(q, k, v, 0.0, causal)
            found = backward(grad, q, k, v, out, saved, *rest, 0.0, causal, first, second)
        else:
            out, saved, *rest, first, second, _ = forward(q, k, v, None, True, 0.0, causal)
            found = backward(grad, q, k, v, out, saved, first, second, None, *rest, 0.0, causal)
    torch.testing.assert_close(out, expected.detach())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["efficient", "flash", "cudnn"])
def test_operators_of_cuda_with_dropout_stay_whole(name: str) -> None:
    q = torch.randn(1, 1, 4, 4)
    given = (q, q, q, 0.5) if name == "flash" else (q, q, q, None, True, 0.5)
    assert ATTENTION[getattr(aten, f"_scaled_dot_product_{name}_attention").default](*given) is NotImplemented
