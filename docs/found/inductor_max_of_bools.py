"""Inductor's C++ for the largest of a row of comparisons of float64 does not compile.

A function is called with masks of floats and of doubles. It takes rows whose end does not fill a vector. Seen on a processor
with AVX2 and without AVX-512. Found by the generated graphs of kind `float64`.
"""

import re
import sys

import torch


def here() -> bool:
    """Whether it was seen on such a machine."""
    return torch.cpu._is_avx2_supported() and not torch.cpu._is_avx512_supported()


def wrong() -> str:
    """What is wrong, "" where nothing is."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(x > 0, (x > 0).max(1, keepdim=True)[0])[:, 1:].double()

    x = torch.linspace(-2, 1, 10 * 37, dtype=torch.float64).view(10, 37)
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
