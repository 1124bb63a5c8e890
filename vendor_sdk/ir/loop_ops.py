"""The loop-level ops: everything a ``Compute``, ``Reduce`` or ``Scan`` of the loop IR may name. One row each.

Operand kinds: ``number`` is any of float32, float64, int8 to int64, uint8; ``float`` is float32 or float64; ``int`` an integer
or bool; ``bool`` bool only; ``any`` all of these. What is ``NARROW`` never reaches an op but ``convert`` and ``bitcast``.

Result rules: ``same`` is the operands' common dtype; ``bool``, ``int64`` and ``int32`` are themselves; ``given`` is the dtype
the ``Compute`` states.

The reference takes torch tensors of the operands' dtypes and is the definition: NaN propagates through ``max`` and ``min``,
``mod`` has the divisor's sign, ``fmod`` the dividend's, integer arithmetic wraps.

So are the special values of Bessel functions torch's: at both infinities ``i0``, ``i1``, ``bessel_j0``, ``bessel_j1``,
``bessel_y0``, ``bessel_y1`` and ``airy_ai`` are NaN, ``i0e``, ``i1e`` and ``spherical_bessel_j0`` zero. Those of the second
kind (``bessel_y0``, ``bessel_k0`` and their like) are NaN below 0; at 0 they are -inf and inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from vendor_sdk.prims.opset import OPSET

Kind = Literal["number", "float", "int", "bool", "any"]
Rule = Literal["same", "bool", "int64", "int32", "given"]
FLOATS = (torch.float32, torch.float64)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
HALVES = (torch.bfloat16, torch.float16)
NARROW = (*HALVES, torch.float8_e4m3fn, torch.float8_e5m2)
"""Floating dtypes that are stored, and computed with in float32."""

ACCEPTS: Mapping[Kind, frozenset[torch.dtype]] = {
    "number": frozenset((*FLOATS, *INTS)),
    "float": frozenset(FLOATS),
    "int": frozenset((*INTS, torch.bool)),
    "bool": frozenset((torch.bool,)),
    "any": frozenset((*FLOATS, *INTS, torch.bool)),
}


_CHEAP = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "sign",
        "max",
        "min",
        "fmax",
        "fmin",
        "copysign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "signbit",
        "where",
        "bitand",
        "bitor",
        "bitxor",
        "bitnot",
        "shl",
        "shr",
        "convert",
        "bitcast",
        "wrap_index",
    ]
)
_MIDDLING = {"div": 4, "sqrt": 4, "rsqrt": 5, "floordiv": 6, "truncdiv": 6, "mod": 6, "fmod": 6, "philox": 30}


def cost(op: str) -> int:
    """What one evaluation of an op costs against an addition, roughly, in vector code: what recomputing is weighed by."""
    return 1 if op in _CHEAP else _MIDDLING.get(op, 10)


@dataclass(frozen=True)
class LoopOp:
    """One loop-level op.

    Attributes:
        name: as in ``Compute.op``.
        arity: number of operands.
        kind: what the operands may be.
        result: dtype rule.
        meaning: one line.
        reference: definition on torch tensors; receives the result dtype as keyword ``dtype`` where the rule is ``given``.
    """

    name: str
    arity: int
    kind: Kind
    result: Rule
    meaning: str
    reference: Callable[..., Any]


@dataclass(frozen=True)
class CombineOp:
    """One way to combine values in a ``Reduce`` or ``Scan``.

    Attributes:
        identity: the result over no values, for a dtype; None where there is none (``argmax``).
        reduce: over the trailing ``n`` dims of a tensor: ``reduce(value, n)``; for arg ops ``reduce(value, position, n)``.
        scan: inclusive running result along the last dim; None where scans do not take it.
        second: what the second operands are, where there are two.
        least: the second operand of what does not count.
    """

    name: str
    kind: Kind
    meaning: str
    identity: Callable[[torch.dtype], bool | int | float]
    reduce: Callable[..., Any] | None
    scan: Callable[..., Any] | None = None
    second: str = ""
    least: int = 0

    @property
    def results(self) -> int:
        return 2 if self.second else 1

    def nothing(self, dtype: torch.dtype) -> tuple[bool | int | float, ...]:
        """Operands of an iteration that does not count."""
        return (self.identity(dtype), self.least)[: self.results]


LAST = 2**63 - 1
"""A position after all others."""


def lowest(dtype: torch.dtype) -> bool | int | float:
    """The identity of ``max``."""
    if dtype == torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> bool | int | float:
    """The identity of ``min``."""
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


_MASK = 0xFFFFFFFF


def philox(seed: torch.Tensor, index: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    """Word ``word`` (0 to 3) of Philox 4x32-10 with key ``seed`` and counter ``(index, 0)``, as int64 in [0, 2**32).

    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    seed, index, word = torch.broadcast_tensors(seed, index, word)  # type: ignore[no-untyped-call]
    counter = [index & _MASK, (index >> 32) & _MASK, torch.zeros_like(index), torch.zeros_like(index)]
    key = [seed & _MASK, (seed >> 32) & _MASK]

    def multiply(a: torch.Tensor, constant: int) -> tuple[torch.Tensor, torch.Tensor]:
        # 32 x 32 -> 64 bits in halves: the product would overflow a signed 64-bit integer.
        low = (a & 0xFFFF) * constant
        middle = (a >> 16) * constant + (low >> 16)
        return (middle >> 16) & _MASK, ((middle << 16) | (low & 0xFFFF)) & _MASK

    for _ in range(10):
        high0, low0 = multiply(counter[0], 0xD2511F53)
        high1, low1 = multiply(counter[2], 0xCD9E8D57)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & _MASK, (key[1] + 0xBB67AE85) & _MASK]
    return torch.where(
        word == 0, counter[0], torch.where(word == 1, counter[1], torch.where(word == 2, counter[2], counter[3]))
    )


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def wrap_index(a: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Index values in [-size, size) made non-negative; raises ``IndexError`` for others."""
    wrapped = torch.where(a < 0, a + size, a)
    if bool(((wrapped < 0) | (wrapped >= size)).any()):
        raise IndexError("index out of range")
    return wrapped


def _where(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(c, a, b)


def _convert(a: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    return a.to(dtype)


def _bitcast(a: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    return a.contiguous().view(dtype)


def _frexp_mantissa(a: torch.Tensor) -> torch.Tensor:
    return torch.frexp(a).mantissa


def _frexp_exponent(a: torch.Tensor) -> torch.Tensor:
    return torch.frexp(a).exponent


_special = torch.special


def _row_reference(prim: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The reference of a prim's row, rounded once: for functions of which torch's own version is not accurate."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        function = OPSET[prim].reference
        assert function is not None
        exact: torch.Tensor = function(x)
        return exact.to(x.dtype)

    return reference


def _op(name: str, arity: int, kind: Kind, result: Rule, meaning: str, reference: Callable[..., Any]) -> LoopOp:
    return LoopOp(name, arity, kind, result, meaning, reference)


_ROWS = (
    # Arithmetic
    _op("add", 2, "number", "same", "a + b", torch.add),
    _op("sub", 2, "number", "same", "a - b", torch.sub),
    _op("mul", 2, "number", "same", "a * b", torch.mul),
    _op("div", 2, "float", "same", "a / b", torch.div),
    _op("floordiv", 2, "number", "same", "a / b rounded down", _floor_div),
    _op("truncdiv", 2, "number", "same", "a / b rounded toward zero", _trunc_div),
    _op("mod", 2, "number", "same", "remainder with the sign of b", torch.remainder),
    _op("fmod", 2, "number", "same", "remainder with the sign of a", torch.fmod),
    _op("gcd", 2, "number", "same", "greatest common divisor of integers, non-negative", torch.gcd),
    _op("neg", 1, "number", "same", "-a", torch.neg),
    _op("abs", 1, "number", "same", "|a|", torch.abs),
    _op("sign", 1, "number", "same", "-1, 0 or 1 (NaN gives 0)", torch.sign),
    _op("max", 2, "any", "same", "the larger; NaN if either is", torch.maximum),
    _op("min", 2, "any", "same", "the smaller; NaN if either is", torch.minimum),
    _op("fmax", 2, "float", "same", "the larger; the other if one is NaN", torch.fmax),
    _op("fmin", 2, "float", "same", "the smaller; the other if one is NaN", torch.fmin),
    _op("copysign", 2, "float", "same", "|a| with the sign of b", torch.copysign),
    _op("nextafter", 2, "float", "same", "the next float from a toward b", torch.nextafter),
    _op("frexp_mantissa", 1, "float", "same", "mantissa of a in [1/2, 1)", _frexp_mantissa),
    _op("frexp_exponent", 1, "float", "int32", "exponent of a for that mantissa", _frexp_exponent),
    # Rounding
    _op("floor", 1, "float", "same", "rounded down", torch.floor),
    _op("ceil", 1, "float", "same", "rounded up", torch.ceil),
    _op("trunc", 1, "float", "same", "rounded toward zero", torch.trunc),
    _op("round", 1, "float", "same", "rounded to nearest, ties to even", torch.round),
    # Powers, exponentials, logarithms
    _op("sqrt", 1, "float", "same", "square root", torch.sqrt),
    _op("rsqrt", 1, "float", "same", "1 / sqrt(a)", torch.rsqrt),
    _op("pow", 2, "number", "same", "a ** b (integers: wrapping, b >= 0)", torch.pow),
    _op("exp", 1, "float", "same", "e ** a", torch.exp),
    _op("exp2", 1, "float", "same", "2 ** a", torch.exp2),
    _op("expm1", 1, "float", "same", "e ** a - 1", torch.expm1),
    _op("log", 1, "float", "same", "natural logarithm", torch.log),
    _op("log2", 1, "float", "same", "base-2 logarithm", torch.log2),
    _op("log10", 1, "float", "same", "base-10 logarithm", torch.log10),
    _op("log1p", 1, "float", "same", "log(1 + a)", torch.log1p),
    # Trigonometric and hyperbolic
    _op("sin", 1, "float", "same", "sine", torch.sin),
    _op("cos", 1, "float", "same", "cosine", torch.cos),
    _op("tan", 1, "float", "same", "tangent", torch.tan),
    _op("asin", 1, "float", "same", "inverse sine", torch.asin),
    _op("acos", 1, "float", "same", "inverse cosine", torch.acos),
    _op("atan", 1, "float", "same", "inverse tangent", torch.atan),
    _op("atan2", 2, "float", "same", "angle of the point (b, a)", torch.atan2),
    _op("sinh", 1, "float", "same", "hyperbolic sine", torch.sinh),
    _op("cosh", 1, "float", "same", "hyperbolic cosine", torch.cosh),
    _op("tanh", 1, "float", "same", "hyperbolic tangent", torch.tanh),
    _op("asinh", 1, "float", "same", "inverse hyperbolic sine", torch.asinh),
    _op("acosh", 1, "float", "same", "inverse hyperbolic cosine", torch.acosh),
    _op("atanh", 1, "float", "same", "inverse hyperbolic tangent", torch.atanh),
    _op("hypot", 2, "float", "same", "sqrt(a*a + b*b) without overflow", torch.hypot),
    _op("sigmoid", 1, "float", "same", "1 / (1 + exp(-a))", torch.sigmoid),
    # Special functions
    _op("erf", 1, "float", "same", "error function", torch.erf),
    _op("erfc", 1, "float", "same", "complementary error function", torch.erfc),
    _op("erfinv", 1, "float", "same", "inverse error function", torch.erfinv),
    _op("erfcx", 1, "float", "same", "exp(a*a) * erfc(a)", _special.erfcx),
    _op("ndtri", 1, "float", "same", "inverse of the normal distribution function", _special.ndtri),
    _op("lgamma", 1, "float", "same", "log |gamma(a)|", torch.lgamma),
    _op("digamma", 1, "float", "same", "derivative of lgamma", torch.digamma),
    _op("zeta", 2, "float", "same", "Hurwitz zeta function", _special.zeta),
    _op("igamma", 2, "float", "same", "regularised lower incomplete gamma P(a, b)", torch.igamma),
    _op("igammac", 2, "float", "same", "regularised upper incomplete gamma Q(a, b)", torch.igammac),
    _op("i0", 1, "float", "same", "modified Bessel function, first kind, order 0", torch.i0),
    _op("i0e", 1, "float", "same", "exp(-|a|) * i0(a)", _special.i0e),
    _op("i1", 1, "float", "same", "modified Bessel function, first kind, order 1", _special.i1),
    _op("i1e", 1, "float", "same", "exp(-|a|) * i1(a)", _special.i1e),
    _op("bessel_j0", 1, "float", "same", "Bessel function, first kind, order 0", _row_reference("special_bessel_j0")),
    _op("bessel_j1", 1, "float", "same", "Bessel function, first kind, order 1", _row_reference("special_bessel_j1")),
    _op("bessel_y0", 1, "float", "same", "Bessel function, second kind, order 0", _row_reference("special_bessel_y0")),
    _op("bessel_y1", 1, "float", "same", "Bessel function, second kind, order 1", _row_reference("special_bessel_y1")),
    _op("bessel_k0", 1, "float", "same", "modified Bessel function, second kind, order 0", _special.modified_bessel_k0),
    _op("bessel_k1", 1, "float", "same", "modified Bessel function, second kind, order 1", _special.modified_bessel_k1),
    _op("bessel_k0e", 1, "float", "same", "exp(a) * bessel_k0(a)", _special.scaled_modified_bessel_k0),
    _op("bessel_k1e", 1, "float", "same", "exp(a) * bessel_k1(a)", _special.scaled_modified_bessel_k1),
    _op("spherical_bessel_j0", 1, "float", "same", "sin(a) / a", _special.spherical_bessel_j0),
    _op("airy_ai", 1, "float", "same", "Airy function Ai", _row_reference("special_airy_ai")),
    _op("trigamma", 1, "float", "same", "derivative of digamma", lambda a: torch.polygamma(1, a)),
    # Comparison and selection
    _op("eq", 2, "any", "bool", "a == b", torch.eq),
    _op("ne", 2, "any", "bool", "a != b", torch.ne),
    _op("lt", 2, "any", "bool", "a < b", torch.lt),
    _op("le", 2, "any", "bool", "a <= b", torch.le),
    _op("gt", 2, "any", "bool", "a > b", torch.gt),
    _op("ge", 2, "any", "bool", "a >= b", torch.ge),
    _op("isnan", 1, "float", "bool", "a is NaN", torch.isnan),
    _op("isinf", 1, "float", "bool", "a is an infinity", torch.isinf),
    _op("signbit", 1, "number", "bool", "the sign bit is set (negative, for integers)", torch.signbit),
    _op("where", 3, "any", "same", "c ? a : b; the first operand is bool", _where),
    # Bits
    _op("bitand", 2, "int", "same", "a & b", torch.bitwise_and),
    _op("bitor", 2, "int", "same", "a | b", torch.bitwise_or),
    _op("bitxor", 2, "int", "same", "a ^ b", torch.bitwise_xor),
    _op("bitnot", 1, "int", "same", "~a (logical for bool)", torch.bitwise_not),
    _op("shl", 2, "int", "same", "a << b; 0 when b is negative or too large", torch.bitwise_left_shift),
    _op("shr", 2, "int", "same", "a >> b; the sign when b is negative or too large", torch.bitwise_right_shift),
    # Conversion
    _op("convert", 1, "any", "given", "a in another dtype, as torch's CPU conversion; halves too", _convert),
    _op("bitcast", 1, "any", "given", "the same bits read as another dtype of equal width; halves too", _bitcast),
    # Indices and random numbers
    _op("wrap_index", 2, "int", "int64", "a from [-b, b) to [0, b); any other value is an IndexError", wrap_index),
    _op("philox", 3, "int", "int64", "word c of Philox 4x32-10 with key a and counter b", philox),
)

OPS: Mapping[str, LoopOp] = {row.name: row for row in _ROWS}
"""Every op a ``Compute`` may name."""


def _trailing(value: torch.Tensor, n: int) -> torch.Tensor:
    return value.flatten(value.dim() - n) if n else value.unsqueeze(-1)


def _extreme_reduce(function: Callable[..., Any], identity: Callable[[torch.dtype], Any]) -> Callable[..., torch.Tensor]:
    def reduce(value: torch.Tensor, n: int) -> torch.Tensor:
        flat = _trailing(value, n)
        if flat.shape[-1] == 0:
            return torch.full(flat.shape[:-1], identity(value.dtype), dtype=value.dtype)
        result: torch.Tensor = function(flat, dim=-1)
        return result

    return reduce


def _arg_reduce(function: Callable[..., Any], identity: Callable[[torch.dtype], Any]) -> Callable[..., Any]:
    def reduce(value: torch.Tensor, position: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        flat, where = _trailing(value, n), _trailing(position, n)
        if flat.shape[-1] == 0:
            return torch.full(flat.shape[:-1], identity(value.dtype), dtype=value.dtype), torch.zeros(
                flat.shape[:-1], dtype=torch.int64
            )
        best = function(flat, dim=-1, keepdim=True)
        equal = (flat == best) | ((flat != flat) & (best != best))
        first = torch.where(equal, where, torch.iinfo(torch.int64).max).amin(-1)
        return best.squeeze(-1), first

    return reduce


def _arg_scan(better: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def scan(value: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values: list[torch.Tensor] = []
        positions: list[torch.Tensor] = []
        for k in range(value.shape[-1]):
            v, p = value[..., k], position[..., k]
            if values:
                take = (v != v) | ((values[-1] == values[-1]) & better(v, values[-1]))
                v, p = torch.where(take, v, values[-1]), torch.where(take, p, positions[-1])
            values.append(v)
            positions.append(p)
        if not values:
            return value, position
        return torch.stack(values, -1), torch.stack(positions, -1)

    return scan


def _sum(value: torch.Tensor, n: int) -> torch.Tensor:
    return _trailing(value, n).sum(-1, dtype=value.dtype)


def _prod(value: torch.Tensor, n: int) -> torch.Tensor:
    return _trailing(value, n).prod(-1, dtype=value.dtype)


def _xor(value: torch.Tensor, n: int) -> torch.Tensor:
    flat = _trailing(value, n)
    result = torch.zeros(flat.shape[:-1], dtype=value.dtype)
    for k in range(flat.shape[-1]):
        result = result ^ flat[..., k]
    return result


def _exponentials(value: torch.Tensor, weight: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat, weights = _trailing(value, n), _trailing(weight, n)
    if flat.shape[-1] == 0:
        return torch.full(flat.shape[:-1], -math.inf, dtype=value.dtype), torch.zeros(flat.shape[:-1], dtype=value.dtype)
    largest = flat.amax(-1, keepdim=True)
    share = torch.where(flat == largest, torch.ones_like(flat), torch.exp(flat - largest))
    return largest.squeeze(-1), (weights * share).sum(-1)


COMBINE: Mapping[str, CombineOp] = {
    row.name: row
    for row in (
        CombineOp("sum", "number", "sum", lambda d: 0, _sum, lambda v: torch.cumsum(v, -1, dtype=v.dtype)),
        CombineOp("prod", "number", "product", lambda d: 1, _prod, lambda v: torch.cumprod(v, -1, dtype=v.dtype)),
        CombineOp(
            "max",
            "any",
            "largest; NaN if any is",
            lowest,
            _extreme_reduce(torch.amax, lowest),
            lambda v: torch.cummax(v, -1).values,
        ),
        CombineOp(
            "min",
            "any",
            "smallest; NaN if any is",
            highest,
            _extreme_reduce(torch.amin, highest),
            lambda v: torch.cummin(v, -1).values,
        ),
        CombineOp("any", "bool", "whether any is true", lambda d: False, lambda v, n: _trailing(v, n).any(-1)),
        CombineOp("all", "bool", "whether all are true", lambda d: True, lambda v, n: _trailing(v, n).all(-1)),
        CombineOp("xor", "int", "exclusive or of all", lambda d: 0, _xor),
        CombineOp(
            "argmax",
            "any",
            "largest and its smallest position; NaN counts as largest. In a scan: the latest position of equals",
            lowest,
            _arg_reduce(torch.amax, lowest),
            _arg_scan(torch.ge),
            "int64 positions",
            LAST,
        ),
        CombineOp(
            "argmin",
            "any",
            "smallest and its smallest position; NaN counts as smallest. In a scan: the latest position of equals",
            highest,
            _arg_reduce(torch.amin, highest),
            _arg_scan(torch.le),
            "int64 positions",
            LAST,
        ),
        CombineOp(
            "expsum",
            "float",
            "largest, and sum of weights times exp(value - largest), which is 1 where the two are equal",
            lowest,
            _exponentials,
            None,
            "weights",
        ),
        CombineOp(
            "logaddexp",
            "float",
            "log of the sum of exponentials",
            lambda d: -math.inf,
            None,
            lambda v: torch.logcumsumexp(v, -1),
        ),
    )
}
"""Every op an ``Accumulator`` may name; the emitter's keys are ``reduce.NAME`` and ``scan.NAME``."""
