"""Inductor's expm1, atanh and erf of float32 on the CPU lose their digits near zero, where eager torch has all of them.

expm1(x) is exp(x) - 1, which is what the function is there to avoid, atanh(x) is half of log((1 + x) / (1 - x)), and the error
of erf's approximation does not shrink with x. Found by the cases `expm1[float32]`, `atanh[float32]`, `erf[float32]`, and those
of bfloat16 and float64.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x, bad = torch.logspace(-6, -1, 1024), []
    for function in (torch.expm1, torch.atanh, torch.erf):
        torch.compiler.reset()
        right = function(x.double())
        found = torch.compile(function, backend="inductor")(x)
        off, eager = (((each.double() - right) / right).abs().max().item() for each in (found, function(x)))
        if off > 1e-5:
            bad.append(f"{function.__name__} is off by {off:.2g} of its result, eager's by {eager:.2g}")
    return ", ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
