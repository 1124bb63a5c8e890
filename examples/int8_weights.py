"""Weights of a linear layer as int8 with a scale a row: a quarter of the bytes, converted where the product reads them.

`python int8_weights.py [backend]`
"""

import sys

import torch
from torch import Tensor, nn

import vendor_sdk

backend = sys.argv[1] if len(sys.argv) > 1 else "cpp_cpu"


class Int8Linear(nn.Module):
    """What an ``nn.Linear`` computes, up to the rounding of its weights."""

    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.register_buffer("scale", weight.abs().amax(1) / 127)
        self.register_buffer("weight", (weight / self.scale[:, None]).round().to(torch.int8))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.to(x.dtype).t()) * self.scale + self.bias


def quantized(model: nn.Module) -> nn.Module:
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else quantized(child))
    return model


def nbytes(model: nn.Module) -> int:
    return sum(t.nbytes for t in model.state_dict().values())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).eval()
x = torch.randn(4, 256)
with torch.no_grad():
    exact, before = model(x), nbytes(model)
    small = quantized(model)
    result = torch.compile(small, backend=backend)(x)
    (graph,) = vendor_sdk.explain(small, x, backend=backend, show=False).graphs

error = ((result - exact).norm() / exact.norm()).item()
print(f"{before} bytes of weights became {nbytes(small)}; the result differs by {error:.1%}")
print("kernels:", ", ".join(kernel.name for kernel in graph.kernels.kernels))
assert torch.allclose(result, small(x), atol=1e-4)
assert error < 0.02
