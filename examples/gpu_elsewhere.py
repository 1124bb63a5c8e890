"""Kernels for a GPU that is elsewhere, with none here: what each takes of it. `python gpu_elsewhere.py [target]`"""

import sys

import torch

import vendor_sdk

target = sys.argv[1] if len(sys.argv) > 1 else "cuda:90"
options = {"target": target}
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512))
x = torch.randn(64, 256)

found = vendor_sdk.explain(model, x, backend="triton_gpu", options=options, show=False)
for graph in found.graphs:
    for kernel in graph.kernels.kernels:
        taken = ", ".join(f"{count} {name}" for name, count in kernel.resources.items())
        print(f"{graph.name}: {'+'.join(dict.fromkeys(kernel.prims))}: {taken or 'a library kernel'}")

try:
    torch.compile(model, backend="triton_gpu", options=options)(x)
except vendor_sdk.MachineError as error:
    print(error)
