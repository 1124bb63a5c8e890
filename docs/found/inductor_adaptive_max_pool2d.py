"""Inductor's adaptive_max_pool2d gives indices that do not point at the largest value where windows hold NaN.

The window's value is NaN, as in eager torch, and its index that of another element. Found by the cases `adaptive_max_pool2d`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.arange(9.0).reshape(1, 3, 3)
    x[0, 1, 1] = math.nan
    torch.compiler.reset()
    pool = torch.compile(lambda x: torch.nn.functional.adaptive_max_pool2d(x, (5, 5), return_indices=True), backend="inductor")
    values, indices = pool(x)
    pointed = x.flatten()[indices]
    off = values.isnan() & ~pointed.isnan()
    return f"{int(off.sum())} indices of NaN point at {pointed[off].tolist()}" if off.any() else ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
