"""Route 2, emitter: the SDK lowers prims to loop kernels, the vendor turns each into target text and compiles it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vendor_sdk.ir.loop import LoopKernel

Launch = Callable[[Sequence[Any], Sequence[int]], None]
"""``launch(buffers, symbols)``: buffers in the order of ``LoopKernel.params`` (tensors of the device, results included, each
contiguous from its own first element), symbols in the order of ``LoopKernel.symbols``."""


class Emitter(abc.ABC):
    """Turns loop kernels into launchable code.

    ``ops`` is the capability list: a prim whose lowering needs a loop-level op that is not a key is decomposed, or runs on the
    host. Nothing else says what an emitter can do, so no second list can drift.
    """

    ops: Mapping[str, Any]
    """Loop-level op (``"add"``, ``"exp"``, ``"reduce.sum"``) to whatever the emitter keeps for it, usually target text."""

    @abc.abstractmethod
    def emit(self, kernel: LoopKernel) -> str:
        """Target text of one kernel. Deterministic: equal kernels give equal text."""

    @abc.abstractmethod
    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        """Compiles the kernels of one graph together. Raises ``CompilerError`` with the compiler's own words."""
