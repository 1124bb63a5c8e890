"""Attention with dropout or a cap: what its operator keeps, its derivative, and the passes over graphs that have it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from tests.toys import register_toys
from vendor_sdk.capture.attention import keep_attention
from vendor_sdk.capture.foresee import foreseen
from vendor_sdk.capture.heads import share_heads
from vendor_sdk.capture.masks import know_masks
from vendor_sdk.ir.loop_ops import philox
from vendor_sdk.pipeline import recording
from vendor_sdk.prims import dropout
from vendor_sdk.prims.attention_operator import BACKWARD_OPERATOR, OPERATOR
from vendor_sdk.prims.dropout import SEEDS, kept_factor, weight_factors, words_kept
from vendor_sdk.prims.random import frequency_misfit
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
SEED = torch.tensor([7_400_123_456_789_012_345])


def drawn(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, **options)


def test_the_generator_is_philox_of_seven_rounds() -> None:
    """Its authors' known answer for zeros (Random123, kat_vectors: ``philox4x32 7``)."""
    zero = torch.zeros(1, dtype=torch.int64)
    assert [int(word) for word in dropout.philox(zero, [zero, zero])] == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


def test_the_generator_is_that_of_loops_but_for_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "ROUNDS", 10)
    first, second = torch.arange(5), torch.arange(2**32 - 6, 2**32 - 1)
    for word, found in enumerate(dropout.philox(SEED, [first, second])):
        assert torch.equal(found, philox(SEED, (second << 32) + first, torch.tensor(word)))


@pytest.mark.parametrize(("rows", "keys"), [(5, 1), (16, 4), (17, 11), (40, 64)])
def test_each_weight_has_half_a_word(rows: int, keys: int) -> None:
    """As the definition has it, one by one; the words of all at once."""
    factors = weight_factors(torch.empty(2, 3, rows, 8), torch.empty(2, 3, keys, 8), SEED, 0.3)
    squares = -(-rows // 16)
    places = list(itertools.product(range(6), range(rows), range(keys)))
    counters = [(key // 16 * 4 + key % 8 // 2, (matrix * squares + row // 16) * 8 + row % 8) for matrix, row, key in places]
    words = torch.stack(dropout.philox(SEED, list(torch.tensor(counters).unbind(1)))).tolist()
    for place, (matrix, row, key) in enumerate(places):
        word = words[row // 8 % 2 * 2 + key // 8 % 2][place]
        half = word >> 16 if key % 2 else word & 0xFFFF
        assert bool(factors.view(6, rows, keys)[matrix, row, key]) == (half < words_kept(0.3))
    torch.testing.assert_close(factors[factors > 0].unique(), torch.tensor([kept_factor(0.3)]))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_what_is_kept_is_independent(p: float) -> None:
    """Of neighbours among keys, rows and heads, of the same place under the next seed."""
    torch.manual_seed(0)
    query, key = torch.empty(2, 4, 64, 8), torch.empty(2, 4, 96, 8)
    seeds = torch.randint(SEEDS, (1,))
    kept = weight_factors(query, key, seeds, p) > 0
    count = kept.numel()
    assert not frequency_misfit(int(kept.sum()), count, 1 - p, "a weight that is kept")
    down, across = kept.view(2, 4, 4, 16, 96), kept.view(2, 4, 64, 6, 16)
    others = {
        "key": (kept[..., 0::2], kept[..., 1::2]),
        "word of keys": (across[..., :8], across[..., 8:]),
        "square of keys": (across[..., 0::2, :], across[..., 1::2, :]),
        "row": (kept[:, :, 0::2], kept[:, :, 1::2]),
        "word of rows": (down[:, :, :, :8], down[:, :, :, 8:]),
        "square of rows": (down[:, :, 0::2], down[:, :, 1::2]),
        "head": (kept[:, 0::2], kept[:, 1::2]),
        "batch": (kept[0], kept[1]),
        "seed": (kept, weight_factors(query, key, seeds + 1, p) > 0),
        "high word of the seed": (kept, weight_factors(query, key, seeds + (1 << 32), p) > 0),
    }
    for what, (one, other) in others.items():
        both = int((one & other).sum())
        assert not frequency_misfit(both, one.numel(), (1 - p) ** 2, f"kept with the next {what}")


def test_probabilities() -> None:
    assert (words_kept(0.0), words_kept(0.5), words_kept(1.0)) == (2**16, 2**15, 0)
    assert (kept_factor(0.0), kept_factor(0.5), kept_factor(1.0)) == (1.0, 2.0, 0.0)
    for p in (0.1, 0.3, 1e-6, 1 - 1e-4):
        assert kept_factor(p) * words_kept(p) == pytest.approx(2**16), "expectations stay"
        assert abs(words_kept(p) / 2**16 - (1 - p)) <= 2**-17
    assert kept_factor(1 - 1e-6) == 0, "the probability is 1 as it is rounded"
    query = torch.empty(1, 2, 5, 8)
    assert (weight_factors(query, query, SEED, 0.0) == 1).all()
    assert not weight_factors(query, query, SEED, 1.0).any()


MASKS: dict[str, Callable[[], Tensor | None]] = {
    "none": lambda: None,
    "bools, a row that sees nothing": lambda: (torch.rand(5, 11) > 0.3) & (torch.arange(5) != 2)[:, None],
    "numbers": lambda: drawn(2, 1, 5, 11),
}


@pytest.mark.parametrize("chance", [0.3, 0.0])
@pytest.mark.parametrize("cap", [None, 0.7, 30.0])
@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("name", MASKS)
def test_results_and_gradients(name: str, shared: int, cap: float | None, chance: float) -> None:
    torch.manual_seed(0)
    mask = MASKS[name]()
    leaves = [drawn(2, heads, rows, 8, requires_grad=True) for heads, rows in ((4, 5), (shared, 11), (shared, 11))]
    query, key, value = leaves[0], *(x.repeat_interleave(4 // shared, 1) for x in leaves[1:])
    scores = query @ key.mT / 8**0.5
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    added = 0 if mask is None else mask.log() if mask.dtype == torch.bool else mask
    weights = torch.softmax((scores + added).clamp(min=-1e300), -1)
    weights = weights if name != "bools, a row that sees nothing" else weights * mask
    exact = (weights * (weight_factors(query, key, SEED, chance) if chance else 1)) @ value
    out, logsumexp = OPERATOR(*leaves, SEED if chance else None, chance, False, mask, cap=cap)
    torch.testing.assert_close(out, exact)
    assert out.stride() == (4 * 5 * 8, 8, 4 * 8, 1), "heads of a row lie beside each other"
    assert not logsumexp.requires_grad
    grad = torch.randn_like(exact)
    found, expected = (torch.autograd.grad(result, leaves, grad) for result in (out, exact))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_it_is_an_operator_as_torch_wants_them() -> None:
    leaves = [drawn(2, 4, 5, 8, requires_grad=True) for _ in range(3)]
    opcheck(OPERATOR, (*leaves, SEED, 0.3, True), {"scale": 0.2})
    opcheck(OPERATOR, (*leaves, None, 0.0, True), {"cap": 2.0})


@pytest.mark.parametrize(("given", "cap", "words"), [
    ((drawn(4, 5, 8), drawn(4, 5, 8), drawn(4, 5, 8), SEED, 0.1), None, "4 dimensions"),
    ((drawn(1, 4, 5, 8), drawn(1, 4, 5, 8).float(), drawn(1, 4, 5, 8), SEED, 0.1), None, "dtype"),
    ((drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), torch.tensor(3), 0.1), None, "seed"),
    ((drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), SEED, 1.5), None, "probability"),
    ((drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), None, 0.5), None, "needs a seed"),
    ((drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), drawn(1, 4, 5, 8), None, 0.0), -2.0, "cap"),
])  # fmt: skip
def test_operands_that_do_not_go_together(given: tuple[Any, ...], cap: float | None, words: str) -> None:
    with pytest.raises(RuntimeError, match=f"general_attention.*{words}"):
        OPERATOR(*given, cap=cap)


# In graphs


def joint(function: Callable[..., Tensor], *inputs: Tensor) -> torch.fx.GraphModule:
    """Gradients by all operands as one graph."""

    def gradients(grad: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in operands]
        return torch.autograd.grad(function(*leaves), leaves, grad)

    grad = torch.randn(inputs[0].shape)
    return make_fx(gradients, tracing_mode="fake")(grad, *inputs)


def test_gradients_are_of_the_heads_that_are_shared() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = [x.unsqueeze(2).expand(2, 2, 3, 5, 8).reshape(2, 6, 5, 8) for x in (k, v)]
        result: Tensor = OPERATOR(q, *wide, torch.full((1,), 5), 0.25)[0]
        return result

    inputs = [torch.randn(2, heads, 5, 8) for heads in (6, 2, 2)]
    module = joint(attend, *inputs)
    grad = torch.randn(2, 6, 5, 8)
    expected = module(grad, *inputs)
    share_heads(module.graph)
    module.recompile()
    module.graph.lint()
    (backward,) = module.graph.find_nodes(op="call_function", target=BACKWARD_OPERATOR)
    assert backward.args[2].meta["val"].shape[1] == 2
    torch.testing.assert_close(module(grad, *inputs), expected)


@pytest.mark.parametrize(("visible", "causal"), [("lower", True), ("all", False)])
def test_masks_that_no_input_decides_are_known(visible: str, causal: bool) -> None:
    def attend(q: Tensor) -> Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool)
        result: Tensor = OPERATOR(q, q, q, torch.full((1,), 5), 0.25, False, mask.tril() if causal else mask)[0]
        return result

    query, grad = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    module = joint(attend, query)
    expected = module(grad, query)
    know_masks(module.graph)
    module.recompile()
    module.graph.lint()
    calls = {node.target: node for node in module.graph.nodes if node.target in (OPERATOR, BACKWARD_OPERATOR)}
    assert [calls[target].args[at:] for target, at in ((OPERATOR, 5), (BACKWARD_OPERATOR, 8))] == [(causal,), (causal,)]
    torch.testing.assert_close(module(grad, query), expected)


def test_its_kernels_are_begun_before_the_graph_is_traced() -> None:
    found: list[Any] = []

    def keep(module: Any, _: Any) -> Any:
        keep_attention(module)
        found.append(foreseen(module))
        return module

    query = torch.randn(1, 2, 5, 8, requires_grad=True)
    torch._dynamo.reset()
    torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1), backend=keep)(query)
    dtypes = {torch.float32}
    assert found == [{"general_attention": dtypes, "general_attention_backward": dtypes}]


@pytest.mark.parametrize("backend", ["toyloops", "onnxruntime"])
def test_a_backend_without_it_runs_its_parts(backend: str, request: pytest.FixtureRequest) -> None:
    """With gradients that drop what the results did: a sum over values of what they weigh is the same both ways."""
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    register_toys()
    torch._dynamo.reset()
    torch.manual_seed(0)
    query, value = torch.randn(2, 4, 12, 8), torch.randn(2, 4, 12, 8, requires_grad=True)
    graphs: list[CompiledGraph] = []
    with recording(graphs.append):
        run = torch.compile(lambda q, v: F.scaled_dot_product_attention(q, q, v, dropout_p=0.25), backend=backend)
        out = run(query, value)
        grad = torch.randn_like(out)
        torch.autograd.backward(out, grad)
    assert {p.prim for graph in graphs for p in graph.placements} >= {"randint"}
    assert value.grad is not None
    torch.testing.assert_close((value.grad * value).sum(), (grad * out).sum())
