"""Inductor's acosh on the CPU is infinite for large arguments, float32's from 1.9e19 on, where eager torch has a number.

It is log(x + sqrt(x**2 - 1)), and the square overflows. Found by the cases `acosh[float32]`, `acosh[bfloat16]` and
`acosh[float64]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.full((64,), 1e30)
    torch.compiler.reset()
    found, right = torch.compile(torch.acosh, backend="inductor")(x)[0].item(), torch.acosh(x.double())[0].item()
    return "" if abs(found - right) < 1e-5 * right else f"{found} where {right:.6g} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
