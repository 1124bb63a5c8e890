"""Convolutions: a graph is compiled for the sizes of their weights.

The code of a convolution depends on its window and its channels much as on the operator, so sizes of weights that Dynamo took
for symbols become numbers, guarded as any that a program asks for. (Those of parameters are numbers already; those that only
data tells stay symbols.)
"""

from __future__ import annotations

import torch
from torch import fx

from vendor_sdk import torch_private

_CONVOLUTIONS = {
    *(getattr(torch, f"conv{kind}{n}d") for kind in ("", "_transpose") for n in (1, 2, 3)),
    torch.convolution,
    torch.ops.aten.convolution.default,
}


def know_windows(module: fx.GraphModule) -> None:
    """Makes numbers of the sizes of weights in a graph that Dynamo captured."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in _CONVOLUTIONS:
            continue
        weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
        fake = weight.meta.get("example_value") if isinstance(weight, fx.Node) else None
        for size in getattr(fake, "shape", ()):
            if torch_private.known_while_traced(size):
                int(size)  # adds the guard
