"""Programs as native calls: the SDK's linker with a text of its own here, and triton_gpu's with a driver that is none."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from reference_backends.triton_gpu import launch, native
from vendor_sdk import Linker, Program, Step, StepError
from vendor_sdk.contract.program import Argument, Buffer, Offset, Result, Spare

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

TEXT = """
typedef struct Call { i64 context; } Call;
static i64 bits_seen, spare_seen;
static Outcome prepare_call(Call *call, i64 context, u64 bits) {
  call->context = context;
  bits_seen = (i64)bits;
  return bits % 16 ? ASIDE : DONE;
}
static Outcome allocate(const Call *call, const Result *r, void **handle, void **data) {
  (void)call;
  if (r->bytes > (1 << 20)) return ASIDE;
  if (torch.empty_strided(r->dims, r->sizes, r->strides, r->dtype, 0, -1, handle)) return ASIDE;
  return torch.data_ptr(*handle, data) ? ASIDE : DONE;
}
// Adds `word` and the first number to so many floats as the last number says; with a word of 0 it fails with the first number.
static i32 launch(const Call *call, i64 word, void *const *buffers, i64 count, const i64 *numbers, i64 values, Spare spare) {
  spare_seen = spare.bytes;
  if (!word) return (i32)numbers[0];
  for (i64 i = 0; i < numbers[values - 1]; ++i)
    ((float *)buffers[count - 1])[i] = ((const float *)buffers[0])[i] + (float)(word + numbers[0] + 1000 * call->context);
  return 0;
}
C_NAMES_BEGIN
i64 seen(i64 what) { return what ? spare_seen : bits_seen; }
C_NAMES_END
"""


@dataclass(frozen=True)
class Adds:
    """A launch that adds ``number``, and its first number, to floats."""

    number: int

    def __call__(self, buffers: Sequence[Any], symbols: Sequence[Any]) -> None:
        raise AssertionError("launched from Python")


class Toy(Linker):
    """Launches of ``Adds``."""

    text = TEXT
    now: int | None = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aside: list[tuple[int, Sequence[Any]]] = []

    def load(self, source: str) -> ctypes.PyDLL:
        text, library = self.folder / "entry.c", self.folder / "entry.so"
        text.write_text(source)
        strict = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
        subprocess.run(["gcc", "-O1", *strict, "-shared", "-fPIC", str(text), "-o", str(library)], check=True)
        found = ctypes.PyDLL(str(library))
        found.seen.restype = ctypes.c_int64
        return found

    def takes(self, step: Step) -> bool:
        return isinstance(step.launch, Adds)

    def context(self) -> int | None:
        return self.now

    def word(self, launch: Any, context: int) -> int | None:
        if launch.number < 0:
            raise RuntimeError("the compiler refuses this")
        return int(launch.number)

    def error(self, status: int) -> Exception:
        return ZeroDivisionError(str(status))

    def launch_from_python(self, launch: Any, addresses: Sequence[int], numbers: Sequence[Any]) -> None:
        self.aside.append((launch.number, numbers))
        if not launch.number:
            raise self.error(int(numbers[0]))
        source, target = ((ctypes.c_float * numbers[-1]).from_address(a) for a in (addresses[0], addresses[-1]))
        for i in range(numbers[-1]):
            target[i] = source[i] + launch.number + numbers[0]


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    linker = Toy(tmp_path)
    if linker.library is None:
        pytest.skip("this torch's tensors are laid out otherwise")
    return linker


def as_traced(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def program(steps: Sequence[Step], results: int = 1, strides: tuple[int, ...] | None = None, length: Any = 8) -> Program:
    given = tuple(Result(torch.float32, (length,)) for _ in range(results))
    return Program((strides,), given, (False, False), tuple(steps), None, as_traced)


INPUT, RESULT, ARENA = Buffer("input", 0, 0), Buffer("result", 0, 0), Buffer("arena", 0, 16)


def step(number: int, *buffers: Buffer, **more: Any) -> Step:
    return Step(Adds(number), buffers, (Argument(0), Argument(1)), **more)


def test_a_program_is_one_call(toy: Toy) -> None:
    entry = toy.link(program([step(1, INPUT, ARENA), step(10, ARENA, RESULT)]))
    assert entry is not None
    arena, x = torch.zeros(64), torch.randn(8)
    for seed in range(3):
        found = entry(arena.data_ptr(), 0, x, seed, 8)
        torch.testing.assert_close(found, x + 1 + seed + 10 + seed)
        torch.testing.assert_close(arena[4:12], x + 1 + seed)
        assert found.is_contiguous()
    assert toy.aside == []


def test_results_are_none_one_or_several(toy: Toy) -> None:
    x = torch.randn(8)
    none, two = toy.link(program([step(1, INPUT, ARENA)], 0)), toy.link(program([step(1, INPUT, RESULT)], 2))
    assert none is not None
    assert two is not None
    assert none(torch.zeros(64).data_ptr(), 0, x, 0, 8) is None
    first, second = two(0, 0, x, 0, 8)
    torch.testing.assert_close(first, x + 1)
    assert second.shape == (8,)


def test_offsets_come_from_the_call(toy: Toy) -> None:
    place = Buffer("arena", 0, Offset(1))
    entry = toy.link(program([step(1, INPUT, place), step(1, place, RESULT)]))
    assert entry is not None
    arena, x, table = torch.zeros(64), torch.randn(8), (ctypes.c_int64 * 2)(0, 64)
    for given in (x, torch.randn(9)[1:]):  # the second is made from Python
        torch.testing.assert_close(entry(arena.data_ptr(), ctypes.addressof(table), given, 0, 8), given + 2)
        torch.testing.assert_close(arena[16:24], given + 1)
    assert len(toy.aside) == 2


def test_inputs_that_lie_otherwise_are_copied(toy: Toy) -> None:
    entry = toy.link(program([step(1, INPUT, RESULT)], strides=(1,)))
    assert entry is not None
    x = torch.randn(16)
    torch.testing.assert_close(entry(0, 0, x[::2], 0, 8), x[::2] + 1)
    torch.testing.assert_close(entry(0, 0, x[1::2], 0, 8), x[1::2] + 1)
    assert toy.aside == []
    entry(0, 0, torch.randn(20)[1:9], 0, 8)
    assert len(toy.aside) == 1, "a dense tensor that begins off a vector is not copied"


def test_the_longest_spare_memory_is_passed(toy: Toy) -> None:
    spare = (Spare(Buffer("arena", 0, 128), 64), Spare(INPUT, Argument(1)))
    entry = toy.link(program([step(1, INPUT, RESULT, spare=spare)], length=Argument(1)))
    assert entry is not None
    assert toy.library is not None
    for length in (8, 100):
        entry(0, 0, torch.randn(length), 0, length)
        assert toy.library.seen(1) == max(length, 64)


def test_a_call_is_made_from_python_where_c_cannot(toy: Toy) -> None:
    toy.now = None
    entry = toy.link(program([step(2, INPUT, ARENA), step(3, ARENA, RESULT)], length=Argument(1)))
    assert entry is not None
    arena, x = torch.zeros(64), torch.randn(8)
    for now, made in ((None, 2), (None, 4), (0, 4), (0, 4)):
        toy.now = now
        torch.testing.assert_close(entry(arena.data_ptr(), 0, x, 1, 8), x + 7)
        assert len(toy.aside) == made
    large = torch.randn(1 << 19)
    arena = torch.zeros(len(large) + 4)
    torch.testing.assert_close(entry(arena.data_ptr(), 0, large[: 1 << 10], 1, 1 << 10), large[: 1 << 10] + 7)
    assert len(toy.aside) == made
    entry(arena.data_ptr(), 0, large, 1, 1 << 19)  # which has no room for its result
    assert len(toy.aside) == made + 2


def test_what_words_are_for_reaches_the_call(toy: Toy) -> None:
    toy.now = 3
    entry = toy.link(program([step(1, INPUT, RESULT)]))
    assert entry is not None
    x = torch.zeros(8)
    assert entry(0, 0, x, 0, 8)[0] == 3001
    toy.now = 5
    assert entry(0, 0, x, 0, 8)[0] == 3001, "words are those of the first call"


@pytest.mark.parametrize("offset", [0, 1])
def test_a_status_is_the_error_of_its_step(toy: Toy, offset: int) -> None:
    entry = toy.link(program([step(1, INPUT, ARENA), step(0, ARENA, RESULT), step(1, ARENA, RESULT)]))
    assert entry is not None
    arena, x = torch.zeros(64), torch.randn(9)[offset : 8 + offset]
    for _ in range(2):
        with pytest.raises(StepError) as raised:
            entry(arena.data_ptr(), 0, x, 7, 8)
        assert raised.value.step == 1
        assert isinstance(raised.value.cause, ZeroDivisionError)
        assert str(raised.value.cause) == "7"


def test_what_does_not_compile_is_the_error_of_its_step(toy: Toy) -> None:
    entry = toy.link(program([step(1, INPUT, ARENA), step(-1, ARENA, RESULT)]))
    assert entry is not None
    with pytest.raises(StepError, match="refuses") as raised:
        entry(torch.zeros(64).data_ptr(), 0, torch.randn(8), 0, 8)
    assert raised.value.step == 1


def test_other_launches_are_not_linked(toy: Toy) -> None:
    assert toy.link(program([step(1, INPUT, RESULT), Step(lambda buffers, symbols: None, (), ())])) is None


def test_wrong_arguments_are_refused(toy: Toy) -> None:
    entry = toy.link(program([step(1, INPUT, RESULT)]))
    assert entry is not None
    with pytest.raises(TypeError, match="number of arguments"):
        entry(0, 0, torch.randn(8), 0)
    for arguments in ((0, 0, "no tensor", 0, 8), (0, 0, torch.randn(8), "no number", 8)):
        with pytest.raises((TypeError, RuntimeError)):
            entry(*arguments)


def test_threads_call_at_once(toy: Toy) -> None:
    entry = toy.link(program([step(1, INPUT, RESULT), step(1, INPUT, RESULT)], length=Argument(1)))
    assert entry is not None
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((1000 + seed,), float(seed))
        for _ in range(300):
            if not torch.equal(entry(0, 0, x, seed, len(x)), x + 1 + seed):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


# triton_gpu's


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


@needs_triton
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


@needs_triton
def test_no_programs_are_no_launch(board: Board) -> None:
    entry = linked(board, Step(board.fixed(doubled, 2, programs=0), (INPUT, RESULT), ()))
    assert entry(0, 0, torch.randn(8)).shape == (8,)
    assert board.launches == board.loads == []


@needs_triton
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


@needs_triton
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


@needs_triton
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


@needs_triton
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


@needs_triton
def test_what_triton_refuses_is_the_error_of_its_step(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    made = board.fixed(doubled, 2)

    def refuses(*_: Any) -> Any:
        raise RuntimeError("no registers left")

    monkeypatch.setattr(type(made.launcher), "loaded", refuses)
    entry = linked(board, Step(board.fixed(doubled, 2), (INPUT, ARENA), ()), Step(made, (ARENA, RESULT), ()))
    with pytest.raises(StepError, match="no registers") as raised:
        entry(torch.zeros(64).data_ptr(), 0, torch.randn(8))
    assert raised.value.step == 1


@needs_triton
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
