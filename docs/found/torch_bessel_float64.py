"""torch's Bessel function j0 of float64 on the CPU is right to seven digits where float64 has sixteen.

The right values are sums of its power series in exact arithmetic. Found by the case `special_bessel_j0[float64]`.
"""

import sys

import torch

RIGHT = {3.0: -0.26005195490193345, 5.0: -0.1775967713143383, 8.0: 0.1716508071375539}


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    errors = {}
    for x, right in RIGHT.items():
        errors[x] = abs(torch.special.bessel_j0(torch.tensor([x], dtype=torch.float64)).item() - right)
    worst = max(errors, key=lambda x: errors[x])
    return "" if errors[worst] < 1e-13 else f"j0({worst:g}) is off by {errors[worst]:.2g}"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
