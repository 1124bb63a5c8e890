"""Loops of which neighbours read the same elements, written out: the same numbers, plain indices."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.patterns import rope
from tests import fusing
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.inplace import InPlace, apart, overwrite
from vendor_sdk.ir.loop import Compute, Load, Nest, Range, Reduce, Store, walk
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_verify import verify
from vendor_sdk.lower import strides
from vendor_sdk.lower.copies import decided

Tensor = torch.Tensor
ALL = replace(fusing.ROOM, copies=4, interleaves=True)
ROWS = replace(fusing.ROOM, copies=4)
SHARED = replace(fusing.ROOM, sharing=4)


def pooled(window: tuple[Any, ...], *, last: bool = False) -> Callable[..., Any]:
    """The gradient of a max pool, of an image that the result follows from too."""

    def function(image: Tensor, g: Tensor) -> Tensor:
        if last:
            image = image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        _, indices = torch.ops.aten.max_pool2d_with_indices(image, *window)
        size, stride, padding, *rest = (*window, [1, 1], False) if len(window) == 3 else (*window, False)
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(g, image, size, stride, padding, *rest, indices)
        return found * image

    return function


def enlarged(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3) + 1


def repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 1) * x.repeat_interleave(2, 1)


def shuffled(x: Tensor) -> Tensor:
    return F.pixel_shuffle(torch.cat([x, x * 2, x + 1, -x], 1), 2)


def summed(x: Tensor) -> tuple[Tensor, ...]:
    big = enlarged(x)
    turned = big * torch.arange(big.shape[-1])
    return turned.sum((0, 2, 3)), turned.amax((0, 2, 3)), (turned > 1).any(1)


def beside(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    big = y.repeat_interleave(2, 2).repeat_interleave(2, 3)[:, :, :7, :9]
    turned = x * big + big
    return turned.sum((0, 2, 3)), turned.amax((0, 2, 3)), turned.mul(0.5).prod(3)


def image(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape).float()


CASES: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "pool 3 2 1": (pooled(([3, 3], [2, 2], [1, 1])), [image(2, 3, 8, 12), image(2, 3, 4, 6)]),
    "pool 2 2": (pooled(([2, 2], [2, 2], [0, 0])), [image(2, 3, 8, 12), image(2, 3, 4, 6)]),
    "pool 2 3, gaps": (pooled(([2, 2], [3, 3], [0, 0])), [image(2, 3, 9, 12), image(2, 3, 3, 4)]),
    "pool 3 2, dilated": (pooled(([3, 3], [2, 2], [1, 1], [2, 2])), [image(2, 3, 8, 12), image(2, 3, 3, 5)]),
    "pool of odd images": (pooled(([3, 3], [2, 2], [1, 1])), [image(2, 3, 7, 12), image(2, 3, 4, 6)]),
    "pool, channels last": (pooled(([3, 3], [2, 2], [1, 1]), last=True), [image(2, 3, 8, 12), image(2, 3, 4, 6)]),
    "enlarged": (enlarged, [image(2, 3, 5, 6)]),
    "repeated": (repeated, [image(4, 6)]),
    "pixel shuffle": (shuffled, [image(2, 3, 4, 4)]),
    "pool 3 3 of odd images": (pooled(([3, 3], [3, 3], [1, 1])), [image(2, 3, 11, 13), image(2, 3, 4, 5)]),
    "pool of few": (pooled(([3, 3], [2, 2], [1, 1])), [image(2, 3, 3, 1), image(2, 3, 2, 1)]),
    "reductions": (summed, [image(2, 3, 5, 6)]),
    "reductions of what is left over": (beside, [image(2, 3, 7, 9), image(2, 3, 4, 5)]),
}


@pytest.mark.parametrize("limits", [ALL, ROWS], ids=["all", "rows"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name: str, limits: Any) -> None:
    function, inputs = CASES[name]
    compiled = fusing.compiled(function, inputs, limits)
    for lowered in compiled.kernels.values():
        verify(lowered.kernel)
    expected = function(*inputs)
    for found, exact in zip(compiled.run(*inputs), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found, exact)


def quotients(function: Callable[..., Any], inputs: list[Tensor], limits: Any) -> int:
    """Indices of memory with quotients or remainders of what is no constant."""
    kernels = [lowered.kernel for lowered in fusing.compiled(function, inputs, limits).kernels.values()]
    accesses = [s for kernel in kernels for s in walk(kernel.body) if isinstance(s, Load | Store)]
    return sum("//" in repr(s.index) or "%" in repr(s.index) for s in accesses)


def test_indices_are_plain() -> None:
    for name in ("pool 3 2 1", "enlarged", "repeated"):
        assert quotients(*CASES[name], fusing.ROOM) > 0, name
        assert quotients(*CASES[name], ALL) == 0, name
    assert quotients(*CASES["reductions"], ALL) == 1, "around a loop"
    assert quotients(*CASES["pool of odd images"], ALL) == 0
    assert quotients(*CASES["repeated"], ROWS) > 0, "lines would be written in bits"


def test_elements_are_read_once_and_what_cannot_be_is_left_out() -> None:
    """Of four neighbours one lies in four windows of three by three, two in two, one in one."""
    function, inputs = CASES["pool 3 2 1"]
    (lowered,) = [
        each
        for each in fusing.compiled(function, inputs, ALL).kernels.values()
        if "max_pool2d_with_indices_backward" in each.kernel.name or len(each.kernel.params) == 4
    ]
    body = lowered.kernel.body
    assert sum(isinstance(s, Load) and s.param == "in1" for s in walk(body)) <= 4
    compared = [s for s in walk(body) if isinstance(s, Compute) and s.op == "eq"]
    assert len(compared) == 9


def test_reductions_that_tell_positions_stay() -> None:
    def function(x: Tensor) -> Tensor:
        return enlarged(x).flatten(1).argmax(1)

    x = image(2, 3, 5, 6)
    compiled = fusing.compiled(function, [x], ALL)
    (found,) = compiled.run(x)
    torch.testing.assert_close(found, function(x))
    assert any(isinstance(s, Reduce) for each in compiled.kernels.values() for s in walk(each.kernel.body))


def test_large_bodies_and_far_neighbours_stay() -> None:
    def far(x: Tensor) -> Tensor:
        return x.repeat_interleave(8, 1) + 1

    assert quotients(far, [image(4, 6)], ALL) > 0
    function, inputs = CASES["repeated"]
    nests = [s for each in fusing.compiled(function, inputs, ALL).kernels.values() for s in each.kernel.body]
    assert [len([s for s in walk((nest,)) if isinstance(s, Store)]) for nest in nests if isinstance(nest, Nest)] == [2]


@pytest.mark.parametrize("name", ["pool 3 2 1", "pool, channels last", "beside an image"])
def test_neighbours_work_in_place_together(name: str) -> None:
    """A kernel writes over the image that it reads where it writes, though a body has four elements of it."""

    def beside_an_image(x: Tensor, y: Tensor) -> Tensor:
        return x * enlarged(y)

    cases = {**CASES, "beside an image": (beside_an_image, [image(2, 3, 8, 12), image(2, 3, 4, 6)])}
    function, inputs = cases[name]
    found = [each for each in fusing.compiled(function, inputs, ALL).kernels.values() if len(each.outputs) == 1]
    lowered = found[-1]
    kernel, out = lowered.kernel, lowered.kernel.params[-1]
    assert sum(isinstance(s, Store) for s in walk(kernel.body)) == 4
    pairs = InPlace(kernel)
    (over,) = [operand for operand in pairs.candidates(out.name) if pairs.allows(operand, out.name)]
    memory = {p.name: torch.rand(int(p.size.value or 0)).mul(9).to(p.dtype) for p in kernel.params}
    changed = overwrite(kernel, {over: out.name})
    inside = {**{name: each.clone() for name, each in memory.items()}, out.name: memory[over].clone()}
    interpret(kernel, [memory[p.name] for p in kernel.params], [])
    interpret(changed, [inside[p.name] for p in changed.params], [])
    torch.testing.assert_close(inside[out.name], memory[out.name])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_neighbours_that_no_other_iteration_writes(data: st.DataObject) -> None:
    """What is said to be written once is."""
    ranges = [Range(f"x{n}", ix.wrap(data.draw(st.integers(1, 5)))) for n in range(data.draw(st.integers(1, 3)))]
    place = ix.wrap(data.draw(st.integers(0, 3)))
    for r in ranges:
        place = place + ix.variable(r.var, r.size) * data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 10, 12, 20, 24, 40]))
    one, other = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    distances = [0, one, other, one + other] if data.draw(st.booleans()) else [0, one]
    places = [place + distance for distance in distances]
    sizes = [range(r.size.value or 0) for r in ranges]
    written = [
        ix.evaluate(each, dict(zip((r.var for r in ranges), values, strict=True)))
        for values in itertools.product(*sizes)
        for each in places
    ]
    if apart(places, ranges):
        assert len(set(written)) == len(written)


@pytest.mark.parametrize(
    ("op", "left", "right", "truth"),
    [
        ("lt", ix.variable("x", 4), ix.wrap(4), True),
        ("lt", ix.variable("x", 4), ix.wrap(3), None),
        ("lt", ix.variable("x", 4) + 3, ix.wrap(3), False),
        ("le", ix.variable("x", 4) + 3, ix.wrap(3), None),
        ("gt", ix.variable("x", 4), ix.wrap(-1), True),
        ("ge", ix.variable("x", 4), ix.variable("x", 4), True),
        ("eq", ix.variable("x", 4), ix.variable("x", 4) + 1, False),
        ("ne", ix.variable("x", 4), ix.wrap(7), True),
        ("eq", ix.variable("x", 4), ix.wrap(2), None),
        ("add", ix.wrap(1), ix.wrap(2), None),
    ],
)
def test_comparisons_that_bounds_decide(op: str, left: ix.Int, right: ix.Int, truth: bool | None) -> None:
    assert decided(op, left, right) is truth


# Outer loops


def rotated(*heads: int) -> list[Tensor]:
    """Heads of eight rows, and the angles that they share."""
    return [torch.randn(*heads, 8, 16), torch.randn(8, 16), torch.randn(8, 16)]


@pytest.fixture
def nothing_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strides, "NEAR", 0)


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize(
    ("heads", "most", "copies"), [((6,), 4, 3), ((8,), 4, 4), ((4,), 2, 2), ((5,), 4, 1), ((2, 5), 4, 2), ((3, 3), 8, 3)]
)
def test_what_heads_share_is_read_once_for_several(heads: tuple[int, ...], most: int, copies: int) -> None:
    inputs = rotated(*heads)
    compiled = fusing.compiled(rope, inputs, replace(fusing.ROOM, sharing=most))
    (lowered,) = compiled.kernels.values()
    verify(lowered.kernel)
    (found,) = compiled.run(*inputs)
    torch.testing.assert_close(found, rope(*inputs))
    (nest,) = lowered.kernel.body
    assert isinstance(nest, Nest)
    read = Counter(s.param for s in nest.body if isinstance(s, Load))
    assert read["in1"] == read["in2"] == 1
    assert read["in0"] == 3 * copies
    kinds = [isinstance(s, Store) for s in nest.body]
    assert sum(kinds) == copies
    assert kinds == sorted(kinds), "nothing is stored before all is read"


def loops_of(function: Callable[..., Any], inputs: list[Tensor]) -> list[int]:
    """How many stores stand in each nest."""
    kernels = [lowered.kernel for lowered in fusing.compiled(function, inputs, SHARED).kernels.values()]
    return [
        sum(isinstance(s, Store) for s in nest.body) for kernel in kernels for nest in kernel.body if isinstance(nest, Nest)
    ]


def test_what_is_near_is_read_again() -> None:
    assert loops_of(rope, rotated(4)) == [1]


@pytest.mark.usefixtures("nothing_is_near")
def test_loops_that_share_nothing_along_memory_stay() -> None:
    rows = [torch.randn(4, 8, 16), torch.randn(4, 8, 1)]
    assert loops_of(lambda x, scale: x * scale, rows) == [1], "one number for each row"
    assert loops_of(lambda x, y: x + y, [torch.randn(4, 8), torch.randn(4, 8)]) == [1], "nothing is shared"
    assert loops_of(lambda x, y: x.t() + y, [torch.randn(8, 4), torch.randn(8)]) == [1], "lanes may lie along the outer loop"
    assert loops_of(lambda x, y: x + y, [torch.randn(4, 8), torch.randn(8)]) == [4]
