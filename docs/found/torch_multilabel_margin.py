"""torch.compile gives other values of multilabel_margin_loss than torch itself, where AOTAutograd traces it.

The classes behind the first -1 of the targets count: the operator's decomposition does not leave them out. The right value is
eager mode's, which follows the definition: targets end at the first -1. Found by trying losses.
"""

import sys

import torch
import torch.nn.functional as F


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.tensor([[0.1, 0.2, 0.4, 0.8]])
    target = torch.tensor([[3, -1, 0, 1]])
    torch._dynamo.reset()
    found = float(torch.compile(F.multilabel_margin_loss, backend="aot_eager")(x, target))
    right = float(F.multilabel_margin_loss(x, target))
    torch._dynamo.reset()
    return "" if abs(found - right) < 1e-5 else f"{found:.4f} where {right:.4f} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
