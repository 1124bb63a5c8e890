"""The fused patterns: functions that a compiler should turn into one pass over memory or two, or into a product with what
stands around it. One row a pattern; a row holds at any size and in any dtype of ``DTYPES``.

A row's operands are named by shape and by how they are drawn, so that they can be drawn again before each timed call.
Backward passes are the operators that autograd calls, or the formula where torch has no operator for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
aten = torch.ops.aten

DTYPES = ("float32", "bfloat16", "float16")
HEAD = 64
"""Width of an attention head."""
CHANNELS, IMAGE = 64, 32
"""Of pictures: channels, and the edge of squares."""
DROPPED = 0.1
LENGTH = 512
"""Of sequences that attend to each other."""
EXPERTS = 4
"""Groups of rows that have a factor of their own."""
SEVERAL = 2
"""The least that a size which varies is: torch.compile takes 1 for a constant, whatever was said of the size."""


@dataclass(frozen=True)
class Size:
    """How large a pattern is.

    Attributes:
        rows, columns: of the main tensor of patterns that memory limits.
        edge: of the square factors of patterns that arithmetic limits.
    """

    rows: int
    columns: int
    edge: int

    @property
    def half(self) -> Size:
        """Of half as many rows, and half the edge."""
        return Size(max(SEVERAL, self.rows // 2), self.columns, max(SEVERAL, self.edge // 2))

    @property
    def heads(self) -> int:
        return max(1, self.columns // HEAD)

    @property
    def pictures(self) -> int:
        return max(SEVERAL, self.rows * self.columns // (CHANNELS * IMAGE * IMAGE))

    @property
    def sequences(self) -> int:
        """Sequences whose attention costs about as much as a product of factors of ``edge``, and of short edges no fewer than a
        row of that length has heads."""
        return max(SEVERAL, self.edge // HEAD, self.edge**3 // (2 * LENGTH * LENGTH * HEAD))


@dataclass(frozen=True)
class Operand:
    """One input.

    Attributes:
        shape: from the size.
        draw: ``normal``, ``positive`` (0.5 to 1.5), ``mask`` (a quarter true), ``int8``, or ``index`` below ``high``.
        high: for ``index``.
        wide: float32 in every dtype of the pattern (statistics).
    """

    shape: Callable[[Size], tuple[int, ...]]
    draw: str = "normal"
    high: Callable[[Size], int] | None = None
    wide: bool = False

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Of this operand where the pattern's is ``dtype``."""
        fixed = {"mask": torch.bool, "int8": torch.int8, "index": torch.int64}
        return fixed.get(self.draw, torch.float32 if self.wide else dtype)


Check = Callable[[Sequence[Tensor], Sequence[Tensor]], str]
"""Outputs and inputs to what is wrong with the outputs, ``""`` when nothing is."""


@dataclass(frozen=True)
class Pattern:
    """One row of the table.

    Attributes:
        name: in reports and on the command line.
        function: of tensors, to a tensor or a tuple of them.
        operands: of the function.
        profiles: workloads whose time it is part of, beside ``full``.
        backward: it is part of a backward pass or of an optimizer.
        quick: in effort ``quick`` too.
        check: replaces the comparison with torch, where results are random.
        flops: of its products; 0 where memory is the limit.
        moved: bytes that must cross the memory bus; by default each input read once and each output written once.
        itemwise: each item along the first dimension of all operands and results is computed from the same item of the others.
    """

    name: str
    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    profiles: frozenset[str]
    backward: bool = False
    quick: bool = False
    check: Check | None = None
    flops: Callable[[Size], int] = lambda size: 0
    moved: Callable[[Size, int], int] | None = None
    itemwise: bool = False

    def __call__(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


MATRIX = Operand(lambda s: (s.rows, s.columns))
POSITIVE = Operand(lambda s: (s.rows, s.columns), "positive")
HIDDEN = Operand(lambda s: (s.rows, s.columns), "mask")
VECTOR = Operand(lambda s: (s.columns,))
SCALES = Operand(lambda s: (s.columns,), "positive")
MEANS = Operand(lambda s: (s.rows, 1), wide=True)
DEVIATIONS = Operand(lambda s: (s.rows, 1), "positive", wide=True)
CLASSES = Operand(lambda s: (s.rows,), "index", lambda s: s.columns)
TABLE = Operand(lambda s: (max(SEVERAL, s.rows // 2), s.columns))
PLACES = Operand(lambda s: (s.rows,), "index", lambda s: max(SEVERAL, s.rows // 2))
HEADS = Operand(lambda s: (1, s.heads, s.rows, HEAD))
ANGLES = Operand(lambda s: (s.rows, HEAD))
PICTURES = Operand(lambda s: (s.pictures, CHANNELS, IMAGE, IMAGE))
CHANNEL = Operand(lambda s: (CHANNELS,))
CHANNEL_SCALES = Operand(lambda s: (CHANNELS,), "positive")
FILTERS = Operand(lambda s: (CHANNELS, CHANNELS, 3, 3))
SQUARE = Operand(lambda s: (s.edge, s.edge))
EDGE = Operand(lambda s: (s.edge,))
FACTORS = Operand(lambda s: (EXPERTS, s.edge, s.edge))
CHOICES = Operand(lambda s: (s.edge,), "index", lambda s: EXPERTS)
ATTENDED = Operand(lambda s: (s.sequences, 1, LENGTH, HEAD))

PATTERNS: dict[str, Pattern] = {}


def _add(name: str, profiles: str, function: Callable[..., Any], *operands: Operand, **given: Any) -> None:
    """``profiles``: workloads, separated by spaces; what is part of inference is part of training too."""
    chosen = set(profiles.split())
    chosen |= {"training"} if "inference" in chosen else set()
    PATTERNS[name] = Pattern(name, function, operands, frozenset(chosen), "inference" not in chosen, **given)


def _product(size: Size) -> int:
    return int(2 * size.edge**3)


def wide(x: Tensor) -> Tensor:
    """At least float32: how models guard statistics of half-precision activations."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# Activations


def _gelu_backward(g: Tensor, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    dx = aten.gelu_backward(g, x + b, approximate="tanh")
    return dx, dx.sum(0)


def packed_swiglu(x: Tensor) -> Tensor:
    """SwiGLU of one tensor that holds gate and value side by side."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _swiglu_backward(g: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return aten.silu_backward(g * up, gate), g * F.silu(gate)


_add("bias + gelu (erf)", "inference vision llm", lambda x, b: F.gelu(x + b), MATRIX, VECTOR)
_add("bias + gelu (tanh) + residual", "inference vision llm",
     lambda x, b, r: F.gelu(x + b, approximate="tanh") + r, MATRIX, VECTOR, MATRIX, quick=True)  # fmt: skip
_add("bias + gelu (tanh) backward", "training", _gelu_backward, MATRIX, MATRIX, VECTOR)
_add("swiglu", "inference llm", lambda gate, up: F.silu(gate) * up, MATRIX, MATRIX)
_add("packed swiglu", "inference llm", packed_swiglu, Operand(lambda s: (s.rows, 2 * (s.columns // 2))))
_add("swiglu backward", "training", _swiglu_backward, MATRIX, MATRIX, MATRIX)

# Rows


def _residual_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return total, F.layer_norm(total, x.shape[-1:], w, b)


def _layer_norm_backward(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ba et al., Layer Normalization (2016): gradients of input, weight and bias, from the statistics of the forward pass."""
    gradient, normed = wide(g), (wide(x) - mean) * rstd
    incoming = gradient * w
    dx = rstd * (incoming - incoming.mean(-1, keepdim=True) - normed * (incoming * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), (gradient * normed).sum(0).to(w.dtype), gradient.sum(0).to(w.dtype)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """Zhang and Sennrich, Root Mean Square Layer Normalization (2019), as language models spell it."""
    y = wide(x)
    return w * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _rms_norm_backward(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """With ``n = x / rms``: ``(g w - n mean(g w n)) / rms`` and the sum of ``g n`` over rows."""
    y, gradient = wide(x), wide(g)
    scale = torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
    normed, incoming = y * scale, gradient * w
    dx = scale * (incoming - normed * (incoming * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), (gradient * normed).sum(0).to(w.dtype)


def _masked_softmax(x: Tensor, hidden: Tensor) -> Tensor:
    return torch.softmax((x * 0.125).masked_fill(hidden, -1e4), -1)


def _cross_entropy_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and its gradient, as one pass has them: ``(softmax(x) - onehot) / rows``."""
    logs = torch.log_softmax(wide(logits), -1)
    loss = -logs.gather(1, targets[:, None]).mean()
    onehot = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    return loss, ((logs.exp() - onehot.to(logs.dtype)) / logits.shape[0]).to(logits.dtype)


def _dropout_residual_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    # F.dropout would be traced with its write in place, and not as the one operator that it is.
    total = torch.native_dropout(x, DROPPED, True)[0] + r
    return total, F.layer_norm(total, x.shape[-1:], w, b)


def share_kept(kept: Tensor) -> str:
    """What is wrong with the share of elements that dropout left: more than six standard deviations."""
    share, sigma = float(kept.double().mean()), math.sqrt(DROPPED * (1 - DROPPED) / max(1, kept.numel()))
    if not abs(share - (1 - DROPPED)) <= 6 * sigma:
        return f"{share:.6f} of the elements are kept, expected {1 - DROPPED} within {6 * sigma:.2g}"
    return ""


def dropped_and_normed(total: Tensor, normed: Tensor, branch: Tensor, r: Tensor, w: Tensor, b: Tensor) -> str:
    """What is wrong, if anything: the total must be the residual alone or with the scaled branch, of which as many elements
    are left as dropout leaves, and the norm must be that of the total."""
    eps = torch.finfo(total.dtype).eps
    added, scaled = total.double() - r, branch.double() / (1 - DROPPED)
    nearest = torch.minimum((added - scaled).abs(), added.abs())
    if not float(nearest.max()) <= 64 * eps:
        return f"an element is {float(nearest.max()):.2g} away from both the residual and the residual with the input"
    if wrong := share_kept((added.abs() > (added - scaled).abs())[scaled.abs() > 256 * eps]):
        return wrong
    # In half precision the norm may have been taken before the sum was rounded.
    error = float((normed.double() - F.layer_norm(total.double(), total.shape[-1:], w.double(), b.double())).abs().max())
    return "" if error <= 256 * eps else f"the norm is off by {error:.2g}"


def _check_dropout(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> str:
    return dropped_and_normed(outputs[0], outputs[1], *inputs)


_add("softmax", "inference llm vision", lambda x: torch.softmax(x, -1), MATRIX, quick=True)
_add("log_softmax", "inference llm", lambda x: torch.log_softmax(x, -1), MATRIX)
_add("masked scaled softmax", "inference llm", _masked_softmax, MATRIX, HIDDEN)
_add("softmax backward", "training", lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype), MATRIX, POSITIVE)
_add("layer_norm", "inference llm vision", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), MATRIX, VECTOR, VECTOR,
     quick=True)  # fmt: skip
_add("residual + layer_norm", "inference llm vision", _residual_layer_norm, MATRIX, MATRIX, VECTOR, VECTOR)
_add("layer_norm backward", "training", _layer_norm_backward, MATRIX, MATRIX, MEANS, DEVIATIONS, VECTOR, quick=True)
_add("rms_norm", "inference llm", rms_norm, MATRIX, VECTOR)
_add("rms_norm backward", "training", _rms_norm_backward, MATRIX, MATRIX, VECTOR)
_add("cross_entropy", "inference llm vision", lambda x, t: F.cross_entropy(x, t), MATRIX, CLASSES, quick=True)
_add("cross_entropy with gradient", "training", _cross_entropy_gradient, MATRIX, CLASSES)
_add("dropout + residual + layer_norm", "training", _dropout_residual_norm, MATRIX, MATRIX, VECTOR, VECTOR,
     check=_check_dropout)  # fmt: skip
_add("cumsum over rows", "inference llm", lambda x: torch.cumsum(x, -1), POSITIVE)

# Attention and what stands around it


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Su et al., RoFormer (2021), in halves, as language models spell it."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _rope_backward(g: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = (g * sin).chunk(2, -1)
    return g * cos + torch.cat((second, -first), -1)


def _attention_flops(size: Size) -> int:
    return 4 * size.sequences * LENGTH * LENGTH * HEAD


_add("rope", "inference llm", rope, HEADS, ANGLES, ANGLES, quick=True)
_add("rope backward", "training", _rope_backward, HEADS, ANGLES, ANGLES)
_add("attention", "inference llm vision", F.scaled_dot_product_attention, ATTENDED, ATTENDED, ATTENDED,
     flops=_attention_flops, itemwise=True)  # fmt: skip
_add("causal attention", "inference llm", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
     ATTENDED, ATTENDED, ATTENDED, flops=lambda s: _attention_flops(s) // 2, itemwise=True)  # fmt: skip
_add("embedding + positions", "inference llm", lambda t, i, p: F.embedding(i, t) + p, TABLE, PLACES, MATRIX)
_add("embedding backward", "training", lambda g, i: aten.embedding_dense_backward(g, i, max(2, g.shape[0] // 2), -1, False),
     MATRIX, PLACES)  # fmt: skip

# Products with what comes after them

_add("matmul + bias + gelu", "inference llm vision", lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
     SQUARE, SQUARE, EDGE, flops=_product, quick=True)  # fmt: skip
_add("matmul + residual", "inference llm vision", lambda x, w, r: F.linear(x, w) + r, SQUARE, SQUARE, SQUARE, flops=_product)
_add("matmul of dequantized int8", "inference llm", lambda x, q, s: x @ (q.to(x.dtype) * s), SQUARE,
     Operand(lambda s: (s.edge, s.edge), "int8"), Operand(lambda s: (s.edge,), "positive"), flops=_product)  # fmt: skip


def _group_ends(choices: Tensor) -> Tensor:
    """Where the rows of each expert end, once rows are sorted by the expert that was chosen for them."""
    experts = torch.arange(EXPERTS, device=choices.device)
    return (choices[:, None] <= experts).sum(0).to(torch.int32)


def _experts(x: Tensor, w: Tensor, choices: Tensor) -> Tensor:
    return torch.ops.vendor_sdk.grouped_mm(x, w.mT, _group_ends(choices))  # type: ignore[no-any-return]


def _experts_backward(g: Tensor, x: Tensor, w: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    ends = _group_ends(choices)
    return torch.ops.vendor_sdk.grouped_mm(g, w, ends), torch.ops.vendor_sdk.grouped_mm(g.t(), x, ends)


_add("products of experts", "inference llm", _experts, SQUARE, FACTORS, CHOICES, flops=_product)
_add("products of experts backward", "training", _experts_backward, SQUARE, SQUARE, FACTORS, CHOICES,
     flops=lambda s: 2 * _product(s))  # fmt: skip

# Pictures


def _batch_norm(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(x, mean, var, w, b))


def _batch_statistics(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(x, None, None, w, b, training=True))


def _statistics_moved(size: Size, itemsize: int) -> int:
    """The statistics need a pass of their own."""
    return 3 * size.pictures * CHANNELS * IMAGE * IMAGE * itemsize


_add("batch_norm + relu", "inference vision", _batch_norm, PICTURES, CHANNEL, CHANNEL_SCALES, CHANNEL, CHANNEL)
_add("batch_norm training + relu", "training vision", _batch_statistics, PICTURES, CHANNEL, CHANNEL, moved=_statistics_moved)
_add("group_norm + silu", "inference vision", lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), PICTURES, CHANNEL, CHANNEL)
_add("relu + max_pool", "inference vision", lambda x: F.max_pool2d(torch.relu(x), 2), PICTURES)

# Columns, everything, movement


def _adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), tenth step."""
    m = m + 0.1 * (g - m)
    v = 0.999 * v + 0.001 * g * g
    root = v.sqrt() / math.sqrt(1 - 0.999**10) + 1e-8
    return p * (1 - 1e-5) - (1e-3 / (1 - 0.9**10)) * m / root, m, v


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """To int8 with a scale a row, symmetric."""
    scale = wide(x).abs().amax(-1, keepdim=True) / 127
    return torch.round(wide(x) / scale).clamp(-127, 127).to(torch.int8), scale


_add("adamw step", "training", _adamw, MATRIX, MATRIX, MATRIX, POSITIVE)
_add("global norm", "training", lambda x: torch.linalg.vector_norm(wide(x)), MATRIX)
_add("sum over dim 0", "inference llm vision", lambda x: x.sum(0), POSITIVE, quick=True)
_add("sum over all", "inference", lambda x: x.sum(), POSITIVE)
_add("quantize to int8", "inference llm", _quantize, MATRIX)
_add("dequantize int8 + add", "inference llm", lambda q, s, r: q.to(r.dtype) * s + r,
     Operand(lambda s: (s.rows, s.columns), "int8"), SCALES, MATRIX)  # fmt: skip
_add("transpose + add", "inference vision", lambda x, y: x.t() + y, Operand(lambda s: (s.columns, s.rows)), MATRIX, quick=True)
_add("cat + scale + relu", "inference vision", lambda a, b, s: torch.relu(torch.cat((a, b), 0) * s),
     Operand(lambda s: (s.rows // 2, s.columns)), Operand(lambda s: (s.rows - s.rows // 2, s.columns)), VECTOR)  # fmt: skip
