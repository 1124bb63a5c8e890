"""From Triton text to launchable functions on this machine's GPU, or to machine code for one that is elsewhere.

Triton reads its functions from files: generated text is kept in the cache directory, named by its hash. Binaries are Triton's
own business, which keeps them in its own cache: a function of known sizes is compiled by a thread while the graph is compiled,
others at their first launch. For a GPU that is elsewhere all are compiled at once, and nothing is launched.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from reference_backends.triton_gpu.launch import Begun, Fixed, Several
from reference_backends.triton_gpu.machine import Machine, machine
from reference_backends.triton_gpu.machine_code import Argument, pointer
from vendor_sdk import CompilerError, LoopKernel, cache_dir, hoist, index

OLDEST = (8, 0)
"""Compute capability below which bfloat16 arithmetic does not exist."""


LARGE = 1 << 20
"""What sizes that only the call knows are taken for, where nothing will be called here."""


def requires() -> str:
    """What is missing on this machine, or ``""``."""
    if missing := compiles():
        return missing
    if not torch.cuda.is_available():
        build = torch.version.cuda
        return f"no CUDA device ({f'torch is built for CUDA {build}' if build else 'torch is a build without CUDA'})"
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        name = torch.cuda.get_device_name()
        return f"{name} has compute capability {capability[0]}.{capability[1]}, and {OLDEST[0]}.{OLDEST[1]} is needed"
    return ""


def compiles() -> str:
    """What is missing to compile for a GPU that is elsewhere, or ``""``."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'triton>=3.6'"
    return ""


@functools.cache
def toolchain() -> str:
    """Identity of compiler and processor: part of every key."""
    import triton

    gpu = machine() if torch.cuda.is_available() else None
    processor = f"compute capability {gpu.capability}, {gpu.processors} multiprocessors" if gpu else None
    return f"triton {triton.__version__}, {processor}"


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


def elsewhere(module: ModuleType, kernel: LoopKernel, gpu: Machine) -> list[Begun]:
    """Begins to compile an emitted kernel for a GPU that is elsewhere: the ``CompiledKernel`` of each function it may launch.

    Of functions whose sizes only the call knows, the one for the largest that they are launched for.

    Args:
        module: of the kernel's text.
    """
    from reference_backends.triton_gpu.divide import divided, rows
    from reference_backends.triton_gpu.emitter import functions
    from reference_backends.triton_gpu.nest import NestText

    launch = getattr(module, kernel.name)
    if isinstance(launch, Fixed | Several):
        return launch.ahead([param.dtype for param in kernel.params], len(kernel.symbols), gpu)
    parts = divided(kernel)
    hoisted = hoist.hoist(parts.kernel)
    kernel = hoisted.kernel
    given = [pointer(p.dtype) for p in (*kernel.params, *kernel.scratch)]
    given += [Argument("*i64") for s in kernel.symbols if s.role == "seed"]
    given += [Argument("i32" if s.role == "size" else "i64") for s in kernel.symbols if s.role != "seed"]
    largest = max((_guess(p.size) for p in (*kernel.params, *kernel.scratch)), default=0)
    begun = []
    for nest in (nest for found in functions(hoisted, parts.when) for _, nest in found):
        leads, count, lengths = nest.sizes()
        longest = rows(nest.nest)[2] if isinstance(nest, NestText) and nest.whole else LARGE
        known = tuple(longest if n.value is None else n.value for n in lengths)
        sizes = _guess(leads), _guess(count), known, largest
        begun.append(getattr(module, f"launch_{nest.name}").ahead(given, sizes, gpu))
    return [each for each in begun if each is not None]


def _guess(size: index.Int) -> int:
    """A size to choose blocks for: the size itself, or a large one where it is symbolic."""
    return LARGE if size.value is None else size.value
