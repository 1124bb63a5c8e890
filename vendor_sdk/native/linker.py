"""Programs as native calls, for emitters whose launches can be made from C.

    Linker    an emitter's words for its launches  ->  one callable of Python a program

The callable interprets a table: for each launch the emitter's word for it, where its buffers are and what numbers it gets. All
that is the same for every chip stands in ``before.h`` and ``entry.c``; the emitter's own text between them says how a launch is
made and where results come from.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vendor_sdk.contract.emitter import Launch
from vendor_sdk.contract.program import Argument, Buffer, Entry, Number, Offset, Program, Step, StepError, float_bits
from vendor_sdk.torch_private import native

_BASES = {"arena": 0, "input": 2, "result": 3}
_TABLE = 1
_READY, _CONTEXT, _HEAD = 0, 1, 9
"""Words of the table: the first two are written by the first call."""


class Linker(abc.ABC):
    """Makes one native call of a program (``Emitter.link``).

    The text is C, or C++ if ``load`` compiles that. It stands between ``before.h``, whose types it may use, and ``entry.c`` of
    ``vendor_sdk/native``, and defines:

        typedef struct Call { ... } Call;   // what holds during one call
        static Outcome prepare_call(Call *, i64 context, u64 bits);
        static Outcome allocate(const Call *, const Result *, void **handle, void **data);
        static i32 launch(const Call *, i64 word, void *const *buffers, i64 buffer_count,
                          const i64 *numbers, i64 number_count, Spare);

    ``prepare_call`` gets the addresses of all inputs, joined bit by bit. ``allocate`` makes an ``at::Tensor``, of any content.
    ``launch`` gets buffers and numbers in the order of ``Step``, float64 ones as their bits; what it returns other than 0 is a
    status, and ends the call. It runs without Python's lock where ``releases`` says so.

    A call of which ``context``, ``word``, ``prepare_call`` or ``allocate`` says so is made from Python instead
    (``launch_from_python``).

    Attributes:
        text: as above.
        device: where results of calls lie that are made from Python.
    """

    text: str
    device: torch.device | None = None

    @abc.abstractmethod
    def load(self, source: str) -> ctypes.PyDLL:
        """The library of ``source``, compiled. Called once."""

    @abc.abstractmethod
    def takes(self, step: Step) -> bool:
        """Whether C can make this launch; if not, the program is not linked."""

    @abc.abstractmethod
    def word(self, launch: Launch, context: int) -> int | None:
        """What the text's ``launch`` gets for a launch that is taken: an address, mostly. Asked by the first call that is made
        from C, and may wait for compilers; what it raises, the program raises at that step. None: not from C.

        Whatever the word refers to lives as long as the launch does."""

    @abc.abstractmethod
    def error(self, status: int) -> Exception:
        """What a status of ``launch`` means."""

    def context(self) -> int | None:
        """What words are for, such as a device: the text's ``prepare_call`` gets it. None: this call is not made from C."""
        return 0

    def releases(self, program: Program) -> bool:
        """Whether other threads of Python may run meanwhile: the hand-over costs about 100 ns."""
        return True

    def launch_from_python(self, launch: Launch, addresses: Sequence[int], numbers: Sequence[int | float]) -> None:
        """Makes a launch from Python, of buffers at ``addresses``."""
        raise NotImplementedError(f"{type(self).__name__} makes all launches from C")

    @property
    def source(self) -> str:
        """What ``load`` gets."""
        before, entry = ((Path(__file__).parent / name).read_text() for name in ("before.h", "entry.c"))
        return "\n".join((before, self.text, entry))

    @staticmethod
    def possible() -> bool:
        """Whether native code can handle this torch's tensors."""
        return not isinstance(native.functions(), native.Unknown)

    @functools.cached_property
    def library(self) -> ctypes.PyDLL | None:
        """The library, told where torch is; None where native code cannot handle this torch's tensors."""
        functions = native.functions()
        if isinstance(functions, native.Unknown):
            return None
        # PyDLL: its functions are called with Python's lock held, as functions of CPython must be.
        library = self.load(self.source)
        library.make.argtypes = [ctypes.py_object]
        library.make.restype = ctypes.py_object
        library.setup.restype = None
        library.setup(ctypes.byref(functions))
        return library

    def link(self, program: Program) -> Entry | None:
        """The program as one callable; None where a launch is not taken, or torch's tensors are laid out otherwise."""
        if not all(map(self.takes, program.steps)) or self.library is None:
            return None
        table = [
            0,
            0,
            len(program.inputs),
            len(program.results),
            len(program.numbers),
            len(program.steps),
            max(len(step.buffers) for step in program.steps),
            max(len(step.numbers) for step in program.steps),
            int(self.releases(program)),
        ]
        assert len(table) == _HEAD
        table += map(int, program.numbers)
        for strides in program.inputs:
            table += [-1] if strides is None else [len(strides), *_numbers(strides)]
        for result in program.results:
            table += [native.DTYPE_CODES[result.dtype], result.dtype.itemsize, int(result.passing)]
            table += [len(result.shape), *_numbers(result.shape)]
        places = []
        for step in program.steps:
            places.append(len(table))
            table += [0, len(step.buffers), len(step.numbers)]
            for buffer in step.buffers:
                table += _place(buffer)
            table += _numbers(step.numbers)
            table += [len(step.spare)]
            for spare in step.spare:
                table += [*_numbers([spare.nbytes]), *_place(spare.buffer)]
        words = bytearray(struct.pack(f"<{len(table)}q", *table))
        complete = functools.partial(self._complete, words, places, program.steps)
        made = words, program.as_traced, self._fail, complete, _Aside(self, program)
        entry: Entry = self.library.make(made)
        return entry

    def _complete(self, table: bytearray, places: Sequence[int], steps: Sequence[Step]) -> None:
        """Writes the words of the launches, whose compilers may still be at work when a program is made, into its table."""
        context = self.context()
        if context is None:
            return
        found = []
        for number, step in enumerate(steps):
            try:
                found.append(self.word(step.launch, context))
            except Exception as error:
                raise StepError(number, error) from error
        if None in found:
            return
        for place, word in zip(places, found, strict=True):
            struct.pack_into("<q", table, 8 * place, word)
        struct.pack_into("<q", table, 8 * _CONTEXT, context)
        struct.pack_into("<q", table, 8 * _READY, 1)

    def _fail(self, step: int, status: int) -> None:
        raise StepError(step, self.error(status))


@dataclass(frozen=True)
class _Aside:
    """A program whose launches are made from Python: an ``Entry``."""

    linker: Linker
    program: Program

    def __call__(self, arena: int, offsets: int, *given: Any) -> Any:
        count = len(self.program.inputs)
        numbers = given[count:]

        def number(value: Number) -> Any:
            return numbers[value.index] if isinstance(value, Argument) else value

        inputs = list(given[:count])
        for place, strides in enumerate(self.program.inputs):
            if strides is not None:
                inputs[place] = self.program.as_traced(inputs[place], tuple(map(number, strides)))
        results = [
            torch.empty(tuple(map(number, result.shape)), dtype=result.dtype, device=self.linker.device)
            for result in self.program.results
        ]
        tensors = {"input": inputs, "result": results}

        def address(buffer: Buffer) -> int:
            offset = buffer.offset
            if isinstance(offset, Offset):
                offset = ctypes.c_int64.from_address(offsets + 8 * offset.index).value
            return int(offset + (arena if buffer.base == "arena" else tensors[buffer.base][buffer.index].data_ptr()))

        for place, step in enumerate(self.program.steps):
            try:
                self.linker.launch_from_python(step.launch, [*map(address, step.buffers)], [*map(number, step.numbers)])
            except Exception as error:
                raise StepError(place, error) from error
        return None if not results else results[0] if len(results) == 1 else tuple(results)


def _place(buffer: Buffer) -> list[int]:
    """Base, which of its kind, and offset."""
    if isinstance(buffer.offset, Offset):
        return [_TABLE, 0, buffer.offset.index]
    return [_BASES[buffer.base], buffer.index, buffer.offset]


def _numbers(values: Sequence[Number]) -> list[int]:
    """Pairs: 0 and a constant, or 1 and which number of the call."""
    pairs: list[int] = []
    for value in values:
        if isinstance(value, Argument):
            pairs += [1, value.index]
        else:
            pairs += [0, float_bits(value) if isinstance(value, float) else int(value)]
    return pairs
