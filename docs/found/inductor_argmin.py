"""Inductor's argmin of uint8 on the CPU is 0 wherever the smallest element lies, and the index of min of bool is that of an
element that is true where one is false. The smallest value of uint8 is wrong too where it is asked for with its index.

Found by the cases `argmin[uint8]`, `min.dim[uint8]` and `min.dim[bool]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x, bad = torch.tensor([[3, 2, 1, 2] * 16], dtype=torch.uint8), []
    for each in (x, x > 1):
        torch.compiler.reset()
        found = [result.item() for result in torch.compile(lambda x: x.min(1), backend="inductor")(each)]
        right = [result.item() for result in each.min(1)]
        if found != right:
            bad.append(f"{each.dtype}: {found[0]} at {found[1]} where {right[0]} at {right[1]} is right")
    return "; ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
