"""Composites: decompositions against torch and against their bounds, gradients in float64, recognition passes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from vendor_sdk import torch_private
from vendor_sdk.capture.graph import to_prim_graph, trace
from vendor_sdk.closure import foreign_operators
from vendor_sdk.normalize.decompose import capture_table, prim_table
from vendor_sdk.prims import bounds, reference
from vendor_sdk.prims.opset import COMPOSITE_BY_TARGET, COMPOSITES
from vendor_sdk.prims.row import Composite
from vendor_sdk.prims.samples import Sample, SampleContext
from vendor_sdk.torch_private import dynamo as torch_dynamo

TABLE = prim_table(frozenset())


def _decomposed(row: Composite, sample: Sample) -> Any:
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        values = list(leaves)
        for position, value in zip(positions, tensors, strict=True):
            values[position] = value
        args, kwargs = pytree.tree_unflatten(values, spec)
        return next(iter(row.targets.values()))(*args, **kwargs)

    graph = trace(call, [leaves[position] for position in positions], TABLE)
    assert not foreign_operators(graph.module)
    results = graph.interpret(*(leaves[position] for position in positions))
    return results[0] if len(results) == 1 else tuple(results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", COMPOSITES)
def test_decomposition_meets_the_bound(name: str, dtype: torch.dtype) -> None:
    row = COMPOSITES[name]
    samples = list(row.samples(SampleContext.make(dtype)))
    assert samples
    for sample in samples:
        expected = reference.reference(row, sample)
        verdict = bounds.violations(row.bound, row, sample, _decomposed(row, sample), expected)
        assert verdict.ok, f"{sample.label}: {verdict.message}"


@pytest.mark.parametrize("name", [name for name, row in COMPOSITES.items() if not isinstance(row.bound, bounds.Distribution)])
def test_bound_rejects_zeros(name: str) -> None:
    row = COMPOSITES[name]
    sample = next(iter(row.samples(SampleContext.make(torch.float32))))
    expected = reference.reference(row, sample)
    zeros = tuple(torch.zeros(item.shape, dtype=item.dtype) for item in expected)
    assert not bounds.violations(row.bound, row, sample, zeros[0] if len(zeros) == 1 else zeros, expected).ok


def _compiled(
    function: Callable[..., Any], keep: frozenset[Any] = frozenset(), seen: list[str] | None = None
) -> Callable[..., Any]:
    """``function`` captured as a model is, its prim graphs interpreted; targets of the graphs go to ``seen``."""
    table = prim_table(keep)

    def compiler(module: Any, inputs: Any) -> Any:
        graph = to_prim_graph(module, inputs, table)
        allowed = {str(target) for target in keep}
        assert foreign_operators(graph.module) <= allowed
        if seen is not None:
            seen.extend(str(node.target) for node in graph.calls())
        return torch_private.boxed(lambda *values: graph.interpret(*values))

    return torch_dynamo.aot_function(function, compiler, capture_table())


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def _attention_inputs(heads: int = 2) -> tuple[torch.Tensor, ...]:
    return _draw(2, 4, 5, 8), _draw(2, heads, 7, 8), _draw(2, heads, 7, 8)


MASK = torch.tensor([[True] * 7, [False] * 7, [True, False] * 3 + [True], [True] * 7, [False] * 6 + [True]])
ADDED = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(5, 7)
TARGETS = torch.tensor([0, 2, 1, 2, 3])
PARTIAL = torch.tensor([0, 2, -100, 2, 3])
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
IMAGE = torch.arange(12).reshape(2, 2, 3) % 4

CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: F.softmax(x, 1), (_draw(3, 5, 2),)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (_draw(3, 5),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), (_draw(2, 3, 5), _draw(5), _draw(5))),
    "layer_norm, no weight": (lambda x: F.layer_norm(x, (3, 5)), (_draw(2, 3, 5),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w, 1e-6), (_draw(2, 3, 5), _draw(5))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (_draw(2, 6, 4, 5), _draw(6), _draw(6))),
    "batch_norm, training": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (_draw(4, 3, 5), _draw(3), _draw(3)),
    ),
    "batch_norm, inference": (
        lambda x, mean, var, w, b: F.batch_norm(x, mean, var, w, b),
        (_draw(4, 3, 5), torch.ones(3).double(), torch.full((3,), 2.0).double(), _draw(3), _draw(3)),
    ),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), (_draw(4, 3, 5), _draw(3), _draw(3))),
    "gelu": (F.gelu, (_draw(7, 3),)),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), (_draw(7, 3),)),
    "silu": (F.silu, (_draw(7, 3),)),
    "linear": (F.linear, (_draw(2, 3, 5), _draw(4, 5), _draw(4))),
    "attention": (F.scaled_dot_product_attention, _attention_inputs(4)),
    "attention, causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), _attention_inputs(4)),
    "attention, added mask": (F.scaled_dot_product_attention, (*_attention_inputs(4), ADDED)),
    "attention, rows with nothing to attend to": (F.scaled_dot_product_attention, (*_attention_inputs(4), MASK)),
    "attention, own scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), _attention_inputs(4)),
    "attention, shared heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        _attention_inputs(2),
    ),
    "cross entropy": (F.cross_entropy, (_draw(5, 4), TARGETS)),
    "cross entropy, ignored": (lambda x, t: F.cross_entropy(x, t, reduction="sum"), (_draw(5, 4), PARTIAL)),
    "cross entropy, weights": (F.cross_entropy, (_draw(5, 4), PARTIAL, WEIGHTS)),
    "cross entropy, smoothed": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.2), (_draw(5, 4), TARGETS)),
    "cross entropy, unreduced": (lambda x, t: F.cross_entropy(x, t, reduction="none"), (_draw(5, 4), TARGETS)),
    "cross entropy, images": (lambda x, t: F.cross_entropy(x, t, ignore_index=1), (_draw(2, 4, 2, 3), IMAGE)),
    "dropout, not training": (lambda x: F.dropout(x, 0.5, training=False) * 2, (_draw(5, 4),)),
    "embedding": (lambda t, w: F.embedding(t, w, padding_idx=2), (PARTIAL.clamp(0), _draw(6, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str) -> None:
    function, inputs = CASES[name]
    ours, theirs = ([x.detach().clone().requires_grad_(x.requires_grad) for x in inputs] for _ in range(2))
    actual, expected = _compiled(function)(*ours), function(*theirs)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    grad = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actual.backward(grad)
    expected.backward(grad)
    for mine, other in zip(ours, theirs, strict=True):
        if mine.requires_grad:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-11)


def test_rms_norm_backward_is_autograds() -> None:
    x, weight, grad = _draw(2, 3, 5), _draw(5), torch.randn(2, 3, 5, dtype=torch.float64)
    F.rms_norm(x, (5,), weight, 1e-6).backward(grad)
    rstd = (x * x).mean(-1, keepdim=True).add(1e-6).rsqrt().detach()
    rule = COMPOSITES["rms_norm_backward"].targets[torch.ops.aten._fused_rms_norm_backward.default]
    grad_x, grad_weight = rule(grad, x.detach(), [5], rstd, weight.detach(), [True, True])
    torch.testing.assert_close(grad_x, x.grad)
    torch.testing.assert_close(grad_weight, weight.grad)


@pytest.mark.parametrize("training", [False, True])
def test_running_statistics_are_torchs(training: bool) -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, variance, training=training, momentum=0.3)

    x = torch.randn(4, 3, 5, dtype=torch.float64)
    ours, theirs = ([torch.zeros(3).double(), torch.ones(3).double()] for _ in range(2))
    torch.testing.assert_close(_compiled(step)(x, *ours), step(x, *theirs))
    torch.testing.assert_close(ours, theirs)


def test_dropout_drops_and_scales_and_its_gradient_agrees() -> None:
    x = torch.ones(400, 100, requires_grad=True)
    result = _compiled(lambda x: F.dropout(x, 0.25))(x)
    kept = result != 0
    assert 0.74 < kept.double().mean() < 0.76
    torch.testing.assert_close(result[kept], torch.full_like(result[kept], 1 / 0.75))
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, kept.float() / 0.75)


def test_composites_survive_capture_and_are_kept_on_request() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        heads = F.layer_norm(F.silu(F.gelu(x)), (8,)).unflatten(1, (2, 3)).transpose(1, 2)
        return F.softmax(F.scaled_dot_product_attention(heads, heads, heads), -1) + w

    keep = frozenset(COMPOSITE_BY_TARGET)
    seen: list[str] = []
    inputs = torch.randn(2, 6, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    _compiled(block, keep, seen)(*inputs).sum().backward()
    kept = {COMPOSITE_BY_TARGET[target].name for target in COMPOSITE_BY_TARGET if str(target) in seen}
    attention = {"scaled_dot_product_attention", "scaled_dot_product_attention_backward"}
    backward = {"layer_norm_backward", "gelu_backward", "silu_backward", "softmax_backward"}
    assert kept >= {"layer_norm", "gelu", "silu", "softmax"} | backward | attention


def _graph(function: Callable[..., Any], *inputs: torch.Tensor, keep: frozenset[Any] = frozenset()) -> Any:
    return trace(function, inputs, prim_table(keep))


@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_recognized(biased: bool) -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4)
    graph = _graph(lambda x, w, b: F.linear(x, w, b if biased else None), x, weight, bias)
    recognize = COMPOSITES["linear"].recognize
    assert recognize is not None
    assert recognize(graph.module) == 1
    assert torch.ops.aten.linear.default in [node.target for node in graph.calls()]
    torch.testing.assert_close(graph.interpret(x, weight, bias)[0], F.linear(x, weight, bias if biased else None))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))), 1),
        (lambda x: x * (1 + torch.tanh(0.7978845608 * (0.044715 * x * x * x + x))) * 0.5, 1),
        (lambda x: 0.5 * x * (1 + torch.tanh(0.79 * (x + 0.044715 * torch.pow(x, 3.0)))), 0),
        (lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x.relu()))), 0),
        (lambda x: 0.5 * x.relu() * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))), 0),
    ],
)
def test_gelu_spelled_out_is_recognized(function: Callable[[torch.Tensor], torch.Tensor], found: int) -> None:
    x = torch.randn(4, 5)
    graph = trace(function, [x], prim_table(()))
    recognize = COMPOSITES["gelu"].recognize
    assert recognize is not None
    assert recognize(graph.module) == found
    torch.testing.assert_close(graph.interpret(x)[0], function(x))


@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_is_recognized(weighted: bool) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * y if weighted else y + weight

    x, weight = torch.randn(2, 3, 5), torch.randn(5)
    graph = _graph(norm, x, weight)
    recognize = COMPOSITES["rms_norm"].recognize
    assert recognize is not None
    assert recognize(graph.module) == 1
    targets = [node.target for node in graph.calls()]
    assert torch.ops.aten._fused_rms_norm.default in targets
    assert torch.ops.aten.rsqrt.default not in targets
    torch.testing.assert_close(graph.interpret(x, weight)[0], norm(x, weight))


def test_a_recognized_rms_norm_of_halves_keeps_its_reciprocal_root_in_float32() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    graph = _graph(norm, torch.randn(2, 5).half())
    recognize = COMPOSITES["rms_norm"].recognize
    assert recognize is not None
    assert recognize(graph.module) == 1
    (node,) = (node for node in graph.calls() if node.target is torch.ops.aten._fused_rms_norm.default)
    assert [value.dtype for value in node.meta["val"]] == [torch.float16, torch.float32]


def test_other_normalizations_are_not_rms_norm() -> None:
    x = torch.randn(2, 3, 5)
    recognize = COMPOSITES["rms_norm"].recognize
    assert recognize is not None
    over_rows = _graph(lambda x: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6), x)
    assert recognize(over_rows.module) == 0
    of_another = _graph(lambda x: x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6), x)
    assert recognize(of_another.module) == 0


def test_cross_entropy_is_recognized_where_only_the_loss_is_used() -> None:
    x = torch.randn(5, 4)
    keep = frozenset({torch.ops.aten._log_softmax.default, torch.ops.aten.nll_loss_forward.default})
    recognize = COMPOSITES["cross_entropy"].recognize
    assert recognize is not None
    graph = _graph(lambda x, t: F.cross_entropy(x, t), x, TARGETS, keep=keep)
    assert recognize(graph.module) == 1
    assert [node.target for node in graph.calls()] == [torch.ops.aten.cross_entropy_loss.default]
    torch.testing.assert_close(graph.interpret(x, TARGETS)[0], F.cross_entropy(x, TARGETS))


def test_cross_entropy_is_left_alone_where_the_logarithms_are_used_too() -> None:
    def both(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logarithms = F.log_softmax(x, 1)
        return F.nll_loss(logarithms, target), logarithms

    keep = frozenset({torch.ops.aten._log_softmax.default, torch.ops.aten.nll_loss_forward.default})
    recognize = COMPOSITES["cross_entropy"].recognize
    assert recognize is not None
    assert recognize(_graph(both, torch.randn(5, 4), TARGETS, keep=keep).module) == 0


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_are_what_torch_announces_on_every_device(dtype: torch.dtype, device: str) -> None:
    """Shapes and dtypes; of statistics in halves they depend on the device. Fake tensors need none."""
    wrong = []
    for name, row in COMPOSITES.items():
        (target, rule), *_ = row.targets.items()
        sample = next(iter(row.samples(SampleContext.make(dtype))))
        with torch_private.new_fake_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = pytree.tree_map_only(
                torch.Tensor,
                lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device),
                (sample.args, sample.kwargs),
            )
            announced, found = target(*args, **kwargs), rule(*args, **kwargs)
        both = [[None if x is None else (x.shape, x.dtype) for x in _several(each)] for each in (found, announced)]
        if both[0] != both[1]:
            wrong.append(f"{name}: {both[0]} where torch has {both[1]}")
    assert not wrong, "\n".join(wrong)


def _several(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)
