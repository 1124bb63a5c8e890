"""Kernels of the libraries that come with CUDA and torch: sorting and selection (CUB), transforms (cuFFT), linear algebra
(cuSOLVER, MAGMA), sampling, resampling and ragged sums. They run on the GPU; what they lack a dtype for raises as torch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vendor_sdk import OPSET, target_of

Tensor = torch.Tensor

SELECTION = """
    sort topk kthvalue median nanmedian searchsorted nonzero masked_select segment_reduce
    _segment_reduce_backward
"""
TRANSFORMS = "_fft_c2c _fft_c2r _fft_r2c complex _conj_physical"
LINEAR_ALGEBRA = """
    geqrf ormqr lu_unpack linalg_cholesky_ex _linalg_eigh _linalg_svd linalg_householder_product linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr linalg_solve_triangular
"""
SAMPLING = "multinomial binomial _standard_gamma"
OTHERS = "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _embedding_bag"

COMPLEX = frozenset((torch.complex64, torch.complex128))
TAKES_COMPLEX = frozenset(f"{TRANSFORMS} {LINEAR_ALGEBRA} linalg_eig mm bmm addmm baddbmm".split())
"""Prims whose kernels take or give complex numbers."""


def _linalg_eig(a: Tensor) -> tuple[Tensor, ...]:
    """Of a copy: torch 2.11 computes in the memory of a transposed operand."""
    values, vectors = torch.ops.aten.linalg_eig.default(a.clone(memory_format=torch.contiguous_format))
    return values, vectors


def _randperm(n: int, *, dtype: torch.dtype = torch.int64, **_: Any) -> Tensor:
    return torch.randperm(n, dtype=dtype, device="cuda")


ADVANCES = 12
"""Draws of one number that follow a draw of Poisson's distribution."""


def _poisson(rates: Tensor, generator: None = None) -> Tensor:
    """In torch 2.11, draws of calls that follow each other are correlated (docs/found/torch_poisson.py): more draws between
    them take the numbers that they would share."""
    drawn = torch.poisson(rates)
    one = rates.new_ones(1)
    for _ in range(ADVANCES):
        torch.poisson(one)
    return drawn


MAX = 2
"""``mode`` of embedding bags."""


def _embedding_bag_backward(
    gradient: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    chosen: Tensor,
    rows: int,
    scaled: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding: int = -1,
) -> Tensor:
    """Torch 2.11 has no gradient of a maximum in bfloat16; halves are added in float32 here, which is rounded once."""
    if mode != MAX:
        result: Tensor = torch.ops.aten._embedding_bag_backward.default(
            gradient, indices, offsets, bags, sizes, chosen, rows, scaled, mode, sparse, weights, padding
        )
        return result
    wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    filled = sizes[: wide.shape[0]] > 0  # there is one more where the last offset is the end of a bag
    terms = torch.where(filled.unsqueeze(1), wide, 0)  # an empty bag has no row that was chosen
    total = wide.new_zeros((rows, gradient.shape[1]))
    return total.scatter_add_(0, chosen.to(torch.int64).clamp(min=0), terms).to(gradient.dtype)


LIBRARY: Mapping[str, Callable[..., Any]] = {
    **{name: target_of(OPSET[name]) for name in f"{SELECTION} {TRANSFORMS} {LINEAR_ALGEBRA} {SAMPLING} {OTHERS}".split()},
    "_embedding_bag_backward": _embedding_bag_backward,
    "linalg_eig": _linalg_eig,
    "poisson": _poisson,
    "randperm": _randperm,
}
"""Prim to kernel."""
