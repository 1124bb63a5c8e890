"""torch's transposed convolutions of float16 on the CPU, and gradients of convolutions, are less accurate than float32 sums.

An error is 39 times what a result may have whose float32 sum is rounded once; so it is with bfloat16 on processors that have no
instructions for it. Processors with AVX512_FP16 take another kernel, which is right. Found by the cases `convolution[float16]`
and `convolution_backward[float16]`, there of bfloat16 too.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F


def here() -> bool:
    """Whether this processor takes the kernel."""
    return "avx512_fp16" not in Path("/proc/cpuinfo").read_text()


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    offs = {dtype: off(dtype) for dtype in (torch.float16, torch.bfloat16)}
    return "; ".join(
        f"a transposed convolution of {dtype} is off by {off:.1f} times what float32 sums rounded once may be"
        for dtype, off in offs.items()
        if off > 1.1
    )


def off(dtype: torch.dtype) -> float:
    """The largest error, in units of what a float32 sum that is rounded once may have."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 67).to(dtype), torch.randn(4, 3, 3).to(dtype)
    found = F.conv_transpose1d(x, w, stride=2).double()
    exact = F.conv_transpose1d(x.double(), w.double(), stride=2)
    magnitude = F.conv_transpose1d(x.double().abs(), w.double().abs(), stride=2)
    # Half a unit for rounding the result, and twelve float32 roundings of what is summed.
    allowed = exact.abs() * torch.finfo(dtype).eps / 2 + 12 * magnitude * 2**-24
    return float(((found - exact).abs() / allowed).max())


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
