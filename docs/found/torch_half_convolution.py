"""torch's transposed convolutions of float16 on the CPU, and gradients of convolutions, are less accurate than float32 sums.

An error is 39 times what a result may have whose float32 sum is rounded once. Found by the cases
`convolution[float16]` and `convolution_backward[float16]`.
"""

import sys

import torch
import torch.nn.functional as F


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 67).half(), torch.randn(4, 3, 3).half()
    found = F.conv_transpose1d(x, w, stride=2).double()
    exact = F.conv_transpose1d(x.double(), w.double(), stride=2)
    magnitude = F.conv_transpose1d(x.double().abs(), w.double().abs(), stride=2)
    # Half a unit for rounding the result, and twelve float32 roundings of what is summed.
    off = float(((found - exact).abs() / (exact.abs() * 2**-11 + 12 * magnitude * 2**-24)).max())
    return f"a transposed convolution is off by {off:.1f} times what float32 sums rounded once may be" if off > 1.1 else ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
