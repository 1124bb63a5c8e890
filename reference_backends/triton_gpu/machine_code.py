"""One of Triton's functions as machine code, for this machine's GPU or for one that is elsewhere.

A launch learns from its arguments what it is compiled for. Here that is said with no arguments at hand, so that Triton's cache
has the machine code when the first launch asks for it, by the same key.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from packaging.version import Version

from vendor_sdk import CompilerError

SIGNATURE = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*u1",
    torch.float8_e4m3fn: "*u8",
    torch.float8_e5m2: "*u8",
}

DISTURBED = "AST constructor recursion depth mismatch"
"""What Python 3.11 says of a syntax tree whose depth other threads miscounted."""
TRIES = 10
"""Of one compilation."""
FAILED = "PassManager::run failed"
"""What Triton says where its own passes make an invalid program, or find one."""
Result = TypeVar("Result")


class Argument(NamedTuple):
    """What a function is compiled for, of one of its arguments.

    Attributes:
        type: as Triton names it.
        even: whether it is a multiple of 16.
        one: whether it is 1, and may be a constant.
    """

    type: str
    even: bool = False
    one: bool = False


def pointer(dtype: torch.dtype, *, aligned: bool = True) -> Argument:
    """A buffer. Torch aligns what it allocates to 16 bytes and more."""
    return Argument(SIGNATURE[dtype], aligned)


def number(value: int) -> Argument:
    """A number of a call."""
    return Argument("i32" if -(2**31) <= value < 2**31 else "i64", value % 16 == 0, value == 1)


def compiled(
    function: Any, arguments: Sequence[Argument], values: Sequence[Any], settings: Mapping[str, Any], target: Any
) -> Any:
    """A function compiled for ``target``, from Triton's cache where that has it: a ``CompiledKernel``, not loaded.

    Args:
        function: as ``triton.jit`` made it.
        arguments: those before its constants.
        values: of its constants.
        settings: what Triton's compiler is told.
        target: a ``GPUTarget``.

    Raises:
        CompilerError: with Triton's words.
    """
    import triton
    from triton.compiler import ASTSource

    # Triton's binder notes an empty list for what is specialized for nothing, and for constants (before 3.7: for texts alone);
    # they are in the key of its cache.
    every = Version(triton.__version__) >= Version("3.7")
    kinds: list[str] = []
    constants: dict[tuple[int], Any] = {}
    even: dict[tuple[int], list[Any]] = {}
    for position, (parameter, argument) in enumerate(zip(function.params, arguments, strict=False)):
        if parameter.do_not_specialize:
            kinds.append(argument.type)
        elif argument.one:
            kinds.append("constexpr")
            constants[(position,)] = 1
            if every:
                even[(position,)] = []
        else:
            kinds.append(argument.type)
            even[(position,)] = [["tt.divisibility", 16]] if argument.even else []
    for position, value in enumerate(values, len(kinds)):
        constants[(position,)] = value
        if every or isinstance(value, str):
            even[(position,)] = []
    names = function.arg_names
    signature = dict(zip(names, [*kinds, *("constexpr" for _ in values)], strict=True))
    options = {
        **settings,
        "debug": bool(function.debug) or triton.knobs.runtime.debug,
        "instrumentation_mode": triton.knobs.compilation.instrumentation_mode,
    }
    source = ASTSource(function, signature, constants, even)
    try:
        return with_layouts(lambda chosen: triton.compile(source, target=target, options=chosen), options)
    except OSError:  # of the cache's files
        raise
    except Exception as error:
        raise refused(function, error) from error


def with_layouts(call: Callable[[dict[str, Any]], Result], settings: Mapping[str, Any]) -> Result:
    """What a call returns that compiles as ``settings`` say, or with half as many warps, and so on, where Triton fails: layouts
    follow from the number of threads, and its passes move some of what is loaded behind its use (Triton 3.6)."""
    chosen = dict(settings)
    while True:
        try:
            return undisturbed(functools.partial(call, chosen))
        except RuntimeError as error:
            if str(error) != FAILED or chosen["num_warps"] == 1:
                raise
            chosen["num_warps"] //= 2


def undisturbed(call: Callable[[], Result]) -> Result:
    """What a call returns that parses Python. It is made again where other threads that parse disturbed it: Python 3.11 counts
    the depth of syntax trees for all threads together, and fails where the count is off (CPython's issue 106905)."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except Exception as error:
            if DISTURBED not in "".join(traceback.format_exception(error)):
                raise
    return call()


def target_of(capability: tuple[int, int]) -> Any:
    """A GPU of this compute capability, as Triton names it."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 10 * capability[0] + capability[1], 32)


def refused(function: Any, error: Exception) -> CompilerError:
    """Triton's refusal of a function, in our words and its own."""
    return CompilerError(
        f"triton_gpu: Triton cannot compile {function.__name__}",
        why=str(error),
        where=function.fn.__code__.co_filename,
        fix="report this with the source file: it is a defect of the emitter",
    )


@dataclass(frozen=True)
class Binary:
    """Machine code.

    Attributes:
        name: of the function, one nest of a kernel.
        cubin: machine code (ELF).
        shared_bytes: shared memory of a block.
        registers: of a thread.
        stack_bytes: of a thread, in memory: registers that do not fit, and tables that library functions index.
    """

    name: str
    cubin: bytes
    shared_bytes: int
    registers: int
    stack_bytes: int


def binary(kernel: Any) -> Binary:
    """The machine code of a ``CompiledKernel``, with what the tool that Triton brings reads from it."""
    import triton

    cubin = kernel.asm["cubin"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert found, report
    return Binary(kernel.name, cubin, kernel.metadata.shared, int(found[1]), int(found[2]))


def resources(binaries: Sequence[Binary]) -> dict[str, int]:
    """What the most demanding of some functions takes, in words."""
    if not binaries:
        return {}
    return {
        "registers": max(each.registers for each in binaries),
        "stack bytes": max(each.stack_bytes for each in binaries),
        "shared bytes": max(each.shared_bytes for each in binaries),
    }
