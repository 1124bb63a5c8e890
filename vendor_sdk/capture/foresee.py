"""What a graph of Dynamo will need, seen before it is traced: prims for which a backend's compilers may already start."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from vendor_sdk.capture.nodes import word_of

_PRIMS = {
    **dict.fromkeys(("linear", "matmul", "mm", "addmm", "addmv", "bmm", "baddbmm", "bilinear", "einsum"), "mm"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), "convolution"),
    "scaled_dot_product_attention": "scaled_dot_product_attention",
    "general_attention": "general_attention",
    **dict.fromkeys(("grouped_mm", "grouped_mm_fallback"), "grouped_mm"),
}
"""Names of torch's functions and methods to the prim or composite that they become."""
_DIFFERENTIATED = {
    "convolution": "convolution_backward",
    "scaled_dot_product_attention": "scaled_dot_product_attention_backward",
    "general_attention": "general_attention_backward",
}


def nearly_always() -> Mapping[str, frozenset[torch.dtype]]:
    """What nearly every model has, when nothing is known of it but that it will be traced."""
    return {"mm": frozenset((torch.get_default_dtype(),))}


def foreseen(module: fx.GraphModule) -> Mapping[str, frozenset[torch.dtype]]:
    """The costly prims and composites that a graph of Dynamo will likely contain, with the dtypes of their results; of its
    backward graph too. Batched and plain matrix products are all called ``mm``."""
    found: dict[str, set[torch.dtype]] = {}
    for node in module.graph.nodes:
        prim = _PRIMS.get(word_of(node))
        value = node.meta.get("example_value")
        value = value[0] if isinstance(value, tuple) and value else value
        if prim is None or not isinstance(value, torch.Tensor):
            continue
        found.setdefault(prim, set()).add(value.dtype)
        if prim in _DIFFERENTIATED and value.requires_grad and torch.is_grad_enabled():
            found.setdefault(f"{prim}_backward", set()).add(value.dtype)
    return {prim: frozenset(dtypes) for prim, dtypes in found.items()}
