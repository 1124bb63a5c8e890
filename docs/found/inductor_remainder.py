"""Inductor's remainder on the CPU loses digits, and is NaN where the divisor is infinite, both unlike eager torch's.

It computes x - y floor(x / y), where the product is rounded, and NaN for infinity times zero; the remainder of two numbers of a
format is a number of that format. Found by the cases `remainder[float32]`, `remainder[float64]`, `remainder[bfloat16]` and
`remainder[float16]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    bad = []
    for dtype, x, y in ((torch.float32, 1000.0, 0.3), (torch.float16, 1.0, math.inf)):
        tensors = torch.full((64,), x, dtype=dtype), torch.full((64,), y, dtype=dtype)
        torch.compiler.reset()
        found = torch.compile(torch.remainder, backend="inductor")(*tensors)[0].item()
        right = math.fmod(tensors[0][0].item(), tensors[1][0].item())
        if found != right:
            bad.append(f"{dtype}: {found} where {right} is right, and eager's is {torch.remainder(*tensors)[0].item()}")
    return ", ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
