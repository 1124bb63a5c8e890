"""Inductor drops a conversion to a half precision and back: the result has digits that the program rounded away.

With `torch._inductor.config.emulate_precision_casts = True` it rounds. Found by the generated graphs of kind `mixed`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.tensor([1 / 3, 2.0**-126])
    torch.compiler.reset()
    found = torch.compile(lambda value: value.to(torch.float16).to(torch.float32) * 1, backend="inductor")(x)
    right = x.to(torch.float16).to(torch.float32)
    return "" if torch.equal(found, right) else f"{found.tolist()} where {right.tolist()} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
