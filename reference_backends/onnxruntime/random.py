"""Rules of the random prims: the numbers that the SDK's loops draw for the same seeds (``vendor_sdk/lower/random.py``).

Each element is a function of its node's seed and its place alone: words of Philox 4x32-10 (Salmon, Moraes, Dror, Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011), in uint64, where a product of two words is whole. The seeds are an
input of the model, drawn for each call from torch's generator (``Partition``). ONNX's own random operators have other streams,
and their seed is an attribute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import Builder, Outline, Rule, Untranslatable, Value

DOUBLE, INT64, WORD = torch.float64, torch.int64, torch.uint64
BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}
"""As many bits as the significand holds: one more, and a value next to 1 would round to 1."""
_WORDS = 4
_FACTORS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def _low(b: Builder, value: Value) -> Value:
    return b.op("BitwiseAnd", value, b.constant(_MASK, WORD))


def _high(b: Builder, value: Value) -> Value:
    return b.op("BitShift", value, b.constant(32, WORD), direction="RIGHT")


def _philox(b: Builder, seed: Value, index: Value) -> list[Value]:
    """The four words of each counter ``(index, 0)``, each in 32 bits of a uint64."""
    zero = b.constant(0, WORD)
    counter = [_low(b, index), _high(b, index), zero, zero]
    key = [_low(b, seed), _high(b, seed)]
    for _ in range(10):
        products = [b.op("Mul", counter[2 * half], b.constant(_FACTORS[half], WORD)) for half in range(2)]
        mixed = [
            b.op("BitwiseXor", b.op("BitwiseXor", _high(b, products[1 - half]), counter[1 + 2 * half]), key[half])
            for half in range(2)
        ]
        counter = [mixed[0], _low(b, products[1]), mixed[1], _low(b, products[0])]
        key = [_low(b, b.op("Add", word, b.constant(step, WORD))) for word, step in zip(key, _STEPS, strict=True)]
    return counter


def _words(b: Builder, sizes: Sequence[Any], count: int) -> list[Value]:
    """``count`` (1 or 2) words of 32 bits for each element of a tensor of these sizes, as tensors of that shape.

    Neighbouring elements share a counter.
    """
    share = _WORDS // count
    total: Any = b.constant(1)
    if all(isinstance(size, int) for size in sizes):
        total = b.constant(math.prod(sizes))
    else:
        for size in sizes:
            total = b.op("Mul", total, b.tensor(size, INT64))
    counters = b.op("Div", b.op("Add", total, b.constant(share - 1)), b.constant(share))
    index = b.op("Range", b.constant(0), counters, b.constant(1))
    words = [b.unsqueeze(word, 1) for word in _philox(b, b.cast(b.seed(), WORD), b.cast(index, WORD))]
    found = []
    for first in range(count):
        rows = b.op("Concat", *words[first::count], axis=1)
        flat = b.op("Slice", b.reshape(rows, [-1]), b.constant([0]), b.unsqueeze(total, 0))
        found.append(b.reshape(flat, sizes))
    return found


def _uniform(b: Builder, sizes: Sequence[Any], dtype: torch.dtype) -> Value:
    """On [0, 1), with no more bits than ``dtype`` holds; in float32, or in float64 for that."""
    if dtype == DOUBLE:
        left, right = _words(b, sizes, 2)
        high, low = (b.op("BitShift", word, b.constant(by, WORD), direction="RIGHT") for word, by in ((left, 5), (right, 6)))
        whole = b.op("Add", b.op("Mul", high, b.constant(1 << 26, WORD)), low)
        return b.op("Mul", b.cast(whole, DOUBLE), b.constant(2.0**-53, DOUBLE))
    (only,) = _words(b, sizes, 1)
    top = b.op("BitShift", only, b.constant(32 - BITS[dtype], WORD), direction="RIGHT")
    return b.op("Mul", b.cast(top, torch.float32), b.constant(2.0 ** -BITS[dtype], torch.float32))


def _rand(b: Builder, out: Outline, size: Sequence[Any], **_: Any) -> Value:
    return b.cast(_uniform(b, size, out.dtype), out.dtype)


def _randn(b: Builder, out: Outline, size: Sequence[Any], **_: Any) -> Value:
    """By Box and Muller's transform of two words (Annals of Mathematical Statistics 29, 1958)."""
    dtype = DOUBLE if out.dtype == DOUBLE else torch.float32
    left, right = _words(b, size, 2)
    scale = 2.0**-32
    radius = b.op("Log", b.op("Mul", b.cast(b.op("Add", left, b.constant(1, WORD)), dtype), b.constant(scale, dtype)))
    angle = b.op("Mul", b.cast(right, dtype), b.constant(scale * 2 * math.pi, dtype))
    value = b.op("Mul", b.op("Sqrt", b.op("Mul", radius, b.constant(-2.0, dtype))), b.op("Cos", angle))
    return b.cast(value, out.dtype)


def _randint(b: Builder, out: Outline, low: Any, high: Any, size: Sequence[Any], **_: Any) -> Value:
    """63 bits modulo the span: the excess probability of the small values is below span / 2**63."""
    left, right = _words(b, size, 2)
    least, span = b.tensor(low, INT64), b.op("Sub", b.tensor(high, INT64), b.tensor(low, INT64))
    top = b.op("BitShift", left, b.constant(1, WORD), direction="RIGHT")
    bits = b.op("Add", b.op("Mul", top, b.constant(1 << 32, WORD)), right)
    return b.cast(b.op("Add", least, b.op("Mod", b.cast(bits, INT64), span)), out.dtype)


def _bernoulli(b: Builder, out: Outline, chance: Any, *, generator: Any = None) -> Value:
    if generator is not None:
        raise Untranslatable("a generator of its own has no translation")
    sizes = [b.size(chance, dim) for dim in range(chance.rank)]
    draw = _uniform(b, sizes, chance.dtype)
    return b.cast(b.compare("Less", draw, b.cast(chance, draw.dtype)), out.dtype)


RULES: Mapping[str, Rule] = {
    "rand": _rand,
    "randn": _randn,
    "randint": _randint,
    "bernoulli": _bernoulli,
}
