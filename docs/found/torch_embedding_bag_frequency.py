"""torch's gradient of embedding_bag with scale_grad_by_freq on the CPU divides by the frequencies of other rows.

Row 1 is used twice, rows 2, 3 and 5 once. Found by the cases `_embedding_bag_backward[float32]` and of the other dtypes.
"""

import sys

import torch


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    weight = torch.ones(7, 2, requires_grad=True)
    entries, offsets = torch.tensor([5, 1, 1, 2, 3]), torch.tensor([0])
    torch.nn.functional.embedding_bag(entries, weight, offsets, mode="sum", scale_grad_by_freq=True).sum().backward()
    assert weight.grad is not None
    found = weight.grad[:, 0].tolist()
    return "" if found == [0, 1, 1, 1, 0, 1, 0] else f"gradients of rows are {found} where each used row has 1"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
