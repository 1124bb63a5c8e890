"""triton_gpu's programs as native calls, with a driver that is none."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from reference_backends.triton_gpu import launch, native
from tests.test_native import ARENA, INPUT, RESULT, as_traced
from vendor_sdk import Program, Step, StepError
from vendor_sdk.contract.program import Argument, Buffer, Result, Spare

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]


class Hooks:
    """Triton's settings."""

    def __init__(self) -> None:
        self.launch_enter_hook: Any = None
        self.launch_exit_hook: Any = None
        self.interpret = False


class Board:
    """In place of CUDA's driver: calls functions of Python, each by its number, with the addresses it gets.

    Attributes:
        launches: (grid, threads, shared bytes, stream, addresses) of each.
        device, context: current ones.
        status: of launches.
    """

    POINTER = ctypes.POINTER(ctypes.c_void_p)
    I32 = ctypes.c_int32
    LAUNCH: ClassVar[Any] = ctypes.CFUNCTYPE(I32, ctypes.c_void_p, *[ctypes.c_uint32] * 7, ctypes.c_void_p, POINTER, POINTER)

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.functions: dict[int, Callable[..., None]] = {}
        self.counts: dict[int, int] = {}
        self.device, self.context, self.status = 0, 1, 0
        self.hooks = Hooks()
        self.kept = (
            self.LAUNCH(self.launch),
            ctypes.CFUNCTYPE(self.I32, self.POINTER)(self.current_context),
            ctypes.CFUNCTYPE(self.I32, ctypes.POINTER(self.I32))(self.current_device),
            ctypes.CFUNCTYPE(self.I32, self.I32, self.POINTER)(self.current_stream),
        )

    def gpu(self) -> native.Gpu:
        addresses = [ctypes.cast(each, ctypes.c_void_p) for each in self.kept]
        return native.Gpu(*addresses, self.hooks, "launch_enter_hook", "launch_exit_hook", "calls", 0)

    def launch(self, function: int, x: int, y: int, z: int, bx: int, by: int, bz: int, shared: int, *rest: Any) -> int:
        stream, arguments, _ = rest
        pointers = [ctypes.c_int64.from_address(arguments[i]).value for i in range(self.counts[function])]
        assert (y, z, by, bz) == (1, 1, 1, 1)
        self.launches.append((x, bx, shared, stream, pointers))
        if not self.status:
            self.functions[function](*pointers)
        return self.status

    def current_context(self, context: Any) -> int:
        context[0] = self.context
        return 0

    def current_device(self, index: Any) -> int:
        index[0] = self.device
        return 0

    def current_stream(self, device: int, stream: Any) -> int:
        stream[0] = 100 + device
        return 0

    def fixed(self, function: Callable[..., None], buffers: int, seeds: int = 0, programs: int = 1) -> launch.Fixed:
        """A launch of ``function`` of Python, with addresses."""
        number = len(self.functions) + 1
        self.functions[number], self.counts[number] = function, buffers + seeds
        board = self

        class Launcher(launch.Launcher):
            def __init__(self) -> None:
                self.settings = board.hooks  # type: ignore[assignment]

            def planned(self, *sizes: Any) -> Any:  # type: ignore[override]
                return launch.Plan(programs), {}

            def loaded(self, plan: Any, arguments: Any, begun: Any) -> Sequence[int]:
                board.loads.append([a.even for a in arguments])
                return number, plan.programs, 128, 2048

            def __call__(self, buffers: Sequence[Any], *sizes: Any) -> None:
                board.slow.append([*map(type, buffers)])
                if programs:
                    function(*[buffer.data_ptr() for buffer in buffers])

        made = launch.Fixed(Launcher(), 1, 1, (), 1)
        made.dtypes, made.seeds = [torch.float32] * buffers, seeds
        return made

    loads: ClassVar[list[Any]] = []
    slow: ClassVar[list[Any]] = []


class BoardLinker(native.TritonLinker):
    device = torch.device("cpu")

    def __init__(self, board: Board) -> None:
        super().__init__(board.gpu())
        self.board = board

    def context(self) -> int | None:
        return self.board.device


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Board, "loads", [])
    monkeypatch.setattr(Board, "slow", [])
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    return Board()


def floats(address: int, count: int = 8) -> Any:
    return (ctypes.c_float * count).from_address(address)


def doubled(source: int, target: int, *rest: int) -> None:
    for i, value in enumerate(floats(source)):
        floats(target)[i] = 2 * value


def linked(board: Board, *steps: Step, results: int = 1) -> Any:
    given = tuple(Result(torch.float32, (8,)) for _ in range(results))
    seeds = max(len(step.numbers) for step in steps)
    entry = BoardLinker(board).link(Program((None,), given, (False,) * seeds, steps, None, as_traced))
    assert entry is not None
    return entry


def test_kernels_of_triton_are_launched_by_the_driver(board: Board) -> None:
    first, second = board.fixed(doubled, 2, programs=5), board.fixed(doubled, 2, programs=7)
    entry = linked(board, Step(first, (INPUT, ARENA), ()), Step(second, (ARENA, RESULT), ()))
    arena, x = torch.zeros(64), torch.randn(8)
    for _ in range(3):
        torch.testing.assert_close(entry(arena.data_ptr(), 0, x), 4 * x)
    assert len(board.launches) == 6
    assert [each[:4] for each in board.launches[:2]] == [(5, 128, 2048, 100), (7, 128, 2048, 100)]
    assert board.launches[0][4] == [x.data_ptr(), arena.data_ptr() + 16]
    assert board.loads == [[True, True]] * 2, "both are loaded once"
    assert board.slow == []


def test_no_programs_are_no_launch(board: Board) -> None:
    entry = linked(board, Step(board.fixed(doubled, 2, programs=0), (INPUT, RESULT), ()))
    assert entry(0, 0, torch.randn(8)).shape == (8,)
    assert board.launches == board.loads == []


def test_seeds_are_addresses_and_need_not_begin_with_a_vector(board: Board) -> None:
    seen: list[int] = []

    def draws(source: int, target: int, seed: int) -> None:
        seen.append(ctypes.c_int64.from_address(seed).value)
        doubled(source, target)

    entry = linked(board, Step(board.fixed(draws, 2, seeds=1), (INPUT, RESULT), (Argument(0),)))
    seeds = torch.tensor([41, 42, 43])
    for seed in seeds.unbind():
        entry(0, 0, torch.randn(8), seed.data_ptr())
    assert seen == [41, 42, 43]
    assert board.loads == [[True, True, False]]
    x = torch.randn(9)[1:]  # from Python
    torch.testing.assert_close(entry(0, 0, x, seeds[1:].data_ptr()), 2 * x)
    assert seen[-1] == 42
    assert len(board.slow) == 1


@pytest.mark.parametrize("spare", [0, 1 << 10])
def test_functions_leave_values_to_each_other(board: Board, spare: int) -> None:
    def one(source: int, target: int, scratch: int, more: int) -> None:
        doubled(source, scratch)
        doubled(source, more)

    def two(source: int, target: int, scratch: int, more: int) -> None:
        assert more - scratch == launch.LINE
        for i in range(8):
            floats(target)[i] = floats(scratch)[i] + floats(more)[i]

    both = launch.Several([board.fixed(one, 4), board.fixed(two, 4)], [(8, torch.float32), (8, torch.float32)])
    both.dtypes = [torch.float32] * 2
    stretch = (Spare(Buffer("arena", 0, 64), spare),)
    entry = linked(board, Step(both, (INPUT, RESULT), (), stretch))
    arena = torch.zeros(64 + (1 << 10))
    for x in (torch.randn(8), torch.randn(8), torch.randn(9)[1:]):
        torch.testing.assert_close(entry(arena.data_ptr(), 0, x), 4 * x)
    within = arena.data_ptr() <= board.launches[0][4][2] < arena.data_ptr() + arena.nbytes
    assert within == bool(spare)
    assert len(board.launches) == 4
    assert len(board.slow) == 2, "the last call was made from Python"


def test_calls_that_c_cannot_make_are_made_from_python(board: Board) -> None:
    from triton.knobs import HookChain

    entry = linked(board, Step(board.fixed(doubled, 2), (INPUT, RESULT), ()))
    x, off = torch.randn(8), torch.randn(9)[1:]
    chain: Any = HookChain()

    def call(given: torch.Tensor, *, native: bool) -> None:
        before = len(board.launches), len(board.slow)
        torch.testing.assert_close(entry(0, 0, given), 2 * given)
        assert (len(board.launches) - before[0], len(board.slow) - before[1]) == (int(native), int(not native))

    call(x, native=True)
    call(off, native=False)
    board.device = 1
    call(x, native=False)
    board.device, board.context = 0, 0
    call(x, native=False)
    board.context = 1
    for name in ("launch_enter_hook", "launch_exit_hook"):
        setattr(board.hooks, name, chain)
        call(x, native=True)
        chain.add(print)
        call(x, native=False)
        chain.remove(print)
        setattr(board.hooks, name, print)
        call(x, native=False)
        setattr(board.hooks, name, None)
        call(x, native=True)


def test_a_launch_that_fails_says_why(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        @staticmethod
        def cuGetErrorString(status: int, text: Any) -> int:
            text._obj.value = b"out of resources"
            return 0

    monkeypatch.setattr(native, "driver", lambda: Words)
    entry = linked(board, Step(board.fixed(doubled, 2), (INPUT, ARENA), ()), Step(board.fixed(doubled, 2), (ARENA, RESULT), ()))
    arena, x = torch.zeros(64), torch.randn(8)
    board.status = 701
    with pytest.raises(StepError) as raised:
        entry(arena.data_ptr(), 0, x)
    assert raised.value.step == 0
    assert "701" in str(raised.value.cause)
    assert "out of resources" in str(raised.value.cause)
    board.status = 0
    torch.testing.assert_close(entry(arena.data_ptr(), 0, x), 4 * x)


def test_what_triton_refuses_is_the_error_of_its_step(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    made = board.fixed(doubled, 2)

    def refuses(*_: Any) -> Any:
        raise RuntimeError("no registers left")

    monkeypatch.setattr(type(made.launcher), "loaded", refuses)
    entry = linked(board, Step(board.fixed(doubled, 2), (INPUT, ARENA), ()), Step(made, (ARENA, RESULT), ()))
    with pytest.raises(StepError, match="no registers") as raised:
        entry(torch.zeros(64).data_ptr(), 0, torch.randn(8))
    assert raised.value.step == 1


def test_threads_that_come_first_at_once_get_the_same_words(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    made, barrier = board.fixed(doubled, 2), threading.Barrier(4)
    loaded = type(made.launcher).loaded

    def at_once(*given: Any) -> Any:
        barrier.wait(timeout=30)
        return loaded(*given)

    monkeypatch.setattr(type(made.launcher), "loaded", at_once)
    found: list[int | None] = []
    threads = [threading.Thread(target=lambda: found.append(made.word(0))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert found[0] == ctypes.addressof(made.words[0])
