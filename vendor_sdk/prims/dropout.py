"""What dropout of attention weights keeps: a function of a seed and the place of a weight.

Torch's operators for it give the backward pass the state of a generator, of one vendor's hardware; the one for the CPU takes
none, so that its gradients could not drop what its results did. Here a seed is an operand, drawn in the graph like any random
number, and what is kept is a function of the seed and the place of a weight alone. So no pass writes it down, every kernel
may compute it again for the block that it has, and all that compute it keep the same.
"""

# mypy: disable-error-code="no-any-return"
# (torch.ops is untyped: every operator call is an Any.)

from __future__ import annotations

from collections.abc import Sequence

import torch

from vendor_sdk.prims.widen import computation_dtype, number

aten = torch.ops.aten
Tensor = torch.Tensor

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
