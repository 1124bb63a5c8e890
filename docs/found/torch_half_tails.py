"""torch's rsqrt and i0e of halves on the CPU give the last elements of a tensor other results than equal ones before them.

What fills a vector register is computed in float32, the rest in the half precision itself, step by step. Found by the cases
`rsqrt[bfloat16]`, `rsqrt[float16]`, `special_i0e[bfloat16]` and `special_i0e[float16]`.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    bad = []
    for function in (torch.rsqrt, torch.special.i0e):
        for dtype in (torch.bfloat16, torch.float16):
            for x in torch.linspace(0.5, 20.0, 100).tolist():
                found = function(torch.full((33,), x, dtype=dtype))
                if found[0] != found[32]:
                    ends = f"{found[0]:.5g} first and {found[32]:.5g} last"
                    bad.append(f"{function.__name__} of 33 times {x:.4g} in {dtype}: {ends}")
                    break
    return "; ".join(bad)


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
