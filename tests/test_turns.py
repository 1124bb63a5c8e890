"""Integers that say where others are read: index expressions, in the kernel that reads; and loops cut where these turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fusing
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Index, Load, LoopKernel, Nest, Store, walk

Tensor = torch.Tensor
ALL = replace(fusing.ROOM, affine=4)


def folded(x: Tensor) -> Tensor:
    """Reads back and forth."""
    places = torch.arange(40) - 13
    return x[:, (places.abs() - 9).abs()]


def behind(x: Tensor) -> Tensor:
    """Each element beside the one before, the first one beside the last."""
    return x - x[:, (torch.arange(x.shape[1]) + (x.shape[1] - 1)) % x.shape[1]]


def kept_inside(x: Tensor) -> Tensor:
    return x[:, (torch.arange(48) - 7).clamp(0, x.shape[1] - 1)]


def columns_of_windows(x: Tensor) -> Tensor:
    return F.unfold(x[None, None], 3, padding=1)[0]


CASES: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "reflected": (lambda x: F.pad(x, (5, 7), mode="reflect"), torch.randn(6, 40)),
    "reflected on both sides": (lambda x: F.pad(x[None], (3, 2, 4, 1), mode="reflect")[0], torch.randn(6, 40)),
    "repeated": (lambda x: F.pad(x[None], (3, 2, 4, 1), mode="replicate")[0], torch.randn(6, 40)),
    "rolled": (lambda x: x.roll((2, -9), (0, 1)), torch.randn(6, 40)),
    "folded": (folded, torch.randn(6, 40)),
    "behind": (behind, torch.randn(6, 40)),
    "kept inside": (kept_inside, torch.randn(6, 40)),
    "columns of windows": (columns_of_windows, torch.randn(12, 20)),
}


def bent(kernel: LoopKernel) -> int:
    """Accesses in innermost loops that are no affine functions of the last of these."""
    loops = [s for s in walk(kernel.body) if isinstance(s, Nest) and s.ranges and not any(isinstance(t, Nest) for t in s.body)]
    return sum(
        ix.stride(s.index, loop.ranges[-1].var) is None for loop in loops for s in loop.body if isinstance(s, Load | Store)
    )


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_that_reads_along_memory(name: str) -> None:
    function, x = CASES[name]
    compiled = fusing.compiled(function, [x], ALL)
    (lowered,) = compiled.kernels.values()
    assert [p.dtype for p in lowered.kernel.params] == [torch.float32] * 2
    assert bent(lowered.kernel) == 0
    (found,) = compiled.run(x)
    assert torch.equal(found, function(x))


@pytest.mark.parametrize("name", CASES)
def test_loops_stay_whole_where_that_is_not_asked_for(name: str) -> None:
    function, x = CASES[name]
    compiled = fusing.compiled(function, [x])
    (lowered,) = compiled.kernels.values()
    assert sum(isinstance(s, Nest) for s in walk(lowered.kernel.body)) == 1
    (found,) = compiled.run(x)
    assert torch.equal(found, function(x))


def test_not_where_there_are_too_many_pieces() -> None:
    def function(x: Tensor) -> Tensor:
        return x[:, torch.arange(40) % 5]

    x = torch.randn(3, 9)
    compiled = fusing.compiled(function, [x], replace(ALL, affine=8))
    (lowered,) = compiled.kernels.values()
    assert bent(lowered.kernel) == 1
    assert torch.equal(compiled.run(x)[0], function(x))


@pytest.mark.parametrize("backend", ["cpp_cpu"])
def test_a_place_that_is_outside_is_still_reported(backend: str) -> None:
    """Nothing is known of it but by looking: it stays an op that reports."""
    x = torch.randn(9)
    compiled = torch.compile(lambda x: x[torch.arange(9) * 2], backend=backend)
    with pytest.raises(IndexError):
        compiled(x)


@pytest.mark.parametrize("backend", ["cpp_cpu"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "folded"])
def test_of_all_sizes(name: str, dynamic: bool, backend: str) -> None:
    function, _ = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for shape in ((6, 40), (5, 41), (9, 33), (30, 300)):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = compiled(x), function(x)
        assert torch.equal(found, wanted)
        given = torch.randn(wanted.shape)
        (one,), (other,) = (torch.autograd.grad(y, x, given) for y in (found, wanted))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


EXPRESSIONS = st.recursive(
    st.tuples(st.just("v"), st.integers(0, 2)) | st.tuples(st.just("c"), st.integers(-20, 70)),
    lambda parts: (
        st.tuples(st.sampled_from("+-"), parts, parts)
        | st.tuples(st.sampled_from(("*", "/", "%")), parts, st.sampled_from((2, 3, 4, 6, 8, 20, 60)))
        | st.tuples(st.sampled_from(("<", ">")), parts, parts)
        | st.tuples(st.just("a"), parts)
    ),
    max_leaves=7,
)


def evaluated(tree: tuple, values: list[ix.Int] | list[int]) -> ix.Int | int:  # type: ignore[type-arg]
    """A tree on index expressions, or on numbers."""
    op, first, *rest = tree
    if op == "c":
        return first if isinstance(values[0], int) else ix.wrap(first)
    if op == "v":
        return values[first]
    left = evaluated(first, values)
    if op == "a":
        return abs(left) if isinstance(left, int) else ix.maximum(left, -left)
    if op in "*/%":
        return left * rest[0] if op == "*" else left // rest[0] if op == "/" else left % rest[0]
    right = evaluated(rest[0], values)
    if op in "+-":
        return left + right if op == "+" else left - right
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right) if op == "<" else max(left, right)
    return ix.minimum(left, right) if op == "<" else ix.maximum(left, right)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.lists(st.integers(1, 70), min_size=3, max_size=3), st.data())
def test_expressions_mean_what_they_say(tree: tuple, sizes: list[int], data: st.DataObject) -> None:  # type: ignore[type-arg]
    """Whatever is simplified: the value at any place, and within the bounds that are known."""
    found = ix.wrap(evaluated(tree, [ix.variable(f"v{n}", size) for n, size in enumerate(sizes)]))
    low, high = ix.bounds(found)
    for _ in range(5):
        values = [data.draw(st.integers(0, size - 1)) for size in sizes]
        wanted = evaluated(tree, values)
        assert isinstance(wanted, int)
        assert ix.substitute(found, {f"v{n}": value for n, value in enumerate(values)}).value == wanted
        assert low is None or low <= wanted
        assert high is None or wanted <= high


def test_digits_are_told_apart_and_joined() -> None:
    q, m, r = ix.variable("q", 48), ix.variable("m", 16), ix.variable("r", 4096)
    assert (16 * q + m) // 256 == q // 16
    assert (16 * q + m) % 256 == 16 * (q % 16) + m
    assert (20 * q + m + 43) // 60 == (q + 2) // 3
    assert r % 32 + 32 * ((r // 32) % 32) == r % 1024
    assert r % 32 + 32 * ((r // 32) % 32) + 1024 * (r // 1024) == r


def test_values_stay_the_ops_that_they_are() -> None:
    """Distances that are numbers, not places: an index with extremes in it would be one lane after the other."""

    def function(x: Tensor) -> Tensor:
        line = torch.arange(40)
        return x - (3 - (line[:, None] - line).abs()) * 2

    x = torch.randn(40, 40)
    compiled = fusing.compiled(function, [x], ALL)
    (lowered,) = compiled.kernels.values()
    ops = [s.op for s in walk(lowered.kernel.body) if isinstance(s, Compute)]
    assert ops.count("abs") == 1
    assert all(ix.stride(s.index, "x1") is not None for s in walk(lowered.kernel.body) if isinstance(s, Index))
    assert torch.equal(compiled.run(x)[0], function(x))
