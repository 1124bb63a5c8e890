"""How dense tensors lie in memory."""

from __future__ import annotations

import pytest
import torch

from vendor_sdk.ir.orders import CHANNELS_LAST, dense_strides, inverse, laid
from vendor_sdk.normalize.order import in_order
from vendor_sdk.pipeline import trace


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 5), (2, 0, 4, 5), (2, 1, 1, 1)])
@pytest.mark.parametrize("order", [None, tuple(CHANNELS_LAST), (3, 1, 0, 2)])
def test_dense_strides_are_those_of_torch(shape: tuple[int, ...], order: tuple[int, ...] | None) -> None:
    moved = range(4) if order is None else order
    made = torch.empty([shape[dim] for dim in moved]).permute(*inverse(tuple(moved)))
    assert made.shape == shape
    assert made.stride() == dense_strides(shape, order)
    assert laid(made, order) is made


def gradients(given: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    given = torch.where(x.relu() > 0.5, given * 2, 0.0)
    asked = [True, True, False]
    return list(torch.ops.aten.convolution_backward(given, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, asked)[:2])


@pytest.mark.parametrize("last", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_what_is_computed_from_images_keeps_their_order(last: tuple[bool, bool]) -> None:
    given, x = (
        torch.randn(2, 3, 4, 5).contiguous(memory_format=(torch.contiguous_format, torch.channels_last)[n]) for n in last
    )
    inputs = [given, x, torch.randn(3, 3, 3, 3)]
    graph = trace(gradients, inputs)
    graph = in_order(graph)
    graph.verify()
    shapes = {node.name: tuple(node.meta["val"].shape) for node in graph.calls() if "where" in node.name}
    assert list(shapes.values()) == [(2, 4, 5, 3) if all(last) else (2, 3, 4, 5)]
    for found, wanted in zip(graph.interpret(*inputs), gradients(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
