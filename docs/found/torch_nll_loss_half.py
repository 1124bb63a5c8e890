"""torch's nll_loss of halves on the CPU rounds the sum of its terms to the half precision before it divides by their number.

The mean of equal numbers is another one. Found by the cases `composites/nll_loss[bfloat16]` and `composites/nll_loss[float16]`.
"""

import sys

import torch

ROWS = 512


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    loss = 1 + 1.5 * torch.finfo(torch.bfloat16).eps
    given = torch.full((ROWS, 3), -loss, dtype=torch.bfloat16)
    found = torch.nn.functional.nll_loss(given, torch.zeros(ROWS, dtype=torch.int64)).item()
    right = -given[0, 0].item()
    return "" if found == right else f"the mean of {right} is {found}"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
