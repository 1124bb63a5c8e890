"""How fast this machine copies memory: what a fused kernel is measured against, in the same rounds, with the same threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import native

PLAIN, NONTEMPORAL = "copy", "nt copy"
"""Torch's copy, and one with non-temporal stores."""
LINE = 64


def copies(nbytes: int, threads: int, folder: Path) -> dict[str, Callable[[], object]]:
    """Copies of ``nbytes`` (rounded to cache lines) between two buffers that were touched before.

    Returns the plain copy, torch's, and the non-temporal one where the processor has such stores.
    """
    nbytes = max(LINE, nbytes - nbytes % LINE)
    source = torch.full((nbytes + LINE,), 1, dtype=torch.uint8)
    target = torch.zeros(nbytes + LINE, dtype=torch.uint8)
    source, target = _aligned(source, nbytes), _aligned(target, nbytes)
    calls: dict[str, Callable[[], object]] = {PLAIN: lambda: target.copy_(source)}
    library = ctypes.CDLL(str(native.build("copying", folder, "-fopenmp")))  # torch is loaded: its OpenMP runtime is used.
    copy = library.nontemporal_copy
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    addresses = target.data_ptr(), source.data_ptr()
    if copy(*addresses, nbytes, threads) == 0:
        assert torch.equal(source, target)
        calls[NONTEMPORAL] = lambda: (copy(*addresses, nbytes, threads), source, target)
    return calls


def _aligned(buffer: torch.Tensor, nbytes: int) -> torch.Tensor:
    skip = -buffer.data_ptr() % LINE
    return buffer[skip : skip + nbytes]
