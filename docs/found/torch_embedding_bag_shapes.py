"""torch announces another shape for the second result of `_embedding_bag` of bfloat16 than its CPU kernel returns.

A compiled graph counts on the shapes that fake tensors have. Found by the case `_embedding_bag[bfloat16]`.
"""

import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    weight = torch.ones(11, 8, dtype=torch.bfloat16)
    entries, offsets = torch.arange(10), torch.tensor([0, 3])
    found = torch.ops.aten._embedding_bag.default(weight, entries, offsets)[1].shape
    with FakeTensorMode() as mode:
        announced = torch.ops.aten._embedding_bag.default(*map(mode.from_tensor, (weight, entries, offsets)))[1].shape
    return "" if found == announced else f"offset2bag has shape {list(found)} where {list(announced)} is announced"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
