"""Inductor's nextafter of halves on the CPU returns its first operand.

It takes float32's next value, which rounds back to where it came from. Found by the cases `nextafter[bfloat16]` and
`nextafter[float16]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    bad = []
    for dtype in (torch.bfloat16, torch.float16):
        x, y = torch.full((64,), 1.0, dtype=dtype), torch.full((64,), 2.0, dtype=dtype)
        torch.compiler.reset()
        found = torch.compile(torch.nextafter, backend="inductor")(x, y)[0].item()
        right = 1 + torch.finfo(dtype).eps
        if found != right:
            bad.append(f"{dtype}: {found} where {right} is right")
    return ", ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
