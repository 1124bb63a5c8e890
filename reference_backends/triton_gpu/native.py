"""Launches of one graph as one call from Python into C (``Emitter.link``), for functions of known sizes.

Python takes longer to launch a small kernel than the GPU needs for it, and longer for an empty tensor than C does. What Triton
compiled is launched by CUDA's driver here, as Triton's own launcher does.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from reference_backends.triton_gpu.launch import Fixed, Several
from vendor_sdk import Artifacts, CompilerError, Entry, Launch, Linker, Program, Step

FLAGS = ("-O2", "-shared", "-fPIC", "-x", "c")
CUDA = 1
"""c10::DeviceType, part of torch's C interface."""
NO_SCRATCH = -1
"""Status of a launch that got no memory for what one of its functions leaves to the next."""


@functools.cache
def compiler() -> str | None:
    """Path of the C compiler that Triton takes: ``$CC``, else the first of gcc, clang, cc on PATH; None when there is none."""
    for name in (os.environ.get("CC"), "gcc", "clang", "cc"):
        if name and (found := shutil.which(name)):
            return found
    return None


class Gpu(ctypes.Structure):
    """The struct ``Gpu`` of entry.c."""

    _fields_ = (
        ("launch_kernel", ctypes.c_void_p),
        ("current_context", ctypes.c_void_p),
        ("current_device", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
        ("settings", ctypes.py_object),
        ("entering", ctypes.py_object),
        ("leaving", ctypes.py_object),
        ("calls", ctypes.py_object),
        ("device_type", ctypes.c_int64),
    )


@functools.cache
def driver() -> ctypes.CDLL:
    """CUDA's."""
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def gpu() -> Gpu | None:
    """Functions of CUDA's driver and of torch (2.9 and later); None where they are not to be had."""
    import triton

    libraries = Path(torch.__file__).parent / "lib"
    try:
        current = ctypes.CDLL(str(libraries / "libtorch_cpu.so")).aoti_torch_get_current_device_index
        stream = ctypes.CDLL(str(libraries / "libtorch_cuda.so")).aoti_torch_get_current_cuda_stream
        found = [driver().cuLaunchKernel, driver().cuCtxGetCurrent, current, stream]
    except (OSError, AttributeError):
        return None
    names = "launch_enter_hook", "launch_exit_hook", "calls"
    addresses = (ctypes.cast(function, ctypes.c_void_p) for function in found)
    return Gpu(*addresses, triton.knobs.runtime, *names, CUDA)


@dataclass(frozen=True)
class Address:
    """A buffer of a launch from Python, of which the address is known: Triton asks for no more."""

    address: int
    dtype: torch.dtype
    device: torch.device

    def data_ptr(self) -> int:
        return self.address

    def view(self, dtype: torch.dtype) -> Address:
        return replace(self, dtype=dtype)


class TritonLinker(Linker):
    """Launches what Triton compiled.

    Calls are made from Python whose buffers do not begin with a vector, on another device than that of the first one, and while
    somebody listens to launches (Triton's hooks).

    Args:
        gpu: what launches.
    """

    text = (Path(__file__).parent / "entry.c").read_text()
    device: torch.device = torch.device("cuda")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def load(self, source: str) -> ctypes.PyDLL:
        library = ctypes.PyDLL(str(built(source)))
        library.setup_gpu.restype = None
        library.setup_gpu(ctypes.byref(self.gpu))
        return library

    def takes(self, step: Step) -> bool:
        return isinstance(step.launch, Fixed | Several)

    def context(self) -> int | None:
        return int(torch.accelerator.current_device_index())

    def word(self, launch: Launch, context: int) -> int | None:
        assert isinstance(launch, Fixed | Several)
        return launch.word(context)

    def error(self, status: int) -> Exception:
        if status == NO_SCRATCH:
            return torch.OutOfMemoryError("CUDA out of memory: none for what one kernel leaves to the next")
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        why = (text.value or b"unknown error").decode(errors="replace")
        return RuntimeError(f"CUDA error {status} at a kernel's launch: {why}")

    def launch_from_python(self, launch: Launch, addresses: Sequence[int], numbers: Sequence[int | float]) -> None:
        assert isinstance(launch, Fixed | Several)
        buffers = [Address(address, dtype, self.device) for address, dtype in zip(addresses, launch.dtypes, strict=True)]
        launch(buffers, [Address(int(seed), torch.int64, self.device) for seed in numbers])


def built(source: str) -> Path:
    """The library of ``source``, from the cache where that has it.

    Raises:
        CompilerError: with the compiler's words.
    """
    path = compiler()
    assert path is not None
    artifacts = Artifacts("triton_gpu")
    key = artifacts.key("entry", path, *FLAGS, source)
    found = artifacts.find(key, ".so")
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="triton_gpu-") as folder:
        text, made = Path(folder) / "entry.c", Path(folder) / "entry.so"
        text.write_text(source)
        done = subprocess.run([path, *FLAGS, str(text), "-o", str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerError(
                f"triton_gpu: {path} refused the program that launches kernels",
                why=done.stderr.strip()[-4000:],
                fix="set CC to a C compiler that Triton can use",
            )
        return artifacts.keep(key, made.read_bytes(), ".so")


@functools.cache
def _linker() -> TritonLinker | None:
    found = gpu()
    return None if found is None or compiler() is None else TritonLinker(found)


def link(program: Program) -> Entry | None:
    """The program as one callable; None where Triton interprets, and where a launch's sizes are those of the call."""
    import triton

    if triton.knobs.runtime.interpret or not torch.cuda.is_available():
        return None
    linker = _linker()
    return None if linker is None else linker.link(program)
