"""Operands that operators are given and do not read, taken out of joint graphs.

The backward graph would be given them, so that the forward graph would have to keep them: a running statistic, which is to be
written where the old one lies, could not be computed there.
"""

from __future__ import annotations

import torch
from torch import fx

STATISTICS = (3, 4)
"""Arguments of the gradient of a batch norm: running mean and variance, which it reads in evaluation."""
TRAIN = 7


def drop_unread(graph: fx.Graph) -> None:
    """Puts None in place of operands that are not read.

    Args:
        graph: of aten operators; a joint graph.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.native_batch_norm_backward.default):
        if node.args[TRAIN]:
            for position in STATISTICS:
                node.update_arg(position, None)
