"""Contractions: nests seen as matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.lowered import call
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.contraction import Factor, affine, match
from vendor_sdk.ir.loop import (
    Compute,
    Load,
    Range,
    required_ops,
)

aten = torch.ops.aten
F32 = torch.float32


def sized(*values: int) -> list[ix.Int]:
    return [ix.wrap(v) for v in values]


# What is a contraction


def matched(target: Any, *args: Any) -> Any:
    (nest,) = call(target, args).lowered.kernel.body
    return match(nest)


def names(ranges: Sequence[Range]) -> list[int | None]:
    return [r.size.value for r in ranges]


def test_a_matrix_product_splits_into_rows_columns_and_steps() -> None:
    found = matched(aten.mm.default, torch.empty(5, 7), torch.empty(7, 3))
    assert (names(found.batch), names(found.m), names(found.n), names(found.k)) == ([], [5], [3], [7])
    assert found.is_matrix_product
    assert found.dtype == F32


def test_halves_are_widened_in_the_factors_and_rounded_in_the_epilogue() -> None:
    found = matched(aten.mm.default, torch.empty(5, 7, dtype=torch.bfloat16), torch.empty(7, 3, dtype=torch.bfloat16))
    assert [s.op for s in found.left.body if isinstance(s, Compute)] == ["convert"]
    assert [s.op for s in found.epilogue if isinstance(s, Compute)] == ["convert"]
    assert found.dtype == F32


def test_a_batch_is_what_both_factors_depend_on() -> None:
    found = matched(aten.bmm.default, torch.empty(4, 5, 7), torch.empty(4, 7, 3))
    assert (names(found.batch), names(found.m), names(found.n), names(found.k)) == ([4], [5], [3], [7])


def test_a_convolution_is_weights_times_windows() -> None:
    args = (torch.empty(2, 6, 9, 9), torch.empty(8, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    found = matched(aten.convolution.default, *args)
    assert names(found.batch) == [2]  # groups
    assert names(found.m) == [4]
    assert names(found.n) == [2, 9, 9]
    assert names(found.k) == [3, 3, 3]
    assert names(found.left.reduced) == [27], "the weights lie along all steps"
    assert names(found.columns) == [2, 81], "an image of results is one stretch"


def test_the_epilogue_holds_what_follows_the_sum_and_nothing_of_the_factors() -> None:
    found = matched(aten.addmm.default, torch.empty(3), torch.empty(5, 7), torch.empty(7, 3))
    assert [s.param for s in found.epilogue if isinstance(s, Load)] == ["in2"]
    assert found.exchanged().exchanged() == found


def test_a_matrix_and_a_vector_need_no_template() -> None:
    kernel = call(aten.mm.default, (torch.empty(1, 9), torch.empty(9, 4))).lowered.kernel
    found = match(kernel.body[0])
    assert found is not None
    assert not found.is_matrix_product
    assert "contraction" not in required_ops(kernel)


def test_products_of_matrices_need_the_template() -> None:
    assert "contraction" in required_ops(call(aten.mm.default, (torch.empty(2, 9), torch.empty(9, 4))).lowered.kernel)


def test_other_reductions_are_no_contractions() -> None:
    x = torch.empty(4, 5)
    assert matched(aten.sum.dim_IntList, x, [1]) is None
    assert matched(aten.linalg_vector_norm.default, x, 2, [1]) is None
    assert matched(aten._cdist_forward.default, x, x, 1.0, 2) is None


# Factors over several dimensions


def test_ranges_are_cut_where_loads_become_affine() -> None:
    """Rows of (6, 20), steps of (6, 64): as they lie after heads were merged; what is too short stays whole."""
    row, step = ix.variable("m", ix.wrap(120)), ix.variable("k", ix.wrap(384))
    place = row % 20 * 64 + row // 20 * 9000 + step % 64 + step // 64 * 1280
    factor = Factor((Range("m", ix.wrap(120)),), (Range("k", ix.wrap(384)),), (Load("v", "in0", place, F32),), "v")
    found = affine(factor, 16)
    (load,) = found.body
    assert isinstance(load, Load)
    assert (names(found.reduced), ix.stride(load.index, found.reduced[1].var)) == ([6, 64], 1)
    assert (names(found.free), ix.stride(load.index, found.free[1].var)) == ([6, 20], 64)
    assert affine(factor, 65).reduced == factor.reduced
    for m in (0, 19, 20, 61, 119):
        for k in (0, 63, 64, 383):
            values = (m // 20, m % 20, k // 64, k % 64)
            named = {r.var: value for r, value in zip((*found.free, *found.reduced), values, strict=True)}
            assert ix.evaluate(load.index, named) == ix.evaluate(place, {"m": m, "k": k})
