"""``torch.compile`` with what is certified, as its users call it: for sizes that change, and for gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.subject import TORCH_PREFIX, Subject


def through_torch(subject: Subject, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """``function`` of tensors, compiled in its first call; ``dynamic`` as for ``torch.compile``."""
    torch.compiler.reset()
    name = subject.describe().name
    compiled: Callable[..., Any] = torch.compile(
        function,
        backend=name.removeprefix(TORCH_PREFIX),
        dynamic=dynamic,
        options=None if subject.opaque else {"fallback": "host"},
    )
    return compiled
