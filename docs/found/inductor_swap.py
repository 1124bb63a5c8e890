"""Inductor computes a swap of two inputs in place wrongly: the second gets back what it had, since the copy that was to keep
the first one's values is dropped.

Found by the case `semantics/in-place`.
"""

import sys

import torch


def swap(x: torch.Tensor, y: torch.Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x, y = torch.arange(4.0), 10 + torch.arange(4.0)
    torch.compiler.reset()
    torch.compile(swap, backend="inductor")(x, y)
    return "" if y.tolist() == [0, 1, 2, 3] else f"x {x.tolist()}, y {y.tolist()} after a swap of 0... and 10..."


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
