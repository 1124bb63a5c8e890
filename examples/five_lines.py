"""A model in five lines: the last one is new. `python five_lines.py [backend]`"""

import sys

import torch

backend = sys.argv[1] if len(sys.argv) > 1 else "cpp_cpu"

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
x = torch.randn(4, 8)
expected = model(x)
compiled = torch.compile(model, backend=backend)
result = compiled(x)

print(f"largest difference from eager: {(result - expected).abs().max():.1e}")
assert torch.allclose(result, expected, atol=1e-5)
