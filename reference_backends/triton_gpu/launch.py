"""What generated host functions call: block sizes and the launch itself."""

from __future__ import annotations

import struct
from typing import Any

from vendor_sdk import CompilerError

POINTS = 1024
"""Iterations of a program where no inner loop is taken in blocks."""
LANES = 4096
"""Most elements of a block with both axes: 32 a thread."""
ROW = 2048
"""Most iterations of an inner loop in one block."""
ACROSS = 64
"""Iterations of a nest in a block whose inner loop walks across memory: two transactions of 128 bytes of float32."""


def tile(count: int, longest: int, across: bool) -> tuple[int, int, int]:
    """``(XBLOCK, RBLOCK, warps)`` for a nest of ``count`` iterations whose longest inner loop has ``longest``.

    Powers of two. ``longest`` is 0 where no inner loop is taken in blocks. With ``across`` the lanes of a warp lie along the
    nest, not along the inner loop.
    """
    if longest == 0:
        return min(POINTS, _power(count)), 1, 4
    if across:
        x = min(ACROSS, _power(count))
        return x, min(LANES // x, _power(longest)), 8
    r = min(ROW, _power(longest))
    x = min(max(1, LANES // 4 // r), _power(count))
    return x, r, 8 if x * r >= ROW else 4


def _power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def run(kernel: Any, arguments: tuple[Any, ...], count: int, longest: int, *, across: bool) -> None:
    """Launches ``kernel`` for ``count`` iterations on the current stream; nothing for none."""
    if count == 0:
        return
    x, r, warps = tile(count, longest, across)
    try:
        kernel[(-(-count // x), 1, 1)](*arguments, XBLOCK=x, RBLOCK=r, num_warps=warps, **OPTIONS)
    except Exception as error:
        if not type(error).__module__.startswith("triton."):
            raise
        raise CompilerError(
            f"triton_gpu: Triton cannot compile {kernel.__name__}",
            why=str(error),
            where=kernel.fn.__code__.co_filename,
            fix="report this with the source file: it is a defect of the emitter",
        ) from error


OPTIONS = {
    # Contraction would make the result depend on how an expression was split.
    "enable_fp_fusion": False,
    # Integers wrap.
    "sanitize_overflow": False,
    # NVIDIA's functions of float32 keep subnormal numbers.
    "enable_reflect_ftz": False,
}


def float_bits(value: float) -> int:
    """The bits of a float64 as an int64: Triton passes Python floats as float32."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits
