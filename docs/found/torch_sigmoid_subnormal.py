"""torch's sigmoid of float32 and bfloat16 on the CPU gives zero for results that are subnormal numbers.

exp(-x) overflows in float32 for x below -88.7, where the result is still 3e-39. Found by the cases `sigmoid[float32]` and
`sigmoid[bfloat16]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    right, bad = math.exp(-89.0), []
    for dtype in (torch.float32, torch.bfloat16):
        found = torch.sigmoid(torch.full((64,), -89.0, dtype=dtype))[0].item()
        if abs(found - right) > 0.1 * right:
            bad.append(f"{dtype}: {found} where {right:.4g} is right")
    return ", ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
