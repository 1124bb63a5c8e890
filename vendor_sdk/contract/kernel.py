"""Route 1, kernels: a callable per prim. Ten lines run a model, with everything else on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Kernel:
    """How one prim runs on the device.

    Operands are the kernel's for the length of the call: their memory serves other values afterwards, so it must not keep a
    reference to one. (Returning an operand, or a view of one, is allowed: the SDK copies it then.)

    Attributes:
        call: the kernel. It receives the prim's arguments in schema order, keyword-only ones by name, with tensors as
            ``torch.Tensor`` (``TorchDevice``) or ``DeviceTensor`` (own memory) and everything else as plain Python values.
        destination: when True the SDK allocates the results, contiguous, and passes them first, one argument each; the kernel
            fills them and returns None. When False the kernel returns its results (a tuple for several).
        dtypes: what it is for: a node with a tensor of another dtype takes the backend's other routes. None: any.
    """

    call: Callable[..., Any]
    destination: bool = False
    dtypes: frozenset[torch.dtype] | None = None


def destination(call: Callable[..., None]) -> Kernel:
    """Decorator: ``call(out, *args)`` writes into results that the SDK allocated."""
    return Kernel(call, destination=True)
