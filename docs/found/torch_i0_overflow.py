"""torch's i0 and special.modified_bessel_i0 on the CPU overflow too soon in float32: infinity where the result is finite.

They multiply by exp(x), which overflows at 88.7, before they divide by the root of x. Found by the cases `i0[float32]` and
`special_modified_bessel_i0[float32]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.tensor([90.0])
    found = torch.i0(x).item()
    right = torch.i0(x.double()).item()  # 5.1e37: float32 reaches to 3.4e38
    return "" if abs(found - right) < 1e-5 * right else f"{found} where {right} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
