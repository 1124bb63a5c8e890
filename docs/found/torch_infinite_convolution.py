"""torch's bfloat16 convolutions of an odd number of channels on the CPU give NaN for an infinite input.

In the last channel it makes NaN of infinite results with AVX512_BF16; in the first one, with AMX, of finite results beside
them. Other processors have neither. Found by the case `convolution[bfloat16]`, with infinities among the inputs.
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
    w = torch.randn(5, 3, 3, 3).bfloat16()
    lost = 0
    for channel in range(3):
        x = torch.randn(2, 3, 11, 13).bfloat16()
        x[1, channel, 5, 5] = float("-inf")
        found, exact = F.conv2d(x, w, padding=1), F.conv2d(x.double(), w.double(), padding=1)
        lost += int((found.isnan() & ~exact.isnan()).sum())
    return f"{lost} NaN where results are finite or infinite" if lost else ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
