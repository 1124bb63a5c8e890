"""Programs: a run of launches as one call from Python into C++ (``Emitter.link``).

The callable is compiled once per machine (entry.cpp) and interprets a table: for each launch the kernel's address, where its
buffers are and what numbers it gets. Every kernel is reached through a function of one signature,
``int32_t flat(void *const *buffers, const int64_t *numbers, Spare spare)``, which stands beside it in its translation unit.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from reference_backends.cpp_cpu import compiler, torch_abi
from vendor_sdk import Kernel, LoopKernel, NativeCall, Operand, StepError, program

ERRORS: Mapping[int, Callable[[], Exception]] = {
    1: lambda: RuntimeError("ZeroDivisionError"),
    2: lambda: IndexError("index out of range"),
    3: lambda: MemoryError("no memory for a kernel's scratch buffer"),
}
"""Status of a kernel (``Status`` in base.h) to the exception that torch's own operator raises."""

RELEASE = 1 << 17
"""Bytes touched from which other threads of Python may run meanwhile: the hand-over costs about 100 ns."""
LARGE = 1 << 17
"""Bytes of a result from which it lies in a block (blocks.h): the C library gives smaller ones from memory that it keeps."""
_BASES = {"arena": 0, "input": 2, "result": 3}
_TABLE = 1


def flat(kernel: LoopKernel, ctypes_of: Mapping[torch.dtype, str]) -> str:
    """Text of the function through which a program calls ``kernel``."""
    arguments = [
        f"({'const ' if p.role == 'in' else ''}{ctypes_of[p.dtype]} *)buffers[{i}]" for i, p in enumerate(kernel.params)
    ]
    for i, symbol in enumerate(kernel.symbols):
        arguments.append(f"bits<double>(numbers[{i}])" if symbol.dtype == torch.float64 else f"numbers[{i}]")
    return (
        f'extern "C" int32_t flat_{kernel.name}(void *const *buffers, const int64_t *numbers, Spare spare) {{\n'
        f"  return {kernel.name}({', '.join((*arguments, 'spare'))});\n}}\n"
    )


class _Spare(ctypes.Structure):
    """``Spare`` of base.h."""

    _fields_ = (("memory", ctypes.c_void_p), ("bytes", ctypes.c_int64))


class CompiledFunction:
    """A launch (``vendor_sdk.Launch``) of a compiled function of the common signature.

    Args:
        library: gives what the function stands in; asked when the function is needed, since compilers may still be at work.
        name: of the function.
    """

    def __init__(self, library: Callable[[], ctypes.CDLL], name: str) -> None:
        self._library, self._name = library, name

    @functools.cached_property
    def _function(self) -> Any:
        function = getattr(self._library(), self._name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, _Spare]
        function.restype = ctypes.c_int32
        return function

    @functools.cached_property
    def address(self) -> int:
        """Of the function."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def __call__(self, buffers: Sequence[Any], numbers: Sequence[int | float], spare: torch.Tensor | None = None) -> None:
        """Runs it. ``spare``: flat bytes, aligned to 64, for whatever memory it needs besides."""
        words = [_bits(number) if isinstance(number, float) else int(number) for number in numbers]
        pointers = [buffer.data_ptr() for buffer in buffers]
        given = _Spare() if spare is None else _Spare(spare.data_ptr(), spare.numel())
        status = self._function((ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(words))(*words), given)
        if status:
            raise ERRORS[status]()


def native_kernel(native: Callable[..., NativeCall | None]) -> Kernel:
    """A native kernel with its form for tensors, derived from it; results are the operands that its call does not list."""

    def call(*args: Any, **kwargs: Any) -> None:
        tensors: dict[int, torch.Tensor] = {}

        def operand(argument: Any) -> Any:
            if not isinstance(argument, torch.Tensor):
                return argument
            found = Operand(argument.dtype, tuple(argument.shape), argument.stride(), 0)
            tensors[id(found)] = argument
            return found

        operands = [operand(argument) for argument in args]
        found = native(*operands, **{name: operand(argument) for name, argument in kwargs.items()})
        assert found is not None, "sizes of tensors are numbers"
        given = {id(each) for each in found.operands}
        results = [tensors[id(each)] for each in operands if isinstance(each, Operand) and id(each) not in given]
        found.launch([*(tensors[id(each)] for each in found.operands), *results], found.numbers)  # type: ignore[arg-type]

    return Kernel(call, destination=True, native=native)


def kernel_function(library: Callable[[], ctypes.CDLL], kernel: LoopKernel) -> CompiledFunction:
    """The launch of an emitted kernel, whose text ``flat`` follows; ``library`` as for ``CompiledFunction``."""
    return CompiledFunction(library, f"flat_{kernel.name}")


def link(given: program.Program) -> program.Entry | None:
    """The program as one callable; ``None`` where a launch is not compiled here or torch's tensors are laid out otherwise."""
    library = _library()
    if library is None or not all(isinstance(step.launch, CompiledFunction) for step in given.steps):
        return None
    table = [
        0,  # whether the addresses are there
        len(given.inputs),
        len(given.results),
        len(given.numbers),
        len(given.steps),
        max(len(step.buffers) for step in given.steps),
        max(len(step.numbers) for step in given.steps),
        int(given.nbytes is None or given.nbytes >= RELEASE),
        LARGE,
        *map(int, given.numbers),
    ]
    for strides in given.inputs:
        table += [-1] if strides is None else [len(strides), *_numbers(strides)]
    for result in given.results:
        table += [torch_abi.DTYPE_CODES[result.dtype], result.dtype.itemsize, len(result.shape), *_numbers(result.shape)]
    addresses: dict[int, CompiledFunction] = {}
    for step in given.steps:
        addresses[len(table)] = step.launch  # type: ignore[assignment]
        table += [0, len(step.buffers), len(step.numbers)]
        for buffer in step.buffers:
            table += _place(buffer)
        table += _numbers(step.numbers)
        table += [len(step.spare)]
        for spare in step.spare:
            table += [*_numbers([spare.nbytes]), *_place(spare.buffer)]
    words = bytearray(struct.pack(f"<{len(table)}q", *table))
    # The launches keep their library loaded.
    complete = functools.partial(_complete, words, addresses)
    entry: program.Entry = library.make((words, given.as_traced, _fail, complete))
    return entry


def _complete(table: bytearray, addresses: Mapping[int, CompiledFunction]) -> None:
    """Writes the addresses of the kernels, whose compilers may still be at work when a program is made, into its table."""
    for place, launch in addresses.items():
        struct.pack_into("<q", table, 8 * place, launch.address)
    struct.pack_into("<q", table, 0, 1)


def _place(buffer: program.Buffer) -> list[int]:
    """Base, which of its kind, and offset."""
    if isinstance(buffer.offset, program.Offset):
        return [_TABLE, 0, buffer.offset.index]
    return [_BASES[buffer.base], buffer.index, buffer.offset]


def _numbers(values: Sequence[program.Number]) -> list[int]:
    """Pairs: 0 and a constant, or 1 and which number of the call."""
    pairs: list[int] = []
    for value in values:
        if isinstance(value, program.Argument):
            pairs += [1, value.index]
        else:
            pairs += [0, _bits(value) if isinstance(value, float) else int(value)]
    return pairs


def _bits(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _fail(step: int, status: int) -> None:
    raise StepError(step, ERRORS[status]())


def release() -> int:
    """Frees idle blocks; how many bytes that gives back."""
    library = _library.cache_info().currsize and _library()
    return int(library.release()) if library else 0


def prepare() -> None:
    """Begins to compile in the background what ``link`` needs."""
    if not isinstance(torch_abi.functions(), torch_abi.Unknown):
        compiler.start(_source())


def _source() -> str:
    return "\n".join((Path(__file__).parent / name).read_text() for name in ("blocks.h", "entry.cpp"))


@functools.cache
def _library() -> ctypes.PyDLL | None:
    """entry.cpp, compiled and told where torch is."""
    functions = torch_abi.functions()
    if isinstance(functions, torch_abi.Unknown):
        return None
    # PyDLL: its functions are called with Python's lock held, as functions of CPython must be.
    library = compiler.load(_source(), kind=ctypes.PyDLL)
    library.make.argtypes = [ctypes.py_object]
    library.make.restype = ctypes.py_object
    library.setup.restype = None
    library.release.restype = ctypes.c_int64
    library.setup(ctypes.byref(functions))
    return library
