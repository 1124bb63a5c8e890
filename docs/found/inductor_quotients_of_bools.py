"""Inductor does not compile quotients of bools from which their largest is subtracted: it takes them for part of a softmax.

Its pattern negates the bools. Found by a generated graph of kind `mixed`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""

    def function(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        quotients = x / by
        return quotients - quotients.amax(0, keepdim=True)

    x, by = torch.arange(12).view(3, 4) % 2 == 0, torch.tensor(-2.5)
    torch.compiler.reset()
    try:
        found = torch.compile(function, backend="inductor", dynamic=False)(x, by)
    except RuntimeError as error:
        return next(line for line in str(error).splitlines() if "Error" in line)
    return "" if found.equal(function(x, by)) else "values differ"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
