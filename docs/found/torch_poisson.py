"""torch's poisson on CUDA: draws of calls that follow each other are correlated, by 0.66 for a rate of 60.

At a rate of 20 it is 0.08, at 2 and at 200 none is seen. Found by the cases `poisson[float32]` to `poisson[bfloat16]` of
`triton_gpu`.
"""

import sys

import torch

COUNT = 1 << 14


def here() -> bool:
    """Whether this machine has such a device."""
    return torch.cuda.is_available()


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    torch.manual_seed(1)
    rates = torch.full((COUNT,), 60.0, device="cuda")
    one, other = (torch.poisson(rates).double() for _ in range(2))
    correlation = float(torch.corrcoef(torch.stack([one, other]))[0, 1])
    # Six deviations: by chance once in a billion.
    return f"two calls have a correlation of {correlation:.2f}" if abs(correlation) > 6 / COUNT**0.5 else ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
