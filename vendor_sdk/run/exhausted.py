"""Which errors say that memory ran out: programs catch these to try again with less, so no other error takes their place."""

from __future__ import annotations

import torch

WORDS = ("can't allocate memory", "not enough memory")
"""What torch's allocator of host memory says, which raises a plain RuntimeError."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory of the host or of a device ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)
