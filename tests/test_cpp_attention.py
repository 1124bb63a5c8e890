"""cpp_cpu's attention: outputs and gradients as accurate as eager, whatever the shapes, strides, masks and threads."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from reference_backends.cpp_cpu.attention import KERNELS
from reference_backends.cpp_cpu.emitter import CppEmitter
from tests.chips import use_chip
from tests.models import MODELS, logits
from vendor_sdk.contract.placement import Kind
from vendor_sdk.ir.fused import members
from vendor_sdk.ir.primgraph import prim_name
from vendor_sdk.pipeline import recording
from vendor_sdk.prims.attention import (
    _scale,
    _scores,
    _weights,
    attention,
    attention_backward,
    general_attention,
    general_attention_backward,
)
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.dropout import weight_factors
from vendor_sdk.prims.opset import COMPOSITES
from vendor_sdk.prims.reference import Expected
from vendor_sdk.prims.samples import Sample
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
SEED = torch.tensor([7_400_123_456_789_012_345])
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Problem:
    """One call: operands, and the options that forward and backward share."""

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool = False
    mask: Tensor | None = None
    scale: float | None = None
    dropout: float | None = None
    cap: float | None = None

    @property
    def general(self) -> bool:
        return self.dropout is not None or self.cap is not None

    @property
    def composite(self) -> str:
        return "general_attention" if self.general else "scaled_dot_product_attention"

    @property
    def drawn(self) -> tuple[Any, ...]:
        """What the operators have between their tensors and the causality."""
        return (0.0,) if not self.general else (None, 0.0) if self.dropout is None else (SEED, self.dropout)

    @property
    def rules(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The definitions, forward and backward."""
        return (general_attention, general_attention_backward) if self.general else (attention, attention_backward)

    @property
    def options(self) -> dict[str, Any]:
        return {"attn_mask": self.mask, "scale": self.scale, **({"cap": self.cap} if self.general else {})}

    def wide(self) -> Problem:
        mask = self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask.double()
        return replace(self, query=self.query.double(), key=self.key.double(), value=self.value.double(), mask=mask)

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def forward(self, statistics: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Through the kernel, into memory full of NaN."""
        dtype = self.query.dtype
        statistics = statistics or (torch.float64 if dtype == torch.float64 else torch.float32)
        out = torch.full((*self.query.shape[:3], self.value.shape[3]), math.nan, dtype=dtype)
        logsumexp = torch.full(self.query.shape[:3], math.nan, dtype=statistics)
        KERNELS[self.composite].call(out, logsumexp, *self.operands(), *self.drawn, self.causal, **self.options)
        return out, logsumexp

    def backward(self, grad: Tensor, out: Tensor, logsumexp: Tensor) -> tuple[Tensor, ...]:
        results = tuple(torch.full(x.shape, math.nan, dtype=x.dtype) for x in self.operands())
        kernel = KERNELS[f"{self.composite}_backward"].call
        kernel(*results, grad, *self.operands(), out, logsumexp, *self.drawn, self.causal, **self.options)
        return results


def exact(problem: Problem, grad: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    wide = problem.wide()
    forward, backward = problem.rules
    out, _ = forward(*wide.operands(), *problem.drawn, problem.causal, **wide.options)
    # torch 2.11 rounds these to float32.
    scores = _scores(wide.query, wide.key, _scale(wide.query, wide.scale), wide.causal, wide.mask, wide.cap)
    _, peak, total = _weights(scores)
    logsumexp = (peak + total.log()).reshape(wide.query.shape[:3])
    saved = (*wide.operands(), out, logsumexp, *problem.drawn, problem.causal)
    return (out, logsumexp), backward(grad.double(), *saved, **wide.options)


def errors(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> list[float]:
    """Root mean square of the differences; also fails where NaN and infinities are not at the same places."""
    found = []
    for a, e in zip(actual, expected, strict=True):
        finite = e.isfinite()
        torch.testing.assert_close(a.double()[~finite], e.double()[~finite], equal_nan=True)
        difference = (a.double() - e)[finite]
        found.append(difference.square().mean().sqrt().item() if difference.numel() else 0.0)
    return found


def check(problem: Problem) -> None:
    """Outputs and gradients: at most twice the error of eager in the same dtype, and within the rows' bounds."""
    grad = torch.randn(*problem.query.shape[:3], problem.value.shape[3]).to(problem.query.dtype)
    expected, expected_gradients = exact(problem, grad)
    actual = problem.forward()
    gradients = problem.backward(grad, *actual)
    forward, backward = problem.rules
    rest: tuple[Any, ...] = (*problem.operands(), *problem.drawn, problem.causal)
    eager = forward(*rest, **problem.options)
    saved: tuple[Any, ...] = (grad, *problem.operands(), *eager, *problem.drawn, problem.causal)
    eager_gradients = backward(*saved, **problem.options)
    for mine, others, true in ((actual, eager, expected), (gradients, eager_gradients, expected_gradients)):
        for tensor, error, other, wanted in zip(mine, errors(mine, true), errors(others, true), true, strict=True):
            # A result of a few numbers may be exact in eager by chance, and in float64 eager is the reference.
            size = wanted[wanted.isfinite()].abs().max().item() if wanted.isfinite().any() else 0.0
            chance = torch.finfo(tensor.dtype).eps * max(size, 1) * (32 if tensor.dtype == torch.float64 else 2)
            assert error <= 2 * other + chance, (tensor.shape, error, other)
    if problem.query.shape[1] == problem.key.shape[1]:
        within_bounds(problem.composite, Sample(rest, problem.options), actual, expected)
        saved = (grad, *problem.operands(), *actual, *problem.drawn, problem.causal)
        # Gradients are judged by what was saved for them, which halves have rounded.
        wide: list[Any] = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in saved]
        from_saved = backward(*wide, **problem.wide().options)
        within_bounds(f"{problem.composite}_backward", Sample(saved, problem.options), gradients, from_saved)
    assert all(map(torch.equal, problem.forward(), actual))
    assert all(map(torch.equal, problem.backward(grad, *actual), gradients))


def within_bounds(name: str, sample: Sample, actual: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> None:
    row = COMPOSITES[name]
    expected = [Expected(value, tuple(value.shape), mine.dtype) for value, mine in zip(exact, actual, strict=True)]
    verdict = violations(row.bound, row, sample, actual, expected)
    assert verdict.ok, (name, verdict.message)


def drawn(dtype: torch.dtype, batch: int, heads: int, rows: int, width: int, layout: int = 0) -> Tensor:
    """Normal numbers in one of four layouts: contiguous, heads behind rows, transposed, every second row of a wider tensor."""
    if layout == 1:
        return torch.randn(batch, rows, heads, width).to(dtype).transpose(1, 2)
    if layout == 2:
        return torch.randn(batch, heads, width, rows).to(dtype).transpose(2, 3)
    if layout == 3:
        return torch.randn(batch, heads, 2 * rows, width + 5).to(dtype)[:, :, ::2, 2 : 2 + width]
    return torch.randn(batch, heads, rows, width).to(dtype)


def problem_of(lengths: tuple[int, int, int], draw: Callable[[int], Tensor], **options: Any) -> Problem:
    """Query, key and value by their numbers of rows."""
    query, key, value = map(draw, lengths)
    return Problem(query, key, value, **options)


def random_mask(choice: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None:
    """None, bool, added with some keys closed, or added in another dtype than the operands'; broadcast along any dimensions."""
    kind = choice.randrange(4)
    own = [choice.choice((1, size)) for size in shape][choice.choice((0, 0, 2)) :]
    if kind == 0:
        return None
    if kind == 1:
        return torch.rand(own) > 0.3
    added = torch.randn(own)
    if kind == 2:
        return added.masked_fill(torch.rand(own) > 0.7, -math.inf).to(dtype)
    return added.to(torch.bfloat16 if dtype == torch.float32 else torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(30))
def test_random_problems(seed: int, dtype: torch.dtype) -> None:
    check(random_problem(seed, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(30, 42))
def test_random_problems_with_dropout(seed: int, dtype: torch.dtype) -> None:
    check(replace(random_problem(seed, dtype), dropout=(0.1, 0.5, 0.9)[seed % 3]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(42, 54))
def test_random_problems_with_caps(seed: int, dtype: torch.dtype) -> None:
    """Small ones, which most scores reach, and large ones; some with dropout besides."""
    check(replace(random_problem(seed, dtype), cap=(0.3, 2.0, 50.0)[seed % 3], dropout=(None, 0.3)[seed % 2]))


def random_problem(seed: int, dtype: torch.dtype) -> Problem:
    choice = random.Random(f"{seed}{dtype}")
    torch.manual_seed(seed)
    batch, shared, group = choice.choice((1, 2, 3)), choice.choice((1, 2, 3)), choice.choice((1, 1, 2, 4))
    rows = choice.choice((1, 1, 2, 3, 5, 16, 17, 31, 33, 65, 130))
    keys = choice.choice((1, 2, 5, 16, 33, 127, 128, 129, 300, 1100))
    width = choice.choice((1, 3, 8, 16, 20, 40, 64, 72, 80, 128, 200))
    depth = choice.choice((width, width, width, 24))
    query = drawn(dtype, batch, shared * group, rows, width, choice.randrange(4))
    key = drawn(dtype, batch, shared, keys, width, choice.randrange(4))
    value = drawn(dtype, batch, shared, keys, depth, choice.randrange(4))
    mask = random_mask(choice, dtype, (batch, shared * group, rows, keys))
    return Problem(query, key, value, choice.random() < 0.4, mask, choice.choice((None, None, 0.3)))


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_weights_are_kept_as_by_definition(rows: int, dtype: torch.dtype) -> None:
    """Seen one by one: all weights are alike, and each has a column of values to itself; forward by few lines and by tiles."""
    query, key = torch.zeros(2, 4, rows, 8, dtype=dtype), torch.zeros(2, 2, 70, 8, dtype=dtype)
    value = torch.eye(70, dtype=dtype).expand(2, 2, 70, 70)
    problem = Problem(query, key, value, dropout=0.4)
    kept = weight_factors(query, key, SEED, 0.4) > 0
    out, logsumexp = problem.forward()
    assert torch.equal(out > 0, kept)
    grad = torch.ones(2, 4, rows, 70, dtype=dtype)
    grad_value = problem.backward(grad, out, logsumexp)[2]
    counts = kept.sum(2).unflatten(1, (2, 2)).sum(2)
    torch.testing.assert_close(grad_value[..., 0].double() * 70 * 0.6, counts.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [3, 40])
def test_dropout_of_all_and_of_nothing(rows: int) -> None:
    torch.manual_seed(0)
    problem = problem_of((rows, 150, 150), lambda n: drawn(torch.float32, 1, 2, n, 16), dropout=1.0)
    out, logsumexp = problem.forward()
    assert not out.any()
    assert not any(x.any() for x in problem.backward(torch.randn_like(out), out, logsumexp))
    check(replace(problem, dropout=1e-12))
    torch.testing.assert_close(replace(problem, dropout=0.0).forward(), replace(problem, dropout=None).forward())


@pytest.mark.parametrize("width", [512, 1024])
def test_wide_heads(width: int) -> None:
    torch.manual_seed(0)
    check(problem_of((40, 40, 40), lambda n: drawn(torch.float32, 1, 2, n, width, 1)))


@pytest.mark.parametrize("dropout", [None, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_needs_no_memory_but_threads_stacks(dtype: torch.dtype, dropout: float | None) -> None:
    problem = replace(problem_of((300, 300, 300), lambda n: drawn(dtype, 2, 3, n, 64, 1)), dropout=dropout)
    CppEmitter().release()
    problem.forward()
    assert CppEmitter().release() == 0


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((0, 2, 3, 8), (0, 2, 5, 8), (0, 2, 5, 8)),
        ((2, 0, 3, 8), (2, 0, 5, 8), (2, 0, 5, 8)),
        ((2, 2, 0, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
        ((2, 2, 3, 8), (2, 2, 0, 8), (2, 2, 0, 8)),
        ((2, 2, 40, 8), (2, 2, 0, 8), (2, 2, 0, 8)),
        ((2, 2, 3, 0), (2, 2, 5, 0), (2, 2, 5, 8)),
        ((2, 2, 40, 8), (2, 2, 5, 8), (2, 2, 5, 0)),
    ],
)
def test_empty(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> None:
    for cap in (None, 0.5):
        problem = Problem(torch.randn(query), torch.randn(key), torch.randn(value), scale=0.5, cap=cap)
        out, logsumexp = problem.forward()
        scores = problem.query @ problem.key.mT * 0.5
        expected = (scores if cap is None else cap * torch.tanh(scores / cap)).softmax(-1) @ problem.value
        torch.testing.assert_close(out, expected)
        gradients = problem.backward(torch.randn_like(out), out, logsumexp)
        for gradient, operand in zip(gradients, problem.operands(), strict=True):
            assert gradient.shape == operand.shape
            assert gradient.isfinite().all()


def test_more_parts_than_the_keys_fill() -> None:
    """One head of so many keys is cut into parts of whole blocks; the last have none."""
    torch.manual_seed(0)
    check(problem_of((20, 8208, 8208), lambda n: drawn(torch.float32, 1, 1, n, 8)))


@pytest.mark.parametrize("rows", [3, 40])
def test_rows_with_nothing_to_attend_to_are_zero(rows: int) -> None:
    torch.manual_seed(0)
    for mask, cap in itertools.product((torch.rand(rows, 150) > 0.5, torch.randn(rows, 150)), (None, 1.0)):
        mask[1] = False if mask.dtype == torch.bool else -math.inf
        problem = problem_of((rows, 150, 150), lambda n: drawn(torch.float32, 2, 2, n, 16), mask=mask, cap=cap)
        check(problem)
        out, logsumexp = problem.forward()
        assert not out[:, :, 1].any()
        assert not logsumexp[:, :, 1].any()
        assert not problem.backward(torch.randn_like(out), out, logsumexp)[0][:, :, 1].any()


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_lowest_numbers_attends_to_all_keys_alike(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mask = torch.zeros(rows, 150, dtype=dtype)
    mask[2] = torch.finfo(dtype).min
    problem = problem_of((rows, 150, 150), lambda n: drawn(dtype, 1, 2, n, 16), mask=mask)
    out, logsumexp = problem.forward()
    torch.testing.assert_close(out[:, :, 2], problem.value.mean(2))
    grad = torch.zeros_like(out)
    grad[:, :, 2] = torch.randn(16, dtype=dtype)
    grad_value = problem.backward(grad, out, logsumexp)[2]
    torch.testing.assert_close(grad_value, (grad[:, :, 2:3] / 150).expand_as(grad_value))


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_special_values_stay_in_their_rows(rows: int, bad: float) -> None:
    torch.manual_seed(0)
    problem = problem_of((rows, 150, 150), lambda n: drawn(torch.float32, 1, 2, n, 16))
    problem.query[0, 1, 2, 5] = bad
    (expected, _), _ = exact(problem, torch.ones(1, 2, rows, 16))
    out, _ = problem.forward()
    torch.testing.assert_close(out, expected.float(), equal_nan=True)
    assert out[0, 1, 2].isnan().all()
    assert out.isnan().sum() == 16
    capped = replace(problem, cap=1.5)
    (expected, _), _ = exact(capped, torch.ones(1, 2, rows, 16))
    torch.testing.assert_close(capped.forward()[0], expected.float(), equal_nan=True)


def test_one_key_is_copied_exactly() -> None:
    problem = problem_of((40, 1, 1), lambda n: drawn(torch.float32, 2, 3, n, 24))
    assert torch.equal(problem.forward()[0], problem.value.expand(2, 3, 40, 24))


def test_masked_keys_have_no_weight_and_no_gradient() -> None:
    torch.manual_seed(0)
    mask = torch.zeros(1, 1, 1, 200).masked_fill(torch.arange(200) >= 170, -math.inf)
    problem = problem_of((40, 200, 200), lambda n: drawn(torch.float32, 2, 2, n, 16), mask=mask)
    out, logsumexp = problem.forward()
    short = Problem(problem.query, problem.key[:, :, :170], problem.value[:, :, :170])
    torch.testing.assert_close(out, short.forward()[0])
    _, grad_key, grad_value = problem.backward(torch.randn_like(out), out, logsumexp)
    assert not grad_key[:, :, 170:].any()
    assert not grad_value[:, :, 170:].any()


@pytest.mark.parametrize("rows", [3, 40])
def test_weights_of_thousands_of_equal_keys_add_up_to_one(rows: int) -> None:
    """One running sum of so many equal terms would round in one direction; keys of padding are such."""
    key = torch.zeros(1, 2, 6000, 16)
    key[:, :, 0] = 1.2 / 16
    problem = Problem(torch.ones(1, 2, rows, 16), key, torch.ones_like(key), scale=1.0)
    out, logsumexp = problem.forward()
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-6, atol=0)
    torch.testing.assert_close(logsumexp, torch.full_like(logsumexp, math.log(math.exp(1.2) + 5999)), rtol=2e-7, atol=0)


def test_float64_gradients_do_not_lose_digits_to_a_float32_logarithm() -> None:
    torch.manual_seed(0)
    problem = problem_of((40, 150, 150), lambda n: drawn(torch.float64, 1, 2, n, 16))
    grad = drawn(torch.float64, 1, 2, 40, 16)
    out, logsumexp = problem.forward(torch.float32)
    for gradient, expected in zip(problem.backward(grad, out, logsumexp), exact(problem, grad)[1], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dropout", [None, 0.1])
@pytest.mark.parametrize(("rows", "keys", "causal"), [(1, 3000, False), (300, 300, True), (7, 1500, False), (130, 1100, True)])
def test_results_do_not_depend_on_the_number_of_threads(rows: int, keys: int, causal: bool, dropout: float | None) -> None:
    torch.manual_seed(0)
    draw = functools.partial(drawn, torch.float32, 1, 2, width=64, layout=1)
    problem = problem_of((rows, keys, keys), lambda n: draw(rows=n), causal=causal, dropout=dropout)
    grad = drawn(torch.float32, 1, 2, rows, 64)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results = problem.forward()
            found.append((*results, *problem.backward(grad, *results)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


# Through torch.compile


@pytest.fixture
def graphs() -> Any:
    torch._dynamo.reset()
    use_chip("cpp_cpu")
    found: list[CompiledGraph] = []
    with recording(found.append):
        yield found


def kept(graphs: list[CompiledGraph]) -> list[str]:
    """Attention composites that run whole, in order; fails where parts of one taken to pieces are left."""
    placements = list(itertools.chain.from_iterable(graph.placements for graph in graphs))
    left = {p.prim for p in placements} & {"softmax", "_safe_softmax", "amax"}
    # Some releases of transformers make rotary frequencies by an outer product.
    products = [n for graph in graphs for node in graph.graph.calls() for n in members(node) if prim_name(n) == "bmm"]
    left |= {prim_name(n) for n in products if n.args[0].meta["val"].shape[-1] > 1}
    assert not left
    attention_nodes = [p for p in placements if p.prim in (*BOTH, *DROPPED)]
    assert all(p.placement.kind is Kind.NATIVE for p in attention_nodes)
    return [p.prim for p in attention_nodes]


BOTH = ["scaled_dot_product_attention", "scaled_dot_product_attention_backward"]
DROPPED = ["general_attention", "general_attention_backward"]
PADDING = torch.arange(40) < torch.tensor([[40], [31]])
CALLS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "plain": (F.scaled_dot_product_attention, 4),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), 4),
    "bool mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=PADDING[:, None, None]), 4),
    "added mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(40, 40).tril().log()), 4),
    "shared heads": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), 2),
    "scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.2), 4),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiled_functions(name: str, graphs: list[CompiledGraph]) -> None:
    function, heads = CALLS[name]
    torch.manual_seed(0)
    operands = [torch.randn(2, 40, n, 16) for n in (4, heads, heads)]
    grad = torch.randn(2, 4, 40, 16)

    def run(call: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in operands]
        out = call(*(x.transpose(1, 2) for x in leaves))
        torch.autograd.backward(out, grad.to(dtype))
        return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]

    true = run(lambda *args: function(*args).double(), torch.float64) if "mask" not in name else None
    ours, eager = run(torch.compile(function, backend="cpp_cpu"), torch.float32), run(function, torch.float32)
    assert kept(graphs) == BOTH
    for mine, others, wanted in zip(ours, eager, true or [x.double() for x in eager], strict=True):
        assert mine.stride() == others.stride()
        allowed = 2 * (others - wanted).abs().max().item() + 1e-6
        assert (mine - wanted).abs().max().item() <= allowed


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As transformers repeats the keys and values of a group."""
    batch, heads, rows, width = k.shape
    repeated = [x[:, :, None, :, :].expand(batch, heads, 3, rows, width).reshape(batch, 6, rows, width) for x in (k, v)]
    return F.scaled_dot_product_attention(q, *repeated, is_causal=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_repeated_heads_are_read_where_they_lie(dynamic: bool, graphs: list[CompiledGraph]) -> None:
    operands = [torch.randn(2, 40, n, 16).transpose(1, 2) for n in (6, 2, 2)]
    for operand in operands:
        torch._dynamo.mark_static(operand, (1, 3))
    ours = torch.compile(grouped, backend="cpp_cpu", dynamic=dynamic)(*operands)
    torch.testing.assert_close(ours, grouped(*operands))
    assert kept(graphs) == BOTH[:1]
    (graph,) = graphs
    assert graph.native_calls == 1
    assert graph.launches == 2, "attention, and its result in the order of memory that torch promises"
    (attention,) = (node for node in graph.graph.calls() if prim_name(node) == "scaled_dot_product_attention")
    assert [each.meta["val"].shape[1] for each in attention.args[:3]] == [6, 2, 2]


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_repeated_heads_are_of_what_was_repeated(dynamic: bool, graphs: list[CompiledGraph]) -> None:
    """The forward graph saves keys and values as they are, the backward graph writes no gradient of what was repeated."""

    inputs = [torch.randn(2, n, 40, 16) for n in (6, 2, 2)]
    ours, wide = ([x.to(dtype, copy=True).requires_grad_() for x in inputs] for dtype in (torch.float32, torch.float64))
    for operand in ours:
        torch._dynamo.mark_static(operand, (1, 3))
    grad = torch.randn(2, 6, 40, 16)
    torch.compile(grouped, backend="cpp_cpu", dynamic=dynamic)(*ours).backward(grad)
    grouped(*wide).backward(grad.double())
    for mine, exact in zip(ours, wide, strict=True):
        torch.testing.assert_close(mine.grad, exact.grad.float(), rtol=1e-4, atol=1e-5)
    assert kept(graphs) == BOTH
    for graph, first in zip(graphs, (0, 1), strict=True):
        (attention,) = (node for node in graph.graph.calls() if prim_name(node).startswith("scaled_dot_product_attention"))
        assert [each.meta["val"].shape[1] for each in attention.args[first : first + 3]] == [6, 2, 2]
        assert not {prim_name(node) for node in graph.graph.calls()} & {"expand", "sum"}


def test_without_gradients(graphs: list[CompiledGraph]) -> None:
    query = torch.randn(2, 3, 40, 16)
    ours = torch.compile(F.scaled_dot_product_attention, backend="cpp_cpu")(query, query, query)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, query, query))
    assert kept(graphs) == BOTH[:1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_keeps_the_mean_and_its_gradient_agrees(dynamic: bool, graphs: list[CompiledGraph]) -> None:
    torch.manual_seed(0)
    value = torch.ones(4, 8, 64, 16, requires_grad=True)
    query = torch.randn(4, 8, 64, 16)

    def dropped(q: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, v, dropout_p=0.25)

    run = torch.compile(dropped, backend="cpp_cpu", dynamic=dynamic)
    out = run(query, value)
    assert kept(graphs) == DROPPED
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    torch.autograd.backward(out.sum())
    assert value.grad is not None
    assert value.grad.sum().item() == pytest.approx(out.sum().item(), rel=1e-4)
    if dynamic:
        for rows in (40, 33):
            run(torch.randn(2, 8, rows, 16), torch.randn(2, 8, rows, 16, requires_grad=True)).sum().backward()
        assert len(graphs) == 2, "for all sizes"


def test_dropout_follows_torchs_generator(graphs: list[CompiledGraph]) -> None:
    """Equal seeds, equal results; the next call and the other call of one graph drop others."""

    def twice(q: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(F.scaled_dot_product_attention(q, q, q, dropout_p=0.5) for _ in range(2))  # type: ignore[return-value]

    query = torch.randn(1, 2, 40, 16)
    run = torch.compile(twice, backend="cpp_cpu")
    torch.manual_seed(0)
    first, second = run(query), run(query)
    torch.manual_seed(0)
    again = run(query)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])
    assert kept(graphs) == 2 * DROPPED[:1]


def tensors(graph: CompiledGraph) -> list[Tensor]:
    """All values of a graph, without data."""
    values = [node.meta.get("val") for node in graph.graph.calls()]
    return [each for value in values for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Tensor)]


def test_dropout_holds_no_scores(graphs: list[CompiledGraph]) -> None:
    """What the plans hold is nothing that grows with the square of 512 rows: scores would be 4 MB."""
    operands = [torch.randn(1, 4, 512, 64, requires_grad=True) for _ in range(3)]
    run = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), backend="cpp_cpu")
    run(*operands).sum().backward()
    assert kept(graphs) == DROPPED
    found = [value.nbytes for graph in graphs for value in tensors(graph)]
    assert max(found) == 4 * 512 * 64 * 4


def test_dropout_that_is_computed_again_drops_the_same(graphs: list[CompiledGraph]) -> None:
    def function(q: Tensor, v: Tensor) -> Tensor:
        def block(q: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, v, dropout_p=0.3)

        return checkpoint(block, q, v, use_reentrant=False)  # type: ignore[no-any-return]

    query, value = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8, requires_grad=True)
    out = torch.compile(function, backend="cpp_cpu")(query, value)
    grad = torch.randn_like(out)
    (by_value,) = torch.autograd.grad(out, value, grad)
    torch.testing.assert_close((by_value * value).sum(), (grad * out).sum())
    assert set(kept(graphs)) == set(DROPPED)


@pytest.mark.parametrize("way", ["grad of grad", "vmap"])
def test_transforms_take_dropout_to_pieces(way: str, graphs: list[CompiledGraph]) -> None:
    def dropped(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    def second(q: Tensor) -> Tensor:
        return torch.func.grad(lambda x: torch.func.grad(lambda y: dropped(y).sum())(x).sum())(q)

    mapped = torch.vmap(dropped, randomness="different")
    query = torch.randn(3, 2, 9, 16)
    run = torch.compile(second if way == "grad of grad" else lambda q: mapped(q), backend="cpp_cpu")
    assert run(query).shape == query.shape


def test_attention_that_is_computed_again_stays_whole(graphs: list[CompiledGraph]) -> None:
    """Torch's tag says that the operator draws random numbers, and what draws some is run with the generator's state."""

    def function(*operands: torch.Tensor) -> torch.Tensor:
        def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin()

        return checkpoint(block, *operands, use_reentrant=False)  # type: ignore[no-any-return]

    operands = [torch.randn(1, 2, 16, 8, requires_grad=True) for _ in range(3)]
    found, expected = (
        torch.autograd.grad(run(*operands).sum(), operands) for run in (torch.compile(function, backend="cpp_cpu"), function)
    )
    torch.testing.assert_close(found, expected)
    assert kept(graphs) == [BOTH[0], *BOTH]


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "vit"])
@pytest.mark.filterwarnings("ignore")  # transformers warns about its own configs and deprecations
def test_models_keep_attention_whole(name: str, graphs: list[CompiledGraph]) -> None:
    torch.manual_seed(0)
    case = MODELS[name]
    model, batch = case.build(layers=2 if name == "gpt2" else 1).train(), case.inputs(2, 12)
    eager = copy.deepcopy(model)
    for run in (torch.compile(model, backend="cpp_cpu"), eager):
        torch.autograd.backward(logits(run(**batch)).square().mean())
    assert sorted(kept(graphs)) == sorted((2 if name == "gpt2" else 1) * BOTH)
    for (key, mine), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None), key
        if mine.grad is not None and other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)


def _encoder() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], Tensor], int]:
    x, y = torch.randn(4, 40, 32), torch.randn(4, 40, 32)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return layer, lambda run: (run(x) - y).square().mean(), 1


def _gpt2() -> tuple[torch.nn.Module, Callable[[torch.nn.Module], Tensor], int]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=50, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    tokens = torch.randint(50, (4, 40))
    return transformers.GPT2LMHeadModel(config), lambda run: run(input_ids=tokens, labels=tokens).loss, 2


@pytest.mark.parametrize("make", [_encoder, _gpt2])
@pytest.mark.filterwarnings("ignore")  # transformers warns about its own configs and deprecations
def test_models_train_with_the_dropout_of_their_defaults(make: Callable[[], Any], graphs: list[CompiledGraph]) -> None:
    """Attention stays whole, and losses fall as eager's do."""
    torch.manual_seed(0)
    model, loss_of, layers = make()

    def losses(compiled: bool) -> list[float]:
        trained = copy.deepcopy(model).train()
        run = torch.compile(trained, backend="cpp_cpu") if compiled else trained
        optimizer = torch.optim.AdamW(trained.parameters(), 1e-3)
        found = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = loss_of(run)
            torch.autograd.backward(loss)
            optimizer.step()
            found.append(loss.item())
        return found

    ours, eager = losses(True), losses(False)
    placements = [each for graph in graphs for each in graph.placements]
    assert sorted(each.prim for each in placements if "attention" in each.prim) == sorted(layers * DROPPED)
    assert not {each.prim for each in placements} & {"softmax", "_safe_softmax"}
    assert all(each.placement.kind is not Kind.HOST for each in placements)
    assert ours[-1] < ours[0]
    assert ours[0] == pytest.approx(eager[0], rel=0.05)
    assert sum(ours[-5:]) == pytest.approx(sum(eager[-5:]), rel=0.05)
