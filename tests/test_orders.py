"""How dense tensors lie in memory."""

from __future__ import annotations

import pytest
import torch

from vendor_sdk.ir.orders import CHANNELS_LAST, dense_strides, inverse, laid


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 5), (2, 0, 4, 5), (2, 1, 1, 1)])
@pytest.mark.parametrize("order", [None, tuple(CHANNELS_LAST), (3, 1, 0, 2)])
def test_dense_strides_are_those_of_torch(shape: tuple[int, ...], order: tuple[int, ...] | None) -> None:
    moved = range(4) if order is None else order
    made = torch.empty([shape[dim] for dim in moved]).permute(*inverse(tuple(moved)))
    assert made.shape == shape
    assert made.stride() == dense_strides(shape, order)
    assert laid(made, order) is made
