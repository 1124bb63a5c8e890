"""Training in bfloat16, weights in float32: what is written for eager stays as it is. `python mixed_precision.py [backend]`"""

import sys

import torch
from torch import nn

backend = sys.argv[1] if len(sys.argv) > 1 else "cpp_cpu"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(256, 16)
target = (x[:, :4] + 0.1 * torch.randn(256, 4)).argmax(1)


def loss_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nn.functional.cross_entropy(model(x), target)


compiled = torch.compile(loss_of, backend=backend)
first = loss_of(x, target).item()
for _ in range(30):
    optimizer.zero_grad()
    loss = compiled(x, target)
    loss.backward()
    optimizer.step()

print(f"loss: {first:.2f} before, {loss.item():.2f} after 30 steps")
print("gradients are", {p.grad.dtype for p in model.parameters() if p.grad is not None})
assert loss.item() < first / 3
assert abs(loss_of(x, target).item() - compiled(x, target).item()) < 2e-2
