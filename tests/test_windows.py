"""Weights of convolutions have sizes that compiled graphs know, whatever else is a symbol."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from vendor_sdk.capture.windows import know_windows

F = torch.nn.functional
Convolution = Callable[[Tensor, Tensor], Tensor]
WAYS: dict[str, Convolution] = {
    "conv1d": lambda x, w: F.conv1d(x, w),
    "conv2d": lambda x, w: F.conv2d(x, weight=w, stride=2),
    "conv_transpose2d": lambda x, w: F.conv_transpose2d(x, w),
    "operator": lambda x, w: torch.ops.aten.convolution.default(x, w, None, [1], [0], [1], False, [0], 1),
}


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_only_data_tells_stay_symbols() -> None:
    graphs = []

    def backend(module: fx.GraphModule, inputs: object) -> object:
        know_windows(module)
        graphs.append(module)
        return module.forward

    def function(x: Tensor, w: Tensor, chosen: Tensor) -> Tensor:
        return F.conv1d(x, w[chosen.nonzero().squeeze(1)])

    x, w, chosen = torch.randn(2, 3, 9), torch.randn(6, 3, 3), torch.tensor([1, 0, 1, 1, 0, 0])
    torch.testing.assert_close(torch.compile(function, backend=backend)(x, w, chosen), function(x, w, chosen))
    assert any(node.target is torch.conv1d for module in graphs for node in module.graph.nodes)


@pytest.mark.parametrize("name", WAYS)
def test_sizes_of_weights_are_known(name: str) -> None:
    function = WAYS[name]
    sizes: list[tuple[object, ...]] = []

    def backend(module: fx.GraphModule, inputs: object) -> object:
        know_windows(module)
        for node in module.graph.nodes:
            if node.op == "placeholder" and isinstance(fake := node.meta["example_value"], Tensor):
                sizes.append(tuple(size.node.expr.is_number if isinstance(size, torch.SymInt) else True for size in fake.shape))
        return module.forward

    dims = 3 if name in ("conv1d", "operator") else 4
    x, other = (torch.randn(n, 6, *[9 + n + k for k in range(dims - 2)]) for n in (3, 5))
    weight = torch.randn(6 if "transpose" in name else 4, 4 if "transpose" in name else 6, *[5 - k for k in range(dims - 2)])
    compiled = torch.compile(function, backend=backend, dynamic=True)
    torch.testing.assert_close(compiled(x, weight), function(x, weight))
    assert [all(each) for each in sizes] == [False, True]
    compiled(other, weight)
    assert len(sizes) == 2, "another size of the image needs no other graph"
    torch.testing.assert_close(compiled(x, weight[..., :2]), function(x, weight[..., :2]))
    assert len(sizes) == 4, "another window does"
