"""Long inner loops divided among more iterations: the same numbers, whatever the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import fusing
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir.loop import Load, LoopKernel, Reduce, Store, Symbol, loop_variables, makes, walk
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_verify import verify
from vendor_sdk.lower.split import split

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(1),
    "all": lambda x: x.sum(),
    "columns": lambda x: (x * 2).amax(0),
    "product": lambda x: x.prod(1),
    "largest and where": lambda x: (x.amax(1), x.argmax(1)),
    "smallest, where": lambda x: x.argmin(0),
    "softmax": lambda x: x.softmax(1),
    "variance": lambda x: x.var(1),
    "variance of columns": lambda x: x.var(0),
    "variance of all": lambda x: x.var(),
    "moments": lambda x: (x.mean(1), x.var(1, unbiased=False)),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (20,)),
    "batch norm": lambda x: (x - x.mean(0)) * torch.rsqrt(x.var(0) + 1e-5),
    "normalized, and the mean": lambda x: (x - x.mean(1, keepdim=True), x.mean(1)),
    "any": lambda x: (x > 1).any(1),
    "through a mask": lambda x: torch.where(x > 0, x, 0.0).sum(1),
    "gathered": lambda x: x.index_select(1, torch.tensor([0, 2, 1, 1, 0])).softmax(1),
}


def divided(kernel: LoopKernel, parts: int, *, apart: bool = False, maps: int | None = None) -> LoopKernel:
    for position in reversed(range(len(kernel.body))):
        kernel = split(kernel, position, parts, apart=apart, maps=maps)
    verify(kernel)
    return kernel


@pytest.mark.parametrize("parts", [1, 2, 4, 5, 40])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_parts_give_the_same(name: str, parts: int) -> None:
    function, x = FUNCTIONS[name], torch.randn(3, 20)
    x[1, 4] = -0.0
    compiled = fusing.compiled(function, [x], Limits())
    compiled.kernels = {
        node: replace(lowered, kernel=divided(lowered.kernel, parts)) for node, lowered in compiled.kernels.items()
    }
    expected = function(x)
    for found, exact in zip(compiled.run(x), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found, exact)


@pytest.mark.parametrize(("parts", "maps"), [(2, 5), (4, 1), (5, 20)])
@pytest.mark.parametrize("name", ["softmax", "layer norm", "batch norm", "normalized, and the mean"])
def test_loops_that_only_store_have_parts_of_their_own(name: str, parts: int, maps: int) -> None:
    function, x = FUNCTIONS[name], torch.randn(40, 20)
    compiled = fusing.compiled(function, [x], Limits())
    kernels = {node: divided(lowered.kernel, parts, apart=True, maps=maps) for node, lowered in compiled.kernels.items()}
    firsts = [nest.ranges[0].size.value for kernel in kernels.values() for nest in kernel.body if nest.ranges]
    assert {parts, maps} <= set(firsts)
    compiled.kernels = {node: replace(lowered, kernel=kernels[node]) for node, lowered in compiled.kernels.items()}
    expected = function(x)
    for found, exact in zip(compiled.run(x), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("length", [7, 40, 41, 64])
def test_parts_that_lie_apart_are_whole_turns(length: int) -> None:
    x = torch.randn(length, 5)
    x[length // 2, 3] = float("inf")
    for function, kept in ((lambda x: x.sum(0), False), (lambda x: (x + 1).sum(0), True), (lambda x: x.amax(0), True)):
        compiled = fusing.compiled(function, [x], Limits())
        kernels = {n: split(lowered.kernel, 0, 3, apart=True, turn=8) for n, lowered in compiled.kernels.items()}
        for kernel in kernels.values():
            verify(kernel)
            (part,) = (s for s in kernel.body[0].body if isinstance(s, Reduce))
            assert part.ranges[0].size.value == -(-length // 24) * 8
            # Zeros, which loads beyond the end give, need not be chosen; others do.
            assert any(getattr(s, "op", "") == "where" for s in part.body) is kept
        compiled.kernels = {n: replace(lowered, kernel=kernels[n]) for n, lowered in compiled.kernels.items()}
        torch.testing.assert_close(compiled.run(x)[0], function(x))


def test_nan_and_infinities_of_a_ragged_last_part() -> None:
    x = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), 1.0, float("-inf")]])
    compiled = fusing.compiled(lambda x: (x.amax(1), x.argmin(1)), [x], Limits())
    compiled.kernels = {n: replace(lowered, kernel=divided(lowered.kernel, 2)) for n, lowered in compiled.kernels.items()}
    largest, position = compiled.run(x)
    torch.testing.assert_close(largest, x.amax(1), equal_nan=True)
    assert torch.equal(position, x.argmin(1))


def test_scans_stay_whole() -> None:
    compiled = fusing.compiled(lambda x: x.cumsum(1), [torch.ones(2, 6)], Limits())
    for lowered in compiled.kernels.values():
        assert split(lowered.kernel, 0, 3) is lowered.kernel


def test_only_what_a_part_needs_is_computed() -> None:
    compiled = fusing.compiled(lambda x: x.softmax(1), [torch.ones(2, 64)], Limits())
    (lowered,) = compiled.kernels.values()
    kernel = split(lowered.kernel, 0, 4)
    # The parts' largest; the largest; the parts' sums; the sum; the quotients.
    assert len(kernel.body) == 5
    assert [p.size.value for p in kernel.scratch] == [8, 2, 8, 2]
    (lowered,) = fusing.compiled(lambda x: x.softmax(1), [torch.ones(1, 64)], Limits()).kernels.values()
    assert len(split(lowered.kernel, 0, 4).body) == 3  # one row's parts are combined wherever that is read


def test_new_names_are_not_those_of_symbols() -> None:
    compiled = fusing.compiled(lambda x: x.softmax(1), [torch.ones(2, 64)], Limits())
    (lowered,) = compiled.kernels.values()
    kernel = split(replace(lowered.kernel, symbols=(Symbol("w0"), Symbol("p0"))), 0, 4)
    made = {name for s in walk(kernel.body) for name in (*makes(s), *loop_variables(s))}
    assert not made & {"w0", "p0"}


def moments(x: torch.Tensor, parts: int, apart: bool) -> list[torch.Tensor]:
    compiled = fusing.compiled(lambda x: (x.mean(1), x.var(1, unbiased=False)), [x], Limits())
    compiled.kernels = {
        n: replace(lowered, kernel=divided(lowered.kernel, parts, apart=apart)) for n, lowered in compiled.kernels.items()
    }
    return compiled.run(x)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("parts", [1, 7, 16, 48])
def test_a_variance_reads_its_values_once(parts: int, apart: bool) -> None:
    (lowered,) = fusing.compiled(lambda x: (x.mean(1), x.var(1)), [torch.randn(3, 999)], Limits()).kernels.values()
    kernel = divided(lowered.kernel, parts, apart=apart)
    inner = [s for s in walk(kernel.body) if isinstance(s, Reduce)]
    assert sum(isinstance(s, Load) and s.param == "in0" for r in inner for s in r.body) == 1


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shift", [0.0, 100.0, -1e4])
def test_variances_of_values_far_from_zero(shift: float, apart: bool) -> None:
    """As exact as the mean allows, where the sum of squares less the square of the sum would have no digit left."""
    x = torch.randn(5, 1003) + shift
    mean, variance = moments(x, 16, apart)
    exact = x.double()
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=1e-6, atol=1e-6)
    off = 80 * 2**-24 * abs(shift)  # of a mean of 64 values, and of 16 such
    torch.testing.assert_close(variance.double(), exact.var(1, unbiased=False), rtol=1e-5 + off**2, atol=0)


@pytest.mark.parametrize("apart", [False, True])
def test_first_values_of_parts_that_lie_far_away(apart: bool) -> None:
    x = torch.randn(2, 640)
    x[:, : 16 if apart else 640 : 1 if apart else 40] = 1e6
    _, variance = moments(x, 16, apart)
    torch.testing.assert_close(variance.double(), x.double().var(1, unbiased=False), rtol=1e-5, atol=0)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("place", [0, 1, 41, 99])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e30, -3e38])
def test_moments_of_what_overflows_or_is_no_number(value: float, place: int, apart: bool) -> None:
    x = torch.randn(2, 100)
    x[1, place] = value
    for found, expected in zip(moments(x, 16, apart), (x.mean(1), x.var(1, unbiased=False)), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("apart", [False, True])
def test_moments_of_equal_and_of_few_values(apart: bool) -> None:
    mean, variance = moments(torch.full((2, 100), 0.1), 16, apart)
    torch.testing.assert_close(mean, torch.full((2,), 0.1))
    assert variance.max() <= (0.1 * 2**-22) ** 2  # that of a mean which is rounded
    mean, variance = moments(x := torch.randn(3, 5), 16, apart)  # parts without values
    torch.testing.assert_close((mean, variance), (x.mean(1), x.var(1, unbiased=False)))


@pytest.mark.parametrize("parts", [4, 7])
@pytest.mark.parametrize("read", [True, False])
def test_a_result_may_take_the_place_of_what_others_read(parts: int, read: bool) -> None:
    """``y`` lies over ``b``, which the rows read too: they are computed from the old ``b``, whichever nest stores ``y``. Where
    they do not read it, as with running statistics, no nest of its own does."""

    def function(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.sum(1)
        y = total + b
        return y, x * (y if read else total).unsqueeze(1) + (b.unsqueeze(1) if read else 1)

    x, b = torch.randn(3, 40), torch.randn(3)
    (lowered,) = fusing.compiled(function, [x, b], Limits()).kernels.values()
    kernel = lowered.kernel
    (place,) = (p.name for p in kernel.params if p.role == "in" and p.size.value == 3)
    (result,) = (p.name for p in kernel.params if p.role == "out" and p.size.value == 3)
    params = tuple(replace(p, role="inout") if p.name == place else p for p in kernel.params if p.name != result)
    kernel = divided(replace(kernel, params=params, body=tuple(_over(s, result, place) for s in kernel.body)), parts)
    assert len(kernel.body) == (4 if read else 3)
    memory = {p.name: torch.full((120,), float("nan")) if p.size.value == 120 else b.clone() for p in kernel.params}
    (given,) = (p.name for p in kernel.params if p.role == "in")
    memory[given] = x.reshape(-1).clone()
    interpret(kernel, list(memory.values()), [])
    (rows,) = (p.name for p in kernel.params if p.role == "out")
    expected = function(x, b)
    torch.testing.assert_close(memory[place], expected[0])
    torch.testing.assert_close(memory[rows].view(3, 40), expected[1])


def _over(s: Any, old: str, new: str) -> Any:
    """A statement that stores into another param."""
    if hasattr(s, "body"):
        return replace(s, body=tuple(_over(each, old, new) for each in s.body))
    return replace(s, param=new) if isinstance(s, Store) and s.param == old else s
