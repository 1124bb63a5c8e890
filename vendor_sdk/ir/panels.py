"""Panels: how a matrix lies whose columns are read some at a time, as the tiles of a matrix product read their right factor."""

from __future__ import annotations

import torch


def panels(matrix: torch.Tensor, width: int, transposed: bool) -> torch.Tensor:
    """A matrix (k, n), or its transpose, as ``(ceil(n / width), k, width)``: panels of ``width`` columns, each with its rows
    one after the other, the last one filled up with zeros. Contiguous, dtype and device as given.

    As a node of a graph it stands for a value that is kept between calls (``run/kept.py``): its input is static.
    """
    matrix = matrix.t() if transposed else matrix
    k, n = matrix.shape
    count = -(-n // width)
    # Written once: padding first would double the bytes, and matrices of parameters are large.
    result = matrix.new_empty(count, k, width)
    whole = n // width
    result[:whole].copy_(matrix[:, : whole * width].reshape(k, whole, width).permute(1, 0, 2))
    if whole < count:
        result[whole].zero_()
        result[whole, :, : n - whole * width].copy_(matrix[:, whole * width :])
    return result
