"""A backend that has attention and nothing else: a vendor's fused kernel in a model, all the rest on the host.

A composite stays whole where a backend claims it, forward and backward being two. The kernel here is torch's own; put the
call of your library in its place. `python attention_chip.py`
"""

import torch
from torch import Tensor, nn

import vendor_sdk

CALLS: list[torch.Size] = []


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale * query @ key.T + mask) @ value, and the logarithm of each row's sum of exponentials."""
    CALLS.append(query.shape)
    whole = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    result: tuple[Tensor, Tensor] = whole(query, key, value, dropout, causal, attn_mask=attn_mask, scale=scale)
    return result


class AttentionChip:
    @vendor_sdk.hookimpl
    def backend(self) -> vendor_sdk.Backend:
        return vendor_sdk.Backend(
            name="attentionchip",
            version="1.0",
            dtypes=frozenset({torch.float32}),
            composites=frozenset({"scaled_dot_product_attention"}),
        )

    @vendor_sdk.hookimpl
    def kernels(self) -> dict[str, object]:
        return {"scaled_dot_product_attention": attention}

    @vendor_sdk.hookimpl
    def supports(self, node: vendor_sdk.NodeContext) -> vendor_sdk.Support | None:
        wide = node.args[0].shape[-1] > 64
        return vendor_sdk.Decline("heads wider than 64") if wide else None


vendor_sdk.register(AttentionChip())  # a package offers itself by an entry point instead
torch.manual_seed(0)
model = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
x = torch.randn(2, 10, 32)
result = torch.compile(model, backend="attentionchip")(x)
result.sum().backward()
assert torch.allclose(result, model(x), atol=1e-5)

found = vendor_sdk.explain(model, x, backend="attentionchip", show=False)
native = {node.prim for node in found.placements() if node.placement.kind == "native"}
print("native:", native)
print("calls of the chip's attention:", CALLS)
assert native == {"scaled_dot_product_attention"}
