"""torch's fmod and remainder on the CPU give NaN for a subnormal divisor, of tensors long enough for its vectorised kernels.

IEEE 754's remainder of finite numbers by a finite number that is not zero is a number. Found by the cases `fmod[float32]`,
`fmod[float64]` and `remainder[float32]`, for which the suite's reference is the C library's.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x, divisor = torch.full((64,), torch.finfo(torch.float32).max), torch.full((64,), 2.0**-128)
    found = torch.fmod(x, divisor)[0].item()
    right = math.fmod(torch.finfo(torch.float32).max, 2.0**-128)
    return "" if found == right else f"{found} where {right} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
