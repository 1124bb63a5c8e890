"""Products of groups of rows, as torch and ``transformers`` spell them, to the composite ``grouped_mm``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vendor_sdk.normalize.rules import Rule, Rules, aten, cast
from vendor_sdk.prims.grouped import OPERATOR, gradients

EXPERTS = Rules()

Tensor = torch.Tensor


@EXPERTS.rule(aten._grouped_mm.default)
def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    if offs is None:
        result = aten.bmm.default(self, mat2)
    elif self.dim() == 3:
        # Groups of columns: the transposed product has groups of rows.
        turned = OPERATOR(aten.permute.default(mat2, [1, 0]), aten.permute.default(self, [0, 2, 1]), offs)
        result = aten.permute.default(turned, [1, 0])
    else:
        result = OPERATOR(self, mat2, offs)
    if bias is not None:
        result = aten.add.Tensor(result, bias)
    return result if out_dtype is None else cast(result, out_dtype)


def _transformers(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return OPERATOR(input, weight, offs)  # type: ignore[no-any-return]


def _transformers_backward(input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    return gradients(grad_output, input, weight, offs)


LATE: Mapping[str, Rule] = {
    "transformers::grouped_mm_fallback": _transformers,
    "transformers::grouped_mm_fallback_backward": _transformers_backward,
}
"""Rules of operators that are there once ``transformers`` is imported."""
