"""The largest of a row and the sum of its exponentials in one pass: the same numbers, one loop less."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import fusing
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index
from vendor_sdk.ir.loop import LoopKernel, Nest, Range, Reduce, Stmt, Store, Symbol, walk
from vendor_sdk.ir.loop_verify import verify
from vendor_sdk.lower.online import gaps, online
from vendor_sdk.lower.split import split

F = torch.nn.functional
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "softmax": (lambda x: x.softmax(1), ["expsum"]),
    "columns": (lambda x: x.softmax(0), ["expsum"]),
    "log_softmax": (lambda x: x.log_softmax(1), ["expsum"]),
    "masked and scaled": (lambda x: torch.where(x > 1, x * 0.5, -1e4).softmax(1), ["expsum"]),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([3, 0, 7])), ["expsum", "sum", "sum"]),
    "with other totals": (lambda x: (x.softmax(1), x.sum(1), x.amin(1)), ["expsum", "sum"]),
    "of other values": (lambda x: ((2 * x - x.amax(1, keepdim=True)).exp().sum(1),), ["max", "sum"]),
    "no exponential": (lambda x: ((x - x.amax(1, keepdim=True)).sum(1),), ["max", "sum"]),
}
"""By name: a function, and what its reductions become, but for those to the smallest."""


def operations(kernel: LoopKernel) -> list[str]:
    """What its reductions combine by, in order."""
    return [a.op for s in walk(kernel.body) if isinstance(s, Reduce) for a in s.accumulators]


def joined(kernel: LoopKernel, parts: int = 1) -> LoopKernel:
    for position in reversed(range(len(kernel.body))):
        kernel = online(kernel, position)
        kernel = split(kernel, position, parts) if parts > 1 else kernel
    verify(kernel)
    return kernel


def results(function: Callable[..., Any], x: torch.Tensor, parts: int = 1) -> tuple[list[torch.Tensor], list[LoopKernel]]:
    compiled = fusing.compiled(function, [x], Limits())
    compiled.kernels = {n: replace(lowered, kernel=joined(lowered.kernel, parts)) for n, lowered in compiled.kernels.items()}
    return compiled.run(x), [lowered.kernel for lowered in compiled.kernels.values()]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_pass_gives_the_same(name: str, parts: int) -> None:
    function, passes = FUNCTIONS[name]
    x = torch.randn(3, 21, dtype=torch.float64)
    found, kernels = results(function, x, parts)
    expected = function(x)
    for result, exact in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(result, exact)
    if parts == 1:
        assert [op for kernel in kernels for op in operations(kernel) if op in ("max", "sum", "expsum")] == passes


@pytest.mark.parametrize("parts", [1, 3])
def test_nan_and_infinities(parts: int) -> None:
    inf = math.inf
    x = torch.tensor([[1, -inf, 2, 3], [-inf, -inf, 5, 1], [-inf] * 4, [inf, 1, 2, 3], [1, 2, math.nan, 3], [800, -800, 0, 1]])
    (found,), _ = results(lambda x: x.softmax(1), x, parts)
    torch.testing.assert_close(found, x.softmax(1), equal_nan=True)


def into(body: tuple[Stmt, ...], param: str) -> tuple[Stmt, ...]:
    """Statements that store to ``param`` instead."""
    found = (replace(s, param=param) if isinstance(s, Store) else s for s in body)
    return tuple(replace(s, body=into(s.body, param)) if isinstance(s, Reduce | Nest) else s for s in found)


def test_values_of_memory_that_is_written_are_not_taken_for_equal() -> None:
    compiled = fusing.compiled(lambda x: x.softmax(1), [torch.ones(3, 8)], Limits())
    (kernel,) = [lowered.kernel for lowered in compiled.kernels.values()]
    source = next(p for p in kernel.params if p.role == "in")
    (nest,) = kernel.body
    changed = replace(nest, body=into(nest.body, source.name))
    within = replace(kernel, params=(replace(source, role="inout"),), body=(changed,))
    assert operations(online(kernel, 0)) == ["expsum"]
    assert online(within, 0) == within


def test_rows_that_may_be_empty_keep_their_passes() -> None:
    compiled = fusing.compiled(lambda x: x.softmax(1), [torch.ones(3, 8)], Limits())
    (kernel,) = [lowered.kernel for lowered in compiled.kernels.values()]
    (nest,) = kernel.body
    size = index.symbol("s0", 0)
    body = tuple(replace(s, ranges=(Range(s.ranges[0].var, size),)) if isinstance(s, Reduce | Nest) else s for s in nest.body)
    kernel = replace(kernel, symbols=(Symbol("s0"),), body=(replace(nest, body=body),))
    assert operations(online(kernel, 0)) == ["max", "sum"]


@pytest.mark.parametrize(("name", "count"), [("softmax", 2), ("of other values", 0), ("no exponential", 1)])
def test_gaps_are_to_the_largest_of_the_same_row(name: str, count: int) -> None:
    lowered = fusing.compiled(FUNCTIONS[name][0], [torch.randn(3, 21)], Limits()).kernels.values()
    assert sum(len(gaps(nest.body)) for each in lowered for nest in walk(each.kernel.body) if isinstance(nest, Nest)) == count


def test_gaps_are_told_of_rows_that_hold_other_loops() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(0)
        return (mean - mean.amax(0, keepdim=True)).sum(0, keepdim=True)

    lowered = fusing.compiled(function, [torch.randn(1, 1, dtype=torch.float64)], Limits()).kernels.values()
    for each in lowered:
        for position, nest in enumerate(each.kernel.body):
            assert not gaps(nest.body)
            online(each.kernel, position)
