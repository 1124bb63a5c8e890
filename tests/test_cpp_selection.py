"""Orders of lines long enough for radix sorts and for thresholds: ties by place, NaN last, zeros of both signs alike."""

from __future__ import annotations

import pytest
import torch

Tensor = torch.Tensor
DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
]  # fmt: skip


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    """With many ties, and special values."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -300), min(info.max, 300), shape).to(dtype)
        x.view(-1)[::97], x.view(-1)[1::89] = info.max, info.min
        return x
    x = (torch.randn(shape) * 20).round().div(4).to(dtype)
    flat = x.view(-1)
    flat[::101], flat[1::103], flat[2::107], flat[3::109] = float("nan"), float("inf"), float("-inf"), -0.0
    return x


def order(x: Tensor, *, descending: bool) -> Tensor:
    """Places in the order of values, and of places where these are equal; torch's own, which is stable."""
    return x.sort(dim=-1, stable=True, descending=descending).indices


def compiled(function: object, *inputs: object) -> tuple[Tensor, Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, backend="cpp_cpu", dynamic=False)(*inputs)  # type: ignore[call-overload, no-any-return]


def same(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found.double().nan_to_num(nan=1e300), wanted.double().nan_to_num(nan=1e300))


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort(dtype: torch.dtype, descending: bool) -> None:
    for shape in ((3, 191), (2, 193), (2, 3000)):
        x = drawn(dtype, *shape)
        values, places = compiled(lambda x: x.sort(dim=-1, descending=descending), x)
        wanted = order(x, descending=descending)
        assert torch.equal(places, wanted)
        assert same(values, x.gather(-1, wanted))


@pytest.mark.parametrize("largest", [False, True], ids=["least", "largest"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    for n, k in ((70, 70), (70, 1), (81, 8), (500, 8), (4097, 50), (1000, 400), (3000, 1)):
        x = drawn(dtype, 3, n)
        values, places = compiled(lambda x, k: x.topk(k, largest=largest), x, k)
        wanted = order(x, descending=largest)[:, :k]
        assert torch.equal(places, wanted)
        assert same(values, x.gather(-1, wanted))


def test_other_dimensions() -> None:
    x = drawn(torch.float32, 2, 900, 5)
    lines = x.movedim(1, -1)
    values, places = compiled(lambda x: x.sort(1), x)
    assert torch.equal(places.movedim(1, -1), order(lines, descending=False))
    assert same(values, x.gather(1, places))
    values, places = compiled(lambda x: x.topk(9, 1), x)
    assert torch.equal(places.movedim(1, -1), order(lines, descending=True)[..., :9])
    assert same(values, x.gather(1, places))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_ranks_and_counts(dtype: torch.dtype) -> None:
    x = drawn(dtype, 4, 777)
    for name in ("median", "nanmedian", "mode") if not dtype.is_floating_point else ("median", "nanmedian"):
        values, places = compiled(lambda x, name=name: getattr(x, name)(-1), x)
        assert same(values, getattr(x, name)(-1).values)
        assert same(x.gather(-1, places[:, None])[:, 0], values)
    for k in (1, 300, 777):
        values, places = compiled(lambda x, k: x.kthvalue(k, -1), x, k)
        assert same(values, x.kthvalue(k, -1).values)
        assert same(x.gather(-1, places[:, None])[:, 0], values)
