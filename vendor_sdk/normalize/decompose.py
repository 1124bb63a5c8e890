"""The two decomposition tables: what AOTAutograd gets, and what takes its graphs down to prims.

Two stages, because min-cut's rules for recomputation know ATen operators, not prims. The first table stops at core ATen and
composites; the second ends in prims, applied inside the forward and backward compilers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from vendor_sdk import torch_private
from vendor_sdk.normalize.rules import Rule, named
from vendor_sdk.normalize.torch_prims import TORCH_PRIMS
from vendor_sdk.normalize.variants import VARIANTS
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET
from vendor_sdk.torch_private import OpOverload

UNDECOMPOSED_AT_CAPTURE = (
    # the stock core table decomposes the forward but not the backward, which then receives a wrong logsumexp
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)


_PROVISIONAL = frozenset(
    overload
    for name in (
        "abs acos acosh add.Tensor addmm alias amax amin any.dims arange.start_step argmax argmin as_strided asin asinh atan atan2 "
        "atanh bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_not bitwise_or.Tensor bitwise_right_shift.Tensor "
        "bitwise_xor.Tensor bmm cat ceil clone constant_pad_nd convolution convolution_backward copysign.Tensor cos cosh cumprod "
        "cumsum diagonal digamma div.Tensor div.Tensor_mode embedding_dense_backward eq.Tensor erf erfc erfinv exp exp2 expand "
        "expm1 flip floor fmod.Tensor full gather ge.Tensor gt.Tensor index.Tensor index_put isinf isnan le.Tensor lgamma log "
        "log10 log1p log2 logical_and logical_not logical_or logical_xor lt.Tensor max.dim min.dim maximum mean.dim minimum mm "
        "mul.Tensor ne.Tensor neg permute pow.Tensor_Tensor prod.dim_int rand randn randint.low reciprocal relu remainder.Tensor "
        "round rsqrt scatter.src scatter_add select.int sigmoid sign signbit sin sinh slice.Tensor sqrt squeeze.dims sub.Tensor "
        "sum.dim_IntList tan tanh trunc unfold unsqueeze var.correction view where.self _to_copy max_pool2d_with_indices "
        "max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward"
    ).split()
    if (overload := named(f"aten::{name}")) is not None
)


def capture_table() -> dict[OpOverload, Rule]:
    """Decompositions for AOTAutograd: core ATen, with composites and prims left whole (a fresh dict)."""
    table = torch_private.core_aten_table()
    for name in UNDECOMPOSED_AT_CAPTURE:
        overload = named(name)
        if overload is not None:
            table.pop(overload, None)
    for target in (*BY_TARGET, *COMPOSITE_BY_TARGET, *_PROVISIONAL):
        table.pop(target, None)
    return table


def prim_table(keep: frozenset[OpOverload]) -> dict[OpOverload, Rule]:
    """Decompositions from core ATen and composites to prims (a fresh dict).

    Args:
        keep: overloads of composites that the backend claims; they stay whole.
    """
    return {key: rule for key, rule in _rules().items() if key not in keep}


@functools.cache
def _rules() -> Mapping[OpOverload, Rule]:
    """The most specific rule of every operator that is not a prim, and the rules that bring prims to canonical arguments."""
    torch_rules = {**torch_private.registered_table(), **torch_private.core_aten_table(), **TORCH_PRIMS}
    table = {key: rule for key, rule in torch_rules.items() if key not in BY_TARGET and key not in _PROVISIONAL}
    for target, composite in COMPOSITE_BY_TARGET.items():
        table[target] = composite.targets[target]
    table.update(VARIANTS)
    return table
