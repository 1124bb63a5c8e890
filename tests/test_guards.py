"""Launches between guard zones: right ones pass with the same results, and whoever writes beside a tensor is named."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

import vendor_sdk
from tests import toyloops
from tests.toys import DTYPES, KINDS, ToyChip, use_kind
from vendor_sdk import Backend, DeviceTensor, Emitter, Kernel, KernelError, Launch, LoopKernel, destination, hookimpl
from vendor_sdk.run.zones import FILL, ZONE, enclosed, regions

Tensor = torch.Tensor


def chained(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = torch.tanh(x @ w) * 2
    return y.exp(), (y + x[:, 1:]).t(), y[::2] + 1


def placed(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    both = torch.cat([x * 2, x[:, :3] + 1], 1)
    return both.softmax(1), both.index_put((i,), x.sum(1)[:, None], accumulate=True), x[i].cumsum(0)


def compiled(function: Callable[..., Any], inputs: Sequence[Tensor], backend: str, **options: Any) -> Any:
    graph = vendor_sdk.trace(function, inputs)
    return vendor_sdk.compile_graph(graph, backend=backend, options={"fallback": "host", **options})


@pytest.mark.parametrize("function", [chained, placed])
@pytest.mark.parametrize("kind", KINDS)
def test_right_kernels_pass_with_the_same_results(kind: str, function: Callable[..., Any]) -> None:
    name = use_kind(kind)
    inputs = [torch.randn(5, 7), torch.randn(7, 6) if function is chained else torch.tensor([1, 2, 0, 0, 4])]
    program = compiled(function, inputs, name)
    before = [each.clone() for each in inputs]
    plain = program(*inputs)
    guarded, breaches = program.guarded(*inputs)
    assert breaches == []
    assert all(torch.equal(one, other) for one, other in zip(plain, guarded, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True))


def test_random_numbers_are_the_same() -> None:
    name = use_kind("toyloops")
    program = compiled(lambda x: torch.rand_like(x) * x, [torch.ones(9)], name)
    torch.manual_seed(3)
    (plain,) = program(torch.ones(9))
    torch.manual_seed(3)
    ((guarded,), _) = program.guarded(torch.ones(9))
    assert torch.equal(plain, guarded)


class Straying(toyloops.LoopEmitter):
    """Each launch also writes beside its last buffer.

    Args:
        at: byte from the buffer's begin; from its end where ``behind``.
    """

    def __init__(self, at: int, behind: bool) -> None:
        super().__init__()
        self.at, self.behind = at, behind

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        def straying(launch: Launch) -> Launch:
            def call(buffers: Sequence[Tensor], numbers: Sequence[int | float]) -> None:
                launch(buffers, numbers)
                ctypes.memset(buffers[-1].data_ptr() + self.at + self.behind * buffers[-1].nbytes, 0, 4)

            return call

        return [straying(launch) for launch in super().compile(kernels)]

    def link(self, program: Any) -> None:
        return None


class Strays:
    """A backend of that emitter."""

    def __init__(self, at: int, behind: bool) -> None:
        self.made = Straying(at, behind)

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name="strays", version="1", dtypes=DTYPES)

    @hookimpl
    def emitter(self) -> Emitter:
        return self.made


@pytest.fixture
def strays() -> Iterator[Callable[[int, bool], None]]:
    yield lambda at, behind: vendor_sdk.register(Strays(at, behind))
    vendor_sdk.unregister("strays")


@pytest.mark.parametrize(
    ("at", "behind", "side", "distance"), [(0, True, "behind", 0), (12, True, "behind", 12), (-4, False, "before", 0)]
)
def test_an_emitted_kernel_that_writes_beside_a_result_is_named(
    at: int, behind: bool, side: str, distance: int, strays: Callable[[int, bool], None]
) -> None:
    strays(at, behind)
    program = compiled(lambda x: (x.exp().sum(0).tanh(),), [torch.randn(3, 5)], "strays")
    _, breaches = program.guarded(torch.randn(3, 5))
    assert breaches
    assert {(each.side, each.nbytes, each.distance) for each in breaches} == {(side, 4, distance)}
    assert [each.tensor for each in breaches][-1] == "result 0, float32[5]"
    assert "exp" in breaches[0].prims


def test_under_debugging_it_is_an_error_with_the_line(
    strays: Callable[[int, bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG_GUARD", "1")
    strays(0, True)
    torch.compiler.reset()
    run = torch.compile(lambda x: x.exp() + 1, backend="strays")
    said = r"strays: kernel .* wrote 4 bytes behind the memory of result 0, float32\[9\]"
    with pytest.raises(KernelError, match=said) as caught:
        run(torch.randn(9))
    assert "test_guards.py" in str(caught.value)


def test_the_debug_variable_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG_GUARD", "yes")
    use_kind("toy")
    with pytest.raises(vendor_sdk.OptionError, match="VENDOR_SDK_DEBUG_GUARD is 'yes'"):
        compiled(lambda x: (x + 1,), [torch.randn(3)], "toy")


class StrayingChip(ToyChip):
    """Its exponentials go on behind the result, where its buffer does."""

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name="strayingchip", version="1", dtypes=frozenset({torch.float32}))

    @hookimpl
    def kernels(self) -> Mapping[str, Kernel]:
        def exp(out: DeviceTensor, x: DeviceTensor) -> None:
            self.memory.array(out).copy_(self.memory.array(x).exp())
            buffer, end = self.memory.buffers[out.buffer], out.byte_offset + out.nbytes
            buffer[end : end + 8] = bytes(len(buffer[end : end + 8]))

        return {"exp": destination(exp)}


def test_a_kernel_of_a_chip_with_memory_of_its_own_is_named() -> None:
    vendor_sdk.register(StrayingChip())
    try:
        program = compiled(lambda x: (x.exp(),), [torch.randn(3, 5)], "strayingchip")
        (result,), breaches = program.guarded(torch.ones(3, 5))
    finally:
        vendor_sdk.unregister("strayingchip")
    torch.testing.assert_close(result, torch.ones(3, 5).exp())
    assert [str(each) for each in breaches] == ["wrote 8 bytes behind the memory of result 0, float32[3, 5]"]


def test_regions_join_tensors_that_overlap() -> None:
    whole = torch.arange(24.0)
    rows = whole.view(4, 6)
    tensors = [rows[:2], rows[3], rows[1:3, ::2], torch.empty(0), whole[5:5]]
    found = sorted((region.begin, region.end, len(region.tensors)) for region in regions(tensors))
    assert found == [(0, 4 * 17, 2), (4 * 18, 4 * 24, 1)]


def test_a_copy_lies_as_its_original() -> None:
    whole = torch.arange(40, dtype=torch.int16)
    part = whole[3:33:3]
    (region,) = regions([part])
    zones = enclosed(region, None)
    copy = zones.holds(part)
    assert isinstance(copy, Tensor)
    assert torch.equal(copy, part)
    assert copy.stride() == part.stride()
    assert (copy.data_ptr() - part.data_ptr()) % ZONE == 0
    assert ctypes.c_uint8.from_address(copy.data_ptr() - 1).value == FILL
    copy[2] = 7
    assert [*zones.close()] == []
    assert part[2] == 7
