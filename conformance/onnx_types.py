"""What the rules of ONNX's operators share: element types, what no rule covers, reading static inputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


class NotImported(Exception):
    """What no rule covers; the message says it."""


DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
"""ONNX's element types that prims have."""


def refuse(condition: Any, what: str) -> None:
    """Raises ``NotImported`` where the condition holds."""
    if condition:
        raise NotImported(what)


def dtype_of(code: int) -> torch.dtype:
    refuse(code not in DTYPES, f"element type {code}")
    return DTYPES[code]


def ints(value: Any) -> list[int]:
    assert value is not None
    return [int(each) for each in value.reshape(-1).tolist()]


def tensor_of(array: Any) -> torch.Tensor:
    """A copy; numpy has no bfloat16 of its own, and torch reads none of another's."""
    array = np.array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())
