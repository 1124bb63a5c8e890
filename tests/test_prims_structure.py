"""The op table as a whole: size, names, targets, and decompositions that say the same as their rows in prims alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.calls import Calls
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.derived import DERIVED
from vendor_sdk.prims.opset import BY_TARGET, FAMILY_MODULES, OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.row import STORED, Family, Prim, Result
from vendor_sdk.prims.samples import Effort, Sample, SampleContext

ELEMENTWISE = {Family.POINTWISE, Family.COMPARISON, Family.CONVERSION, Family.REDUCTION, Family.SCAN, Family.CREATION}
DECOMPOSED = [
    row
    for row in (*OPSET.values(), *DERIVED.values())
    if row.decomposition is not None and row.family not in ELEMENTWISE | {Family.RANDOM}
]
"""Decompositions that move data about or are programs; the elementwise ones are judged with their rows."""

NOT_CALLABLE_ALONE = {
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
    "wait_tensor",
    "cond",
    "while_loop",
    "invoke_subgraph",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "_assert_async",
    "_assert_scalar",
}
"""Rows without samples; their modules say why."""


def test_opset_size() -> None:
    assert 240 <= len(OPSET) <= 260


def test_names_and_targets_are_unique() -> None:
    # The two tables refuse duplicates when they are built; a row lost between them would show here.
    assert len(BY_TARGET) == len(OPSET)
    assert not set(DERIVED) & set(BY_TARGET)


def test_every_family_has_rows_of_its_own() -> None:
    assert {str(row.family) for row in OPSET.values()} == set(FAMILY_MODULES) == {str(family) for family in Family}


@pytest.mark.parametrize("row", OPSET.values(), ids=lambda row: row.name)
def test_row_is_well_formed(row: Prim) -> None:
    assert callable(row.target)
    assert row.summary
    assert not row.summary.endswith(".")
    assert len(set(row.dtypes)) == len(row.dtypes)
    assert set(row.dtypes) <= set(STORED)
    assert (row.family == Family.SYMBOLIC) == (not row.dtypes) == (row.result == Result.SCALAR)


@pytest.mark.parametrize("row", OPSET.values(), ids=lambda row: row.name)
def test_row_has_samples(row: Prim) -> None:
    for dtype in row.dtypes or (torch.int64,):
        quick = list(row.samples(SampleContext.make(dtype, Effort.QUICK)))
        assert bool(quick) == (row.name not in NOT_CALLABLE_ALONE), dtype


def _samples(row: Prim) -> Iterator[tuple[torch.dtype, Sample]]:
    # float32 too: there a decomposition that promotes would show, which it cannot in float64.
    for dtype in (torch.float64, torch.float32, torch.int64, torch.bool):
        if dtype in row.dtypes:
            for sample in row.samples(SampleContext.make(dtype, Effort.STANDARD)):
                if not sample.undefined:
                    yield dtype, sample


@pytest.mark.parametrize("row", DECOMPOSED, ids=lambda row: row.name)
def test_decomposition_meets_the_bound_of_its_row(row: Prim) -> None:
    assert row.decomposition is not None
    tried = 0
    for dtype, sample in _samples(row):
        if row.decomposition_cost:
            # What a stated cost may be differs (cancellation, one more rounding); the function must be the same one.
            if dtype is torch.float64 and not sample.special:
                expected = row.target(*sample.args, **sample.kwargs)
                result = row.decomposition(*sample.args, **sample.kwargs)
                torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9, check_stride=False)
                tried += 1
            continue
        result = row.decomposition(*sample.args, **sample.kwargs)
        verdict = violations(row.bound, row, sample, result, reference(row, sample))
        assert verdict.ok, f"{dtype} {sample.label}: {verdict.message}"
        tried += 1
    assert tried


@pytest.mark.parametrize("row", DECOMPOSED, ids=lambda row: row.name)
def test_decomposition_uses_only_prims(row: Prim) -> None:
    for _, sample in _samples(row):
        assert row.decomposition is not None
        with Calls() as calls:
            row.decomposition(*sample.args, **sample.kwargs)
        foreign = {str(target) for target in calls.targets if target not in BY_TARGET}
        assert not foreign, f"{sample.label}: {foreign}"
        assert row.target not in calls.targets, f"{sample.label}: calls itself"
