"""The chip and its assembler, simulated: a stand-in for a vendor's tools. It knows nothing of PyTorch or of vendor_sdk.

A register holds one number for each *lane*. ``i = loop n`` gives each lane n lanes of its own, numbered in i, until ``end``.

    b = buffer    n = number.i64                  what a launch is given, in order
    d = add.f32 a, b                              arithmetic, see ALU; the type is the operands', which may be numbers
    d = convert.TO.FROM a    d = bits.TO.FROM a
    d = load.f32 b, index (, mask, other)         lanes that a mask turns off do not touch memory
    store.f32 b, index, a (, mask)                also store_add, store_mul, store_max, store_min
    d = fold_sum.f32 a, N, START                  over the lanes of the innermost N loops; d is seen after their ends
    d = running_sum.f32 a                         along the lanes of the innermost loop
    d, p = fold_argmax.f32 a, q, N, START         an extreme and its position, q being the lanes' positions; running_argmax too
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray[Any, Any]
Program = list[tuple[list[str], str, list[str], list[Any]]]
"""Results, opcode, types and operands (names and numbers) of each instruction."""
TYPES = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1", "u8": "u1", "b8": "?"}


class AssemblyError(Exception):
    """The assembler refused a line."""


class Trap(Exception):
    """An instruction failed on some lane: "index" or "divide"."""


def named(names: str, home: Any) -> dict[str, Callable[..., Any]]:
    pairs = [name.partition("=") for name in names.split()]
    return {name: getattr(home, other or name) for name, _, other in pairs}


def in_double(function: Callable[..., Array], *operands: Array) -> Array:
    """Tables and iterations of the function unit are wider than float32."""
    return function(*(np.asarray(x, "f8") for x in operands)).astype(operands[-1].dtype)


def divide(function: Callable[..., Array], x: Array, y: Array) -> Array:
    if y.dtype.kind in "iu" and not y.all():
        raise Trap("divide")
    return function(x, y)


def quotient(x: Array, y: Array) -> Array:
    """Integers: toward zero."""
    return x / y if y.dtype.kind == "f" else x // y + ((x % y != 0) & ((x < 0) != (y < 0)))


def bound(x: Array, size: Array) -> Array:
    wrapped = np.where(x < 0, x + size, x)
    if ((wrapped < 0) | (wrapped >= size)).any():
        raise Trap("index")
    return wrapped


def random(seed: Array, counter: Array, word: Array) -> Array:
    """Philox 4x32-10 (Salmon and others, SC 2011)."""
    seed, counter, word = np.broadcast_arrays(seed.astype("u8"), counter.astype("u8"), word)
    low = 0xFFFFFFFF
    c, key = [counter & low, counter >> 32, 0 * counter, 0 * counter], [seed & low, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ key[0], b & low, (a >> 32) ^ c[3] ^ key[1], a & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return np.choose(word, c).astype("i8")


FUNCTIONS = named(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh hypot", np
) | named("erf erfc erfinv erfcx ndtri digamma i0 i0e i1 i1e zeta igamma=gammainc igammac=gammaincc", special)
ALU = {
    **named("add sub=subtract mul=multiply neg=negative abs sign floor ceil trunc round=rint sqrt pow=power", np),
    **named("max=maximum min=minimum fmax fmin copysign nextafter isnan signbit gcd select=where shl=left_shift", np),
    **named("and=bitwise_and or=bitwise_or xor=bitwise_xor not=invert shr=right_shift", np),
    **named("eq=equal ne=not_equal lt=less le=less_equal gt=greater ge=greater_equal", np),
    **{name: partial(in_double, function) for name, function in FUNCTIONS.items()},
    **{name: partial(divide, function) for name, function in named("mod quot=floor_divide fmod", np).items()},
}
ALU |= {"div": partial(divide, quotient), "move": np.asarray, "bound": bound, "random": random}
ALU |= {"mantissa": lambda x: np.frexp(x)[0], "exponent": lambda x: np.frexp(x)[1]}
JOIN = named("sum=add prod=multiply max=maximum min=minimum any=logical_or all=logical_and xor=bitwise_xor logaddexp", np)
JOIN |= named("argmax=maximum argmin=minimum add mul=multiply", np)


class Lanes:
    """The machine while a program runs. ``shape`` has an axis a loop; a register's axes are the first of them."""

    def __init__(self, buffers: Iterable[Array], numbers: Iterable[int | float]) -> None:
        self.buffers, self.numbers = iter(buffers), iter(numbers)
        self.registers: dict[str, Any] = {}
        self.shape: tuple[int, ...] = ()
        self.active: Array = np.asarray(True)  # an inner loop may be longer for some lanes than for others
        self.outer: list[tuple[tuple[int, ...], Array]] = []

    def run(self, program: Program) -> None:
        for results, opcode, types, operands in program:
            values = [self.registers[x] if isinstance(x, str) else x for x in operands]
            values = [self.aligned(x) if isinstance(x, np.ndarray) else x for x in values]
            made = ALU[opcode](*values) if opcode in ALU else OTHER[opcode](self, (types or [""])[0], *values)
            self.registers.update(zip(results, made if len(results) > 1 else [made], strict=False))

    def aligned(self, value: Any) -> Array:
        return np.reshape(value, np.shape(value) + (1,) * (len(self.shape) - np.ndim(value)))

    def full(self, *values: Any) -> list[Array]:
        return [np.broadcast_to(self.aligned(value), self.shape) for value in values]

    def loop(self, _: str, size: Array) -> Array:
        self.outer.append((self.shape, self.active))
        self.shape += (int(size.max(initial=0)),)
        lane = np.arange(self.shape[-1]).reshape((1,) * (len(self.shape) - 1) + (-1,))
        if size.size > 1:
            self.active = self.aligned(self.active) & (lane < self.aligned(size))
        return lane

    def end(self, _: str) -> None:
        self.shape, self.active = self.outer.pop()

    def load(self, kind: str, memory: memoryview, index: Array, mask: Any = True, other: Any = 0) -> Array:
        data, on = np.asarray(memory), self.aligned(self.active) & mask
        if not on.any():
            return np.where(on, 0, other).astype(kind)
        return np.where(on, data[np.where(on, index, 0)], other).astype(kind)

    def store(self, join: Any, _: str, memory: memoryview, index: Array, value: Array, mask: Any = True) -> None:
        data = np.asarray(memory)
        on, index, value = self.full(self.aligned(self.active) & mask, index, value)
        if join:
            join.at(data, index[on], value[on])
        else:
            data[index[on]] = value[on]

    def fold(self, op: str, kind: str, value: Array, *rest: Any) -> Any:
        """Sums are wider than their terms. Of equal extremes the first position wins."""
        *position, rank, start = rest
        axes = tuple(range(len(self.shape) - rank, len(self.shape)))
        value, on, start = self.full(value, self.active, start)
        wide = "f8" if kind[0] == "f" and op in ("sum", "prod") else kind
        kept = value if self.active.all() else np.where(on, value, start)
        best = JOIN[op].reduce(kept, axes, wide, initial=rest[-1], keepdims=True)
        if not position:
            return best.squeeze(axes).astype(kind)
        equal = on & ((value == best) | ((value != value) & (best != best)))
        last = np.iinfo("i8").max
        return best.squeeze(axes).astype(kind), np.where(equal, position[0], last).min(axes, initial=last)

    def running(self, op: str, kind: str, value: Array, *position: Array) -> Any:
        """Of equal extremes the last position wins."""
        (value,) = self.full(value)
        best = JOIN[op].accumulate(value, -1, "f8" if kind[0] == "f" else kind)
        if not position:
            return best.astype(kind)
        taken = np.where((value == best) | (value != value), np.arange(self.shape[-1]), 0)
        return best.astype(kind), np.take_along_axis(*self.full(position[0]), np.maximum.accumulate(taken, -1), -1)


OTHER: dict[str, Callable[..., Any]] = {
    "buffer": lambda lanes, _: memoryview(next(lanes.buffers)),
    "number": lambda lanes, kind: np.asarray(next(lanes.numbers), kind),
    "set": lambda lanes, kind, value: np.asarray(value, kind),
    "convert": lambda lanes, kind, value: value.astype(kind),
    "bits": lambda lanes, kind, value: value.view(kind),
    **{name: getattr(Lanes, name) for name in ("loop", "end", "load")},
    "store": lambda lanes, *operands: lanes.store(None, *operands),
    **{f"store_{op}": lambda lanes, *operands, op=op: lanes.store(JOIN[op], *operands) for op in JOIN},
    **{f"fold_{op}": lambda lanes, *operands, op=op: lanes.fold(op, *operands) for op in JOIN},
    **{f"running_{op}": lambda lanes, *operands, op=op: lanes.running(op, *operands) for op in JOIN},
}


def assemble(text: str) -> Program:
    """Checks opcodes and types, and that every name is computed before its use."""
    program: Program = []
    known: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        made, _, rest = line.rpartition("=")
        word, _, used = rest.strip().partition(" ")
        opcode, *kinds = word.split(".")
        try:
            if opcode not in ALU and opcode not in OTHER:
                raise ValueError(f"no such opcode: {opcode}")
            types = [TYPES[kind] for kind in kinds]
            names = [name.strip() for name in used.split(",") if name]
            operands = [x if x in known else int(x) if x.lstrip("-").isdigit() else float(x) for x in names]
        except (KeyError, ValueError) as error:
            raise AssemblyError(f"line {number}: {line.strip()}: {error}") from error
        program.append(([name.strip() for name in made.split(",") if name], opcode, types, operands))
        known.update(program[-1][0])
    return program
