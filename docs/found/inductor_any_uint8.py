"""Inductor's any of uint8 is of bool, where eager torch's is of uint8, as its documentation says.

Found by the case `any[uint8]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.ones(4, 8, dtype=torch.uint8)
    torch.compiler.reset()
    found = torch.compile(lambda x: x.any(1), backend="inductor")(x).dtype
    return "" if found == x.any(1).dtype else f"{found} where eager torch has {x.any(1).dtype}"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
