"""torch's special.bessel_y1 of float32 on the CPU is minus infinity for subnormal arguments, where the result is a number.

It computes 2 / pi * (... - 1 / x), and 1 / x overflows before it is multiplied. Found by the case `special_bessel_y1[float32]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.tensor([2.5e-39])
    found, right = torch.special.bessel_y1(x).item(), -2 / (math.pi * x.double().item())
    return "" if abs(found - right) < -1e-5 * right else f"{found} where {right:.5g} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
