"""torch's bfloat16 convolutions on the CPU give NaN for an infinite input in the last of an odd number of channels.

The result is infinite. Seen on processors with AVX512_BF16 only. Found by the case `convolution[bfloat16]`, with infinities
among the inputs.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F


def here() -> bool:
    """Whether this processor takes the kernel."""
    return "avx512_bf16" in Path("/proc/cpuinfo").read_text()


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 11, 13).bfloat16(), torch.randn(5, 3, 3, 3).bfloat16()
    x[1, 2, 5, 5] = float("-inf")
    found, exact = F.conv2d(x, w, padding=1), F.conv2d(x.double(), w.double(), padding=1)
    lost = int((found.isnan() & exact.isinf()).sum())
    return f"{lost} NaN where results are infinite" if lost else ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
