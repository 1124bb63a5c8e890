"""What ran where and why, and what took the time. `python explain_and_profile.py [backend]`"""

import sys

import torch

import vendor_sdk

backend = sys.argv[1] if len(sys.argv) > 1 else "cpp_cpu"


def best(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    values: torch.Tensor = torch.linalg.eigvalsh((x @ w).softmax(-1))  # eigenvalues: few chips have them
    return values


x, w = torch.randn(64, 64), torch.randn(64, 64)
found = vendor_sdk.explain(best, x, w, backend=backend)
assert any(node.placement.kind == "host" and node.placement.reason for node in found.graphs[0].placements)

with vendor_sdk.profile() as seen:
    compiled = torch.compile(best, backend=backend)
    for _ in range(10):
        compiled(x, w)
seen.print()
