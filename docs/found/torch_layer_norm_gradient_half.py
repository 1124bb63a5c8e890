"""torch's gradient of a layer norm's bias, of halves on the CPU, is added up in the half precision, and stops growing.

The sum of bfloat16 ones is 256 for a thread, however many there are. Found by the case
`composites/layer_norm_backward[bfloat16]`.
"""

import sys

import torch

ROWS = 65536


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = (torch.arange(ROWS * 8) % 7).reshape(ROWS, 8).bfloat16()
    weight, bias = torch.ones(8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.layer_norm(x, (8,), weight, bias).backward(torch.ones_like(x))
    assert bias.grad is not None
    found = bias.grad[0].item()
    return "" if found == ROWS else f"the gradient is {found:g} where {ROWS} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
