"""What native code needs to know of torch beyond its Python interface.

Checked on torch 2.11 to 2.14. The ``aoti_torch_*`` functions and ``torch_from_blob`` are torch's stable C interface, which
AOTInductor's compiled models use; ``THPVariable_Wrap`` is exported for C++ extensions. Where a ``torch.Tensor`` keeps its
``at::Tensor`` is found by looking.
"""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

DTYPE_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
}
"""c10::ScalarType, whose numbers are part of torch's file formats."""


class Functions(ctypes.Structure):
    """The struct ``Torch`` of ``vendor_sdk/native/before.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("data_ptr", "strides", "sizes", "empty_strided", "from_blob", "remove", "wrap")),
        ("tensor_type", ctypes.c_void_p),
        ("parameter_type", ctypes.c_void_p),
        ("handle_offset", ctypes.c_int64),
    ]


_NAMES = {
    "data_ptr": "aoti_torch_get_data_ptr",
    "strides": "aoti_torch_get_strides",
    "sizes": "aoti_torch_get_sizes",
    "empty_strided": "aoti_torch_empty_strided",
    "from_blob": "torch_from_blob",
    "remove": "aoti_torch_delete_tensor_object",
}
_WRAPS = "_Z16THPVariable_WrapON2at10TensorBaseE", "_Z16THPVariable_WrapRKN2at10TensorBaseE"
"""``PyObject *THPVariable_Wrap(at::TensorBase &&)``, which leaves an undefined tensor behind, or that of a reference to a
constant: a tensor has two owners then, and when the first goes, torch looks whether this thread has Python's lock."""


@dataclass(frozen=True)
class Unknown:
    """Why native code cannot handle this torch's tensors."""

    reason: str


@functools.cache
def functions() -> Functions | Unknown:
    """Addresses and offsets for ``vendor_sdk/native``."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Unknown("a Python without the global lock lays objects out differently")
    offset = _handle_offset()
    if offset is None:
        return Unknown("a torch.Tensor keeps its at::Tensor somewhere unexpected")
    folder = Path(torch.__file__).parent / "lib"
    try:
        native = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
        found = {field: _address(native, name) for field, name in _NAMES.items()}
        python = ctypes.CDLL(str(folder / "libtorch_python.so"))
        wrap = _address(python, next((name for name in _WRAPS if hasattr(python, name)), _WRAPS[-1]))
    except (OSError, AttributeError) as error:
        return Unknown(str(error))
    return Functions(
        **found, wrap=wrap, tensor_type=id(torch.Tensor), parameter_type=id(torch.nn.Parameter), handle_offset=offset
    )


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _handle_offset() -> int | None:
    """Bytes from a Python tensor to the at::Tensor in it, which is a pointer to the TensorImpl; None when it is not found."""
    tensors = [torch.empty(3), torch.nn.Parameter(torch.empty(2, 2)), torch.empty(4, 4)[1:].t()]
    offsets = {
        offset
        for offset in (16, 24, 32)
        if all(ctypes.c_uint64.from_address(id(t) + offset).value == t._cdata for t in tensors)
        and all(ctypes.c_uint64.from_address(id(t) + 8).value == id(type(t)) for t in tensors)
    }
    return offsets.pop() if len(offsets) == 1 else None
