"""The host side of a transfer: tensors as plain bytes, dtype conversion with a range check, layouts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import torch

from vendor_sdk.errors import DeviceError


def require_host(tensor: torch.Tensor) -> None:
    """Raises ``DeviceError`` unless ``tensor`` is dense and in host memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise DeviceError(
            f"a {tensor.layout} tensor on {tensor.device} cannot be uploaded",
            why="a device with its own memory takes dense tensors from host memory",
            fix="move the model and its inputs to the CPU; the compiled graph moves them to the chip",
        )


def lend(tensor: torch.Tensor, use: Callable[[memoryview], None]) -> None:
    """Calls ``use`` with the bytes of ``tensor`` in row-major order: flat, writable, of its own memory when it is contiguous
    and of a copy else. Bytes carry every dtype: bfloat16 as raw bits, bool as 0 and 1.

    Raises:
        DeviceError: whoever received the memoryview (or a piece of it) still holds it.
    """
    dense = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))  # a size of one may have any stride
    array = dense.view(torch.uint8).numpy()
    held = weakref.ref(array)
    view = array.data
    del array, dense
    use(view)
    del view
    for generation in (0, 2):  # a cycle in the vendor's wrapper code (ctypes.cast makes one) is no retention
        if held() is None:
            return
        gc.collect(generation)
    if held() is not None:
        raise DeviceError(
            "the device kept the memoryview of a copy after the copy returned",
            why="host memory changes and is reused as soon as copy_in or copy_out returns",
            fix="copy the bytes out of (or into) the memoryview before returning",
        )


def convert(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``tensor`` in ``dtype``, its bits those of its values (lazy conjugation and negation applied).

    Raises:
        DeviceError: an integer does not fit ``dtype``.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == dtype:
        return tensor
    if _is_integer(tensor.dtype) and _is_integer(dtype) and tensor.numel():
        limits = torch.iinfo(dtype)
        low, high = (int(bound) for bound in tensor.aminmax())
        if low < limits.min or high > limits.max:
            name = str(dtype).removeprefix("torch.")
            source = str(tensor.dtype).removeprefix("torch.")
            raise DeviceError(
                f"value {high if high > limits.max else low} of an {source}{list(tensor.shape)} tensor does not fit {name}",
                why=f"the device has no {source}: such values are {name} there, from {limits.min} to {limits.max}",
                fix=f"keep the values inside that range (large sentinels included), or do without no_{source} in the backend's "
                "legalization",
            )
    return tensor.to(dtype)


def with_strides(content: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A new tensor with the values of ``content`` that lies in memory with ``strides`` (in elements)."""
    result = torch.empty_strided(content.shape, tuple(strides), dtype=content.dtype)
    if _distinct(content.shape, strides):
        return result.copy_(content)
    # Elements share memory, which copy_ refuses: write through positions; where several meet, they carry equal values.
    extent = result.untyped_storage().nbytes() // content.dtype.itemsize
    positions = torch.arange(extent).as_strided(content.shape, tuple(strides))
    result.as_strided((extent,), (1,))[positions] = content
    return result


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _distinct(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two elements share memory, as far as ordered strides can tell."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True
