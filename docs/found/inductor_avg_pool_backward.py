"""Inductor's gradient of avg_pool2d with ceil_mode and padding on the CPU divides by more elements than the window has where it
reaches beyond the padding.

The forward pass divides by the right number. So it is with avg_pool3d. Found by the cases
`avg_pool2d_backward[float32]`, `avg_pool3d_backward[float32]` and of the other dtypes.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""

    def gradient(function: object) -> list[list[float]]:
        x = torch.arange(9.0).reshape(1, 1, 3, 3).requires_grad_()
        function(x).sum().backward()  # type: ignore[operator]
        assert x.grad is not None
        return x.grad[0, 0].tolist()

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(x, 3, 3, 1, ceil_mode=True)

    torch.compiler.reset()
    found, right = gradient(torch.compile(pooled, backend="inductor")), gradient(pooled)
    off = max(abs(a - b) for one, other in zip(found, right, strict=True) for a, b in zip(one, other, strict=True))
    return "" if off < 1e-6 else f"{found} where {right} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
