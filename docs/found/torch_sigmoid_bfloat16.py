"""torch's sigmoid of bfloat16 on the CPU gives zero for results that are subnormal numbers of bfloat16.

exp(-x) overflows in float32 for x below -88.7, where the result is still 3e-39. Found by the case `sigmoid[bfloat16]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    found = torch.sigmoid(torch.full((64,), -89.0, dtype=torch.bfloat16))[0].item()
    right = math.exp(-89.0)
    return "" if abs(found - right) < 0.1 * right else f"{found} where {right:.4g} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
