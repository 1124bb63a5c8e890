"""A model as one ONNX file, for runtimes that have neither Python nor this SDK. `python export_onnx.py [file]`"""

import sys

import numpy as np
import onnxruntime
import torch
from torch import nn

import vendor_sdk

path = sys.argv[1] if len(sys.argv) > 1 else "model.onnx"

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
written = vendor_sdk.export(model, [torch.randn(2, 3, 32, 32)], path, dynamic=({0: "batch"},))

session = onnxruntime.InferenceSession(written)
(taken,) = session.get_inputs()
x = torch.randn(5, 3, 32, 32)
(result,) = session.run(None, {taken.name: x.numpy()})
print(f"{written.name}: {taken.name} {taken.shape}, {written.stat().st_size} bytes")
assert np.allclose(result, model(x).detach().numpy(), atol=1e-5)
