"""torch's Bessel functions of float32 on the CPU have no right digit for arguments of some millions.

x - pi / 4 is rounded to float32 before its cosine is taken: at 1e6 that is an angle off by 0.03, at 1e7 by half a radian.
(cos(x) + sin(x)) / sqrt(2) has no such error. Found by the cases `special_bessel_j0[float32]`, `j1`, `y0` and `y1`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.linspace(1e6, 1e7, 1000)
    size = (2 / (torch.pi * x.double())).sqrt()  # of the oscillation
    bad = []
    for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"):
        function = getattr(torch.special, name)
        worst = ((function(x).double() - function(x.double())).abs() / size).max().item()
        if worst > 1e-3:
            bad.append(f"{name} is off by {worst:.2g} of its amplitude")
    return ", ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
