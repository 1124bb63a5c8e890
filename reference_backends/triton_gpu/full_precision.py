"""Has torch's libraries compute with all digits, for the suite: ``--plugin reference_backends.triton_gpu.full_precision``.

By default torch lets cuDNN multiply float32 in TF32, and cuBLAS add parts of long sums of halves in halves. ``triton_gpu`` does
as the user's torch is told to; its certificate says what it is when torch is told not to.
"""

from __future__ import annotations

import torch

torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
