"""Inductor's amin of uint8 on the CPU is 0 for rows in which no element is.

Found by the case `amin[uint8]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.full((4, 67), 7, dtype=torch.uint8)
    x[:, 3] = 2
    torch.compiler.reset()
    found = torch.compile(lambda x: x.amin(1), backend="inductor")(x)
    return "" if found.equal(x.amin(1)) else f"{found.tolist()} where {x.amin(1).tolist()} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
