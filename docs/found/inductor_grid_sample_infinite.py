"""Inductor's grid_sample with zeros for padding is NaN beyond the edge of a picture whose first pixel is infinite or NaN, which
has no part in the result.

Found by the cases `grid_sampler_2d[float32]` and `grid_sampler_2d[float64]`.
"""

import sys

import torch
import torch.nn.functional as F


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.ones(1, 1, 4, 4)
    x[0, 0, 0, 0] = float("inf")
    grid = torch.tensor([[[[1.1, 0.1]]]])  # partly to the right of the picture

    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)

    torch.compiler.reset()
    found, right = torch.compile(sample, backend="inductor")(x, grid).item(), sample(x, grid).item()
    return "" if abs(found - right) < 1e-5 else f"{found} where {right} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
