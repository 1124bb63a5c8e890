"""Products of groups of rows, as a mixture of experts has them: a Split by the sizes that the call's offsets say, and a product
for each group. Its decomposition multiplies all rows with the matrices of all groups, whose number it costs as a factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Outline, Rule, Value, static
from reference_backends.onnxruntime.reduction import wide


def _grouped_mm(b: Builder, out: Outline, x: Operand, mat2: Operand, offs: Operand) -> Value:
    (groups,) = static(offs.shape, "grouped_mm")
    rows = b.size(mat2, 0) if mat2.rank == 2 else b.size(x, 0)
    sizes = _sizes(b, offs, rows)
    dtype = wide(out.dtype)
    if mat2.rank == 2:
        pairs = zip(_columns(b, x, sizes, groups), _split(b, mat2, sizes, groups, 0), strict=True)
        products = [b.unsqueeze(_product(b, left, right, dtype), 0) for left, right in list(pairs)[:groups]]
    else:
        *parts, behind = _split(b, x, sizes, groups, 0)
        products = [_product(b, *pair, dtype) for pair in zip(parts, _matrices(b, mat2, groups), strict=True)]
        left = b.op("Gather", b.op("Shape", behind, dtype=torch.int64), b.constant(0), axis=0)
        products.append(b.repeated(b.constant(0, dtype), [left, b.size(mat2, 2)]))
    return b.cast(b.op("Concat", *products, axis=0), out.dtype)


def _sizes(b: Builder, offs: Operand, rows: Any) -> Value:
    """The number of rows of each group, and of those behind the last one. Offsets that fall make one negative, which no Split
    takes."""
    ends = b.cast(offs, torch.int64)
    return b.op("Sub", b.op("Concat", ends, b.sizes([rows]), axis=0), b.op("Concat", b.constant([0]), ends, axis=0))


def _product(b: Builder, left: Value, right: Value, dtype: torch.dtype) -> Value:
    return b.op("MatMul", b.cast(left, dtype), b.cast(right, dtype))


def _split(b: Builder, value: Value, sizes: Value, groups: int, axis: int) -> Sequence[Value]:
    """The groups, and what is behind the last one."""
    return b.ops("Split", value, sizes, dtypes=[value.dtype] * (groups + 1), axis=axis)


def _columns(b: Builder, x: Value, sizes: Value, groups: int) -> Sequence[Value]:
    """Columns that are rows turned are split as these, which lie together; a product takes them turned."""
    whole = b.untransposed(x, [1, 0])
    if whole is None:
        return _split(b, x, sizes, groups, 1)
    return [b.transpose(part, [1, 0]) for part in _split(b, whole, sizes, groups, 0)]


def _matrices(b: Builder, mat2: Value, groups: int) -> Sequence[Value]:
    whole = b.untransposed(mat2, [0, 2, 1])
    taken = [b.op("Gather", mat2 if whole is None else whole, b.constant(group), axis=0) for group in range(groups)]
    return taken if whole is None else [b.transpose(each, [1, 0]) for each in taken]


RULES: Mapping[str, Rule] = {"grouped_mm": _grouped_mm}
