"""Statistics of accumulated errors: right ways to sum pass in any order; wrong ones that the largest error hides do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import COMPOSITES, OPSET
from vendor_sdk.prims.reference import reference, target_of
from vendor_sdk.prims.row import Composite, Prim
from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, draw

Tensor = torch.Tensor
Summing = Callable[[Tensor, torch.dtype], Tensor]
"""Sums exact float64 products (n, results), of operands in some dtype; the result is in a dtype."""

SEEDS = range(5)


def sequential(products: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros(products.shape[1:])
    for product in products:
        total = total + product.float()
    return total.to(dtype)


def fused(products: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros(products.shape[1:])
    for product in products:
        total = (total.double() + product).float()
    return total.to(dtype)


def pairwise(products: Tensor, dtype: torch.dtype) -> Tensor:
    parts = products.float()
    while len(parts) > 1:
        even = parts[: len(parts) // 2 * 2]
        parts = torch.cat([even[::2] + even[1::2], parts[len(even) :]])
    return parts[0].to(dtype)


def compensated(products: Tensor, dtype: torch.dtype) -> Tensor:
    total, lost = torch.zeros(products.shape[1:]), torch.zeros(products.shape[1:])
    for product in products.float():
        term = product - lost
        following = total + term
        total, lost = following, (following - total) - term
    return total.to(dtype)


def interleaved(products: Tensor, dtype: torch.dtype) -> Tensor:
    return pairwise(torch.stack([sequential(products[lane::8], torch.float32) for lane in range(min(8, len(products)))]), dtype)


def exact(products: Tensor, dtype: torch.dtype) -> Tensor:
    return products.sum(0).to(dtype)


def in_float16(products: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros(products.shape[1:], dtype=torch.float16)
    for product in products:
        total = total + product.half()
    return total.to(dtype)


def truncated(value: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = value.to(dtype)
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    above = rounded.double().abs() > value.double().abs()
    return (rounded.view(kind) - above.to(kind)).view(dtype)


def truncated_at_last(products: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.float32:
        return truncated(sequential(products, torch.float32), dtype)
    head, tail = sequential(products[:-1], dtype).double(), products[-1]
    return truncated(head + tail, dtype)


def truncated_always(products: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros(products.shape[1:])
    for product in products:
        total = truncated(total.double() + product, torch.float32)
    return total.to(dtype)


def in_half(products: Tensor, dtype: torch.dtype) -> Tensor:
    return sequential(products, torch.float16).to(dtype)


def scaled(products: Tensor, dtype: torch.dtype) -> Tensor:
    return (sequential(products, torch.float32) * (1 + torch.finfo(dtype).eps)).to(dtype)


def shortened(products: Tensor, dtype: torch.dtype) -> Tensor:
    return sequential(products[:-1], dtype)


RIGHT: tuple[Summing, ...] = (sequential, fused, pairwise, compensated, interleaved, exact)


def product(left: Tensor, right: Tensor, summing: Summing) -> Tensor:
    return summing(left.double().t()[:, :, None] * right.double()[:, None, :], left.dtype)


def factors(seed: int, terms: int, dtype: torch.dtype, domain: Interval, size: int = 24) -> tuple[Tensor, Tensor]:
    context = SampleContext.make(dtype, seed=seed)
    return draw(context, (size, terms), domain), draw(context, (terms, size), domain)


def right(row: Prim | Composite, result: Any, *args: Any) -> bool:
    sample = Sample(args)
    return violations(row.bound, row, sample, result, reference(row, sample)).ok


MM, SUM = OPSET["mm"], OPSET["sum"]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("domain", [Interval(-4, 4), Interval(0, 4)], ids=["signed", "positive"])
@pytest.mark.parametrize("terms", [1, 2, 128, 500])
def test_right_products_pass_in_any_order(terms: int, domain: Interval, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        left, second = factors(seed, terms, dtype, domain)
        for summing in RIGHT:
            assert right(MM, product(left, second, summing), left, second), (summing.__name__, seed)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("domain", [Interval(-9, 9), Interval(4, 8)], ids=["signed", "positive"])
@pytest.mark.parametrize("terms", [2, 3, 67])
def test_right_sums_pass_in_any_order(terms: int, domain: Interval, dtype: torch.dtype) -> None:
    """Sums of two values of a half precision often lie halfway between two others."""
    for seed in SEEDS:
        x = draw(SampleContext.make(dtype, seed=seed), (600, terms), domain)
        for summing in RIGHT:
            assert right(SUM, summing(x.double().t(), dtype), x, [1]), (summing.__name__, seed)


@pytest.mark.parametrize("domain", [Interval(-4, 4), Interval(0, 4)], ids=["signed", "positive"])
@pytest.mark.parametrize("terms", [3, 28, 128])
def test_halves_are_summed_in_themselves_where_a_row_permits_it(terms: int, domain: Interval) -> None:
    row = replace(MM, bound=replace(MM.bound, own_dtype=(torch.float16,)))  # type: ignore[type-var]
    for seed in SEEDS:
        left, second = factors(seed, terms, torch.float16, domain, size=64)
        assert right(row, product(left, second, in_float16), left, second)


def test_accumulators_of_halves_may_truncate() -> None:
    """As those of tensor cores do."""
    for seed in SEEDS:
        left, second = factors(seed, 500, torch.bfloat16, Interval(0, 4))
        assert right(MM, product(left, second, truncated_always), left, second)


@pytest.mark.parametrize("summing", [truncated_at_last, truncated_always, in_half, scaled, shortened])
@pytest.mark.parametrize("domain", [Interval(-4, 4), Interval(0, 4)], ids=["signed", "positive"])
def test_wrong_products_fail(summing: Summing, domain: Interval) -> None:
    for seed in SEEDS:
        left, second = factors(seed, 64, torch.float32, domain, size=64)
        assert not right(MM, product(left, second, summing), left, second), seed


@pytest.mark.parametrize("summing", [truncated_at_last, scaled])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_wrong_products_of_halves_fail(summing: Summing, dtype: torch.dtype) -> None:
    for seed in SEEDS:
        left, second = factors(seed, 128, dtype, Interval(-4, 4))
        assert not right(MM, product(left, second, summing), left, second), seed


def tf32(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def test_long_products_in_fewer_digits_fail() -> None:
    """The largest error of each is within what the worst order of summation may do."""
    for seed in SEEDS:
        left, right_factor = factors(seed, 4096, torch.float32, Interval(-4, 4), size=32)
        exact_product = left.double() @ right_factor.double()
        assert right(MM, exact_product.float(), left, right_factor)
        assert not right(MM, exact_product.half().float(), left, right_factor)
        assert not right(MM, (tf32(left).double() @ tf32(right_factor).double()).float(), left, right_factor)


def test_a_convolution_in_halves_that_is_scaled_fails() -> None:
    """By one unit in the last place: its row permits sums in float16 itself."""
    row = OPSET["convolution"]
    sample = next(iter(row.samples(SampleContext.make(torch.float16))))
    assert right(row, row.target(*sample.args), *sample.args)
    assert not right(row, (row.target(*sample.args).double() * (1 + 2.0**-10)).half(), *sample.args)


ROWS: dict[str, Prim | Composite] = {**OPSET, **COMPOSITES}
OF_SUMS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "sum", "cumsum", "linear")
OF_FUNCTIONS = ("mean", "softmax", "log_softmax", "layer_norm", "scaled_dot_product_attention")
"""In float32 a function's own error may be on one side, so there only halves are told apart."""


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype)


def judged(name: str, dtype: torch.dtype, rounding: Callable[[Tensor, torch.dtype], Tensor]) -> list[bool]:
    """Whether exact results, rounded by ``rounding``, pass, for each sample of effort standard."""
    row, found = ROWS[name], []
    for sample in row.samples(SampleContext.make(dtype, Effort.STANDARD)):
        if sample.special:
            continue
        expected = reference(row, sample)
        result = [item.value if item.dtype is None else rounding(item.value, item.dtype) for item in expected]
        found.append(violations(row.bound, row, sample, result, expected).ok)
    return found


@pytest.mark.parametrize("name", [*OF_SUMS, *OF_FUNCTIONS])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_samples_of_effort_standard_tell_truncated_results(name: str, dtype: torch.dtype) -> None:
    assert all(judged(name, dtype, rounded))
    if dtype != torch.float32 or name in OF_SUMS:
        assert not all(judged(name, dtype, truncated))


def test_eager_torch_passes() -> None:
    for name in (*OF_SUMS, *OF_FUNCTIONS):
        row = ROWS[name]
        for seed in SEEDS:
            for sample in row.samples(SampleContext.make(torch.float32, Effort.STANDARD, seed)):
                result = target_of(row)(*sample.args, **sample.kwargs)
                verdict = violations(row.bound, row, sample, result, reference(row, sample))
                assert verdict.ok, f"{name} {sample.label}: {verdict.message}"
