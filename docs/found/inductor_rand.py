"""Inductor's rand of halves draws ones, which its documentation excludes: numbers of float32 are rounded to the half precision.

Found by the cases `rand[bfloat16]` and `rand[float16]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    torch.manual_seed(0)
    torch.compiler.reset()
    ones = {
        dtype: int((torch.compile(lambda dtype=dtype: torch.rand(1 << 20, dtype=dtype), backend="inductor")() >= 1).sum())
        for dtype in (torch.bfloat16, torch.float16)
    }
    return ", ".join(f"{count} of 2**20 numbers of {dtype} are 1" for dtype, count in ones.items() if count)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
