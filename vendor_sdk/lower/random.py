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


WORDS = 4
"""Words of 32 bits that one counter gives: neighbouring elements share one, so that an emitter may draw them together."""


def words(k: Builder, position: Int, count: int) -> tuple[Value, ...]:
    """``count`` (1 or 2) words of 32 random bits, as int64, that belong to the element at ``position`` alone."""
    share = WORDS // count
    counter, first = k.index(position // share), position % share * count
    return tuple(k.compute("philox", k.seed(), counter, k.index(first + which)) for which in range(count))


def uniform(k: Builder, position: Int, dtype: torch.dtype) -> Value:
    """Uniform on [0, 1) in the opmath dtype of ``dtype``, with no more bits than ``dtype`` holds."""
    if dtype == torch.float64:
        left, right = words(k, position, 2)
        high = k.compute("shr", left, k.const(5, torch.int64))
        low = k.compute("shr", right, k.const(6, torch.int64))
        whole = k.compute("add", k.compute("shl", high, k.const(26, torch.int64)), low)
        return k.compute("mul", k.convert(whole, torch.float64), k.const(2.0**-53, torch.float64))
    bits = RANDOM_BITS[dtype]
    (only,) = words(k, position, 1)
    top = k.compute("shr", only, k.const(32 - bits, torch.int64))
    return k.compute("mul", k.convert(top, torch.float32), k.const(2.0**-bits, torch.float32))


def normal(k: Builder, position: Int, dtype: torch.dtype) -> Value:
    """Standard normal, by Box and Muller's transform of two words (Annals of Mathematical Statistics 29, 1958)."""
    left, right = words(k, position, 2)
    radius_word = k.convert(k.compute("add", left, k.const(1, torch.int64)), dtype)
    angle_word = k.convert(right, dtype)
    scale = k.const(2.0**-32, dtype)
    logarithm = k.compute("log", k.compute("mul", radius_word, scale))
    radius = k.compute("sqrt", k.compute("mul", logarithm, k.const(-2.0, dtype)))
    angle = k.compute("mul", angle_word, k.const(2.0**-32 * 2 * math.pi, dtype))
    return k.compute("mul", radius, k.compute("cos", angle))


def _position(k: Builder, index: Sequence[Int]) -> Int:
    return flatten(index, k.outputs[0].shape)


def _rand(k: Builder) -> None:
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, uniform(k, _position(k, i), k.outputs[0].dtype))


def _randn(k: Builder) -> None:
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, normal(k, _position(k, i), opmath(k.outputs[0].dtype)))


def _randint(k: Builder) -> None:
    int64 = torch.int64
    with k.nest(k.outputs[0].shape) as i:
        left, right = words(k, _position(k, i), 2)
        low, high = (k.operand(k.args[n], (), int64) for n in ("low", "high"))
        # 63 bits modulo the span: the excess probability of the small values is below span / 2**63.
        top = k.compute("shr", left, k.const(1, int64))
        bits = k.compute("bitor", k.compute("shl", top, k.const(32, int64)), right)
        k.store(0, i, k.compute("add", low, k.compute("mod", bits, k.compute("sub", high, low))))


def _bernoulli(k: Builder) -> None:
    if k.args.get("generator") is not None:
        raise k.fail("a generator of its own")
    chance = k.args["self"]
    dtype = opmath(k.dtype(chance))
    with k.nest(k.outputs[0].shape) as i:
        draw = uniform(k, _position(k, i), dtype)
        k.store(0, i, k.convert(k.compute("lt", draw, k.operand(chance, i, dtype)), dtype))


LOWERINGS: Mapping[str, Lowering] = {
    "rand": _rand,
    "randn": _randn,
    "randint": _randint,
    "bernoulli": _bernoulli,
}
