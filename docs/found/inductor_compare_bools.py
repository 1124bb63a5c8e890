"""Inductor's C++ for comparing a few bools with ones that were bfloat16 does not compile.

The operator is called with masks of two types. It takes fewer bools than fill a vector. Found by a generated graph
of kind `float32`.
"""

import re
import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""

    def function(x: torch.Tensor) -> torch.Tensor:
        rounded = x.bfloat16().bool()
        return torch.where(x < rounded, x, rounded)

    x = torch.arange(5).view(5, 1) % 3 == 0
    torch.compiler.reset()
    try:
        found = torch.compile(function, backend="inductor", dynamic=False)(x)
    except RuntimeError as error:
        reason = re.search("error: .*", str(error))
        return reason.group() if reason else str(error)
    return "" if found.equal(function(x)) else "values differ"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
