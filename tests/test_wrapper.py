"""The generated wrapper: native segments, frames, warm outputs, threads and re-entrance, errors from inside a segment."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import vendor_sdk
from tests.toyloops import LoopEmitter
from tests.toys import register_toys
from vendor_sdk import ALL, COMPOSITES, Backend, Kernel, PrimGraph, TorchDevice, hookimpl
from vendor_sdk.contract.program import Program
from vendor_sdk.pipeline import recording
from vendor_sdk.run import arena
from vendor_sdk.run.blocks import BLOCKS, LARGE, warm_allocator, warm_empty

Function = Callable[..., Any]


register_toys()


@dataclass(frozen=True)
class Kind:
    """A backend, and whether its launches are native segments."""

    name: str = "toyloops"
    linked: bool = True

    def build(self, function: Function, *inputs: Any) -> Any:
        graph: PrimGraph = vendor_sdk.trace(function, inputs)
        return vendor_sdk.compile_graph(graph, backend=self.name)


build = Kind().build


def outputs(function: Function, *inputs: Any) -> list[Any]:
    value = function(*inputs)
    return list(value) if isinstance(value, tuple | list) else [value]


def mixed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Emitted kernels on both sides of kernels that are called from Python, with views between them."""
    h = torch.tanh(x @ w + 1)
    values = h.t().sort(0).values
    return (values * 2).softmax(-1), (h.exp() @ w.t()).sum(0), values


def poison(compiled: Any) -> None:
    """NaN in every idle byte of a graph's arenas."""
    for frame in compiled.frames.idle or []:
        frame.memory.fill_(0xFF)
    for pool in arena._pools.values():
        for memory in pool._idle:
            memory.fill_(0xFF)


@pytest.fixture(params=["toyloops", "python", "cpp_cpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """With native segments, with every launch from Python, and with segments of compiled code."""
    if request.param == "python":
        monkeypatch.setattr(LoopEmitter, "link", lambda self, program: None)
        return Kind(linked=False)
    return Kind(request.param)


in_segments = pytest.mark.parametrize("kind", ["toyloops", "cpp_cpu"], indirect=True)


@in_segments
def test_one_native_call_a_graph(kind: Kind) -> None:
    x = torch.randn(16)
    compiled = kind.build(lambda v: v * 2 + 1, x)
    assert compiled.native_calls == 1
    torch.testing.assert_close(compiled(x), [x * 2 + 1])
    body = [line.strip() for line in compiled.source.splitlines()]
    assert len([line for line in body if "E0(" in line]) == 1
    assert not any("RT." in line for line in body), "nothing else is called"


def test_values_and_poisoned_memory(kind: Kind) -> None:
    x, w = torch.randn(12, 8), torch.randn(8, 8)
    compiled = kind.build(mixed, x, w)
    assert (compiled.native_calls > 0) == kind.linked
    expected = outputs(mixed, x, w)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, w), expected, rtol=1e-5, atol=1e-5)
        poison(compiled)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 5), (5, 0), (1, 7, 1), (3, 65)])
def test_shapes(shape: tuple[int, ...], kind: Kind) -> None:
    x = torch.randn(shape)
    compiled = kind.build(lambda v: ((v + 1).exp(), (v * 3).sum()), x)
    torch.testing.assert_close(compiled(x), [(x + 1).exp(), (x * 3).sum()])


@in_segments
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool]
)
def test_results_of_every_dtype(dtype: torch.dtype, kind: Kind) -> None:
    x = torch.randint(0, 2, (3, 4))
    compiled = kind.build(lambda v: (v + 1).to(dtype), x)
    torch.testing.assert_close(compiled(x), [(x + 1).to(dtype)])


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: x[:1].expand(6, 4),
        lambda x: torch.nn.Parameter(x.clone()),
        lambda x: x.flip(0),
    ],
)
def test_inputs_with_other_strides(other: Callable[[torch.Tensor], torch.Tensor], kind: Kind) -> None:
    x = torch.randn(6, 4)
    compiled = kind.build(lambda v: (v * 2 + 1).sum(0), x)
    with torch.no_grad():
        y = other(x)
        torch.testing.assert_close(compiled(y), [(y * 2 + 1).sum(0)])


@in_segments
def test_what_is_no_tensor_is_refused(kind: Kind) -> None:
    compiled = kind.build(lambda v: v * 2, torch.randn(4))
    with pytest.raises((RuntimeError, AttributeError, vendor_sdk.KernelError)):
        compiled([1.0, 2.0])


def test_an_error_inside_a_segment_names_its_prim(kind: Kind) -> None:
    x, y = torch.arange(6), torch.tensor([1, 2, 0, 3, 1, 1])
    compiled = kind.build(lambda a, b: ((a + 1).sort().values * 2, torch.div(a, b, rounding_mode="floor") + 1), x, y)
    with pytest.raises(vendor_sdk.KernelError, match=r"ZeroDivisionError") as caught:
        compiled(x, y)
    assert "prim" in str(caught.value)
    torch.testing.assert_close(compiled(x, y.clamp(min=1))[1], x // y.clamp(min=1) + 1)


def test_an_index_out_of_range_keeps_its_type_in_a_segment(kind: Kind) -> None:
    table, index = torch.randn(5, 3), torch.tensor([1, 7])
    compiled = kind.build(lambda t, i: t[i] * 2, table, torch.tensor([0, 1]))
    with pytest.raises(IndexError, match="out of range") as caught:
        compiled(table, index)
    assert any("kernel 'index_mul', which fuses index and mul" in note for note in caught.value.__notes__)


def test_outputs_are_new_at_every_call(kind: Kind) -> None:
    x, w = torch.randn(12, 8), torch.randn(8, 8)
    compiled = kind.build(mixed, x, w)
    first = compiled(x, w)
    copies = [t.clone() for t in first]
    compiled(-x, w)
    torch.testing.assert_close(first, copies)


def test_threads(kind: Kind) -> None:
    x, w = torch.randn(40, 64), torch.randn(64, 64)
    compiled = kind.build(mixed, x, w)
    inputs = [torch.randn(40, 64) for _ in range(4)]
    expected = [compiled(v, w) for v in inputs]
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(40):  # To the bit: no result depends on what else runs.
                torch.testing.assert_close(compiled(inputs[number], w), expected[number], rtol=0, atol=0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_graph_may_call_itself(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(12, 8), torch.randn(8, 8)
    compiled = kind.build(mixed, x, w)
    expected, inside = outputs(mixed, x, w), outputs(mixed, x + 1, w)
    (name,) = [key for key, value in compiled.wrapper.namespace.items() if getattr(value, "__name__", "") == "_sort"]
    kernel = compiled.wrapper.namespace[name]
    depth: list[int] = []

    def sort(*args: Any, **kwargs: Any) -> Any:
        if not depth:
            depth.append(1)
            torch.testing.assert_close(compiled(x + 1, w), inside, rtol=1e-5, atol=1e-5)
        return kernel(*args, **kwargs)

    compiled.wrapper.namespace[name] = sort
    torch.testing.assert_close(compiled(x, w), expected, rtol=1e-5, atol=1e-5)
    assert depth


def test_an_exception_costs_no_frame_of_later_calls(kind: Kind) -> None:
    x, w = torch.randn(12, 8), torch.randn(8, 8)
    compiled = kind.build(mixed, x, w)
    namespace = compiled.wrapper.namespace
    (name,) = [key for key, value in namespace.items() if getattr(value, "__name__", "") == "_sort"]
    kernel, namespace[name] = namespace[name], None
    with pytest.raises(vendor_sdk.KernelError, match="sort"):
        compiled(x, w)
    namespace[name] = kernel
    torch.testing.assert_close(compiled(x, w), outputs(mixed, x, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", [[(5, 8), (9, 8), (5, 8), (70, 8), (2, 8)]])
def test_dynamic_sizes_plan_at_run_time(shapes: Sequence[tuple[int, int]], kind: Kind) -> None:
    torch._dynamo.reset()
    w = torch.randn(8, 8)
    compiled = torch.compile(mixed, backend=kind.name, dynamic=True)
    graphs: list[Any] = []
    with recording(graphs.append):
        for shape in shapes:
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x, w), mixed(x, w), rtol=1e-5, atol=1e-5)
            for graph in graphs:
                poison(graph)
    assert len(graphs) == 1
    (graph,) = graphs
    symbols = graph.plan.symbols
    assert symbols
    assert graph.plan.fixed is None
    small, large = (graph.layout(**dict.fromkeys(symbols, size)) for size in (4, 40))
    assert small.peak < large.peak


# Memory that stays warm


def test_large_outputs_come_from_warm_memory_and_return_to_it(kind: Kind) -> None:
    vendor_sdk.release_memory()
    x = torch.randn(LARGE // 4)
    compiled = kind.build(lambda v: v * 2 + 1, x)
    (first,) = compiled(x)
    address = first.data_ptr()
    view = first[10:].view(-1)
    del first
    assert vendor_sdk.release_memory() == 0, "a view keeps it"
    torch.testing.assert_close(view, (x * 2 + 1)[10:])
    del view
    assert compiled(x)[0].data_ptr() == address
    assert vendor_sdk.release_memory() >= x.nbytes
    assert vendor_sdk.release_memory() == 0


@in_segments
def test_large_outputs_of_a_linked_program_are_like_any_other(kind: Kind) -> None:
    x = torch.randn(512, 1000)
    compiled = kind.build(lambda v: v * 2 + 1, x)
    (y,) = compiled(x)
    assert (y.shape, y.stride(), y.dtype, y.is_leaf, y._is_view()) == ((512, 1000), (1000, 1), torch.float32, True, False)
    y.requires_grad_()
    torch.autograd.backward((y * y).sum())
    torch.testing.assert_close(y.grad, 2 * y.detach())
    assert compiled(x)[0].numpy().shape == (512, 1000)


def test_warm_tensors_are_like_any_other() -> None:
    x = warm_empty((1024, 512), torch.float32)
    assert (x.shape, x.stride(), x.dtype, x.is_leaf, x._is_view()) == ((1024, 512), (512, 1), torch.float32, True, False)
    x.normal_().requires_grad_()
    torch.autograd.backward((x * x).sum())
    torch.testing.assert_close(x.grad, 2 * x.detach())
    with torch.inference_mode():
        y = warm_empty((1024, 512), torch.float32)
    y.add_(1)


def test_blocks_that_the_host_has_not_are_a_memory_error_and_idle_ones_are_given_up() -> None:
    tensor = warm_empty((4 << 20,), torch.uint8)
    del tensor
    assert BLOCKS.idle_bytes >= 4 << 20
    for elements in (1 << 50, 1 << 62):
        with pytest.raises(MemoryError, match=rf"no {elements} bytes"):
            warm_empty((elements,), torch.uint8)
    assert BLOCKS.idle_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_forked_process_writes_to_memory_of_its_own() -> None:
    program = (
        "import os; import torch; from vendor_sdk.run.blocks import warm_empty;"
        "x = warm_empty((1 << 20,), torch.float32).fill_(1);"
        "child = os.fork(); child or (x.numpy().fill(2), os._exit(0)); os.waitpid(child, 0); assert x.sum() == 1 << 20"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_blocks_stay_below_their_limit() -> None:
    vendor_sdk.release_memory()
    limit, BLOCKS.limit = BLOCKS.limit, 8 << 20
    try:
        tensors = [warm_empty((LARGE,), torch.uint8) for _ in range(8)]
        assert BLOCKS.idle_bytes == 0
        tensors.clear()
        gc.collect()
        assert 0 < BLOCKS.idle_bytes <= 8 << 20
    finally:
        BLOCKS.limit = limit
        vendor_sdk.release_memory()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 5), (4, 1, 3), (1024, 512)])
def test_memory_lies_row_major(shape: tuple[int, ...], inference: bool) -> None:
    with torch.inference_mode(inference):
        like = torch.empty(shape, dtype=torch.float64)
        both = warm_empty(shape, torch.float64), warm_allocator(shape, torch.float64)()
    for found in both:
        assert (found.shape, found.stride(), found.dtype) == (like.shape, like.stride(), like.dtype)
        assert found.storage_offset() == 0
        assert not found.is_inference() or inference


def test_memory_is_released_and_taken_again() -> None:
    x = torch.randn(1024, 600)

    def function(v: torch.Tensor) -> torch.Tensor:
        return ((v * 2).sort(0).values.exp() + 1).sort(1).values.sum(0)

    compiled = build(function, x)
    expected = function(x)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), [expected])
    vendor_sdk.release_memory()
    assert vendor_sdk.release_memory() == 0
    torch.testing.assert_close(compiled(x), [expected])


def test_gradients_of_a_bank_live_on_their_own() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    x = torch.randn(64, 256)
    graphs: list[Any] = []
    with recording(graphs.append):
        run = torch.compile(model, backend="toyloops")
        run(x).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    run(-x).square().sum().backward()
    model.zero_grad()
    model(x).square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-3, atol=1e-3)
    backward = next(g for g in graphs if g.graph.backward)
    for graph in graphs:
        assert graph.plan.fixed.peak <= 1.02 * graph.plan.fixed.bound or graph is backward


SIDE = 320
"""Of matrices that are too large for an arena of a frame's own."""


class Layers(torch.nn.Module):
    """Linear layers with activations that are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(SIDE, SIDE) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x.square().sum()


def trained(
    architecture: type[Layers] = Layers,
) -> tuple[Layers, Any, list[Any], Callable[[torch.Tensor], list[torch.Tensor]]]:
    """A model, the same compiled, its graphs once one step has run, and eager gradients for an input."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = architecture()
    graphs: list[Any] = []
    run = torch.compile(model, backend="toyloops")
    with recording(graphs.append):
        run(torch.randn(SIDE, SIDE)).backward()
    model.zero_grad()

    def eager(x: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(model(x), list(model.parameters())))

    return model, run, graphs, eager


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


def test_gradients_lie_where_activations_died() -> None:
    model, run, graphs, eager = trained()
    forward, backward = graphs
    one = SIDE * SIDE * 4
    assert forward.plan.fixed.bank_bytes == 5 * one
    # When the second gradient is written, three activations and a gradient of one live; biases have allocations of their own.
    assert (backward.plan.fixed.bank_bytes, backward.plan.fixed.lender) == (6 * one, 0)
    assert backward.plan.fixed.peak <= backward.plan.fixed.bound + 2 * SIDE * 4
    parameters = list(model.parameters())
    xs = [torch.randn(SIDE, SIDE) for _ in range(3)]
    # Any order, a forward call whose backward never comes, and calls while other gradients live.
    losses = [run(x) for x in xs]
    run(xs[0])
    found = [torch.autograd.grad(losses[i], parameters) for i in (1, 0, 2)]
    for gradients, i in zip(found, (1, 0, 2), strict=True):
        same(gradients, eager(xs[i]))


def test_one_block_serves_forward_and_backward() -> None:
    _, run, graphs, _ = trained()
    vendor_sdk.release_memory()
    x = torch.randn(SIDE, SIDE)
    for _ in range(2):
        run(x).backward()
        run.zero_grad()
    gc.collect()
    wanted = graphs[1].plan.fixed.bank_bytes
    assert wanted <= vendor_sdk.release_memory() <= 1.04 * wanted


def test_activations_that_hooks_moved_need_no_place_of_their_own() -> None:
    model, run, _, eager = trained()
    x = torch.randn(SIDE, SIDE)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = run(x)
    same(torch.autograd.grad(loss, list(model.parameters())), eager(x))


def test_steps_in_threads_share_no_bank() -> None:
    model, run, _, eager = trained()
    xs = [torch.randn(SIDE, SIDE) for _ in range(4)]
    found: list[Any] = [None] * len(xs)

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = torch.autograd.grad(run(xs[i]), list(model.parameters()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, gradients in zip(xs, found, strict=True):
        same(gradients, eager(x))


def test_what_launches_keep_for_themselves_is_told_and_given_back() -> None:
    """Sums over the rows go through partial sums, which are no buffers of the plan."""
    torch._dynamo.reset()
    x, g = torch.randn(4096, 96), torch.randn(4096, 96)

    def sums(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = torch.softmax(x, 1)
        return rows, (rows * g).sum(0), g.sum(0)

    compiled = torch.compile(sums, backend="toyloops")
    compiled(x, g)
    vendor_sdk.release_memory()
    results: list[Any] = [None] * 8

    def work(i: int) -> None:
        for _ in range(5):
            results[i] = compiled(x + i, g)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, found in enumerate(results):
        same(found, sums(x + i, g))
    results.clear()
    gc.collect()
    found = None
    (graph,) = json.loads(vendor_sdk.explain(sums, x, g, backend="toyloops", show=False).to_json())["graphs"]
    scratch = sum(kernel["scratch"] for kernel in graph["kernels"])
    assert scratch == 64 * 96 * 4
    for _ in range(2):
        compiled(x, g)
        gc.collect()
        assert vendor_sdk.release_memory() >= scratch


def layers(x: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """Three hidden layers, two of which fill an arena: its result comes on top."""
    for _ in range(3):
        x = torch.tanh(x @ wide)
    return x @ narrow


def test_memory_that_would_stand_below_a_result_goes_before_it_comes(kind: Kind) -> None:
    wide, narrow = torch.randn(128, 128) / 11, torch.randn(128, 16)
    compiled = kind.build(layers, torch.randn(128, 128), wide, narrow)
    plan = compiled.plan.fixed
    assert (plan.peak, plan.bound, plan.arena_bytes) == (2 << 16, 2 << 16, 1 << 16)
    assert compiled.native_calls == 3 * kind.linked
    inputs = [(torch.randn(128, 128), wide, narrow) for _ in range(4)]
    expected = [layers(*(each.double() for each in given)).float() for given in inputs]
    found: list[Any] = [None] * len(inputs)

    for given, value in zip(inputs, expected, strict=True):
        torch.testing.assert_close(compiled(*given), [value], rtol=1e-4, atol=1e-4)
        poison(compiled)

    def call(number: int) -> None:
        for _ in range(3):
            found[number] = compiled(*inputs[number])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close([value for (value,) in found], expected, rtol=1e-4, atol=1e-4)


def test_what_launches_need_besides_lies_in_a_result_that_is_not_written_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[Program] = []

    def link(emitter: LoopEmitter, program: Program) -> Any:
        programs.append(program)
        return linked(emitter, program)

    linked = LoopEmitter.link
    monkeypatch.setattr(LoopEmitter, "link", link)

    def layers(x: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        return ((x @ narrow) @ narrow) @ wide

    inputs = torch.randn(64, 32), torch.randn(32, 32), torch.randn(32, 4096)
    same(build(layers, *inputs)(*inputs), [layers(*inputs)])
    (program,) = programs
    first, second, last = (step.spare for step in program.steps)
    assert [each.buffer.base for each in first] == [each.buffer.base for each in second] == ["result"]
    assert all(0 < each.nbytes < 64 * 4096 * 4 for each in first + second)
    assert not any(each.buffer.base == "result" for each in last)


class Frozen(Layers):
    """Between its layers stand products with a constant: their left factors die in the forward graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("constant", torch.randn(SIDE, SIDE) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x) @ self.constant)
        return x.square().sum()


def test_the_arena_of_a_forward_call_lies_where_gradients_will() -> None:
    model, run, graphs, eager = trained(Frozen)
    forward, backward = (graph.plan.fixed for graph in graphs)
    assert arena.SMALL < forward.arena_bytes <= backward.bank_bytes - forward.bank_bytes
    xs = [torch.randn(SIDE, SIDE) for _ in range(3)]
    parameters = list(model.parameters())
    torch.autograd.grad(run(xs[0]), parameters)
    gc.collect()
    assert not any(pool._idle for pool in arena._pools.values()), "what the first call had has been given back"
    losses = [run(x) for x in xs]  # each with an arena of its own
    for i in (1, 0, 2):
        same(torch.autograd.grad(losses[i], parameters), eager(xs[i]))
    assert not any(pool._idle for pool in arena._pools.values())
    del losses
    gc.collect()
    vendor_sdk.release_memory()
    torch.autograd.grad(run(xs[0]), parameters)
    gc.collect()
    assert backward.bank_bytes <= vendor_sdk.release_memory() <= 1.04 * backward.bank_bytes


def test_saved_values_share_no_memory() -> None:
    """Queries, keys and values are views of one product; a product reads the result of attention as another view of it."""
    torch._dynamo.reset()
    x, w, v = torch.randn(2, 24, 64), (torch.randn(64, 192) / 8).requires_grad_(), torch.randn(64, 64, requires_grad=True)

    def loss(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (attention(x, w) @ v).square().sum()

    saved: list[torch.Tensor] = []
    compiled = torch.compile(loss, backend="toyloops")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        found = compiled(x, w, v)
    assert len({t.untyped_storage().data_ptr() for t in saved}) == len(saved)
    same(torch.autograd.grad(found, (w, v)), torch.autograd.grad(loss(x, w, v), (w, v)))


def test_tensors_may_outlive_the_interpreter() -> None:
    program = (
        "import torch; from vendor_sdk.run.blocks import warm_empty;"
        "x = warm_empty((1 << 20,), torch.float32); y = x[5:]; torch.kept = x; import builtins; builtins.kept = y"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def attention(x: torch.Tensor, w: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Queries, keys and values are slices of one product, as in GPT-2."""
    q, k, v = (part.view(2, -1, 4, 16).transpose(1, 2) for part in (x @ w).split(64, -1))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out.transpose(1, 2).flatten(2) + x


@pytest.mark.parametrize("masked", [False, True])
def test_native_kernels_run_inside_segments(masked: bool, kind: Kind) -> None:
    x, w = torch.randn(2, 24, 64), torch.randn(64, 192) / 8
    given = (x, w, torch.randn(2, 1, 1, 24)) if masked else (x, w)
    compiled = kind.build(attention if masked else lambda x, w: attention(x, w), *given)
    assert compiled.native_calls == kind.linked
    assert not any("permute" in line for line in compiled.source.splitlines()), "views are strides of the launch"
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), [attention(*given)], rtol=1e-4, atol=1e-5)
        poison(compiled)


def test_symbolic_sizes_take_no_more_launches(kind: Kind) -> None:
    """Small groups of different sizes share one, and equal sizes are equal whoever computes them."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = x.sort(0).values, y.sort(0).values
        u, v = torch.tanh(x), torch.tanh(y)
        place = torch.arange(2)
        one = torch.zeros(2 * x.shape[0]).index_put((place,), u[0, :2])
        two = torch.zeros(torch.cat((u, u)).shape[0]).index_put((place,), v[0, :2])
        return u.sort(0).values, v.sort(0).values, one, two

    launches = []
    for dynamic in (False, True):
        torch._dynamo.reset()
        found: list[Any] = []
        compiled = torch.compile(function, backend=kind.name, dynamic=dynamic)
        with recording(found.append), torch.no_grad():
            for rows in (6, 9) if dynamic else (6,):
                given = torch.randn(rows, 5), torch.randn(rows + 3, 7)
                torch.testing.assert_close(compiled(*given), function(*given))
        (graph,) = found
        launches.append(graph.launches)
        assert sum("full" in node.name for node in graph.plan.steps) == 1
        assert sum("tanh" in node.name for node in graph.plan.steps) == 1
        assert not any("sym_size" in line and "(" in line for line in graph.source.splitlines()), "sizes follow from symbols"
    assert launches[0] == launches[1]


def test_native_kernels_get_symbolic_sizes(kind: Kind) -> None:
    torch._dynamo.reset()
    found: list[Any] = []
    dynamic = torch.compile(attention, backend=kind.name, dynamic=True)
    w = torch.randn(64, 192) / 8
    with recording(found.append), torch.no_grad():
        for rows in (24, 7, 130):
            x, mask = torch.randn(2, rows, 64), torch.randn(2, 1, 1, rows)
            torch.testing.assert_close(dynamic(x, w), attention(x, w), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(dynamic(x, w, mask), attention(x, w, mask), rtol=1e-4, atol=1e-5)
    assert [graph.native_calls for graph in found] == [int(kind.linked)] * 2


def test_a_kernel_runs_from_python_where_views_have_no_strides(kind: Kind) -> None:
    """Keys that are repeated for a group of queries, and then merged with them, lie nowhere."""

    def grouped(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        repeated = k[:, :, None].expand(2, 2, 2, 24, 16).reshape(2, 4, 24, 16)
        out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, repeated, repeated)[0]
        return out

    q, k = torch.randn(2, 4, 24, 16), torch.randn(2, 2, 24, 16)
    torch.testing.assert_close(kind.build(grouped, q, k)(q, k), [grouped(q, k)], rtol=1e-4, atol=1e-5)


def test_outputs_are_stored_in_the_order_of_their_last_view() -> None:
    """Views that strides cannot express cost no copy after the call: the kernel stores what they show."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.permute(0, 2, 1, 3) + 1
        return (x * 2).permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1), y.transpose(1, 2).flatten(), y.sin().mT

    graphs: list[Any] = []
    x = torch.randn(2, 4, 3, 5)
    with recording(graphs.append):
        found = torch.compile(function, backend="toyloops", dynamic=False)(x)
    for value, expected in zip(found, function(x), strict=True):
        torch.testing.assert_close(value, expected)
        assert value.stride() == expected.stride()
    (graph,) = graphs
    assert "reshape" not in graph.wrapper.source
    assert "RT.output" not in graph.wrapper.source


def heads(x: torch.Tensor, w: torch.Tensor, returned: bool) -> tuple[torch.Tensor, ...]:
    """Kernels called from Python that read views: of the arena or of an output's memory, and of another kernel's result."""
    both = torch.tanh(x @ w)
    left, right = (part.reshape(4, 2, 3).permute(1, 0, 2) for part in (both[:, :6], both[:, 6:]))
    turned = left.sort(1).values.permute(1, 0, 2).sort(0).values.reshape(4, 6)
    results = turned @ right.sort(2).values.reshape(6, 4), turned * 2
    return (*results, both.t()) if returned else results


@pytest.mark.parametrize("returned", [True, False])
def test_chains_of_views_are_one_tensor(kind: Kind, returned: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return heads(x, w, returned)

    x, w = torch.randn(4, 8), torch.randn(8, 12)
    compiled = kind.build(function, x, w)
    for _ in range(3):
        poison(compiled)
        x = torch.randn(4, 8)
        torch.testing.assert_close(compiled(x, w), outputs(function, x, w))
    assert ".reshape" not in compiled.source
    assert len(re.findall(r"as_strided|\binside\d+\(", compiled.source)) == (3 if returned else 1)
    views = [line for line in compiled.source.splitlines() if "permute" in line and "= T[" in line]
    assert len(views) == (0 if returned else 2), "views of the arena belong to the frame"


def test_shapes_of_results_are_made_without_torch(kind: Kind) -> None:
    """What a call computed and returns in another shape. Views of inputs are the user's."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x)
        return y.reshape(2, 12), y.sum(0, keepdim=True).reshape(6), x.reshape(3, 8), y.reshape(2, 12) + 1

    x = torch.randn(4, 6)
    compiled = kind.build(function, x)
    x = torch.randn(4, 6)
    found = compiled(x)
    torch.testing.assert_close(found, outputs(function, x))
    assert compiled.source.count(".reshape(") == 1, "that of the input"
    assert found[2]._base is x


class Orders:
    """Attention whose heads lie beside each other in memory, products, and an emitter."""

    name = "orders"

    def __init__(self, orders: tuple[tuple[int, ...] | None, ...], *, contiguous: bool = False) -> None:
        self.orders, self.contiguous = orders, contiguous

    def attention(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        (rule,) = COMPOSITES["scaled_dot_product_attention"].targets.values()
        out, saved = rule(*args, **kwargs)
        beside = out.transpose(1, 2).contiguous().transpose(1, 2)
        return out.contiguous() if self.contiguous else beside, saved

    @hookimpl
    def backend(self) -> Backend:
        composites = frozenset(("scaled_dot_product_attention",))
        return Backend(name=self.name, version="0", dtypes=frozenset(ALL), composites=composites)

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")

    @hookimpl
    def kernels(self) -> dict[str, Any]:
        return {"mm": torch.mm, "scaled_dot_product_attention": Kernel(self.attention, orders=self.orders)}

    @hookimpl
    def emitter(self) -> LoopEmitter:
        return LoopEmitter()


def attend(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    query, key, value = (part.reshape(2, 5, 4, 8).transpose(1, 2) for part in (x @ w).split(32, 1))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return out.transpose(1, 2).reshape(10, 32) @ v, out.exp() * torch.arange(8), out


@pytest.mark.parametrize("orders", [((0, 2, 1, 3),), ()])
@pytest.mark.parametrize("contiguous", [False, True])
def test_results_lie_as_their_kernel_says(
    orders: tuple[tuple[int, ...] | None, ...], contiguous: bool, register: Callable[..., str]
) -> None:
    x, w, v = torch.randn(10, 16), torch.randn(16, 96) / 16, torch.randn(32, 16) / 16
    backend = register(Orders(orders, contiguous=contiguous))
    graph = vendor_sdk.trace(attend, [x, w, v], composites=["scaled_dot_product_attention"])
    compiled = vendor_sdk.compile_graph(graph, backend=backend)
    for _ in range(2):
        x = torch.randn(10, 16)
        torch.testing.assert_close(compiled(x, w, v), list(attend(x, w, v)))
    assert (".reshape" in compiled.source) == (not orders), "what lies so already is not copied"


@pytest.mark.parametrize(("orders", "destination"), [(((0, 1, 1, 3),), False), (((0, 2, 1, 3),), True)])
def test_orders_that_cannot_be_are_refused(orders: Any, destination: bool, register: Callable[..., str]) -> None:
    class Wrong(Orders):
        @hookimpl
        def kernels(self) -> dict[str, Any]:
            kernel = Kernel(self.attention, destination=destination, orders=orders)
            return {"scaled_dot_product_attention": kernel}

    with pytest.raises(vendor_sdk.errors.ContractError, match="scaled_dot_product_attention has"):
        vendor_sdk.load(register(Wrong(orders)))


def test_parts_of_a_node_and_other_nodes_have_names_of_their_own(kind: Kind) -> None:
    # Graphs number nodes of a kind: the second result of ``amax_exp_sum_div`` is not the node ``amax_exp_sum_div_1``.
    def softmax(x: torch.Tensor) -> torch.Tensor:
        powers = torch.exp(x - x.amax(0, True))
        return powers / powers.sum(0, True)

    def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        once = softmax(x)
        return softmax(once), once, softmax(y)

    inputs = torch.randn(5, 1, 1), torch.randn(8)
    for found, wanted in zip(kind.build(twice, *inputs)(*inputs), twice(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
