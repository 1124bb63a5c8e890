"""The backend, and its options, from a configuration: the program names no chip. `python choosing_a_backend.py [file]`"""

import sys
import tomllib
from pathlib import Path

import torch

import vendor_sdk

CONFIGURATION = """
[compile]
backend = "cpp_cpu"
dynamic = true

[compile.options]
fallback = "error"
"""

text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else CONFIGURATION
chosen = tomllib.loads(text)["compile"]

loaded = vendor_sdk.load(chosen["backend"])  # says what is wrong where there is no such backend, before a model is built
print(f"{loaded.backend.name} {loaded.backend.version}")
model = torch.compile(torch.nn.LayerNorm(16), **chosen)
print(model(torch.randn(3, 16)).shape, model(torch.randn(5, 16)).shape)

try:
    vendor_sdk.load("mychp")
except vendor_sdk.BackendNotFoundError as error:
    print(error)
