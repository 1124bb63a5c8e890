"""Fused loop kernels written by hand, as a scheduler makes them, each with its inputs and what eager torch computes.

Every builder returns a ``Case`` for sizes of the caller's choice; ``cases`` gives all of them at about a number of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    Local,
    LoopKernel,
    Nest,
    Param,
    Range,
    Reduce,
    Scalar,
    Scan,
    Stmt,
    Store,
    StoreMode,
    Symbol,
)

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
SEED = 1234


@dataclass(frozen=True)
class Case:
    """A kernel with inputs, and its meaning.

    Attributes:
        inputs: tensors for the "in" and "inout" params, in order; outputs follow.
        outputs: shapes and dtypes of the "out" params.
        eager: computes the outputs from the inputs with torch operators; for "inout" params their new content first.
    """

    kernel: LoopKernel
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    eager: Callable[..., Any]
    symbols: tuple[int, ...] = ()

    def results(self) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype) for shape, dtype in self.outputs]


@dataclass
class Writer:
    """Statements under construction; a value is its name, halves are converted when loaded and stored."""

    name: str
    params: list[Param] = field(default_factory=list)
    scratch: list[Param] = field(default_factory=list)
    bodies: list[list[Stmt]] = field(default_factory=lambda: [[]])
    types: dict[str, torch.dtype] = field(default_factory=dict)
    symbols: list[Symbol] = field(default_factory=list)
    count: int = 0

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def param(self, name: str, size: int, dtype: torch.dtype = F32, role: Any = "in") -> str:
        (self.scratch if role == "scratch" else self.params).append(Param(name, dtype, ix.wrap(size), role))
        self.types[name] = dtype
        return name

    def out(self, name: str, size: int, dtype: torch.dtype = F32) -> str:
        return self.param(name, size, dtype, "out")

    def local(self, size: int, dtype: torch.dtype = F32) -> str:
        name = self.fresh("kept")
        self.types[name] = dtype
        self.add(Local(Param(name, dtype, ix.wrap(size), "local")))
        return name

    def add(self, stmt: Stmt) -> None:
        self.bodies[-1].append(stmt)

    def value(self, make: Callable[[str], Any], dtype: torch.dtype) -> str:
        to = self.fresh()
        self.types[to] = dtype
        self.add(make(to))
        return to

    def load(self, param: str, at: Int, mask: str | None = None, other: str | None = None) -> str:
        dtype = self.types[param]
        loaded = self.value(lambda to: Load(to, param, at, dtype, mask, other), dtype)
        return self.to(loaded, F32) if dtype in (torch.bfloat16, torch.float16) else loaded

    def store(self, param: str, at: Int, value: str, mode: StoreMode = "set", mask: str | None = None) -> None:
        self.add(Store(param, at, self.to(value, self.types[param]), mode, mask))

    def to(self, value: str, dtype: torch.dtype) -> str:
        if self.types[value] == dtype:
            return value
        return self.value(lambda to: Compute(to, "convert", (value,), dtype), dtype)

    def const(self, number: float | int, dtype: torch.dtype = F32) -> str:
        return self.value(lambda to: Const(to, number, dtype), dtype)

    def index(self, at: Int) -> str:
        return self.value(lambda to: Index(to, at), I64)

    def op(self, name: str, *args: str | float) -> str:
        kind = next(self.types[a] for a in reversed(args) if isinstance(a, str))
        names = tuple(a if isinstance(a, str) else self.const(a, kind) for a in args)
        result = BOOL if name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan") else kind
        return self.value(lambda to: Compute(to, name, names, result), result)

    def as_index(self, value: str, size: int) -> Int:
        """A loaded int64 as part of an index, wrapped and checked."""
        limit = self.const(size, I64)
        return ix.variable(self.op("wrap_index", value, limit), size)

    @contextmanager
    def nest(self, *sizes: int | Int) -> Iterator[tuple[Int, ...]]:
        ranges = tuple(Range(self.fresh("i"), ix.wrap(s)) for s in sizes)
        self.bodies.append([])
        yield tuple(ix.variable(r.var, r.size) for r in ranges)
        self.bodies[-2].append(Nest(ranges, tuple(self.bodies.pop())))

    def reduce(self, sizes: Sequence[int | Int], body: Callable[..., Sequence[tuple[str, str]]]) -> list[str]:
        """``body`` gives (op, value) pairs."""
        ranges = tuple(Range(self.fresh("r"), ix.wrap(s)) for s in sizes)
        self.bodies.append([])
        pairs = body(*(ix.variable(r.var, r.size) for r in ranges))
        accumulators = []
        for op, value in pairs:
            to = self.fresh()
            self.types[to] = self.types[value]
            accumulators.append(Accumulator((to,), op, (value,), self.types[value]))
        self.add(Reduce(ranges, tuple(self.bodies.pop()), tuple(accumulators)))
        return [a.to[0] for a in accumulators]

    def reduce1(self, op: str, sizes: Sequence[int | Int], body: Callable[..., str]) -> str:
        return self.reduce(sizes, lambda *r: [(op, body(*r))])[0]

    def kernel(self) -> LoopKernel:
        nests = tuple(s for s in self.bodies[0] if isinstance(s, Nest))
        return LoopKernel(self.name, tuple(self.params), tuple(self.symbols), nests, tuple(self.scratch))


def _rand(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# Pointwise


def bias_gelu(rows: int, columns: int, dtype: torch.dtype = F32, approximate: str = "tanh") -> Case:
    k = Writer(f"bias_gelu_{approximate}")
    x, b, y = k.param("x", rows * columns, dtype), k.param("b", columns, dtype), k.out("y", rows * columns, dtype)
    with k.nest(rows, columns) as (i, j):
        v = k.op("add", k.load(x, i * columns + j), k.load(b, j))
        half = k.op("mul", v, 0.5)
        if approximate == "tanh":
            cube = k.op("mul", k.op("mul", v, v), v)
            inner = k.op("mul", k.op("add", v, k.op("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
            factor = k.op("tanh", inner)
        else:
            factor = k.op("erf", k.op("mul", v, math.sqrt(0.5)))
        k.store(y, i * columns + j, k.op("mul", half, k.op("add", factor, 1.0)))
    return Case(
        k.kernel(),
        (_rand(rows, columns, dtype=dtype), _rand(columns, dtype=dtype, seed=1)),
        (((rows, columns), dtype),),
        lambda x, b: F.gelu(x + b, approximate=approximate),
    )


def swiglu(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("swiglu")
    n = rows * columns
    g, u, y = k.param("g", n, dtype), k.param("u", n, dtype), k.out("y", n, dtype)
    with k.nest(n) as (i,):
        v = k.load(g, i)
        k.store(y, i, k.op("mul", k.op("mul", v, k.op("sigmoid", v)), k.load(u, i)))
    return Case(
        k.kernel(),
        (_rand(rows, columns, dtype=dtype), _rand(rows, columns, dtype=dtype, seed=1)),
        (((rows, columns), dtype),),
        lambda g, u: F.silu(g) * u,
    )


def rope(positions: int, heads: int, width: int, dtype: torch.dtype = F32) -> Case:
    """Rotary embedding, the halves of each head exchanged: x * cos + cat(-x2, x1) * sin. One nest a half."""
    k = Writer("rope")
    n, half = positions * heads * width, width // 2
    x, c, s = k.param("x", n, dtype), k.param("c", positions * width, dtype), k.param("s", positions * width, dtype)
    y = k.out("y", n, dtype)
    for part in (0, 1):
        with k.nest(positions, heads, half) as (p, h, d):
            row = (p * heads + h) * width
            here, there = d + part * half, d + (1 - part) * half
            turned = k.load(x, row + there)
            turned = turned if part else k.op("neg", turned)
            straight = k.op("mul", k.load(x, row + here), k.load(c, p * width + here))
            k.store(y, row + here, k.op("add", straight, k.op("mul", turned, k.load(s, p * width + here))))

    def eager(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * c[:, None] + torch.cat((-second, first), -1) * s[:, None]

    return Case(
        k.kernel(),
        (
            _rand(positions, heads, width, dtype=dtype),
            _rand(positions, width, dtype=dtype, seed=1),
            _rand(positions, width, dtype=dtype, seed=2),
        ),
        (((positions, heads, width), dtype),),
        eager,
    )


def dropout(rows: int, columns: int, p: float = 0.1) -> Case:
    """Four words of one Philox counter for four neighbours."""
    k = Writer("dropout")
    n = rows * columns
    x, y = k.param("x", n), k.out("y", n)
    k.symbols.append(Symbol("seed", role="seed"))
    with k.nest(n) as (i,):
        seed = k.value(lambda to: Scalar(to, "seed", I64), I64)
        counter, word = k.index(i // 4), k.index(i % 4)
        bits = k.value(lambda to: Compute(to, "philox", (seed, counter, word), I64), I64)
        draw = k.op("mul", k.to(k.op("shr", bits, 8), F32), 2.0**-24)
        kept = k.op("ge", draw, p)
        scaled = k.op("mul", k.load(x, i), 1 / (1 - p))
        k.store(y, i, k.op("where", kept, scaled, k.const(0.0)))
    return Case(k.kernel(), (_rand(rows, columns),), (((rows, columns), F32),), lambda x: F.dropout(x, p, True), (SEED,))


def transpose_add(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("transpose_add")
    n = rows * columns
    x, z, y = k.param("x", n, dtype), k.param("z", n, dtype), k.out("y", n, dtype)
    with k.nest(columns, rows) as (i, j):
        k.store(y, i * rows + j, k.op("add", k.load(x, j * columns + i), k.load(z, i * rows + j)))
    return Case(
        k.kernel(),
        (_rand(rows, columns, dtype=dtype), _rand(columns, rows, dtype=dtype, seed=1)),
        (((columns, rows), dtype),),
        lambda x, z: x.t() + z,
    )


def cat_relu(rows: int, left: int, right: int) -> Case:
    """Concatenation as masked loads."""
    k = Writer("cat_relu")
    width = left + right
    a, b, y = k.param("a", rows * left), k.param("b", rows * right), k.out("y", rows * width)
    with k.nest(rows, width) as (i, j):
        first = k.op("lt", k.index(j), left)
        second = k.op("ge", k.index(j), left)
        zero = k.const(0.0)
        here = k.load(a, i * left + j, first, zero)
        v = k.load(b, i * right + j - left, second, here)
        k.store(y, i * width + j, k.op("max", v, 0.0))
    return Case(
        k.kernel(),
        (_rand(rows, left), _rand(rows, right, seed=1)),
        (((rows, width), F32),),
        lambda a, b: torch.cat((a, b), 1).relu(),
    )


def pair_maximum(rows: int, columns: int) -> Case:
    """Windows of two elements, two apart, the first of each row half in the padding."""
    k = Writer("pair_maximum")
    x, y = k.param("x", rows * 2 * columns), k.out("y", rows * columns)
    with k.nest(rows, columns) as (i, j):
        there = k.op("ge", k.index(2 * j - 1), k.index(ix.ZERO))
        left = k.load(x, 2 * columns * i + 2 * j - 1, there, k.const(-math.inf))
        k.store(y, columns * i + j, k.op("max", left, k.load(x, 2 * columns * i + 2 * j)))

    def eager(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x, 2, 2, 1)[:, :columns]

    return Case(k.kernel(), (_rand(rows, 2 * columns),), (((rows, columns), F32),), eager)


def adamw(sizes: Sequence[int]) -> Case:
    """One step for every parameter, a nest each: parameter, first and second moment change in place."""
    k = Writer("adamw")
    lr, beta1, beta2, eps, decay, step = 1e-3, 0.9, 0.999, 1e-8, 0.01, 10
    tensors: list[torch.Tensor] = []
    for at, n in enumerate(sizes):
        p, m, v = (k.param(f"{name}{at}", n, role="inout") for name in "pmv")
        g = k.param(f"g{at}", n)
        tensors += [
            _rand(n, seed=4 * at),
            _rand(n, seed=4 * at + 1),
            _rand(n, seed=4 * at + 2).abs(),
            _rand(n, seed=4 * at + 3),
        ]
        with k.nest(n) as (i,):
            grad = k.load(g, i)
            first = k.op("add", k.op("mul", k.load(m, i), beta1), k.op("mul", grad, 1 - beta1))
            second = k.op("add", k.op("mul", k.load(v, i), beta2), k.op("mul", k.op("mul", grad, grad), 1 - beta2))
            root = k.op("add", k.op("div", k.op("sqrt", second), math.sqrt(1 - beta2**step)), eps)
            moved = k.op("div", k.op("mul", first, lr / (1 - beta1**step)), root)
            k.store(p, i, k.op("sub", k.op("mul", k.load(p, i), 1 - lr * decay), moved))
            k.store(m, i, first)
            k.store(v, i, second)

    def eager(*t: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for p, m, v, g in zip(t[0::4], t[1::4], t[2::4], t[3::4], strict=True):
            first, second = m * beta1 + g * (1 - beta1), v * beta2 + g * g * (1 - beta2)
            root = second.sqrt() / math.sqrt(1 - beta2**step) + eps
            results += [p * (1 - lr * decay) - first * (lr / (1 - beta1**step)) / root, first, second]
        return results

    return Case(k.kernel(), tuple(tensors), (), eager)


# Rows


def _row_softmax(k: Writer, row: Int, columns: int, element: Callable[[Int], str]) -> tuple[str, str, str]:
    """(kept exponentials, total, top) of one row whose elements ``element`` gives."""
    kept = k.local(columns)

    def first(r: Int) -> str:
        v = element(r)
        k.store(kept, r, v)
        return v

    top = k.reduce1("max", [columns], first)

    def second(r: Int) -> str:
        e = k.op("exp", k.op("sub", k.load(kept, r), top))
        k.store(kept, r, e)
        return e

    return kept, k.reduce1("sum", [columns], second), top


def softmax(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("softmax")
    x, y = k.param("x", rows * columns, dtype), k.out("y", rows * columns, dtype)
    with k.nest(rows) as (i,):
        kept, total, _ = _row_softmax(k, i, columns, lambda r: k.load(x, i * columns + r))
        with k.nest(columns) as (j,):
            k.store(y, i * columns + j, k.op("div", k.load(kept, j), total))
    return Case(k.kernel(), (_rand(rows, columns, dtype=dtype),), (((rows, columns), dtype),), lambda x: torch.softmax(x, -1))


def masked_softmax(rows: int, columns: int) -> Case:
    """softmax(where(mask, x * scale, -inf))."""
    k = Writer("masked_softmax")
    n = rows * columns
    x, m, y = k.param("x", n), k.param("m", n, BOOL), k.out("y", n)
    with k.nest(rows) as (i,):

        def element(r: Int) -> str:
            scaled = k.op("mul", k.load(x, i * columns + r), 0.125)
            return k.op("where", k.load(m, i * columns + r), scaled, k.const(-math.inf))

        kept, total, _ = _row_softmax(k, i, columns, element)
        with k.nest(columns) as (j,):
            k.store(y, i * columns + j, k.op("div", k.load(kept, j), total))
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) < 0.8
    mask[:, 0] = True
    return Case(
        k.kernel(),
        (_rand(rows, columns), mask),
        (((rows, columns), F32),),
        lambda x, m: torch.softmax(torch.where(m, x * 0.125, -math.inf), -1),
    )


def log_softmax(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("log_softmax")
    x, y = k.param("x", rows * columns, dtype), k.out("y", rows * columns, dtype)
    with k.nest(rows) as (i,):
        top = k.reduce1("max", [columns], lambda r: k.load(x, i * columns + r))
        total = k.reduce1("sum", [columns], lambda r: k.op("exp", k.op("sub", k.load(x, i * columns + r), top)))
        shift = k.op("add", top, k.op("log", total))
        with k.nest(columns) as (j,):
            k.store(y, i * columns + j, k.op("sub", k.load(x, i * columns + j), shift))
    return Case(
        k.kernel(), (_rand(rows, columns, dtype=dtype),), (((rows, columns), dtype),), lambda x: torch.log_softmax(x, -1)
    )


def layer_norm(rows: int, columns: int, dtype: torch.dtype = F32, *, residual: bool = False) -> Case:
    """With mean and reciprocal deviation as results; with ``residual`` the sum of two inputs is normalised."""
    k = Writer("residual_layer_norm" if residual else "layer_norm")
    n = rows * columns
    x = k.param("x", n, dtype)
    z = k.param("z", n, dtype) if residual else ""
    w, b = k.param("w", columns, dtype), k.param("b", columns, dtype)
    y, mean_out, rstd_out = k.out("y", n, dtype), k.out("mean", rows), k.out("rstd", rows)
    with k.nest(rows) as (i,):
        kept = k.local(columns) if residual else x

        def at(r: Int) -> Int:
            return r if residual else i * columns + r

        def first(r: Int) -> str:
            v = k.load(x, i * columns + r)
            if residual:
                v = k.op("add", v, k.load(z, i * columns + r))
                k.store(kept, r, v)
            return v

        mean = k.op("div", k.reduce1("sum", [columns], first), float(columns))

        def square(r: Int) -> str:
            d = k.op("sub", k.load(kept, at(r)), mean)
            return k.op("mul", d, d)

        variance = k.op("div", k.reduce1("sum", [columns], square), float(columns))
        rstd = k.op("rsqrt", k.op("add", variance, 1e-5))
        with k.nest(columns) as (j,):
            v = k.op("mul", k.op("sub", k.load(kept, at(j)), mean), rstd)
            k.store(y, i * columns + j, k.op("add", k.op("mul", v, k.load(w, j)), k.load(b, j)))
        k.store(mean_out, i, mean)
        k.store(rstd_out, i, rstd)

    def eager(x: torch.Tensor, *rest: torch.Tensor) -> Any:
        total = x + rest[0] if residual else x
        w, b = rest[-2:]
        mean = total.float().mean(-1)
        rstd = (total.float().var(-1, correction=0) + 1e-5).rsqrt()
        return F.layer_norm(total, (columns,), w, b), mean, rstd

    inputs = [_rand(rows, columns, dtype=dtype), _rand(columns, dtype=dtype, seed=2), _rand(columns, dtype=dtype, seed=3)]
    if residual:
        inputs.insert(1, _rand(rows, columns, dtype=dtype, seed=1))
    return Case(k.kernel(), tuple(inputs), (((rows, columns), dtype), ((rows,), F32), ((rows,), F32)), eager)


def rms_norm(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("rms_norm")
    n = rows * columns
    x, w, y = k.param("x", n, dtype), k.param("w", columns, dtype), k.out("y", n, dtype)
    with k.nest(rows) as (i,):

        def square(r: Int) -> str:
            v = k.load(x, i * columns + r)
            return k.op("mul", v, v)

        mean = k.op("div", k.reduce1("sum", [columns], square), float(columns))
        scale = k.op("rsqrt", k.op("add", mean, 1e-6))
        with k.nest(columns) as (j,):
            k.store(y, i * columns + j, k.op("mul", k.op("mul", k.load(x, i * columns + j), scale), k.load(w, j)))
    return Case(
        k.kernel(),
        (_rand(rows, columns, dtype=dtype), _rand(columns, dtype=dtype, seed=1)),
        (((rows, columns), dtype),),
        lambda x, w: F.rms_norm(x, (columns,), w, 1e-6),
    )


def cross_entropy(rows: int, columns: int) -> Case:
    """The mean over rows of log(sum(exp(x))) - x[target]."""
    k = Writer("cross_entropy")
    x, t = k.param("x", rows * columns), k.param("t", rows, I64)
    y, losses = k.out("y", 1), k.param("losses", rows, role="scratch")
    with k.nest(rows) as (i,):
        top = k.reduce1("max", [columns], lambda r: k.load(x, i * columns + r))
        total = k.reduce1("sum", [columns], lambda r: k.op("exp", k.op("sub", k.load(x, i * columns + r), top)))
        target = k.as_index(k.load(t, i), columns)
        loss = k.op("sub", k.op("add", top, k.op("log", total)), k.load(x, i * columns + target))
        k.store(losses, i, loss)
    with k.nest():
        total = k.reduce1("sum", [rows], lambda r: k.load(losses, r))
        k.store(y, ix.ZERO, k.op("div", total, float(rows)))
    labels = torch.randint(0, columns, (rows,), generator=torch.Generator().manual_seed(1))
    return Case(k.kernel(), (_rand(rows, columns), labels), (((), F32),), lambda x, t: F.cross_entropy(x, t))


def batch_norm(images: int, channels: int, pixels: int) -> Case:
    """Training: normalisation over images and pixels, then relu."""
    k = Writer("batch_norm")
    n = images * channels * pixels
    x, w, b, y = k.param("x", n), k.param("w", channels), k.param("b", channels), k.out("y", n)
    mean_out, rstd_out = k.out("mean", channels), k.out("rstd", channels)
    count = float(images * pixels)
    with k.nest(channels) as (c,):

        def at(i: Int, p: Int) -> Int:
            return (i * channels + c) * pixels + p

        mean = k.op("div", k.reduce1("sum", [images, pixels], lambda i, p: k.load(x, at(i, p))), count)

        def square(i: Int, p: Int) -> str:
            d = k.op("sub", k.load(x, at(i, p)), mean)
            return k.op("mul", d, d)

        variance = k.op("div", k.reduce1("sum", [images, pixels], square), count)
        rstd = k.op("rsqrt", k.op("add", variance, 1e-5))
        scale, shift = k.op("mul", rstd, k.load(w, c)), k.load(b, c)
        with k.nest(images, pixels) as (i, p):
            v = k.op("mul", k.op("sub", k.load(x, at(i, p)), mean), scale)
            k.store(y, at(i, p), k.op("max", k.op("add", v, shift), 0.0))
        k.store(mean_out, c, mean)
        k.store(rstd_out, c, rstd)

    def eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y, mean, rstd = torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
        return y.relu(), mean, rstd

    return Case(
        k.kernel(),
        (_rand(images, channels, pixels), _rand(channels, seed=1), _rand(channels, seed=2)),
        (((images, channels, pixels), F32), ((channels,), F32), ((channels,), F32)),
        eager,
    )


def layer_norm_backward(rows: int, columns: int, chunk: int = 64) -> Case:
    """Gradients of input, weight and bias: rows in chunks, each with weight gradients of its own, then their sums."""
    k = Writer("layer_norm_backward")
    n, chunks = rows * columns, -(-rows // chunk)
    dy, x, w = k.param("dy", n), k.param("x", n), k.param("w", columns)
    mean_in, rstd_in = k.param("mean", rows), k.param("rstd", rows)
    dx, dw, db = k.out("dx", n), k.out("dw", columns), k.out("db", columns)
    parts = [k.param(f"part{p}", chunks * columns, role="scratch") for p in (0, 1)]
    with k.nest(chunks * columns) as (i,):
        for part in parts:
            k.store(part, i, k.const(0.0))
    with k.nest(chunks) as (q,), k.nest(ix.minimum(chunk, rows - q * chunk)) as (r,):
        row = q * chunk + r
        mean, rstd = k.load(mean_in, row), k.load(rstd_in, row)

        def normalised(j: Int) -> str:
            return k.op("mul", k.op("sub", k.load(x, row * columns + j), mean), rstd)

        def pair(j: Int) -> list[tuple[str, str]]:
            g = k.op("mul", k.load(dy, row * columns + j), k.load(w, j))
            return [("sum", g), ("sum", k.op("mul", g, normalised(j)))]

        first, second = (k.op("div", total, float(columns)) for total in k.reduce([columns], pair))
        with k.nest(columns) as (j,):
            gradient, hat = k.load(dy, row * columns + j), normalised(j)
            g = k.op("sub", k.op("mul", gradient, k.load(w, j)), first)
            k.store(dx, row * columns + j, k.op("mul", k.op("sub", g, k.op("mul", hat, second)), rstd))
            k.store(parts[0], q * columns + j, k.op("mul", gradient, hat), "add")
            k.store(parts[1], q * columns + j, gradient, "add")
    with k.nest(columns) as (j,):
        for part, result in zip(parts, (dw, db), strict=True):
            k.store(result, j, k.reduce1("sum", [chunks], lambda q, part=part: k.load(part, q * columns + j)))
    data = _rand(rows, columns, seed=1)
    weight = _rand(columns, seed=2)
    means, deviations = data.mean(-1), (data.var(-1, correction=0) + 1e-5).rsqrt()

    def eager(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(
            dy, x, [columns], mean[:, None], rstd[:, None], w, torch.zeros_like(w), [True, True, True]
        )

    return Case(
        k.kernel(),
        (_rand(rows, columns), data, weight, means, deviations),
        (((rows, columns), F32), ((columns,), F32), ((columns,), F32)),
        eager,
    )


# Reductions and scans


def sum_all(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("sum_all")
    n = rows * columns
    x, y = k.param("x", n, dtype), k.out("y", 1, dtype)
    with k.nest():
        k.store(y, ix.ZERO, k.reduce1("sum", [n], lambda r: k.load(x, r)))
    return Case(k.kernel(), (_rand(rows, columns, dtype=dtype),), (((), dtype),), lambda x: x.sum())


def sum_rows(rows: int, columns: int, dtype: torch.dtype = F32) -> Case:
    """Over dimension 0."""
    k = Writer("sum_rows")
    x, y = k.param("x", rows * columns, dtype), k.out("y", columns, dtype)
    with k.nest(columns) as (j,):
        k.store(y, j, k.reduce1("sum", [rows], lambda r: k.load(x, r * columns + j)))
    return Case(k.kernel(), (_rand(rows, columns, dtype=dtype),), (((columns,), dtype),), lambda x: x.sum(0))


def cumsum(rows: int, columns: int) -> Case:
    k = Writer("cumsum")
    x, y = k.param("x", rows * columns), k.out("y", rows * columns)
    with k.nest(rows) as (i,):
        var, a, s = k.fresh("r"), k.fresh(), k.fresh()
        r = ix.variable(var, columns)
        k.add(
            Scan(
                Range(var, ix.wrap(columns)),
                (Load(a, x, i * columns + r, F32),),
                (Accumulator((s,), "sum", (a,), F32),),
                (Store(y, i * columns + r, s),),
            )
        )
    return Case(k.kernel(), (_rand(rows, columns),), (((rows, columns), F32),), lambda x: x.cumsum(1))


# Indirect


def embedding(tokens: int, entries: int, columns: int, dtype: torch.dtype = F32) -> Case:
    k = Writer("embedding")
    w, t = k.param("w", entries * columns, dtype), k.param("t", tokens, I64)
    y = k.out("y", tokens * columns, dtype)
    with k.nest(tokens, columns) as (i, j):
        row = k.as_index(k.load(t, i), entries)
        k.store(y, i * columns + j, k.load(w, row * columns + j))
    token = torch.randint(0, entries, (tokens,), generator=torch.Generator().manual_seed(1))
    return Case(k.kernel(), (_rand(entries, columns, dtype=dtype), token), (((tokens, columns), dtype),), lambda w, t: w[t])


def scatter_add(tokens: int, entries: int, columns: int) -> Case:
    """The gradient of an embedding."""
    k = Writer("scatter_add")
    g, t, y = k.param("g", tokens * columns), k.param("t", tokens, I64), k.out("y", entries * columns)
    with k.nest(entries * columns) as (i,):
        k.store(y, i, k.const(0.0))
    with k.nest(tokens, columns) as (i, j):
        row = k.as_index(k.load(t, i), entries)
        k.store(y, row * columns + j, k.load(g, i * columns + j), "add")
    token = torch.randint(0, entries, (tokens,), generator=torch.Generator().manual_seed(1))
    return Case(
        k.kernel(),
        (_rand(tokens, columns), token),
        (((entries, columns), F32),),
        lambda g, t: torch.zeros(entries, columns).index_add_(0, t, g),
    )


def cases(elements: int, columns: int, dtype: torch.dtype = F32) -> Iterator[Case]:
    """All kernels over about ``elements`` elements in rows of ``columns``; those that exist in ``dtype``."""
    rows = max(elements // columns, 1)
    yield bias_gelu(rows, columns, dtype)
    yield bias_gelu(rows, columns, dtype, "none")
    yield softmax(rows, columns, dtype)
    yield log_softmax(rows, columns, dtype)
    yield layer_norm(rows, columns, dtype)
    yield layer_norm(rows, columns, dtype, residual=True)
    yield rms_norm(rows, columns, dtype)
    yield swiglu(rows, columns, dtype)
    heads = max(columns // 128, 1)
    width = columns // heads // 2 * 2
    yield rope(rows, heads, width, dtype)
    yield sum_all(rows, columns, dtype)
    yield sum_rows(rows, columns, dtype)
    yield transpose_add(rows, columns, dtype)
    yield embedding(rows, 1000, columns, dtype)
    if dtype != F32:
        return
    yield cross_entropy(rows, columns)
    yield masked_softmax(rows, columns)
    pixels = 784 if elements > 1 << 20 else 49
    channels = 64
    yield batch_norm(max(elements // pixels // channels, 1), channels, pixels)
    yield layer_norm_backward(rows, columns)
    yield dropout(rows, columns)
    yield pair_maximum(rows, columns)
    yield cat_relu(rows, columns // 2, columns - columns // 2)
    each = max(elements // 4 // 16, 1)
    yield adamw([each + 3 * n for n in range(16)])
    yield cumsum(rows, columns)
    yield scatter_add(rows, 1000, columns)
