"""FlexAttention is attention with a mask where it is that, and its definition elsewhere; nothing of it runs on the host."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import vendor_sdk
from tests.toys import use_kind
from vendor_sdk.capture.flex import attention

pytestmark = pytest.mark.usefixtures("fresh_graphs")
Tensor = torch.Tensor
BACKENDS = ("toyloops", "cpp_cpu", "onnxruntime")
ROWS, KEYS, WIDTH = 24, 40, 8

SLOPES = torch.tensor([0.5, -0.25, 1.0, 0.125])
TABLE = torch.randn(ROWS + KEYS, generator=torch.Generator().manual_seed(0))
TEXTS = torch.tensor([[0] * 10 + [1] * 14, [0] * 20 + [1] * 4])
KEYS_OF_TEXTS = torch.tensor([[0] * 9 + [1] * 31, [0] * 40])


def causal(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return row >= key


def windowed(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return (row >= key) & (row - key < 5)


def same_text(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    """Of which the last rows of the second batch see nothing."""
    return TEXTS[batch, row] == KEYS_OF_TEXTS[batch, key]


def alibi(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return score + (key - row) * SLOPES[head]


def relative(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return TABLE[key - row + ROWS] + score


def hidden(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return torch.where(row >= key, score + 0.5 * head, -math.inf)


def capped(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return 3 * torch.tanh(score / 3)


def capped_alibi(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    """With another slope than 1 where scores are small, in other words."""
    score = score * 0.5 / 2
    score = -2.0 * score.tanh()
    return torch.where(row >= key, score + (key - row) * SLOPES[head], -math.inf)


def scaled(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return 2 * score / 3


def sharp(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    """A cap of what was added: no mask."""
    return 2 * torch.tanh((score + head) / 2)


def tempered(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    return score * (1 + head) - row * 0.1


MASKED, GENERAL = "scaled_dot_product_attention", "general_attention"
CALLS: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "plain": ({}, MASKED),
    "scaled": ({"scale": 0.3}, MASKED),
    "scaled by the score": ({"score_mod": scaled, "mask": causal}, MASKED),
    "causal": ({"mask": causal}, MASKED),
    "window": ({"mask": windowed}, MASKED),
    "texts": ({"mask": same_text}, MASKED),
    "alibi": ({"score_mod": alibi}, MASKED),
    "relative, causal": ({"score_mod": relative, "mask": causal}, MASKED),
    "hidden by the score": ({"score_mod": hidden}, MASKED),
    "capped": ({"score_mod": capped}, GENERAL),
    "capped, texts": ({"score_mod": capped, "mask": same_text}, GENERAL),
    "capped, alibi": ({"score_mod": capped_alibi, "scale": 3.0}, GENERAL),
    "capped after a sum": ({"score_mod": sharp, "mask": causal}, None),
    "tempered, window": ({"score_mod": tempered, "mask": windowed}, None),
}
"""What a call is told, and the operator that says it."""


def function_of(told: Mapping[str, Any]) -> Callable[..., Any]:
    given = dict(told)
    mask = given.pop("mask", None)
    if mask is not None:
        given["block_mask"] = create_block_mask(mask, 2 if mask is same_text else None, None, ROWS, KEYS, device="cpu")
    return lambda q, k, v: flex_attention(q, k, v, **given)


def operands(heads: int = 4, batches: int = 2, width: int = WIDTH) -> list[Tensor]:
    shapes = (2, 4, ROWS, WIDTH), (batches, heads, KEYS, WIDTH), (batches, heads, KEYS, width)
    return [torch.randn(shape) for shape in shapes]


def agree(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, check_dtype=False, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_eagers(name: str, backend: str) -> None:
    function, given = function_of(CALLS[name][0]), operands()
    expected = function(*(x.double() for x in given))
    agree(torch.compile(function, backend=use_kind(backend))(*given), expected)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_an_operator_where_there_is_one_and_the_rest_has_none_on_the_host(name: str, backend: str) -> None:
    told, operator = CALLS[name]
    report = vendor_sdk.explain(function_of(told), *operands(), backend=use_kind(backend))
    prims = {each["prim"] for graph in json.loads(report.to_json())["graphs"] for each in graph["placements"]}
    assert prims & {MASKED, GENERAL} == {operator} - {None}
    assert report.counts["native"]
    assert not report.counts.get("host")


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_that_share_keys_batches_that_share_them_and_other_widths(backend: str) -> None:
    kind = use_kind(backend)
    for told in ({"mask": same_text}, {"score_mod": capped, "mask": same_text}):
        for given, more in ((operands(heads=2), {"enable_gqa": True}), (operands(batches=1), {}), (operands(width=5), {})):
            torch._dynamo.reset()
            function = function_of({**told, **more})
            agree(torch.compile(function, backend=kind)(*given), function(*(x.double() for x in given)))


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_exponentials_that_are_asked_for(backend: str) -> None:
    function, given = function_of({"mask": same_text, "return_lse": True}), operands()
    result, total = torch.compile(function, backend=use_kind(backend))(*given)
    expected = function(*(x.double() for x in given))
    agree((result, total), expected)
    assert (total == -math.inf).any()


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["alibi", "capped"])
def test_sizes_may_be_symbols(name: str, backend: str) -> None:
    function = function_of(CALLS[name][0])
    compiled = torch.compile(function, backend=use_kind(backend), dynamic=True)
    for rows, keys in ((7, 9), (24, 40), (33, 17)):
        given = [torch.randn(2, 4, n, WIDTH) for n in (rows, keys, keys)]
        agree(compiled(*given), function(*(x.double() for x in given)))


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["toyloops", "cpp_cpu"])
@pytest.mark.parametrize("name", ["causal", "alibi", "texts", "capped, texts", "capped, alibi"])
def test_gradients(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on devices of which torch takes them: on CPU it refuses calls with gradients."""
    monkeypatch.setattr(flex, "_validate_device", lambda query, key, value: None)
    function = function_of(CALLS[name][0])
    compiled = torch.compile(function, backend=use_kind(backend))
    ours = [x.requires_grad_() for x in operands()]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    weights = torch.randn(2, 4, ROWS, WIDTH)
    for run, given in ((compiled, ours), (function, theirs)):
        (run(*given) * weights).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        agree(a.grad, b.grad)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["toyloops", "cpp_cpu"])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_what_is_added_may_be_learned(cap: float | None, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda query, key, value: None)

    def function(table: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def biased(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
            return (score if cap is None else cap * torch.tanh(score / cap)) + table[head, key - row + ROWS]

        return flex_attention(q, k, v, score_mod=biased)

    ours = [x.requires_grad_() for x in (torch.randn(4, ROWS + KEYS), *operands())]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    for run, given in ((torch.compile(function, backend=use_kind(backend)), ours), (function, theirs)):
        run(*given).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, check_dtype=False, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("name", ["plain", "texts", "relative, causal", "capped, texts"])
def test_halves(name: str, backend: str) -> None:
    function, given = function_of(CALLS[name][0]), [x.bfloat16() for x in operands()]
    result = torch.compile(function, backend=use_kind(backend))(*given)
    assert result.dtype == torch.bfloat16
    expected = function(*(x.double() for x in given))
    torch.testing.assert_close(result, expected, check_dtype=False, rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("span", [1, 150])
def test_whole_blocks_that_a_mask_hides(span: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several tiles' rows, some of which see nothing."""
    monkeypatch.setattr(flex, "_validate_device", lambda query, key, value: None)
    rows, keys = 300, 700

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return ((2 * row - key).abs() < span) & (row < 200)

    mask = create_block_mask(seen, None, None, rows, keys, device="cpu")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, block_mask=mask)

    ours = [torch.randn(2, 3, n, 16, requires_grad=True) for n in (rows, keys, keys)]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    compiled = torch.compile(function, backend=use_kind(backend))
    results = [run(*given) for run, given in ((compiled, ours), (function, theirs))]
    agree(*results)
    weights = torch.randn(2, 3, rows, 16)
    for result in results:
        (result * weights).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        agree(a.grad, b.grad)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["causal", "capped"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2)])
def test_results_lie_like_queries(name: str, order: tuple[int, ...], backend: str) -> None:
    """So that views of them are what they are in eager mode."""
    call = function_of(CALLS[name][0])
    q, k, v = operands()
    q = q.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        result = call(q, k, v)
        lines = result.permute(order if order[-1] == 3 else (0, 1, 2, 3))
        return result, lines.flatten(-2).view(-1)

    expected = function(q, k, v)
    got = torch.compile(function, backend=use_kind(backend))(q, k, v)
    agree(got, expected)
    assert [x.stride() for x in got] == [x.stride() for x in expected]


def test_the_definition_has_its_own_gradients() -> None:
    given = [x.double()[:, :2, :4, :3].requires_grad_() for x in operands()]

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (row > key) & (row < 3)  # neither the first row nor the last sees anything

    def whole(*x: Tensor) -> tuple[Tensor, Tensor]:
        result, total, _ = attention(*x, capped, seen, 0.5, (), ())
        return result, total[:, :, 1:3]

    assert torch.autograd.gradcheck(whole, given)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_beside_integers_in_vmap(backend: str) -> None:
    """The graph has a conversion of a number then."""
    x = torch.arange(6, dtype=torch.int32)
    compiled = torch.compile(lambda x: torch.vmap(lambda a: a * 0.1 + 2)(x), backend=use_kind(backend))
    torch.testing.assert_close(compiled(x), x * 0.1 + 2)
