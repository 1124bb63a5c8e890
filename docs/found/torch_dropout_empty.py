"""torch's native_dropout of an empty tensor returns its mask in another dtype than it announces to compilers, which is bool.

Found by the cases `composites/dropout[...]`.
"""

import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = torch.ones(0, 5)
    found = torch.ops.aten.native_dropout.default(x, 0.5, True)[1].dtype
    with FakeTensorMode() as mode:
        announced = torch.ops.aten.native_dropout.default(mode.from_tensor(x), 0.5, True)[1].dtype
    return "" if found == announced else f"the mask is of {found} where {announced} is announced"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
