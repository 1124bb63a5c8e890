"""torch's cosh and sinh of float32 on the CPU are infinite for arguments from 88.8 on, where the results are still numbers; so
is sinh of bfloat16.

exp(x) overflows there, and the results are half of it. Found by the cases `cosh[float32]` and `sinh[float32]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    for function, right in ((torch.cosh, math.cosh(89.0)), (torch.sinh, math.sinh(89.0))):
        found = function(torch.full((64,), 89.0))[0].item()
        if not math.isfinite(found):
            return f"{found} where {right:.4g} is right"
    return ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
