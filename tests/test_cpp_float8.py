"""Floats of eight bits in cpp_cpu: conversions bit for bit as torch's, movement, products; and who runs what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vendor_sdk
from tests.toys import register_toys
from vendor_sdk import FLOAT8
from vendor_sdk.prims.samples import Effort, SampleContext, everywhere

aten = torch.ops.aten
Tensor = torch.Tensor

NATIVE = {"native", "view", "decomposed"}


def placed(function: Callable[..., Any], *inputs: Tensor, backend: str = "cpp_cpu") -> tuple[Any, dict[str, str]]:
    """What a compiled function gives, and for each prim where it ran, with the reason."""
    torch.compiler.reset()
    with vendor_sdk.observe() as observed:
        result = torch.compile(function, backend=backend)(*inputs)
    found = {p.prim: f"{p.placement.kind}: {p.placement.reason}" for graph in observed.graphs for p in graph.placements}
    return result, found


def kinds(found: dict[str, str]) -> set[str]:
    return {text.partition(":")[0] for text in found.values()}


def same(found: Tensor, expected: Tensor) -> None:
    """In every bit, but for which NaN it is."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.dtype.itemsize]
    nan = found.float().isnan() & expected.float().isnan()
    assert bool(((found.contiguous().view(bits) == expected.contiguous().view(bits)) | nan).all())


def values(dtype: torch.dtype) -> Tensor:
    return everywhere(SampleContext.make(dtype, Effort.STANDARD))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_conversions_are_those_of_torch(dtype: torch.dtype) -> None:
    """Vectors, and the same numbers one by one."""
    given = [values(source) for source in (torch.float32, torch.bfloat16, torch.float16, torch.float64, *FLOAT8)]

    def there(*each: Tensor) -> list[Tensor]:
        return [*(x.to(dtype) for x in each), *(x[:3].to(dtype) for x in each)]

    found, where = placed(there, *given)
    assert kinds(where) <= NATIVE
    for one, other in zip(found, there(*given), strict=True):
        same(one, other)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_values_are_those_of_torch(dtype: torch.dtype) -> None:
    targets = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

    def back(x: Tensor) -> list[Tensor]:
        return [part.to(target) for target in targets for part in (x, x[:3])]

    found, where = placed(back, values(dtype))
    assert kinds(where) <= NATIVE
    for one, other in zip(found, back(values(dtype)), strict=True):
        same(one, other)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_what_only_moves_is_native(dtype: torch.dtype) -> None:
    def moved(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([x, x.flip(0)[:, ::2].t().reshape(-1, 16)]), x.t().contiguous(), x[index], x.view(torch.uint8)

    x = values(dtype).reshape(16, 16)
    found, where = placed(moved, x, torch.tensor([3, -1, 3]))
    assert kinds({prim: text for prim, text in where.items() if prim != "flip"}) <= NATIVE
    for one, other in zip(found, moved(x, torch.tensor([3, -1, 3])), strict=True):
        same(one, other)


def test_what_computes_is_left_to_torch() -> None:
    with pytest.raises(NotImplementedError):
        placed(lambda x: x + x, values(torch.float8_e5m2))
    found, where = placed(lambda x: x == x, values(torch.float8_e5m2))
    assert where["eq"] == "host: float8_e5m2 is stored and converted, and eq computes"
    assert int((~found).sum()) == 6


def test_a_backend_without_the_dtype_has_it_on_the_host() -> None:
    given = values(torch.float32)
    register_toys()
    found, where = placed(lambda x: x.to(torch.float8_e4m3fn), given, backend="toy")
    same(found, given.to(torch.float8_e4m3fn))
    assert where["_to_copy"] == "host: float8_e4m3fn is not among the backend's dtypes"


def test_products_with_scales_are_conversions_and_a_product() -> None:
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((32, 64), (48, 64)))

    def scaled(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
        product: Tensor = aten._scaled_mm(a, b.t(), s, s, out_dtype=torch.bfloat16)
        return product

    found, where = placed(scaled, a, b, torch.tensor(0.5))
    assert kinds(where) <= NATIVE
    torch.testing.assert_close(found, scaled(a, b, torch.tensor(0.5)), rtol=2**-7, atol=1e-3)
