"""Attention that a program spells out is the one operator, with its numbers and gradients; what is not quite it stays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from tests.toys import use_kind
from vendor_sdk.pipeline import recording

pytestmark = pytest.mark.usefixtures("fresh_graphs")
Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor, Tensor], Any]
BATCH, HEADS, ROWS, KEYS, WIDTH = 2, 3, 20, 28, 16
ATTENTION, GENERAL = "scaled_dot_product_attention", "general_attention"

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


def added_twice(q: Tensor, k: Tensor, v: Tensor, number: float = LEAST) -> Tensor:
    scores = torch.add(BIAS, (q @ k.mT).mul(0.5)) + torch.where(PADDED, LEAST, 0.0)
    return torch.softmax(torch.where(HIDDEN, number, scores), -1) @ v


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
    return torch.bmm(torch.baddbmm(added, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.5).softmax(2), v.flatten(0, 1))


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q[1, 2] @ k[1, 2].T * -0.25, 1) @ v[1, 2]


def one_head_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k[:, :1].mT * 0.25, -1) @ v[:, :1]


def without_a_letter_for_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("b h i d, b j d -> b h i j", q * 0.25, k[:, 1])
    return torch.einsum("bhij,bjd->bhid", torch.softmax(scores.masked_fill(HIDDEN, -1e9), -1), v[:, 1])


def values_by_channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = F.softmax(torch.bmm(q[:, 0], k[:, 0].mT) * 0.25, dim=2).permute(0, 2, 1)
    return torch.bmm(v[:, 0].mT, weights)


def heads_beside_batches(q: Tensor, k: Tensor, v: Tensor, number: float = LEAST) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)) + BIAS[:1]
    weights = weights.view(BATCH, HEADS, ROWS, KEYS).masked_fill(PADDED, -math.inf).view(BATCH * HEADS, ROWS, KEYS)
    weights = weights.masked_fill(HIDDEN.expand(-1, HEADS, -1, -1).flatten(0, 1), number)
    return torch.bmm(F.softmax(weights, dim=-1, dtype=torch.float32).type_as(weights), v)


def heads_apart_for_the_mask(q: Tensor, k: Tensor, v: Tensor, number: float = LEAST) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v))
    added = BIAS.repeat(BATCH, 1, 1).to(q.dtype)
    weights = added.baddbmm(batch1=q, batch2=k.transpose(1, 2), beta=1.0, alpha=0.25).view(BATCH, HEADS, ROWS, -1)
    weights = F.softmax(torch.where(HIDDEN, number, weights), dim=-1)
    return torch.bmm(weights.view(BATCH * HEADS, ROWS, -1), v).view(BATCH, HEADS, ROWS, WIDTH).transpose(1, 2)


def one_matrix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.mm(torch.softmax(torch.mm(q[0, 0], k[0, 0].t()), -1), v[0, 0])


def heads_of_keys_repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x[:, :1, None].expand(-1, -1, HEADS, -1, -1).reshape(BATCH, HEADS, KEYS, WIDTH) for x in (k, v))
    return torch.softmax(q @ k.mT * 0.25 + BIAS, -1) @ v


def windows_apart_for_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (torch.cat((x, x * 0.5)) for x in (q, k, v))
    scores = (q * 0.25).matmul(k.transpose(-2, -1)) + BIAS.unsqueeze(0)
    scores = scores.view(q.size(0) // BATCH, BATCH, HEADS, ROWS, KEYS) + torch.where(HIDDEN, -100.0, 0.0)[None]
    return F.softmax(scores.view(-1, HEADS, ROWS, KEYS), dim=-1).matmul(v)


def windows_beside_heads(q: Tensor, k: Tensor, v: Tensor, number: float = LEAST) -> Tensor:
    q, k, v = (torch.stack((x, x * 0.5, x * 2)) for x in (q, k, v))
    scores = torch.einsum("bnhid,bnhjd->bnhij", q, k) * 0.25 + BIAS[:1]
    scores = scores.masked_fill(HIDDEN, number).masked_fill(PADDED.expand(3, -1, -1, -1, -1), -math.inf)
    return torch.einsum("bnhij,bnhjd->bnihd", scores.softmax(-1), v)


def one_head_of_keys_in_windows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (torch.stack((x, x * 0.5)) for x in (q, k[:, :1], v[:, :1]))
    return torch.softmax((q @ k.mT).masked_fill(HIDDEN, -math.inf), -1) @ v


def scaled_after_adding(q: Tensor, k: Tensor, v: Tensor, number: float = LEAST) -> Tensor:
    scores = (q @ k.mT).view(BATCH, HEADS, ROWS, KEYS).masked_fill(HIDDEN, number) + BIAS
    scores *= 0.25
    return torch.softmax((scores - torch.where(PADDED, 1e9, 0.0)) / 2, -1) @ v


def scaled_after_leaving_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(HIDDEN, -math.inf) * 0.25, -1) @ v


def less_the_largest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * 0.25
    sim = sim - sim.amax(dim=-1, keepdim=True).detach()
    return torch.einsum("bhij,bhjd->bhid", sim.masked_fill(HIDDEN, -torch.finfo(sim.dtype).max).softmax(dim=-1), v)


def less_the_largest_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT + BIAS
    scores -= torch.max(scores, -1, True)[0]
    return torch.softmax(scores, -1) @ v


def less_the_largest_value(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.softmax(scores - scores.max(dim=-1, keepdim=True).values, -1) @ v


def hidden_by_integers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = (~PADDED).long()
    return torch.softmax(q @ k.mT / 4 + (1 - seen) * LEAST, -1) @ v


def by_a_number_a_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * v.mean((0, 2, 3)).exp()[:, None, None]
    return torch.softmax(scores / (k.square().mean() + 1) + BIAS, -1) @ v


def by_a_number_a_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores /= q.norm(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(HIDDEN, -1e9), -1) @ v


def by_a_number_that_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = torch.full([], 4.0)
    scale.mul_(2)
    return torch.softmax(q @ k.mT / scale, -1) @ v


def scores_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q.to(torch.float32), k.to(torch.float32).transpose(-1, -2)) / 4.0
    weights = F.softmax(torch.where(HIDDEN, torch.tensor(LEAST), scores), dim=-1).to(v.dtype)
    return torch.matmul(F.dropout(weights, 0.1, False), v)


def queries_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (x.float() * 0.9 for x in (q, k))
    return F.softmax((q @ k.mT).masked_fill(HIDDEN, -1e9), -1).to(v.dtype) @ v


def values_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax((q @ k.mT).masked_fill(HIDDEN, -math.inf), -1, dtype=torch.float32) @ v.float()


PROGRAMS: tuple[Program, ...] = (
    scaled, factors_of_queries, hidden_and_joined, hidden_in_place, heads_behind_rows, cast_and_added, written_over,
    added_twice, by_a_number_in_a_tensor, heads_in_the_batch, sum_and_product, one_head, one_head_of_keys,
    heads_of_keys_repeated, without_a_letter_for_heads, values_by_channels, one_matrix,
    heads_beside_batches, heads_apart_for_the_mask, windows_apart_for_the_mask, windows_beside_heads,
    one_head_of_keys_in_windows, scaled_after_adding, scaled_after_leaving_out, less_the_largest,
    less_the_largest_in_place, less_the_largest_value, hidden_by_integers, by_a_number_a_head, by_a_number_a_query,
    by_a_number_that_changed,
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


MIXED = {added_twice, heads_beside_batches, heads_apart_for_the_mask, windows_beside_heads, scaled_after_adding}
"""They replace some scores by numbers, and add numbers to others: of a row that both hide from all keys, gradients come to the
others alone, which no operator says. Where minus infinity replaces, it has no part in a softmax."""
REPLACED_BY_INFINITY = [(program.__name__, functools.partial(program, number=-math.inf)) for program in sorted(MIXED, key=str)]
ALL = [(program.__name__, program) for program in PROGRAMS] + [
    (f"{name}_infinity", each) for name, each in REPLACED_BY_INFINITY
]


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", [each for _, each in ALL], ids=[name for name, _ in ALL])
def test_gradients_are_the_programs(program: Program, backend: str) -> None:
    given = operands()
    found, prims = compiled(program, backend, *given)
    if program in MIXED:
        assert ATTENTION not in prims
    else:
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


def _capped_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(torch.tanh(q @ k.mT) * 2), -1) @ v


def _capped_after_adding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(q @ k.mT + BIAS), -1) @ v


def _scaled_by_a_tensor_after_a_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(q @ k.mT) * BIAS[:, :1, :1], -1) @ v


def _replaced_by_what_counts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(HIDDEN, -3.0), -1) @ v


def _hidden_until_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(HIDDEN, -1e4) * 1e-4, -1) @ v


def _less_the_largest_of_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.softmax(scores - scores.amax(-2, keepdim=True).detach(), -1) @ v


def _less_the_largest_of_others(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.softmax(scores - (scores * 2).amax(-1, keepdim=True).detach(), -1) @ v + scores.amax()


def _largest_less_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.softmax(scores.amax(-1, keepdim=True).detach() - scores, -1) @ v


def _by_a_number_a_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * k.norm(dim=-1)[:, :, None], -1) @ v


def _by_a_number_a_head_after_adding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT + BIAS) * v.mean((2, 3), keepdim=True), -1) @ v


def _multiplied_by_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = (~HIDDEN).float()
    return torch.softmax((q @ k.mT) * seen - 1e4 * (1 - seen), -1) @ v


def _of_integers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = ((q * 4).int() @ (k * 4).int().mT).masked_fill(HIDDEN, -99999)
    return torch.softmax(scores, -1, dtype=torch.float32) @ v


def _turned_by_the_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(HIDDEN, -1e9) * -0.5, -1) @ v


def _more_digits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).double(), -1).to(v.dtype) @ v


def _another_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ v[..., :5]


def _keys_written_to(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    own = k * 2
    scores = q @ own.mT
    own.mul_(3)
    return torch.softmax(scores, -1) @ v + own.sum()


def _keys_written_to_by_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    own = k * 2
    scores = q @ own.mT
    F.relu(own, True)
    return torch.softmax(scores, -1) @ v + own.sum()


def _keys_written_to_by_an_operator_of_the_users(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    own = k.detach() * 2
    scores = q @ own.mT
    torch.ops.spelled_out_test.triple(own)
    return torch.softmax(scores, -1) @ v + own.sum()


def _added_to_another(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    other = torch.ones(BATCH, HEADS, ROWS, KEYS)
    again = other.view(-1)
    other += q @ k.mT
    return torch.softmax(other, -1) @ v + again.sum()


def _sum_and_product_in_another(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    other = torch.ones(HEADS, ROWS, KEYS)
    again = other.view(-1)
    return torch.softmax(other.baddbmm_(q[0], k[0].mT), -1) @ v[0] + again.sum()


def _weights_without_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        weights = torch.softmax(q @ k.mT, -1)
    return weights @ v + q.mean() + k.mean()


def _by_a_number_that_changes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = torch.full([], 4.0)
    scores = q @ k.mT / scale
    scale.mul_(2)
    return torch.softmax(scores, -1) @ v * scale


def _one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(k[0, 0] @ q[0, 0, 0], -1) @ v[0, 0]


def _under_a_transform(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.vmap(lambda each: torch.softmax(q @ k.mT, -1) @ each)(torch.stack((v, v * 2)))  # type: ignore[no-any-return]


@torch.library.custom_op("spelled_out_test::softmax", mutates_args=())
def _operator_of_the_users(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x * 3, dim)


_operator_of_the_users.register_fake(lambda x, dim: torch.empty_like(x))


@torch.library.custom_op("spelled_out_test::triple", mutates_args={"x"})
def _triple(x: Tensor) -> None:
    x.mul_(3)


def _another_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.ops.spelled_out_test.softmax(q @ k.mT, -1) @ v  # type: ignore[no-any-return]


def _with_the_dtype_of_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(BIAS.type_as(q @ k.mT), -1) @ v


def _values_weigh(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v[..., :ROWS, :].mT @ torch.softmax(q @ k.mT, -1)


APART = (
    _weights_too, _scores_too, _over_rows, _capped_twice, _capped_after_adding, _scaled_by_a_tensor_after_a_cap,
    _replaced_by_what_counts, _hidden_until_scaled, _turned_by_the_scale,
    _by_a_number_a_key, _by_a_number_a_head_after_adding, _multiplied_by_the_mask, _more_digits, _of_integers,
    _less_the_largest_of_rows, _less_the_largest_of_others, _largest_less_scores, _another_width, _with_the_dtype_of_scores,
    _weights_without_gradients, _one_query, _under_a_transform, _values_weigh,
)  # fmt: skip
WRITTEN = (
    _keys_written_to, _keys_written_to_by_place, _keys_written_to_by_an_operator_of_the_users, _added_to_another,
    _sum_and_product_in_another, _another_softmax, _by_a_number_that_changes,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", APART, ids=lambda program: program.__name__.strip("_"))
def test_what_is_not_quite_it_stays(program: Program, backend: str) -> None:
    given = operands()
    found, prims = compiled(program, backend, *given)
    assert not any("attention" in prim for prim in prims)
    expected = program(*given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found, expected = (x[0] if isinstance(x, tuple) else x for x in (found, expected))
    got, wanted = (torch.autograd.grad(x.sin().sum(), given, allow_unused=True) for x in (found, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", WRITTEN, ids=lambda program: program.__name__.strip("_"))
def test_what_others_read_or_write_stays(program: Program, backend: str) -> None:
    given = operands(grad=False)
    found, prims = compiled(program, backend, *given)
    assert not any("attention" in prim for prim in prims)
    torch.testing.assert_close(found, program(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_tensors_of_other_classes_stay_with_products_and_a_softmax(backend: str) -> None:
    given = [TwoTensor(x, x + 1) for x in operands(grad=False)]  # type: ignore[no-untyped-call]
    found: Any = compiled(scaled, backend, *given)[0]
    expected: Any = scaled(*given)
    torch.testing.assert_close((found.a, found.b), (expected.a, expected.b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_a_program_may_write_to_what_it_computed(backend: str) -> None:
    given = [x.detach().contiguous().requires_grad_() for x in operands()]

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = scaled(q, k, v).transpose(1, 2)
        result += 1
        return result

    found, prims = compiled(program, backend, *given)
    assert ATTENTION in prims
    expected = program(*given)
    for one, other in zip(torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    torch.autograd.grad(compiled(scaled, backend, *given)[0].add_(1).sum(), given)


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
@pytest.mark.parametrize("least", [LEAST, -1e9, -1e4])
@pytest.mark.parametrize("added", ["nothing", "bias", "as_low"])
def test_rows_hidden_from_all_keys_by_a_number_stay_those_of_the_program(added: str, least: float, backend: str) -> None:
    hidden, others = HIDDEN.clone(), torch.rand(ROWS, KEYS, generator=_generator) > 0.6
    hidden[:, :, 3] = True
    some = torch.where(torch.arange(KEYS) % 2 == 0, least, 0.0)

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q * 5 @ k.mT).masked_fill(hidden, least)
        scores = torch.where(others, scores, least)
        if added == "as_low":  # which hides the other half of the keys of a row
            scores = torch.where(torch.arange(KEYS) % 2 == 0, scores, least) + some
        return torch.softmax(scores + BIAS if added == "bias" else scores, -1) @ v

    for grad in (False, True):
        given = operands(grad=grad)
        found, prims = compiled(program, backend, *given)
        assert (ATTENTION in prims) == (added == "nothing" or (least == LEAST and not grad))
        expected = program(*given)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


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


def over_the_root_of_a_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(HIDDEN, -1e9) * 2, -1) @ v


def times_the_power_of_a_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores *= k.size(-1) ** -0.5
    return torch.softmax(scores - torch.where(PADDED, 1e9, 0.0), -1) @ v


def after_adding_over_a_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT + BIAS) / k.size(-1) ** 0.5, -1) @ v


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", [over_the_root_of_a_width, times_the_power_of_a_width, after_adding_over_a_width])
def test_scales_may_be_of_symbols(program: Program, backend: str) -> None:
    kind, graphs = use_kind(backend), list[Any]()
    function = torch.compile(program, backend=kind)
    with recording(graphs.append):
        for width in (8, 24, 40):
            given = [torch.randn(BATCH, HEADS, size, width, requires_grad=True) for size in (ROWS, KEYS, KEYS)]
            found, expected = function(*given), program(*given)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            grads = (torch.autograd.grad(each.sin().sum(), given) for each in (found, expected))
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 4  # forward and backward: for one width, then for all
    assert (ATTENTION in {placed.prim for placed in graphs[2].placements}) == (program is not after_adding_over_a_width)


def in_windows_from_the_start(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.unflatten(0, (-1, BATCH)) for x in (q, k, v))
    return (torch.softmax((q @ k.mT).masked_fill(HIDDEN, -1e9), -1) @ v).flatten(0, 1)


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("program", [windows_apart_for_the_mask, in_windows_from_the_start])
def test_how_many_windows_there_are_may_be_a_symbol(program: Program, backend: str) -> None:
    kind, graphs = use_kind(backend), list[Any]()
    function = torch.compile(program, backend=kind)
    with recording(graphs.append), torch.no_grad():
        for times in (2, 3, 5):
            given = [x.repeat(times, 1, 1, 1) for x in operands(grad=False)]
            for each in given:
                torch._dynamo.mark_dynamic(each, 0)
            torch.testing.assert_close(function(*given), program(*given), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert ATTENTION in {placed.prim for placed in graphs[0].placements}


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("program", [scores_in_float32, queries_in_float32, values_in_float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_may_have_another_dtype(dtype: torch.dtype, program: Program, backend: str) -> None:
    given = operands(dtype=dtype)
    differentiated = backend == "cpp_cpu"
    with torch.set_grad_enabled(differentiated):
        found, prims = compiled(program, backend, *given)
    assert ATTENTION in prims
    assert not prims & {"bmm", "softmax"}
    expected = program(*given)
    wide = [x.detach().float().requires_grad_() for x in given]
    exact = program(*wide)
    assert found.dtype == expected.dtype
    assert float((found - exact).detach().abs().max()) <= 1.1 * float((expected - exact).detach().abs().max()) + 1e-6
    if not differentiated:
        return
    grad = torch.randn(exact.shape)
    grads = [torch.autograd.grad(x, y, grad.to(x.dtype)) for x, y in ((found, given), (expected, given), (exact, wide))]
    for one, other, right in zip(*grads, strict=True):
        assert float((one - right).norm()) <= 1.5 * float((other - right).norm())


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


def capped_and_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.tanh(torch.matmul(q, k.transpose(2, 3)) * 0.5 / 3.0)
    scores = scores * 3.0 + BIAS
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def capped_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return (scores.mul_(0.1).tanh_() * -4).masked_fill_(HIDDEN, LEAST).softmax(-1) @ v


def capped_by_one_and_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * BIAS[:, :1, :1]
    return torch.einsum("bhij,bhjd->bhid", ((scores.tanh() + BIAS) * 1.5).softmax(-1), v)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("program", [capped_and_added, capped_in_place, capped_by_one_and_scaled])
def test_capped_scores(program: Program, backend: str) -> None:
    given = operands()
    for grad in (False, True):
        found, prims = compiled(program, backend, *(x.detach().requires_grad_(grad) for x in given))
        assert GENERAL in prims
        assert (f"{GENERAL}_backward" in prims) == grad
        assert not prims & {"bmm", "mm", "tanh"}
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = program(*wide)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    found, _ = compiled(program, backend, *given)
    grad = torch.randn(found.shape)
    for one, other in zip(
        torch.autograd.grad(found, given, grad), torch.autograd.grad(expected, wide, grad.double()), strict=True
    ):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_dropped_weights(backend: str) -> None:
    """A weight is kept or not, and multiplied: values that are one tell how many, forward as backward."""
    query, key = (torch.randn(4, 4, 64, WIDTH) for _ in range(2))
    value = torch.ones(4, 4, 64, WIDTH, requires_grad=True)

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(q @ k.mT * 0.25, -1), 0.25, True) @ v

    found, prims = compiled(program, backend, query, key, value)
    assert GENERAL in prims
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


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_a_softmax_may_come_after_thousands_of_steps(backend: str) -> None:
    def program(x: Tensor) -> Tensor:
        scores = x
        for _ in range(1200):
            scores = scores + x
        return torch.softmax(scores * 1e-3, -1) @ x

    x = torch.randn(1, 4, 8, 8)
    found, prims = compiled(program, backend, x)
    assert ATTENTION not in prims
    torch.testing.assert_close(found, program(x))
