"""The patterns that ``benchmarks.gpu`` times: functions that a compiler should turn into one pass over memory or two."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.program import Mode, Program
from conformance.patterns import DROPPED, dropped_and_normed, packed_swiglu, rms_norm, rope

Tensor = torch.Tensor
aten = torch.ops.aten
HEAD = 64


@dataclass
class Maker:
    """Inputs of a pattern.

    Attributes:
        rows, columns: of the main tensor.
        dtype: of floating point inputs.
        device: where all inputs are.
    """

    rows: int
    columns: int
    dtype: torch.dtype
    device: str = "cuda"
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(0)

    def normal(self, *shape: int, gradient: bool = False) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.device).to(self.dtype).requires_grad_(gradient)

    def matrix(self, *, gradient: bool = False) -> Tensor:
        """The main tensor."""
        return self.normal(self.rows, self.columns, gradient=gradient)

    def vector(self, *, gradient: bool = False) -> Tensor:
        """One number a column."""
        return self.normal(self.columns, gradient=gradient)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers in [0, high)."""
        return torch.randint(0, high, shape, generator=self.generator, device=self.device)


PATTERNS: dict[str, Callable[[Maker], Program]] = {}


def pattern(name: str) -> Callable[[Callable[[Maker], Program]], Callable[[Maker], Program]]:
    """Adds a builder to the table."""

    def add(build: Callable[[Maker], Program]) -> Callable[[Maker], Program]:
        PATTERNS[name] = build
        return build

    return add


@pattern("bias + gelu (erf)")
def _gelu(make: Maker) -> Program:
    return Program(lambda x, b: F.gelu(x + b), (make.matrix(), make.vector()))


@pattern("bias + gelu (tanh) + residual")
def _gelu_residual(make: Maker) -> Program:
    inputs = make.matrix(), make.vector(), make.matrix()
    return Program(lambda x, b, r: F.gelu(x + b, approximate="tanh") + r, inputs)


@pattern("swiglu")
def _swiglu(make: Maker) -> Program:
    return Program(lambda gate, up: F.silu(gate) * up, (make.matrix(), make.matrix()))


@pattern("packed swiglu")
def _packed(make: Maker) -> Program:
    return Program(packed_swiglu, (make.normal(make.rows, 2 * (make.columns // 2)),))


@pattern("softmax")
def _softmax(make: Maker) -> Program:
    return Program(lambda x: torch.softmax(x, -1), (make.matrix(),))


@pattern("log_softmax")
def _log_softmax(make: Maker) -> Program:
    return Program(lambda x: torch.log_softmax(x, -1), (make.matrix(),))


@pattern("masked, scaled softmax")
def _masked(make: Maker) -> Program:
    hidden = make.integers(4, make.rows, make.columns) == 0
    return Program(lambda x, h: torch.softmax((x * 0.125).masked_fill(h, -1e4), -1), (make.matrix(), hidden))


@pattern("layer_norm")
def _layer_norm(make: Maker) -> Program:
    inputs = make.matrix(), make.vector(), make.vector()
    return Program(lambda x, w, b: F.layer_norm(x, (make.columns,), w, b), inputs)


@pattern("residual + layer_norm")
def _residual_norm(make: Maker) -> Program:
    def function(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        total = x + r
        return total, F.layer_norm(total, (make.columns,), w, b)

    return Program(function, (make.matrix(), make.matrix(), make.vector(), make.vector()))


@pattern("rms_norm")
def _rms_norm(make: Maker) -> Program:
    return Program(rms_norm, (make.matrix(), make.vector()))


@pattern("rope")
def _rope(make: Maker) -> Program:
    heads = max(1, make.columns // HEAD)
    angle = torch.arange(make.rows)[:, None] / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
    angle = torch.cat((angle, angle), -1).to(make.device)

    return Program(rope, (make.normal(1, heads, make.rows, HEAD), angle.cos().to(make.dtype), angle.sin().to(make.dtype)))


@pattern("cross_entropy")
def _cross_entropy(make: Maker) -> Program:
    return Program(F.cross_entropy, (make.matrix(), make.integers(make.columns, make.rows)))


@pattern("cross_entropy with gradient")
def _cross_entropy_gradient(make: Maker) -> Program:
    logits, targets = make.matrix(gradient=True), make.integers(make.columns, make.rows)
    return Program(F.cross_entropy, (logits, targets), Mode.GRADIENT, ideal_bytes=3 * logits.nbytes + 2 * targets.nbytes)


@pattern("batch_norm + relu, evaluation")
def _batch_norm(make: Maker) -> Program:
    images = max(1, make.rows * make.columns // (64 * 32 * 32))
    inputs = (
        make.normal(images, 64, 32, 32),
        make.normal(64),
        make.normal(64).square() + 0.5,
        make.normal(64),
        make.normal(64),
    )
    return Program(lambda x, mean, var, w, b: torch.relu(F.batch_norm(x, mean, var, w, b)), inputs)


@pattern("adamw step")
def _adamw(make: Maker) -> Program:
    corrections = [1 - 0.9**10, 1 - 0.999**10]

    def function(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        p.mul_(1 - 1e-5)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt() / math.sqrt(corrections[1]) + 1e-8, value=-1e-3 / corrections[0])
        return p, m, v

    return Program(function, (make.matrix(), make.matrix(), make.matrix(), make.matrix().square()), mutates=True)


@pattern("sum over dim 0")
def _columns(make: Maker) -> Program:
    return Program(lambda x: x.sum(0), (make.matrix().abs(),))


@pattern("global norm")
def _norm(make: Maker) -> Program:
    return Program(lambda x: torch.linalg.vector_norm(x.float()), (make.matrix(),))


@pattern("transpose + add")
def _transpose(make: Maker) -> Program:
    return Program(lambda x, y: x.t() + y, (make.normal(make.columns, make.rows), make.matrix()))


@pattern("layer_norm backward")
def _norm_backward(make: Maker) -> Program:
    x, w, b = make.matrix(), make.vector(), make.vector()
    _, mean, rstd = aten.native_layer_norm(x, (make.columns,), w, b, 1e-5)

    def function(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor, b: Tensor) -> Any:
        return aten.native_layer_norm_backward(g, x, (make.columns,), mean, rstd, w, b, (True, True, True))

    return Program(function, (make.matrix(), x, mean, rstd, w, b))


@pattern("cumsum over rows")
def _cumsum(make: Maker) -> Program:
    return Program(lambda x: torch.cumsum(x, -1), (make.matrix().abs(),))


@pattern("int8 dequantize + add")
def _dequantize(make: Maker) -> Program:
    q = (make.integers(255, make.rows, make.columns) - 127).to(torch.int8)
    scale = make.vector().abs() * 0.02
    return Program(lambda q, s, r: q.to(r.dtype) * s + r, (q, scale, make.matrix()))


@pattern("dropout + residual + layer_norm")
def _dropout(make: Maker) -> Program:
    def function(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        total = F.dropout(x, DROPPED) + r
        return total, F.layer_norm(total, (make.columns,), w, b)

    inputs = make.matrix(), make.matrix(), make.vector(), make.vector()
    return Program(function, inputs, verify=lambda outputs, given: dropped_and_normed(*outputs, *given))
