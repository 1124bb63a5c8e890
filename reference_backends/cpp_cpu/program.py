"""Programs: a run of launches as one call from Python into C++ (``Emitter.link``).

The callable is the SDK's (``vendor_sdk.Linker``), compiled once per machine with entry.cpp. It calls kernels by their address.
Every kernel is reached through a function of one signature, ``int32_t flat(void *const *buffers, const int64_t *numbers, Spare
spare)``, which stands beside it in its translation unit.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from reference_backends.cpp_cpu import compiler
from vendor_sdk import Entry, Kernel, Launch, Linker, LoopKernel, NativeCall, Operand, Program, Step, float_bits

ERRORS: Mapping[int, Callable[[], Exception]] = {
    1: lambda: RuntimeError("ZeroDivisionError"),
    2: lambda: IndexError("index out of range"),
    3: lambda: MemoryError("no memory for a kernel's scratch buffer"),
    4: lambda: RuntimeError("pivots must be between 1 and the number of rows"),
}
"""Status of a kernel (``Status`` in base.h) to the exception that torch's own operator raises."""

RELEASE = 1 << 17
"""Bytes touched from which other threads of Python may run meanwhile: the hand-over costs about 100 ns."""


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
        words = [float_bits(number) if isinstance(number, float) else int(number) for number in numbers]
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


class CppLinker(Linker):
    """Calls kernels by their addresses; large results lie in blocks (blocks.h)."""

    text = "\n".join((Path(__file__).parent / name).read_text() for name in ("blocks.h", "entry.cpp"))

    def load(self, source: str) -> ctypes.PyDLL:
        library = compiler.load(source, kind=ctypes.PyDLL)
        library.release.restype = ctypes.c_int64
        return library

    def takes(self, step: Step) -> bool:
        return isinstance(step.launch, CompiledFunction)

    def word(self, launch: Launch, context: int) -> int:
        assert isinstance(launch, CompiledFunction)
        return launch.address

    def error(self, status: int) -> Exception:
        return ERRORS[status]()

    def releases(self, program: Program) -> bool:
        return program.nbytes is None or program.nbytes >= RELEASE


@functools.cache
def _linker() -> CppLinker:
    return CppLinker()


def link(program: Program) -> Entry | None:
    """The program as one callable; ``None`` where a launch is not compiled here or torch's tensors are laid out otherwise."""
    return _linker().link(program)


def release() -> int:
    """Frees idle blocks; how many bytes that gives back."""
    library = _linker.cache_info().currsize and vars(_linker()).get("library")
    return int(library.release()) if library else 0


def prepare() -> None:
    """Begins to compile in the background what ``link`` needs."""
    if Linker.possible():
        compiler.start(_linker().source)
