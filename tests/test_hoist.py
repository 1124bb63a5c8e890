"""Sizes that follow from sizes by division, as symbols that the host computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lowered import call
from vendor_sdk import hoist
from vendor_sdk.ir import index as ix
from vendor_sdk.ir import ranges
from vendor_sdk.ir.index import Div, Extreme, Int, Mod
from vendor_sdk.ir.loop import Accumulator, Index, Load, LoopKernel, Nest, Param, Range, Reduce, Store, Symbol, walk
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_verify import verify

aten = torch.ops.aten
S, T = ix.symbol("s0", 0), ix.symbol("s1", 0)


def halves() -> LoopKernel:
    """Rows whose halves change places; the value of an element says in which of seven groups of rows' lengths it is."""
    half = (S + 1) // 2
    row, first = ix.variable("i0", T), ix.variable("i1", S - half)
    second = ix.variable("i2", half)
    left = (
        Load("v0", "in0", row * S + half + first, torch.float32),
        Store("out0", row * S + first, "v0"),
    )
    right = (
        Load("v1", "in0", row * S + second, torch.float32),
        Index("v2", second + S // 7),
        Store("out0", row * S + (S - half) + second, "v1"),
        Store("out1", row * S + (S - half) + second, "v2"),
    )
    body = (Nest((Range("i1", S - half),), left), Nest((Range("i2", half),), right))
    params = (
        Param("in0", torch.float32, S * T, "in"),
        Param("out0", torch.float32, S * T, "out"),
        Param("out1", torch.int64, S * T, "out"),
    )
    return LoopKernel("halves", params, (Symbol("s0"), Symbol("s1")), (Nest((Range("i0", T),), body),))


def in_parts() -> LoopKernel:
    """Sums of as many parts as sizes say, which are scratch."""
    parts = ix.maximum(ix.minimum(S // 4, 3), 1)
    size = (S + (parts - 1)) // parts
    part, turn = ix.variable("i0", parts), ix.variable("i1", ix.minimum(size, S - ix.variable("i0", parts) * size))
    total = Reduce(
        (Range("i1", ix.minimum(size, S - part * size)),),
        (Load("v0", "in0", part * size + turn, torch.float32),),
        (Accumulator(("a0",), "sum", ("v0",), torch.float32),),
    )
    again = Reduce(
        (Range("i2", parts),),
        (Load("v1", "part0", ix.variable("i2", parts), torch.float32),),
        (Accumulator(("a1",), "sum", ("v1",), torch.float32),),
    )
    nests = (
        Nest((Range("i0", parts),), (total, Store("part0", part, "a0"))),
        Nest((), (again, Store("out0", ix.ZERO, "a1"))),
    )
    params = Param("in0", torch.float32, S, "in"), Param("out0", torch.float32, ix.ONE, "out")
    return LoopKernel("in_parts", params, (Symbol("s0"),), nests, (Param("part0", torch.float32, parts, "scratch"),))


def ran(kernel: LoopKernel, values: dict[str, int], x: torch.Tensor) -> list[torch.Tensor]:
    """What a kernel leaves in its buffers, all of which begin as the same numbers."""
    buffers = []
    for p in kernel.params:
        count = int(ix.evaluate(p.size, values))
        buffers.append(x[:count].clone() if p.role == "in" else torch.full((count,), 7, dtype=p.dtype))
    interpret(kernel, buffers, [values[s.name] for s in kernel.symbols])
    return buffers


@pytest.mark.parametrize("sizes", [(8, 3), (7, 2), (1, 4), (13, 1), (16, 0)])
@pytest.mark.parametrize("build", [halves, in_parts])
def test_what_is_hoisted_computes_the_same(build: Callable[[], LoopKernel], sizes: tuple[int, int]) -> None:
    kernel = build()
    hoisted = hoist.hoist(kernel)
    verify(hoisted.kernel)
    values = dict(zip(("s0", "s1"), sizes, strict=True))
    more = {name: int(ix.evaluate(size, values)) for name, size in hoisted.sizes.items()}
    assert [s.name for s in hoisted.kernel.symbols] == [*(s.name for s in kernel.symbols), *more]
    x = torch.randn(200)
    for own, other in zip(ran(hoisted.kernel, {**values, **more}, x), ran(kernel, values, x), strict=True):
        torch.testing.assert_close(own, other)


def test_places_and_loops_divide_no_sizes() -> None:
    def divided(expression: Int) -> bool:
        found: list[bool] = []

        def note(atom: ix.Atom) -> None:
            if isinstance(atom, Div | Mod | Extreme):
                found.append(ix.symbols(ix.wrap_atom(atom)).keys() <= sizes)

        ix.rebuild(expression, note)
        return any(found)

    hoisted = hoist.hoist(halves())
    sizes = {s.name for s in hoisted.kernel.symbols}
    assert {name: str(size) for name, size in hoisted.sizes.items()} == {"d0": str((S + 1) // 2)}
    body = tuple(s for s in walk(hoisted.kernel.body) if not isinstance(s, Index))
    assert not any(map(divided, ranges.expressions([s for s in body if isinstance(s, Load | Store)])))
    # Other numbers may not fit into the dtype of indices.
    (value,) = (s for s in walk(hoisted.kernel.body) if isinstance(s, Index))
    assert value.index == ix.variable("i2", ix.symbol("d0", 0)) + S // 7


def test_what_may_divide_by_zero_stays_where_it_is_not_run() -> None:
    """A loop of no iterations never asks for it; the host would."""

    def reading(place: Int) -> LoopKernel:
        row = ix.variable("i0", T)
        body = Load("v0", "in0", row + place, torch.float32), Store("out0", row, "v0")
        params = Param("in0", torch.float32, S * 9, "in"), Param("out0", torch.float32, T, "out")
        return LoopKernel("reading", params, (Symbol("s0"), Symbol("s1")), (Nest((Range("i0", T),), body),))

    for unsafe in (S * 3 // T, S * 3 % T, ix.minimum(S // T, 3), S * 3 // (T // 2 + S)):
        kernel = reading(unsafe)
        assert not any(ix.symbols(size).keys() >= {"s0", "s1"} for size in hoist.hoist(kernel).sizes.values())
        verify(hoist.hoist(kernel).kernel)
    for safe in (S * 3 // (T + 1), S * 3 // ix.maximum(T, 1), ix.minimum(S // 2, T)):
        assert [*hoist.hoist(reading(safe)).sizes.values()] == [safe]


def test_names_are_new_and_one_for_each() -> None:
    kernel = call(aten.cat.default, [[torch.randn(4, 6), torch.randn(4, 6)], 1], dynamic=True).lowered.kernel
    assert hoist.hoist(kernel).sizes == {}
    taken = halves()
    params = (*taken.params[:2], Param("d0", torch.int64, S * T, "out"))
    named = hoist.hoist(LoopKernel("k", params, taken.symbols, taken.body))
    assert list(named.sizes) == ["d1"]
    assert named.named((S + 1) // 2 * T) == ix.symbol("d1", 0) * T
