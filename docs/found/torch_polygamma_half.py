"""torch's polygamma(n, x) of halves on the CPU, for n of 3 and more, rounds a factor before it multiplies.

polygamma(3, 2) is 6 * (pi**4 / 90 - 1), which lies nearest to 0.494140625 in bfloat16. Found by the cases
`polygamma[bfloat16]` and `polygamma[float16]`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    found = torch.polygamma(3, torch.tensor([2.0], dtype=torch.bfloat16))
    right = torch.tensor([6 * (math.pi**4 / 90 - 1)], dtype=torch.float64).to(torch.bfloat16)
    return "" if torch.equal(found, right) else f"{found.item()} where {right.item()} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
