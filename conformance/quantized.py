"""Quantized programs, as users write them: a table by group. Numbers of few bits with scales, in products and back and forth.

What is right follows from the operation in float64, never from what eager computes. Where integers come out, or numbers that
their dtype holds, nothing may be off: scales are powers of two there, so that ties are ties on any device. Sums of products may
be off by the bound of ``vendor_sdk``'s own rows, and by a few roundings, of weights that are scaled before or after they are
summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from conformance.draw import Draw

Tensor = torch.Tensor
aten = torch.ops.aten


@dataclass(frozen=True)
class Right:
    """What one result must be.

    Attributes:
        value: in float64, or in any dtype that holds it where nothing may be off.
        magnitude: the same operation on absolute values, in float64; ``None`` where nothing may be off.
        terms: that are summed for one element.
        roundings: to the result's dtype, beside those of the sum: of scaled weights, scales, offsets.
    """

    value: Tensor
    magnitude: Tensor | None = None
    terms: int = 0
    roundings: int = 4

    def allowance(self, dtype: torch.dtype) -> Tensor:
        """How far a result of ``dtype`` may be off, for each element, where it is not exact: sums are float32's, their bound
        that of Higham and Mary (2019, theorem 2.4), and n where that is less."""
        assert self.magnitude is not None
        growth = min(float(self.terms), 8.0 * math.sqrt(self.terms))
        relative = growth * torch.finfo(torch.float32).eps / 2 + self.roundings * torch.finfo(dtype).eps / 2
        return relative * self.magnitude + torch.finfo(dtype).smallest_normal


@dataclass(frozen=True)
class Quantized:
    """A program.

    Attributes:
        name: what it does, in a few words.
        function: of tensors; returns one, or a tuple.
        inputs: draws its inputs.
        right: of the same inputs, one for each result.
    """

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: Callable[[Draw], Sequence[Tensor]]
    right: Callable[..., Sequence[Right]]


GROUPS: dict[str, list[Quantized]] = {"int8": [], "int4": [], "round-trip": [], "float8": []}
"""By group."""


def product(x: Tensor, w: Tensor, scale: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Right:
    """``x @ w * scale + bias`` of exact factors."""
    a, b, by, offset = (torch.as_tensor(each).double() for each in (x, w, scale, bias))
    return Right(a @ b * by + offset, a.abs() @ b.abs() * by.abs() + offset.abs(), terms=a.shape[-1])


def _add(
    group: str, name: str, inputs: Callable[[Draw], Sequence[Tensor]], right: Callable[..., Sequence[Right]]
) -> Callable[[Callable[..., Tensor | tuple[Tensor, ...]]], Callable[..., Tensor | tuple[Tensor, ...]]]:
    def add(function: Callable[..., Tensor | tuple[Tensor, ...]]) -> Callable[..., Tensor | tuple[Tensor, ...]]:
        GROUPS[group].append(Quantized(name, function, inputs, right))
        return function

    return add


def _bytes(draw: Draw, *shape: int) -> Tensor:
    """int8 of the whole range."""
    return (draw.index(256, *shape) - 128).to(torch.int8)


# Eight bits: weights with a scale for each result, activations with one for each row


@_add(
    "int8",
    "weights, scaled after the product",
    lambda draw: [draw.normal(7, 67), _bytes(draw, 67, 33), draw.positive(33)],
    lambda x, w, s: [product(x, w, s)],
)
def _after(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (x @ w.to(x.dtype)) * s


@_add(
    "int8",
    "activations quantized row by row, an integer product",
    lambda draw: [_quantizable(draw, 24, 64), _bytes(draw, 48, 64), draw.positive(48)],
    lambda x, w, s: [_dynamic_right(x, w, s)],
)
def _dynamic(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
    sums: Tensor = aten._int_mm(q, w.t())
    return sums.to(torch.float32) * scale * s


def _quantizable(draw: Draw, rows: int, columns: int) -> Tensor:
    """Numbers within a quarter of a step of multiples of their row's largest, divided by 127: which integer each becomes is no
    matter of rounding."""
    q = draw.index(255, rows, columns).double() - 127
    apart = (draw.positive(rows, columns).double() - 1) / 2
    q = torch.where(q.abs() == 127, q, q + apart)
    q[:, 0] = 127
    return (q * draw.positive(rows, 1).double()).float()


def _dynamic_right(x: Tensor, w: Tensor, s: Tensor) -> Right:
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    sums = torch.round(x.double() / scale) @ w.double().t()
    value = sums * scale * s.double()
    return Right(value, value.abs(), roundings=12)  # a division counts as five, and so may a product of two scales


@_add(
    "int8",
    "an integer product",
    lambda draw: [torch.cat([_bytes(draw, 23, 64), draw.whole(1, 64) * 0 - 128]).to(torch.int8), _least_column(draw)],
    lambda a, b: [Right((a.double() @ b.double()).to(torch.int32))],
)
def _integers(a: Tensor, b: Tensor) -> Tensor:
    found: Tensor = aten._int_mm(a, b)
    return found


def _least_column(draw: Draw) -> Tensor:
    """Factors one column of which is -128 throughout: products of 15 bits, whose sums do not fit in 16."""
    drawn = _bytes(draw, 64, 48)
    drawn[:, 5] = -128
    return drawn


@_add(
    "int8",
    "weights, scaled before the product, and a bias",
    lambda draw: [draw.normal(7, 67), _bytes(draw, 33, 67), draw.positive(33, 1), draw.normal(33)],
    lambda x, w, s, b: [product(x, (w.double() * s.double()).t(), bias=b)],
)
def _before(x: Tensor, w: Tensor, s: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * s, b)


@_add(
    "int8",
    "weights of bfloat16 activations",
    lambda draw: [draw.normal(7, 67).bfloat16(), _bytes(draw, 67, 33), draw.positive(33).bfloat16()],
    lambda x, w, s: [product(x, w, s)],
)
def _halves(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (x @ w.to(x.dtype)) * s


@_add(
    "int8",
    "weights without a sign, with zero points",
    lambda draw: [draw.normal(7, 67), draw.index(256, 33, 67).to(torch.uint8), draw.index(256, 33, 1).to(torch.uint8)],
    lambda x, w, zero: [product(x, (w.double() - zero.double()).t(), 0.0625)],
)
def _offset(x: Tensor, w: Tensor, zero: Tensor) -> Tensor:
    return F.linear(x, (w.to(torch.float32) - zero.to(torch.float32)) * 0.0625)


@_add(
    "int8",
    "rows of an embedding",
    lambda draw: [_bytes(draw, 31, 40), draw.positive(31), draw.index(31, 5, 6)],
    lambda table, s, at: [Right(v := table[at].double() * s[at].double()[..., None], v.abs(), roundings=1)],
)
def _embedding(table: Tensor, s: Tensor, at: Tensor) -> Tensor:
    return F.embedding(at, table).to(torch.float32) * F.embedding(at, s[:, None])


# Four bits: two weights in a byte, a scale for each group of neighbours


def _packed(rows: int, columns: int, group: int) -> Callable[[Draw], Sequence[Tensor]]:
    """Activations, packed weights, their groups' scales and zero points."""

    def inputs(draw: Draw) -> Sequence[Tensor]:
        packed = draw.index(256, rows, columns // 2).to(torch.uint8)
        groups = columns // group
        return [draw.normal(5, columns), packed, draw.positive(rows, groups), draw.index(16, rows, groups).to(torch.uint8)]

    return inputs


def _unpacked(packed: Tensor) -> Tensor:
    """Numbers from 0 to 15 as float64, the low half of a byte first."""
    whole = packed.long()
    return torch.stack([whole % 16, whole // 16], -1).reshape(packed.shape[0], -1).double()


def _grouped(packed: Tensor, scale: Tensor, zero: Tensor | float) -> Tensor:
    """Weights in float64."""
    q = _unpacked(packed).reshape(*scale.shape, -1)
    zero = zero.double()[..., None] if isinstance(zero, Tensor) else zero
    return ((q - zero) * scale.double()[..., None]).reshape(packed.shape[0], -1)


@_add(
    "int4",
    "groups of 32",
    _packed(24, 96, 32),
    lambda x, packed, s, _: [product(x, _grouped(packed, s, 8.0).t())],
)
def _symmetric(x: Tensor, packed: Tensor, s: Tensor, _: Tensor) -> Tensor:
    low, high = (packed & 15).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8
    q = torch.stack([low, high], -1).reshape(*s.shape, -1).to(x.dtype)
    return x @ (q * s[..., None]).reshape(packed.shape[0], -1).t()


@_add(
    "int4",
    "groups of 128, with zero points",
    _packed(17, 256, 128),
    lambda x, packed, s, zero: [product(x, _grouped(packed, s, zero).t())],
)
def _asymmetric(x: Tensor, packed: Tensor, s: Tensor, zero: Tensor) -> Tensor:
    q = torch.stack([packed & 15, packed >> 4], -1).reshape(*s.shape, -1).to(torch.float32)
    return F.linear(x, ((q - zero[..., None].to(torch.float32)) * s[..., None]).reshape(packed.shape[0], -1))


@_add(
    "int4",
    "with a sign, by shifts; what is unpacked is exact",
    lambda draw: [_bytes(draw, 9, 33)],
    lambda packed: [
        Right(torch.stack([((packed.long() % 16) + 8) % 16 - 8, packed.long() // 16], -1).reshape(9, 66).to(torch.int8))
    ],
)
def _signed(packed: Tensor) -> Tensor:
    low = (packed << 4) >> 4
    return torch.stack([low, packed >> 4], -1).reshape(packed.shape[0], -1)


@_add(
    "int4",
    "in halves of a row, for bfloat16 activations",
    lambda draw: [draw.normal(5, 128).bfloat16(), draw.index(256, 24, 64).to(torch.uint8), draw.positive(24, 4).bfloat16()],
    lambda x, packed, s: [product(x, _split_in_halves(packed, s).t())],
)
def _in_halves(x: Tensor, packed: Tensor, s: Tensor) -> Tensor:
    q = torch.cat([packed & 15, packed >> 4], 1).to(x.dtype) - 8
    return F.linear(x, (q.reshape(*s.shape, -1) * s[..., None]).reshape(packed.shape[0], -1))


def _split_in_halves(packed: Tensor, scale: Tensor) -> Tensor:
    whole = packed.long()
    q = torch.cat([whole % 16, whole // 16], 1).double() - 8
    return (q.reshape(*scale.shape, -1) * scale.double()[..., None]).reshape(packed.shape[0], -1)


@_add(
    "int4",
    "packed from integers",
    lambda draw: [draw.index(16, 9, 34).to(torch.uint8)],
    lambda q: [Right((q[:, 0::2].long() + 16 * q[:, 1::2].long()).to(torch.uint8))],
)
def _pack(q: Tensor) -> Tensor:
    return q[:, 0::2] | (q[:, 1::2] << 4)


# Quantized, and back: exact


def _steps(draw: Draw) -> list[Tensor]:
    """Multiples of half a step of 1/16 that go beyond eight bits on both sides, ties among them, and numbers between them."""
    ties = torch.arange(-300, 300, device=draw.device) / 32
    return [torch.cat([ties, draw.normal(200) * 5]).reshape(40, 20)]


def _quantized(x: Tensor, scale: Tensor | float, zero: Tensor | int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    """Rounded to nearest, ties to even, in float64."""
    zero = zero.double() if isinstance(zero, Tensor) else zero
    return (torch.round(x.double() / scale) + zero).clamp(low, high).to(dtype)


@_add(
    "round-trip",
    "a scale for all, with a sign: ties to even, saturated",
    _steps,
    lambda x: [Right(q := _quantized(x, 0.0625, 0, -128, 127, torch.int8)), Right(q.double() * 0.0625)],
)
def _per_tensor(x: Tensor) -> tuple[Tensor, ...]:
    q = torch.clamp(torch.round(x * 16), -128, 127).to(torch.int8)
    return q, q.to(torch.float32) * 0.0625


@_add(
    "round-trip",
    "a scale and a zero point for each channel",
    lambda draw: [*_steps(draw), 2.0 ** -draw.index(5, 40, 1).float(), draw.index(256, 40, 1).to(torch.int32)],
    lambda x, s, z: [Right(q := _quantized(x, s, z, 0, 255, torch.uint8)), Right((q.double() - z.double()) * s.double())],
)
def _per_channel(x: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, ...]:
    q = torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8)
    return q, (q.to(torch.float32) - zero) * scale


@_add(
    "round-trip",
    "back from floats, whatever the scale",
    lambda draw: [(torch.arange(256, device=draw.device) - 128).to(torch.int8).expand(9, 256), draw.positive(9, 1)],
    lambda q, s: [Right(q)],
)
def _back(q: Tensor, scale: Tensor) -> Tensor:
    x = q.to(torch.float32) * scale
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)


@_add(
    "round-trip",
    "four bits, a scale for each group",
    lambda draw: [*_steps(draw), 2.0 ** -draw.index(4, 40, 4).float()],
    lambda x, s: [
        Right(q := _quantized(x.reshape(40, 4, 5), s[..., None], 8, 0, 15, torch.uint8)),
        Right(((q.double() - 8) * s.double()[..., None]).reshape(40, 20)),
    ],
)
def _grouped_four_bits(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    q = torch.clamp(torch.round(x.reshape(40, 4, 5) / s[..., None]) + 8, 0, 15).to(torch.uint8)
    return q, ((q.to(torch.float32) - 8) * s[..., None]).reshape(40, 20)


# Floats of eight bits: conversions exact, what is too large as torch has it; products with scales

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _all_bytes(draw: Draw) -> list[Tensor]:
    """Every byte, some twice, in random order."""
    return [torch.cat([draw.apart(256).argsort(), draw.index(256, 24)]).to(torch.uint8).reshape(28, 10)]


@_add(
    "float8",
    "e4m3, read from bytes, and back",
    _all_bytes,
    lambda x: [Right(v := x.view(E4M3).double()), Right(v), Right(v.t())],
)
def _e4m3_values(x: Tensor) -> tuple[Tensor, ...]:
    wide = x.view(E4M3).to(torch.float32)
    return wide, wide.to(E4M3), x.view(E4M3).t().to(torch.bfloat16)


@_add(
    "float8",
    "e5m2, read from bytes, and back",
    _all_bytes,
    lambda x: [Right(v := x.view(E5M2).double()), Right(v), Right(v.t())],
)
def _e5m2_values(x: Tensor) -> tuple[Tensor, ...]:
    wide = x.view(E5M2).to(torch.float32)
    return wide, wide.to(E5M2), x.view(E5M2).t().to(torch.float16)


def _coarse(draw: Draw) -> list[Tensor]:
    """Multiples of half a unit in some binades of both formats, ties among them, and numbers between; some are too large."""
    parts = [torch.arange(-64, 64) / 16, torch.arange(-40.0, 40.0) * 16, torch.arange(-32.0, 32.0) * 2048]
    beyond = torch.tensor([math.inf, -math.inf, math.nan, 1e9, -1e9, 449.0, 464.0, 465.0, 61440.0, -61441.0, 0.0, -0.0])
    return [torch.cat([each.to(draw.device) for each in (*parts, beyond)]), draw.normal(300) * 100]


@_add(
    "float8",
    "rounded: ties to even, what is too large",
    _coarse,
    lambda x, y: [Right(each.to(dtype)) for each in (x, y) for dtype in (E4M3, E5M2)],
)
def _rounded(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.to(E4M3), x.to(E5M2), y.to(E4M3), y.to(E5M2)


@_add(
    "float8",
    "e4m3 with a scale, cut off at the ends",
    lambda draw: [*_coarse(draw)[1:], 2.0 ** -draw.index(4, 300).float()],
    lambda x, s: [Right((x * s).clamp(-448, 448).to(E4M3)), Right((x * s).clamp(-448, 448).to(E4M3).double() / s)],
)
def _cut_off(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    q = (x * s).clamp(-448.0, 448.0).to(E4M3)
    return q, q.to(torch.float32) / s


def _factors(first: torch.dtype, *scales: tuple[int, ...]) -> Callable[[Draw], Sequence[Tensor]]:
    def inputs(draw: Draw) -> Sequence[Tensor]:
        a, b = draw.normal(32, 64).to(first), draw.normal(48, 64).to(E4M3)
        return [a, b, *(draw.positive(*shape) for shape in scales)]

    return inputs


@_add(
    "float8",
    "a product of e4m3 with scales",
    _factors(E4M3, (), ()),
    lambda a, b, s, t: [product(a, b.double().t(), s * t)],
)
def _scaled(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
    found: Tensor = aten._scaled_mm(a, b.t(), s, t, out_dtype=torch.float32)
    return found


@_add(
    "float8",
    "a product of e5m2 and e4m3 with scales, to bfloat16",
    _factors(E5M2, (), ()),
    lambda a, b, s, t: [product(a, b.double().t(), s * t)],
)
def _scaled_gradient(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
    found: Tensor = aten._scaled_mm(a, b.t(), s, t, out_dtype=torch.bfloat16)
    return found


@_add(
    "float8",
    "a product with a scale for each row and column, and a bias",
    lambda draw: [*_factors(E4M3, (32, 1), (1, 48))(draw), draw.normal(48).bfloat16()],
    lambda a, b, s, t, bias: [product(a, b.double().t(), s.double() * t.double(), bias)],
)
def _scaled_rows(a: Tensor, b: Tensor, s: Tensor, t: Tensor, bias: Tensor) -> Tensor:
    found: Tensor = aten._scaled_mm(a, b.t(), s, t, bias, out_dtype=torch.bfloat16)
    return found


@_add(
    "float8",
    "weights of e4m3, converted for the product",
    lambda draw: [draw.normal(7, 67), draw.normal(33, 67).to(E4M3), draw.positive(33)],
    lambda x, w, s: [product(x, w.double().t(), s)],
)
def _weights(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


@_add(
    "float8",
    "a cache of keys in e5m2",
    lambda draw: [draw.normal(3, 9, 8).to(E5M2), draw.whole(3, 2, 8) / 4, draw.normal(3, 5, 8)],
    lambda cache, new, q: [
        Right(k := torch.cat([cache.double(), new.to(E5M2).double()], 1)),
        product(q, k.transpose(1, 2)),
    ],
)
def _cache(cache: Tensor, new: Tensor, q: Tensor) -> tuple[Tensor, ...]:
    keys = torch.cat([cache, new.to(cache.dtype)], 1)
    return keys, q @ keys.to(q.dtype).transpose(1, 2)
