"""``as_strided`` of what is computed counts in the memory that eager would have, however decompositions lay it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.toys import use_kind

Function = Callable[[Tensor], Tensor]


def image(x: Tensor) -> Tensor:
    return x.reshape(1, 2, 3, -1).to(memory_format=torch.channels_last)


def normalized(x: Tensor) -> Tensor:
    return F.layer_norm(x.t(), (4,))


def part_of_a_part(x: Tensor) -> Tensor:
    return normalized(x).as_strided((3, 3), (2, 3), 1).as_strided((4, 2), (2, 1))


def written(x: Tensor) -> Tensor:
    y = normalized(x).clone()
    y.as_strided((2, 2), (3, 1), 1).mul_(3)
    return y


FUNCTIONS: dict[str, Function] = {
    "layer norm": lambda x: normalized(x).as_strided((2, 3), (1, 2)),
    "rows": lambda x: normalized(x)[1:].as_strided((2, 3), (1, 2)),
    "rows from elsewhere": lambda x: normalized(x)[1:].as_strided((2, 3), (1, 2), 3),
    "part of a part": part_of_a_part,
    "scattered": lambda x: torch.as_strided_scatter(normalized(x), x.new_ones(2, 2), (2, 2), (3, 1), 1),
    "written": written,
    "softmax": lambda x: x.t().softmax(-1).as_strided((2, 3), (1, 2)),
    "index_add": lambda x: x.t().index_add(0, torch.tensor([1]), x.new_ones(1, 4)).as_strided((2, 3), (1, 2)),
    "convolution": lambda x: F.conv2d(image(x), x.new_ones(3, 2, 2, 2)).as_strided((5, 3), (3, 1), 1),
    "max_pool2d": lambda x: F.max_pool2d(image(x), 2, 1).as_strided((2, 3), (1, 2)),
    "strides": lambda x: image(x).exp() * image(x).cumsum(2).stride(3) + F.max_pool2d(image(x), 1).stride(2),
}


@pytest.mark.parametrize("backend", ["toyloops", "onnxruntime"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_of_what_is_computed_are_eagers(name: str, dynamic: bool, backend: str) -> None:
    use_kind(backend)
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for columns in (6, 9) if dynamic else (6,):
        x = torch.randn(4, columns, requires_grad=True)
        found, wanted = compiled(x), function(x)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert found.stride() == wanted.stride()
        given = torch.randn_like(wanted)
        gradients = [torch.autograd.grad(result, x, given)[0] for result in (found, wanted)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
