"""Recorded graphs, by a recorder that keeps a tape of torch's operators: what a device with recorded launches does, on CPU."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import vendor_sdk
from vendor_sdk import ALL, OPSET, Backend, Kernel, Option, Recorder, Recording, TorchDevice, hookimpl, target_of
from vendor_sdk.run import recorded
from vendor_sdk.run.compiled import CompiledGraph
from vendor_sdk.run.steps import TorchRuntime, draw_seeds

aten = torch.ops.aten


class Tape:
    """What a recording did: operators with their operands, by address. It owns what it writes to, and nothing else."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.memory: list[torch.Tensor] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for call in self.calls:
            call()


def at_address(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, whose memory this tensor does not hold."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_uint8 * ((last + 1) * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


class Taping(TorchDispatchMode):
    """Computes nothing that matters while it records: results are noise until they are replayed."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if "empty" in schema.name:
            self.tape.memory.append(made := func(*args, **kwargs))
            return made
        if func in (aten.set_.source_Storage_storage_offset, aten.detach.default):
            return func(*args, **kwargs)
        if any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments):
            return func(*args, **kwargs)  # a view
        if schema.is_mutable:
            self.tape.memory.append(args[0] if "out" not in kwargs else kwargs["out"])
        own = {tensor.untyped_storage().data_ptr() for tensor in self.tape.memory}
        given, named = tree_map_only(
            torch.Tensor, lambda t: t if t.untyped_storage().data_ptr() in own else at_address(t), (args, kwargs)
        )
        if schema.is_mutable:
            self.tape.calls.append(lambda: func(*given, **named))
            return self.tape.memory[-1]
        results = func(*args, **kwargs)
        several = results if isinstance(results, list | tuple) else [results]
        self.tape.memory += [result for result in several if isinstance(result, torch.Tensor)]
        for result in several:
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                result.fill_(float("nan"))

        def again() -> None:
            new = func(*given, **named)
            for old, value in zip(several, new if isinstance(new, list | tuple) else [new], strict=True):
                if isinstance(old, torch.Tensor):
                    old.copy_(value)

        self.tape.calls.append(again)
        return results


class OnTape(Recorder):
    def __init__(self) -> None:
        self.current, self.tapes, self.fails = 0, list[Tape](), ""

    def stream(self) -> Hashable:
        return self.current

    def record(self, run: Callable[[], None]) -> Recording:
        tape = Tape()
        with Taping(tape):
            run()
        if self.fails:
            raise RuntimeError(self.fails)
        self.tapes.append(tape)
        return tape


class Chip:
    """Torch's operators as kernels, on a device that records."""

    name = "taped"

    def __init__(self) -> None:
        self.recorder = OnTape()

    @hookimpl
    def backend(self) -> Backend:
        modes = Option(default="default", choices=("default", "reduce-overhead"), help="whether launches are recorded")
        return Backend(name=self.name, version="0", dtypes=frozenset(ALL), options={"mode": modes})

    @hookimpl
    def device(self, options: Mapping[str, Any]) -> TorchDevice:
        return TorchDevice("cpu", self.recorder if options["mode"] == "reduce-overhead" else None)

    @hookimpl
    def kernels(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {name: target_of(row) for name, row in OPSET.items() if name != "sort"}
        found["mm"] = Kernel(lambda out, a, b: aten.mm.out(a, b, out=out), destination=True)
        return found


@pytest.fixture
def chip(register: Callable[..., str]) -> Chip:
    chip = Chip()
    register(chip)
    return chip


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> CompiledGraph:
    graph = vendor_sdk.trace(function, inputs or (torch.randn(64, 300), torch.randn(300, 300)))
    return vendor_sdk.compile_graph(graph, backend="taped", options={"mode": "reduce-overhead"})


def captured(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="taped", mode="reduce-overhead", **options)


@contextmanager
def graphs() -> Iterator[list[CompiledGraph]]:
    from vendor_sdk import pipeline

    found: list[CompiledGraph] = []
    with pipeline.recording(found.append):
        yield found


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ w) @ w.t()
    return (y * 2).sin() @ w


def test_from_the_third_call_on_launches_are_replayed(chip: Chip) -> None:
    run = compiled(chain)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    with torch.no_grad():
        for call in range(5):
            x.normal_()
            torch.testing.assert_close(run(x, w)[0], chain(x, w), msg=f"call {call}")
    (tape,) = chip.recorder.tapes
    assert tape.replays == 3


def test_results_that_live_are_not_overwritten(chip: Chip) -> None:
    run = compiled(chain)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    with torch.no_grad():
        alive, expected = [], []
        for _ in range(12):
            x.normal_()
            alive.append(run(x, w)[0][1:])  # a view holds the memory as well
            expected.append(chain(x, w)[1:])
        assert [tape.replays for tape in chip.recorder.tapes] == [0] * recorded.RECORDINGS  # all results lie in theirs
        del alive[3]
        gc.collect()
        x.normal_()
        torch.testing.assert_close(run(x, w)[0][1:], chain(x, w)[1:])
        assert sum(tape.replays for tape in chip.recorder.tapes) == 1
        del expected[3]
    torch.testing.assert_close(alive, expected)


def test_results_in_turns_take_two_recordings(chip: Chip) -> None:
    run = compiled(chain)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    with torch.no_grad():
        for _ in range(9):
            x.normal_()
            y = run(x, w)[0]
            torch.testing.assert_close(y, chain(x, w))
    assert len(chip.recorder.tapes) == 2


def test_operands_that_move_are_copied(chip: Chip) -> None:
    run = compiled(chain)
    w = torch.randn(300, 300)
    others = [torch.randn(64, 300) for _ in range(12)]
    with torch.no_grad():
        for x in others:
            torch.testing.assert_close(run(x, w)[0].clone(), chain(x, w))
        w.mul_(2)
        torch.testing.assert_close(run(others[0], w)[0].clone(), chain(others[0], w))
    assert chip.recorder.tapes[-1].replays >= 6


@pytest.mark.parametrize("saved", [frozenset(), frozenset({0, 2})])
def test_what_a_forward_graph_saved_is_expected_at_several_places(saved: frozenset[int]) -> None:
    """The results of a call as it is and of recordings; other small operands are copied from the third place on."""
    runtime, recorder = TorchRuntime(torch.device("cpu")), OnTape()

    def run(operands: list[Any]) -> list[Any]:
        x, w, at = operands
        return [torch.add(x.take(at), w)]

    traits = recorded.Traits(static=frozenset({1}), saved=saved)
    graph = recorded.Recorded(run, recorder, traits, runtime, torch.device("cpu"))
    w = torch.randn(4)
    first, second, *others = [(torch.randn(8), torch.randint(8, (4,))) for _ in range(2 + recorded.RECORDINGS)]
    for x, at in (first, second, *others * 4):
        torch.testing.assert_close(graph([x, w, at])[0], x.take(at) + w)
    ((known),) = graph._sets.values()
    assert not graph.declined
    assert bool(known.places) == (not saved)
    assert len(known.recordings) == (recorded.RECORDINGS if saved else 1)
    assert graph.replays >= 3 * recorded.RECORDINGS


def test_parameters_may_be_others(chip: Chip) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300)).requires_grad_(False)
    run = captured(layer)
    x = torch.randn(64, 300)
    for step in range(8):
        if step == 5:
            layer[0].weight.data = torch.randn(300, 300)
        torch.testing.assert_close(run(x).clone(), layer(x))


def test_training(chip: Chip) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.GELU(), torch.nn.Linear(300, 1))
    other = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.GELU(), torch.nn.Linear(300, 1))
    other.load_state_dict(layer.state_dict())
    with graphs() as found:
        run = captured(lambda x: layer(x).square().mean())
        for step in range(20):
            x = torch.randn(500, 40)
            steps = [run(x), other(x).square().mean()]
            if step == 7:  # two forward calls before the first's backward call
                steps[0] = steps[0] + run(x + 1)
                steps[1] = steps[1] + other(x + 1).square().mean()
            torch.testing.assert_close(steps[0], steps[1])
            for loss in steps:
                loss.backward()
            for own, expected in zip(layer.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(own.grad, expected.grad)
                with torch.no_grad():
                    own -= 0.1 * own.grad
                    expected -= 0.1 * expected.grad
                own.grad = expected.grad = None
    forward, backward = found
    # Where operands lie is the allocator's affair: how many calls pass until they are known to move depends on it.
    assert forward._run.replays >= 12
    assert backward._run.replays >= 12
    saved = backward._run.traits.saved
    assert len(saved) == 3
    for known in backward._run._sets.values():
        assert not saved & known.places.keys(), "what the forward graph saved, small or large, is read where it lies"


def test_written_operands(chip: Chip) -> None:
    def step(x: torch.Tensor, state: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state.add_((x @ w).relu())
        return ((state * 2) @ w).sum()

    run = captured(step)
    w = torch.randn(300, 300)
    state, expected = torch.zeros(64, 300), torch.zeros(64, 300)
    with torch.no_grad():
        for call in range(12):
            if call % 5 == 4:
                state = state.clone()
            x = torch.randn(64, 300)
            version = state._version
            torch.testing.assert_close(run(x, state, w), step(x, expected, w))
            torch.testing.assert_close(state, expected)
            assert state._version > version
    assert sum(tape.replays for tape in chip.recorder.tapes) >= 3


def test_results_in_the_memory_of_operands(chip: Chip) -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return chain(x, w), x[1:].t()

    run = compiled(both)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    for _ in range(6):
        x.normal_()
        first, second = run(x, w)
        torch.testing.assert_close(first, chain(x, w))
        torch.testing.assert_close(second, x[1:].t())
        del first
    assert second.data_ptr() == x[1:].data_ptr()


def test_sizes_have_recordings_of_their_own(chip: Chip) -> None:
    run = captured(chain, dynamic=True)
    w = torch.randn(300, 300)
    inputs = [torch.randn(n, 300) for n in (64, 80, 96)]
    with torch.no_grad():
        for _ in range(4):
            for x in inputs:
                torch.testing.assert_close(run(x, w).clone(), chain(x, w))
    assert len(chip.recorder.tapes) == 3


def test_streams_have_recordings_of_their_own(chip: Chip) -> None:
    run = compiled(chain)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    with torch.no_grad():
        for stream in (0, 0, 0, 1, 1, 1, 0):
            chip.recorder.current = stream
            torch.testing.assert_close(run(x, w)[0].clone(), chain(x, w))
    assert [tape.replays for tape in chip.recorder.tapes] == [2, 1]


def test_what_cannot_be_recorded_runs_as_it_is(chip: Chip) -> None:
    def through_the_host(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return chain(x, w).sort().values

    def one(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    x, w = torch.randn(64, 300), torch.randn(300, 300)
    reasons = {}
    for function in (through_the_host, one):
        run = compiled(function)
        reasons[function.__name__] = run.launching
        for _ in range(4):
            torch.testing.assert_close(run(x, w)[0], function(x, w))
    assert "sort runs on the host" in reasons["through_the_host"]
    assert "1 launch " in reasons["one"]
    assert not chip.recorder.tapes


def test_a_recording_that_fails_is_not_tried_again(chip: Chip) -> None:
    chip.recorder.fails = "no such thing"
    run = compiled(chain)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    for _ in range(4):
        torch.testing.assert_close(run(x, w)[0], chain(x, w))
    assert run.launching == "one by one: recording failed: no such thing"


def test_released_memory_is_recorded_anew(chip: Chip) -> None:
    run = compiled(chain)
    x, w = torch.randn(64, 300), torch.randn(300, 300)
    with torch.no_grad():
        for call in range(6):
            if call == 3:
                vendor_sdk.release_memory()
                gc.collect()
            x.normal_()
            torch.testing.assert_close(run(x, w)[0].clone(), chain(x, w))
    assert [tape.replays for tape in chip.recorder.tapes] == [1, 1]


def test_replays_draw_other_numbers() -> None:
    runtime, recorder = TorchRuntime(torch.device("cpu"), seeds_in_memory=True), OnTape()

    def run(operands: list[Any]) -> list[Any]:
        (x,) = operands
        first, second = runtime.seeds(2)
        return [torch.stack([x + first, x + second])]

    graph = recorded.Recorded(run, recorder, recorded.Traits(gathered=frozenset({0}), seeds=2), runtime, torch.device("cpu"))
    x = torch.zeros(1, dtype=torch.int64)
    torch.manual_seed(3)
    drawn = [graph([x])[0].flatten() for _ in range(5)]
    torch.manual_seed(3)
    expected = [torch.tensor(draw_seeds(2)) for _ in range(5)]
    assert [d.tolist() for d in drawn] == [e.tolist() for e in expected]
    assert recorder.tapes[0].replays == 3


def test_explain_says_how_launches_run(chip: Chip) -> None:
    tensors = torch.randn(64, 300), torch.randn(300, 300)
    for mode, words in (("reduce-overhead", "recorded, replayed from the third call on"), ("default", "")):
        (report,) = vendor_sdk.explain(chain, *tensors, backend="taped", options={"mode": mode}, show=False).graphs
        assert report.launching == words
