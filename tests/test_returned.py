"""Memory that kernels return: fused kernels write over it when it dies, nobody else's is touched, and little else is held."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import vendor_sdk
from tests.test_plan import check, plan_of
from tests.toyloops import LoopEmitter
from vendor_sdk import ALL, Backend, Emitter, Kernel, TorchDevice, hookimpl
from vendor_sdk.contract.program import Entry, Program
from vendor_sdk.ir.memory import Home
from vendor_sdk.plan.apart import set_apart
from vendor_sdk.plan.offsets import lay_out


class Apart(LoopEmitter):
    """Launches from Python, one by one."""

    def link(self, program: Program) -> Entry | None:
        return None


class Returning:
    """Products and sorts return their results; ``fresh``: in memory that nobody else has."""

    name = "returning"

    def __init__(self, fresh: bool = True, linked: bool = True, keep: bool = False) -> None:
        self.fresh, self.linked, self.keep = fresh, linked, keep
        self.given: list[tuple[Tensor, Tensor]] = []
        self.alive: list[int] = []
        self.made: list[weakref.ref[Tensor]] = []

    def mm(self, x: Tensor, y: Tensor) -> Tensor:
        result = torch.mm(x, y)
        if self.keep:
            self.given.append((result, result.clone()))
        return result

    def sort(self, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        self.alive.append(sum(made() is not None for made in self.made))
        values, indices = torch.sort(x, **options)
        self.made.append(weakref.ref(values.untyped_storage()))  # type: ignore[arg-type]
        return values, indices

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name=self.name, version="0", dtypes=frozenset(ALL))

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")

    @hookimpl
    def kernels(self) -> dict[str, Any]:
        return {"mm": Kernel(self.mm, fresh=self.fresh), "sort": Kernel(self.sort, fresh=self.fresh)}

    @hookimpl
    def emitter(self) -> Emitter:
        return LoopEmitter() if self.linked else Apart()


Register = Callable[..., str]


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight) * 2
    return x.sum(0)


@pytest.mark.parametrize("linked", [True, False])
def test_fused_kernels_write_over_results_that_die(linked: bool, register: Register) -> None:
    backend = register(Returning(linked=linked))
    x, weights = torch.randn(6, 8), [torch.randn(8, 8) / 3 for _ in range(3)]
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(layers, [x, *weights]), backend=backend)
    assert compiled.plan.text().count("in place: = ") == 2, "the last is summed up"
    for _ in range(2):
        x = torch.randn(6, 8)
        given = x.clone()
        torch.testing.assert_close(compiled(x, *weights), [layers(x, *weights)])
        assert torch.equal(x, given)


@pytest.mark.parametrize("linked", [True, False])
def test_sizes_may_be_symbols_there(linked: bool, register: Register) -> None:
    compiled = torch.compile(layers, backend=register(Returning(linked=linked)), dynamic=True)
    weights = [torch.randn(8, 8) / 3 for _ in range(3)]
    for rows in (6, 9, 6):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x, *weights), layers(x, *weights))


@pytest.mark.parametrize("linked", [True, False])
def test_memory_that_a_kernel_may_keep_is_left_alone(linked: bool, register: Register) -> None:
    chip = Returning(fresh=False, linked=linked, keep=True)
    backend = register(chip)
    x, weights = torch.randn(6, 8), [torch.randn(8, 8) / 3 for _ in range(3)]
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(layers, [x, *weights]), backend=backend)
    torch.testing.assert_close(compiled(x, *weights), [layers(x, *weights)])
    assert all(torch.equal(result, made) for result, made in chip.given)


def test_results_that_others_still_read_or_that_are_returned_are_left_alone(register: Register) -> None:
    def several(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        first = x @ weight
        second = torch.tanh(first)
        third = second @ weight
        return third, torch.exp(third), first.t() @ second, (second @ weight).t()

    backend = register(Returning())
    x, weight = torch.randn(8, 8), torch.randn(8, 8) / 3
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(several, [x, weight]), backend=backend)
    for _ in range(2):
        x = torch.randn(8, 8)
        torch.testing.assert_close(compiled(x, weight), list(several(x, weight)))


@pytest.mark.parametrize("linked", [True, False])
def test_several_results_live_and_die_apart(linked: bool, register: Register) -> None:
    chip = Returning(linked=linked)

    def sorts(x: Tensor) -> tuple[Tensor, ...]:
        places = []
        for _ in range(4):
            x, place = torch.sort(torch.tanh(x) * 2, dim=1)
            places.append(place)
        return x, *places

    backend = register(chip)
    x = torch.randn(5, 7)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(sorts, [x]), backend=backend)
    assert compiled.plan.text().count("in place: = ") == 3
    for _ in range(2):
        chip.made.clear()
        chip.alive.clear()
        x = torch.randn(5, 7)
        found = compiled(x)
        for got, wanted in zip(found, sorts(x), strict=True):
            torch.testing.assert_close(got, wanted)
        assert max(chip.alive) == 1, "the values of one sort die with the next one, though its places are returned"


def test_large_buffers_are_apart_where_libraries_results_decide_the_peak() -> None:
    big, small = 1 << 20, 1 << 10
    buffers = [
        (big, 0, 1, Home.ARENA),
        (small, 1, 4, Home.ARENA),
        (3 * big, 3, 4, Home.ELSEWHERE),
        (big, 5, 6, Home.ARENA),
    ]
    plan = plan_of(buffers, 8)
    layout = set_apart(plan, plan.sizes({}), lambda: lay_out(plan, plan.sizes({})))
    assert [b.home for b in plan.buffers] == [Home.APART, Home.ARENA, Home.ELSEWHERE, Home.APART]
    assert layout.peak == layout.bound == 3 * big + small
    check(plan, layout)
    alone = plan_of([b for b in buffers if b[3] is Home.ARENA], 8)
    set_apart(alone, alone.sizes({}), lambda: lay_out(alone, alone.sizes({})))
    assert all(b.home is Home.ARENA for b in alone.buffers)


@pytest.mark.parametrize("linked", [True, False])
def test_a_result_is_alone_where_what_it_would_share_can_lie_in_an_output(linked: bool, register: Register) -> None:
    """The last kernel before a large product would write over what lies in no output, since the product reads it."""

    class Filling(Returning):
        name = "filling"

        @hookimpl
        def kernels(self) -> dict[str, Any]:
            def addmm(out: Tensor, bias: Tensor, x: Tensor, y: Tensor, **options: Any) -> None:
                torch.addmm(bias, x, y, out=out, **options)

            return {"mm": Kernel(self.mm, fresh=True), "addmm": Kernel(addmm, destination=True)}

    def logits(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, head: Tensor, more: Tensor) -> Tensor:
        x = torch.tanh(x) @ first
        x = torch.addmm(bias, x, second)
        return torch.addmm(more, torch.relu(x) * 2, head)

    shapes = ((64, 32), (32, 32), (32,), (32, 32), (32, 4096), (4096,))
    inputs = [torch.randn(shape) for shape in shapes]
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(logits, inputs), backend=register(Filling(linked=linked)))
    one, large = 64 * 32 * 4, 64 * 4096 * 4
    fixed = compiled.plan.fixed
    assert fixed is not None
    assert fixed.peak == fixed.bound == large + one
    check(compiled.plan, fixed)
    for _ in range(2):
        inputs = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(compiled(*inputs), [logits(*inputs)])
