"""The kernels: functions that a compiler should turn into one or two passes over memory, each at any size and dtype.

A kernel is built from a ``Maker``, which makes inputs so that the row's main tensor has the wanted bytes. Functions are what a
user would write; backward passes that stand alone are the operators that autograd calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.program import Mode, Program
from conformance.patterns import DROPPED, dropped_and_normed, packed_swiglu, rms_norm, rope, share_kept, wide

Tensor = torch.Tensor
aten = torch.ops.aten

COLUMNS = 1024
VOCABULARY = 8192
HEADS, HEAD = 16, 64
CHANNELS, IMAGE = 64, 16
"""Batch norm: channels, and edge of the square images."""
BETAS, EPSILON, DECAY, RATE = (0.9, 0.999), 1e-8, 0.01, 1e-3
"""AdamW."""


@dataclass
class Maker:
    """Inputs for one kernel.

    Attributes:
        nbytes: of the main tensor.
        dtype: of floating point inputs.
    """

    nbytes: int
    dtype: torch.dtype
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def rows(self, columns: int = COLUMNS, parts: int = 1) -> int:
        """Rows of a matrix with this many columns that holds one of ``parts`` shares of the bytes."""
        return max(1, self.nbytes // (columns * self.dtype.itemsize * parts))

    def normal(self, *shape: int, gradient: bool = False) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator).to(self.dtype).requires_grad_(gradient)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers."""
        return (torch.rand(shape, generator=self.generator) * (high - low) + low).to(self.dtype)

    def matrix(self, columns: int = COLUMNS, *, gradient: bool = False) -> Tensor:
        """The main tensor, normal."""
        return self.normal(self.rows(columns), columns, gradient=gradient)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers in [0, high)."""
        return torch.randint(0, high, shape, generator=self.generator, dtype=dtype)


@dataclass(frozen=True)
class Kernel:
    """One row of the table.

    Attributes:
        name: of the row.
        build: makes the program.
        quick: also in the quick mode.
    """

    name: str
    build: Callable[[Maker], Program]
    quick: bool = False


KERNELS: dict[str, Kernel] = {}


def kernel(name: str, *, quick: bool = False) -> Callable[[Callable[[Maker], Program]], Callable[[Maker], Program]]:
    """Adds a builder to the table."""

    def add(build: Callable[[Maker], Program]) -> Callable[[Maker], Program]:
        KERNELS[name] = Kernel(name, build, quick)
        return build

    return add


# Activations


@kernel("bias + gelu (tanh)", quick=True)
def _bias_gelu_tanh(make: Maker) -> Program:
    return Program(lambda x, b: F.gelu(x + b, approximate="tanh"), (make.matrix(), make.normal(COLUMNS)))


@kernel("bias + gelu (erf)")
def _bias_gelu_erf(make: Maker) -> Program:
    return Program(lambda x, b: F.gelu(x + b), (make.matrix(), make.normal(COLUMNS)))


@kernel("bias + gelu (tanh) + residual")
def _bias_gelu_residual(make: Maker) -> Program:
    return Program(lambda x, b, r: F.gelu(x + b, approximate="tanh") + r, (make.matrix(), make.normal(COLUMNS), make.matrix()))


@kernel("bias + gelu (tanh) backward")
def _gelu_backward(make: Maker) -> Program:
    def function(g: Tensor, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dx = aten.gelu_backward(g, x + b, approximate="tanh")
        return dx, dx.sum(0)

    return Program(function, (make.matrix(), make.matrix(), make.normal(COLUMNS)))


@kernel("swiglu")
def _swiglu(make: Maker) -> Program:
    return Program(lambda gate, up: F.silu(gate) * up, (make.matrix(), make.matrix()))


@kernel("packed swiglu")
def _packed_swiglu(make: Maker) -> Program:
    return Program(packed_swiglu, (make.matrix(2 * COLUMNS),))


@kernel("swiglu, forward and backward")
def _swiglu_gradient(make: Maker) -> Program:
    return Program(lambda gate, up: F.silu(gate) * up, (make.matrix(gradient=True), make.matrix(gradient=True)), Mode.GRADIENT)


@kernel("dropout")
def _dropout(make: Maker) -> Program:
    return Program(lambda x: F.dropout(x, DROPPED), (make.matrix(),), verify=_dropped)


def _dropped(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> str:
    """Kept elements are scaled, the others zero, and their share is within six standard deviations."""
    (output,), (x,) = outputs, inputs
    kept = output != 0
    scaled = x.float() / (1 - DROPPED)
    error = ((output.float() - scaled).abs() / scaled.abs().clamp(min=1e-3))[kept]
    limit = 4 * torch.finfo(x.dtype).eps
    if error.numel() and float(error.max()) > limit:
        return f"a kept element is off by {float(error.max()):.2g} of itself, allowed is {limit:.2g}"
    return share_kept(kept)


# Rows


@kernel("softmax", quick=True)
def _softmax(make: Maker) -> Program:
    return Program(lambda x: torch.softmax(x, -1), (make.matrix(),))


@kernel("log_softmax")
def _log_softmax(make: Maker) -> Program:
    return Program(lambda x: torch.log_softmax(x, -1), (make.matrix(),))


@kernel("masked, scaled softmax")
def _masked_softmax(make: Maker) -> Program:
    scores = make.matrix()
    mask = make.integers(4, *scores.shape) == 0
    return Program(lambda x, hidden: torch.softmax((x * 0.125).masked_fill(hidden, -1e4), -1), (scores, mask))


@kernel("softmax backward")
def _softmax_backward(make: Maker) -> Program:
    y = torch.softmax(make.matrix().float(), -1).to(make.dtype)
    return Program(lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype), (make.matrix(), y))


@kernel("layer_norm", quick=True)
def _layer_norm(make: Maker) -> Program:
    return Program(
        lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), (make.matrix(), make.normal(COLUMNS), make.normal(COLUMNS))
    )


@kernel("residual + layer_norm")
def _residual_layer_norm(make: Maker) -> Program:
    def function(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        total = x + r
        return total, F.layer_norm(total, (COLUMNS,), w, b)

    return Program(function, (make.matrix(), make.matrix(), make.normal(COLUMNS), make.normal(COLUMNS)))


@kernel("bias + dropout + residual + layer_norm")
def _dropout_layer_norm(make: Maker) -> Program:
    def function(x: Tensor, bias: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        total = F.dropout(x + bias, DROPPED) + r
        return total, F.layer_norm(total, (COLUMNS,), w, b)

    vectors = [make.normal(COLUMNS) for _ in range(3)]
    return Program(function, (make.matrix(), vectors[0], make.matrix(), *vectors[1:]), verify=_dropped_and_normed)


def _dropped_and_normed(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> str:
    (total, normed), (x, bias, r, w, b) = outputs, inputs
    return dropped_and_normed(total, normed, x.double() + bias, r, w, b)


@kernel("layer_norm backward", quick=True)
def _layer_norm_backward(make: Maker) -> Program:
    x, w, b = make.matrix(), make.normal(COLUMNS), make.normal(COLUMNS)
    _, mean, rstd = aten.native_layer_norm(x, (COLUMNS,), w, b, 1e-5)

    def function(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor) -> Any:
        return aten.native_layer_norm_backward(g, x, (COLUMNS,), mean, rstd, w, b, (True, True, True))

    return Program(function, (make.matrix(), x, mean, rstd, w, b))


@kernel("layer_norm, forward and backward")
def _layer_norm_gradient(make: Maker) -> Program:
    inputs = (make.matrix(gradient=True), make.normal(COLUMNS, gradient=True), make.normal(COLUMNS, gradient=True))
    return Program(lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), inputs, Mode.GRADIENT)


@kernel("rms_norm")
def _rms_norm(make: Maker) -> Program:
    return Program(rms_norm, (make.matrix(), make.normal(COLUMNS)))


@kernel("rms_norm, forward and backward")
def _rms_norm_gradient(make: Maker) -> Program:
    return Program(rms_norm, (make.matrix(gradient=True), make.normal(COLUMNS, gradient=True)), Mode.GRADIENT)


@kernel("cross_entropy", quick=True)
def _cross_entropy(make: Maker) -> Program:
    logits = make.matrix(VOCABULARY)
    return Program(F.cross_entropy, (logits, make.integers(VOCABULARY, len(logits))))


@kernel("cross_entropy with gradient")
def _cross_entropy_gradient(make: Maker) -> Program:
    logits = make.matrix(VOCABULARY, gradient=True)
    targets = make.integers(VOCABULARY, len(logits))
    # Two graphs: the forward reads the logits, the backward reads them again and writes their gradient.
    moved = 3 * logits.nbytes + 2 * targets.nbytes
    return Program(F.cross_entropy, (logits, targets), Mode.GRADIENT, ideal_bytes=moved)


@kernel("cumsum over rows")
def _cumsum(make: Maker) -> Program:
    return Program(lambda x: torch.cumsum(x, -1), (make.uniform(make.rows(), COLUMNS),))


# Attention's surroundings


def _rope_inputs(make: Maker, gradient: bool) -> tuple[Tensor, ...]:
    length = max(1, make.rows(HEADS * HEAD))
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
    angle = torch.cat((angle, angle), -1)
    query = make.normal(1, HEADS, length, HEAD, gradient=gradient)
    return query, angle.cos().to(make.dtype), angle.sin().to(make.dtype)


@kernel("rope")
def _rope(make: Maker) -> Program:
    return Program(rope, _rope_inputs(make, gradient=False))


@kernel("rope, forward and backward")
def _rope_gradient(make: Maker) -> Program:
    inputs = _rope_inputs(make, gradient=True)
    # Linear in the query: neither direction reads what the other has read.
    moved = 4 * inputs[0].nbytes + 2 * (inputs[1].nbytes + inputs[2].nbytes)
    return Program(rope, inputs, Mode.GRADIENT, ideal_bytes=moved)


@kernel("embedding")
def _embedding(make: Maker) -> Program:
    tokens = make.rows()
    table = make.normal(max(2, tokens // 2), COLUMNS)
    indices = make.integers(len(table), tokens)
    row = COLUMNS * make.dtype.itemsize
    read = min(tokens * row, table.nbytes)
    return Program(lambda t, i: F.embedding(i, t), (table, indices), ideal_bytes=read + tokens * row + indices.nbytes)


# Columns and all


def _batch_norm_inputs(make: Maker, gradient: bool = False) -> tuple[Tensor, ...]:
    images = max(1, make.rows(CHANNELS * IMAGE * IMAGE))
    x = make.normal(images, CHANNELS, IMAGE, IMAGE, gradient=gradient)
    statistics = (make.normal(CHANNELS), make.uniform(CHANNELS, low=0.5, high=2.0))
    return (x, *statistics, make.normal(CHANNELS, gradient=gradient), make.normal(CHANNELS, gradient=gradient))


@kernel("batch_norm + relu, training")
def _batch_norm_training(make: Maker) -> Program:
    def function(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.relu(F.batch_norm(x, mean, var, w, b, training=True)), mean, var

    inputs = _batch_norm_inputs(make)
    # The statistics need a pass of their own.
    return Program(function, inputs, mutates=True, ideal_bytes=3 * inputs[0].nbytes)


@kernel("batch_norm + relu, evaluation")
def _batch_norm_evaluation(make: Maker) -> Program:
    return Program(lambda x, mean, var, w, b: torch.relu(F.batch_norm(x, mean, var, w, b)), _batch_norm_inputs(make))


@kernel("batch_norm + relu, forward and backward")
def _batch_norm_gradient(make: Maker) -> Program:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(F.batch_norm(x, None, None, w, b, training=True))

    x, _, _, w, b = _batch_norm_inputs(make, gradient=True)
    # Two passes forward; two backward, each over the input and the incoming gradient.
    return Program(function, (x, w, b), Mode.GRADIENT, ideal_bytes=8 * x.nbytes, discontinuous=True)


@kernel("sum over all")
def _sum_all(make: Maker) -> Program:
    return Program(lambda x: x.sum(), (make.uniform(make.rows(), COLUMNS),))


@kernel("sum over dim 0")
def _sum_columns(make: Maker) -> Program:
    return Program(lambda x: x.sum(0), (make.uniform(make.rows(), COLUMNS),))


def _parameters(make: Maker, parts: int) -> list[Tensor]:
    """Tensors as a model has them, matrices and the biases beside them, that together have the bytes of one share."""
    rows = make.rows(COLUMNS, 8 * parts)
    return [t for _ in range(8) for t in (make.normal(rows, COLUMNS), make.normal(COLUMNS))]


@kernel("global norm")
def _global_norm(make: Maker) -> Program:
    def function(tensors: list[Tensor]) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(wide(t)) for t in tensors]).square().sum().sqrt()

    return Program(function, (_parameters(make, 1),))


# Optimizers


@kernel("adamw step")
def _adamw(make: Maker) -> Program:
    """Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), tenth step, over sixteen parameters in place."""
    corrections = [1 - beta**10 for beta in BETAS]

    def function(p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(p, 1 - RATE * DECAY)
        torch._foreach_lerp_(m, g, 1 - BETAS[0])
        torch._foreach_mul_(v, BETAS[1])
        torch._foreach_addcmul_(v, g, g, 1 - BETAS[1])
        root = torch._foreach_sqrt(v)
        torch._foreach_div_(root, math.sqrt(corrections[1]))
        torch._foreach_add_(root, EPSILON)
        torch._foreach_addcdiv_(p, m, root, -RATE / corrections[0])
        return [*p, *m, *v]

    p, g, m = (_parameters(make, 1) for _ in range(3))
    v = [t.square() for t in _parameters(make, 1)]
    return Program(function, (p, g, m, v), mutates=True)


# Movement


@kernel("transpose + add")
def _transpose_add(make: Maker) -> Program:
    edge = max(1, math.isqrt(make.nbytes // make.dtype.itemsize))
    return Program(lambda x, y: x.t() + y, (make.normal(edge, edge), make.normal(edge, edge)))


@kernel("int8 dequantize + add")
def _dequantize(make: Maker) -> Program:
    residual = make.matrix()
    q = make.integers(255, *residual.shape, dtype=torch.int16).sub(127).to(torch.int8)
    return Program(lambda q, s, r: q.to(r.dtype) * s + r, (q, make.uniform(COLUMNS, high=0.1), residual))


@kernel("cat + pointwise")
def _cat(make: Maker) -> Program:
    half = make.rows(COLUMNS, 2)
    inputs = (make.normal(half, COLUMNS), make.normal(half, COLUMNS), make.normal(COLUMNS))
    return Program(lambda a, b, s: torch.relu(torch.cat((a, b), 0) * s), inputs)
