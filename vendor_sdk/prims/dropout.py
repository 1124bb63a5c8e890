"""Attention with dropout: the operator, its derivative, and which weights it keeps.

Torch's operators for it give the backward pass the state of a generator, of one vendor's hardware; the one for the CPU takes
none, so that its gradients could not drop what its results did. Here a seed is an operand, drawn in the graph like any random
number, and what is kept is a function of the seed and the place of a weight alone. So no pass writes it down, every kernel
may compute it again for the block that it has, and all that compute it keep the same.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"
# (torch.ops is untyped: every operator call is an Any. So are the methods of torch.library.)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vendor_sdk.prims.widen import computation_dtype, number

aten = torch.ops.aten
Tensor = torch.Tensor

_TAIL = "Tensor seed, float dropout_p, bool is_causal=False, Tensor? attn_mask=None, *, float? scale=None"
_LIBRARY = torch.library.Library("vendor_sdk", "FRAGMENT")
_LIBRARY.define(f"dropout_attention(Tensor query, Tensor key, Tensor value, {_TAIL}) -> (Tensor, Tensor)")
_LIBRARY.define(
    "dropout_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    f"{_TAIL}) -> (Tensor, Tensor, Tensor)"
)
OPERATOR = torch.ops.vendor_sdk.dropout_attention.default
"""``dropout_attention(query, key, value, seed, dropout_p, is_causal, attn_mask, scale)``: ``out`` and ``logsumexp``.

* query (batch, heads, rows, width), key (batch, shared, keys, width), value (batch, shared, keys, depth), of one floating
  dtype; ``heads`` is a multiple of ``shared``. ``attn_mask`` broadcasts to (batch, heads, rows, keys): bools, or numbers
  that are added to the scores.
* seed: one int64, of shape (1,).
* out (batch, heads, rows, depth): the softmax over all keys, of which each weight is multiplied by ``kept_factor(dropout_p)``
  or by 0 (``weight_factors``), times the values. Rows without a key that they see are zero.
* logsumexp (batch, heads, rows): the logarithm of the sum of the exponentials of all scores, in float32 for halves.

Both results and the three gradients lie in memory as torch's attention on CPU has them: rows outside of heads.
"""
BACKWARD_OPERATOR = torch.ops.vendor_sdk.dropout_attention_backward.default
"""The gradients by query, key and value for the same seed."""

SEEDS = 2**63 - 1
"""Seeds are from 0 to this, without it."""
ROUNDS = 7
"""Of Philox 4x32: the fewest with which it passes all of BigCrush (Salmon and others, table 2)."""
SQUARE = 16
"""Rows and keys of the squares that weights are divided into."""
_WORDS = 2**16
_MASK = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85


def words_kept(dropout_p: float) -> int:
    """How many of the 2**16 words of 16 bits keep their weight: those below this number.

    So the probability is rounded to a multiple of 2**-16.
    """
    return round((1 - dropout_p) * _WORDS)


def kept_factor(dropout_p: float) -> float:
    """What the weights that are kept are multiplied by, 1 / (1 - p) for the probability as it is rounded, so that no weight's
    expectation changes; 0 where none is kept."""
    kept = words_kept(dropout_p)
    return _WORDS / kept if kept else 0.0


def philox(seed: Tensor, counter: Sequence[Tensor]) -> list[Tensor]:
    """The four words of Philox 4x32-7, as int64 in [0, 2**32) (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
    as 1, 2, 3", SC 2011).

    Args:
        seed: int64, any number: the key.
        counter: two words, int64 in [0, 2**32); the other two are 0. All three broadcast.
    """

    def constant(value: int) -> Tensor:
        return number(value, torch.int64, seed)

    low, half = constant(_MASK), constant(32)

    def below(x: Tensor) -> Tensor:
        return aten.bitwise_and.Tensor(x, low)

    def above(x: Tensor) -> Tensor:
        return below(aten.bitwise_right_shift.Tensor(x, half))

    state = [*counter, constant(0), constant(0)]
    key = [below(seed), above(seed)]
    for _ in range(ROUNDS):
        # 64 bits of a product are all there, though int64 takes the uppermost for a sign.
        left, right = (aten.mul.Tensor(state[2 * i], constant(_FACTORS[i])) for i in range(2))
        first = aten.bitwise_xor.Tensor(aten.bitwise_xor.Tensor(above(right), state[1]), key[0])
        second = aten.bitwise_xor.Tensor(aten.bitwise_xor.Tensor(above(left), state[3]), key[1])
        state = [first, below(right), second, below(left)]
        key = [below(aten.add.Tensor(word, constant(step))) for word, step in zip(key, _STEPS, strict=True)]
    return state


def weight_factors(query: Tensor, key: Tensor, seed: Tensor, dropout_p: float) -> Tensor:
    """What each attention weight is multiplied by, (batch, heads, rows, keys) in the dtype that attention is computed in.

    Weights are divided into squares of 16 rows and 16 keys. In row ``r`` and key ``k`` of a square, half ``k % 2`` (0: the
    lower) of word ``r // 8 * 2 + k // 8`` is the weight's, of the counter ``(K * 4 + k % 8 // 2, R * 8 + r % 8, 0, 0)``: square
    ``K`` of the keys, square ``R`` of the rows of all batches and heads, modulo 2**29. The seed is the key. The weight is kept
    if its half is below ``words_kept(dropout_p)``.

    So the eight weights of a counter are among those that one thread has of a product on tensor cores (two rows eight apart,
    pairs of keys), and half of them where rows and keys change places.
    """
    batch, heads, rows, _ = query.shape
    keys = key.shape[2]
    dtype, int64 = computation_dtype(query.dtype), torch.int64
    down, along = ((n + SQUARE - 1) // SQUARE for n in (rows, keys))
    lines = batch * heads * down * 8
    group = aten.unsqueeze.default(aten.arange.start_step(0, along * 4, 1, dtype=int64, device=query.device), 0)
    line = aten.unsqueeze.default(aten.arange.start_step(0, lines, 1, dtype=int64, device=query.device), 1)
    counter = group, aten.bitwise_and.Tensor(line, number(_MASK, int64, query))
    words = philox(aten.reshape.default(seed, [1, 1]), counter)
    bound, low = number(words_kept(dropout_p), int64, query), number(_WORDS - 1, int64, query)
    width = number(16, int64, query)
    halves = [
        half for word in words for half in (aten.bitwise_and.Tensor(word, low), aten.bitwise_right_shift.Tensor(word, width))
    ]
    kept = aten.cat.default([aten.unsqueeze.default(aten.lt.Tensor(half, bound), 2) for half in halves], 2)
    # (rows' square, row of 8, keys' square, pair of 4, upper row, upper key, half)
    kept = aten.reshape.default(kept, [batch * heads * down, 8, along, 4, 2, 2, 2])
    kept = aten.reshape.default(
        aten.permute.default(kept, [0, 4, 1, 2, 5, 3, 6]), [batch * heads, down * SQUARE, along * SQUARE]
    )
    kept = aten.slice.Tensor(aten.slice.Tensor(kept, 1, 0, rows), 2, 0, keys)
    factors = aten.where.self(kept, number(kept_factor(dropout_p), dtype, query), number(0, dtype, query))
    return aten.reshape.default(factors, [batch, heads, rows, keys])


def _check(query: Tensor, key: Tensor, value: Tensor, seed: Tensor, dropout_p: float) -> None:
    if any(x.dim() != 4 for x in (query, key, value)):
        counts = f"{query.dim()}, {key.dim()} and {value.dim()}"
        raise RuntimeError(f"dropout_attention takes query, key and value of 4 dimensions, not {counts}")
    if len({query.dtype, key.dtype, value.dtype}) > 1 or not query.dtype.is_floating_point:
        raise RuntimeError(f"dropout_attention: {query.dtype}, {key.dtype} and {value.dtype} are no one floating dtype")
    if seed.dtype != torch.int64 or seed.dim() != 1 or seed.shape[0] != 1:
        raise RuntimeError(f"dropout_attention: the seed is one int64, not {seed.dtype} {tuple(seed.shape)}")
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"dropout_attention: {dropout_p} is no probability")


def _beside(x: Tensor, *shape: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for (batch, heads, rows, width) in which heads of a row lie beside each other."""
    batch, heads, rows, width = shape
    return x.new_empty((batch, rows, heads, width), dtype=dtype or x.dtype).transpose(1, 2)


def _results(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Checked; their elements are anything."""
    _check(query, key, value, seed, dropout_p)
    out = _beside(query, *query.shape[:3], value.shape[3])
    return out, query.new_empty(query.shape[:3], dtype=computation_dtype(query.dtype))


def _gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, seed: Tensor, dropout_p: float,
    *rest: Any, **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Checked; their elements are anything."""
    _check(query, key, value, seed, dropout_p)
    return _beside(query, *query.shape), _beside(key, *key.shape), _beside(value, *value.shape)


torch.library.register_fake("vendor_sdk::dropout_attention", _results, lib=_LIBRARY)
torch.library.register_fake("vendor_sdk::dropout_attention_backward", _gradients, lib=_LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, seed, dropout_p, is_causal, attn_mask = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, *output, seed, attn_mask)
    ctx.given = dropout_p, is_causal
    ctx.scale = keyword_only_inputs["scale"]


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    *saved, mask = ctx.saved_tensors
    return (*BACKWARD_OPERATOR(grad, *saved, *ctx.given, mask, scale=ctx.scale), None, None, None, None)


torch.library.register_autograd("vendor_sdk::dropout_attention", _differentiate, setup_context=_save, lib=_LIBRARY)


def implement(forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """Has the two operators run these functions wherever torch computes."""

    def lying(function: Callable[..., Any], outlines: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            places = outlines(*args, **kwargs)
            return tuple(place.copy_(x) for place, x in zip(places, function(*args, **kwargs), strict=True))

        return run

    _LIBRARY.impl("dropout_attention", lying(forward, _results), "CompositeExplicitAutograd")
    _LIBRARY.impl("dropout_attention_backward", lying(backward, _gradients), "CompositeExplicitAutograd")
