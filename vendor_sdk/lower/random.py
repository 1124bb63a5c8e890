"""Random prims: each element is a function of (seed, its row-major position) alone, so that a result does not depend on how the
loop is cut, fused or threaded. The seed is one number a kernel, drawn per call from the host's generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Builder, Lowering, Value, opmath
from vendor_sdk.lower.view import flatten

RANDOM_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}
"""As many bits as the significand holds: one more, and a value next to 1 would round to 1."""


def word(k: Builder, seed: Value, position: Value, which: int) -> Value:
    """32 random bits as int64; ``which`` from 0 to 3."""
    return k.compute("philox", seed, position, k.const(which, torch.int64))


def uniform(k: Builder, seed: Value, position: Value, dtype: torch.dtype) -> Value:
    """Uniform on [0, 1) in the opmath dtype of ``dtype``, with no more bits than ``dtype`` holds."""
    first = word(k, seed, position, 0)
    if dtype == torch.float64:
        high = k.compute("shr", first, k.const(5, torch.int64))
        low = k.compute("shr", word(k, seed, position, 1), k.const(6, torch.int64))
        whole = k.compute("add", k.compute("shl", high, k.const(26, torch.int64)), low)
        return k.compute("mul", k.convert(whole, torch.float64), k.const(2.0**-53, torch.float64))
    bits = RANDOM_BITS[dtype]
    top = k.compute("shr", first, k.const(32 - bits, torch.int64))
    return k.compute("mul", k.convert(top, torch.float32), k.const(2.0**-bits, torch.float32))


def normal(k: Builder, seed: Value, position: Value, dtype: torch.dtype) -> Value:
    """Standard normal, by Box and Muller's transform of two words (Annals of Mathematical Statistics 29, 1958)."""
    one = k.const(1, torch.int64)
    radius_word = k.convert(k.compute("add", word(k, seed, position, 0), one), dtype)
    angle_word = k.convert(word(k, seed, position, 1), dtype)
    scale = k.const(2.0**-32, dtype)
    logarithm = k.compute("log", k.compute("mul", radius_word, scale))
    radius = k.compute("sqrt", k.compute("mul", logarithm, k.const(-2.0, dtype)))
    angle = k.compute("mul", angle_word, k.const(2.0**-32 * 2 * math.pi, dtype))
    return k.compute("mul", radius, k.compute("cos", angle))


def _position(k: Builder, index: Sequence[Int]) -> Value:
    return k.index(flatten(index, k.outputs[0].shape))


def _rand(k: Builder) -> None:
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, uniform(k, k.seed(), _position(k, i), k.outputs[0].dtype))


def _randn(k: Builder) -> None:
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, normal(k, k.seed(), _position(k, i), opmath(k.outputs[0].dtype)))


def _randint(k: Builder) -> None:
    int64 = torch.int64
    with k.nest(k.outputs[0].shape) as i:
        seed, position = k.seed(), _position(k, i)
        low, high = (k.operand(k.args[n], (), int64) for n in ("low", "high"))
        # 63 bits modulo the span: the excess probability of the small values is below span / 2**63.
        top = k.compute("shr", word(k, seed, position, 0), k.const(1, int64))
        bits = k.compute("bitor", k.compute("shl", top, k.const(32, int64)), word(k, seed, position, 1))
        k.store(0, i, k.compute("add", low, k.compute("mod", bits, k.compute("sub", high, low))))


def _bernoulli(k: Builder) -> None:
    if k.args.get("generator") is not None:
        raise k.fail("a generator of its own")
    chance = k.args["self"]
    dtype = opmath(k.dtype(chance))
    with k.nest(k.outputs[0].shape) as i:
        draw = uniform(k, k.seed(), _position(k, i), dtype)
        k.store(0, i, k.convert(k.compute("lt", draw, k.operand(chance, i, dtype)), dtype))


LOWERINGS: Mapping[str, Lowering] = {
    "rand": _rand,
    "randn": _randn,
    "randint": _randint,
    "bernoulli": _bernoulli,
}
