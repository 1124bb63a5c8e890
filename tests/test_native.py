"""Programs as native calls: a linker whose text of C stands here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from vendor_sdk import Linker, Program, Step, StepError
from vendor_sdk.contract.program import Argument, Buffer, Offset, Result, Spare

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

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
