"""Device functions that generated kernels call: loop ops that are more than one Triton expression, and the combinations of
reductions and scans.

All take blocks or scalars of one dtype and broadcast. Imported by generated modules only, since importing it needs triton.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: RET505
# Triton compiles these functions itself: their parameters are blocks, which Python's types cannot name; and where it knows a
# condition, it needs the ``else`` to leave out the other branch.

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice, num_threads

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter knows no assembly."""


@triton.jit
def some(condition):
    """Whether a condition holds anywhere in the block."""
    if len(condition.shape) == 0:
        return condition
    else:
        return tl.max(condition.to(tl.int32)) > 0


@triton.jit
def before_write(elements: tl.constexpr):
    """Stands between a load of a block of so many elements and a store over these. Triton has no more than there are threads
    loaded several times, by threads that hold the same one and for each layout: none of these may find what another stored."""
    if not INTERPRETED and elements <= num_threads():
        tl.debug_barrier()


# Floats of eight bits, as their bits: exponents have other biases, and what is subnormal is a number of units


E4M3_LAST = tl.constexpr(int(torch.tensor(1e9).to(torch.float8_e4m3fn).view(torch.uint8)))
"""What is too large: the largest number or NaN, which depends on torch's version."""


@triton.jit
def signed(value, raw):
    """``value``, which has no sign, with that of a byte."""
    return (value.to(tl.int32, bitcast=True) | ((raw & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def widen_e4m3(v):
    raw = v.to(tl.int32)
    rest = raw & 0x7F
    normal = ((rest << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(rest < 8, rest.to(tl.float32) * 0.001953125, normal)
    return signed(tl.where(rest == 0x7F, float("nan"), value), raw)


@triton.jit
def widen_e5m2(v):
    raw = v.to(tl.int32)
    rest = raw & 0x7F
    normal = ((rest << 21) + (112 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(rest < 4, rest.to(tl.float32) * 0.0000152587890625, normal)
    value = tl.where(rest == 0x7C, float("inf"), value)
    return signed(tl.where(rest > 0x7C, float("nan"), value), raw)


@triton.jit
def narrow_byte(v, shift: tl.constexpr, bias: tl.constexpr, unit: tl.constexpr, last: tl.constexpr):
    """To nearest, ties to even: the rounding carries into the exponent; subnormals are rounded by a sum with a number whose
    last bit is theirs."""
    bits = v.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size - (bias << 23) + ((1 << (shift - 1)) - 1) + ((size >> shift) & 1)) >> shift
    small = (size.to(tl.float32, bitcast=True) + unit).to(tl.int32, bitcast=True) & 0x7FFFFF
    found = tl.where(size < ((bias + 1) << 23), small, tl.where(normal < last, normal, last))
    found = tl.where(size > 0x7F800000, 0x7F, found)
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def narrow_e4m3(v):
    return narrow_byte(v, 20, 120, 16384.0, E4M3_LAST)


@triton.jit
def narrow_e5m2(v):
    return narrow_byte(v, 21, 112, 128.0, 0x7C)


# Index expressions


@triton.jit
def floor_div(a, b):
    rest = a % b  # of numbers one of which may be a constant, which has no dtype
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), a // b - 1, a // b)


@triton.jit
def floor_mod(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def quotient(a, b, bits: tl.constexpr, apart: tl.constexpr):
    """Of ``a + b`` and a power of two, of which ``b`` is a multiple if ``apart`` says so: rounded down."""
    if apart:
        return (a >> bits) + (b >> bits)
    else:
        return (a + b) >> bits


@triton.jit
def remainder(a, b, bits: tl.constexpr, apart: tl.constexpr):
    """As ``quotient``; never negative."""
    if apart:
        return a & ((1 << bits) - 1)
    else:
        return (a + b) & ((1 << bits) - 1)


@triton.jit
def smaller(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def wrap_index(a, size, mask):
    """Indices in [-size, size) made non-negative. Others stop the kernel, as in torch's own CUDA kernels."""
    wrapped = tl.where(a < 0, a + size, a)
    tl.device_assert((wrapped >= 0) & (wrapped < size) | (mask == 0), "index out of range")
    return wrapped


# Arithmetic


@triton.jit
def div(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def again(a):
    """``a``, of which the compiler does not know that: what follows from it is computed, not kept in registers since it was
    computed before."""
    if INTERPRETED:
        return a
    elif a.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [a], a.dtype, False, 2)
    elif a.dtype.primitive_bitwidth == 32:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [a], a.dtype, False, 1)
    else:
        return a


@triton.jit
def ratio(a, b):
    """``a / b`` of float32 numbers within 2 ulp, ``b`` in [2**-126, 2**126] and none subnormal (PTX ISA, div.approx)."""
    if INTERPRETED:
        return a / b
    else:
        return tl.inline_asm_elementwise("div.approx.ftz.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)


@triton.jit
def quotient_by(a, b):
    """``a / b`` within an ulp, for float32 numbers many of which share a divisor, and which are then rounded to bfloat16.

    Of bfloat16 numbers none has a quotient within 2**-17 of a tie, relatively; so theirs are rounded correctly.
    """
    scale = tl.where(tl.abs(b) < 1e-30, 18446744073709551616.0, tl.where(tl.abs(b) > 1e30, 5.421010862427522e-20, 1.0))
    return a * tl.div_rn(tl.full([], 1.0, tl.float32), b * scale) * scale


@triton.jit
def div_by(a, b):
    """``a / b``, rounded to nearest as ``div_rn`` does, for float32 numbers many of which share a divisor.

    The quotient by way of the reciprocal is off by an ulp or so, which its exact remainder mends (Markstein, 1990). Divisors
    near the ends of the range are scaled. Where the remainder is no number, the quotient is an infinity, a zero or NaN.
    """
    scale = tl.where(tl.abs(b) < 1e-30, 18446744073709551616.0, tl.where(tl.abs(b) > 1e30, 5.421010862427522e-20, 1.0))
    divisor = b * scale
    inverse = tl.div_rn(tl.full([], 1.0, tl.float32), divisor)
    quotient = a * inverse
    mended = tl.fma(tl.fma(-quotient, divisor, a), inverse, quotient)
    return tl.where(mended == mended, mended, quotient) * scale


@triton.jit
def fmod(a, b):
    if a.dtype.is_floating():
        return libdevice.fmod(a, b)
    else:
        return a % b


@triton.jit
def mod(a, b):
    rest = fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def truncdiv(a, b):
    if a.dtype.is_floating():
        return libdevice.trunc(div(a, b))
    else:
        return a // b


@triton.jit
def floordiv(a, b):
    if a.dtype.is_floating():
        # As CPython's float floor division: exact even where a / b rounds up to a whole number.
        rest = libdevice.fmod(a, b)
        quotient = div(a - rest, b)
        quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
        whole = libdevice.floor(quotient)
        whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
        exact = div(a, b)
        whole = tl.where(quotient == 0.0, libdevice.copysign(quotient, exact), whole)
        return tl.where(b == 0.0, exact, whole)
    else:
        return (a // b - ((a % b != 0) & ((a < 0) != (b < 0))).to(a.dtype)).to(a.dtype)


@triton.jit
def gcd(a, b):
    a, b = tl.broadcast(tl.abs(a), tl.abs(b))
    # Euclid's algorithm takes the most steps on Fibonacci numbers, of which 92 fit into 63 bits.
    for _ in range(92):
        rest = a % tl.where(b == 0, 1, b)
        done = b == 0
        b, a = tl.where(done, b, rest).to(a.dtype), tl.where(done, a, b).to(a.dtype)
    return a


@triton.jit
def neg(a):
    if a.dtype.is_floating():
        return a * -1.0  # Triton's minus is 0 - a, which loses the sign of zero
    else:
        return -a


@triton.jit
def signbit(a):
    if a.dtype == tl.float32:
        return a.to(tl.int32, bitcast=True) < 0
    elif a.dtype == tl.float64:
        return a.to(tl.int64, bitcast=True) < 0
    else:
        return a < 0


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fmax(a, b):
    return tl.where(b != b, a, tl.where(a > b, a, b))


@triton.jit
def fmin(a, b):
    return tl.where(b != b, a, tl.where(a < b, a, b))


@triton.jit
def frexp_exponent(a):
    known = (a != 0) & (tl.abs(a) < float("inf"))
    return tl.where(known, libdevice.ilogb(tl.where(known, a, 1.0)) + 1, 0)


@triton.jit
def frexp_mantissa(a):
    exponent = frexp_exponent(a)
    # In two steps: for a subnormal number 2 ** -exponent overflows.
    half = exponent // 2
    return libdevice.ldexp(libdevice.ldexp(a, -half), half - exponent)


@triton.jit
def sqrt(a):
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    else:
        return tl.sqrt(a)


@triton.jit
def power(a, b):
    if a.dtype.is_floating():
        return libdevice.pow(a, b)
    else:
        result = tl.full([], 1, a.dtype) + tl.zeros_like(a) + tl.zeros_like(b)
        base = a + tl.zeros_like(b)
        left = tl.where(b < 0, 0, b).to(a.dtype) + tl.zeros_like(a)
        for _ in range(a.dtype.primitive_bitwidth):
            result = tl.where((left & 1) != 0, result * base, result).to(a.dtype)
            base = (base * base).to(a.dtype)
            left = (left >> 1).to(a.dtype)
        # A negative exponent leaves a whole number only for 1 and -1.
        odd = tl.where((b & 1) != 0, a, a * a)
        return tl.where(b < 0, tl.where((a == 1) | (a + 1 == 0), odd, 0), result).to(a.dtype)


@triton.jit
def but_infinite(value, a):
    """``value``, and NaN where ``a`` is infinite: NVIDIA's Bessel functions have limits there, torch's have none."""
    return tl.where(tl.abs(a) == float("inf"), float("nan"), value)


@triton.jit
def sigmoid(a):
    """By the exponential that does not overflow, so that small results keep their digits."""
    small = libdevice.exp(neg(tl.abs(a)))
    one = tl.full([], 1.0, a.dtype)
    part = one / (one + small)  # of numbers from 1 to 2: the quick quotient is off by an ulp at most
    return tl.where(a < 0, small * part, part)


@triton.jit
def erf(a):
    if a.dtype != tl.float32:
        return libdevice.erf(a)
    # |a| P(a a) / Q(a a), a fit of 2e-8 on [0, 3.95], from where on the result is 1: half of the library's arithmetic.
    size = minimum(tl.abs(a), tl.full([], 3.95, tl.float32))
    z = size * size
    p = tl.fma(z, 2.025893e-06, 0.00028468404)
    p = tl.fma(p, z, 0.0038080877)
    p = tl.fma(p, z, 0.052875213)
    p = tl.fma(p, z, 0.19154888)
    p = tl.fma(p, z, 1.1283791)
    q = tl.fma(z, 3.783145e-05, 0.001170704)
    q = tl.fma(q, z, 0.015054943)
    q = tl.fma(q, z, 0.114558995)
    q = tl.fma(q, z, 0.5030885)
    q = tl.fma(q, z, 1.0)
    result = minimum(size * ratio(p, q), tl.full([], 1.0, tl.float32))
    return libdevice.copysign(tl.where(size > 3.92, 1.0, result), a)


@triton.jit
def one_and_erf(a):
    """``1 + erf(a)`` within 2e-6, and for ``a > -6`` within 3e-4 of itself, for what is rounded to halves.

    The complement of erf is ``2**(-s Q(s))``, s the magnitude: a fit on [0, 6], weighted by the complement and 0.01. Q grows,
    so that beyond it nothing remains.
    """
    size = tl.abs(a)
    q = tl.fma(size, 1.5488831e-05, -4.136939e-04)
    q = tl.fma(q, size, 0.004815889)
    q = tl.fma(q, size, -0.032844912)
    q = tl.fma(q, size, 0.15113354)
    q = tl.fma(q, size, 0.917743)
    q = tl.fma(q, size, 1.6279602)
    power = q * (size * -1.0)
    if INTERPRETED:
        rest = tl.exp2(power)
    else:
        rest = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
    return tl.where(a < 0, rest, 2.0 - rest)


@triton.jit
def logaddexp(a, b):
    top = maximum(a, b)
    gap = tl.where(a == b, tl.zeros_like(top), tl.abs(a - b) * -1.0)  # equal infinities have no gap
    return top + libdevice.log1p(libdevice.exp(gap))


@triton.jit
def halved(tile):
    """The left and the right half of a tile's columns."""
    parts = tl.reshape(tile, [tile.shape[0], 2, tile.shape[1] // 2])
    return tl.split(tl.permute(parts, (0, 2, 1)))


# Bits and random numbers


@triton.jit
def shl(a, b):
    width = a.dtype.primitive_bitwidth
    fits = (b >= 0) & (b < width)
    return tl.where(fits, a << tl.where(fits, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def shr(a, b):
    top = a.dtype.primitive_bitwidth - 1
    fits = (b >= 0) & (b <= top)
    if a.dtype.is_int_unsigned():
        return tl.where(fits, a >> tl.where(fits, b, 0).to(a.dtype), 0).to(a.dtype)
    else:
        return a >> tl.where(fits, b, top).to(a.dtype)


@triton.jit
def philox(seed, index, word):
    """Word ``word`` of Philox 4x32-10 with key ``seed`` and counter ``(index, 0)``, as int64 in [0, 2**32)."""
    low = (index & 0xFFFFFFFF).to(tl.uint32)
    high = ((index >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = tl.zeros_like(low)
    a, b, c, d = tl.philox(seed, low, high, zero, zero)
    return tl.where(word == 0, a, tl.where(word == 1, b, tl.where(word == 2, c, d))).to(tl.int64)


# What the programs of a row tell each other: words of a value and, above it, a bit that says it is there

THERE = tl.constexpr(1 << 32)


@triton.jit
def tell(word, value):
    tl.atomic_xchg(word, (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | THERE, sem="relaxed")


@triton.jit
def said(word, mask):
    """What is there now. Where ``mask`` does not hold, nobody has anything to say."""
    return tl.load(word, mask=mask, other=THERE, volatile=True)


@triton.jit
def missing(words):
    """Whether some program has said nothing yet. (The interpreter runs one after the other, again for each wait.)"""
    if INTERPRETED:
        return False
    else:
        return tl.min(tl.min(words >> 32, 1), 0) == 0


@triton.jit
def value_of(word, kind: tl.constexpr):
    return (word & 0xFFFFFFFF).to(tl.int32).to(kind, bitcast=True)


# Combinations: what a step of a reduction or scan does


@triton.jit
def combine_sum(a, b):
    return a + b


@triton.jit
def combine_prod(a, b):
    return a * b


@triton.jit
def combine_max(a, b):
    return maximum(a, b)


@triton.jit
def combine_min(a, b):
    return minimum(a, b)


@triton.jit
def combine_any(a, b):
    return a | b


@triton.jit
def combine_all(a, b):
    return a & b


@triton.jit
def combine_xor(a, b):
    return a ^ b


@triton.jit
def combine_logaddexp(a, b):
    return logaddexp(a, b)


@triton.jit
def weight(gap, summed: tl.constexpr):
    """The exponential of a gap to the largest value, at most zero: within ``(2 * abs(gap) + 10) * 2**-23``, relatively (PTX
    ISA, ex2.approx, and the roundings of its operand).

    Below 2**-126 it is zero where it is only added to others, of which one is 1. Elsewhere it is found as a multiple, which is
    subnormal only where the exponential is zero: hardware's power of subnormal results takes three instructions more.
    """
    if INTERPRETED:
        return tl.exp(gap)
    elif summed:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [gap * 1.4426950408889634], tl.float32, True, 1)
    else:
        power = tl.fma(gap, tl.full([], 1.4426950408889634, tl.float32), tl.full([], 24.0, tl.float32))
        raised = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
        return raised * 5.9604644775390625e-08


@triton.jit
def combine_expsum(a, s, b, t):
    """The larger value, and the sums of what was weighted by exponentials of the gaps to each."""
    share = tl.where(a == b, 1.0, libdevice.exp(tl.abs(a - b) * -1.0)).to(s.dtype)
    return maximum(a, b), tl.where(a >= b, s + t * share, s * share + t)


@triton.jit
def combine_argmax(a, i, b, j):
    """The larger value, NaN above all; of equals the smaller position."""
    equal = (a == b) | ((a != a) & (b != b))
    take = tl.where(equal, j < i, (b != b) | ((a == a) & (b > a)))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def combine_argmin(a, i, b, j):
    """The smaller value, NaN below all; of equals the smaller position."""
    equal = (a == b) | ((a != a) & (b != b))
    take = tl.where(equal, j < i, (b != b) | ((a == a) & (b < a)))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def running_argmax(a, i, b, j):
    """As ``combine_argmax``, but the later of equals: scans run forward."""
    take = (b != b) | ((a == a) & (b >= a))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def running_argmin(a, i, b, j):
    """As ``combine_argmin``, but the later of equals: scans run forward."""
    take = (b != b) | ((a == a) & (b <= a))
    return tl.where(take, b, a), tl.where(take, j, i)
