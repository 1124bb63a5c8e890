"""Products of groups of rows: cpp_cpu's kernel."""

from __future__ import annotations

import pytest
import torch

from reference_backends.cpp_cpu.grouped import KERNELS
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.grouped import OPERATOR
from vendor_sdk.prims.opset import COMPOSITES
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Effort, Sample, SampleContext

Tensor = torch.Tensor
ROW = COMPOSITES["grouped_mm"]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def offsets(*ends: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(ends, dtype=dtype)


@pytest.mark.parametrize("ends", [(4, 3, 8), (4, 8, 9), (-1, 4, 8)])
def test_offsets_that_are_none(ends: tuple[int, ...]) -> None:
    with pytest.raises(IndexError):
        KERNELS["grouped_mm"].call(torch.empty(8, 3), torch.randn(8, 4), torch.randn(3, 4, 3), offsets(*ends))


def _filled(sample: Sample) -> Tensor:
    """Through cpp_cpu's kernel, into memory full of NaN."""
    shape = OPERATOR(*(x.to("meta") for x in sample.args)).shape
    out = torch.full(shape, float("nan"), dtype=sample.args[0].dtype)
    KERNELS["grouped_mm"].call(out, *sample.args)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_meets_the_bound(dtype: torch.dtype) -> None:
    for sample in ROW.samples(SampleContext.make(dtype, effort=Effort.FULL)):
        verdict = violations(ROW.bound, ROW, sample, _filled(sample), reference(ROW, sample))
        assert verdict.ok, f"{sample.label}: {verdict.message}"


@pytest.mark.parametrize("whole", [False, True])
def test_threads_change_nothing(whole: bool) -> None:
    """Few large groups, each by all threads, and many small ones, each by one; all as torch, group by group."""
    for rows, groups, width in ((700, 3, 96), (640, 32, 48)):
        x, ends = torch.randn(rows, width), torch.arange(1, groups + 1, dtype=torch.int64) * (rows // groups)
        sample = Sample((x.t(), torch.randn(rows, 70), ends) if whole else (x, torch.randn(groups, width, 70), ends))
        results, before = [], torch.get_num_threads()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(_filled(sample))
        torch.set_num_threads(before)
        assert all(torch.equal(result, results[0]) for result in results)
        assert violations(ROW.bound, ROW, sample, results[0], reference(ROW, sample)).ok
