"""Attention that a program spells out is the one operator, with its numbers and gradients; what is not quite it stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.toys import use_kind
from vendor_sdk.pipeline import recording

pytestmark = pytest.mark.usefixtures("fresh_graphs")
Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor, Tensor], Any]
BATCH, HEADS, ROWS, KEYS, WIDTH = 2, 3, 20, 28, 16
ATTENTION, DROPPED = "scaled_dot_product_attention", "dropout_attention"

_generator = torch.Generator().manual_seed(0)
HIDDEN = torch.rand(BATCH, 1, ROWS, KEYS, generator=_generator) > 0.6
HIDDEN[..., 0] = False
PADDED = torch.arange(KEYS) >= torch.tensor([20, 28]).view(2, 1, 1, 1)
BIAS = torch.randn(HEADS, ROWS, KEYS, generator=_generator)
LEAST = torch.finfo(torch.float32).min


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1) @ v


def factors_of_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(F.softmax(torch.matmul(q * 0.25, k.mT), dim=3), v)


def hidden_and_joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    weights = weights.masked_fill(HIDDEN, float("-inf"))
    weights = F.dropout(F.softmax(weights, dim=-1), 0.1, False)
    return (weights @ v).transpose(1, 2).contiguous().view(BATCH, ROWS, HEADS * WIDTH)


def hidden_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.3
    scores.masked_fill_(HIDDEN, -torch.finfo(scores.dtype).max)
    scores.masked_fill_(PADDED, -1e9)
    return torch.einsum("b h i j, b h j d -> b i h d", scores.softmax(dim=-1), v)


def heads_behind_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bkhd,bqhd->bhqk", k, q) * 0.2
    return torch.einsum("bkhd,bhqk->bqhd", v, torch.where(~HIDDEN, scores, -math.inf).softmax(-1))


def cast_and_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25 + torch.where(PADDED, LEAST, 0.0)
    return torch.matmul(F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), v).transpose(1, 2).contiguous()


def written_over(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= 0.3
    scores += BIAS
    return torch.softmax(scores, -1) @ v


def added_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.add(BIAS, (q @ k.mT).mul(0.5)) + torch.where(PADDED, LEAST, 0.0)
    return torch.softmax(torch.where(HIDDEN, -1e9, scores), -1) @ v


def by_a_number_in_a_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.mT) / torch.full([], 4.0, dtype=q.dtype)
    scores = torch.where(~HIDDEN, scores.to(q.dtype), torch.full([], LEAST, dtype=q.dtype))
    return torch.matmul(nn.functional.softmax(scores, dim=-1), v)


def heads_in_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(q.new_empty(len(q), ROWS, KEYS), q, k.transpose(-1, -2), beta=0, alpha=0.25)
    return torch.bmm(scores.softmax(dim=-1), v).unflatten(0, (BATCH, HEADS))


def sum_and_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    added = BIAS.repeat(BATCH, 1, 1).to(q.dtype)
    return torch.bmm(torch.baddbmm(added, q.flatten(0, 1), k.flatten(0, 1).mT).softmax(2), v.flatten(0, 1))


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q[1, 2] @ k[1, 2].T * -0.25, 1) @ v[1, 2]


def one_head_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k[:, :1].mT * 0.25, -1) @ v[:, :1]


def heads_of_keys_repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x[:, :1, None].expand(-1, -1, HEADS, -1, -1).reshape(BATCH, HEADS, KEYS, WIDTH) for x in (k, v))
    return torch.softmax(q @ k.mT * 0.25 + BIAS, -1) @ v


PROGRAMS: tuple[Program, ...] = (
    scaled, factors_of_queries, hidden_and_joined, hidden_in_place, heads_behind_rows, cast_and_added, written_over,
    added_twice, by_a_number_in_a_tensor, heads_in_the_batch, sum_and_product, one_head, one_head_of_keys,
    heads_of_keys_repeated,
)  # fmt: skip


def operands(*, grad: bool = True, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = ROWS, KEYS, KEYS
    return [torch.randn(BATCH, size, HEADS, WIDTH).to(dtype).transpose(1, 2).detach().requires_grad_(grad) for size in sizes]


def compiled(function: Callable[..., Any], backend: str, *given: Any) -> tuple[Any, set[str]]:
    """The result, and the prims of the graph, of the backward graph too."""
    graphs: list[Any] = []
    with recording(graphs.append):
        result = torch.compile(function, backend=use_kind(backend))(*given)
    return result, {placed.prim for graph in graphs for placed in graph.placements}


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_the_operator(program: Program, backend: str) -> None:
    given = operands(grad=False)
    found, prims = compiled(program, backend, *given)
    assert ATTENTION in prims
    assert not prims & {"bmm", "mm", "softmax"}
    expected = program(*given)
    assert found.stride() == expected.stride()
    exact = program(*(x.double() for x in given)).double()
    assert float((found - exact).abs().max()) <= 2 * float((expected - exact).abs().max()) + 1e-6


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_the_programs(program: Program, backend: str) -> None:
    given = operands()
    found, prims = compiled(program, backend, *given)
    assert {ATTENTION, f"{ATTENTION}_backward"} <= prims
    assert not prims & {"bmm", "mm", "softmax"}
    grad = torch.randn(found.shape)
    got = torch.autograd.grad(found, given, grad)
    wide = [x.detach().double().requires_grad_() for x in given]
    for one, expected in zip(got, torch.autograd.grad(program(*wide), wide, grad.double()), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-4, atol=1e-5)


def _weights_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def _scores_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, scores.amax()


def _over_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def _capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(q @ k.mT), -1) @ v


def _replaced_by_what_counts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(HIDDEN, -3.0), -1) @ v


def _scaled_with_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT + BIAS) * 0.5, -1) @ v


def _more_digits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).double(), -1).to(v.dtype) @ v


def _another_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ v[..., :5]


def _keys_written_to(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    own = k * 2
    scores = q @ own.mT
    own.mul_(3)
    return torch.softmax(scores, -1) @ v + own.sum()


def _values_weigh(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v[..., :ROWS, :].mT @ torch.softmax(q @ k.mT, -1)


def _weights_without_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        weights = torch.softmax(q @ k.mT, -1)
    return weights @ v


APART = (
    _weights_too, _scores_too, _over_rows, _capped, _replaced_by_what_counts, _scaled_with_the_mask, _more_digits,
    _another_width, _keys_written_to, _values_weigh, _weights_without_gradients,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", APART, ids=lambda program: program.__name__.strip("_"))
def test_what_is_not_quite_it_stays(program: Program, backend: str) -> None:
    given = operands()
    found, prims = compiled(program, backend, *given)
    assert not any("attention" in prim for prim in prims)
    expected = program(*given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    grads = [torch.randn(x.shape) for x in (expected if isinstance(expected, tuple) else (expected,))]
    got, wanted = (
        torch.autograd.grad(x if isinstance(x, tuple) else (x,), given, grads, allow_unused=True) for x in (found, expected)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
def test_a_mask_that_learns_is_added_to_scores_and_one_that_does_not_is_a_mask(backend: str) -> None:
    learned = nn.Parameter(BIAS.clone())
    given = operands()

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * 0.25 + learned, -1) @ v

    found, prims = compiled(program, backend, *given)
    assert ATTENTION not in prims
    expected = torch.autograd.grad(program(*given).square().sum(), (learned, *given))
    for one, other in zip(torch.autograd.grad(found.square().sum(), (learned, *given)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        found, prims = compiled(program, backend, *given)
        assert ATTENTION in prims
        torch.testing.assert_close(found, program(*given))


@pytest.mark.parametrize("backend", ["toychip"])
def test_a_chip_that_does_not_claim_it_gets_products_and_a_softmax(backend: str) -> None:
    given = operands(grad=False)
    found, prims = compiled(cast_and_added, backend, *given)
    assert ATTENTION not in prims
    torch.testing.assert_close(found, cast_and_added(*given))


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_rows_hidden_from_all_keys_by_the_least_number_stay_those_of_the_program(backend: str) -> None:
    hidden = HIDDEN.clone()
    hidden[:, :, 3] = True

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT).masked_fill(hidden, LEAST), -1) @ v

    given = operands(grad=False)
    found, prims = compiled(program, backend, *given)
    assert ATTENTION in prims
    torch.testing.assert_close(found, program(*given))


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("program", [scaled, lambda q, k, v: torch.softmax(q @ k.mT + k[:, :, None, :, 0], -1) @ v])
def test_sizes_may_be_symbols(program: Program, backend: str) -> None:
    kind, graphs = use_kind(backend), list[Any]()
    function = torch.compile(program, backend=kind)
    with recording(graphs.append), torch.no_grad():
        for rows, keys in ((9, 12), (17, 33), (5, 21)):
            given = [torch.randn(2, 3, size, WIDTH) for size in (rows, keys, keys)]
            for each in given:
                torch._dynamo.mark_dynamic(each, 2)
            torch.testing.assert_close(function(*given), program(*given), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert ATTENTION in {placed.prim for placed in graphs[0].placements}


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype, backend: str) -> None:
    given = operands(grad=False, dtype=dtype)
    found, prims = compiled(scaled, backend, *given)
    assert ATTENTION in prims
    exact = scaled(*(x.double() for x in given))
    assert float((found - exact).abs().max()) <= float((scaled(*given) - exact).abs().max()) + 1e-12


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_autocast(backend: str) -> None:
    given = operands()

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return scaled(q, k, v)

    found, prims = compiled(program, backend, *given)
    assert ATTENTION in prims
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), scaled(*given), rtol=2e-2, atol=2e-2)
    got = torch.autograd.grad(found.float().square().sum(), given)
    for one, other in zip(got, torch.autograd.grad(scaled(*given).square().sum(), given), strict=True):
        assert float((one - other).norm() / other.norm()) < 0.03


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_dropped_weights(backend: str) -> None:
    """A weight is kept or not, and multiplied: values that are one tell how many, forward as backward."""
    query, key = (torch.randn(4, 4, 64, WIDTH) for _ in range(2))
    value = torch.ones(4, 4, 64, WIDTH, requires_grad=True)

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(q @ k.mT * 0.25, -1), 0.25, True) @ v

    found, prims = compiled(program, backend, query, key, value)
    assert DROPPED in prims
    assert abs(float(found.detach().mean()) - 1) < 0.01
    assert float(found.detach().std()) > 0.02
    (grad,) = torch.autograd.grad(found, value, torch.ones_like(found))
    torch.testing.assert_close(grad.sum(), found.sum())


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_what_is_computed_again(backend: str) -> None:
    given = operands()
    found, prims = compiled(lambda *x: checkpoint(cast_and_added, *x, use_reentrant=False), backend, *given)
    assert ATTENTION in prims
    expected = cast_and_added(*given)
    torch.testing.assert_close(found, expected)
    grad = torch.randn(found.shape)
    for one, other in zip(torch.autograd.grad(found, given, grad), torch.autograd.grad(expected, given, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Unread(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 3, **given)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.attention(x, y, y)[0]
        return found


class Read(Unread):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found, weights = self.attention(x, y, y)
        return found.sum() + weights.square().sum()  # type: ignore[no-any-return]


MODULES: Mapping[str, tuple[type[nn.Module], dict[str, Any], bool]] = {
    "weights unread": (Unread, {"batch_first": True}, True),
    "more keys": (Unread, {"add_bias_kv": True, "add_zero_attn": True}, True),
    "other widths": (Unread, {"kdim": 24, "vdim": 24, "bias": False}, True),
    "weights read": (Read, {"batch_first": True}, False),
}


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("name", MODULES)
def test_multi_head_attention_makes_no_weights_that_nobody_reads(name: str, backend: str) -> None:
    make, told, unread = MODULES[name]
    module, given = make(**told), (torch.randn(2, 5, 24, requires_grad=True), torch.randn(2, 5, 24, requires_grad=True))
    found, prims = compiled(module, backend, *given)
    assert (ATTENTION in prims) == unread
    expected = module(*given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    leaves = (*given, *module.parameters())
    got = torch.autograd.grad(found.square().sum(), leaves)
    for one, other in zip(got, torch.autograd.grad(expected.square().sum(), leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
