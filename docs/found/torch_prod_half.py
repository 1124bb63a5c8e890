"""torch's prod of halves on the CPU rounds each partial product to the half precision, as its sum does not.

The error grows with the number of factors. Found by the cases `prod[bfloat16]` and `prod[float16]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    bad = []
    for dtype, factor in ((torch.bfloat16, 1.0078125), (torch.float16, 1.0009765625)):
        x = torch.full((256, 4), factor, dtype=dtype)
        found, right = x.prod(0)[0].item(), factor**256
        units = abs(found - right) / (torch.finfo(dtype).eps * right)
        if units > 1:
            bad.append(f"{dtype}: {found} where {right:.5g} is right")
    return ", ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
