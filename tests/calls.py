"""Which operators run."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Records the operators that run: on real tensors too, whose sizes may depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.targets.add(func)
        return func(*args, **(kwargs or {}))
