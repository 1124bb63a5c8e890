"""Inductor does not compile a sum at one place, if the index that names it has no dimensions, nor the gradient of a row that is
taken so: torch's decomposition of ``index_add`` puts a row where the index says that there is none.

Found by compiling a metric of torchmetrics.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""

    def function(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, index, source)

    x, index, source = torch.arange(4.0), torch.tensor(2), torch.tensor([5.0])
    torch.compiler.reset()
    try:
        found = torch.compile(function, backend="inductor")(x, index, source)
    except RuntimeError as error:
        return next(line for line in str(error).splitlines() if "Error" in line)
    return "" if found.equal(function(x, index, source)) else "values differ"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
