"""Inductor's erfinv of float32 on the CPU has errors of sixty units in the last place near one, where eager torch has one.

Found by the case `erfinv[float32]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = 1 - torch.arange(1, 65) * 2.0**-24
    torch.compiler.reset()
    found, right = torch.compile(torch.erfinv, backend="inductor")(x), torch.erfinv(x.double())
    off, eager = (((each.double() - right) / right).abs().max().item() for each in (found, torch.erfinv(x)))
    return "" if off < 2e-6 else f"off by {off:.2g} of the result, eager's by {eager:.2g}"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
