"""torch's lgamma of float32 on the CPU is infinite for arguments from 4.05e36 on, where the result is still a number.

Found by the cases `lgamma[float32]` and `lgamma[bfloat16]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    found, right = torch.lgamma(torch.tensor([4.06e36])).item(), math.lgamma(4.06e36)  # float32 reaches to 3.4e38
    return "" if abs(found - right) < 1e-5 * right else f"{found} where {right:.5g} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
