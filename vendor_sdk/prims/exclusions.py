"""Operators of torch's database that opset 1 leaves out, each with its reason. They run on the host when a model uses them."""

from __future__ import annotations

from collections.abc import Mapping

_DATA_SIZE = "the size of the result depends on the data, so a static graph of it cannot be captured"
_DATA_VALUE = "a Python branch or number depends on the data, so a static graph of it cannot be captured"
_SPARSE = "prim graphs hold strided tensors only"
_JITERATOR = "compiles CUDA source given as a string: there is no operator to decompose"
_POLYNOMIAL = "a recurrence whose number of steps is an element of the other operand: no static graph computes it"
_CHUNKED = "an operator of torch.nn, new in torch 2.13, that only saves memory over the one without chunks"
_NO_SAMPLES = "the database has no float32, int64 or bool sample of it for the CPU"

EXCLUSIONS: Mapping[str, str] = {
    "allclose": _DATA_VALUE,
    "corrcoef": _DATA_VALUE,
    "cov": _DATA_VALUE,
    "equal": _DATA_VALUE,
    "item": _DATA_VALUE,
    "nn.functional.gaussian_nll_loss": _DATA_VALUE,
    "argwhere": _DATA_SIZE,
    "bincount": _DATA_SIZE,
    "combinations": _DATA_SIZE,
    "linalg.lstsq": _DATA_SIZE,
    "linalg.lstsq.grad_oriented": _DATA_SIZE,
    "masked_select": _DATA_SIZE,
    "nn.functional.ctc_loss": _DATA_SIZE,
    "nonzero": _DATA_SIZE,
    "unique": _DATA_SIZE,
    "unique_consecutive": _DATA_SIZE,
    "sparse.mm.reduce": _SPARSE,
    "sparse.sampled_addmm": _SPARSE,
    "to_sparse": _SPARSE,
    "jiterator_2inputs_2outputs": _JITERATOR,
    "jiterator_4inputs_with_extra_args": _JITERATOR,
    "jiterator_binary": _JITERATOR,
    "jiterator_binary_return_by_ref": _JITERATOR,
    "jiterator_unary": _JITERATOR,
    "special.chebyshev_polynomial_t": _POLYNOMIAL,
    "special.chebyshev_polynomial_u": _POLYNOMIAL,
    "special.chebyshev_polynomial_v": _POLYNOMIAL,
    "special.chebyshev_polynomial_w": _POLYNOMIAL,
    "special.hermite_polynomial_h": _POLYNOMIAL,
    "special.hermite_polynomial_he": _POLYNOMIAL,
    "special.laguerre_polynomial_l": _POLYNOMIAL,
    "special.legendre_polynomial_p": _POLYNOMIAL,
    "special.shifted_chebyshev_polynomial_t": _POLYNOMIAL,
    "special.shifted_chebyshev_polynomial_u": _POLYNOMIAL,
    "special.shifted_chebyshev_polynomial_v": _POLYNOMIAL,
    "special.shifted_chebyshev_polynomial_w": _POLYNOMIAL,
    "hash_tensor": "a reduction by exclusive or of bit patterns, which nothing else in torch needs",
    "histogramdd": "bins in several dimensions at once, with results of a size that Python computes",
    "resize_as_": "gives a view of more elements than the tensor has: its contents are undefined",
    "nn.functional.linear_cross_entropy.chunked": _CHUNKED,
    "nn.functional.linear_cross_entropy.chunked_none": _CHUNKED,
    "imag": _NO_SAMPLES,
    "istft": _NO_SAMPLES,
    "nn.functional.batch_norm.without_cudnn": _NO_SAMPLES,
    "nn.functional.silu.complex": _NO_SAMPLES,
    "torch._scaled_mm": _NO_SAMPLES,
    "torch._scaled_mm_v2": _NO_SAMPLES,
    "torch.ops.aten._efficient_attention_forward": _NO_SAMPLES,
    "torch.ops.aten._flash_attention_forward": _NO_SAMPLES,
    "view_as_real": _NO_SAMPLES,
}
"""Name in ``torch.testing``'s operator database to the reason."""
