"""Attention: by ONNX's operator, by two of ONNX Runtime's own for long sequences, or step by step.

Programs make heads of rows (batch, rows, heads * width) by a reshape and a transpose, and rows of heads by the same afterwards.
The operators take rows too, so that where the transposes are in the graph nothing is moved: on one core or two of a Zen 5,
Attention takes 0.7 to 0.9 of the time at 128 positions, 0.9 to 0.95 at 512.

    Attention              holds all scores at once: the standard, and the fastest up to some thousand positions
    MultiHeadAttention     holds a block of them at a time: without mask and shared heads
    GroupQueryAttention    leaves out the keys behind each row: causal, shared heads too
    steps                  where the logarithm of the sum of exponentials is wanted, which none of them gives; and of a scale
                           that is not positive, or where there is no Attention

Rows whose keys are all masked give zeros, as torch's do and ONNX leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Outlines, Rule, Untranslatable, Value, static

FLOAT = torch.float32
_SWAP = [0, 2, 1, 3]
"""Between (batch, heads, rows, width) and (batch, rows, heads, width)."""

BLOCKED_FROM, BLOCKED_FROM_HEADS = 1024, 2048
"""Rows and keys from which MultiHeadAttention takes less time than Attention: of operands that come as rows; of others, moved
first. It takes 0.87 of it at 1,024 positions and 0.9 at 2,048, with moving 0.9 at 2,048 and 0.75 at 8,192. At 512 it takes as
long, with moving a third more. Of 8 heads of 4,096 positions it holds 48 MiB, Attention 528."""
CAUSAL_FROM = 1536
"""Positions from which GroupQueryAttention does: 0.8 of the time at 1,536 and 2,048, its operands moved, and 0.65 at 3,072; at
1,024 both take as long. Providers of ONNX Runtime before 1.27 say that they lack it: it had to have a cache to write to."""
_CAUSAL_WIDTHS = 8
"""GroupQueryAttention has heads of multiples of it."""
_NEARLY_LEAST = -3.4e38
"""Beside it any score vanishes, as beside the least number of float32."""


def _attention(
    b: Builder,
    out: Outlines,
    query: Operand,
    key: Operand,
    value: Operand,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Operand | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    if dropout_p:
        raise Untranslatable("attention with dropout is left to the decomposition")
    operands = (query, key, value)
    if query.dtype == torch.float64:
        raise Untranslatable("ONNX Runtime has no exact float64 kernel for Attention")
    if any(isinstance(size, int) and size == 0 for operand in operands for size in operand.shape):
        raise Untranslatable("an empty tensor is left to the decomposition")
    if out[1] is not None or (scale is not None and scale <= 0) or not _has_attention(b, operands, attn_mask):
        static(query.shape[-1:], "the width of attention's heads")
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        mask = None if attn_mask is None else _additive(b, attn_mask)
        results = _steps(b, query, key, value, factor, _causal(b, query, key, mask) if is_causal else mask)
        return tuple(None if each is None else b.cast(part, each.dtype) for part, each in zip(results, out, strict=True))
    assert out[0] is not None
    dtype, factors = out[0].dtype, {} if scale is None else {"scale": scale}
    result = _own(b, dtype, operands, is_causal, factors) if attn_mask is None else None
    if result is None:
        result = _standard(b, dtype, operands, is_causal, attn_mask, factors)
    return result, None


# Whole


def _has_attention(b: Builder, operands: Sequence[Operand], attn_mask: Operand | None) -> bool:
    mask = [] if attn_mask is None else [attn_mask]
    return b.runs("Attention", *(Operand(each.name, FLOAT, each.shape) for each in (*operands, *mask)))


def _standard(
    b: Builder,
    dtype: torch.dtype,
    operands: Sequence[Operand],
    is_causal: bool,
    attn_mask: Operand | None,
    factors: Mapping[str, float],
) -> Value:
    attributes: dict[str, Any] = {"is_causal": int(is_causal), **factors}
    mask = None if attn_mask is None else _full(b, attn_mask, operands)
    as_rows = _known(operands) and all(_come_as_rows(b, each) for each in operands)
    if as_rows:
        heads, own = (each.shape[1] for each in operands[:2])
        rows = [_rows(b, each) for each in operands]
        result = _apart(b, b.op("Attention", *rows, mask, q_num_heads=heads, kv_num_heads=own, **attributes), operands)
    else:
        result = b.op("Attention", *(b.cast(each, FLOAT) for each in operands), mask, **attributes)
    if attn_mask is not None and mask is not None:
        masked = b.op("ReduceMax", mask, b.constant([-1]), keepdims=1)
        nothing = b.compare("Equal", masked, b.constant(-math.inf, FLOAT))
        if as_rows:
            missing = 4 - attn_mask.rank
            nothing = b.transpose(b.unsqueeze(nothing, *range(missing)) if missing else nothing, _SWAP)
        result = b.where(nothing, b.constant(0, FLOAT), result)
    result = b.cast(result, dtype)
    return b.transpose(result, _SWAP) if as_rows else result


def _own(
    b: Builder, dtype: torch.dtype, operands: Sequence[Operand], is_causal: bool, factors: Mapping[str, float]
) -> Value | None:
    """By an operator of ONNX Runtime's own, where that pays and whoever runs the graph has it."""
    query, key, value = operands
    (batch, heads, rows, width), (_, own, keys, _) = query.shape, key.shape
    if not _known(operands) or not isinstance(rows, int) or not isinstance(keys, int):
        return None
    rest: list[Value | None] = []
    attributes: dict[str, Any] = {"num_heads": heads, **factors}
    if is_causal:
        if not isinstance(batch, int) or rows != keys or rows < CAUSAL_FROM:
            return None
        if width % _CAUSAL_WIDTHS or width != value.shape[3]:
            return None
        kind = "GroupQueryAttention"
        rest = [None, None, b.constant([keys - 1] * batch, torch.int32), b.constant([keys], torch.int32)]
        attributes["kv_num_heads"] = own
    else:
        least = BLOCKED_FROM if all(_come_as_rows(b, each) for each in operands) else BLOCKED_FROM_HEADS
        if heads != own or min(rows, keys) < least:
            return None
        kind = "MultiHeadAttention"
    result = b.contrib(kind, *(_rows(b, each) for each in operands), *rest, **attributes)
    return None if result is None else b.transpose(b.cast(_apart(b, result, operands), dtype), _SWAP)


def _known(operands: Sequence[Operand]) -> bool:
    """Whether the numbers of heads and their widths are."""
    return all(isinstance(size, int) for operand in operands for size in (operand.shape[1], operand.shape[3]))


def _come_as_rows(b: Builder, x: Operand) -> bool:
    """Whether heads (batch, heads, rows, width) are the transpose of rows."""
    return b.untransposed(x, _SWAP) is not None


def _rows(b: Builder, x: Operand) -> Operand:
    """Heads as (batch, rows, heads * width)."""
    batch, heads, rows, width = x.shape
    value = b.op("Reshape", b.cast(b.transpose(x, _SWAP), FLOAT), b.constant([0, 0, heads * width]))
    return Operand(value.name, FLOAT, (batch, rows, heads * width))


def _apart(b: Builder, rows: Value, operands: Sequence[Operand]) -> Value:
    """What came of rows, as (batch, rows, heads, width)."""
    query, _, value = operands
    return b.op("Reshape", rows, b.constant([0, 0, query.shape[1], value.shape[3]]))


# Steps


def _steps(b: Builder, query: Operand, key: Operand, value: Operand, factor: float, mask: Value | None) -> tuple[Value, Value]:
    """The result and the logarithm of the sum of exponentials of each row of scores."""
    zero, one = b.constant(0, FLOAT), b.constant(1, FLOAT)
    left, right, values = b.cast(query, FLOAT), _shared(b, key, query), _shared(b, value, query)
    scores = b.op("Mul", b.op("MatMul", left, b.transpose(right, [0, 1, 3, 2])), b.constant(factor, FLOAT))
    if mask is not None:
        scores = b.op("Add", scores, mask)
    peak = b.op("ReduceMax", scores, b.constant([-1]), keepdims=1)
    peak = b.where(b.compare("Equal", peak, b.constant(-math.inf, FLOAT)), zero, peak)
    weights = b.op("Exp", b.op("Sub", scores, peak))
    total = b.op("ReduceSum", weights, b.constant([-1]), keepdims=1)
    total = b.where(b.compare("Equal", total, zero), one, total)
    result = b.op("MatMul", b.op("Div", weights, total), values)
    return result, b.squeeze(b.op("Add", peak, b.op("Log", total)), 3)


def _shared(b: Builder, x: Operand, query: Operand) -> Value:
    """``x`` with a head for each of the query's: those of ``x`` serve as many neighbours."""
    heads, own = static([query.shape[1], x.shape[1]], "attention with shared heads")
    value = b.cast(x, FLOAT)
    if heads == own:
        return value
    batch, rows, width = (b.size(x, dim) for dim in (0, 2, 3))
    grouped = b.op("Expand", b.unsqueeze(value, 2), b.sizes([batch, own, heads // own, rows, width]))
    return b.op("Reshape", grouped, b.sizes([batch, heads, rows, width]))


def _causal(b: Builder, query: Operand, key: Operand, mask: Value | None) -> Value:
    """``mask`` that also keeps each row from the keys behind it."""
    rows, keys = (b.tensor(b.size(each, 2), torch.int64) for each in (query, key))
    row, column = (b.op("Range", b.constant(0), count, b.constant(1)) for count in (rows, keys))
    ahead = b.compare("Less", b.unsqueeze(row, 1), column)
    hidden = b.where(ahead, b.constant(-math.inf, FLOAT), b.constant(0, FLOAT))
    return hidden if mask is None else b.op("Add", hidden, mask)


def _full(b: Builder, mask: Operand, operands: Sequence[Operand]) -> Value:
    """The mask to be added, for each row and key: ONNX Runtime's ``Attention`` takes one row for all for another's."""
    query, key, _ = operands
    wanted = [*mask.shape[:-2], query.shape[2], key.shape[2]]
    added = _additive(b, mask)
    if mask.dtype == FLOAT:  # ONNX Runtime takes the least number for minus infinity, which leaves a row without keys.
        least = b.op("Max", added, b.constant(_NEARLY_LEAST, FLOAT))
        added = b.where(b.compare("Equal", added, b.constant(-math.inf, FLOAT)), added, least)
    if list(mask.shape) == wanted:
        return added
    return b.repeated(added, [*(b.size(mask, dim) for dim in range(mask.rank - 2)), b.size(query, 2), b.size(key, 2)])


def _additive(b: Builder, mask: Operand) -> Value:
    if mask.dtype != torch.bool:
        return b.cast(mask, FLOAT)
    return b.where(mask, b.constant(0, FLOAT), b.constant(-math.inf, FLOAT))


RULES: Mapping[str, Rule] = {"scaled_dot_product_attention": _attention}
