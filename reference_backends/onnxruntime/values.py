"""Values of ONNX Runtime over torch's memory, and the other way round: nothing is copied, save floats of eight bits."""

from __future__ import annotations

import ctypes

import onnxruntime as ort
import torch
from onnxruntime.capi import _pybind_state as native
from packaging.version import Version
from torch.utils import dlpack

from vendor_sdk import FLOAT8

CPU_DEVICE = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
"""Where torch's tensors are."""

BOOLS_PASS = Version(ort.__version__) >= Version("1.32")
"""Whether DLPack's bools are bools to ONNX Runtime; before, they are said beside uint8."""


def shared(tensor: torch.Tensor) -> ort.OrtValue:
    """A contiguous tensor of the host as a value, which keeps its memory alive."""
    plain = tensor.detach()
    if BOOLS_PASS:
        return ort.OrtValue(native.OrtValue.from_dlpack(plain.__dlpack__()))
    truth = plain.dtype is torch.bool
    capsule = (plain.view(torch.uint8) if truth else plain).__dlpack__()
    return ort.OrtValue(native.OrtValue.from_dlpack(capsule, truth))


def torch_tensor(value: native.OrtValue, dtype: torch.dtype) -> torch.Tensor:
    """A value in the memory of the host as a tensor, which keeps its memory alive. DLPack may have uint8 where ``dtype`` is
    bool; floats of eight bits, which ONNX Runtime does not give to it, are copied."""
    if dtype in FLOAT8:
        result = torch.empty(value.shape(), dtype=dtype)
        ctypes.memmove(result.data_ptr(), value.data_ptr(), result.nbytes)
        return result
    tensor: torch.Tensor = dlpack.from_dlpack(value.to_dlpack())
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
