"""torch's polygamma(1, x) of float64 on the CPU has nine right digits where float64 has sixteen.

The right value is pi**2 / 6, the trigamma function at 1. Found by the case `polygamma[float64]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    found, right = torch.polygamma(1, torch.tensor([1.0], dtype=torch.float64)).item(), math.pi**2 / 6
    return "" if abs(found - right) < 1e-14 else f"{found!r} where {right!r} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
