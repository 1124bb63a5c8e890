"""One computation with other numbers of threads."""

from __future__ import annotations

from collections.abc import Callable

import torch


def by_threads(run: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """What ``run`` gives, compiled anew, with one, two and three threads."""
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            results.append(run())
    finally:
        torch.set_num_threads(before)
    return results
