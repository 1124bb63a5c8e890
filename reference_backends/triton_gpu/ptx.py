"""PTX that NVIDIA's assembler takes right.

ptxas (12.8 and 12.9, for compute capability 9.0, 10.0 and 12.0) adds zero where a constant is added to two packed numbers of 16
bits and one half of the sum is read (``docs/found/ptxas_packed_add.py``). LLVM packs places that are small numbers, such as
those of an adaptive pool's windows, so that kernels read other elements. Here the halves are added one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_PACKED_ADD = re.compile(r"\badd\.[su]16x2\s+(%\w+),\s*(%\w+),\s*(%\w+);")
_APART = (
    r"{ .reg .b16 halves<6>; mov.b32 {halves0, halves1}, \2; mov.b32 {halves2, halves3}, \3; "
    r"add.s16 halves4, halves0, halves2; add.s16 halves5, halves1, halves3; mov.b32 \1, {halves4, halves5}; }"
)
KEY = "packed sums apart"
"""In keys of Triton's cache, of versions that ask for one."""


def mended(text: str) -> str:
    """A program without packed sums of integers."""
    return _PACKED_ADD.sub(_APART, text)


def install() -> None:
    """From now on Triton's compiler gives ptxas such programs, whoever asks it for a kernel."""
    import triton

    knobs = triton.knobs.runtime
    if not isinstance(knobs.add_stages_inspection_hook, _Stages):
        knobs.add_stages_inspection_hook = _Stages(knobs.add_stages_inspection_hook)


class _Stages:
    """Triton's hook for its compiler's stages; from 3.7 on it is asked without arguments for its part of a key.

    Args:
        before: the hook that was there, which goes first.
    """

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self.before = before

    def __call__(self, *given: Any) -> tuple[str, str] | None:
        earlier = self.before(*given) if self.before is not None else None
        if not given:
            key, digest = earlier or ("", "")
            return f"{key}-{KEY}", f"{digest}-{KEY}"
        stages = given[1]
        if (compiled := stages.get("ptx")) is not None:
            stages["ptx"] = lambda source, metadata: mended(compiled(source, metadata))
        return None
