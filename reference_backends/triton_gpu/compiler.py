"""From Triton text to launchable functions, on this machine's GPU or, with none, to machine code for a named one.

Triton reads its functions from files: generated text is kept in the cache directory, named by its hash. Binaries are Triton's
own business, which keeps them in its own cache: a function of known sizes is compiled by a thread while the graph is compiled,
others at their first launch.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from reference_backends.triton_gpu.launch import Plan
from vendor_sdk import CompilerError, LoopKernel, cache_dir, index

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
    torch.bool: "*i1",
}
OLDEST = (8, 0)
"""Compute capability below which bfloat16 arithmetic does not exist."""


def requires() -> str:
    """What is missing on this machine, or ``""``."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'triton>=3.6'"
    if not torch.cuda.is_available():
        build = torch.version.cuda
        return f"no CUDA device ({f'torch is built for CUDA {build}' if build else 'torch is a build without CUDA'})"
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        name = torch.cuda.get_device_name()
        return f"{name} has compute capability {capability[0]}.{capability[1]}, and {OLDEST[0]}.{OLDEST[1]} is needed"
    return ""


@functools.cache
def toolchain() -> str:
    """Identity of compiler and processor: part of every key."""
    import triton

    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    return f"triton {triton.__version__}, compute capability {capability}"


@functools.cache
def load(source: str) -> ModuleType:
    """The module of ``source``, kept as a file.

    Raises ``CompilerError`` when Python refuses the text; what Triton refuses shows at the first launch.
    """
    key = hashlib.sha256(source.encode()).hexdigest()[:32]
    folder = cache_dir("triton_gpu")
    path = folder / f"{key}.py"
    if not path.exists() or path.read_text() != source:
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
            file.write(source)
        os.replace(file.name, path)
    return _imported(f"vendor_sdk_triton_{key}", path)


def _imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where Triton looks for what a function refers to
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise CompilerError("triton_gpu: generated code is not Python", why=str(error), where=str(path)) from error
    return module


@dataclass(frozen=True)
class Binary:
    """A function compiled for a named target.

    Attributes:
        name: of the function, one nest of the kernel.
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


def compile_offline(kernel: LoopKernel, text: str, target: str = "cuda:90") -> list[Binary]:
    """Compiles an emitted kernel for ``target`` (``"cuda:90"``: compute capability times ten), with no GPU needed.

    Args:
        text: what the emitter made of ``kernel``.

    Raises:
        CompilerError: with Triton's words.
    """
    from reference_backends.triton_gpu.emitter import HEADER, divided, variants

    module = load(f"{HEADER}\n\n{text}")
    kernel = divided(kernel)
    types = [SIGNATURE[p.dtype] for p in (*kernel.params, *kernel.scratch)]
    types += ["*i64" for s in kernel.symbols if s.role == "seed"]
    types += ["i32" if s.role == "size" else "i64" for s in kernel.symbols if s.role != "seed"]
    binaries = []
    for nest in (nest for position in range(len(kernel.body)) for _, nest in variants(kernel, position)):
        leads, count, lengths = nest.sizes()
        plan = getattr(module, f"launch_{nest.name}").plan(_guess(leads), _guess(count), [*map(_guess, lengths)], largest=1)
        binaries.append(machine_code(getattr(module, nest.name), types, plan, target))
    return binaries


def machine_code(
    function: Any, types: Sequence[str], plan: Plan, target: str, divisible: Collection[int] = (), ones: Collection[int] = ()
) -> Binary:
    """A function compiled for ``target``.

    Args:
        function: as ``triton.jit`` made it.
        types: of its arguments, as Triton names them; constants follow.
        plan: what its launch would decide.
        divisible: numbers, by position, that are multiples of 16.
        ones: numbers, by position, that are 1, which Triton makes constants.

    Raises:
        CompilerError: with Triton's words.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, values = function.arg_names, plan.values
    kinds = ["constexpr" if i in ones else kind for i, kind in enumerate(types)]
    signature = dict(zip(names, [*kinds, *("constexpr" for _ in values)], strict=True))
    fixed = {**{names[i]: 1 for i in ones}, **dict(zip(names[len(types) :], values, strict=True))}
    # Torch aligns what it allocates to 16 bytes and more; a launch finds the same in the pointers.
    known = [i for i, kind in enumerate(types) if kind.startswith("*") or i in divisible]
    aligned = {(i,): [["tt.divisibility", 16]] for i in known}
    source = ASTSource(function, signature, fixed, aligned)
    architecture = int(target.removeprefix("cuda:"))
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=dict(plan.settings))
    except Exception as error:
        raise CompilerError(
            f"triton_gpu: Triton cannot compile {function.__name__} for {target}",
            why=str(error),
            where=function.fn.__code__.co_filename,
        ) from error
    cubin = compiled.asm["cubin"]
    return Binary(function.__name__, cubin, compiled.metadata.shared, *_resources(cubin))


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, as the tool that Triton brings reads them from machine code."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert found, report
    return int(found[1]), int(found[2])


def _guess(size: index.Int) -> int:
    """A size to choose blocks for: the size itself, or a large one where it is symbolic."""
    return 1 << 20 if size.value is None else size.value
