"""Inductor's floor division keeps infinities, and rounds to zero where the divisor is infinite.

Python and torch say that inf // 1 is NaN and that 1 // -inf is -1; Inductor's C++ rounds the quotient down. Found by the case
`div.Tensor_mode`.
"""

import math
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x, y = torch.tensor([math.inf, 1.0]), torch.tensor([1.0, -math.inf])
    torch.compiler.reset()
    found = torch.compile(lambda x, y: torch.div(x, y, rounding_mode="floor"), backend="inductor")(x, y)
    right = torch.tensor([a // b for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    same = torch.equal(found.nan_to_num(99), right.nan_to_num(99))
    return "" if same else f"{found.tolist()} where {right.tolist()} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
