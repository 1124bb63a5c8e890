"""What a sparse result of a graph is made of, when the graph itself returns dense tensors only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """A sparse COO tensor among a graph's results.

    Attributes:
        indices: the result that is its indices, of shape (sparse dimensions, elements); the tensor takes its place.
        values: the result that is its values, of shape (elements, *dense sizes).
        size: of the tensor.
    """

    indices: int
    values: int
    size: tuple[int, ...]
