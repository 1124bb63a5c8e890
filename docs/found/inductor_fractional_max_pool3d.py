"""Inductor's fractional_max_pool3d takes the random sample of the last dimension for the first, and the other way round.

Found by the cases `fractional_max_pool3d[...]`.
"""

import sys

import torch


def pool(x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.fractional_max_pool3d(x, [2, 2, 2], [3, 3, 4], samples)[0]


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    torch.manual_seed(0)
    x, samples = torch.randn(2, 3, 7, 6, 8), torch.rand(2, 3, 3)
    torch.compiler.reset()
    found = torch.compile(pool, backend="inductor")(x, samples)
    if found.equal(pool(x, samples)):
        return ""
    reversed_ = found.equal(pool(x, samples.flip(-1).contiguous()))
    return f"windows are not eager torch's{': they are those of the samples in reverse order' if reversed_ else ''}"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
